//! A finished run in Prometheus's text format, for a push gateway or a textfile collector.

use std::fmt::Write as _;

use plimsoll_model::run::{Run, TimesSummary};

/// The metrics of runs, each with the run's name as label.
pub fn render(runs: &[Run]) -> String {
    let mut out = String::new();
    family(
        &mut out,
        "plimsoll_calls",
        "gauge",
        "Calls that ended, by outcome.",
        runs,
        |run| {
            let total = &run.summary.total;
            let mut lines = vec![("outcome=\"OK\"".to_owned(), total.ok as f64)];
            let others = total.errors_by_code.iter().chain(&total.cut_off_by_code);
            lines.extend(others.map(|e| (format!("outcome=\"{}\"", e.code), e.count as f64)));
            lines.push((
                "outcome=\"NOT_STARTED\"".to_owned(),
                total.not_started as f64,
            ));
            lines
        },
    );
    family(
        &mut out,
        "plimsoll_rate_per_second",
        "gauge",
        "Arrivals due, and calls achieved.",
        runs,
        |run| {
            let total = &run.summary.total;
            [
                ("due", total.offered_per_s),
                ("achieved", total.achieved_per_s),
            ]
            .into_iter()
            .filter_map(|(kind, rate)| Some((format!("kind=\"{kind}\""), rate?)))
            .collect()
        },
    );
    family(
        &mut out,
        "plimsoll_latency_seconds",
        "gauge",
        "Latency of calls that ended ok, by kind and percentile.",
        runs,
        |run| {
            let total = &run.summary.total;
            [
                ("response", total.response),
                ("service", total.service),
                ("lag", total.lag),
            ]
            .into_iter()
            .filter_map(|(kind, times)| Some(times_of(kind, &times?)))
            .flatten()
            .collect()
        },
    );
    family(
        &mut out,
        "plimsoll_cpu_seconds_per_call",
        "gauge",
        "CPU time a call, by end.",
        runs,
        |run| {
            let total = &run.summary.total;
            [("client", total.client), ("server", total.server)]
                .into_iter()
                .filter_map(|(end, r)| Some((format!("end=\"{end}\""), r?.cpu_us_per_call? / 1e6)))
                .collect()
        },
    );
    family(
        &mut out,
        "plimsoll_valid",
        "gauge",
        "1: the figures describe the target.",
        runs,
        |run| vec![(String::new(), f64::from(u8::from(run.summary.health.valid)))],
    );
    out
}

fn times_of(kind: &str, times: &TimesSummary) -> Vec<(String, f64)> {
    times
        .percentiles()
        .into_iter()
        .filter_map(|(name, us)| {
            Some((format!("kind=\"{kind}\",percentile=\"{name}\""), us? / 1e6))
        })
        .collect()
}

fn family(
    out: &mut String,
    name: &str,
    kind: &str,
    help: &str,
    runs: &[Run],
    lines: impl Fn(&Run) -> Vec<(String, f64)>,
) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
    for run in runs {
        let label = format!("run=\"{}\"", escape(&run.header.name));
        for (labels, value) in lines(run) {
            let comma = if labels.is_empty() { "" } else { "," };
            let _ = writeln!(out, "{name}{{{label}{comma}{labels}}} {value}");
        }
    }
}

/// A label's value.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}
