//! What a plugin reads, and what it is asked to make.

use std::ops::Range;
use std::time::Duration;

use crate::abi;

pub use crate::boundary::guest::Matches as Match;

/// Who sent the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Sender {
    /// It connected, and asks.
    Client = abi::sender::CLIENT,
    /// It accepted, and answers.
    Server = abi::sender::SERVER,
}

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A request that wants an answer.
    Request {
        /// How long the client waits, where it says so.
        timeout: Option<Duration>,
    },
    /// A request that wants no answer.
    Oneway,
    /// An answer.
    Response {
        /// 0 for a success, else the protocol's own number.
        status: u32,
    },
    /// A heartbeat, to be answered with a [`Kind::HeartbeatAck`].
    Heartbeat,
    /// The answer to a heartbeat.
    HeartbeatAck,
    /// The sender takes no more requests on this connection.
    GoAway,
}

/// A whole frame at the beginning of what was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Bytes; above 0, and not more than there are.
    pub length: usize,
    /// The id that the sender chose.
    pub id: u64,
    /// The plugin's own, to be given back to it.
    pub note: u64,
    /// What it is for.
    pub kind: Kind,
    /// The range of the payload within the frame.
    pub payload: Range<usize>,
}

/// What bytes begin with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// A whole one.
    Frame(Frame),
    /// Not all of it is there: so many bytes are needed in all, where that is known; more
    /// than there are, and not more than the limit.
    More(Option<usize>),
}

/// What can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Make {
    /// A request with a payload.
    Request = abi::make::REQUEST,
    /// A successful answer with a payload.
    Response = abi::make::RESPONSE,
    /// A sign of life.
    Heartbeat = abi::make::HEARTBEAT,
    /// The answer to one.
    HeartbeatAck = abi::make::HEARTBEAT_ACK,
    /// No room for more requests.
    Busy = abi::make::BUSY,
    /// Nobody to take it.
    Unreachable = abi::make::UNREACHABLE,
    /// No answer in time.
    Timeout = abi::make::TIMEOUT,
    /// The connection ended before the answer came.
    Closed = abi::make::CLOSED,
}
