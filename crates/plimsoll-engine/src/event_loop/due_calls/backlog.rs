//! The calls of an open loop that are waiting for a connection.

use plimsoll_model::Time;
use plimsoll_model::schedule::{Arrival, ArrivalIter};

/// Arrivals that were due when no connection had capacity, in order. The schedule itself serves as the queue: only
/// positions in it are stored, however long the backlog grows.
#[derive(Clone, Debug)]
pub(crate) struct Backlog {
    pub(crate) head: Arrival,
    pub(super) second: Option<Arrival>,
    pub(super) rest: ArrivalIter,
    pub(super) length: u64,
    /// Upper bound of the delay, in nanoseconds, that the generator itself added to any of these calls.
    pub(super) late_ns: u64,
}

impl Backlog {
    pub(crate) fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns when the oldest queued call was due, in a load that began at `start`.
    pub(crate) fn oldest_due_time(&self, start: Time) -> Time {
        start.plus_nanos(self.head.at)
    }

    /// Returns an upper bound of the delay that the generator itself added to any of these calls, in nanoseconds.
    pub(crate) fn late_ns(&self) -> u64 {
        self.late_ns
    }

    pub(crate) fn advance(&mut self) {
        self.length -= 1;
        if self.length > 0
            && let Some(next) = self.second.take().or_else(|| self.rest.next())
        {
            self.head = next;
        }
    }
}
