//! Detects a backlog that grows during a trial: the trend of the calls in flight and due.
//!
//! Above its capacity, a server's queue grows for as long as the load lasts, but in short trials percentiles hardly
//! show it. By Little's law, response times grow with the calls in flight, so the number of calls shows the growth of
//! both. If the server is never idle, the increments of this number from second to second are independent; if the
//! server keeps up, they cancel each other out. So Student's t-test of their mean errs at most as often as its level
//! says ([`GROWTH_ERROR_PROBABILITY`]).

use std::time::Duration;

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};

use crate::runs::run::IntervalRecord;

/// Probability of mistaking a rate that the target just sustains for one above its capacity.
pub const GROWTH_ERROR_PROBABILITY: f64 = 0.005;
/// The same probability for trials of two or three seconds. With the lower one, these trials could not show any growth.
const SHORT_TRIAL_GROWTH_ERROR_PROBABILITY: f64 = 0.02;
/// Growth up to this share of the precision is tolerated and does not fail a trial.
pub(super) const MAX_TOLERATED_GROWTH: f64 = 0.25;
/// Minimum growth in calls; a smaller one may just reflect when the readings were taken.
const MIN_GROWTH_IN_CALLS: f64 = 3.0;
/// In trials with at most this many increments, their variance can't be estimated. It is assumed to be that of a server
/// with exponential service times, and growth is significant above [`MIN_SIGNIFICANT_DEVIATIONS`] standard deviations.
const MAX_SHORT_TRIAL_INCREMENTS: u32 = 3;
const MIN_SIGNIFICANT_DEVIATIONS: f64 = 2.6;
/// Minimum standard error of the mean of increments, in calls, because readings are whole calls.
const MIN_STANDARD_ERROR_IN_CALLS: f64 = 0.5;

/// The growth of the backlog over a trial.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BacklogGrowth {
    /// The growth in calls per second.
    pub per_s: f64,
    /// The standard error of the growth, in calls per second.
    pub error_per_s: f64,
    /// Number of increments from which the growth is estimated, about a second each.
    pub increments: u32,
    /// Number of calls at the first reading.
    #[serde(default)]
    pub first: f64,
}

impl BacklogGrowth {
    /// Estimates the growth from the calls in flight and due at the ends of a run's `intervals`, between the end of
    /// its warm-up and the end of its load (both from the start of the run). `None`: fewer than three readings.
    pub fn from_intervals(
        intervals: &[IntervalRecord],
        warmup: Duration,
        end: Duration,
    ) -> Option<BacklogGrowth> {
        /// The tolerance for the time of a reading, and the minimum distance between readings.
        const READING_TOLERANCE: Duration = Duration::from_millis(50);
        const MIN_READING_DISTANCE_S: f64 = 0.5;
        let readings: Vec<(f64, f64)> = intervals
            .iter()
            .map(|i| (i.end_offset(), i.in_flight + i.backlog))
            .filter(|(at, _)| *at + READING_TOLERANCE >= warmup && *at <= end + READING_TOLERANCE)
            .map(|(at, calls)| (at.as_secs_f64(), calls as f64))
            .collect();
        let increments: Vec<f64> = readings
            .windows(2)
            .filter(|w| w[1].0 - w[0].0 >= MIN_READING_DISTANCE_S)
            .map(|w| (w[1].1 - w[0].1) / (w[1].0 - w[0].0))
            .collect();
        let (_, first) = readings.first()?;
        BacklogGrowth::from_increments(*first, &increments)
    }

    fn from_increments(first: f64, increments: &[f64]) -> Option<BacklogGrowth> {
        let n = increments.len() as f64;
        if increments.len() < 2 {
            return None;
        }
        let per_s = increments.iter().sum::<f64>() / n;
        let squares: f64 = increments.iter().map(|i| (i - per_s).powi(2)).sum();
        let error_per_s = (squares / (n - 1.0) / n).sqrt();
        Some(BacklogGrowth {
            per_s,
            error_per_s: error_per_s.max(MIN_STANDARD_ERROR_IN_CALLS / n),
            increments: increments.len() as u32,
            first,
        })
    }

