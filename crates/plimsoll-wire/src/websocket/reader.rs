//! Converts bytes to messages: joins fragments, removes masks, and reports each violation of RFC 6455 with its close
//! code.
//!
//! A reader stores at most one incomplete frame and one incomplete message, both bounded by `max_message`, and the
//! decompression context if the server insists on one. Otherwise, an idle reader owns no memory.

use std::ops::ControlFlow;

use super::deflate::{DeflateParameters, InflateContext, inflate_message};
use super::frame::{
    MAX_HEADER_BYTES, Opcode, RESERVED_BIT_VIOLATION, WebSocketFrameHeader, apply_mask,
};
use super::{Violation, code, is_sendable};

/// The end that is reading. A server requires masked frames, and a client rejects them (§5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReaderRole {
    /// A client, which reads a server's frames.
    Client,
    /// A server, which reads a client's frames.
    Server,
}

/// A complete message or control frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebSocketMessage<'a> {
    /// A text message, checked to be UTF-8.
    Text(&'a str),
    /// A binary message.
    Binary(&'a [u8]),
    /// A ping, which must be answered with a pong of the same payload.
    Ping(&'a [u8]),
    /// A pong, in answer to a ping or unsolicited.
    Pong(&'a [u8]),
    /// A Close frame: the peer sends nothing more.
    Close {
        /// The close code; [`code::NO_STATUS_RECEIVED`] if the frame was empty.
        code: u16,
        /// The reason; empty if there was none.
        reason: &'a str,
    },
}

fn protocol_violation(reason: &'static str) -> Violation {
    Violation {
        code: code::PROTOCOL_ERROR,
        reason,
    }
}

const INVALID_UTF8: Violation = Violation {
    code: code::INVALID_PAYLOAD,
    reason: "text that is not UTF-8",
};

/// A reader of one direction of a connection.
#[derive(Debug)]
pub struct WebSocketReader {
    role: ReaderRole,
    max_message: usize,
    /// Whether messages may be compressed.
    accepts_compressed: bool,
    /// The decompression context, if later messages may refer to earlier ones.
    context: Option<Box<InflateContext>>,
    /// An incomplete frame.
    partial: Vec<u8>,
    /// The opcode of a fragmented message, and its payload so far.
    fragments: Option<(Opcode, Vec<u8>)>,
    /// Whether the fragmented message is compressed.
    is_compressed: bool,
    /// Number of bytes of a fragmented text that have been checked to be UTF-8.
    checked_bytes: usize,
    /// Whether a Close frame was read; later bytes are ignored (§5.5.1).
    is_closed: bool,
}

impl WebSocketReader {
    /// Creates a reader that rejects messages of more than `max_message` bytes with code 1009.
    pub fn new(role: ReaderRole, max_message: usize) -> WebSocketReader {
        WebSocketReader {
            role,
            max_message,
            accepts_compressed: false,
            context: None,
            is_compressed: false,
            partial: Vec::new(),
            fragments: None,
            checked_bytes: 0,
            is_closed: false,
        }
    }

    /// Accepts compressed messages if `is_agreed`.
    #[must_use]
    pub fn with_deflate(mut self, is_agreed: bool) -> WebSocketReader {
        self.accepts_compressed = is_agreed;
        self
    }

    /// Accepts messages that a server compresses with the parameters `agreed`.
    #[must_use]
    pub fn with_deflate_parameters(mut self, agreed: DeflateParameters) -> WebSocketReader {
        self.context = agreed.new_inflate_context();
        self.with_deflate(true)
    }

    /// Processes bytes, which may be split at any position, and passes each complete message to `sink`, which can stop
    /// the reading.
    ///
    /// # Errors
    /// Returns the first violation; the connection must be closed with its code.
    #[inline]
    pub fn read(
        &mut self,
        bytes: &[u8],
        mut sink: impl FnMut(WebSocketMessage<'_>) -> ControlFlow<()>,
    ) -> Result<(), Violation> {
        if self.partial.is_empty() {
            let used = self.read_frames(bytes, &mut sink)?;
            if used < bytes.len() && !self.is_closed {
                self.partial.extend_from_slice(&bytes[used..]);
            }
            return Ok(());
        }
        let mut joined = std::mem::take(&mut self.partial);
        joined.extend_from_slice(bytes);
        let used = self.read_frames(&joined, &mut sink)?;
        if used < joined.len() && !self.is_closed {
            joined.drain(..used);
            self.partial = joined;
        }
        Ok(())
    }

    fn read_frames(
        &mut self,
        bytes: &[u8],
        sink: &mut impl FnMut(WebSocketMessage<'_>) -> ControlFlow<()>,
    ) -> Result<usize, Violation> {
        let mut used = 0;
        while !self.is_closed {
            let rest = &bytes[used..];
            let Some(head) = WebSocketFrameHeader::parse(rest).map_err(protocol_violation)? else {
                break;
            };
            self.check_header(&head)?;
            let end = head.size + head.length as usize;
            let Some(payload) = rest.get(head.size..end) else {
                break;
            };
            used += end;
            let flow = match head.mask {
                None => self.read_frame(&head, payload, sink)?,
                Some(mask) => {
                    let mut payload = payload.to_vec();
                    apply_mask(&mut payload, mask);
                    self.read_frame(&head, &payload, sink)?
                }
            };
            if flow.is_break() {
                self.is_closed = true;
            }
        }
        Ok(used)
    }

    /// Checks a frame header before any payload is stored.
    fn check_header(&self, head: &WebSocketFrameHeader) -> Result<(), Violation> {
        match (self.role, head.mask) {
            (ReaderRole::Server, None) => {
                return Err(protocol_violation("a frame without a mask from a client"));
            }
            (ReaderRole::Client, Some(_)) => {
                return Err(protocol_violation("a masked frame from a server"));
            }
            _ => {}
        }
        // Only the first frame of a message marks it as compressed (RFC 7692 §6.1).
        let may_be_compressed =
            self.accepts_compressed && matches!(head.opcode, Opcode::Text | Opcode::Binary);
        if head.rsv1 && !may_be_compressed {
            return Err(protocol_violation(RESERVED_BIT_VIOLATION));
        }
        let fragments = self.fragments.as_ref();
        match head.opcode {
            Opcode::Continuation if fragments.is_none() => {
                return Err(protocol_violation(
                    "a continuation without a message to continue",
                ));
            }
            Opcode::Text | Opcode::Binary if fragments.is_some() => {
                return Err(protocol_violation("a new message inside a fragmented one"));
            }
            _ => {}
        }
        let before = match head.opcode {
            Opcode::Continuation => fragments.map_or(0, |(_, message)| message.len()),
            _ => 0,
        };
        if head.length > (self.max_message.max(MAX_HEADER_BYTES) - before) as u64
            && !head.opcode.is_control()
        {
            return Err(Violation {
                code: code::MESSAGE_TOO_BIG,
                reason: "a message over the size limit",
            });
        }
        Ok(())
    }

    #[inline]
    fn read_frame(
        &mut self,
        head: &WebSocketFrameHeader,
        payload: &[u8],
        sink: &mut impl FnMut(WebSocketMessage<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, Violation> {
        match head.opcode {
            Opcode::Text | Opcode::Binary if head.rsv1 && head.fin => {
                self.pass_compressed_message(head.opcode, payload, sink)
            }
            Opcode::Text | Opcode::Binary if head.fin => pass_message(head.opcode, payload, sink),
            Opcode::Text | Opcode::Binary => {
                self.fragments = Some((head.opcode, payload.to_vec()));
                self.is_compressed = head.rsv1;
                self.checked_bytes = 0;
                self.check_text(false)?;
                Ok(ControlFlow::Continue(()))
            }
            Opcode::Continuation => self.read_continuation(head.fin, payload, sink),
            Opcode::Ping => Ok(sink(WebSocketMessage::Ping(payload))),
            Opcode::Pong => Ok(sink(WebSocketMessage::Pong(payload))),
            Opcode::Close => {
                let (close_code, reason) = parse_close(payload)?;
                let _ = sink(WebSocketMessage::Close {
                    code: close_code,
                    reason,
                });
                Ok(ControlFlow::Break(()))
            }
        }
    }

    fn read_continuation(
        &mut self,
        fin: bool,
        payload: &[u8],
        sink: &mut impl FnMut(WebSocketMessage<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, Violation> {
        if let Some((_, message)) = &mut self.fragments {
            message.extend_from_slice(payload);
        }
        self.check_text(fin)?;
        if !fin {
            return Ok(ControlFlow::Continue(()));
        }
        match self.fragments.take() {
            Some((opcode, message)) if self.is_compressed => {
                self.pass_compressed_message(opcode, &message, sink)
            }
            Some((opcode, whole)) => pass_message(opcode, &whole, sink),
            None => Ok(ControlFlow::Continue(())),
        }
    }

    fn pass_compressed_message(
        &mut self,
        opcode: Opcode,
        payload: &[u8],
        sink: &mut impl FnMut(WebSocketMessage<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, Violation> {
        let whole = match &mut self.context {
            Some(context) => context.inflate_message(payload, self.max_message)?,
            None => inflate_message(payload, self.max_message)?,
        };
        pass_message(opcode, &whole, sink)
    }

    /// Checks fragmented text incrementally, so that invalid UTF-8 is rejected when its fragment arrives and not only
    /// at the end of the message.
    fn check_text(&mut self, last: bool) -> Result<(), Violation> {
        let Some((Opcode::Text, message)) = &self.fragments else {
            return Ok(());
        };
        if self.is_compressed {
            return Ok(());
        }
        match std::str::from_utf8(&message[self.checked_bytes..]) {
            Ok(text) => self.checked_bytes += text.len(),
            Err(e) if e.error_len().is_none() && !last => self.checked_bytes += e.valid_up_to(),
            Err(_) => return Err(INVALID_UTF8),
        }
        Ok(())
    }
}

/// Passes a complete message to `sink`.
#[inline]
fn pass_message(
    opcode: Opcode,
    payload: &[u8],
    sink: &mut impl FnMut(WebSocketMessage<'_>) -> ControlFlow<()>,
) -> Result<ControlFlow<()>, Violation> {
    if opcode == Opcode::Binary {
        return Ok(sink(WebSocketMessage::Binary(payload)));
    }
    let text = std::str::from_utf8(payload).map_err(|_| INVALID_UTF8)?;
    Ok(sink(WebSocketMessage::Text(text)))
}

fn parse_close(payload: &[u8]) -> Result<(u16, &str), Violation> {
    match payload {
        [] => Ok((code::NO_STATUS_RECEIVED, "")),
        [_] => Err(protocol_violation("a Close frame with a truncated code")),
        [high, low, reason @ ..] => {
            let close_code = u16::from_be_bytes([*high, *low]);
            if !is_sendable(close_code) {
                return Err(protocol_violation(
                    "a Close frame with a code that must not be sent",
                ));
            }
            let reason = std::str::from_utf8(reason).map_err(|_| INVALID_UTF8)?;
            Ok((close_code, reason))
        }
    }
}

#[cfg(test)]
mod tests;
