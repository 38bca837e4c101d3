//! Frames (RFC 9113, 6): parsing with every check that needs the frame alone, and
//! writing.

use super::{ErrorCode, Settings, Violation, flags, kind};

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

    /// The reserved bit is left out.
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

    /// One of [`kind`](mod@kind), or an unknown type.
    #[inline(always)]
    pub fn kind(self) -> u8 {
        (self.front >> 8) as u8
    }

    /// Bits of [`flags`](mod@flags), and undefined ones.
    #[inline(always)]
    pub fn flags(self) -> u8 {
        self.front as u8
    }

    /// Returns the stream's id without the reserved bit, which is ignored.
    #[inline(always)]
    pub fn stream(self) -> u32 {
        self.stream
    }

    /// Returns whether it has this type, and these flags and no other.
    #[inline(always)]
    pub fn is(self, kind: u8, flags: u8) -> bool {
        self.front as u16 == u16::from_be_bytes([kind, flags])
    }

    /// Whether a bit of [`flags`](mod@flags) is set.
    #[inline(always)]
    pub fn has(self, flag: u8) -> bool {
        self.flags() & flag != 0
    }

    /// What DATA or HEADERS with this head says. `bytes`: its payload without padding.
    #[inline(always)]
    pub fn piece(self, bytes: &[u8]) -> Piece<'_> {
        Piece {
            stream: self.stream,
            bytes,
            length: self.length(),
            end_stream: self.has(flags::END_STREAM),
        }
    }
}

/// DATA, or a header block, on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// 0 in no frame that is right.
    pub stream: u32,
    /// The payload without padding.
    pub bytes: &'a [u8],
    /// Bytes of the payload with padding, as flow control counts them.
    pub length: u32,
    /// Nothing comes after it.
    pub end_stream: bool,
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

