//! What calls of an open loop waited for before they could be sent.

use std::fmt;

use super::{HealthProblem, Ns, ProblemKind, high};
use crate::record::StageRecord;
use crate::run::header::RunHeader;
use crate::statistics::quantile::quantile;

/// What calls waited for before they could be sent. `None` where so few waited, or for so
/// short a time, that the percentiles up to p99 hardly show it.
pub(super) fn waited(
    record: &StageRecord,
    header: &RunHeader,
    response_p50: Option<u64>,
) -> Option<HealthProblem> {
    let (for_stream, for_connection) = (record.waited_for_stream, record.waited_for_connection);
    let (name, _, lag) = high(&record.lag)?;
    let waited = for_stream + for_connection;
    if waited == 0 || waited.saturating_mul(100) < record.due || lag <= response_p50? / 10 {
        return None;
    }
    let due = record.due;
    let what = match (for_stream, for_connection) {
        (n, 0) => format!("{n} of {due} calls waited for a free stream"),
        (0, n) => format!("{n} of {due} calls waited for a connection to come up"),
        (n, m) => format!(
            "{n} of {due} calls waited for a free stream and {m} for a connection to come up"
        ),
    };
    if let Some(needed) = ConnectionsNeeded::of(record, header) {
        return Some(ProblemKind::TooFewConnections.noted(format!(
            "{what} (lag {name} {}): {needed}, so the wait is not held against the target",
            Ns(lag)
        )));
    }
    Some(ProblemKind::WaitedForConnection.noted(format!(
            "{what} (lag {name} {}; the generator's own lateness, pacing, {}): the target is slow, or more connections are needed",
            Ns(lag),
            Ns(high(&record.pacing).map_or(0, |(.., ns)| ns))
        ),
    ))
}

/// The connections of this client's that its calls waited for, and how many it needs at least.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConnectionsNeeded {
    /// The plan's.
    pub connections: u32,
    /// As many as are busy at once, by Little's law, at the plan's highest rate and the service time's p99.
    pub needed: u64,
    service_p99_ns: u64,
}

impl ConnectionsNeeded {
    /// Calls keep connections that carry one at a time busy for more than this share of the time (0–1) where they wait
    /// for each other; where they keep them less busy, a target that stood still is the cause.
    const BUSY_SHARE: f64 = 0.5;

    /// A target with a queue of its own takes longer the more calls it has. One whose median service time is within this
    /// factor of its shortest has none, so it may have taken more calls.
    const QUEUE_FACTOR: f64 = 1.25;

    /// `None` where connections carry several calls at once, or there were enough, or that is not known.
    pub fn of(record: &StageRecord, header: &RunHeader) -> Option<ConnectionsNeeded> {
        let connections = header.connections?;
        if !header.is_open() || header.calls_at_once != Some(1) || record.waited_for_stream == 0 {
            return None;
        }
        let measured = header.planned_stages.iter().filter(|stage| !stage.warmup);
        let rates = measured.filter_map(|s| Some(s.rate_from_per_s?.max(s.rate_to_per_s?)));
        let rate_per_s = rates.reduce(f64::max)?;
        let service = record.service.histogram()?;
        let service_p99_ns = quantile(service, 0.99)?;
        let median = service.value_at_quantile(0.5) as f64;
        // One connection leaves a target no second call to put in a queue.
        let is_unqueued = connections == 1 || median <= Self::QUEUE_FACTOR * service.min() as f64;
        let busy = |ns: f64| rate_per_s * ns / 1e9;
        let needed = busy(service_p99_ns as f64).ceil() as u64;
        let is_busy = busy(service.mean()) > Self::BUSY_SHARE * f64::from(connections);
        (is_unqueued && is_busy && needed > u64::from(connections)).then_some(ConnectionsNeeded {
            connections,
            needed,
            service_p99_ns,
        })
    }
}

impl fmt::Display for ConnectionsNeeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let have = match self.connections {
            1 => "the client's one connection carries".to_owned(),
            n => format!("the client's {n} connections carry"),
        };
        write!(
            f,
            "{have} one call at a time, and the rate needs at least {} at a service p99 of {} (-c {})",
            self.needed,
            Ns(self.service_p99_ns),
            self.needed
        )
    }
}
