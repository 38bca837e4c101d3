//! The state of a response on a stream: a header, messages, then a status (gRPC over HTTP/2, "Responses"). A
//! unary call has one message; for streaming calls the driver counts the messages.
//!
//! The driver calls [`GrpcResponseState::receive_head`] and [`GrpcResponseState::receive_data`] with the header blocks
//! and DATA of an open stream, and carries out the returned [`ResponseAction`].

use plimsoll_model::{Outcome, Time};
use plimsoll_wire::http2::{EndStream, StreamPayload};

use super::decompression::StreamUnpacker;
use super::head::{ContentType, FailureTexts, GrpcHeaders};
use super::message::{MessageError, MessageReader};
use crate::http2::{self, find_length_violation};

/// The outcome of a response whose HTTP status is not 200.
const UNEXPECTED_HTTP_STATUS: Outcome = Outcome::coded("HTTP_STATUS");

/// The outcome of a response whose message is not the one that the plan expects.
const MESSAGE_MISMATCH: Outcome = Outcome::coded("MESSAGE_MISMATCH");

/// The action of the driver after a piece of a response.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ResponseAction {
    Continue,
    /// The call has succeeded and the stream has ended.
    Succeed,
    /// The call has failed. If the stream has not ended, it has to be cancelled.
    Fail(Box<CallFailure>),
    /// A stream error of type PROTOCOL_ERROR (RFC 9113, 8.1.1).
    Malformed(&'static str),
}

/// The failure of a call, with the server's message.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CallFailure {
    pub(super) outcome: Outcome,
    pub(super) detail: Option<String>,
}

/// Returns the action for a header block that is malformed or over the limit.
#[cold]
fn malformed_action(why: &'static str) -> ResponseAction {
    match why {
        http2::HEAD_TOO_LARGE => ResponseAction::Fail(Box::new(CallFailure {
            outcome: Outcome::HeadTooLarge,
            // The driver adds the text, since it knows the limit.
            detail: None,
        })),
        why => ResponseAction::Malformed(why),
    }
}

type OptionalFailureTexts = Option<Box<FailureTexts>>;

/// The state of a response that is being received.
#[derive(Clone, Copy, Debug)]
pub struct GrpcResponseState {
    pub(super) first_byte: Time,
    messages: MessageReader,
    /// The received bytes of messages and their prefixes, modulo 2³².
    pub(super) received: u32,
    /// The value of `content-length`; `u32::MAX` if there is none.
    content_length: u32,
    head_seen: bool,
    /// Whether the call is streaming. If so, the driver checks the number of messages.
    is_streaming: bool,
    /// Whether messages may be compressed. If so, [`GrpcResponseState::receive_compressed_data`] reads them.
    pub(super) may_be_compressed: bool,
}

impl http2::ResponseState for GrpcResponseState {
    const NEW: GrpcResponseState = GrpcResponseState {
        first_byte: Time::NEVER,
        messages: MessageReader::NEW,
        received: 0,
        content_length: u32::MAX,
        head_seen: false,
        is_streaming: false,
        may_be_compressed: false,
    };

    #[inline(always)]
    fn is_new(&self) -> bool {
        self.first_byte == Time::NEVER
    }
}

impl GrpcResponseState {
    pub(super) const NEW_STREAM: GrpcResponseState = GrpcResponseState {
        is_streaming: true,
        ..<GrpcResponseState as http2::ResponseState>::NEW
    };

    /// Handles a header block: the response's header or its trailers.
    #[inline]
    pub(super) fn receive_head(
        &mut self,
        head: &GrpcHeaders,
        texts: OptionalFailureTexts,
        end: EndStream,
    ) -> ResponseAction {
        let EndStream(end_stream) = end;
        if let Some(why) = head.malformed {
            return malformed_action(why);
        }
        if self.head_seen {
            if head.http_status != 0 {
                return ResponseAction::Malformed("trailers with a pseudo-field (RFC 9113, 8.1)");
            }
            if !end_stream {
                return ResponseAction::Malformed("trailers without END_STREAM (RFC 9113, 8.1)");
            }
            return self.judge_end(head, texts);
        }
        match head.http_status {
            0 => return ResponseAction::Malformed("an answer without :status (RFC 9113, 8.3.2)"),
            101 => {
                return ResponseAction::Malformed(
                    "status 101, which HTTP/2 does not have (RFC 9113, 8.6)",
                );
            }
            100..200 if end_stream => {
                return ResponseAction::Malformed(
                    "an interim answer with END_STREAM (RFC 9113, 8.1)",
                );
            }
            100..200 => return ResponseAction::Continue,
            _ => {}
        }
        self.head_seen = true;
        if let Some(length) = head.content_length {
            self.content_length = length;
        }
        // A gRPC status in the same block takes precedence over the HTTP status (gRPC,
        // http-grpc-status-mapping).
        let failed = head.grpc_status.is_some_and(|status| status != 0);
        if head.http_status != 200 && !(end_stream && failed) {
            return http_failure_action(head.http_status, texts);
        }
        if end_stream {
            return self.judge_end(head, texts);
        }
        match head.content_type {
            ContentType::Grpc => ResponseAction::Continue,
            ContentType::Absent => bad_answer_action("an answer without content-type".to_owned()),
            ContentType::Other => bad_answer_action(format!(
                "content-type `{}`, not application/grpc",
                texts
                    .and_then(|texts| texts.content_type)
                    .unwrap_or_default()
            )),
        }
    }

