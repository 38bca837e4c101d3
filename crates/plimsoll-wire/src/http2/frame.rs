//! Frames (RFC 9113, 6): parsing with every check that needs the frame alone, and
//! writing.
//!
//! Long because all frame types stand side by side, as the RFC has them.

use super::{DEFAULT_MAX_FRAME, ErrorCode, MAX_WINDOW, Violation};

/// Frame types (RFC 9113, 6).
pub mod kind {
    pub const DATA: u8 = 0x0;
    pub const HEADERS: u8 = 0x1;
    pub const PRIORITY: u8 = 0x2;
    pub const RST_STREAM: u8 = 0x3;
    pub const SETTINGS: u8 = 0x4;
    pub const PUSH_PROMISE: u8 = 0x5;
    pub const PING: u8 = 0x6;
    pub const GOAWAY: u8 = 0x7;
    pub const WINDOW_UPDATE: u8 = 0x8;
    pub const CONTINUATION: u8 = 0x9;

    /// The type's name, as RFC 9113 writes it.
    pub fn name(kind: u8) -> Option<&'static str> {
        const NAMES: [&str; 10] = [
            "DATA",
            "HEADERS",
            "PRIORITY",
            "RST_STREAM",
            "SETTINGS",
            "PUSH_PROMISE",
            "PING",
            "GOAWAY",
            "WINDOW_UPDATE",
            "CONTINUATION",
        ];
        NAMES.get(kind as usize).copied()
    }
}

/// Frame flags (RFC 9113, 6).
pub mod flags {
    pub const ACK: u8 = 0x1;
    pub const END_STREAM: u8 = 0x1;
    pub const END_HEADERS: u8 = 0x4;
    pub const PADDED: u8 = 0x8;
    pub const PRIORITY: u8 = 0x20;
}

/// Setting identifiers (RFC 9113, 6.5.2).
pub mod setting {
    pub const HEADER_TABLE_SIZE: u16 = 0x1;
    pub const ENABLE_PUSH: u16 = 0x2;
    pub const MAX_CONCURRENT_STREAMS: u16 = 0x3;
    pub const INITIAL_WINDOW_SIZE: u16 = 0x4;
    pub const MAX_FRAME_SIZE: u16 = 0x5;
    pub const MAX_HEADER_LIST_SIZE: u16 = 0x6;

    /// The setting's name without its prefix.
    pub fn name(id: u16) -> Option<&'static str> {
        const NAMES: [&str; 6] = [
            "HEADER_TABLE_SIZE",
            "ENABLE_PUSH",
            "MAX_CONCURRENT_STREAMS",
            "INITIAL_WINDOW_SIZE",
            "MAX_FRAME_SIZE",
            "MAX_HEADER_LIST_SIZE",
        ];
        NAMES.get((id as usize).wrapping_sub(1)).copied()
    }
}

/// The nine bytes before every payload (RFC 9113, 4.1).
///
/// Two words, so that the compiler keeps it in registers: a struct of four fields went
/// through memory, and waiting for that took longer than all that is done with a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FrameHead {
    /// Length, type and flags: the first five bytes.
    front: u64,
    stream: u32,
}

impl FrameHead {
    /// Bytes of a frame head.
    pub const LEN: usize = 9;

    #[inline(always)]
    pub fn parse(bytes: &[u8; 9]) -> FrameHead {
        let [a, b, c, kind, flags, d, e, f, g] = *bytes;
        FrameHead {
            front: u64::from_be_bytes([0, 0, 0, a, b, c, kind, flags]),
            stream: u32::from_be_bytes([d, e, f, g]) & 0x7fff_ffff,
        }
    }

    /// Bytes of the payload.
    #[inline(always)]
    pub fn length(self) -> u32 {
        (self.front >> 16) as u32
    }

    #[inline(always)]
    pub fn kind(self) -> u8 {
        (self.front >> 8) as u8
    }

    #[inline(always)]
    pub fn flags(self) -> u8 {
        self.front as u8
    }

    /// Without the reserved bit, which is ignored.
    #[inline(always)]
    pub fn stream(self) -> u32 {
        self.stream
    }

    /// Of this type, with these flags and no other.
    #[inline(always)]
    pub fn is(self, kind: u8, flags: u8) -> bool {
        self.front as u16 == u16::from_be_bytes([kind, flags])
    }

    #[inline(always)]
    pub fn has(self, flag: u8) -> bool {
        self.flags() & flag != 0
    }
}

