//! Calls that carry trace ids, with all that is kept of them.

use plimsoll_model::Time;
use plimsoll_model::records::record::CallSampler;
use plimsoll_model::records::recorder::{CallTracing, RequestContext};
use plimsoll_model::rows::template::TraceIds;

/// Returns the settings of a worker that keeps the slowest calls and a sample of five.
pub(crate) fn tracing() -> CallTracing {
    CallTracing {
        ids: TraceIds::new(1, 2),
        worker: 0,
        start: Time::ZERO,
        unix_zero_ns: 1_767_323_045_000_000_000,
        sampler: Some(CallSampler::new(1, 5, Vec::new())),
    }
}

/// Returns how a step's request was sent, which carries other calls, too.
pub(crate) fn carrier() -> RequestContext {
    RequestContext {
        connection: Some(1),
        shared_trace_number: Some(1),
        step: Some(0),
    }
}
