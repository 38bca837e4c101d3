//! Tests of the gRPC reference servers with an independent client (tonic's): responses, secure links, delays,
//! stalls, limits and stopping.
#![cfg(feature = "targets")]
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod calls;
mod fast;
mod links;
mod peer;
