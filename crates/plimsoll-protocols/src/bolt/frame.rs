//! One Bolt frame: its fixed header, and class, header and content behind it.
//!
//! Both ends use it: the driver, the reference server, the tests. Reading copies nothing
//! and believes no length before it is checked against the caller's limit; whatever is
//! read can be written again byte for byte.

/// The largest content a reader should accept unless configured otherwise: 16 MiB.
pub const MAX_CONTENT: usize = 16 << 20;

/// Codec bytes. SOFABolt itself knows the first; the others are SOFARPC's.
pub mod codec {
    /// Hessian 2, as SOFARPC has it.
    pub const HESSIAN2: u8 = 1;
    /// JSON text.
    pub const JSON: u8 = 12;
}

/// How a frame is laid out: the protocol's version, and with version 2 whether it ends
/// with a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// Protocol version 1.
    V1,
    /// `revision` is 1 or 2. Only with 2 does bit 0 of `switches` add a CRC-32.
    V2 {
        /// 1, as yet.
        revision: u8,
        /// Bit 0: a CRC-32 follows the content.
        switches: u8,
    },
}

impl Form {
    /// Version 2 with a checksum.
    pub const V2_CRC: Form = Form::V2 {
        revision: 2,
        switches: 1,
    };
    /// Version 2 without a checksum.
    pub const V2: Form = Form::V2 {
        revision: 1,
        switches: 0,
    };

    /// A CRC-32 follows the content.
    #[inline]
    pub fn has_crc(self) -> bool {
        matches!(self, Form::V2 { revision: 2, switches } if switches & 1 == 1)
    }

    /// The same layout for a frame that no peer puts a checksum on: heartbeats and
    /// answers that report a failure.
    #[must_use]
    pub fn without_switches(self) -> Form {
        match self {
            Form::V1 => Form::V1,
            Form::V2 { revision, .. } => Form::V2 {
                revision,
                switches: 0,
            },
        }
    }

    /// The byte at which the id begins.
    #[inline]
    pub fn id_at(self) -> usize {
        match self {
            Form::V1 => 5,
            Form::V2 { .. } => 6,
        }
    }

    /// Where a request's timeout is in a frame: behind id, codec and switches.
    pub(super) fn timeout_at(self) -> usize {
        match self {
            Form::V1 => 10,
            Form::V2 { .. } => 12,
        }
    }
}

/// Who says it, and what only this direction has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A call that wants an answer.
    Request {
        /// The timeout in milliseconds; negative: none.
        timeout: i32,
    },
    /// No answer is wanted, and none is allowed.
    Oneway {
        /// The timeout in milliseconds; negative: none.
        timeout: i32,
    },
    /// A number of [`super::Status`].
    Response {
        /// See [`super::Status`].
        status: u16,
    },
}

/// What the frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Keeps the connection, and is answered.
    Heartbeat = 0,
    /// A call.
    RpcRequest = 1,
    /// The answer to a call.
    RpcResponse = 2,
    /// MOSN's extension: the sender takes no more requests on this connection.
    GoAway = 100,
}

impl Command {
    fn from_number(number: u16) -> Option<Command> {
        Some(match number {
            0 => Command::Heartbeat,
            1 => Command::RpcRequest,
            2 => Command::RpcResponse,
            100 => Command::GoAway,
            _ => return None,
        })
    }
}

/// A whole frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The layout: which fields the fixed header has.
    pub form: Form,
    /// Whether it is a request, and what that carries besides.
    pub kind: Kind,
    /// The command code.
    pub command: Command,
    /// The command's version: 1 in every frame seen; carried as it is.
    pub command_version: u8,
    /// The request's id, which its answer repeats.
    pub id: u32,
    /// How the content is encoded: see [`codec`].
    pub codec: u8,
    /// The Java class that the content is an object of.
    pub class: &'a [u8],
    /// See [`super::header`].
    pub header: &'a [u8],
    /// The content as it is encoded.
    pub content: &'a [u8],
}

/// What a frame's fixed header says, without anything of what follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The layout: which fields the fixed header has.
    pub form: Form,
    /// Whether it is a request, and what that carries besides.
    pub kind: Kind,
    /// The command code.
    pub command: Command,
    /// The request's id, which its answer repeats.
    pub id: u32,
    /// How the content is encoded: see [`codec`].
    pub codec: u8,
    /// The length of the whole frame, with its checksum. Bytes.
    pub length: usize,
    command_version: u8,
    /// The byte at which the class begins.
    start: usize,
    class: usize,
    header: usize,
    content: usize,
}

