//! Two groups of runs, side by side.

use std::fmt::Write as _;

use plimsoll_model::statistics::rank::FEWEST_RUNS;

use crate::compare::{Comparison, Row, Side, Unit};
use crate::quantity::{plural, rate, signed, time};

use super::table::{Align, Table, wrap};
use super::{Options, sentences};

fn show(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Time => time(value),
        Unit::PerSecond => rate(value),
        Unit::Share => format!("{:.3} %", value * 100.0),
    }
}

fn heading(out: &mut String, name: &str, side: &Side) {
    let more = match side.runs {
        1 => String::new(),
        n => format!(" and {}", plural(n as u64 - 1, "replicate")),
    };
    let _ = writeln!(out, "{name}  {} ({}{more})", side.name, side.directory);
}

/// What a row says, in a word.
fn word(row: &Row) -> &'static str {
    match (row.difference, row.better()) {
        (None, _) => "unclear",
        (Some(_), Some(true)) => "better",
        (Some(_), Some(false)) => "worse",
        (Some(_), None) => "unclear",
    }
}

/// The comparison, with a line's end at its end.
pub fn render_comparison(c: &Comparison, options: &Options) -> String {
    let mut out = String::new();
    if !c.warnings.is_empty() {
        let _ = writeln!(out, "{}", options.loud("BEWARE"));
        sentences(&mut out, c.warnings.iter().map(String::as_str), options);
        out.push('\n');
    }
    heading(&mut out, "A", &c.a);
    heading(&mut out, "B", &c.b);
    if !c.plan_differences.is_empty() {
        let _ = writeln!(out, "plans differ in");
        for d in &c.plan_differences {
            let value = |v: &Option<String>| v.clone().unwrap_or_else(|| "(not set)".to_owned());
            let line = format!("{}: {} → {}", d.key, value(&d.a), value(&d.b));
            sentences(&mut out, [line.as_str()], options);
        }
    }
    out.push('\n');
    let tells = c.can_tell();
    let mut table = Table::new(options.width);
    // What is left out where the terminal is narrow follows from the rest.
    let wide = options.width >= 92 || !tells;
    let mut head = vec!["", "A", "B"];
    if wide {
        head.push("B − A");
    }
    head.push("%");
    if tells {
        head.push("95 % interval");
        if wide {
            head.push("p");
        }
        head.push("B is");
    }
    let last = head.len() - 1;
    table.head(head.into_iter().map(str::to_owned).collect(), |i| {
        if i == 0 || (tells && i == last) {
            Align::Left
        } else {
            Align::Right
        }
    });
    for row in &c.rows {
        let show = |v: f64| show(row.unit, v);
        let percent = |part: f64| signed(part * 100.0, |v| format!("{v:.1}"));
        let dash = || "–".to_owned();
        let mut cells = vec![row.metric.to_owned(), show(row.a), show(row.b)];
        if wide {
            cells.push(signed(row.shift(), show));
        }
        cells.push(row.relative().map_or_else(dash, percent));
        if tells {
            let d = row.difference;
            cells.push(match d {
                Some(d) if row.a != 0.0 => {
                    format!("{} … {}", percent(d.low / row.a), percent(d.high / row.a))
                }
                _ => dash(),
            });
            if wide {
                cells.push(d.map_or_else(dash, |d| format!("{:.3}", d.p_value)));
            }
            cells.push(word(row).to_owned());
        }
        table.row(cells);
    }
    out.push_str(&table.to_string());
    out.push('\n');
    let closing = if tells {
        "Mann–Whitney test on one figure a run; the difference is the median over all pairs of runs (Hodges–Lehmann), its interval in % of A. “better” and “worse” where chance alone would differ as much in fewer than 5 % of cases.".to_owned()
    } else if c.a.runs == 1 && c.b.runs == 1 {
        format!(
            "one run a side: not enough runs to tell ({FEWEST_RUNS} or more a side): this difference may be chance"
        )
    } else {
        format!(
            "{} against {}: not enough runs to tell ({FEWEST_RUNS} or more a side): this difference may be chance",
            plural(c.a.runs as u64, "run"),
            plural(c.b.runs as u64, "run")
        )
    };
    for line in wrap(&closing, options.width) {
        let _ = writeln!(out, "{line}");
    }
    out
}
