//! A point on the run's monotonic clock.

use std::fmt;
use std::ops::Add;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Nanoseconds since the start of the run's clock. Only differences are meaningful.
///
/// The type contains a `u64` instead of a [`std::time::Instant`], so that simulated time, schedules and samples are
/// plain values.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Time(pub u64);

impl Time {
    /// The start of the run's clock.
    pub const ZERO: Time = Time(0);
    /// A time after any event of a run, which means "never".
    pub const NEVER: Time = Time(u64::MAX);

    /// Returns the nanoseconds from `earlier` to `self`; 0 if `earlier` is later than `self`.
    #[inline]
    pub fn since(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns [`Time::since`] as a [`Duration`].
    pub fn duration_since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.since(earlier))
    }

    /// Adds nanoseconds; the sum is at most [`Time::NEVER`].
    #[inline]
    pub fn plus_nanos(self, nanos: u64) -> Time {
        Time(self.0.saturating_add(nanos))
    }
}

impl Add<Duration> for Time {
    type Output = Time;
    fn add(self, d: Duration) -> Time {
        self.plus_nanos(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6}s", self.0 as f64 / 1e9)
    }
}
