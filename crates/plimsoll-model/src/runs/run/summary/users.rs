//! How many users a stage had at once, where users make several calls each.

use std::time::Duration;

use serde::Serialize;

use crate::runs::run::header::RunHeader;
use crate::runs::run::interval::IntervalRecord;
use crate::runs::run::times_summary::round_to_thousandths;

/// The users of a run or a stage.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct UsersSummary {
    /// The mean number of users in flight over the stage's planned time; `None`: the time is not known.
    pub in_flight_mean: Option<f64>,
    /// The greatest number of users in flight at one time.
    pub in_flight_max: u64,
    /// The mean number of users who waited for a connection; `None`: the time is not known.
    pub waiting_mean: Option<f64>,
    /// The greatest number of users who waited at one time.
    pub waiting_max: u64,
}

/// Adds up the users of the intervals of a stage.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UserTotals {
    in_flight_max: u64,
    waiting_max: u64,
    in_flight_us: f64,
    waiting_us: f64,
    time: Duration,
}

impl UserTotals {
    /// Adds the part of an interval that lies in the stage's planned time.
    pub(super) fn add(&mut self, header: &RunHeader, stage: u8, interval: &IntervalRecord) {
        let Some(users) = interval.users else { return };
        let (begin, end) = header.stage_span(stage);
        let end = end.map_or(interval.end_offset(), |end| end.min(interval.end_offset()));
        let part = end.saturating_sub(begin.max(interval.start_offset));
        if part.is_zero() {
            return;
        }
        let share = part.as_secs_f64() / interval.length.as_secs_f64();
        self.in_flight_max = self.in_flight_max.max(users.in_flight_max);
        self.waiting_max = self.waiting_max.max(users.waiting_max);
        self.in_flight_us += users.in_flight_us as f64 * share;
        self.waiting_us += users.waiting_us as f64 * share;
        self.time += part;
    }

    /// Adds the users of a stage that follows.
    pub(super) fn merge(&mut self, other: &UserTotals) {
        self.in_flight_max = self.in_flight_max.max(other.in_flight_max);
        self.waiting_max = self.waiting_max.max(other.waiting_max);
        self.in_flight_us += other.in_flight_us;
        self.waiting_us += other.waiting_us;
        self.time += other.time;
    }

    /// Returns the figures; `None` if the load had no users.
    pub(super) fn summary(&self) -> Option<UsersSummary> {
        let time_us = self.time.as_micros() as f64;
        let mean = |us: f64| (time_us > 0.0).then(|| round_to_thousandths(us / time_us));
        (self.in_flight_max > 0).then(|| UsersSummary {
            in_flight_mean: mean(self.in_flight_us),
            in_flight_max: self.in_flight_max,
            waiting_mean: mean(self.waiting_us),
            waiting_max: self.waiting_max,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runs::run::UserLevels;
    use crate::runs::run::header::PlannedStage;

    /// Users of an interval of `length_ms` at `start_ms`, who were in flight all the time.
    fn interval(start_ms: u64, length_ms: u64, users: u64) -> IntervalRecord {
        IntervalRecord {
            start_offset: Duration::from_millis(start_ms),
            length: Duration::from_millis(length_ms),
            users: Some(UserLevels {
                in_flight: users,
                in_flight_max: users,
                in_flight_us: users * length_ms * 1_000,
                ..UserLevels::default()
            }),
            ..IntervalRecord::default()
        }
    }

    #[test]
    fn mean_covers_planned_time_only() {
        let stage = |name: &str, seconds: u64| PlannedStage {
            name: name.to_owned(),
            warmup: name == "warm-up",
            duration_us: Some(seconds * 1_000_000),
            rate_from_per_s: Some(1.0),
            rate_to_per_s: Some(1.0),
        };
        let header = RunHeader {
            planned_stages: vec![stage("warm-up", 1), stage("load", 2)],
            ..RunHeader::default()
        };
        let mut totals = UserTotals::default();
        // The warm-up, one whole second, a half of which the other half is the drain, and the rest of the drain.
        for (start_ms, length_ms, users) in [
            (0, 1_000, 90),
            (1_000, 1_500, 10),
            (2_500, 1_000, 30),
            (3_500, 500, 70),
        ] {
            totals.add(&header, 1, &interval(start_ms, length_ms, users));
        }
        let users = totals.summary().expect("users");
        assert_eq!(users.in_flight_mean, Some((15.0 + 15.0) / 2.0));
        assert_eq!((users.in_flight_max, users.waiting_max), (30, 0));
        assert_eq!(UserTotals::default().summary(), None);
    }
}
