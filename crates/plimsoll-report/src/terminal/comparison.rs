//! Two groups of runs, side by side.

use std::fmt::Write as _;

use crate::compare::Comparison;
use crate::quantity::signed;

use super::table::{Table, wrap};
use super::{Options, sentences};

/// The comparison, with a line's end at its end.
pub fn render_comparison(c: &Comparison, options: &Options) -> String {
    let mut out = String::new();
    if !c.warnings.is_empty() {
        let _ = writeln!(out, "{}", options.loud("BEWARE"));
        sentences(&mut out, c.warnings.iter().map(String::as_str), options);
        out.push('\n');
    }
    let _ = writeln!(out, "A  {}", c.a.words());
    let _ = writeln!(out, "B  {}", c.b.words());
    if !c.plan_differences.is_empty() {
        let _ = writeln!(out, "plans differ in");
        for line in c.plan_differences.iter().map(ToString::to_string) {
            sentences(&mut out, [line.as_str()], options);
        }
    }
    out.push('\n');
    let enough = c.enough_runs();
    // What is left out where the terminal is narrow follows from the rest.
    let wide = options.width >= 92 || !enough;
    let mut head = vec!["", "A", "B"];
    if wide {
        head.push("B − A");
    }
    head.push("%");
    if enough {
        head.push("95 % interval");
        if wide {
            head.push("p");
        }
        head.push("B is");
    }
    let texts = [0, if enough { head.len() - 1 } else { 0 }];
    let mut table = Table::new(options.width, head, &texts);
    for row in &c.rows {
        let show = |v: f64| row.unit.show(v);
        let dash = || "–".to_owned();
        let mut cells = vec![row.metric.to_owned(), show(row.a), show(row.b)];
        if wide {
            cells.push(signed(row.shift(), show));
        }
        cells.push(row.percent().unwrap_or_else(dash));
        if enough {
            cells.push(row.interval().unwrap_or_else(dash));
            if wide {
                cells.push(
                    row.difference
                        .map_or_else(dash, |d| format!("{:.3}", d.p_value)),
                );
            }
            cells.push(row.word().to_owned());
        }
        table.row(cells);
    }
    out.push_str(&table.to_string());
    out.push('\n');
    for line in wrap(&c.method(), options.width) {
        let _ = writeln!(out, "{line}");
    }
    out
}
