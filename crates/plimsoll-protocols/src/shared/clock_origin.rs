//! The time of day at which a run's clock began: templates need the time of day, and drivers only know the run's
//! clock.

use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_model::Time;

/// Nanoseconds between 1970 and [`Time::ZERO`].
#[derive(Debug, Default)]
pub(crate) struct ClockOrigin(AtomicU64);

impl ClockOrigin {
    pub(crate) fn set(&self, unix_ns: u64) {
        self.0.store(unix_ns, Ordering::Relaxed);
    }

    /// Converts a time of the run to nanoseconds since 1970.
    #[inline]
    pub(crate) fn unix_ns_at(&self, now: Time) -> u64 {
        self.0.load(Ordering::Relaxed).wrapping_add(now.0)
    }
}
