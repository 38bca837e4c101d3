//! A run as one JSON document: `run.json` and what is derived from it.

use std::time::Duration;

use plimsoll_model::objective::{Conclusion, judge_run};
use plimsoll_model::run::Run;
use serde_json::{Value, json};

/// The document, as stable as `docs/run-format.md`: the keys of `run.json`, with
/// `directory`, `objectives` with the `verdict` on them, and with `overhead` where a server's
/// own delay is stated.
pub fn document(run: &Run, overhead_over: Option<Duration>) -> Value {
    let mut document = run.to_json();
    document["directory"] = json!(run.dir);
    let judged = judge_run(run);
    document["verdict"] = json!(Conclusion::of(&judged));
    document["objectives"] = json!(judged);
    if let Some(delay) = overhead_over {
        document["overhead"] = json!(overhead(run, delay));
    }
    document
}

/// What the link and the tool add to a server's own, stated delay.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Overhead {
    pub over_us: f64,
    pub mean_us: Option<f64>,
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
}

/// Response time less `delay`. Cold runs: the first call's own time less `delay`.
pub fn overhead(run: &Run, delay: Duration) -> Overhead {
    let total = &run.summary.total;
    let times = if run.header.cold {
        total.service
    } else {
        total.response
    };
    let over_us = delay.as_nanos() as f64 / 1e3;
    let above = |us: f64| ((us - over_us) * 1e3).round() / 1e3;
    Overhead {
        over_us,
        mean_us: times.map(|t| above(t.mean_us)),
        p50_us: times.and_then(|t| t.p50_us).map(above),
        p99_us: times.and_then(|t| t.p99_us).map(above),
    }
}
