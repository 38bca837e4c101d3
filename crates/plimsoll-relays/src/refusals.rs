//! Rate-limits the log of refused clients: the first refusal of a class is logged at once, later
//! ones as a count, so that many rejected clients do not fill the disk. Nothing that a client sent
//! is logged.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

const REPORT_INTERVAL: Duration = Duration::from_secs(5);

/// Counts of refusals that were not logged yet, by class. After a report period without refusals of a class, its next
/// refusal is logged at once again.
#[derive(Default)]
pub(crate) struct RefusalLog(Mutex<BTreeMap<&'static str, u64>>);

impl RefusalLog {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn log_refusal(
        &self,
        status: Option<u16>,
        reason: &'static str,
        peer: impl Display,
    ) {
        if self.count_refusal(reason) {
            tracing::warn!(%peer, status, reason, "refused");
        }
    }

    /// Counts a refusal; returns whether it is the first of its class.
    fn count_refusal(&self, reason: &'static str) -> bool {
        let mut unreported = self.lock();
        let known = unreported.get_mut(reason).map(|n| *n += 1).is_some();
        if !known {
            unreported.insert(reason, 0);
        }
        !known
    }

    /// Logs the number of refusals of each class since the last report.
    pub(crate) fn report(&self) {
        for (reason, refused) in self.take_counts() {
            tracing::warn!(reason, "refused {refused} more");
        }
    }

    fn take_counts(&self) -> Vec<(&'static str, u64)> {
        let mut unreported = self.lock();
        unreported.retain(|_, n| *n > 0);
        let unreported = unreported.iter_mut();
        unreported
            .map(|(reason, n)| (*reason, std::mem::take(n)))
            .collect()
    }

    /// Reports at regular intervals for as long as it is polled.
    pub(crate) async fn report_regularly(&self) {
        let mut ticks = interval(REPORT_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.report();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_logged_and_rest_counted() {
        let refusals = RefusalLog::default();
        let firsts = (0..100)
            .filter(|_| refusals.count_refusal("expired"))
            .count();
        assert_eq!((firsts, refusals.count_refusal("path")), (1, true));
        assert_eq!(refusals.take_counts(), [("expired", 99)]);
        assert!(!refusals.count_refusal("expired"), "it goes on");
        assert_eq!(refusals.take_counts(), [("expired", 1)]);
        assert_eq!(refusals.take_counts(), []);
        assert!(
            refusals.count_refusal("expired"),
            "it was quiet, and comes again"
        );
    }
}