/// The bytes are no frame: there is no way to find the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The first byte names another protocol.
    #[error("protocol byte {0:#04x}, expected 0x01 or 0x02")]
    Protocol(u8),
    /// Version 2 in a revision that is unknown.
    #[error("revision {0} of protocol version 2, expected 1 or 2")]
    Revision(u8),
    /// Neither request, one-way request nor answer.
    #[error("frame type {0}, expected 0 (response), 1 (request) or 2 (oneway)")]
    Type(u8),
    /// A command code that is unknown.
    #[error("command {0}, expected 0 (heartbeat), 1 (request), 2 (response) or 100 (goaway)")]
    Command(u16),
    /// Switches of version 2 that are unknown.
    #[error("switches {0:#04x}, expected a value below 0x80")]
    Switches(u8),
    /// The content's length has a sign.
    #[error("a content of {0} bytes: the length is negative")]
    NegativeContent(i32),
    /// A content over the limit for answers.
    #[error("a content of {length} bytes, over the limit of {limit}")]
    ContentTooLong {
        /// What the frame says. Bytes.
        length: usize,
        /// Bytes.
        limit: usize,
    },
    /// The frame was changed on its way.
    #[error("checksum {seen:#010x}, expected {expected:#010x} (CRC-32)")]
    Crc {
        /// What the frame says.
        seen: u32,
        /// What its bytes make.
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

impl<'a> Frame<'a> {
    /// The length of the frame that `bytes` begin with, as soon as its fixed header is
    /// there. `limit`: of the content, in bytes.
    ///
    /// # Errors
    /// As soon as the bytes seen can't become a frame.
    #[inline]
    pub fn length(bytes: &[u8], limit: usize) -> Result<Option<usize>, FrameError> {
        Ok(Head::parse(bytes, limit)?.map(|head| head.length))
    }

    /// The head of a frame whose content may have any length; `None`: it is not whole, or the bytes
    /// are no frame.
    pub fn head(bytes: &[u8]) -> Option<Head> {
        Head::parse(bytes, usize::MAX).ok()?
    }

    /// The frame at the start of `bytes` and its length; `None`: more bytes are needed.
    /// `limit`: of the content, in bytes.
    ///
    /// # Errors
    /// As soon as the bytes seen can't become a frame.
    #[inline]
    pub fn parse(bytes: &'a [u8], limit: usize) -> Result<Option<(Frame<'a>, usize)>, FrameError> {
        let Some(head) = Head::parse(bytes, limit)? else {
            return Ok(None);
        };
        let Some(bytes) = bytes.get(..head.length) else {
            return Ok(None);
        };
        let body_end = head.start + head.class + head.header + head.content;
        if head.form.has_crc() {
            let (seen, expected) = (be32(bytes, body_end), crc32fast::hash(&bytes[..body_end]));
            if seen != expected {
                return Err(FrameError::Crc { seen, expected });
            }
        }
        let (class, rest) = bytes[head.start..body_end].split_at(head.class);
        let (header, content) = rest.split_at(head.header);
        let frame = Frame {
            form: head.form,
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

    /// Appends the frame. Class and header beyond 65,535 bytes and content beyond
    /// 2,147,483,647 can't be written: check with [`Frame::is_writable`].
    pub fn write(&self, out: &mut Vec<u8>) {
        debug_assert!(self.is_writable());
        let start = out.len();
        let kind = match self.kind {
            Kind::Response { .. } => 0,
            Kind::Request { .. } => 1,
            Kind::Oneway { .. } => 2,
        };
        match self.form {
            Form::V1 => out.push(1),
            Form::V2 { revision, .. } => out.extend_from_slice(&[2, revision]),
        }
        out.push(kind);
        out.extend_from_slice(&(self.command as u16).to_be_bytes());
        out.push(self.command_version);
        out.extend_from_slice(&self.id.to_be_bytes());
        out.push(self.codec);
        if let Form::V2 { switches, .. } = self.form {
            out.push(switches);
        }
        match self.kind {
            Kind::Response { status } => out.extend_from_slice(&status.to_be_bytes()),
            Kind::Request { timeout } | Kind::Oneway { timeout } => {
                out.extend_from_slice(&timeout.to_be_bytes());
            }
        }
        out.extend_from_slice(&(self.class.len() as u16).to_be_bytes());
        out.extend_from_slice(&(self.header.len() as u16).to_be_bytes());
        out.extend_from_slice(&(self.content.len() as u32).to_be_bytes());
        out.extend_from_slice(self.class);
        out.extend_from_slice(self.header);
        out.extend_from_slice(self.content);
        if self.form.has_crc() {
            let crc = crc32fast::hash(&out[start..]);
            out.extend_from_slice(&crc.to_be_bytes());
        }
    }

    /// Whether all lengths fit their fields. Java reads those of class and header as signed
    /// numbers, and so takes at most 32,767 bytes.
    pub fn is_writable(&self) -> bool {
        self.class.len() <= u16::MAX as usize
            && self.header.len() <= u16::MAX as usize
            && self.content.len() <= i32::MAX as usize
    }

    /// A heartbeat in the given layout.
    pub fn heartbeat(form: Form, id: u32) -> Frame<'static> {
        Frame {
            form: form.without_switches(),
            kind: Kind::Request { timeout: -1 },
            command: Command::Heartbeat,
            command_version: 1,
            id,
            codec: codec::HESSIAN2,
            class: &[],
            header: &[],
            content: &[],
        }
    }

    /// The answer to a heartbeat.
    pub fn heartbeat_ack(form: Form, id: u32) -> Frame<'static> {
        Frame {
            kind: Kind::Response { status: 0 },
            ..Frame::heartbeat(form, id)
        }
    }

    /// An answer that is a status and nothing else.
    pub fn bare_response(form: Form, id: u32, codec: u8, status: super::Status) -> Frame<'static> {
        Frame {
            kind: Kind::Response {
                status: status.number(),
            },
            command: Command::RpcResponse,
            codec,
            ..Frame::heartbeat(form, id)
        }
    }
}

