//! Summaries of the slowest calls of a run, for reports.

use serde::Serialize;

use crate::records::record::{SlowestCalls, TracedCall};
use crate::rows::template::TraceId;
use crate::runs::run::times_summary::round_to_thousandths;

/// One of the slowest calls.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SlowCallSummary {
    /// Time from when the call was due to its end, µs.
    pub response_us: f64,
    /// Time from the actual send to the end, µs.
    pub service_us: f64,
    /// Time from the start of the run to when the call was due, µs.
    pub due_us: f64,
    /// The outcome.
    pub code: &'static str,
    /// The worker's number, unique over all processes and shards.
    pub worker: u32,
    /// The connection's number within its worker; `None`: not known.
    pub connection: Option<u32>,
    /// The trace id of the request.
    pub trace_id: TraceId,
}

impl SlowCallSummary {
    pub(super) fn from_slowest(slowest: &SlowestCalls) -> Vec<SlowCallSummary> {
        let us = |ns: u64| round_to_thousandths(ns as f64 / 1e3);
        let one = |call: &TracedCall| SlowCallSummary {
            response_us: us(call.response_ns),
            service_us: us(call.service_ns),
            due_us: us(call.due_ns),
            code: call.outcome.code(),
            worker: call.worker,
            connection: call.connection,
            trace_id: call.trace_id,
        };
        slowest.calls().iter().map(one).collect()
    }
}
