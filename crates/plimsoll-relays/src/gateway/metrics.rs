//! What the gateway counts, and how `/metrics` shows it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::bus::Bus;
use crate::metrics::{Computed, Counter, Family, Labels, Registry, labels, registry};

/// Counters since the start. Clones share what they count.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    /// Sessions admitted.
    pub sessions: Counter,
    /// Frames sent to clients, and their bytes.
    pub frames: Counter,
    pub frame_bytes: Counter,
    /// Messages from clients.
    pub up_messages: Counter,
    /// Those of them that had no listener.
    pub up_unheard: Counter,
    /// Live frames that the client had already.
    pub duplicates: Counter,
    /// Times a log was read.
    pub log_reads: Counter,
    /// Times a client missed frames that no log holds any longer.
    pub gaps: Counter,
    /// Frames that no socket was sent and no log has: of a backend without one, or lost.
    pub gone: Counter,
    /// Times a client's queue was full.
    pub slow: Counter,
    /// Sessions closed because their clients sent and did not read the answers.
    pub unread: Counter,
    refused: ByName<&'static str>,
    closed: ByName<u16>,
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
        for (name, help, read) in [
            (
                "sessions_open",
                "Sessions that have a socket here",
                Computed::gauge(move || open.load(Ordering::Relaxed)),
            ),
            (
                "bus_up",
                "Whether the bus can be used",
                Computed::gauge(move || u64::from(bus.is_up())),
            ),
        ] {
            registry.register(name, help, read);
        }
        for (name, help, counter) in [
            ("sessions", "Sessions admitted", &self.sessions),
            ("frames", "Frames sent to clients", &self.frames),
            ("frame_bytes", "Bytes of these frames", &self.frame_bytes),
            ("up_messages", "Messages from clients", &self.up_messages),
            (
                "up_unheard",
                "Messages that had no listener",
                &self.up_unheard,
            ),
            (
                "duplicates_dropped",
                "Live frames that the client had already",
                &self.duplicates,
            ),
            ("log_reads", "Times a log was read", &self.log_reads),
            (
                "gaps",
                "Times a client missed frames that no log holds any longer",
                &self.gaps,
            ),
            (
                "frames_gone",
                "Frames that no socket was sent and no log has: of a backend without one, or lost",
                &self.gone,
            ),
            (
                "slow_readers",
                "Times a client's queue was full",
                &self.slow,
            ),
            (
                "unread",
                "Sockets closed because their clients sent and did not read the answers",
                &self.unread,
            ),
        ] {
            registry.register(name, help, counter.clone());
        }
        let help = "Requests refused, by class";
        registry.register("refused", help, self.refused.shown.clone());
        let help = "Sessions ended, by close code; 1006: the connection was lost without one";
        registry.register("closed", help, self.closed.shown.clone());
        registry
    }
}
