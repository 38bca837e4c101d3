//! The gRPC reference servers as an independent client (tonic's) sees them: answers,
//! secure links, delays, stalls, bounds and stopping.
#![cfg(feature = "targets")]
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod calls;
mod fast;
mod links;
mod peer;
