//! The slowest calls of a run, as reports show them.

use serde::Serialize;

use crate::record::{SlowCall, Slowest};
use crate::run::times::rounded;
use crate::template::TraceId;

/// One of the slowest calls.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SlowCallSummary {
    /// Time from when it was due to its end.
    pub response_us: f64,
    /// Time from its actual send to its end.
    pub service_us: f64,
    /// Time from the beginning of the run to when it was due.
    pub due_us: f64,
    /// The outcome.
    pub code: &'static str,
    /// The worker's number over all processes and shards.
    pub worker: u32,
    /// The worker's number of the connection; `None`: not known.
    pub connection: Option<u32>,
    /// The trace id that its request carried.
    pub trace_id: TraceId,
}

impl SlowCallSummary {
    pub(super) fn of(slowest: &Slowest) -> Vec<SlowCallSummary> {
        let us = |ns: u64| rounded(ns as f64 / 1e3);
        let one = |call: &SlowCall| SlowCallSummary {
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
