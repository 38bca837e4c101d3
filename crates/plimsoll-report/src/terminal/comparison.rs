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
        (None, _) => "",
        (Some(_), Some(true)) => "better",
        (Some(_), Some(false)) => "worse",
        (Some(_), None) => "no clear difference",
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
    let mut head = vec!["", "A", "B", "B − A", "%"];
    if tells {
        head.extend(["95 % interval", "p", "B is"]);
    }
    table.head(head.into_iter().map(str::to_owned).collect(), |i| {
        if i == 0 || i == 7 {
            Align::Left
        } else {
            Align::Right
        }
    });
    for row in &c.rows {
        let show = |v: f64| show(row.unit, v);
        let mut cells = vec![
            row.metric.to_owned(),
            show(row.a),
            show(row.b),
            signed(row.shift(), show),
            row.relative().map_or_else(
                || "–".to_owned(),
                |r| signed(r * 100.0, |v| format!("{v:.1} %")),
            ),
        ];
        if tells {
            cells.extend(match row.difference {
                Some(d) => [
                    format!("{} … {}", signed(d.low, show), signed(d.high, show)),
                    format!("{:.3}", d.p_value),
                    word(row).to_owned(),
                ],
                None => ["–".to_owned(), "–".to_owned(), "can't be told".to_owned()],
            });
        }
        table.row(cells);
    }
    out.push_str(&table.to_string());
    out.push('\n');
    let closing = if tells {
        "Mann–Whitney test on one figure a run; the difference is the median over all pairs of runs (Hodges–Lehmann). “better” and “worse” where chance alone would differ as much in fewer than 5 % of cases.".to_owned()
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
