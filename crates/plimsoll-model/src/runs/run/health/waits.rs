//! Describes why calls of an open loop had to wait before they could be sent.

use std::fmt;

use super::{HealthProblem, ProblemKind, ReadableDuration, highest_supported_percentile};
use crate::records::record::StageRecord;
use crate::runs::run::header::RunHeader;
use crate::statistics::quantile::quantile;

/// Describes the waits for connections or streams. `None`: so few calls waited, or so briefly, that the percentiles up
/// to p99 are hardly affected.
pub(super) fn describe_waits(
    record: &StageRecord,
    header: &RunHeader,
    response_p50: Option<u64>,
) -> Option<HealthProblem> {
    let (for_stream, for_connection) = (record.waited_for_stream, record.waited_for_connection);
    let (name, _, lag) = highest_supported_percentile(&record.lag)?;
    let waited = for_stream + for_connection;
    if waited == 0 || waited.saturating_mul(100) < record.due || lag <= response_p50? / 10 {
        return None;
    }
    let due = record.due;
    // If a connection carries one call at a time, calls wait for a connection; otherwise, for a stream.
    let channel = if header.calls_at_once == Some(1) {
        "connection"
    } else {
        "stream"
    };
    let what = match (for_stream, for_connection) {
        (n, 0) => format!("{n} of {due} calls waited for a free {channel}"),
        (0, n) => format!("{n} of {due} calls waited for a connection to come up"),
        (n, m) => format!(
            "{n} of {due} calls waited for a free {channel} and {m} for a connection to come up"
        ),
    };
    if let Some(needed) = ConnectionsNeeded::new(record, header) {
        return Some(ProblemKind::TooFewConnections.noted_problem(format!(
            "{what} (send delay {name} {}): {needed}, so the wait does not count against the target",
            ReadableDuration(lag)
        )));
    }
    Some(ProblemKind::WaitedForConnection.noted_problem(format!(
            "{what} (send delay {name} {}, of which generator delay {}): the target is slow, or more connections are needed",
            ReadableDuration(lag),
            ReadableDuration(highest_supported_percentile(&record.pacing).map_or(0, |(.., ns)| ns))
        ),
    ))
}

/// The number of connections that a client needs, if its calls waited because it has too few.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConnectionsNeeded {
    /// The plan's connections.
    pub connections: u32,
    /// Connections in use at once, by Little's law, at the plan's highest rate and the p99 of service times.
    pub needed: u64,
    service_p99_ns: u64,
}

impl ConnectionsNeeded {
    /// If calls waited because there are too few connections, each connection was busy for more than this share of the
    /// time (0–1). If connections were less busy, a stall of the target caused the waits.
    const MIN_BUSY_SHARE: f64 = 0.5;

    /// A target that queues calls takes longer with more concurrent calls. If the median service time is within this
    /// factor of the shortest, the target does not queue calls and could have served more of them.
    const MAX_UNQUEUED_TIME_RATIO: f64 = 1.25;

    /// Computes the number of connections that are needed. `None`: connections carry several calls at once, there were
    /// enough connections, or the number is not known.
    pub fn new(record: &StageRecord, header: &RunHeader) -> Option<ConnectionsNeeded> {
        let connections = header.connections?;
        if !header.is_open_loop()
            || header.calls_at_once != Some(1)
            || record.waited_for_stream == 0
        {
            return None;
        }
        let measured = header.planned_stages.iter().filter(|stage| !stage.warmup);
        let rates = measured.filter_map(|s| Some(s.rate_from_per_s?.max(s.rate_to_per_s?)));
        let rate_per_s = rates.reduce(f64::max)?;
        let service = record.service.histogram()?;
        let service_p99_ns = quantile(service, 0.99)?;
        let median = service.value_at_quantile(0.5) as f64;
        // With a single connection, the target has only one call at a time, so it can't queue any.
        let is_unqueued =
            connections == 1 || median <= Self::MAX_UNQUEUED_TIME_RATIO * service.min() as f64;
        let busy = |ns: f64| rate_per_s * ns / 1e9;
        let needed = busy(service_p99_ns as f64).ceil() as u64;
        let is_busy = busy(service.mean()) > Self::MIN_BUSY_SHARE * f64::from(connections);
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
            ReadableDuration(self.service_p99_ns),
            self.needed
        )
    }
}
