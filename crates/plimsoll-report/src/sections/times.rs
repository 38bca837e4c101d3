//! The times of a run by name, and notes on them, for all reports.

use std::time::Duration;

use plimsoll_model::runs::run::header::LoopKind;
use plimsoll_model::runs::run::summary::PhasesSummary;
use plimsoll_model::runs::run::{Run, TimesSummary};
use plimsoll_model::statistics::quantile::is_supported;

use crate::quantity::{count, or_dash, rate, signed_time, time};
use crate::sections::headline::format_value_or_interval;
use crate::sections::overhead::overhead;
use crate::sections::table::TextTable;

type NamedTimes = (&'static str, Option<TimesSummary>);

/// Returns the times of measured calls, the most important first.
pub(crate) fn call_times(run: &Run) -> Vec<(String, TimesSummary)> {
    let t = &run.summary.total;
    let phases = t.phases.as_ref();
    let of_calls: Vec<NamedTimes> = if run.header.cold {
        vec![
            ("t_connect", phases.and_then(|p| p.connection)),
            ("t_first_rpc", t.service),
            ("first byte", t.first_byte),
            ("t_total", phases.and_then(|p| p.cold_total)),
            ("response", t.response),
            ("send delay", t.lag),
            ("generator delay", t.pacing),
        ]
    } else if run.header.load_loop == Some(LoopKind::Closed) {
        // Without a schedule, response and service time are equal.
        vec![("response", t.response), ("first byte", t.first_byte)]
    } else {
        vec![
            ("response", t.response),
            ("service", t.service),
            ("first byte", t.first_byte),
            ("send delay", t.lag),
            ("generator delay", t.pacing),
        ]
    };
    let besides = [
        ("1st message", t.messages.and_then(|m| m.first_message)),
        ("inter-message", t.messages.and_then(|m| m.inter_message)),
        ("failed", t.failed),
    ];
    recorded_times(of_calls.into_iter().chain(besides))
}

/// Returns the times of connection setup, one for each phase.
pub(crate) fn phase_times(run: &Run) -> Vec<(String, TimesSummary)> {
    let of = |p: &PhasesSummary| {
        recorded_times([
            ("resolve", p.resolve),
            ("connect", p.connect),
            ("handshake", p.handshake),
            ("ready", p.ready),
            ("all phases", p.connection),
        ])
    };
    run.summary.phases().map(of).unwrap_or_default()
}

fn recorded_times(times: impl IntoIterator<Item = NamedTimes>) -> Vec<(String, TimesSummary)> {
    let known = times.into_iter();
    known
        .filter_map(|(name, times)| Some((name.to_owned(), times?)))
        .collect()
}

/// Returns a table of the confidence intervals of a run's times.
pub(crate) fn confidence_table(run: &Run) -> TextTable {
    let total = &run.summary.total;
    let all = [("response", total.response), ("service", total.service)];
    // In a closed loop the service time of a call is its response time.
    let all = all
        .into_iter()
        .filter(|(name, _)| run.header.load_loop == Some(LoopKind::Open) || *name == "response");
    let rows = all.filter_map(|(name, times)| {
        let times = times?;
        let sampling = times.sampling?;
        let cell = |us: Option<f64>, interval: Option<[f64; 2]>| {
            or_dash(us.zip(interval), |(us, interval)| {
                format_value_or_interval(us, Some(interval))
            })
        };
        let mut cells = vec![name.to_owned(), cell(Some(times.mean_us), sampling.mean_us)];
        let percentiles = times.percentiles().into_iter().zip(sampling.percentiles());
        cells.extend(percentiles.map(|((_, us), (_, interval))| cell(us, interval)));
        Some(cells)
    });
    let head = [
        "in repeated runs",
        "mean",
        "p50",
        "p75",
        "p90",
        "p95",
        "p99",
        "p99.9",
        "p99.99",
    ];
    TextTable::new(head, &[0], rows)
}

/// Explains the [`confidence_table`] and states the interval of the rate; `None` if the rate has no interval.
pub(crate) fn confidence_note(run: &Run) -> Option<String> {
    let [low, high] = run.summary.total.achieved_sampling_per_s?;
    let (low, high) = (rate(low), rate(high));
    let achieved = if low == high {
        low
    } else {
        format!("{low} to {high}")
    };
    Some(format!(
        "where another run like this one would lie, with 95 % confidence (block bootstrap over its seconds); achieved: {achieved}"
    ))
}

/// Explains the dashes among the percentiles of `n` calls.
pub(crate) fn dash_note(n: u64) -> Option<String> {
    let needed = [
        (0.5, "p50", 6),
        (0.75, "p75", 13),
        (0.9, "p90", 36),
        (0.95, "p95", 72),
        (0.99, "p99", 368),
        (0.999, "p99.9", 3_688),
        (0.9999, "p99.99", 36_887),
    ];
    let (_, name, calls) = needed.into_iter().find(|(p, ..)| !is_supported(n, *p))?;
    Some(format!(
        "–: not enough calls; {name} needs {}, and there are {}",
        count(calls),
        count(n)
    ))
}

/// Describes the overhead beyond the server's own `delay`.
pub(crate) fn overhead_text(run: &Run, delay: Duration) -> String {
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
    format!(
        "{what} over the server's own {}: {}",
        time(o.over_us),
        parts.join(", ")
    )
}
