//! The times of a run, and what stands below them.

use std::fmt::Write as _;
use std::time::Duration;

use plimsoll_model::run::header::Loop;
use plimsoll_model::run::{Run, TimesSummary};
use plimsoll_model::statistics::quantile::is_supported;

use super::table::GAP;
use super::{Options, lines};
use crate::measures::STREAMS;
use crate::overhead::overhead;
use crate::quantity::{count, or_dash, signed_time, time};
use crate::table::Table;

type Column<'a> = (&'a str, Option<TimesSummary>);

/// The times that were measured, side by side: a column each, a row a percentile.
pub(super) fn times(out: &mut String, run: &Run, options: &Options) {
    let t = &run.summary.total;
    let phases = t.phases.as_ref();
    let columns: Vec<Column<'_>> = if run.header.cold {
        vec![
            ("t_connect", phases.and_then(|p| p.connection)),
            ("t_first_rpc", t.service),
            ("first byte", t.first_byte),
            ("t_total", phases.and_then(|p| p.cold_total)),
            ("response", t.response),
            ("lag", t.lag),
            ("pacing", t.pacing),
        ]
    } else if run.header.load_loop == Some(Loop::Closed) {
        // Nothing is due before it is sent: response and service time are the same.
        vec![("response", t.response), ("first byte", t.first_byte)]
    } else {
        vec![
            ("response", t.response),
            ("service", t.service),
            ("first byte", t.first_byte),
            ("lag", t.lag),
            ("pacing", t.pacing),
        ]
    };
    let columns: Vec<(&str, TimesSummary)> = columns
        .into_iter()
        .chain([
            ("1st message", t.messages.and_then(|m| m.first_message)),
            ("inter-message", t.messages.and_then(|m| m.inter_message)),
        ])
        .filter_map(|(name, times)| Some((name, times?)))
        .chain(t.failed.map(|f| ("failed", f)))
        .collect();
    if columns.is_empty() {
        return;
    }
    let names = columns[0].1.percentiles().map(|(name, _)| name);
    let mut rows = vec!["", "mean", "sd", "min"];
    rows.extend(names);
    rows.push("max");
    let cells = columns.iter().map(|(name, t)| {
        let mut cells = vec![
            (*name).to_owned(),
            time(t.mean_us),
            time(t.sd_us),
            time(t.min_us),
        ];
        cells.extend(t.percentiles().map(|(_, us)| or_dash(us, time)));
        cells.push(time(t.max_us));
        cells
    });
    // Columns that don't fit beside the others go below them.
    let widest = |cells: &[String]| cells.iter().map(|c| c.chars().count()).max().unwrap_or(0);
    let first = rows.iter().map(|c| c.len()).max().unwrap_or(0);
    let mut beside: Vec<Vec<String>> = Vec::new();
    let show = |beside: &mut Vec<Vec<String>>| {
        let table = Table::new(rows.iter().copied(), &[], beside.drain(..));
        table.sideways().on_terminal(options.width)
    };
    let mut used = first;
    for column in cells {
        let needed = widest(&column) + GAP;
        if used + needed > options.width && !beside.is_empty() {
            *out += &show(&mut beside);
            used = first;
        }
        used += needed;
        beside.push(column);
    }
    *out += &show(&mut beside);
    dash(out, columns[0].1.count, options);
    if t.messages.is_some() {
        let _ = writeln!(out, "{STREAMS}");
    }
    if let Some(delay) = options.overhead_over {
        above(out, run, delay, options);
    }
    out.push('\n');
}

/// What the link and the tool add to the server's own `delay`.
fn above(out: &mut String, run: &Run, delay: Duration, options: &Options) {
    let o = overhead(run, delay);
    let what = if run.header.cold {
        "the first call"
    } else {
        "response time"
    };
    let part = |name: &str, us: Option<f64>| us.map(|us| format!("{name} {}", signed_time(us)));
    let parts: Vec<String> = [
        part("mean", o.mean_us),
        part("p50", o.p50_us),
        part("p99", o.p99_us),
    ]
    .into_iter()
    .flatten()
    .collect();
    let text = format!(
        "{what} over the server's own {}: {}",
        time(o.over_us),
        parts.join(", ")
    );
    lines(out, &text, options);
}

/// What a dash among the percentiles means.
fn dash(out: &mut String, n: u64, options: &Options) {
    let needed = [
        (0.5, "p50", 6),
        (0.75, "p75", 13),
        (0.9, "p90", 36),
        (0.95, "p95", 72),
        (0.99, "p99", 368),
        (0.999, "p99.9", 3_688),
        (0.9999, "p99.99", 36_887),
    ];
    if let Some((_, name, calls)) = needed.into_iter().find(|(p, ..)| !is_supported(n, *p)) {
        let text = format!(
            "–: too few calls to tell; {name} needs {}, and there are {}",
            count(calls),
            count(n)
        );
        lines(out, &text, options);
    }
}
