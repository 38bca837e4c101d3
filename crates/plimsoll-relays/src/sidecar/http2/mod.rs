//! The state of one HTTP/2 connection (RFC 9113) on either side of the sidecar: parses frames,
//! re-encodes field lists and keeps the windows in both directions. Performs no I/O and reads no
//! clock.
//!
//! Calls that span two connections are handled in `worker/http2.rs`.

mod exchange;
mod fields;
mod queue;
mod session;

pub(super) use exchange::{End, Exchange, Way};
pub(super) use fields::{Fields, Verdict};
pub(super) use queue::Queue;
pub(super) use session::{Event, Session};
