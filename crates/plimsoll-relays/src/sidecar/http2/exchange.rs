//! A call over HTTP/2: a stream of the client's connection, and the upstream stream that it is relayed to.

use std::sync::Arc;

use plimsoll_model::Time;
use plimsoll_wire::http2::write;

use super::{HeaderFields, SendQueue};

/// A direction within a call: to the upstream, or to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallDirection {
    Up,
    Down,
}

/// A stream on one side of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamRef {
    /// The token of the stream's connection.
    pub(crate) token: u64,
    /// The stream's id; 0 if the stream is not open yet or is closed.
    pub(crate) stream: u32,
}

/// A token that no connection has.
const NO_CONNECTION_TOKEN: u64 = u64::MAX;

impl StreamRef {
    pub(crate) const NONE: StreamRef = StreamRef {
        token: NO_CONNECTION_TOKEN,
        stream: 0,
    };
}

/// A call with its two streams, its queued data and its status.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) route: usize,
    pub(crate) down: StreamRef,
    pub(crate) up: StreamRef,
    pub(crate) up_queue: SendQueue,
    pub(crate) down_queue: SendQueue,
    pub(crate) request: Arc<HeaderFields>,
    /// The answer's header fields have been passed on.
    pub(crate) has_answer_begun: bool,
    /// Number of attempts to find an upstream.
    pub(crate) attempts: u8,
    pub(crate) began: Time,
    pub(crate) deadline: Time,
    /// A deadline that applies only while neither side has sent more than header fields; [`Time::NEVER`] afterwards,
    /// and if the request has no body.
    pub(crate) request_until: Time,
    /// The call has not been dispatched yet, so no upstream was chosen for it.
    pub(crate) is_fresh: bool,
    /// Index of the upstream that the call was assigned to.
    pub(crate) endpoint: Option<usize>,
    /// The status of the ended call, if known.
    pub(crate) status: Option<String>,
    /// The status as a number: see [`HeaderFields::status_number`].
    pub(crate) code: Option<u32>,
    /// The sidecar answered the call itself.
    pub(crate) by_sidecar: bool,
    /// Bytes of data received from the client; `bytes_down` are those from the upstream.
    pub(crate) bytes_up: u64,
    pub(crate) bytes_down: u64,
    /// The value of the request's `content-length`; `length_down`: the value of the answer's. `None` if the field is
    /// missing.
    pub(crate) length_up: Option<u64>,
    pub(crate) length_down: Option<u64>,
}

impl Exchange {
    /// Returns the source, the destination and the queue of a direction.
    pub(crate) fn direction_parts(
        &mut self,
        way: CallDirection,
    ) -> (StreamRef, StreamRef, &mut SendQueue) {
        match way {
            CallDirection::Up => (self.down, self.up, &mut self.up_queue),
            CallDirection::Down => (self.up, self.down, &mut self.down_queue),
        }
    }

    /// Counts received data and compares it with `content-length` (RFC 9113, 8.1.1).
    pub(crate) fn count_data(
        &mut self,
        way: CallDirection,
        data: &[u8],
        end: write::EndStream,
    ) -> Option<&'static str> {
        let (bytes, length) = match way {
            CallDirection::Up => (&mut self.bytes_up, self.length_up),
            CallDirection::Down => (&mut self.bytes_down, self.length_down),
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

    /// Returns whether the client has sent nothing but header fields so far.
    pub(crate) fn has_only_headers(&self) -> bool {
        self.request_until != Time::NEVER
    }

    /// Returns the direction of data that comes from the connection `token`.
    pub(crate) fn direction_from(&self, token: u64) -> CallDirection {
        if self.down.token == token {
            CallDirection::Up
        } else {
            CallDirection::Down
        }
    }
}
