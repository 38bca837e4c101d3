//! Exports runs in Bencher's metric format (`bencher run --adapter json`): one benchmark for each run, by its name.
//!
//! Latencies are in nanoseconds, as Bencher expects, with the 95 % interval of each percentile. Percentiles that the
//! sample can't support are left out.

use plimsoll_model::runs::run::Run;
use plimsoll_model::statistics::quantile::{confidence_interval, quantile};
use serde_json::{Map, Value, json};

/// Returns the document with a benchmark for each of `runs`.
pub fn build_document(runs: &[Run]) -> Value {
    let benchmarks = runs
        .iter()
        .map(|run| (benchmark_name(run, runs), benchmark_metrics(run)));
    Value::Object(benchmarks.collect())
}

/// Returns the run's name; if several runs have the same name, the directory follows it.
fn benchmark_name(run: &Run, among: &[Run]) -> String {
    let name = &run.header.name;
    match among.iter().filter(|r| r.header.name == *name).count() {
        1 => name.clone(),
        _ => format!("{name} ({})", run.dir.display()),
    }
}

fn benchmark_metrics(run: &Run) -> Value {
    let total = &run.summary.total;
    let mut all = Map::new();
    let record = run.measured_record();
    if let Some(h) = record.response.histogram() {
        for (name, p) in [
            ("latency-p50", 0.5),
            ("latency-p99", 0.99),
            ("latency-p999", 0.999),
        ] {
            if let Some(value) = quantile(h, p) {
                let mut metric = json!({ "value": value });
                if let Some((low, high)) = confidence_interval(h, p) {
                    metric["lower_value"] = low.into();
                    metric["upper_value"] = high.into();
                }
                all.insert(name.to_owned(), metric);
            }
        }
    }
    let errors = (total.ok + total.errors > 0)
        .then(|| total.errors as f64 / (total.ok + total.errors) as f64);
    let cpu = total.client.and_then(|c| c.cpu_us_per_call);
    for (name, value) in [
        ("throughput", total.achieved_per_s),
        ("errors", errors),
        ("client-cpu", cpu.map(|us| us * 1e3)),
    ] {
        if let Some(value) = value {
            all.insert(name.to_owned(), json!({ "value": value }));
        }
    }
    Value::Object(all)
}
