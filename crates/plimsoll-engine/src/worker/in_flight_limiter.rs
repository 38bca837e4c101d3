//! The plan's limit of calls in flight: calls beyond it wait in the backlog or are shed.
//!
//! The time at the limit is measured once per loop iteration, since no call begins or ends between iterations.

use plimsoll_model::plan::{ConnectionReuse, WhenFull};
use plimsoll_model::schedule::Arrival;
use plimsoll_model::{Count, Outcome, Time};

use super::Worker;
use crate::driver::Protocol;
use crate::event_loop::WorkerShare;
use crate::event_loop::due_calls::{CallSource, LoadPhase};
use crate::transport::network::Network;

/// A worker's share of the limit, and the time spent at it.
pub(super) struct InFlightLimiter {
    /// Number of this worker's calls that may be in flight.
    calls: usize,
    /// The limit over all workers; this worker's time at its limit is weighted by its share.
    total: u64,
    sheds_calls: bool,
    /// Whether the limit was reached when it was last checked.
    is_reached: bool,
    /// The end of the period in which the time at the limit has been counted.
    counted_to: Time,
}

impl InFlightLimiter {
    /// Creates a limiter for `share`; `None` if the plan has no limit.
    pub(super) fn from_share(share: &WorkerShare) -> Option<InFlightLimiter> {
        let limit = share.load.in_flight_limit?;
        Some(InFlightLimiter {
            calls: share.in_flight as usize,
            total: u64::from(limit.calls.max(1)),
            sheds_calls: limit.when_full == WhenFull::Shed,
            is_reached: false,
            counted_to: Time::ZERO,
        })
    }
}

impl<P: Protocol, N: Network> Worker<P, N> {
    /// Returns whether the maximum number of calls is in flight.
    #[inline]
    pub(super) fn is_at_limit(&self) -> bool {
        match &self.client.limit {
            None => false,
            Some(limit) => self.calls_in_flight() >= limit.calls,
        }
    }

    fn calls_in_flight(&self) -> usize {
        match self.share.load.reuse {
            ConnectionReuse::Always => self.client.calls.len(),
            // Every call has a separate connection for its whole duration.
            ConnectionReuse::Never => self.client.single_calls,
        }
    }

    /// Sheds a due call if the limit is reached and the plan sheds calls; records it and returns true if so.
    #[cold]
    pub(super) fn shed_if_at_limit(&mut self, arrival: Arrival, now: Time) -> bool {
        let sheds = self
            .client
            .limit
            .as_ref()
            .is_some_and(|limit| limit.sheds_calls);
        let is_shed = sheds && self.is_at_limit();
        if is_shed {
            let due = self.start.plus_nanos(arrival.at);
            self.record_unsent_call(arrival.number, due, now, arrival.stage, Outcome::NotSent);
        }
        is_shed
    }

    /// Counts the time during which the limit was reached.
    #[inline]
    pub(super) fn update_time_at_limit(&mut self, now: Time) {
        if self.client.limit.is_some() {
            self.add_elapsed_time_at_limit(now);
        }
    }

    #[cold]
    fn add_elapsed_time_at_limit(&mut self, now: Time) {
        let under_way = self.calls_in_flight();
        let until = match &self.call_source {
            CallSource::Open(open) => now.min(open.end()),
            CallSource::Closed(_) => now,
        };
        let is_loading = self.phase == LoadPhase::Loading;
        let Some(limit) = &mut self.client.limit else {
            return;
        };
        if limit.is_reached && is_loading {
            let own = until
                .since(limit.counted_to)
                .saturating_mul(limit.calls as u64);
            self.recorder
                .add_protocol_count(self.stage, Count::LimitReached, own / limit.total);
        }
        limit.is_reached = under_way >= limit.calls;
        limit.counted_to = until;
    }
}
