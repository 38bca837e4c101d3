//! Calls under way: which stream of a client's connection goes with which one upstream.

use std::sync::Arc;

use plimsoll_model::Time;

use super::{Fields, Queue};

/// Where a call goes at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sidecar) enum Way {
    Up,
    Down,
}

/// One side's stream.
#[derive(Clone, Copy, Debug)]
pub(in crate::sidecar) struct End {
    /// The token of its connection.
    pub(in crate::sidecar) token: u64,
    /// 0: not opened yet, or over.
    pub(in crate::sidecar) stream: u32,
}

/// No connection has this token.
const NOBODY: u64 = u64::MAX;

impl End {
    pub(in crate::sidecar) const NONE: End = End {
        token: NOBODY,
        stream: 0,
    };
}

/// One call.
#[derive(Debug)]
pub(in crate::sidecar) struct Exchange {
    pub(in crate::sidecar) route: usize,
    pub(in crate::sidecar) down: End,
    pub(in crate::sidecar) up: End,
    pub(in crate::sidecar) to_up: Queue,
    pub(in crate::sidecar) to_down: Queue,
    pub(in crate::sidecar) request: Arc<Fields>,
    /// The answer's headers have been passed on.
    pub(in crate::sidecar) begun: bool,
    /// How often an upstream was looked for.
    pub(in crate::sidecar) tries: u8,
    pub(in crate::sidecar) began: Time,
    pub(in crate::sidecar) deadline: Time,
    /// Until when more than header fields must have come, from either side.
    pub(in crate::sidecar) request_until: Time,
    /// No upstream was looked for yet.
    pub(in crate::sidecar) is_fresh: bool,
    /// The upstream that it went to, by its place.
    pub(in crate::sidecar) endpoint: Option<usize>,
    /// How it ended, in a word, where that is known.
    pub(in crate::sidecar) status: Option<String>,
    /// The same as a number: see [`Fields::code`].
    pub(in crate::sidecar) code: Option<u32>,
    /// The sidecar answered it.
    pub(in crate::sidecar) by_sidecar: bool,
    /// Of data.
    pub(in crate::sidecar) bytes_up: u64,
    pub(in crate::sidecar) bytes_down: u64,
}

impl Exchange {
    /// From where, to where, and what waits in between.
    pub(in crate::sidecar) fn parts(&mut self, way: Way) -> (End, End, &mut Queue) {
        match way {
            Way::Up => (self.down, self.up, &mut self.to_up),
            Way::Down => (self.up, self.down, &mut self.to_down),
        }
    }

    /// Its client has sent header fields, and nothing else so far.
    pub(in crate::sidecar) fn is_bare(&self) -> bool {
        self.request_until != Time::NEVER
    }

    /// Which way goes what comes from the connection `token`.
    pub(in crate::sidecar) fn way_from(&self, token: u64) -> Way {
        if self.down.token == token {
            Way::Up
        } else {
            Way::Down
        }
    }
}
