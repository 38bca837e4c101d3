//! The frames that a plugin decodes, and the kinds of frames that it can create.

use std::ops::Range;
use std::time::Duration;

use crate::abi;

pub use crate::boundary::guest::MatchResult as Match;

/// The sender of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum SenderRole {
    /// The client, which connected and sends requests.
    Client = abi::sender::CLIENT,
    /// The server, which accepted the connection and answers.
    Server = abi::sender::SERVER,
}

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// A request that expects an answer.
    Request {
        /// The client's timeout, if the frame contains it.
        timeout: Option<Duration>,
    },
    /// A request that expects no answer.
    Oneway,
    /// An answer.
    Response {
        /// 0 for success, otherwise the protocol's status code.
        status: u32,
    },
    /// A heartbeat, which must be answered with a [`FrameKind::HeartbeatAck`].
    Heartbeat,
    /// The answer to a heartbeat.
    HeartbeatAck,
    /// The sender accepts no more requests on this connection.
    GoAway,
}

/// A complete frame at the beginning of the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Length in bytes; above 0, and at most the input's length.
    pub length: usize,
    /// The id that the sender chose.
    pub id: u64,
    /// An opaque value from the plugin, which is passed back to it.
    pub note: u64,
    /// The kind of the frame.
    pub kind: FrameKind,
    /// The range of the payload within the frame.
    pub payload: Range<usize>,
}

/// The result of decoding the beginning of the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecodeResult {
    /// A complete frame.
    Frame(Frame),
    /// The frame is incomplete. Contains the total number of bytes needed, if it is known: more than are available, and
    /// at most the limit.
    More(Option<usize>),
}

/// A kind of frame that a plugin can create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum NewFrameKind {
    /// A request with a payload.
    Request = abi::new_frame_kind::REQUEST,
    /// A successful answer with a payload.
    Response = abi::new_frame_kind::RESPONSE,
    /// A heartbeat.
    Heartbeat = abi::new_frame_kind::HEARTBEAT,
    /// The answer to a heartbeat.
    HeartbeatAck = abi::new_frame_kind::HEARTBEAT_ACK,
    /// An error answer: the server has no capacity for the request.
    Busy = abi::new_frame_kind::BUSY,
    /// An error answer: no upstream is available for the request.
    Unreachable = abi::new_frame_kind::UNREACHABLE,
    /// An error answer: the request timed out.
    Timeout = abi::new_frame_kind::TIMEOUT,
    /// An error answer: the upstream connection ended before the answer arrived.
    Closed = abi::new_frame_kind::CLOSED,
}
