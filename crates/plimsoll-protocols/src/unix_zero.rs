//! When a run's clock began: templates need the time of day, and drivers know the run's own.

use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_model::Time;

/// Nanoseconds since 1970 at [`Time::ZERO`].
#[derive(Debug, Default)]
pub(crate) struct UnixZero(AtomicU64);

impl UnixZero {
    pub(crate) fn set(&self, unix_ns: u64) {
        self.0.store(unix_ns, Ordering::Relaxed);
    }

    /// Nanoseconds since 1970.
    #[inline]
    pub(crate) fn at(&self, now: Time) -> u64 {
        self.0.load(Ordering::Relaxed).wrapping_add(now.0)
    }
}
