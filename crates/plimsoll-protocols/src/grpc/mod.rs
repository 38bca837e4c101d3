//! gRPC over HTTP/2 (RFC 9113, RFC 7541 and the gRPC-over-HTTP/2 specification): the
//! client driver, a canned server for tests and benchmarks, and the reference servers.

mod binary;
mod binary_messages;
mod call;
pub mod canned;
#[cfg(feature = "targets")]
pub mod client;
#[cfg(all(feature = "schema", feature = "targets"))]
mod connection_flags;
mod decompression;
mod driver;
#[cfg(feature = "targets")]
pub mod echo_check;
#[cfg(feature = "schema")]
pub mod encoding;
mod flags;
mod foreign_lines;
mod head;
mod message;
mod message_type;
#[cfg(feature = "schema")]
mod patched_message;
#[cfg(all(feature = "schema", feature = "targets"))]
mod probe;
#[cfg(all(feature = "schema", feature = "targets"))]
pub(crate) mod query_commands;
#[cfg(all(feature = "schema", feature = "targets"))]
pub mod reflection;
pub(crate) mod relay_codec;
mod rendered_messages;
mod request;
mod resolve;
mod response_state;
#[cfg(feature = "schema")]
pub mod schema;
mod section;
#[cfg(all(feature = "schema", feature = "targets"))]
mod server_query;
mod stream_exchange;
#[cfg(feature = "targets")]
pub mod target;
#[cfg(test)]
mod tests;
mod timeout;
mod wire_validator;

pub use crate::http2::Http2FrameTracer;
pub use binary::{BinarySource, BinarySpec};
pub use binary_messages::split_delimited;
pub use call::{
    BinaryMessage, ExpectedAnswer, FieldShape, GrpcCall, MessageCompression, MessageShape,
    MessageShapes, MethodKind, PlanMessages, StreamPace, StreamPlan, VaryingAnswer,
};
pub use driver::{GrpcDriver, GrpcProtocol};
pub use flags::GrpcCommand;
pub use head::{ContentType, FailureTexts, GrpcHeaders, HeadReader, MessageEncoding};
pub use message::{MessageError, MessageReader, PREFIX_LEN};
pub(crate) use message_type::describe_messages;
pub use request::GrpcRequest;
pub(crate) use resolve::connect_advice;
pub use section::{GrpcSpec, MessageSpec};
