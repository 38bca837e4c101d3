//! The clock of a run: monotonic and shared by all workers of a process and, if a run uses several processes
//! of a machine, by all of them.

use std::time::{SystemTime, UNIX_EPOCH};

use plimsoll_model::Time;
use rustix::time::{ClockId, clock_gettime};

/// A monotonic clock with a fixed origin. All copies of a clock have the same origin.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// The origin in nanoseconds on `CLOCK_MONOTONIC`, which is the same for all processes of a machine.
    origin_ns: u64,
}

impl Clock {
    /// Creates a clock whose origin is the current time.
    pub fn new() -> Clock {
        Clock::from_origin(monotonic_ns())
    }

    /// Creates a copy of the clock of another process of this machine from its [`Clock::origin_ns`].
    pub fn from_origin(origin_ns: u64) -> Clock {
        Clock { origin_ns }
    }

    /// Returns the origin of this clock in nanoseconds on `CLOCK_MONOTONIC`.
    pub fn origin_ns(&self) -> u64 {
        self.origin_ns
    }

    /// Returns the wall-clock time at [`Time::ZERO`] in nanoseconds since 1970, computed from the current time.
    pub fn origin_unix_ns(&self) -> u64 {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
        let nanos = since_1970.map_or(0, |since| since.as_nanos());
        u64::try_from(nanos)
            .unwrap_or(u64::MAX)
            .saturating_sub(self.now().0)
    }

    /// Returns the time since the clock's origin.
    #[inline]
    pub fn now(&self) -> Time {
        Time(monotonic_ns().saturating_sub(self.origin_ns))
    }
}

impl Default for Clock {
    fn default() -> Clock {
        Clock::new()
    }
}

/// Reads the system's clock without [`std::time::Instant`], which takes 1.5 times as long for the same counter.
#[inline]
fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // `CLOCK_MONOTONIC` counts from the machine's start, so both fields are non-negative.
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn clocks_with_same_origin_agree() {
        let one = Clock::new();
        let other = Clock::from_origin(one.origin_ns());
        let (before, read, after) = (one.now(), other.now(), one.now());
        assert!(
            before <= read && read <= after,
            "{before:?} {read:?} {after:?}"
        );
    }

    #[test]
    fn clock_advances_in_real_time() {
        let clock = Clock::new();
        std::thread::sleep(Duration::from_millis(20));
        let read = clock.now();
        assert!((20_000_000..5_000_000_000).contains(&read.0), "{read:?}");
    }
}
