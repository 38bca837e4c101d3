//! Sleeping from tick to tick, without waking up for each answer.
//!
//! At low rates over many connections, wake-ups are most of what a call costs the generator. With ticks, calls leave
//! together; if answers are also read together, at the next tick, a tick costs one wake-up instead of one for the calls
//! and one for each answer. An answer's time is then the kernel's receive time, not that of the read.
//!
//! The loop sleeps only while nothing waits for it: each read found exactly one whole answer in one piece, everything
//! was sent, connections carry one call each, no call waits for a connection, and none is being established.

use std::time::Duration;

use plimsoll_model::Time;

use crate::pauses::MAX_POLL_GAP_NS;

/// Time for which answers are read on arrival after something may have waited for the loop.
const PROMPT_PERIOD: Duration = Duration::from_millis(100);

/// Minimum sleep in nanoseconds; for a shorter one, the loop waits for its sockets as usual.
const MIN_SLEEP_NS: u64 = 100_000;

/// What decides whether the loop may sleep until the next tick.
#[derive(Default)]
pub(crate) struct TickSleep {
    /// The time until which answers are read on arrival.
    prompt_until: Time,
}

impl TickSleep {
    /// Records a read or a write at `now` after which a peer may wait for the loop, or whose answers have no receive
    /// times of their own.
    #[inline]
    pub(crate) fn postpone(&mut self, now: Time) {
        self.prompt_until = self.prompt_until.max(now + PROMPT_PERIOD);
    }

    /// Records that the receive times of answers are unknown.
    #[cold]
    pub(crate) fn disable(&mut self) {
        self.prompt_until = Time::NEVER;
    }

    /// Returns whether the loop may sleep from `now` to `at`, if nothing else waits for its reads.
    #[inline]
    pub(crate) fn allows(&self, now: Time, at: Time) -> bool {
        now >= self.prompt_until && (MIN_SLEEP_NS..=MAX_POLL_GAP_NS).contains(&at.since(now))
    }
}
