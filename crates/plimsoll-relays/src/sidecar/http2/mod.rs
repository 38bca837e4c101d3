//! One HTTP/2 connection's state (RFC 9113) on either side of the sidecar: bytes to
//! frames, field lists decoded and encoded anew, windows both ways. No socket and no clock.
//!
//! What belongs to what across connections is the worker's: see `worker/http2.rs`.

mod exchange;
mod fields;
mod queue;
mod session;

pub(super) use exchange::{End, Exchange, Way};
pub(super) use fields::{Fields, Verdict};
pub(super) use queue::Queue;
pub(super) use session::{Event, Session};