impl std::fmt::Debug for FrameHead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FrameHead")
            .field("length", &self.length())
            .field("kind", &self.kind())
            .field("flags", &self.flags())
            .field("stream", &self.stream())
            .finish()
    }
}

/// The settings of one SETTINGS frame, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings<'a>(&'a [u8]);

impl Settings<'_> {
    /// Identifier and value of each.
    pub fn iter(&self) -> impl Iterator<Item = (u16, u32)> + '_ {
        self.0.chunks_exact(6).map(|item| {
            let id = u16::from_be_bytes([item[0], item[1]]);
            (id, u32::from_be_bytes([item[2], item[3], item[4], item[5]]))
        })
    }
}

/// A frame that is right in itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// Flow control counts the payload with its padding: [`FrameHead::length`].
    Data {
        data: &'a [u8],
        end_stream: bool,
    },
    Headers {
        fragment: &'a [u8],
        end_stream: bool,
        end_headers: bool,
    },
    /// Deprecated (RFC 9113, 5.3.2).
    Priority,
    ResetStream {
        code: ErrorCode,
    },
    Settings(Settings<'a>),
    SettingsAck,
    PushPromise {
        promised: u32,
        fragment: &'a [u8],
        end_headers: bool,
    },
    Ping {
        data: [u8; 8],
    },
    PingAck {
        data: [u8; 8],
    },
    GoAway {
        last_stream: u32,
        code: ErrorCode,
        debug: &'a [u8],
    },
    WindowUpdate {
        increment: u32,
    },
    Continuation {
        fragment: &'a [u8],
        end_headers: bool,
    },
    /// Of a type that RFC 9113 does not name: ignored (5.5).
    Unknown,
}

