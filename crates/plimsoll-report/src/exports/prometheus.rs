//! A finished run in OpenMetrics text, written by prometheus-client: for a push gateway, a textfile collector, and
//! Prometheus itself.

use plimsoll_model::runs::run::{Run, TimesSummary};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use crate::exports::live_runs::{MetricFamily, MetricLabels};

/// Returns the metrics of runs, labelled by the run's name.
pub fn render(runs: &[Run]) -> String {
    let mut registry = Registry::with_prefix("plimsoll");
    let mut gauge = |name: &str, help: &str, of: fn(&Run) -> Vec<(MetricLabels, f64)>| {
        let of_run = |run: &Run| {
            let name = run.header.name.clone();
            let values = of(run).into_iter();
            values.map(move |(labels, value)| {
                let run = ("run", name.clone());
                ([vec![run], labels].concat(), value)
            })
        };
        let values = runs.iter().flat_map(of_run);
        registry.register(name, help, MetricFamily::Gauges(values.collect()));
    };
    gauge("calls", "Calls that ended, by outcome", calls_by_outcome);
    let help = "Calls scheduled, and calls achieved";
    gauge("rate_per_second", help, call_rates);
    let help = "Latency of successful calls, by kind and percentile";
    gauge("latency_seconds", help, latency_percentiles);
    gauge(
        "cpu_seconds_per_call",
        "CPU time a call, by end",
        cpu_per_call,
    );
    gauge("valid", "1: the figures describe the target", |run| {
        let valid = u8::from(run.summary.health.valid);
        vec![(Vec::new(), valid.into())]
    });
    let mut out = String::new();
    // Writing to a String can't fail.
    let _ = encode(&mut out, &registry);
    out
}

fn calls_by_outcome(run: &Run) -> Vec<(MetricLabels, f64)> {
    let total = &run.summary.total;
    let others = total.errors_by_code.iter().chain(&total.cut_off_by_code);
    let others = others.map(|e| (e.code.to_string(), e.count));
    std::iter::once(("OK".to_owned(), total.ok))
        .chain(others)
        .chain([("NOT_STARTED".to_owned(), total.not_started)])
        .map(|(outcome, count)| (vec![("outcome", outcome)], count as f64))
        .collect()
}

fn call_rates(run: &Run) -> Vec<(MetricLabels, f64)> {
    let total = &run.summary.total;
    let rates = [
        ("due", total.offered_per_s),
        ("achieved", total.achieved_per_s),
    ];
    with_labels("kind", rates)
}

fn latency_percentiles(run: &Run) -> Vec<(MetricLabels, f64)> {
    let total = &run.summary.total;
    [
        ("response", total.response),
        ("service", total.service),
        ("lag", total.lag),
    ]
    .into_iter()
    .filter_map(|(kind, times)| Some(percentile_values(kind, &times?)))
    .flatten()
    .collect()
}

fn percentile_values(kind: &str, times: &TimesSummary) -> Vec<(MetricLabels, f64)> {
    let percentiles = times.percentiles().into_iter();
    percentiles
        .filter_map(|(name, us)| {
            let labels = vec![("kind", kind.to_owned()), ("percentile", name.to_owned())];
            Some((labels, us? / 1e6))
        })
        .collect()
}

fn cpu_per_call(run: &Run) -> Vec<(MetricLabels, f64)> {
    let total = &run.summary.total;
    let seconds = [("client", total.client), ("server", total.server)]
        .map(|(end, resources)| (end, resources.and_then(|r| Some(r.cpu_us_per_call? / 1e6))));
    with_labels("end", seconds)
}

/// Returns the known values with their labels.
fn with_labels(label: &'static str, values: [(&str, Option<f64>); 2]) -> Vec<(MetricLabels, f64)> {
    let known = values.into_iter();
    known
        .filter_map(|(name, value)| Some((vec![(label, name.to_owned())], value?)))
        .collect()
}
