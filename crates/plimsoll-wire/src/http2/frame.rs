//! Frames (RFC 9113 §6): parsing, with every check that needs only the frame itself, and writing.

use super::{ErrorCode, SettingsPayload, Violation, flags, kind};

/// The nine-byte header of every frame (RFC 9113 §4.1).
///
/// The header consists of two words, so that the compiler keeps it in registers: a struct of four fields would pass
/// through memory, which takes longer than all other handling of a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// Length, type and flags: the first five bytes.
    length_type_flags: u64,
    stream: u32,
}

impl FrameHeader {
    /// Length of a frame header in bytes.
    pub const LEN: usize = 9;

    /// Parses a header, ignoring the reserved bit.
    #[inline(always)]
    pub fn parse(bytes: &[u8; 9]) -> FrameHeader {
        let [a, b, c, kind, flags, d, e, f, g] = *bytes;
        FrameHeader {
            length_type_flags: u64::from_be_bytes([0, 0, 0, a, b, c, kind, flags]),
            stream: u32::from_be_bytes([d, e, f, g]) & 0x7fff_ffff,
        }
    }

    /// Returns the length of the payload in bytes.
    #[inline(always)]
    pub fn length(self) -> u32 {
        (self.length_type_flags >> 16) as u32
    }

    /// Returns the type: a constant in [`kind`](mod@kind) or an unknown one.
    #[inline(always)]
    pub fn kind(self) -> u8 {
        (self.length_type_flags >> 8) as u8
    }

    /// Returns the flags: the bits in [`flags`](mod@flags) and undefined ones.
    #[inline(always)]
    pub fn flags(self) -> u8 {
        self.length_type_flags as u8
    }

    /// Returns the stream id without the reserved bit, which is ignored.
    #[inline(always)]
    pub fn stream(self) -> u32 {
        self.stream
    }

    /// Returns whether the frame has exactly this type and these flags.
    #[inline(always)]
    pub fn has_type_and_flags(self, kind: u8, flags: u8) -> bool {
        self.length_type_flags as u16 == u16::from_be_bytes([kind, flags])
    }

    /// Returns whether a bit of [`flags`](mod@flags) is set.
    #[inline(always)]
    pub fn has_flag(self, flag: u8) -> bool {
        self.flags() & flag != 0
    }

    /// Returns the content of DATA or HEADERS with this header; `bytes` is the payload without padding.
    #[inline(always)]
    pub fn stream_payload(self, bytes: &[u8]) -> StreamPayload<'_> {
        StreamPayload {
            stream: self.stream,
            bytes,
            length: self.length(),
            end_stream: self.has_flag(flags::END_STREAM),
        }
    }
}

/// The content of DATA or a header block on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamPayload<'a> {
    /// The stream id; never 0 in a valid frame.
    pub stream: u32,
    /// The payload without padding.
    pub bytes: &'a [u8],
    /// Length of the payload in bytes with padding, as flow control counts it.
    pub length: u32,
    /// Whether this is the last frame on its stream.
    pub end_stream: bool,
}

impl std::fmt::Debug for FrameHeader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FrameHeader")
            .field("length", &self.length())
            .field("kind", &self.kind())
            .field("flags", &self.flags())
            .field("stream", &self.stream())
            .finish()
    }
}

/// A valid frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Http2Frame<'a> {
    /// DATA. Flow control counts the payload with its padding: [`FrameHeader::length`].
    Data {
        /// The payload without padding.
        data: &'a [u8],
        /// Whether the frame is the last one on its stream.
        end_stream: bool,
    },
    /// HEADERS: the beginning of a header block, or the whole block.
    Headers {
        /// The fragment without padding and priority.
        fragment: &'a [u8],
        /// Whether the message ends with this header block.
        end_stream: bool,
        /// Whether the block is complete.
        end_headers: bool,
    },
    /// PRIORITY, which is deprecated (RFC 9113 §5.3.2).
    Priority,
    /// RST_STREAM: both directions of the stream are closed.
    ResetStream {
        /// The peer's error code.
        code: ErrorCode,
    },
    /// SETTINGS: the peer's new configuration.
    Settings(SettingsPayload<'a>),
    /// An acknowledgement of our SETTINGS.
    SettingsAck,
    /// PUSH_PROMISE, which is never allowed, because we disable push.
    PushPromise {
        /// The announced stream.
        promised: u32,
        /// The fragment without padding.
        fragment: &'a [u8],
        /// Whether the block is complete.
        end_headers: bool,
    },
    /// PING, which must be answered with the same data.
    Ping {
        /// Opaque data from the sender.
        data: [u8; 8],
    },
    /// The answer to our PING.
    PingAck {
        /// The data of our PING.
        data: [u8; 8],
    },
    /// GOAWAY: the peer accepts no more streams.
    GoAway {
        /// The highest stream that was processed or may be processed.
        last_stream: u32,
        /// The peer's error code.
        code: ErrorCode,
        /// Diagnostic data for human readers.
        debug: &'a [u8],
    },
    /// WINDOW_UPDATE: more data may be sent.
    WindowUpdate {
        /// The increment in bytes, 1 to 2³¹−1.
        increment: u32,
    },
    /// CONTINUATION of a header block.
    Continuation {
        /// The whole payload.
        fragment: &'a [u8],
        /// Whether the block is complete.
        end_headers: bool,
    },
    /// A frame of an unknown type, which is ignored (RFC 9113 §5.5).
    Unknown,
}