impl<'a> Frame<'a> {
    /// # Errors
    /// The frame breaks a rule of its own type: wrong length, on the wrong kind of
    /// stream, padding longer than it is, a value out of range.
    #[inline]
    pub fn parse(head: FrameHead, payload: &'a [u8]) -> Result<Frame<'a>, Violation> {
        debug_assert_eq!(head.length() as usize, payload.len());
        match head.kind() {
            kind::DATA => Ok(Frame::Data {
                data: Frame::data(head, payload)?,
                end_stream: head.has(flags::END_STREAM),
            }),
            kind::HEADERS => Ok(Frame::Headers {
                fragment: Frame::fragment(head, payload)?,
                end_stream: head.has(flags::END_STREAM),
                end_headers: head.has(flags::END_HEADERS),
            }),
            _ => Frame::parse_rare(head, payload),
        }
    }

    /// [`Frame::parse`] for a frame that is known to be DATA: what is between its padding.
    ///
    /// # Errors
    /// As [`Frame::parse`].
    #[inline(always)]
    pub fn data(head: FrameHead, payload: &'a [u8]) -> Result<&'a [u8], Violation> {
        on_stream(head)?;
        unpadded(head, payload)
    }

    /// [`Frame::parse`] for a frame that is known to be HEADERS: its part of the block.
    ///
    /// # Errors
    /// As [`Frame::parse`].
    #[inline(always)]
    pub fn fragment(head: FrameHead, payload: &'a [u8]) -> Result<&'a [u8], Violation> {
        on_stream(head)?;
        let fragment = unpadded(head, payload)?;
        if !head.has(flags::PRIORITY) {
            return Ok(fragment);
        }
        fragment.get(5..).ok_or_else(|| {
            size_error(
                head,
                "HEADERS with PRIORITY has no room for it (RFC 9113, 6.2)",
            )
        })
    }

    #[inline(never)]
    fn parse_rare(head: FrameHead, payload: &'a [u8]) -> Result<Frame<'a>, Violation> {
        let word = |at: usize| {
            u32::from_be_bytes([
                payload[at],
                payload[at + 1],
                payload[at + 2],
                payload[at + 3],
            ])
        };
        match head.kind() {
            kind::PRIORITY => {
                on_stream(head)?;
                if payload.len() != 5 {
                    return Err(Violation::stream(
                        head.stream(),
                        ErrorCode::FRAME_SIZE_ERROR,
                        format!("PRIORITY of {} bytes, not 5 (RFC 9113, 6.3)", payload.len()),
                    ));
                }
                Ok(Frame::Priority)
            }
            kind::RST_STREAM => {
                on_stream(head)?;
                sized(head, 4)?;
                Ok(Frame::ResetStream {
                    code: ErrorCode(word(0)),
                })
            }
            kind::SETTINGS => {
                on_connection(head)?;
                if head.has(flags::ACK) {
                    sized(head, 0)?;
                    return Ok(Frame::SettingsAck);
                }
                if !payload.len().is_multiple_of(6) {
                    return Err(size_error(
                        head,
                        "SETTINGS whose length is not a multiple of 6 (RFC 9113, 6.5)",
                    ));
                }
                let settings = Settings(payload);
                for (id, value) in settings.iter() {
                    check_setting(id, value)?;
                }
                Ok(Frame::Settings(settings))
            }
            kind::PUSH_PROMISE => {
                on_stream(head)?;
                let payload = unpadded(head, payload)?;
                let Some((promised, fragment)) = payload.split_first_chunk::<4>() else {
                    return Err(size_error(
                        head,
                        "PUSH_PROMISE has no stream id (RFC 9113, 6.6)",
                    ));
                };
                Ok(Frame::PushPromise {
                    promised: u32::from_be_bytes(*promised) & 0x7fff_ffff,
                    fragment,
                    end_headers: head.has(flags::END_HEADERS),
                })
            }
            kind::PING => {
                on_connection(head)?;
                sized(head, 8)?;
                let mut data = [0; 8];
                data.copy_from_slice(payload);
                Ok(if head.has(flags::ACK) {
                    Frame::PingAck { data }
                } else {
                    Frame::Ping { data }
                })
            }
            kind::GOAWAY => {
                on_connection(head)?;
                if payload.len() < 8 {
                    return Err(size_error(head, "GOAWAY under 8 bytes (RFC 9113, 6.8)"));
                }
                Ok(Frame::GoAway {
                    last_stream: word(0) & 0x7fff_ffff,
                    code: ErrorCode(word(4)),
                    debug: &payload[8..],
                })
            }
            kind::WINDOW_UPDATE => {
                sized(head, 4)?;
                let increment = word(0) & 0x7fff_ffff;
                if increment == 0 {
                    return Err(Violation::stream(
                        head.stream(),
                        ErrorCode::PROTOCOL_ERROR,
                        "WINDOW_UPDATE of 0 (RFC 9113, 6.9)",
                    ));
                }
                Ok(Frame::WindowUpdate { increment })
            }
            kind::CONTINUATION => {
                on_stream(head)?;
                Ok(Frame::Continuation {
                    fragment: payload,
                    end_headers: head.has(flags::END_HEADERS),
                })
            }
            _ => Ok(Frame::Unknown),
        }
    }
}

#[inline(always)]
fn on_stream(head: FrameHead) -> Result<(), Violation> {
    if head.stream() == 0 {
        return Err(Violation::connection(
            ErrorCode::PROTOCOL_ERROR,
            format!(
                "{} on stream 0 (RFC 9113, 6)",
                kind::name(head.kind()).unwrap_or("frame")
            ),
        ));
    }
    Ok(())
}

fn on_connection(head: FrameHead) -> Result<(), Violation> {
    if head.stream() != 0 {
        return Err(Violation::connection(
            ErrorCode::PROTOCOL_ERROR,
            format!(
                "{} on stream {}, not 0 (RFC 9113, 6)",
                kind::name(head.kind()).unwrap_or("frame"),
                head.stream()
            ),
        ));
    }
    Ok(())
}

fn sized(head: FrameHead, length: u32) -> Result<(), Violation> {
    if head.length() != length {
        return Err(Violation::connection(
            ErrorCode::FRAME_SIZE_ERROR,
            format!(
                "{} of {} bytes, not {length} (RFC 9113, 6)",
                kind::name(head.kind()).unwrap_or("frame"),
                head.length()
            ),
        ));
    }
    Ok(())
}

#[cold]
fn size_error(head: FrameHead, why: &str) -> Violation {
    Violation::connection(
        ErrorCode::FRAME_SIZE_ERROR,
        format!("{why}: {} bytes", head.length()),
    )
}

/// The payload without its padding (RFC 9113, 6.1).
#[inline(always)]
fn unpadded(head: FrameHead, payload: &[u8]) -> Result<&[u8], Violation> {
    if !head.has(flags::PADDED) {
        return Ok(payload);
    }
    let Some((&padding, rest)) = payload.split_first() else {
        return Err(size_error(
            head,
            "a padded frame has no padding length (RFC 9113, 6.1)",
        ));
    };
    let length = rest.len().checked_sub(padding as usize).ok_or_else(|| {
        Violation::connection(
            ErrorCode::PROTOCOL_ERROR,
            format!(
                "{padding} bytes of padding in {} bytes (RFC 9113, 6.1)",
                head.length()
            ),
        )
    })?;
    Ok(&rest[..length])
}

/// The ranges of RFC 9113, 6.5.2.
fn check_setting(id: u16, value: u32) -> Result<(), Violation> {
    let (code, range) = match id {
        setting::ENABLE_PUSH if value > 1 => (ErrorCode::PROTOCOL_ERROR, "0 or 1"),
        setting::INITIAL_WINDOW_SIZE if value > MAX_WINDOW => {
            (ErrorCode::FLOW_CONTROL_ERROR, "at most 2147483647")
        }
        setting::MAX_FRAME_SIZE if !(DEFAULT_MAX_FRAME..1 << 24).contains(&value) => {
            (ErrorCode::PROTOCOL_ERROR, "16384 to 16777215")
        }
        _ => return Ok(()),
    };
    let name = setting::name(id).unwrap_or("setting");
    let why = format!("{name} is {value}, not {range} (RFC 9113, 6.5.2)");
    Err(Violation::connection(code, why))
}

/// Appends frames to a buffer.
pub mod write {
    use super::super::{DEFAULT_MAX_FRAME, ErrorCode};
    use super::{flags, kind};

    /// A frame's head; the payload must follow.
    #[inline]
    pub fn head(out: &mut Vec<u8>, length: usize, kind: u8, flags: u8, stream: u32) {
        let [_, a, b, c] = (length as u32).to_be_bytes();
        let [d, e, f, g] = stream.to_be_bytes();
        out.extend_from_slice(&[a, b, c, kind, flags, d, e, f, g]);
    }

    pub fn settings(out: &mut Vec<u8>, settings: &[(u16, u32)]) {
        head(out, settings.len() * 6, kind::SETTINGS, 0, 0);
        for (id, value) in settings {
            out.extend_from_slice(&id.to_be_bytes());
            out.extend_from_slice(&value.to_be_bytes());
        }
    }

    pub fn settings_ack(out: &mut Vec<u8>) {
        head(out, 0, kind::SETTINGS, flags::ACK, 0);
    }

    pub fn ping_ack(out: &mut Vec<u8>, data: [u8; 8]) {
        head(out, 8, kind::PING, flags::ACK, 0);
        out.extend_from_slice(&data);
    }

    /// `stream` 0: the connection's window.
    #[inline]
    pub fn window_update(out: &mut Vec<u8>, stream: u32, increment: u32) {
        head(out, 4, kind::WINDOW_UPDATE, 0, stream);
        out.extend_from_slice(&increment.to_be_bytes());
    }

    pub fn reset_stream(out: &mut Vec<u8>, stream: u32, code: ErrorCode) {
        head(out, 4, kind::RST_STREAM, 0, stream);
        out.extend_from_slice(&code.0.to_be_bytes());
    }

    pub fn goaway(out: &mut Vec<u8>, last_stream: u32, code: ErrorCode, debug: &[u8]) {
        head(out, 8 + debug.len(), kind::GOAWAY, 0, 0);
        out.extend_from_slice(&last_stream.to_be_bytes());
        out.extend_from_slice(&code.0.to_be_bytes());
        out.extend_from_slice(debug);
    }

    /// A header block: HEADERS, and as many CONTINUATION frames as it needs.
    pub fn header_block(out: &mut Vec<u8>, stream: u32, block: &[u8], end_stream: bool) {
        let max = DEFAULT_MAX_FRAME as usize;
        let (first, mut rest) = block.split_at(block.len().min(max));
        let mut bits = if end_stream { flags::END_STREAM } else { 0 };
        if rest.is_empty() {
            bits |= flags::END_HEADERS;
        }
        head(out, first.len(), kind::HEADERS, bits, stream);
        out.extend_from_slice(first);
        while !rest.is_empty() {
            let (next, after) = rest.split_at(rest.len().min(max));
            rest = after;
            let bits = if rest.is_empty() {
                flags::END_HEADERS
            } else {
                0
            };
            head(out, next.len(), kind::CONTINUATION, bits, stream);
            out.extend_from_slice(next);
        }
    }

    /// One DATA frame; `data` is within the peer's frame size and windows.
    #[inline]
    pub fn data(out: &mut Vec<u8>, stream: u32, data: &[u8], end_stream: bool) {
        let bits = if end_stream { flags::END_STREAM } else { 0 };
        head(out, data.len(), kind::DATA, bits, stream);
        out.extend_from_slice(data);
    }
}

#[cfg(test)]
mod tests;
