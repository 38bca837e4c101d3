//! Counts the users of one worker, and adds up how long they were there.

use plimsoll_model::Time;
use plimsoll_model::runs::run::UserLevels;

/// Counts users who have arrived and not ended, and those of them who wait for a connection. [`UserMeter::take`] returns
/// the figures of an interval.
#[derive(Debug, Default)]
pub(super) struct UserMeter {
    levels: UserLevels,
    /// Sums of nanoseconds in this interval, up to `since`; their parts below a microsecond are kept for the next one.
    in_flight_ns: u64,
    waiting_ns: u64,
    since: Time,
}

impl UserMeter {
    /// Counts a user who arrives, and was due `late_ns` nanoseconds before.
    pub(super) fn add_user(&mut self, late_ns: u64, now: Time) {
        self.advance(now);
        self.in_flight_ns += late_ns;
        self.levels.in_flight += 1;
        self.levels.in_flight_max = self.levels.in_flight_max.max(self.levels.in_flight);
    }

    /// Removes a user who has ended, and does not wait.
    pub(super) fn remove_user(&mut self, now: Time) {
        self.advance(now);
        self.levels.in_flight = self.levels.in_flight.saturating_sub(1);
    }

    /// Counts a user who begins to wait.
    pub(super) fn begin_wait(&mut self, now: Time) {
        self.advance(now);
        self.levels.waiting += 1;
        self.levels.waiting_max = self.levels.waiting_max.max(self.levels.waiting);
    }

    /// Counts a user who no longer waits.
    pub(super) fn end_wait(&mut self, now: Time) {
        self.advance(now);
        self.levels.waiting = self.levels.waiting.saturating_sub(1);
    }

    /// Adds the time since the last change to the sums.
    fn advance(&mut self, now: Time) {
        let length_ns = now.since(self.since);
        self.in_flight_ns += self.levels.in_flight * length_ns;
        self.waiting_ns += self.levels.waiting * length_ns;
        self.since = self.since.max(now);
    }

    /// Ends an interval at `now`: returns its figures, and begins the next one with the present users.
    pub(super) fn take(&mut self, now: Time) -> UserLevels {
        self.advance(now);
        let whole_us = |ns: &mut u64| {
            let us = *ns / 1_000;
            *ns %= 1_000;
            us
        };
        let taken = UserLevels {
            in_flight_us: whole_us(&mut self.in_flight_ns),
            waiting_us: whole_us(&mut self.waiting_ns),
            ..self.levels
        };
        self.levels.in_flight_max = self.levels.in_flight;
        self.levels.waiting_max = self.levels.waiting;
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meter_adds_up_time_of_users() {
        let at = |ms: u64| Time(ms * 1_000_000);
        let mut meter = UserMeter::default();
        meter.add_user(0, at(1_000));
        meter.begin_wait(at(1_000));
        meter.add_user(7_000, at(1_250));
        meter.end_wait(at(1_300));
        meter.remove_user(at(1_500));
        let taken = meter.take(at(2_000));
        assert_eq!(
            taken,
            UserLevels {
                in_flight: 1,
                waiting: 0,
                in_flight_max: 2,
                waiting_max: 1,
                in_flight_us: 250_000 + 7 + 2 * 250_000 + 500_000,
                waiting_us: 300_000,
            }
        );
        let next = meter.take(at(2_500));
        assert_eq!((next.in_flight_max, next.waiting_max), (1, 0));
        assert_eq!((next.in_flight_us, next.waiting_us), (500_000, 0));
    }
}
