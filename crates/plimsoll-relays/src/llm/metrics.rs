//! What the service counts, and how `/metrics` shows it.

use std::time::Duration;

use tokio::sync::watch;

use crate::bus::Bus;
use crate::metrics::{
    Computed, Counter, Family, Labels, Latencies, Registry, Unit, labels, registry,
};

/// Counters since the start. Clones share what they count.
#[derive(Clone, Debug, Default)]
pub(super) struct Metrics {
    pub(super) sessions: Counter,
    pub(super) runs: Counter,
    pub(super) tokens: Counter,
    pub(super) handed_over: Counter,
    pub(super) unfinished: Counter,
    requests: Family<Labels, Counter>,
    took: Family<Labels, Latencies>,
}

/// A request's path, without what differs from session to session.
pub(super) fn kind(path: &str) -> &'static str {
    match path.rsplit('/').next() {
        Some("create") => "create",
        Some("run") => "run",
        Some("close") => "close",
        Some("completions") => "completions",
        Some("models") => "models",
        Some("health" | "ready" | "metrics") => "observation",
        _ => "other",
    }
}

impl Metrics {
    pub(super) fn answered(&self, kind: &str, status: u16, took: Duration) {
        let status = status.to_string();
        let by_status = labels([("kind", kind), ("status", &status)]);
        self.requests.get_or_create_owned(&by_status).inc();
        self.took
            .get_or_create_owned(&labels([("kind", kind)]))
            .observe(took);
    }

    /// What `/metrics` shows. `running`: runs that go on.
    pub(super) fn registry(&self, running: &watch::Sender<usize>, bus: &Bus) -> Registry {
        let mut registry = registry("llm");
        let (running, bus) = (running.subscribe(), bus.clone());
        for (name, help, read) in [
            (
                "runs_going_on",
                "Runs that go on here",
                Computed::gauge(move || *running.borrow() as u64),
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
            ("sessions", "Sessions made", &self.sessions),
            ("runs", "Runs begun", &self.runs),
            ("tokens", "Tokens sent", &self.tokens),
            (
                "handed_over",
                "Runs that another instance has carried on",
                &self.handed_over,
            ),
            (
                "unfinished",
                "Runs that ended before their last token, or whose end did not reach the bus",
                &self.unfinished,
            ),
        ] {
            registry.register(name, help, counter.clone());
        }
        let help = "Requests answered, by kind and status";
        registry.register("requests", help, self.requests.clone());
        let help = "From a request's head to its answer";
        registry.register_with_unit("request", help, Unit::Seconds, self.took.clone());
        registry
    }
}
