//! What a plugin reads, and what it is asked to make.

use std::ops::Range;
use std::time::Duration;

/// Who sent the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    Client,
    Server,
}

/// Whether a connection speaks the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    Yes,
    /// More bytes are needed to tell.
    More,
    No,
}

/// What a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `timeout`: how long the client waits, where it says so.
    Request {
        timeout: Option<Duration>,
    },
    /// A request that wants no answer.
    Oneway,
    /// `status`: 0 for a success, else the protocol's own number.
    Response {
        status: u32,
    },
    Heartbeat,
    HeartbeatAck,
    /// The sender takes no more requests on this connection.
    GoAway,
}

/// A whole frame at the beginning of what was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Bytes; above 0, and not more than there are.
    pub length: usize,
    pub id: u64,
    /// The plugin's own, to be given back to it.
    pub note: u64,
    pub kind: Kind,
    /// Within the frame.
    pub payload: Range<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decoded {
    Frame(Frame),
    /// Not all of it is there: so many bytes are needed in all, where that is known; more
    /// than there are, and not more than the limit.
    More(Option<usize>),
}

/// What can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Make {
    Request,
    Response,
    Heartbeat,
    HeartbeatAck,
    /// No room for more requests.
    Busy,
    /// Nobody to take it.
    Unreachable,
    /// No answer in time.
    Timeout,
    /// The connection ended before the answer came.
    Closed,
}
