//! Calls under way: which stream of a client's connection goes with which one upstream.

use std::sync::Arc;

use plimsoll_model::Time;
use plimsoll_wire::http2::write;

use super::{Fields, Queue};

/// A direction within a call: to the upstream, or to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Up,
    Down,
}

/// One side's stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    /// The token of its connection.
    pub(crate) token: u64,
    /// 0: not opened yet, or over.
    pub(crate) stream: u32,
}

/// No connection has this token.
const NO_CONNECTION: u64 = u64::MAX;

impl End {
    pub(crate) const NONE: End = End {
        token: NO_CONNECTION,
        stream: 0,
    };
}

/// One call.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) route: usize,
    pub(crate) down: End,
    pub(crate) up: End,
    pub(crate) to_up: Queue,
    pub(crate) to_down: Queue,
    pub(crate) request: Arc<Fields>,
    /// The answer's headers have been passed on.
    pub(crate) begun: bool,
    /// How often an upstream was looked for.
    pub(crate) tries: u8,
    pub(crate) began: Time,
    pub(crate) deadline: Time,
    /// The time by which more than header fields must have come, from either side.
    pub(crate) request_until: Time,
    /// No upstream was looked for yet.
    pub(crate) is_fresh: bool,
    /// The upstream that it went to, by its place.
    pub(crate) endpoint: Option<usize>,
    /// How it ended, in a word, where that is known.
    pub(crate) status: Option<String>,
    /// The same as a number: see [`Fields::code`].
    pub(crate) code: Option<u32>,
    /// The sidecar answered it.
    pub(crate) by_sidecar: bool,
    /// Bytes of data that have come from the client; the next: from the upstream.
    pub(crate) bytes_up: u64,
    pub(crate) bytes_down: u64,
    /// The value of `content-length` on either side; `None`: there is none.
    pub(crate) length_up: Option<u64>,
    pub(crate) length_down: Option<u64>,
}

impl Exchange {
    /// Returns where it comes from, where it goes, and what waits in between.
    pub(crate) fn parts(&mut self, way: Way) -> (End, End, &mut Queue) {
        match way {
            Way::Up => (self.down, self.up, &mut self.to_up),
            Way::Down => (self.up, self.down, &mut self.to_down),
        }
    }

    /// Counts data that came, and compares it with `content-length` (RFC 9113, 8.1.1).
    pub(crate) fn count(&mut self, way: Way, data: &[u8], end: write::End) -> Option<&'static str> {
        let (bytes, length) = match way {
            Way::Up => (&mut self.bytes_up, self.length_up),
            Way::Down => (&mut self.bytes_down, self.length_down),
        };
        *bytes += data.len() as u64;
        let length = length?;
        let is_fine = if end.0 {
            *bytes == length
        } else {
            *bytes <= length
        };
        (!is_fine).then_some("DATA of another length than `content-length` (RFC 9113, 8.1.1)")
    }

    /// Its client has sent header fields, and nothing else so far.
    pub(crate) fn is_bare(&self) -> bool {
        self.request_until != Time::NEVER
    }

    /// Which way goes what comes from the connection `token`.
    pub(crate) fn way_from(&self, token: u64) -> Way {
        if self.down.token == token {
            Way::Up
        } else {
            Way::Down
        }
    }
}