    /// Returns true if a message has begun but not ended.
    #[inline]
    pub(super) fn is_mid_message(&self) -> bool {
        self.messages.is_mid_message()
    }

    /// Handles DATA. `limit` applies to a message, in bytes.
    #[inline]
    pub(super) fn receive_data(&mut self, piece: StreamPayload<'_>, limit: u32) -> ResponseAction {
        if !self.head_seen {
            return ResponseAction::Malformed("DATA before HEADERS (RFC 9113, 8.1)");
        }
        self.received = self.received.wrapping_add(piece.bytes.len() as u32);
        let read = self.messages.read(piece.bytes, limit);
        self.action_after_data(read, piece)
    }

    /// Handles DATA like [`GrpcResponseState::receive_data`] if messages may be compressed.
    pub(super) fn receive_compressed_data(
        &mut self,
        piece: StreamPayload<'_>,
        limit: u32,
        unpacking: &mut StreamUnpacker,
    ) -> ResponseAction {
        self.received = self.received.wrapping_add(piece.bytes.len() as u32);
        let read = self.messages.read_into(unpacking, piece.bytes, limit);
        self.action_after_data(read, piece)
    }

    #[inline(always)]
    fn action_after_data(
        &self,
        read: Result<(), MessageError>,
        piece: StreamPayload<'_>,
    ) -> ResponseAction {
        if let Err(error) = read {
            return bad_message_action(error);
        }
        if !piece.end_stream {
            return ResponseAction::Continue;
        }
        if let Some(step) = self.length_violation() {
            return step;
        }
        missing_status_action()
    }

    /// Handles a header block that ends the stream.
    #[inline]
    fn judge_end(&self, head: &GrpcHeaders, texts: OptionalFailureTexts) -> ResponseAction {
        match head.grpc_status {
            Some(0) if self.is_one_message() && self.content_length == u32::MAX => {
                ResponseAction::Succeed
            }
            other => self.judge_failure(other, texts),
        }
    }

    /// Returns the number of complete messages since the last call.
    #[inline]
    pub(super) fn take_complete_message_count(&mut self) -> u16 {
        self.messages.take_complete_message_count()
    }

    #[inline]
    fn is_one_message(&self) -> bool {
        self.messages.complete_message_count() == 1 && !self.messages.is_mid_message()
    }

    #[inline(never)]
    fn judge_failure(&self, status: Option<u8>, texts: OptionalFailureTexts) -> ResponseAction {
        if let Some(step) = self.length_violation() {
            return step;
        }
        match status {
            None => missing_status_action(),
            Some(0) if self.is_one_message() => ResponseAction::Succeed,
            Some(0) if self.is_streaming && !self.messages.is_mid_message() => {
                ResponseAction::Succeed
            }
            Some(0) if self.messages.is_mid_message() => {
                bad_answer_action("status OK, but a message is cut short".to_owned())
            }
            Some(0) => bad_answer_action(format!(
                "status OK with {} messages, not 1, for a unary call",
                self.messages.complete_message_count()
            )),
            Some(status) => failure_action(
                Outcome::from_grpc_status(u32::from(status)),
                texts.and_then(|texts| texts.message),
            ),
        }
    }

    /// Returns the violation of `content-length`, if any (RFC 9113, 8.1.1).
    fn length_violation(&self) -> Option<ResponseAction> {
        if self.content_length == u32::MAX {
            return None;
        }
        find_length_violation(self.content_length, self.received).map(ResponseAction::Malformed)
    }
}

#[cold]
fn failure_action(outcome: Outcome, detail: Option<String>) -> ResponseAction {
    ResponseAction::Fail(Box::new(CallFailure { outcome, detail }))
}

#[cold]
pub(super) fn bad_message_action(error: MessageError) -> ResponseAction {
    let outcome = match error {
        MessageError::TooLarge { .. } | MessageError::UnpacksTooLarge { .. } => {
            Outcome::MessageTooLarge
        }
        MessageError::Mismatch(_) => MESSAGE_MISMATCH,
        MessageError::Compressed => Outcome::CompressionUnsupported,
        MessageError::BadFlag(_) | MessageError::NotGzip | MessageError::Undecodable(_) => {
            Outcome::BadAnswer
        }
    };
    failure_action(outcome, Some(error.to_string()))
}

#[cold]
fn http_failure_action(status: u16, texts: OptionalFailureTexts) -> ResponseAction {
    let text = match texts.and_then(|texts| texts.content_type) {
        Some(content_type) => format!("HTTP status {status}, content-type `{content_type}`"),
        None => format!("HTTP status {status}"),
    };
    failure_action(UNEXPECTED_HTTP_STATUS, Some(text))
}

#[cold]
fn missing_status_action() -> ResponseAction {
    failure_action(
        Outcome::MissingStatus,
        Some("the stream ended without grpc-status".to_owned()),
    )
}

#[cold]
fn bad_answer_action(why: String) -> ResponseAction {
    failure_action(Outcome::BadAnswer, Some(why))
}