/// A frame that is right in itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// Flow control counts the payload with its padding: [`FrameHead::length`].
    Data {
        /// The payload without padding.
        data: &'a [u8],
        /// Nothing comes after it.
        end_stream: bool,
    },
    /// The beginning of a header block, or all of it.
    Headers {
        /// The fragment without padding and priority.
        fragment: &'a [u8],
        /// Nothing comes after it.
        end_stream: bool,
        /// The last of its block.
        end_headers: bool,
    },
    /// Deprecated (RFC 9113, 5.3.2).
    Priority,
    /// The stream is over, both ways.
    ResetStream {
        /// Why.
        code: ErrorCode,
    },
    /// What the peer takes from now on.
    Settings(Settings<'a>),
    /// The peer keeps to our SETTINGS.
    SettingsAck,
    /// Never allowed: we disable push.
    PushPromise {
        /// The stream that is announced.
        promised: u32,
        /// The fragment without padding.
        fragment: &'a [u8],
        /// The last of its block.
        end_headers: bool,
    },
    /// A PING, which is to be answered with its data.
    Ping {
        /// The sender's own.
        data: [u8; 8],
    },
    /// The answer to a PING of ours.
    PingAck {
        /// The sender's own.
        data: [u8; 8],
    },
    /// The peer takes no more streams.
    GoAway {
        /// The highest that was or may be acted on.
        last_stream: u32,
        /// Why.
        code: ErrorCode,
        /// Diagnostic data, meant for people.
        debug: &'a [u8],
    },
    /// More may be sent.
    WindowUpdate {
        /// 1 to 2³¹−1. Bytes.
        increment: u32,
    },
    /// More of a header block.
    Continuation {
        /// The whole payload.
        fragment: &'a [u8],
        /// The last of its block.
        end_headers: bool,
    },
    /// A frame of a type that RFC 9113 does not name: ignored (5.5).
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
                "HEADERS with PRIORITY is too short for it (RFC 9113, 6.2)",
            )
        })
    }

    #[inline(never)]
    fn parse_rare(head: FrameHead, payload: &'a [u8]) -> Result<Frame<'a>, Violation> {
        match head.kind() {
            kind::PRIORITY => {
                on_stream(head)?;
                match payload.len() {
                    5 => Ok(Frame::Priority),
                    n => Err(Violation::stream(
                        head.stream(),
                        ErrorCode::FRAME_SIZE_ERROR,
                        format!("PRIORITY of {n} bytes, not 5 (RFC 9113, 6.3)"),
                    )),
                }
            }
            kind::RST_STREAM => {
                on_stream(head)?;
                let code = ErrorCode(u32::from_be_bytes(sized(head, payload)?));
                Ok(Frame::ResetStream { code })
            }
            kind::SETTINGS => Frame::settings(head, payload),
            kind::PUSH_PROMISE => {
                on_stream(head)?;
                let payload = unpadded(head, payload)?;
                let (promised, fragment) = payload.split_first_chunk::<4>().ok_or_else(|| {
                    size_error(head, "PUSH_PROMISE has no stream id (RFC 9113, 6.6)")
                })?;
                Ok(Frame::PushPromise {
                    promised: stream_id(*promised),
                    fragment,
                    end_headers: head.has(flags::END_HEADERS),
                })
            }
            kind::PING => {
                on_connection(head)?;
                let data = sized(head, payload)?;
                Ok(if head.has(flags::ACK) {
                    Frame::PingAck { data }
                } else {
                    Frame::Ping { data }
                })
            }
            kind::GOAWAY => {
                on_connection(head)?;
                let [a, b, c, d, e, f, g, h, debug @ ..] = payload else {
                    return Err(size_error(head, "GOAWAY under 8 bytes (RFC 9113, 6.8)"));
                };
                Ok(Frame::GoAway {
                    last_stream: stream_id([*a, *b, *c, *d]),
                    code: ErrorCode(u32::from_be_bytes([*e, *f, *g, *h])),
                    debug,
                })
            }
            kind::WINDOW_UPDATE => match stream_id(sized(head, payload)?) {
                0 => Err(Violation::stream(
                    head.stream(),
                    ErrorCode::PROTOCOL_ERROR,
                    "WINDOW_UPDATE of 0 (RFC 9113, 6.9)",
                )),
                increment => Ok(Frame::WindowUpdate { increment }),
            },
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

    fn settings(head: FrameHead, payload: &'a [u8]) -> Result<Frame<'a>, Violation> {
        on_connection(head)?;
        if head.has(flags::ACK) {
            let [] = sized(head, payload)?;
            return Ok(Frame::SettingsAck);
        }
        if !payload.len().is_multiple_of(6) {
            let why = "SETTINGS whose length is not a multiple of 6 (RFC 9113, 6.5)";
            return Err(size_error(head, why));
        }
        Ok(Frame::Settings(Settings::checked(payload)?))
    }
}

/// 31 bits: the highest is reserved, and ignored (RFC 9113, 4.1).
fn stream_id(bytes: [u8; 4]) -> u32 {
    u32::from_be_bytes(bytes) & 0x7fff_ffff
}

#[inline(always)]
fn on_stream(head: FrameHead) -> Result<(), Violation> {
    match head.stream() {
        0 => Err(misplaced(head, "")),
        _ => Ok(()),
    }
}

fn on_connection(head: FrameHead) -> Result<(), Violation> {
    match head.stream() {
        0 => Ok(()),
        _ => Err(misplaced(head, ", not 0")),
    }
}

#[cold]
fn misplaced(head: FrameHead, but: &str) -> Violation {
    let (name, stream) = (kind::name(head.kind()).unwrap_or("frame"), head.stream());
    let why = format!("{name} on stream {stream}{but} (RFC 9113, 6)");
    Violation::connection(ErrorCode::PROTOCOL_ERROR, why)
}

/// The payload of a frame that has always the same length.
fn sized<const N: usize>(head: FrameHead, payload: &[u8]) -> Result<[u8; N], Violation> {
    payload.try_into().map_err(|_| {
        let (name, length) = (kind::name(head.kind()).unwrap_or("frame"), head.length());
        Violation::connection(
            ErrorCode::FRAME_SIZE_ERROR,
            format!("{name} of {length} bytes, not {N} (RFC 9113, 6)"),
        )
    })
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

/// Appends frames to a buffer.
pub mod write {
    use super::super::{DEFAULT_MAX_FRAME, ErrorCode};
    use super::{flags, kind};

    /// Whether a frame is the last that its sender sends on a stream (END_STREAM).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct End(pub bool);

    impl End {
        #[inline]
        fn bit(self) -> u8 {
            u8::from(self.0) * flags::END_STREAM
        }
    }

    /// A frame's head; the payload must follow.
    #[inline]
    pub fn head(out: &mut Vec<u8>, length: usize, kind: u8, flags: u8, stream: u32) {
        let [_, a, b, c] = (length as u32).to_be_bytes();
        let [d, e, f, g] = stream.to_be_bytes();
        out.extend_from_slice(&[a, b, c, kind, flags, d, e, f, g]);
    }

    /// Identifiers of [`setting`](super::super::setting), and values (RFC 9113, 6.5.1).
    pub fn settings(out: &mut Vec<u8>, settings: &[(u16, u32)]) {
        head(out, settings.len() * 6, kind::SETTINGS, 0, 0);
        for (id, value) in settings {
            out.extend_from_slice(&id.to_be_bytes());
            out.extend_from_slice(&value.to_be_bytes());
        }
    }

    /// RFC 9113, 6.5.3.
    pub fn settings_ack(out: &mut Vec<u8>) {
        head(out, 0, kind::SETTINGS, flags::ACK, 0);
    }

    /// Writes a PING's answer, with its data (RFC 9113, 6.7).
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

    /// RFC 9113, 6.4.
    pub fn reset_stream(out: &mut Vec<u8>, stream: u32, code: ErrorCode) {
        head(out, 4, kind::RST_STREAM, 0, stream);
        out.extend_from_slice(&code.0.to_be_bytes());
    }

    /// `debug`: for people, at most what a frame holds (RFC 9113, 6.8).
    pub fn goaway(out: &mut Vec<u8>, last_stream: u32, code: ErrorCode, debug: &[u8]) {
        head(out, 8 + debug.len(), kind::GOAWAY, 0, 0);
        out.extend_from_slice(&last_stream.to_be_bytes());
        out.extend_from_slice(&code.0.to_be_bytes());
        out.extend_from_slice(debug);
    }

    /// A header block: HEADERS, and as many CONTINUATION frames as it needs.
    pub fn header_block(out: &mut Vec<u8>, stream: u32, block: &[u8], end: End) {
        let max = DEFAULT_MAX_FRAME as usize;
        let (first, mut rest) = block.split_at(block.len().min(max));
        let mut bits = end.bit();
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
    pub fn data(out: &mut Vec<u8>, stream: u32, data: &[u8], end: End) {
        head(out, data.len(), kind::DATA, end.bit(), stream);
        out.extend_from_slice(data);
    }
}

#[cfg(test)]
mod tests;