impl Head {
    #[inline]
    fn parse(bytes: &[u8], limit: usize) -> Result<Option<Head>, FrameError> {
        // Everything behind the protocol byte is shifted by one in version 2, and the
        // lengths by one more, for the switches.
        let Some(&protocol) = bytes.first() else {
            return Ok(None);
        };
        let (at, switched) = match protocol {
            1 => (1, 0),
            2 => (2, 1),
            other => return Err(FrameError::Protocol(other)),
        };
        if bytes.len() < 20 {
            return check_start(bytes, at).map(|()| None);
        }
        let form = match protocol {
            1 => Form::V1,
            _ => {
                let (revision, switches) = (bytes[1], bytes[11]);
                if !matches!(revision, 1 | 2) {
                    return Err(FrameError::Revision(revision));
                }
                if switches >= 0x80 {
                    return Err(FrameError::Switches(switches));
                }
                Form::V2 { revision, switches }
            }
        };
        let number = be16(bytes, at + 1);
        let command = Command::from_number(number).ok_or(FrameError::Command(number))?;
        let (id, codec) = (be32(bytes, at + 4), bytes[at + 8]);
        let varying = at + 9 + switched;
        let (kind, lengths) = match bytes[at] {
            0 => (
                Kind::Response {
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
                    (Kind::Request { timeout }, varying + 4)
                } else {
                    (Kind::Oneway { timeout }, varying + 4)
                }
            }
            other => return Err(FrameError::Type(other)),
        };
        let start = lengths + 8;
        if bytes.len() < start {
            return Ok(None);
        }
        let class = usize::from(be16(bytes, lengths));
        let header = usize::from(be16(bytes, lengths + 2));
        let content = be32(bytes, lengths + 4).cast_signed();
        let content = usize::try_from(content).map_err(|_| FrameError::NegativeContent(content))?;
        if content > limit {
            return Err(FrameError::ContentTooLong {
                length: content,
                limit,
            });
        }
        // At most 2 × 64 KiB beyond the limit: no overflow.
        let body_end = start + class + header + content;
        let length = body_end + if form.has_crc() { 4 } else { 0 };
        Ok(Some(Head {
            form,
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

/// What a start too short for a frame already shows to be wrong.
fn check_start(bytes: &[u8], at: usize) -> Result<(), FrameError> {
    if at == 2
        && let Some(&revision) = bytes.get(1)
        && !matches!(revision, 1 | 2)
    {
        return Err(FrameError::Revision(revision));
    }
    if let Some(&kind) = bytes.get(at)
        && kind > 2
    {
        return Err(FrameError::Type(kind));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
