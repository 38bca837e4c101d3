//! The gateway's metrics, shown at `/metrics`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::bus::Bus;
use crate::metrics::{
    ComputedMetric, Counter, Family, MetricLabels, Registry, counters, labels, new_registry,
};

counters! {
    /// Counters since the start. Clones share their counts.
    pub struct Metrics {
        sessions: "sessions", "Sessions admitted";
        frames: "frames", "Frames sent to clients";
        frame_bytes: "frame_bytes", "Bytes of these frames";
        up_messages: "up_messages", "Messages from clients";
        up_unheard: "up_unheard", "Messages that had no listener";
        duplicates: "duplicates_dropped", "Live frames that the client already had";
        log_reads: "log_reads", "Times a log was read";
        gaps: "gaps", "Times a client missed frames that no log holds any longer";
        gone: "frames_gone", "Frames neither sent to a socket nor in a log: of a backend without one, or lost";
        slow: "slow_readers", "Times a client's queue was full";
        unread: "unread", "Sockets closed because their clients sent requests but did not read the answers";
    }
    and {
        refusals: Counter,
        refused: Family<MetricLabels, Counter>,
        closed: Family<MetricLabels, Counter>,
    }
}

impl Metrics {
    pub(super) fn count_refusal(&self, reason: &'static str) {
        self.refusals.inc();
        self.refusal_counter(reason).inc();
    }

    pub(super) fn count_close(&self, code: u16) {
        self.close_counter(code).inc();
    }

    /// Returns the counter of requests refused for a reason.
    pub fn refusal_counter(&self, reason: &str) -> Counter {
        self.refused
            .get_or_create_owned(&labels([("reason", reason)]))
    }

    /// Returns the counter of sessions ended with a close code; 1006 stands for a lost connection.
    pub fn close_counter(&self, code: u16) -> Counter {
        let code = code.to_string();
        self.closed.get_or_create_owned(&labels([("code", &code)]))
    }

    /// Returns the number of requests refused for any reason.
    pub fn refusal_count(&self) -> u64 {
        self.refusals.get()
    }

    /// Returns the registry for `/metrics`. `open` is the number of sessions with a socket.
    pub(super) fn registry(&self, open: &Arc<AtomicU64>, bus: &Bus) -> Registry {
        let mut registry = new_registry("gateway");
        let (open, bus) = (Arc::clone(open), bus.clone());
        let help = "Sessions with a socket on this gateway";
        let read = ComputedMetric::gauge(move || open.load(Ordering::Relaxed));
        registry.register("sessions_open", help, read);
        let help = "Whether the bus is available";
        let read = ComputedMetric::gauge(move || u64::from(bus.is_up()));
        registry.register("bus_up", help, read);
        self.register_counters(&mut registry);
        let help = "Requests refused, by class";
        registry.register("refused", help, self.refused.clone());
        let help = "Sessions ended, by close code; 1006: the connection was lost without one";
        registry.register("closed", help, self.closed.clone());
        registry
    }
}
