//! The state of one HTTP/2 connection (RFC 9113) on either side of the sidecar: parses frames, re-encodes field lists
//! and tracks the flow-control windows in both directions. Performs no I/O and reads no clock.
//!
//! Calls that span two connections are handled in `worker/http2.rs`.

mod exchange;
mod fields;
mod queue;
mod session;

pub(super) use exchange::{CallDirection, Exchange, StreamRef};
pub(super) use fields::{HeaderFields, LocalResponse};
pub(super) use queue::SendQueue;
pub(super) use session::{Http2Session, Http2SessionEvent};
