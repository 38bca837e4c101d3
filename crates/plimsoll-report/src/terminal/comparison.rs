//! Two groups of runs, side by side.

use std::fmt::Write as _;

use crate::compare::Comparison;
use crate::quantity::{or_dash, signed};

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
    let rows = c.rows.iter().map(|row| {
        let show = |v: f64| row.unit.show(v);
        let mut cells = vec![row.metric.to_owned(), show(row.a), show(row.b)];
        if wide {
            cells.push(signed(row.shift(), show));
        }
        cells.push(or_dash(row.percent(), |percent| percent));
        if enough {
            cells.push(or_dash(row.interval(), |interval| interval));
            if wide {
                cells.push(or_dash(row.difference, |d| format!("{:.3}", d.p_value)));
            }
            cells.push(row.word().to_owned());
        }
        cells
    });
    let table = Table::new(options.width, head, &texts).rows(rows);
    let _ = writeln!(out, "{table}");
    for line in wrap(&c.method(), options.width) {
        let _ = writeln!(out, "{line}");
    }
    out
}
