//! HTTP/1.1 messages (RFC 9112), regardless of how their bytes are split: a reader of heads, a reader of bodies, and a
//! writer.
//!
//! The reader is strict, because implementations that interpret a message differently enable request smuggling (RFC
//! 9112 §11.2): a length together with a transfer coding, conflicting lengths, codings other than a single `chunked`,
//! folded lines and bare CR are errors, and all sizes are limited. It is lenient in one respect only: a line of a head
//! may end in a bare LF (§2.2).
//!
//! Clients use [`ResponseReader`], or [`ResponseHeadReader`] if they parse bodies themselves; servers use
//! [`RequestHead`]. Callers that need only the head of a response use [`ResponseHead`].

mod body;
mod head;
mod head_reader;
mod response_reader;
#[cfg(test)]
mod tests;
mod write;

pub use body::BodyReader;
pub use head::{BodyFraming, FieldStorage, HttpFields, RequestHead, ResponseHead};
pub use head_reader::ResponseHeadReader;
pub use response_reader::{HttpResponse, ResponseReader};
pub use write::{append_request_head, append_response_head};

/// Default maximum size in bytes of a response's head, including preceding interim responses, and of trailers.
pub const MAX_HEAD_BYTES: usize = 64 * 1024;

/// The reason why a message cannot be read. The connection cannot be used any further.
#[allow(missing_docs, reason = "the messages say it")]
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Http1Error {
    #[error("not HTTP/1.1: {0}")]
    Head(httparse::Error),
    #[error("the server answers with TLS, not with HTTP: write the target with https://")]
    Tls,
    #[error("the head is longer than {0} bytes")]
    HeadTooLong(usize),
    #[error("the trailers are longer than {0} bytes")]
    TrailersTooLong(usize),
    #[error("{0:?} is not a valid Content-Length")]
    ContentLength(String),
    #[error("two different lengths: {0} and {1}")]
    TwoLengths(u64, u64),
    #[error("status 101, although no other protocol was requested (RFC 9110, 15.2.2)")]
    Switching,
    #[error("transfer coding {0:?} is not supported; only chunked is")]
    TransferCoding(String),
    #[error("a transfer coding in HTTP/1.0, which has none (RFC 9112, 6.1)")]
    OldCoding,
    #[error("both Content-Length and Transfer-Encoding, which is forbidden")]
    LengthAndCoding,
    #[error("a malformed chunk of the body")]
    Chunk,
    #[error("a malformed trailer")]
    Trailer,
    #[error("a body of more than {0} bytes")]
    BodyTooLong(u64),
    #[error("the body ended after {seen} of {promised} bytes")]
    Short { seen: u64, promised: u64 },
    #[error("the connection ended within the head")]
    EndedInHead,
    #[error("the connection ended within a chunked body, after {seen} bytes")]
    EndedInChunks { seen: u64 },
}
