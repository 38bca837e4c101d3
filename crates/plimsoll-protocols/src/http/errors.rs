//! Maps errors in HTTP/1.1 messages to the outcomes of the calls on their connection.

use plimsoll_engine::driver::ProtocolError;
use plimsoll_model::Outcome;
use plimsoll_wire::http1::Http1Error;

/// Advice for a head that is too large.
pub(super) const MAX_HEAD_HINT: &str = "--max-head (call.http.max_head) raises the limit";

/// Converts an error in a message to an error of the connection.
pub(crate) fn to_protocol_error(e: &Http1Error) -> ProtocolError {
    let outcome = match e {
        Http1Error::Short { .. } | Http1Error::EndedInChunks { .. } => Outcome::BodyLength,
        Http1Error::EndedInHead => Outcome::ConnectionClosed,
        Http1Error::BodyTooLong(_) => Outcome::MessageTooLarge,
        Http1Error::HeadTooLong(_) | Http1Error::TrailersTooLong(_) => Outcome::HeadTooLarge,
        Http1Error::Head(_) | Http1Error::Tls | Http1Error::Switching => Outcome::ProtocolError,
        _ => Outcome::BadAnswer,
    };
    let detail = match e {
        Http1Error::HeadTooLong(_) | Http1Error::TrailersTooLong(_) => {
            format!("http: {e}: {MAX_HEAD_HINT}")
        }
        _ => format!("http: {e}"),
    };
    ProtocolError { outcome, detail }
}