    /// Returns whether the rate was above the target's capacity: the queue grew by more than `precision` (a share)
    /// tolerates, with an error probability of [`GROWTH_ERROR_PROBABILITY`].
    pub fn is_significant(&self, rate_per_s: f64, precision: f64) -> bool {
        let n = f64::from(self.increments);
        let more_per_s = self.per_s - MAX_TOLERATED_GROWTH * precision * rate_per_s;
        if self.per_s * n < MIN_GROWTH_IN_CALLS {
            return false;
        }
        if self.increments <= MAX_SHORT_TRIAL_INCREMENTS
            && more_per_s * n >= MIN_SIGNIFICANT_DEVIATIONS * (rate_per_s * n).sqrt()
        {
            return true;
        }
        more_per_s > critical_standard_errors(n) * self.error_per_s
    }
}

/// Returns how many standard errors above zero a growth of `n` increments must be to be significant. A queue never
/// falls below zero, so it exceeds a bound twice as often as an unrestricted walk (the reflection principle).
pub(super) fn critical_standard_errors(n: f64) -> f64 {
    let error = if n <= f64::from(MAX_SHORT_TRIAL_INCREMENTS) {
        SHORT_TRIAL_GROWTH_ERROR_PROBABILITY
    } else {
        GROWTH_ERROR_PROBABILITY
    };
    StudentsT::new(0.0, 1.0, n - 1.0).map_or(f64::INFINITY, |t| t.inverse_cdf(1.0 - error / 2.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn growth(calls: &[u64]) -> Option<BacklogGrowth> {
        let intervals: Vec<IntervalRecord> = (0..)
            .zip(calls)
            .map(|(i, calls)| IntervalRecord {
                index: i,
                start_offset: Duration::from_secs(i),
                length: Duration::from_secs(1),
                in_flight: *calls / 2,
                backlog: calls.div_ceil(2),
                ..IntervalRecord::default()
            })
            .collect();
        let end = Duration::from_secs(calls.len() as u64);
        BacklogGrowth::from_intervals(&intervals, Duration::from_secs(1), end)
    }

    #[test]
    fn overload_is_detected_within_seconds() {
        // The target serves exactly 200/s, so the queue grows by the excess; the first second is the warm-up.
        let queue = |rate: u64, seconds: u64| -> Vec<u64> {
            (1..=seconds + 1).map(|s| (rate - 200) * s + 1).collect()
        };
        for (seconds, least) in [(2, 209), (5, 202)] {
            for rate in least..=231 {
                let growth = growth(&queue(rate, seconds)).unwrap();
                assert!(
                    growth.is_significant(rate as f64, 0.01),
                    "{rate}/s for {seconds} s"
                );
            }
        }
        assert!(!growth(&queue(200, 5)).unwrap().is_significant(200.0, 0.01));
    }

    #[test]
    fn fluctuating_backlog_is_not_growth() {
        for calls in [
            [4, 9, 3, 8, 2, 7].as_slice(),
            &[4, 4, 4, 4, 4, 104],
            &[4, 90, 4, 4, 50, 4],
            &[90, 70, 50, 30, 10, 0],
            &[4, 4, 5, 5, 5, 6],
        ] {
            assert!(
                !growth(calls).unwrap().is_significant(1_000.0, 0.01),
                "{calls:?}"
            );
        }
        assert_eq!(growth(&[4, 9]), None, "one increment");
    }

    #[test]
    fn growth_test_matches_student_t_table() {
        // Increments 1, 2, 3, 4, 5: mean 3, s = 1.5811, standard error 0.7071; critical at 0.25 %
        // with four degrees of freedom: 5.598 (Student's table). A quarter of 1 % of 100/s is
        // within the precision.
        let growth = BacklogGrowth::from_increments(0.0, &[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        assert!((growth.per_s - 3.0).abs() < 1e-12);
        assert!((growth.error_per_s - 0.5_f64.sqrt()).abs() < 1e-12);
        assert!(!growth.is_significant(100.0, 0.01));
        let near = |error_per_s| BacklogGrowth {
            error_per_s,
            ..growth
        };
        assert!(near(2.75 / 5.6).is_significant(100.0, 0.01));
        assert!(!near(2.75 / 5.59).is_significant(100.0, 0.01));
    }
}
