//! Sleeping from tick to tick, without waking up for each answer.
//!
//! At low rates over many connections, wake-ups are most of what a call costs the generator. With ticks, calls leave
//! together; if answers are also read together, at the next tick, a tick costs one wake-up instead of one for the calls
//! and one for each answer. An answer's time is then the kernel's receive time, not that of the read.
//!
//! The loop sleeps only while nothing waits for its reads: each read found exactly one whole answer, no call waits for
//! a connection, and no connection is being established.

use std::time::Duration;

use plimsoll_model::Time;

use crate::pauses::MAX_POLL_GAP_NS;

/// Time for which answers are read on arrival after a read that did not find exactly one whole answer.
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
    /// Records that a read at `now` found `answers` whole answers. Part of an answer may be a peer that waits for the
    /// rest to be read, and of several answers only the last has a receive time of its own.
    #[inline]
    pub(crate) fn record_read(&mut self, answers: usize, now: Time) {
        if answers != 1 {
            self.prompt_until = now + PROMPT_PERIOD;
        }
    }

    /// Returns whether the loop may sleep from `now` to `at`, if nothing else waits for its reads.
    #[inline]
    pub(crate) fn allows(&self, now: Time, at: Time) -> bool {
        now >= self.prompt_until && (MIN_SLEEP_NS..=MAX_POLL_GAP_NS).contains(&at.since(now))
    }
}
