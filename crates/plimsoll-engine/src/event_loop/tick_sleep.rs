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

use super::EventLoop;
use super::client::{LoopClient, LoopHandler};
use super::due_calls::LoadPhase;
use crate::pauses::MAX_POLL_GAP_NS;
use crate::transport::network::Network;

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
}

impl<C: LoopClient, N: Network> EventLoop<C, N>
where
    Self: LoopHandler<C::ConnectRequest>,
{
    /// Returns whether the loop may sleep until the arrival at `at` without looking at its sockets.
    #[inline]
    pub(super) fn may_sleep_until(&self, at: Time, now: Time) -> bool {
        match &self.tick_sleep {
            None => false,
            Some(sleep) => {
                (MIN_SLEEP_NS..=MAX_POLL_GAP_NS).contains(&at.since(now))
                    && now >= sleep.prompt_until
                    && self.phase == LoadPhase::Loading
                    && self.connecting == 0
                    && self.to_connect.is_empty()
                    && self.unfinished.is_empty()
                    && self.client.connecting_calls() == 0
                    && self.call_source.backlog_length() == 0
            }
        }
    }
}
