//! Stop requests, which end a run early.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::event_loop::StopUrgency;

/// A stop request, shared with everything that may end the run, such as a signal handler or a missed objective.
#[derive(Clone, Debug, Default)]
pub struct StopFlag {
    level: Arc<AtomicU8>,
    /// The parent's requests, which stop this run as well.
    parent: Option<Arc<AtomicU8>>,
}

impl StopFlag {
    /// Creates a flag without a request.
    pub fn new() -> StopFlag {
        StopFlag::default()
    }

    /// Returns a flag for one of several runs: a request on it does not affect the other runs, and a request on `self`
    /// stops this run too.
    #[must_use]
    pub fn child(&self) -> StopFlag {
        StopFlag {
            level: Arc::default(),
            parent: Some(Arc::clone(&self.level)),
        }
    }

    /// Requests a graceful end; a second request ends the run at once.
    pub fn request(&self) {
        let _ = self
            .level
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |level| {
                Some(level.saturating_add(1).min(2))
            });
    }

    /// Returns the highest level requested so far, for this run or for all runs.
    pub fn level(&self) -> StopUrgency {
        let all = self
            .parent
            .as_ref()
            .map_or(0, |all| all.load(Ordering::Relaxed));
        match self.level.load(Ordering::Relaxed).max(all) {
            0 => StopUrgency::Run,
            1 => StopUrgency::Graceful,
            _ => StopUrgency::Now,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_affects_one_run_or_all() {
        let all = StopFlag::new();
        let (a, b) = (all.child(), all.child());
        a.request();
        assert_eq!(
            (all.level(), a.level(), b.level()),
            (StopUrgency::Run, StopUrgency::Graceful, StopUrgency::Run)
        );
        all.request();
        all.request();
        assert_eq!((a.level(), b.level()), (StopUrgency::Now, StopUrgency::Now));
    }
}
