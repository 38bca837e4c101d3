//! The one clock of a run: monotonic, shared by all workers of a process, and, where a run
//! is spread over several processes of a machine, by all of them.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use plimsoll_model::Time;
use rustix::time::{ClockId, clock_gettime};

/// Monotonic time since the clock was made. A copy reads the same time line.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "this is the one clock")]
    pub fn new() -> Clock {
        Clock {
            origin: Instant::now(),
        }
    }

    /// The clock of another process of this machine, whose [`Clock::origin_ns`] is given.
    #[expect(clippy::disallowed_methods, reason = "this is the one clock")]
    pub fn of_origin(origin_ns: u64) -> Clock {
        let ago = Duration::from_nanos(monotonic_ns().saturating_sub(origin_ns));
        let now = Instant::now();
        Clock {
            origin: now.checked_sub(ago).unwrap_or(now),
        }
    }

    /// Where this clock begins, on the clock of the machine that all processes see.
    pub fn origin_ns(&self) -> u64 {
        monotonic_ns().saturating_sub(self.now().0)
    }

    /// What the clocks on walls showed at [`Time::ZERO`]: nanoseconds since 1970, as of now.
    pub fn unix_zero(&self) -> u64 {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
        let nanos = since_1970.map_or(0, |since| since.as_nanos());
        u64::try_from(nanos)
            .unwrap_or(u64::MAX)
            .saturating_sub(self.now().0)
    }

    #[inline]
    #[expect(clippy::disallowed_methods, reason = "this is the one clock")]
    pub fn now(&self) -> Time {
        let elapsed = Instant::now().saturating_duration_since(self.origin);
        Time(elapsed.as_secs() * 1_000_000_000 + u64::from(elapsed.subsec_nanos()))
    }
}

impl Default for Clock {
    fn default() -> Clock {
        Clock::new()
    }
}

/// Nanoseconds on `CLOCK_MONOTONIC`, which is what [`Instant`] reads and does not show.
fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_of_the_same_origin_reads_the_same_time() {
        let one = Clock::new();
        let other = Clock::of_origin(one.origin_ns());
        let (before, read, after) = (one.now(), other.now(), one.now());
        // The two readings that the origin takes may be apart when the thread is preempted.
        let slack = Duration::from_millis(20);
        assert!(
            read + slack > before && after + slack > read,
            "{before:?} {read:?} {after:?}"
        );
    }
}
