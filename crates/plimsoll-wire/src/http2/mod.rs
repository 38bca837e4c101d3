//! The framing layer of HTTP/2 (RFC 9113, 4 and 6): frames to bytes and back, with the
//! checks that need no connection state.
//!
//! Called by the gRPC driver, the canned server and the tracer.

mod block;
mod code;
mod deframe;
mod field;
mod frame;

pub use block::HeaderBlock;
pub use code::ErrorCode;
pub use deframe::{complete, each, split};
pub use field::field_problem;
pub use frame::{Frame, FrameHead, Settings, flags, kind, setting, write};

use std::fmt;

/// What a client sends before its first frame (RFC 9113, 3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The window of a connection, and of a stream until SETTINGS say otherwise
/// (RFC 9113, 6.9.2). Bytes.
pub const DEFAULT_WINDOW: u32 = 65_535;

/// The largest window (RFC 9113, 6.9.1). Bytes.
pub const MAX_WINDOW: u32 = 0x7fff_ffff;

/// The largest payload that every endpoint takes (RFC 9113, 4.2). Bytes.
pub const DEFAULT_MAX_FRAME: u32 = 16_384;

/// The largest stream id (RFC 9113, 5.1.1).
pub const MAX_STREAM_ID: u32 = 0x7fff_ffff;

/// Field lists over this many bytes are refused (RFC 9113, 6.5.2); announced to the server.
pub const MAX_HEADER_LIST: u32 = 64 * 1024;

/// A header block over this many bytes ends the connection.
pub const MAX_HEADER_BLOCK: usize = 64 * 1024;

/// The peer broke RFC 9113.
///
/// One pointer wide, because every frame's handling returns one or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(Box<Fault>);

/// What a [`Violation`] says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// 0: the whole connection is lost (5.4.1). Else the stream that is (5.4.2).
    pub stream: u32,
    pub code: ErrorCode,
    /// What was seen, and the rule.
    pub why: String,
}

impl Violation {
    /// A connection error.
    #[cold]
    pub fn connection(code: ErrorCode, why: impl Into<String>) -> Violation {
        Violation::stream(0, code, why)
    }

    /// A stream error.
    #[cold]
    pub fn stream(stream: u32, code: ErrorCode, why: impl Into<String>) -> Violation {
        Violation(Box::new(Fault {
            stream,
            code,
            why: why.into(),
        }))
    }
}

impl std::ops::Deref for Violation {
    type Target = Fault;
    fn deref(&self) -> &Fault {
        &self.0
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.why)
    }
}

impl std::error::Error for Violation {}
