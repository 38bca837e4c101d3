//! Renders a comparison of two groups of runs.

use std::fmt::Write as _;

use super::{TerminalOptions, write_list, write_wrapped};
use crate::compare::Comparison;

/// Renders the comparison, with a line feed at its end.
pub fn render_comparison(c: &Comparison, options: &TerminalOptions) -> String {
    let mut out = String::new();
    if !c.warnings.is_empty() {
        let _ = writeln!(out, "{}", options.bold_red("WARNING"));
        write_list(&mut out, &c.warnings, options);
        out.push('\n');
    }
    let _ = writeln!(out, "A  {}", c.a.describe());
    let _ = writeln!(out, "B  {}", c.b.describe());
    if !c.plan_differences.is_empty() {
        let _ = writeln!(out, "plans differ in");
        let differences = c.plan_differences.iter().map(ToString::to_string);
        write_list(&mut out, differences, options);
    }
    out.push('\n');
    let enough = c.has_enough_runs();
    // Narrow terminals show fewer columns; the values of the others can be computed from these.
    let wide = options.width >= 92;
    let columns: &[usize] = match (enough, wide) {
        (true, true) => &[0, 1, 2, 3, 4, 5, 6, 7],
        (true, false) => &[0, 1, 2, 4, 5, 7],
        (false, _) => &[0, 1, 2, 3, 4],
    };
    let table = c.table().columns(columns).render(options.width);
    let _ = writeln!(out, "{table}");
    write_wrapped(&mut out, &c.describe_method(), options);
    out
}
