//! Decides when requests of one kind are sent to the store (the folder or object store that shards share): one request
//! at a time, retried with backoff after a failure.
//!
//! Invariant: at most one request of each kind is in flight, so writes can't overtake each other. This module reads no
//! clock.

use std::time::Duration;

use plimsoll_model::Time;

/// Backoff after the first failure; it doubles with each further failure.
const MIN_BACKOFF: Duration = Duration::from_millis(500);

/// Maximum backoff, which is also the longest time until a recovered store is noticed.
const MAX_BACKOFF: Duration = Duration::from_secs(2);

/// The pacing state of one kind of request.
#[derive(Clone, Copy, Debug)]
pub(super) struct StoreRequestSlot {
    due: Time,
    /// When the request in flight was sent; `None` if no request is in flight.
    sent_at: Option<Time>,
    failing_since: Option<Time>,
    backoff: Duration,
}

impl StoreRequestSlot {
    pub(super) fn new(due: Time) -> StoreRequestSlot {
        StoreRequestSlot {
            due,
            sent_at: None,
            failing_since: None,
            backoff: MIN_BACKOFF,
        }
    }

    pub(super) fn is_due(&self, now: Time) -> bool {
        self.is_idle() && now >= self.due
    }

    /// Returns whether no request is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.sent_at.is_none()
    }

    /// Records that a request was sent.
    pub(super) fn mark_sent(&mut self, now: Time) {
        self.sent_at = Some(now);
    }

    /// Returns when the request in flight was sent; if none is in flight, when the next request is due.
    pub(super) fn sent_or_due_at(&self) -> Time {
        self.sent_at.unwrap_or(self.due)
    }

    /// Records an answer; the next request is due at `next`.
    pub(super) fn mark_answered(&mut self, next: Time) {
        *self = StoreRequestSlot::new(next);
    }

    /// Records a failure and schedules a retry; returns for how long requests have been failing.
    pub(super) fn mark_failed(&mut self, now: Time) -> Duration {
        let since = *self
            .failing_since
            .get_or_insert(self.sent_at.unwrap_or(now));
        self.sent_at = None;
        self.due = now + self.backoff;
        self.backoff = (self.backoff * 2).min(MAX_BACKOFF);
        now.duration_since(since)
    }

    /// Makes the next request due now.
    pub(super) fn make_due(&mut self, now: Time) {
        // Don't shorten the backoff of a failing request.
        if self.failing_since.is_none() {
            self.due = self.due.min(now);
        }
    }
}

/// Returns the message about a store that can't be used. `failing` is how long it has been failing; `None` for a
/// permanent error.
pub(super) fn store_failure_message(problem: &str, failing: Option<Duration>) -> String {
    match failing.map(|failing| failing.as_secs()) {
        None => format!("the rendezvous can't be used: {problem}"),
        Some(seconds) => format!("the rendezvous has not answered for {seconds} s: {problem}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn failing_request_backs_off_until_answered() {
        let mut lane = StoreRequestSlot::new(Time(S));
        assert!(!lane.is_due(Time(0)));
        let mut now = Time(S);
        let mut failing = Duration::ZERO;
        let mut sent = 0;
        while now.0 < 21 * S {
            if lane.is_due(now) {
                lane.mark_sent(now);
                assert!(!lane.is_due(now), "one at a time");
                failing = lane.mark_failed(now);
                sent += 1;
            }
            now = now + Duration::from_millis(100);
        }
        // Requests are due at 1.0, 1.5, 2.5, 4.5, 6.5 … 20.5 s.
        assert_eq!(sent, 12);
        assert_eq!(failing, Duration::from_millis(19_500));
        lane.make_due(now);
        assert!(!lane.is_due(now), "a store that fails is left its pause");
        lane.mark_sent(now);
        lane.mark_answered(now + Duration::from_secs(1));
        assert!(!lane.is_due(now));
        lane.make_due(now);
        assert!(lane.is_due(now));
    }
}
