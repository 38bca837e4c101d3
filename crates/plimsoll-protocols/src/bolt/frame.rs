//! A Bolt frame: a fixed header, followed by class, header map and content.
//!
//! The driver, the reference server and the relay use it. Reading copies nothing and checks each length
//! against the caller's limit before using it; a frame that was read is written back byte for byte.

/// The default maximum size of a frame's content: 16 MiB.
pub const DEFAULT_MAX_CONTENT_BYTES: usize = 16 << 20;

/// Codec bytes. Hessian 2 is SOFABolt's own codec, JSON is SOFARPC's.
pub mod codec {
    /// Hessian 2 in SOFARPC's dialect.
    pub const HESSIAN2: u8 = 1;
    /// JSON text.
    pub const JSON: u8 = 12;
}

/// The layout of a frame: the protocol version, and in version 2 whether the frame ends with a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FrameLayout {
    /// Protocol version 1.
    V1,
    /// Protocol version 2. Only in revision 2 does bit 0 of `switches` add a CRC-32.
    V2 {
        /// The revision: 1 or 2.
        revision: u8,
        /// The switches. Bit 0: a CRC-32 follows the content.
        switches: u8,
    },
}

impl FrameLayout {
    /// Version 2 with a checksum.
    pub const V2_CRC: FrameLayout = FrameLayout::V2 {
        revision: 2,
        switches: 1,
    };
    /// Version 2 without a checksum.
    pub const V2: FrameLayout = FrameLayout::V2 {
        revision: 1,
        switches: 0,
    };

    /// Returns true if a CRC-32 follows the content.
    #[inline]
    pub fn has_crc(self) -> bool {
        matches!(self, FrameLayout::V2 { revision: 2, switches } if switches & 1 == 1)
    }

    /// Returns the same layout without a checksum. Heartbeats and failure responses use it, because no peer
    /// adds a checksum to them.
    #[must_use]
    pub fn without_checksum(self) -> FrameLayout {
        match self {
            FrameLayout::V1 => FrameLayout::V1,
            FrameLayout::V2 { revision, .. } => FrameLayout::V2 {
                revision,
                switches: 0,
            },
        }
    }

    /// Returns the offset of the id in a frame.
    #[inline]
    pub fn id_offset(self) -> usize {
        match self {
            FrameLayout::V1 => 5,
            FrameLayout::V2 { .. } => 6,
        }
    }

    /// Returns the offset of a request's timeout in a frame: after id, codec and switches.
    pub(super) fn timeout_offset(self) -> usize {
        match self {
            FrameLayout::V1 => 10,
            FrameLayout::V2 { .. } => 12,
        }
    }
}

/// The type of a frame, with the field that only this type has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoltFrameKind {
    /// A request that expects a response.
    Request {
        /// The timeout in milliseconds; negative: none.
        timeout: i32,
    },
    /// A request without a response.
    Oneway {
        /// The timeout in milliseconds; negative: none.
        timeout: i32,
    },
    /// A response.
    Response {
        /// The status code: see [`super::Status`].
        status: u16,
    },
}

/// The purpose of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoltCommand {
    /// Keeps the connection alive; the receiver acknowledges it.
    Heartbeat = 0,
    /// A call.
    RpcRequest = 1,
    /// The response to a call.
    RpcResponse = 2,
    /// MOSN's extension: the sender accepts no more requests on this connection.
    GoAway = 100,
}

impl BoltCommand {
    fn from_number(number: u16) -> Option<BoltCommand> {
        Some(match number {
            0 => BoltCommand::Heartbeat,
            1 => BoltCommand::RpcRequest,
            2 => BoltCommand::RpcResponse,
            100 => BoltCommand::GoAway,
            _ => return None,
        })
    }
}

/// A complete frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoltFrame<'a> {
    /// The layout, which determines the fields of the fixed header.
    pub layout: FrameLayout,
    /// The frame's type.
    pub kind: BoltFrameKind,
    /// The command code.
    pub command: BoltCommand,
    /// The command's version: 1 in all frames seen so far. It is preserved.
    pub command_version: u8,
    /// The request's id, which its response repeats.
    pub id: u32,
    /// The encoding of the content: see [`codec`].
    pub codec: u8,
    /// The Java class of the content.
    pub class: &'a [u8],
    /// The header map: see [`super::header`].
    pub header: &'a [u8],
    /// The encoded content.
    pub content: &'a [u8],
}

/// A frame's fixed header, without class, header map and content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoltFrameHead {
    /// The layout, which determines the fields of the fixed header.
    pub layout: FrameLayout,
    /// The frame's type.
    pub kind: BoltFrameKind,
    /// The command code.
    pub command: BoltCommand,
    /// The request's id, which its response repeats.
    pub id: u32,
    /// The encoding of the content: see [`codec`].
    pub codec: u8,
    /// The length of the whole frame, including its checksum, in bytes.
    pub length: usize,
    command_version: u8,
    /// The offset of the class, in bytes.
    start: usize,
    class: usize,
    header: usize,
    content: usize,
}

