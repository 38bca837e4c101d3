//! Limits the number of unproven connections, whose peers have not shown yet that they are real clients. At the limit,
//! the oldest one is evicted for a new one.
//!
//! Anybody can open sockets and send nothing, or half a request. Each of these connections has its own time limit. The
//! limit on their number keeps them from using up all descriptors and shutting other clients out.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// The unproven connections of one server, and their limit.
#[derive(Debug)]
pub(super) struct UnprovenConnections {
    max: usize,
    queue: Mutex<EvictionQueue>,
}

#[derive(Debug, Default)]
struct EvictionQueue {
    next: u64,
    /// Eviction signals of the unproven connections, by age, oldest first.
    evictions: BTreeMap<u64, oneshot::Sender<()>>,
}

/// A guard that marks a connection as unproven until the guard is dropped.
#[derive(Debug)]
pub struct UnprovenGuard {
    number: u64,
    admission: Arc<UnprovenConnections>,
}

impl UnprovenConnections {
    /// Creates a limit of `max` unproven connections; 0 counts as 1.
    pub(super) fn new(max: usize) -> Arc<UnprovenConnections> {
        Arc::new(UnprovenConnections {
            max: max.max(1),
            queue: Mutex::default(),
        })
    }

    /// Registers a connection. The receiver completes with a value when the connection must give way to a newer
    /// one, and with an error once the guard is dropped.
    pub(super) fn register(
        self: &Arc<UnprovenConnections>,
    ) -> (UnprovenGuard, oneshot::Receiver<()>) {
        let (evict, evicted) = oneshot::channel();
        let mut waiting = self.lock();
        let number = waiting.next;
        waiting.next += 1;
        waiting.evictions.insert(number, evict);
        if waiting.evictions.len() > self.max
            && let Some((_, oldest)) = waiting.evictions.pop_first()
        {
            // Sending fails if the evicted connection has just ended.
            let _ = oldest.send(());
        }
        drop(waiting);
        let mark = UnprovenGuard {
            number,
            admission: Arc::clone(self),
        };
        (mark, evicted)
    }

    fn lock(&self) -> MutexGuard<'_, EvictionQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for UnprovenGuard {
    fn drop(&mut self) {
        self.admission.lock().evictions.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_unproven_connection_is_evicted() {
        let admission = UnprovenConnections::new(2);
        let (first, mut first_evicted) = admission.register();
        let (_second, mut second_evicted) = admission.register();
        assert!(first_evicted.try_recv().is_err());
        let (third, _) = admission.register();
        assert_eq!(first_evicted.try_recv(), Ok(()));
        assert!(second_evicted.try_recv().is_err());
        // A proven connection no longer counts.
        drop(third);
        drop(first);
        let (_fourth, _) = admission.register();
        assert!(second_evicted.try_recv().is_err());
    }
}
