//! gRPC over HTTP/2 (RFC 9113, RFC 7541 and the gRPC-over-HTTP/2 specification): the
//! client driver, a canned server for tests and benchmarks, and the reference servers.

pub mod hpack;
#[cfg(feature = "targets")]
pub mod target;