/// Why bytes are not a frame. The next frame can't be located after this error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BoltFrameError {
    /// The first byte names another protocol.
    #[error("protocol byte {0:#04x}, expected 0x01 or 0x02")]
    Protocol(u8),
    /// An unknown revision of protocol version 2.
    #[error("revision {0} of protocol version 2, expected 1 or 2")]
    Revision(u8),
    /// The type is neither request, one-way request nor response.
    #[error("frame type {0}, expected 0 (response), 1 (request) or 2 (oneway)")]
    Type(u8),
    /// An unknown command code.
    #[error("command {0}, expected 0 (heartbeat), 1 (request), 2 (response) or 100 (goaway)")]
    Command(u16),
    /// Unknown switches of version 2.
    #[error("switches {0:#04x}, expected a value below 0x80")]
    Switches(u8),
    /// The content's length is negative.
    #[error("content length {0} is negative")]
    NegativeContent(i32),
    /// The content is over the reader's limit.
    #[error("a content of {length} bytes, over the limit of {limit}")]
    ContentTooLong {
        /// The content's length, in bytes.
        length: usize,
        /// The limit, in bytes.
        limit: usize,
    },
    /// The checksum does not match: the frame was changed in transit.
    #[error("checksum {seen:#010x}, expected {expected:#010x} (CRC-32)")]
    Crc {
        /// The checksum in the frame.
        seen: u32,
        /// The checksum computed from the frame's bytes.
        expected: u32,
    },
}

#[inline]
fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[inline]
fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

impl<'a> BoltFrame<'a> {
    /// Returns the length of the frame that `bytes` begin with, as soon as its fixed header is complete.
    /// `limit` applies to the content, in bytes.
    ///
    /// # Errors
    /// Returns an error as soon as the bytes can't become a frame.
    #[inline]
    pub fn length(bytes: &[u8], limit: usize) -> Result<Option<usize>, BoltFrameError> {
        Ok(BoltFrameHead::parse(bytes, limit)?.map(|head| head.length))
    }

    /// Returns the fixed header of a frame whose content may have any length; `None`: it is incomplete, or
    /// the bytes are not a frame.
    pub fn parse_head(bytes: &[u8]) -> Option<BoltFrameHead> {
        BoltFrameHead::parse(bytes, usize::MAX).ok()?
    }

    /// Returns the frame at the start of `bytes` and its length; `None`: it is incomplete. `limit` applies to
    /// the content, in bytes.
    ///
    /// # Errors
    /// Returns an error as soon as the bytes can't become a frame.
    #[inline]
    pub fn parse(
        bytes: &'a [u8],
        limit: usize,
    ) -> Result<Option<(BoltFrame<'a>, usize)>, BoltFrameError> {
        let Some(head) = BoltFrameHead::parse(bytes, limit)? else {
            return Ok(None);
        };
        let Some(bytes) = bytes.get(..head.length) else {
            return Ok(None);
        };
        let body_end = head.start + head.class + head.header + head.content;
        if head.layout.has_crc() {
            let (seen, expected) = (be32(bytes, body_end), crc32fast::hash(&bytes[..body_end]));
            if seen != expected {
                return Err(BoltFrameError::Crc { seen, expected });
            }
        }
        let (class, rest) = bytes[head.start..body_end].split_at(head.class);
        let (header, content) = rest.split_at(head.header);
        let frame = BoltFrame {
            layout: head.layout,
            kind: head.kind,
            command: head.command,
            command_version: head.command_version,
            id: head.id,
            codec: head.codec,
            class,
            header,
            content,
        };
        Ok(Some((frame, head.length)))
    }

    /// Appends the frame. A class or header over 65,535 bytes, or content over 2,147,483,647 bytes, can't be written:
    /// check with [`BoltFrame::is_writable`] first.
    pub fn write(&self, out: &mut Vec<u8>) {
        debug_assert!(self.is_writable());
        let start = out.len();
        let kind = match self.kind {
            BoltFrameKind::Response { .. } => 0,
            BoltFrameKind::Request { .. } => 1,
            BoltFrameKind::Oneway { .. } => 2,
        };
        match self.layout {
            FrameLayout::V1 => out.push(1),
            FrameLayout::V2 { revision, .. } => out.extend_from_slice(&[2, revision]),
        }
        out.push(kind);
        out.extend_from_slice(&(self.command as u16).to_be_bytes());
        out.push(self.command_version);
        out.extend_from_slice(&self.id.to_be_bytes());
        out.push(self.codec);
        if let FrameLayout::V2 { switches, .. } = self.layout {
            out.push(switches);
        }
        match self.kind {
            BoltFrameKind::Response { status } => out.extend_from_slice(&status.to_be_bytes()),
            BoltFrameKind::Request { timeout } | BoltFrameKind::Oneway { timeout } => {
                out.extend_from_slice(&timeout.to_be_bytes());
            }
        }
        out.extend_from_slice(&(self.class.len() as u16).to_be_bytes());
        out.extend_from_slice(&(self.header.len() as u16).to_be_bytes());
        out.extend_from_slice(&(self.content.len() as u32).to_be_bytes());
        out.extend_from_slice(self.class);
        out.extend_from_slice(self.header);
        out.extend_from_slice(self.content);
        if self.layout.has_crc() {
            let crc = crc32fast::hash(&out[start..]);
            out.extend_from_slice(&crc.to_be_bytes());
        }
    }

