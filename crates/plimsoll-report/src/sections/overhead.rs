//! The overhead of a call beyond a known delay of the server.

use std::time::Duration;

use plimsoll_model::runs::run::Run;
use serde::Serialize;

/// The overhead of the connection and the tool beyond the server's known delay, in µs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct AddedOverhead {
    pub(crate) over_us: f64,
    pub(crate) mean_us: Option<f64>,
    pub(crate) p50_us: Option<f64>,
    pub(crate) p99_us: Option<f64>,
}

/// Computes the response time minus `delay`. If each call has its own connection, the service time is used instead.
pub(crate) fn overhead(run: &Run, delay: Duration) -> AddedOverhead {
    let total = &run.summary.total;
    let times = if run.header.cold {
        total.service
    } else {
        total.response
    };
    let over_us = delay.as_nanos() as f64 / 1e3;
    let above = |us: f64| ((us - over_us) * 1e3).round() / 1e3;
    AddedOverhead {
        over_us,
        mean_us: times.map(|t| above(t.mean_us)),
        p50_us: times.and_then(|t| t.p50_us).map(above),
        p99_us: times.and_then(|t| t.p99_us).map(above),
    }
}
