//! gRPC over HTTP/2 (RFC 9113, RFC 7541 and the gRPC-over-HTTP/2 specification): the
//! client driver, a canned server for tests and benchmarks, and the reference servers.

pub mod canned;
#[cfg(feature = "targets")]
pub mod check;
#[cfg(feature = "targets")]
pub mod client;
mod decodable;
#[cfg(feature = "targets")]
mod dial;
mod driver;
#[cfg(feature = "schema")]
pub mod encoding;
mod exchange;
mod head;
mod message;
mod packing;
#[cfg(feature = "schema")]
mod patch;
#[cfg(all(feature = "schema", feature = "targets"))]
pub mod reflection;
mod rendered;
mod request;
#[cfg(feature = "schema")]
pub mod schema;
#[cfg(feature = "targets")]
pub mod target;
mod timeout;
mod unary;

pub use crate::http2::FrameTracer;
pub use driver::{GrpcDriver, GrpcProtocol};
pub use head::{ContentType, Encoding, Head, HeadReader, Texts};
pub use message::{MessageError, MessageReader, PREFIX_LEN};
pub use request::{GrpcRequest, RequestError};
pub use timeout::timeout_from_value;
