//! How a run is asked to end before its time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::worker::StopLevel;

/// Shared with whoever may end the run: a signal handler, an objective that is missed.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicU8>);

impl Stop {
    pub fn new() -> Stop {
        Stop::default()
    }

    /// Ask once for a graceful end, twice for an end at once.
    pub fn request(&self) {
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |level| {
                Some(level.saturating_add(1).min(2))
            });
    }

    pub fn level(&self) -> StopLevel {
        match self.0.load(Ordering::Relaxed) {
            0 => StopLevel::Run,
            1 => StopLevel::Graceful,
            _ => StopLevel::Now,
        }
    }
}
