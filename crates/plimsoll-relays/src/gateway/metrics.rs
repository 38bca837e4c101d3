//! What the gateway counts, and how `/metrics` shows it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::bus::Bus;
use crate::metrics::{Computed, Counter, Family, Labels, Registry, counters, labels, registry};

counters! {
    /// Counters since the start. Clones share what they count.
    pub struct Metrics {
        sessions: "sessions", "Sessions admitted";
        frames: "frames", "Frames sent to clients";
        frame_bytes: "frame_bytes", "Bytes of these frames";
        up_messages: "up_messages", "Messages from clients";
        up_unheard: "up_unheard", "Messages that had no listener";
        duplicates: "duplicates_dropped", "Live frames that the client had already";
        log_reads: "log_reads", "Times a log was read";
        gaps: "gaps", "Times a client missed frames that no log holds any longer";
        gone: "frames_gone", "Frames that no socket was sent and no log has: of a backend without one, or lost";
        slow: "slow_readers", "Times a client's queue was full";
        unread: "unread", "Sockets closed because their clients sent and did not read the answers";
    }
    and {
        refused: ByName<&'static str>,
        closed: ByName<u16>,
    }
}

/// Counters by a name that is not known before.
#[derive(Clone, Debug, Default)]
struct ByName<N> {
    shown: Family<Labels, Counter>,
    /// The same, for those in this process who ask which there are.
    known: Arc<Mutex<BTreeMap<N, u64>>>,
}

impl<N: Ord + Clone> ByName<N> {
    fn count(&self, name: N, labels: &Labels) {
        self.shown.get_or_create_owned(labels).inc();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        *known.entry(name).or_default() += 1;
    }

    fn known(&self) -> BTreeMap<N, u64> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.clone()
    }
}

impl Metrics {
    pub(super) fn refused(&self, reason: &'static str) {
        self.refused.count(reason, &labels([("reason", reason)]));
    }

    pub(super) fn closed(&self, code: u16) {
        self.closed
            .count(code, &labels([("code", &code.to_string())]));
    }

    /// Requests refused, by reason.
    pub fn refusals(&self) -> BTreeMap<&'static str, u64> {
        self.refused.known()
    }

    /// Sessions ended, by close code; 1006: the connection was lost without one.
    pub fn closes(&self) -> BTreeMap<u16, u64> {
        self.closed.known()
    }

    /// What `/metrics` shows. `open`: sessions that have a socket.
    pub(super) fn registry(&self, open: &Arc<AtomicU64>, bus: &Bus) -> Registry {
        let mut registry = registry("gateway");
        let (open, bus) = (Arc::clone(open), bus.clone());
        let help = "Sessions that have a socket here";
        let read = Computed::gauge(move || open.load(Ordering::Relaxed));
        registry.register("sessions_open", help, read);
        let help = "Whether the bus can be used";
        let read = Computed::gauge(move || u64::from(bus.is_up()));
        registry.register("bus_up", help, read);
        self.register_counters(&mut registry);
        let help = "Requests refused, by class";
        registry.register("refused", help, self.refused.shown.clone());
        let help = "Sessions ended, by close code; 1006: the connection was lost without one";
        registry.register("closed", help, self.closed.shown.clone());
        registry
    }
}
