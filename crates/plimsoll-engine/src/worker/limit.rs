//! How many calls a plan allows in flight, and what becomes of those beyond: they wait, or are shed.
//!
//! The time for which the limit was reached is counted turn by turn of the loop: between two turns no call begins or
//! ends.

use plimsoll_model::plan::{Reuse, WhenFull};
use plimsoll_model::schedule::Arrival;
use plimsoll_model::{Count, Outcome, Time};

use super::Worker;
use crate::driver::Protocol;
use crate::event_loop::Share;
use crate::event_loop::issue::{Issue, Phase};
use crate::network::Network;

/// A worker's part of the limit.
pub(super) struct ReachedLimit {
    /// Calls of this worker that may be in flight.
    calls: usize,
    /// The limit over all workers: what this one counts has its part of the weight.
    of: u64,
    sheds: bool,
    /// So many were in flight when this was looked at last.
    is_reached: bool,
    /// The time at the limit is counted up to here.
    counted_to: Time,
}

impl ReachedLimit {
    /// `None`: the plan has no limit.
    pub(super) fn of(share: &Share) -> Option<ReachedLimit> {
        let limit = share.load.in_flight_limit?;
        Some(ReachedLimit {
            calls: share.in_flight as usize,
            of: u64::from(limit.calls.max(1)),
            sheds: limit.when_full == WhenFull::Shed,
            is_reached: false,
            counted_to: Time::ZERO,
        })
    }
}

impl<P: Protocol, N: Network> Worker<P, N> {
    /// Whether as many calls are in flight as the plan allows.
    #[inline]
    pub(super) fn is_at_limit(&self) -> bool {
        match &self.client.limit {
            None => false,
            Some(limit) => self.calls_under_way() >= limit.calls,
        }
    }

    fn calls_under_way(&self) -> usize {
        match self.share.load.reuse {
            Reuse::Always => self.client.calls.len(),
            // Each has a connection, from its beginning to its end.
            Reuse::Never => self.client.attempting,
        }
    }

    /// Whether a call that is due fails because of the limit.
    #[cold]
    pub(super) fn is_shed(&mut self, arrival: Arrival, now: Time) -> bool {
        let sheds = self.client.limit.as_ref().is_some_and(|limit| limit.sheds);
        let is_shed = sheds && self.is_at_limit();
        if is_shed {
            let due = self.start.plus_nanos(arrival.at);
            self.record_unsent(arrival.number, due, now, arrival.stage, Outcome::NotSent);
        }
        is_shed
    }

    /// Counts for how long the limit was reached.
    #[inline]
    pub(super) fn look_at_limit(&mut self, now: Time) {
        if self.client.limit.is_some() {
            self.count_limit(now);
        }
    }

    #[cold]
    fn count_limit(&mut self, now: Time) {
        let under_way = self.calls_under_way();
        let until = match &self.issue {
            Issue::Open(open) => now.min(open.end()),
            Issue::Closed(_) => now,
        };
        let is_loading = self.phase == Phase::Loading;
        let Some(limit) = &mut self.client.limit else {
            return;
        };
        if limit.is_reached && is_loading {
            let own = until
                .since(limit.counted_to)
                .saturating_mul(limit.calls as u64);
            self.recorder
                .count(self.stage, Count::LimitReached, own / limit.of);
        }
        limit.is_reached = under_way >= limit.calls;
        limit.counted_to = until;
    }
}
