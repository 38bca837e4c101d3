//! What the gateway counts, and how `/metrics` shows it (Prometheus text format).

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::Gateway;

/// Counters since the start.
#[derive(Debug, Default)]
pub struct Metrics {
    /// Sessions admitted.
    pub sessions: AtomicU64,
    /// Frames sent to clients, and their bytes.
    pub frames: AtomicU64,
    pub frame_bytes: AtomicU64,
    /// Messages from clients.
    pub up_messages: AtomicU64,
    /// Frames of them that nobody listened to.
    pub up_unheard: AtomicU64,
    /// Live frames that the client had already.
    pub duplicates: AtomicU64,
    /// Times a log was read.
    pub log_reads: AtomicU64,
    /// Times a client was told that frames can't be had any more.
    pub gaps: AtomicU64,
    /// Times a client's queue was full.
    pub slow: AtomicU64,
    refused: Mutex<BTreeMap<&'static str, u64>>,
    closed: Mutex<BTreeMap<u16, u64>>,
}

impl Clone for Metrics {
    fn clone(&self) -> Metrics {
        let copy = |counter: &AtomicU64| AtomicU64::new(counter.load(Ordering::Relaxed));
        Metrics {
            sessions: copy(&self.sessions),
            frames: copy(&self.frames),
            frame_bytes: copy(&self.frame_bytes),
            up_messages: copy(&self.up_messages),
            up_unheard: copy(&self.up_unheard),
            duplicates: copy(&self.duplicates),
            log_reads: copy(&self.log_reads),
            gaps: copy(&self.gaps),
            slow: copy(&self.slow),
            refused: Mutex::new(self.refusals()),
            closed: Mutex::new(self.closes()),
        }
    }
}

impl Metrics {
    pub(super) fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }

    pub(super) fn refused(&self, reason: &'static str) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        *refused.entry(reason).or_default() += 1;
    }

    pub(super) fn closed(&self, code: u16) {
        let mut closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        *closed.entry(code).or_default() += 1;
    }

    /// Requests refused, by reason.
    pub fn refusals(&self) -> BTreeMap<&'static str, u64> {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.clone()
    }

    /// Sessions ended, by close code; 1006: the connection was lost without one.
    pub fn closes(&self) -> BTreeMap<u16, u64> {
        let closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        closed.clone()
    }

    pub(super) fn prometheus(&self, gateway: &Gateway) -> String {
        let mut text = String::new();
        let open = gateway.open.load(Ordering::Relaxed);
        let up = u64::from(gateway.bus.is_up());
        // Writing to a string does not fail.
        let _ = writeln!(text, "# TYPE plimsoll_gateway_sessions_open gauge");
        let _ = writeln!(text, "plimsoll_gateway_sessions_open {open}");
        let _ = writeln!(text, "# TYPE plimsoll_gateway_bus_up gauge");
        let _ = writeln!(text, "plimsoll_gateway_bus_up {up}");
        for (name, counter) in [
            ("sessions", &self.sessions),
            ("frames", &self.frames),
            ("frame_bytes", &self.frame_bytes),
            ("up_messages", &self.up_messages),
            ("up_unheard", &self.up_unheard),
            ("duplicates_dropped", &self.duplicates),
            ("log_reads", &self.log_reads),
            ("gaps", &self.gaps),
            ("slow_readers", &self.slow),
        ] {
            let value = counter.load(Ordering::Relaxed);
            let _ = writeln!(text, "# TYPE plimsoll_gateway_{name}_total counter");
            let _ = writeln!(text, "plimsoll_gateway_{name}_total {value}");
        }
        let _ = writeln!(text, "# TYPE plimsoll_gateway_refused_total counter");
        for (reason, n) in self.refusals() {
            let _ = writeln!(
                text,
                "plimsoll_gateway_refused_total{{reason=\"{reason}\"}} {n}"
            );
        }
        let _ = writeln!(text, "# TYPE plimsoll_gateway_closed_total counter");
        for (code, n) in self.closes() {
            let _ = writeln!(text, "plimsoll_gateway_closed_total{{code=\"{code}\"}} {n}");
        }
        text
    }
}
