//! The one clock of a run: monotonic, shared by all workers of a process.

use std::time::Instant;

use plimsoll_model::Time;

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