    /// Returns true if all lengths fit their fields. Java reads the lengths of class and header as signed
    /// numbers, and so accepts at most 32,767 bytes.
    pub fn is_writable(&self) -> bool {
        self.class.len() <= u16::MAX as usize
            && self.header.len() <= u16::MAX as usize
            && self.content.len() <= i32::MAX as usize
    }

    /// Returns a heartbeat in the given layout.
    pub fn heartbeat(form: FrameLayout, id: u32) -> BoltFrame<'static> {
        BoltFrame {
            layout: form.without_checksum(),
            kind: BoltFrameKind::Request { timeout: -1 },
            command: BoltCommand::Heartbeat,
            command_version: 1,
            id,
            codec: codec::HESSIAN2,
            class: &[],
            header: &[],
            content: &[],
        }
    }

    /// Returns the acknowledgement of a heartbeat.
    pub fn heartbeat_ack(form: FrameLayout, id: u32) -> BoltFrame<'static> {
        BoltFrame {
            kind: BoltFrameKind::Response { status: 0 },
            ..BoltFrame::heartbeat(form, id)
        }
    }

    /// Returns a response that has a status only.
    pub fn status_response(
        form: FrameLayout,
        id: u32,
        codec: u8,
        status: super::Status,
    ) -> BoltFrame<'static> {
        BoltFrame {
            kind: BoltFrameKind::Response {
                status: status.number(),
            },
            command: BoltCommand::RpcResponse,
            codec,
            ..BoltFrame::heartbeat(form, id)
        }
    }
}

impl BoltFrameHead {
    #[inline]
    fn parse(bytes: &[u8], limit: usize) -> Result<Option<BoltFrameHead>, BoltFrameError> {
        // Version 2 adds a byte after the protocol byte (the revision), and another one before the lengths (the
        // switches).
        let Some(&protocol) = bytes.first() else {
            return Ok(None);
        };
        let (at, switched) = match protocol {
            1 => (1, 0),
            2 => (2, 1),
            other => return Err(BoltFrameError::Protocol(other)),
        };
        if bytes.len() < 20 {
            return check_partial_header(bytes, at).map(|()| None);
        }
        let form = match protocol {
            1 => FrameLayout::V1,
            _ => {
                let (revision, switches) = (bytes[1], bytes[11]);
                if !matches!(revision, 1 | 2) {
                    return Err(BoltFrameError::Revision(revision));
                }
                if switches >= 0x80 {
                    return Err(BoltFrameError::Switches(switches));
                }
                FrameLayout::V2 { revision, switches }
            }
        };
        let number = be16(bytes, at + 1);
        let command = BoltCommand::from_number(number).ok_or(BoltFrameError::Command(number))?;
        let (id, codec) = (be32(bytes, at + 4), bytes[at + 8]);
        let varying = at + 9 + switched;
        let (kind, lengths) = match bytes[at] {
            0 => (
                BoltFrameKind::Response {
                    status: be16(bytes, varying),
                },
                varying + 2,
            ),
            kind @ (1 | 2) => {
                if bytes.len() < varying + 4 {
                    return Ok(None);
                }
                let timeout = be32(bytes, varying).cast_signed();
                if kind == 1 {
                    (BoltFrameKind::Request { timeout }, varying + 4)
                } else {
                    (BoltFrameKind::Oneway { timeout }, varying + 4)
                }
            }
            other => return Err(BoltFrameError::Type(other)),
        };
        let start = lengths + 8;
        if bytes.len() < start {
            return Ok(None);
        }
        let class = usize::from(be16(bytes, lengths));
        let header = usize::from(be16(bytes, lengths + 2));
        let content = be32(bytes, lengths + 4).cast_signed();
        let content =
            usize::try_from(content).map_err(|_| BoltFrameError::NegativeContent(content))?;
        if content > limit {
            return Err(BoltFrameError::ContentTooLong {
                length: content,
                limit,
            });
        }
        // The content is below 2 GiB, class and header are below 64 KiB each, so this can't overflow.
        let body_end = start + class + header + content;
        let length = body_end + if form.has_crc() { 4 } else { 0 };
        Ok(Some(BoltFrameHead {
            layout: form,
            kind,
            command,
            id,
            codec,
            length,
            command_version: bytes[at + 3],
            start,
            class,
            header,
            content,
        }))
    }
}

/// Returns an error if the beginning of an incomplete fixed header is already invalid.
fn check_partial_header(bytes: &[u8], at: usize) -> Result<(), BoltFrameError> {
    if at == 2
        && let Some(&revision) = bytes.get(1)
        && !matches!(revision, 1 | 2)
    {
        return Err(BoltFrameError::Revision(revision));
    }
    if let Some(&kind) = bytes.get(at)
        && kind > 2
    {
        return Err(BoltFrameError::Type(kind));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
