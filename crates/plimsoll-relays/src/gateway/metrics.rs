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
    /// Frames that no socket was sent and no log has: of a backend without one, or lost.
    pub gone: AtomicU64,
    /// Times a client's queue was full.
    pub slow: AtomicU64,
    /// Sockets closed because their clients sent and did not read the answers.
    pub unread: AtomicU64,
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
            gone: copy(&self.gone),
            slow: copy(&self.slow),
            unread: copy(&self.unread),
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
        // Writing to a string does not fail.
        let head = |text: &mut String, name: &str, kind: &str, help: &str| {
            let name = format!("plimsoll_gateway_{name}");
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            name
        };
        let open = gateway.open.load(Ordering::Relaxed);
        let up = u64::from(gateway.bus.is_up());
        for (name, help, value) in [
            ("sessions_open", "Sessions that have a socket here.", open),
            ("bus_up", "Whether the bus can be used.", up),
        ] {
            let name = head(&mut text, name, "gauge", help);
            let _ = writeln!(text, "{name} {value}");
        }
        for (name, help, counter) in [
            ("sessions", "Sessions admitted.", &self.sessions),
            ("frames", "Frames sent to clients.", &self.frames),
            ("frame_bytes", "Bytes of these frames.", &self.frame_bytes),
            ("up_messages", "Messages from clients.", &self.up_messages),
            (
                "up_unheard",
                "Messages that nobody listened to.",
                &self.up_unheard,
            ),
            (
                "duplicates_dropped",
                "Live frames that the client had already.",
                &self.duplicates,
            ),
            ("log_reads", "Times a log was read.", &self.log_reads),
            (
                "gaps",
                "Times a client was told that frames can't be had any more.",
                &self.gaps,
            ),
            (
                "frames_gone",
                "Frames that no socket was sent and no log has: of a backend without one, or lost.",
                &self.gone,
            ),
            (
                "slow_readers",
                "Times a client's queue was full.",
                &self.slow,
            ),
            (
                "unread",
                "Sockets closed because their clients sent and did not read the answers.",
                &self.unread,
            ),
        ] {
            let value = counter.load(Ordering::Relaxed);
            let name = head(&mut text, &format!("{name}_total"), "counter", help);
            let _ = writeln!(text, "{name} {value}");
        }
        let help = "Requests refused, by class.";
        let name = head(&mut text, "refused_total", "counter", help);
        for (reason, n) in self.refusals() {
            let _ = writeln!(text, "{name}{{reason=\"{reason}\"}} {n}");
        }
        let help = "Sessions ended, by close code; 1006: the connection was lost without one.";
        let name = head(&mut text, "closed_total", "counter", help);
        for (code, n) in self.closes() {
            let _ = writeln!(text, "{name}{{code=\"{code}\"}} {n}");
        }
        text
    }
}
