//! Bytes in, messages out: fragments joined, masks taken off, everything that RFC 6455
//! forbids reported with the close code it calls for.
//!
//! Holds a frame that arrived in part and a message in fragments, both bounded by
//! `max_message`, and what of earlier messages a server insists on in compression. Else an idle reader owns no memory.

use std::ops::ControlFlow;

use super::deflate::{Context, Deflate, inflated};
use super::frame::{FrameHead, MAX_HEAD, Opcode, RESERVED_BIT_SET, apply_mask};
use super::{Violation, code, is_sendable};

/// Which end reads. A server demands masked frames, a client refuses them (§5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It reads what a server sent.
    Client,
    /// It reads what a client sent.
    Server,
}

/// What arrived whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// Known to be UTF-8.
    Text(&'a str),
    /// Any octets.
    Binary(&'a [u8]),
    /// A ping, which is to be answered with a pong of the same payload.
    Ping(&'a [u8]),
    /// A pong: the answer to a ping, or one that was not asked for.
    Pong(&'a [u8]),
    /// The peer sends nothing more.
    Close {
        /// [`code::NONE_GIVEN`] when the frame was empty.
        code: u16,
        /// Empty where none was given.
        reason: &'a str,
    },
}

fn violation(reason: &'static str) -> Violation {
    Violation {
        code: code::PROTOCOL_ERROR,
        reason,
    }
}

const BAD_TEXT: Violation = Violation {
    code: code::INVALID_TEXT,
    reason: "text that is not UTF-8",
};

/// Reads one direction of a connection.
#[derive(Debug)]
pub struct Reader {
    role: Role,
    max_message: usize,
    /// Messages may be compressed.
    deflate: bool,
    /// What of earlier messages is needed to inflate later ones.
    context: Option<Box<Context>>,
    /// A frame that has not arrived whole.
    partial: Vec<u8>,
    /// The opcode and payload so far of a message in fragments.
    fragments: Option<(Opcode, Vec<u8>)>,
    /// These are of a message that is compressed.
    compressed: bool,
    /// Bytes of a fragmented text known to be UTF-8.
    checked: usize,
    /// A Close was read: what follows is ignored (§5.5.1).
    closed: bool,
}

impl Reader {
    /// Messages of more than `max_message` bytes are refused with 1009.
    pub fn new(role: Role, max_message: usize) -> Reader {
        Reader {
            role,
            max_message,
            deflate: false,
            context: None,
            compressed: false,
            partial: Vec::new(),
            fragments: None,
            checked: 0,
            closed: false,
        }
    }

    /// Messages may be compressed, where `is_agreed`.
    #[must_use]
    pub fn with_deflate(mut self, is_agreed: bool) -> Reader {
        self.deflate = is_agreed;
        self
    }

    /// Messages may be compressed as `agreed`: the reader of a client.
    #[must_use]
    pub fn with_agreement(mut self, agreed: Deflate) -> Reader {
        self.context = agreed.context();
        self.with_deflate(true)
    }

    /// Takes bytes in any split and hands out every message that they complete; `sink`
    /// may end the reading.
    ///
    /// # Errors
    /// The first violation; the connection is to be closed with its code.
    #[inline]
    pub fn read(
        &mut self,
        bytes: &[u8],
        mut sink: impl FnMut(Message<'_>) -> ControlFlow<()>,
    ) -> Result<(), Violation> {
        if self.partial.is_empty() {
            let used = self.frames(bytes, &mut sink)?;
            if used < bytes.len() && !self.closed {
                self.partial.extend_from_slice(&bytes[used..]);
            }
            return Ok(());
        }
        let mut joined = std::mem::take(&mut self.partial);
        joined.extend_from_slice(bytes);
        let used = self.frames(&joined, &mut sink)?;
        if used < joined.len() && !self.closed {
            joined.drain(..used);
            self.partial = joined;
        }
        Ok(())
    }

    fn frames(
        &mut self,
        bytes: &[u8],
        sink: &mut impl FnMut(Message<'_>) -> ControlFlow<()>,
    ) -> Result<usize, Violation> {
        let mut used = 0;
        while !self.closed {
            let rest = &bytes[used..];
            let Some(head) = FrameHead::parse(rest).map_err(violation)? else {
                break;
            };
            self.check(&head)?;
            let end = head.size + head.length as usize;
            let Some(payload) = rest.get(head.size..end) else {
                break;
            };
            used += end;
            let flow = match head.mask {
                None => self.frame(&head, payload, sink)?,
                Some(mask) => {
                    let mut payload = payload.to_vec();
                    apply_mask(&mut payload, mask);
                    self.frame(&head, &payload, sink)?
                }
            };
            if flow.is_break() {
                self.closed = true;
            }
        }
        Ok(used)
    }

    /// What can be checked on the head alone, before any payload is kept.
    fn check(&self, head: &FrameHead) -> Result<(), Violation> {
        match (self.role, head.mask) {
            (Role::Server, None) => return Err(violation("a frame without a mask from a client")),
            (Role::Client, Some(_)) => return Err(violation("a masked frame from a server")),
            _ => {}
        }
        // Only the first frame of a message says that it is compressed (RFC 7692 §6.1).
        let may_be_compressed =
            self.deflate && matches!(head.opcode, Opcode::Text | Opcode::Binary);
        if head.rsv1 && !may_be_compressed {
            return Err(violation(RESERVED_BIT_SET));
        }
        let fragments = self.fragments.as_ref();
        match head.opcode {
            Opcode::Continuation if fragments.is_none() => {
                return Err(violation("a continuation without a message to continue"));
            }
            Opcode::Text | Opcode::Binary if fragments.is_some() => {
                return Err(violation("a new message inside a fragmented one"));
            }
            _ => {}
        }
        let before = match head.opcode {
            Opcode::Continuation => fragments.map_or(0, |(_, message)| message.len()),
            _ => 0,
        };
        if head.length > (self.max_message.max(MAX_HEAD) - before) as u64
            && !head.opcode.is_control()
        {
            return Err(Violation {
                code: code::TOO_BIG,
                reason: "a message over the size limit",
            });
        }
        Ok(())
    }

    #[inline]
    fn frame(
        &mut self,
        head: &FrameHead,
        payload: &[u8],
        sink: &mut impl FnMut(Message<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, Violation> {
        match head.opcode {
            Opcode::Text | Opcode::Binary if head.rsv1 && head.fin => {
                self.inflated(head.opcode, payload, sink)
            }
            Opcode::Text | Opcode::Binary if head.fin => message(head.opcode, payload, sink),
            Opcode::Text | Opcode::Binary => {
                self.fragments = Some((head.opcode, payload.to_vec()));
                self.compressed = head.rsv1;
                self.checked = 0;
                self.check_text(false)?;
                Ok(ControlFlow::Continue(()))
            }
            Opcode::Continuation => self.continued(head.fin, payload, sink),
            Opcode::Ping => Ok(sink(Message::Ping(payload))),
            Opcode::Pong => Ok(sink(Message::Pong(payload))),
            Opcode::Close => {
                let (close_code, reason) = close(payload)?;
                let _ = sink(Message::Close {
                    code: close_code,
                    reason,
                });
                Ok(ControlFlow::Break(()))
            }
        }
    }

    fn continued(
        &mut self,
        fin: bool,
        payload: &[u8],
        sink: &mut impl FnMut(Message<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, Violation> {
        if let Some((_, message)) = &mut self.fragments {
            message.extend_from_slice(payload);
        }
        self.check_text(fin)?;
        if !fin {
            return Ok(ControlFlow::Continue(()));
        }
        match self.fragments.take() {
            Some((opcode, message)) if self.compressed => self.inflated(opcode, &message, sink),
            Some((opcode, whole)) => message(opcode, &whole, sink),
            None => Ok(ControlFlow::Continue(())),
        }
    }

    fn inflated(
        &mut self,
        opcode: Opcode,
        payload: &[u8],
        sink: &mut impl FnMut(Message<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, Violation> {
        let whole = match &mut self.context {
            Some(context) => context.inflated(payload, self.max_message)?,
            None => inflated(payload, self.max_message)?,
        };
        message(opcode, &whole, sink)
    }

    /// Wrong text is refused with the fragment that makes it wrong, not with the last.
    fn check_text(&mut self, last: bool) -> Result<(), Violation> {
        let Some((Opcode::Text, message)) = &self.fragments else {
            return Ok(());
        };
        if self.compressed {
            return Ok(());
        }
        match std::str::from_utf8(&message[self.checked..]) {
            Ok(text) => self.checked += text.len(),
            Err(e) if e.error_len().is_none() && !last => self.checked += e.valid_up_to(),
            Err(_) => return Err(BAD_TEXT),
        }
        Ok(())
    }
}

/// Hands out a whole one.
#[inline]
fn message(
    opcode: Opcode,
    payload: &[u8],
    sink: &mut impl FnMut(Message<'_>) -> ControlFlow<()>,
) -> Result<ControlFlow<()>, Violation> {
    if opcode == Opcode::Binary {
        return Ok(sink(Message::Binary(payload)));
    }
    let text = std::str::from_utf8(payload).map_err(|_| BAD_TEXT)?;
    Ok(sink(Message::Text(text)))
}

fn close(payload: &[u8]) -> Result<(u16, &str), Violation> {
    match payload {
        [] => Ok((code::NONE_GIVEN, "")),
        [_] => Err(violation("a Close frame with a truncated code")),
        [high, low, reason @ ..] => {
            let close_code = u16::from_be_bytes([*high, *low]);
            if !is_sendable(close_code) {
                return Err(violation("a Close frame with a code that must not be sent"));
            }
            let reason = std::str::from_utf8(reason).map_err(|_| BAD_TEXT)?;
            Ok((close_code, reason))
        }
    }
}

#[cfg(test)]
mod tests;
