//! The service's metrics, shown at `/metrics`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use crate::bus::Bus;
use crate::metrics::{
    ComputedMetric, Counter, Family, LatencyHistogram, MetricLabels, Registry, Unit, counters,
    labels, new_registry,
};

counters! {
    /// Counters of sessions and runs since the start. Clones share their counts.
    pub struct LlmStats {
        sessions: "sessions", "Sessions created";
        runs: "runs", "Runs started";
        tokens: "tokens", "Tokens sent";
        handed_over: "handed_over", "Runs that another instance has taken over";
        unfinished: "unfinished", "Runs that ended before their last token, or whose end did not reach the bus";
    }
    and {
        requests: Family<MetricLabels, Counter>,
        took: Family<MetricLabels, LatencyHistogram>,
    }
}

/// Returns a request's path without session ids, for use as a label.
pub(super) fn endpoint_label(path: &str) -> &'static str {
    match path.rsplit('/').next() {
        Some("create") => "create",
        Some("run") => "run",
        Some("close") => "close",
        Some("completions") => "completions",
        Some("responses") => "responses",
        Some("messages") => "messages",
        Some("embeddings") => "embeddings",
        Some("rerank") => "rerank",
        Some("models") => "models",
        Some("health" | "ready" | "metrics") => "observation",
        _ => "other",
    }
}

impl LlmStats {
    pub(super) fn observe_response(&self, kind: &str, status: u16, took: Duration) {
        let status = status.to_string();
        let by_status = labels([("kind", kind), ("status", &status)]);
        self.requests.get_or_create_owned(&by_status).inc();
        self.took
            .get_or_create_owned(&labels([("kind", kind)]))
            .observe(took);
    }

    /// Returns the registry for `/metrics`. `running` is the number of runs in progress, of which `waiting` have no slot
    /// yet.
    pub(super) fn registry(
        &self,
        running: &watch::Sender<usize>,
        waiting: &WaitingCount,
        bus: &Bus,
    ) -> Registry {
        let mut registry = new_registry("llm");
        let (running, bus) = (running.subscribe(), bus.clone());
        let (all, waiting) = (running.clone(), waiting.clone());
        let read = ComputedMetric::gauge(move || *all.borrow() as u64);
        registry.register("runs_going_on", "Runs in progress on this instance", read);
        let without_slot = waiting.clone();
        let read = ComputedMetric::gauge(move || {
            let running = *running.borrow() as u64;
            running.saturating_sub(without_slot.get())
        });
        registry.register("requests_running", "Answers that have a slot", read);
        let read = ComputedMetric::gauge(move || waiting.get());
        registry.register("requests_waiting", "Answers that wait for a slot", read);
        let read = ComputedMetric::gauge(move || u64::from(bus.is_up()));
        registry.register("bus_up", "Whether the bus is available", read);
        self.register_counters(&mut registry);
        let help = "Requests answered, by kind and status";
        registry.register("requests", help, self.requests.clone());
        let help = "From a request's head to its answer";
        registry.register_with_unit("request", help, Unit::Seconds, self.took.clone());
        registry
    }
}

/// The number of answers that wait for a slot. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct WaitingCount(Arc<AtomicU64>);

impl WaitingCount {
    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts an answer as waiting until the guard is dropped.
    pub(super) fn enter(&self) -> WaitingGuard {
        self.0.fetch_add(1, Ordering::Relaxed);
        WaitingGuard(self.clone())
    }
}

/// An answer that waits for a slot.
#[derive(Debug)]
pub(super) struct WaitingGuard(WaitingCount);

impl Drop for WaitingGuard {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}
