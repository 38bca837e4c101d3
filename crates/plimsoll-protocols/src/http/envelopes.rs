//! Envelopes: length-prefixed messages, as in gRPC-Web (gRPC's PROTOCOL-WEB.md) and in streams of the Connect protocol:
//! a byte of flags, four bytes of length, and the message. The last envelope contains the status of the call instead of
//! a message.
//!
//! `events` parses response bodies with this module, and `request` adds prefixes to request bodies.

use std::borrow::Cow;

use plimsoll_model::Outcome;
use serde::Deserialize;

use super::call::{EventFormat, HttpCall};
use super::payload::Payload;
use super::section::HttpSpec;

/// The names of the formats in the plan key `stream`.
pub(super) const FORMAT_NAMES: [&str; 2] = ["grpc-web", "connect"];

/// Header fields that hold the status of a call if the response has no messages.
pub(super) const STATUS_FIELDS: [&str; 2] = ["grpc-status", "grpc-message"];

/// The length of the prefix, in bytes.
pub(super) const PREFIX_LEN: usize = 5;

/// Returns whether requests are messages of gRPC-Web or Connect, which need a prefix even without a body.
pub(super) fn sends_envelopes(call: &HttpSpec) -> bool {
    call.stream_format().and_then(find_format).is_some()
}

/// Returns the length of the message that follows a prefix, in bytes.
pub(super) fn message_length(prefix: &[u8]) -> Option<usize> {
    let length = prefix.get(1..PREFIX_LEN)?.first_chunk::<4>()?;
    Some(u32::from_be_bytes(*length) as usize)
}

/// Returns the format with this name.
pub(super) fn find_format(name: &str) -> Option<EventFormat> {
    match FORMAT_NAMES.iter().position(|known| *known == name)? {
        0 => Some(EventFormat::Web),
        _ => Some(EventFormat::Connect),
    }
}

/// Returns the media type of a request's body, if `stream` is one of these formats.
pub(super) fn content_type(stream: Option<&str>, payload: &Payload) -> Option<&'static str> {
    match (find_format(stream?)?, payload.is_json) {
        (EventFormat::Connect, true) => Some("application/connect+json"),
        (EventFormat::Connect, false) => Some("application/connect+proto"),
        (_, true) => Some("application/grpc-web+json"),
        (_, false) => Some("application/grpc-web+proto"),
    }
}

/// Returns the flag that marks the last envelope; `None` if the format has no prefixes.
pub(super) fn last_envelope_flag(format: EventFormat) -> Option<u8> {
    match format {
        EventFormat::Web => Some(0x80),
        EventFormat::Connect => Some(0x02),
        EventFormat::Sse | EventFormat::NdJson | EventFormat::Document => None,
    }
}

/// Returns whether the messages of `call` have a prefix.
pub(super) fn has_prefix(call: &HttpCall) -> bool {
    let stream = call.stream.as_ref();
    stream.is_some_and(|stream| last_envelope_flag(stream.format).is_some())
}

/// Inserts the prefix before a message.
pub(super) fn insert_prefix(message: &mut Vec<u8>) {
    let [a, b, c, d] = u32::try_from(message.len())
        .unwrap_or(u32::MAX)
        .to_be_bytes();
    message.splice(0..0, [0, a, b, c, d]);
}

/// Returns the body that is sent by requests that do not vary, including the prefix.
pub(super) fn encoded_body(call: &HttpCall) -> Cow<'_, [u8]> {
    if !has_prefix(call) {
        return Cow::Borrowed(&call.body);
    }
    let mut message = call.body.clone();
    insert_prefix(&mut message);
    Cow::Owned(message)
}

/// Returns the outcome of the call in the last envelope; `None` if it contains none.
pub(super) fn parse_last_envelope(format: EventFormat, last: &[u8]) -> Option<Outcome> {
    match format {
        EventFormat::Web => {
            let mut lines = last.split(|b| *b == b'\n');
            lines.find_map(|line| {
                let colon = line.iter().position(|b| *b == b':')?;
                let (name, value) = (line[..colon].trim_ascii(), line[colon + 1..].trim_ascii());
                name.eq_ignore_ascii_case(b"grpc-status")
                    .then(|| parse_status_code(value))?
            })
        }
        EventFormat::Connect => {
            #[derive(Deserialize)]
            struct EndStreamResponse {
                error: Option<ConnectErrorBody>,
            }
            #[derive(Deserialize)]
            struct ConnectErrorBody {
                code: String,
            }
            let last: EndStreamResponse = serde_json::from_slice(last).ok()?;
            let Some(error) = last.error else {
                return Some(Outcome::Ok);
            };
            let code = match &*error.code {
                // Connect writes "canceled", gRPC "cancelled".
                "canceled" => "CANCELLED".to_owned(),
                code => code.to_ascii_uppercase(),
            };
            let grpc = (1..=16).map(Outcome::from_grpc_status);
            let known = grpc.into_iter().find(|outcome| outcome.code() == code);
            Some(known.unwrap_or(Outcome::Unknown))
        }
        EventFormat::Sse | EventFormat::NdJson | EventFormat::Document => None,
    }
}

/// Converts the number of a gRPC status, as text, to its outcome; `None` if it is not a number.
pub(super) fn parse_status_code(value: &[u8]) -> Option<Outcome> {
    let number = std::str::from_utf8(value).ok()?.parse().ok()?;
    Some(Outcome::from_grpc_status(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcome_is_read_from_last_envelope() {
        use EventFormat::{Connect, Web};
        for (format, last, outcome) in [
            (Web, "grpc-status: 0\r\n", Some(Outcome::Ok)),
            (
                Web,
                "Grpc-Message: x\r\nGrpc-Status:5\r\n",
                Some(Outcome::NotFound),
            ),
            (Web, "grpc-status: x", None),
            (Web, "", None),
            (Connect, "{}", Some(Outcome::Ok)),
            (Connect, r#"{"metadata":{"a":["b"]}}"#, Some(Outcome::Ok)),
            (
                Connect,
                r#"{"error":{"code":"not_found","message":"no"}}"#,
                Some(Outcome::NotFound),
            ),
            (
                Connect,
                r#"{"error":{"code":"canceled"}}"#,
                Some(Outcome::Cancelled),
            ),
            (
                Connect,
                r#"{"error":{"code":"http_404"}}"#,
                Some(Outcome::Unknown),
            ),
            (Connect, "", None),
        ] {
            assert_eq!(
                parse_last_envelope(format, last.as_bytes()),
                outcome,
                "{last}"
            );
        }
    }
}
