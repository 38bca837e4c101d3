//! TLS: certificates, settings by name, measurements of handshakes, and third-party peers.

mod abroad;
mod certificates;
mod identity;
mod measurements;
#[path = "../support/mod.rs"]
mod support;
