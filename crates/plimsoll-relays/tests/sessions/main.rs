//! Tests of the LLM simulator, the bus and the gateway together, over real sockets on loopback.

#![expect(
    clippy::unwrap_used,
    reason = "what these helpers unwrap fails the test they serve"
)]

mod autobahn;
mod client;
mod conformance;
mod flow;
mod killing;
mod late;
mod leaving;
mod load;
mod lying;
#[path = "../../../plimsoll-protocols/tests/ports/mod.rs"]
mod ports;
mod reaching;
mod redis;
mod refusals;
mod resuming;
mod stack;
