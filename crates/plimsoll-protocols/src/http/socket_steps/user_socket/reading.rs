//! Reads the frames that the server sends.

use std::ops::ControlFlow;

use plimsoll_engine::driver::{Event, ProtocolError};
use plimsoll_model::{Outcome, Time};
use plimsoll_wire::websocket::{
    Opcode, ReaderRole, Violation, WebSocketMessage, WebSocketReader, append_masked_frame, code,
};

use super::{SocketState, SocketStepDriver};

/// Maximum size of the messages that wait for a step to read them, in bytes.
const MAX_QUEUED_BYTES: usize = 4 << 20;

impl SocketStepDriver {
    /// Reads frames, and answers pings and a Close.
    pub(super) fn read_frames(
        &mut self,
        bytes: &[u8],
        now: Time,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), ProtocolError> {
        let nothing = WebSocketReader::new(ReaderRole::Client, 0);
        let mut reader = std::mem::replace(&mut self.reader, nothing);
        let mut closed = None;
        let read = reader.read(bytes, |message| {
            match message {
                WebSocketMessage::Text(text) => {
                    self.on_message((Opcode::Text, text.as_bytes()), now, out, events);
                }
                WebSocketMessage::Binary(data) => {
                    self.on_message((Opcode::Binary, data), now, out, events);
                }
                WebSocketMessage::Ping(payload) => {
                    append_masked_frame(out, Opcode::Pong, self.random.mask(), payload);
                }
                WebSocketMessage::Pong(_) => {}
                WebSocketMessage::Close { code, reason } => {
                    closed = Some(format!("the server closed the socket with {code} {reason}"));
                    return ControlFlow::Break(());
                }
            }
            if self.waiting_bytes > MAX_QUEUED_BYTES {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
        self.reader = reader;
        if self.waiting_bytes > MAX_QUEUED_BYTES {
            let violation = Violation {
                code: code::POLICY_VIOLATION,
                reason: "more than 4 MiB of messages waited for a step that reads them",
            };
            return Err(self.close_with_violation(&violation, now, out, events));
        }
        if let Err(violation) = read {
            return Err(self.close_with_violation(&violation, now, out, events));
        }
        if let Some(text) = closed {
            return self.on_close_frame(text.trim_end().to_owned(), now, out, events);
        }
        Ok(())
    }

    /// Closes the socket because the server has violated the protocol or a limit. Returns the error to report.
    fn close_with_violation(
        &mut self,
        violation: &Violation,
        now: Time,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> ProtocolError {
        let outcome = match violation.code {
            code::MESSAGE_TOO_BIG | code::POLICY_VIOLATION => Outcome::MessageTooLarge,
            _ => Outcome::ProtocolError,
        };
        self.append_close_frame(violation.code, violation.reason, out);
        // Messages that are too large, or too many, would be sent again.
        let may_reopen = outcome == Outcome::ProtocolError;
        if !(may_reopen && self.schedule_reopening(outcome, now, events)) {
            self.reopening = None;
            self.state = SocketState::Closed(violation.reason.to_owned());
        }
        ProtocolError {
            outcome,
            detail: format!("websocket: {}", violation.reason),
        }
    }
}