impl<'a> Http2Frame<'a> {
    /// Parses a frame.
    ///
    /// # Errors
    /// Returns an error if the frame violates a rule of its type: wrong length, wrong kind of stream, padding longer
    /// than the payload, or a value out of range.
    #[inline]
    pub fn parse(head: FrameHeader, payload: &'a [u8]) -> Result<Http2Frame<'a>, Violation> {
        debug_assert_eq!(head.length() as usize, payload.len());
        match head.kind() {
            kind::DATA => Ok(Http2Frame::Data {
                data: Http2Frame::parse_data(head, payload)?,
                end_stream: head.has_flag(flags::END_STREAM),
            }),
            kind::HEADERS => Ok(Http2Frame::Headers {
                fragment: Http2Frame::parse_headers_fragment(head, payload)?,
                end_stream: head.has_flag(flags::END_STREAM),
                end_headers: head.has_flag(flags::END_HEADERS),
            }),
            _ => Http2Frame::parse_other_type(head, payload),
        }
    }

    /// Does the same as [`Http2Frame::parse`] for a DATA frame; returns the payload without padding.
    ///
    /// # Errors
    /// Returns the same errors as [`Http2Frame::parse`].
    #[inline(always)]
    pub fn parse_data(head: FrameHeader, payload: &'a [u8]) -> Result<&'a [u8], Violation> {
        require_stream_id(head)?;
        strip_padding(head, payload)
    }

    /// Does the same as [`Http2Frame::parse`] for a HEADERS frame; returns its fragment of the header block.
    ///
    /// # Errors
    /// Returns the same errors as [`Http2Frame::parse`].
    #[inline(always)]
    pub fn parse_headers_fragment(
        head: FrameHeader,
        payload: &'a [u8],
    ) -> Result<&'a [u8], Violation> {
        require_stream_id(head)?;
        let fragment = strip_padding(head, payload)?;
        if !head.has_flag(flags::PRIORITY) {
            return Ok(fragment);
        }
        fragment.get(5..).ok_or_else(|| {
            frame_size_violation(
                head,
                "HEADERS with PRIORITY is too short for it (RFC 9113, 6.2)",
            )
        })
    }

    #[inline(never)]
    fn parse_other_type(head: FrameHeader, payload: &'a [u8]) -> Result<Http2Frame<'a>, Violation> {
        match head.kind() {
            kind::PRIORITY => {
                require_stream_id(head)?;
                match payload.len() {
                    5 => Ok(Http2Frame::Priority),
                    n => Err(Violation::stream_error(
                        head.stream(),
                        ErrorCode::FRAME_SIZE_ERROR,
                        format!("PRIORITY of {n} bytes, not 5 (RFC 9113, 6.3)"),
                    )),
                }
            }
            kind::RST_STREAM => {
                require_stream_id(head)?;
                let code = ErrorCode(u32::from_be_bytes(parse_fixed_length(head, payload)?));
                Ok(Http2Frame::ResetStream { code })
            }
            kind::SETTINGS => Http2Frame::parse_settings(head, payload),
            kind::PUSH_PROMISE => {
                require_stream_id(head)?;
                let payload = strip_padding(head, payload)?;
                let (promised, fragment) = payload.split_first_chunk::<4>().ok_or_else(|| {
                    frame_size_violation(head, "PUSH_PROMISE has no stream id (RFC 9113, 6.6)")
                })?;
                Ok(Http2Frame::PushPromise {
                    promised: parse_stream_id(*promised),
                    fragment,
                    end_headers: head.has_flag(flags::END_HEADERS),
                })
            }
            kind::PING => {
                require_stream_zero(head)?;
                let data = parse_fixed_length(head, payload)?;
                Ok(if head.has_flag(flags::ACK) {
                    Http2Frame::PingAck { data }
                } else {
                    Http2Frame::Ping { data }
                })
            }
            kind::GOAWAY => {
                require_stream_zero(head)?;
                let [a, b, c, d, e, f, g, h, debug @ ..] = payload else {
                    return Err(frame_size_violation(
                        head,
                        "GOAWAY under 8 bytes (RFC 9113, 6.8)",
                    ));
                };
                Ok(Http2Frame::GoAway {
                    last_stream: parse_stream_id([*a, *b, *c, *d]),
                    code: ErrorCode(u32::from_be_bytes([*e, *f, *g, *h])),
                    debug,
                })
            }
            kind::WINDOW_UPDATE => match parse_stream_id(parse_fixed_length(head, payload)?) {
                0 => Err(Violation::stream_error(
                    head.stream(),
                    ErrorCode::PROTOCOL_ERROR,
                    "WINDOW_UPDATE of 0 (RFC 9113, 6.9)",
                )),
                increment => Ok(Http2Frame::WindowUpdate { increment }),
            },
            kind::CONTINUATION => {
                require_stream_id(head)?;
                Ok(Http2Frame::Continuation {
                    fragment: payload,
                    end_headers: head.has_flag(flags::END_HEADERS),
                })
            }
            _ => Ok(Http2Frame::Unknown),
        }
    }

    fn parse_settings(head: FrameHeader, payload: &'a [u8]) -> Result<Http2Frame<'a>, Violation> {
        require_stream_zero(head)?;
        if head.has_flag(flags::ACK) {
            let [] = parse_fixed_length(head, payload)?;
            return Ok(Http2Frame::SettingsAck);
        }
        if !payload.len().is_multiple_of(6) {
            let why = "SETTINGS whose length is not a multiple of 6 (RFC 9113, 6.5)";
            return Err(frame_size_violation(head, why));
        }
        Ok(Http2Frame::Settings(SettingsPayload::parse(payload)?))
    }
}

/// Reads a stream id of 31 bits; the reserved bit is ignored (RFC 9113 §4.1).
fn parse_stream_id(bytes: [u8; 4]) -> u32 {
    u32::from_be_bytes(bytes) & 0x7fff_ffff
}

#[inline(always)]
fn require_stream_id(head: FrameHeader) -> Result<(), Violation> {
    match head.stream() {
        0 => Err(misplaced_frame_violation(head, "")),
        _ => Ok(()),
    }
}

fn require_stream_zero(head: FrameHeader) -> Result<(), Violation> {
    match head.stream() {
        0 => Ok(()),
        _ => Err(misplaced_frame_violation(head, ", not 0")),
    }
}

#[cold]
fn misplaced_frame_violation(head: FrameHeader, but: &str) -> Violation {
    let (name, stream) = (kind::name(head.kind()).unwrap_or("frame"), head.stream());
    let why = format!("{name} on stream {stream}{but} (RFC 9113, 6)");
    Violation::connection_error(ErrorCode::PROTOCOL_ERROR, why)
}

/// Returns the payload of a frame type with a fixed payload length.
fn parse_fixed_length<const N: usize>(
    head: FrameHeader,
    payload: &[u8],
) -> Result<[u8; N], Violation> {
    payload.try_into().map_err(|_| {
        let (name, length) = (kind::name(head.kind()).unwrap_or("frame"), head.length());
        Violation::connection_error(
            ErrorCode::FRAME_SIZE_ERROR,
            format!("{name} of {length} bytes, not {N} (RFC 9113, 6)"),
        )
    })
}

#[cold]
fn frame_size_violation(head: FrameHeader, why: &str) -> Violation {
    Violation::connection_error(
        ErrorCode::FRAME_SIZE_ERROR,
        format!("{why}: {} bytes", head.length()),
    )
}

/// Returns the payload without its padding (RFC 9113 §6.1).
#[inline(always)]
fn strip_padding(head: FrameHeader, payload: &[u8]) -> Result<&[u8], Violation> {
    if !head.has_flag(flags::PADDED) {
        return Ok(payload);
    }
    let Some((&padding, rest)) = payload.split_first() else {
        return Err(frame_size_violation(
            head,
            "a padded frame has no padding length (RFC 9113, 6.1)",
        ));
    };
    let length = rest.len().checked_sub(padding as usize).ok_or_else(|| {
        Violation::connection_error(
            ErrorCode::PROTOCOL_ERROR,
            format!(
                "{padding} bytes of padding in {} bytes (RFC 9113, 6.1)",
                head.length()
            ),
        )
    })?;
    Ok(&rest[..length])
}

/// Functions that append frames to a buffer.
pub mod write {
    use super::super::{DEFAULT_MAX_FRAME_BYTES, ErrorCode};
    use super::{flags, kind};

    /// Whether a frame is its sender's last on a stream (END_STREAM).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct EndStream(pub bool);

    impl EndStream {
        #[inline]
        fn flag_bit(self) -> u8 {
            u8::from(self.0) * flags::END_STREAM
        }
    }

    /// Appends a frame header; the payload must follow.
    #[inline]
    pub fn frame_header(out: &mut Vec<u8>, length: usize, kind: u8, flags: u8, stream: u32) {
        let [_, a, b, c] = (length as u32).to_be_bytes();
        let [d, e, f, g] = stream.to_be_bytes();
        out.extend_from_slice(&[a, b, c, kind, flags, d, e, f, g]);
    }

    /// Appends SETTINGS with identifiers of [`setting`](super::super::setting) and their values (RFC 9113 §6.5.1).
    pub fn settings(out: &mut Vec<u8>, settings: &[(u16, u32)]) {
        frame_header(out, settings.len() * 6, kind::SETTINGS, 0, 0);
        for (id, value) in settings {
            out.extend_from_slice(&id.to_be_bytes());
            out.extend_from_slice(&value.to_be_bytes());
        }
    }

    /// Appends an acknowledgement of SETTINGS (RFC 9113 §6.5.3).
    pub fn settings_ack(out: &mut Vec<u8>) {
        frame_header(out, 0, kind::SETTINGS, flags::ACK, 0);
    }

    /// Appends the answer to a PING with its data (RFC 9113 §6.7).
    pub fn ping_ack(out: &mut Vec<u8>, data: [u8; 8]) {
        frame_header(out, 8, kind::PING, flags::ACK, 0);
        out.extend_from_slice(&data);
    }

    /// Appends WINDOW_UPDATE; `stream` 0 is the connection's window.
    #[inline]
    pub fn window_update(out: &mut Vec<u8>, stream: u32, increment: u32) {
        frame_header(out, 4, kind::WINDOW_UPDATE, 0, stream);
        out.extend_from_slice(&increment.to_be_bytes());
    }

    /// Appends RST_STREAM (RFC 9113 §6.4).
    pub fn reset_stream(out: &mut Vec<u8>, stream: u32, code: ErrorCode) {
        frame_header(out, 4, kind::RST_STREAM, 0, stream);
        out.extend_from_slice(&code.0.to_be_bytes());
    }

    /// Appends GOAWAY; `debug` is human-readable text that must fit into a frame (RFC 9113 §6.8).
    pub fn goaway(out: &mut Vec<u8>, last_stream: u32, code: ErrorCode, debug: &[u8]) {
        frame_header(out, 8 + debug.len(), kind::GOAWAY, 0, 0);
        out.extend_from_slice(&last_stream.to_be_bytes());
        out.extend_from_slice(&code.0.to_be_bytes());
        out.extend_from_slice(debug);
    }

    /// Appends a header block as HEADERS and, if necessary, CONTINUATION frames.
    pub fn header_block(out: &mut Vec<u8>, stream: u32, block: &[u8], end: EndStream) {
        let max = DEFAULT_MAX_FRAME_BYTES as usize;
        let (first, mut rest) = block.split_at(block.len().min(max));
        let mut bits = end.flag_bit();
        if rest.is_empty() {
            bits |= flags::END_HEADERS;
        }
        frame_header(out, first.len(), kind::HEADERS, bits, stream);
        out.extend_from_slice(first);
        while !rest.is_empty() {
            let (next, after) = rest.split_at(rest.len().min(max));
            rest = after;
            let bits = if rest.is_empty() {
                flags::END_HEADERS
            } else {
                0
            };
            frame_header(out, next.len(), kind::CONTINUATION, bits, stream);
            out.extend_from_slice(next);
        }
    }

    /// Appends one DATA frame; `data` must fit the peer's frame size and windows.
    #[inline]
    pub fn data(out: &mut Vec<u8>, stream: u32, data: &[u8], end: EndStream) {
        frame_header(out, data.len(), kind::DATA, end.flag_bit(), stream);
        out.extend_from_slice(data);
    }
}

#[cfg(test)]
mod tests;
