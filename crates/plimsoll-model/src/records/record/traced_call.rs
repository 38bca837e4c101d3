//! A single call in a record, because it is among the slowest or in the sample, with the facts for its span.

use serde::{Deserialize, Serialize};

use crate::rows::template::{SpanId, TraceId};
use crate::{ConnectPhases, Outcome};

/// A call whose request carried trace ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracedCall {
    /// Time from when the call was due to its end, in nanoseconds like the next two fields.
    pub response_ns: u64,
    /// Time from its actual send to its end.
    pub service_ns: u64,
    /// Time from the start of the run to when the call was due.
    pub due_ns: u64,
    /// The call's outcome.
    #[serde(rename = "code")]
    pub outcome: Outcome,
    /// The worker's number, unique over all processes and shards.
    pub worker: u32,
    /// The connection's number within its worker; a replacement has the same number. `None`: not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection: Option<u32>,
    /// The trace id of the request.
    pub trace_id: TraceId,
    /// Further facts for the call's span; `None` in runs of versions that wrote no spans.
    #[serde(flatten)]
    pub span: Option<SpanFacts>,
}

/// Facts for the span of a call, in addition to its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpanFacts {
    /// The call's number, as in the log of calls.
    pub number: u64,
    /// The span's id. It is the parent id that the request carried, unless several calls share a request.
    pub span_id: SpanId,
    /// The parent id that the request carried, where several calls share the request, such as messages of a WebSocket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_span_id: Option<SpanId>,
    /// When the call was due by the wall clock of its machine, nanoseconds since 1970.
    pub due_unix_ns: u64,
    /// Time from the actual send to the first byte of the answer, nanoseconds; the service time if there was none.
    pub first_byte_ns: u64,
    /// Payload bytes of the request.
    pub bytes_sent: u32,
    /// Payload bytes of the answer.
    pub bytes_received: u32,
    /// The number of the journey's step, from 0; `None`: the call belongs to no journey.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u32>,
    /// The phases of the connection that was made for this call alone; `None` where connections are shared.
    #[serde(flatten)]
    pub phases: Option<ConnectPhases>,
}
