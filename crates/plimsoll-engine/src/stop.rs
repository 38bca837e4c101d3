//! How a run is asked to end before its time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::event_loop::StopLevel;

/// Shared with whoever may end the run: a signal handler, an objective that is missed.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    asked: Arc<AtomicU8>,
    /// Whoever stops all runs stops this one.
    all: Option<Arc<AtomicU8>>,
}

impl Stop {
    /// One that nobody has asked for.
    pub fn new() -> Stop {
        Stop::default()
    }

    /// A stop for one run of several: asking it leaves the others alone, and asking `self`
    /// asks it, too.
    #[must_use]
    pub fn for_one(&self) -> Stop {
        Stop {
            asked: Arc::default(),
            all: Some(Arc::clone(&self.asked)),
        }
    }

    /// Ask once for a graceful end, twice for an end at once.
    pub fn request(&self) {
        let _ = self
            .asked
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |level| {
                Some(level.saturating_add(1).min(2))
            });
    }

    /// What was asked for by now, of this run or of all.
    pub fn level(&self) -> StopLevel {
        let all = self
            .all
            .as_ref()
            .map_or(0, |all| all.load(Ordering::Relaxed));
        match self.asked.load(Ordering::Relaxed).max(all) {
            0 => StopLevel::Run,
            1 => StopLevel::Graceful,
            _ => StopLevel::Now,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_affects_one_run_or_all() {
        let all = Stop::new();
        let (a, b) = (all.for_one(), all.for_one());
        a.request();
        assert_eq!(
            (all.level(), a.level(), b.level()),
            (StopLevel::Run, StopLevel::Graceful, StopLevel::Run)
        );
        all.request();
        all.request();
        assert_eq!((a.level(), b.level()), (StopLevel::Now, StopLevel::Now));
    }
}
