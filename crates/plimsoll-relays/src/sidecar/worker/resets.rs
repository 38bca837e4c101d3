//! Limits how many unanswered calls are reset on an upstream connection in a row.
//!
//! Servers close a connection on which many calls are reset before they are served (CVE-2023-44487), which would end
//! all other calls on it. So only a few calls are reset in a row; further resets wait until the upstream has shown that
//! it is alive, or until their calls have ended anyway.

use std::collections::VecDeque;
use std::time::Duration;

use plimsoll_model::Time;
use plimsoll_wire::http2::ErrorCode;

/// Half the number that the strictest server tolerates (20, the Rust crate h2).
const MAX_RESETS_AT_ONCE: u32 = 10;

/// After this time further resets are sent even if the upstream has sent nothing.
const MAX_UPSTREAM_SILENCE: Duration = Duration::from_secs(1);

/// How long after its reset a call is suspected of having ended the connection.
const SUSPICION_PERIOD: Duration = Duration::from_secs(10);
/// Maximum number of reset calls that are remembered.
const MAX_REMEMBERED_RESET_CALLS: usize = 64;

/// The resets of an upstream connection that are still to be sent.
#[derive(Debug, Default)]
pub(super) struct PendingResets {
    /// Number of resets since the upstream last showed that it is alive.
    sent: u32,
    last_sent: Time,
    waiting: VecDeque<(u32, ErrorCode)>,
}

impl PendingResets {
    /// Returns whether another reset may be sent now.
    pub(super) fn may_reset_now(&self) -> bool {
        self.sent < MAX_RESETS_AT_ONCE
    }

    /// Counts a reset that is sent now.
    pub(super) fn count_sent_reset(&mut self, now: Time) {
        self.sent += 1;
        self.last_sent = now;
    }

    pub(super) fn enqueue(&mut self, stream: u32, code: ErrorCode) {
        self.waiting.push_back((stream, code));
    }

    /// Restarts the count of resets if the upstream sent something, at `at`, after the last reset, or if
    /// [`MAX_UPSTREAM_SILENCE`] has passed since then.
    pub(super) fn on_upstream_activity(&mut self, at: Time, now: Time) {
        if at > self.last_sent || now >= self.last_sent + MAX_UPSTREAM_SILENCE {
            self.sent = 0;
        }
    }

    /// Returns the next waiting reset, if it may be sent now.
    pub(super) fn next_waiting_reset(&mut self) -> Option<(u32, ErrorCode)> {
        self.may_reset_now().then(|| self.waiting.pop_front())?
    }
}

/// Recently reset calls of an upstream connection: stream, client and time.
#[derive(Default)]
pub(super) struct RecentlyResetCalls(VecDeque<(u32, u64, Time)>);

impl RecentlyResetCalls {
    /// Records a reset call. Of consecutive calls of the same client, only the newest is kept.
    pub(super) fn record(&mut self, stream: u32, client: u64, now: Time) {
        if self.0.back().is_some_and(|(_, last, _)| *last == client) {
            self.0.pop_back();
        } else if self.0.len() >= MAX_REMEMBERED_RESET_CALLS {
            self.0.pop_front();
        }
        self.0.push_back((stream, client, now));
    }

    pub(super) fn recent_resets(&self, now: Time) -> impl Iterator<Item = (u32, u64)> {
        let all = self.0.iter();
        let recent = all.filter(move |(_, _, at)| now < *at + SUSPICION_PERIOD);
        recent.map(|(stream, client, _)| (*stream, *client))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reset_calls_are_few_and_forgotten() {
        let second = |n: u64| Time::ZERO + Duration::from_secs(n);
        let mut calls = RecentlyResetCalls::default();
        for stream in 0..1000 {
            calls.record(stream, 7, second(1));
        }
        calls.record(1001, 8, second(2));
        assert_eq!(calls.0.len(), 2);
        let recent: Vec<_> = calls.recent_resets(second(11)).collect();
        assert_eq!(recent, [(1001, 8)]);
        for client in 0..1000 {
            calls.record(2000, client, second(2));
        }
        assert_eq!(calls.0.len(), MAX_REMEMBERED_RESET_CALLS);
    }
}
