//! Estimates remaining times for progress lines of the live view, of ladders, and of lanes (loads that run side by
//! side).

use std::time::Duration;

use plimsoll_engine::Clock;

/// Longest estimate to show, seconds; longer estimates are too uncertain.
const MAX_ESTIMATE_S: f64 = 86_400.0;

/// Formats seconds: `7 s`, `3:05`, `2:03:05`.
pub(crate) fn format_clock(seconds: f64) -> String {
    let s = seconds.max(0.0).round() as u64;
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{}:{:02}", s / 60, s % 60),
        _ => format!("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60),
    }
}

/// Formats an estimate of the remaining time in words; `seconds` is the estimate.
pub(crate) fn format_estimate(seconds: f64) -> String {
    if seconds.is_finite() && seconds <= MAX_ESTIMATE_S {
        format!("about {} left", format_clock(seconds))
    } else {
        "too far to estimate".to_owned()
    }
}

/// Estimator of the remaining time of rounds that take about equally long.
pub(crate) struct RemainingTime {
    clock: Clock,
    all: u32,
}

impl RemainingTime {
    /// Starts the clock for `all` rounds.
    pub(crate) fn start(all: u32) -> RemainingTime {
        RemainingTime {
            clock: Clock::new(),
            all,
        }
    }

    /// Returns the estimate after `done` rounds, with a leading comma; empty if the estimate is unknown, or no round is
    /// left.
    pub(crate) fn estimate_after(&self, done: u32) -> String {
        let elapsed = Duration::from_nanos(self.clock.now().0);
        seconds_left(elapsed, done, self.all)
            .map_or_else(String::new, |s| format!(", {}", format_estimate(s)))
    }
}

/// Returns the seconds that the remaining rounds will take if `done` of `all` rounds took `elapsed`; `None` if that is
/// unknown or too uncertain.
fn seconds_left(elapsed: Duration, done: u32, all: u32) -> Option<f64> {
    let rest = all.checked_sub(done).filter(|rest| *rest > 0)?;
    (done > 0).then(|| elapsed.as_secs_f64() / f64::from(done) * f64::from(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_formatted_as_clock() {
        assert_eq!(
            [0.4, 59.0, 60.0, 3_599.4, 7_385.0].map(format_clock),
            ["0 s", "59 s", "1:00", "59:59", "2:03:05"]
        );
    }

    #[test]
    fn absurd_estimates_are_not_shown() {
        assert_eq!(format_estimate(65.2), "about 1:05 left");
        for seconds in [86_401.0, 22_774_290_755.0, f64::INFINITY, f64::NAN] {
            assert_eq!(format_estimate(seconds), "too far to estimate", "{seconds}");
        }
    }

    #[test]
    fn remaining_time_extrapolates_completed_rounds() {
        let elapsed = Duration::from_secs(30);
        assert_eq!(seconds_left(elapsed, 3, 10), Some(70.0));
        assert_eq!(seconds_left(elapsed, 0, 10), None);
        assert_eq!(seconds_left(elapsed, 10, 10), None);
        assert_eq!(seconds_left(elapsed, 11, 10), None);
        assert_eq!(RemainingTime::start(4).estimate_after(0), "");
        assert!(RemainingTime::start(4).estimate_after(2).ends_with(" left"));
    }
}
