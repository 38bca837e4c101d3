//! A sweep as a table of ScenarioName, MetricName, MetricUnit, MetricValue: six figures of connections with a full
//! handshake, and the same six with `Reuse` for resumed ones.

use std::fmt::Write as _;

use plimsoll_model::comparisons::ladder::LadderRecord;

use super::links::{ConnectionMode, SweepConfiguration, sweep_configurations};

/// One row of the table.
#[derive(Clone, Debug, PartialEq)]
pub struct SweepMetric {
    /// The scenario's name, such as `tls_client_aes-128-gcm-sha256-1k`.
    pub scenario: String,
    /// The metric's name, which starts with `Reuse` for resumed sessions.
    pub name: &'static str,
    /// The unit's name in the table.
    pub unit: &'static str,
    /// The value in that unit.
    pub value: f64,
}

/// Name for new sessions, name for resumed sessions, unit, and the function that returns the value.
type MetricDefinition = (
    &'static str,
    &'static str,
    &'static str,
    fn(&SweepConfiguration) -> Option<f64>,
);

const METRICS: [MetricDefinition; 6] = [
    ("TotalBytesRead", "ReuseTotalBytesRead", "bytes", |l| {
        Some(l.bytes as f64)
    }),
    (
        "NumberOfConnections",
        "ReuseNumberOfConnections",
        "count",
        |l| Some(l.ok as f64),
    ),
    ("Duration", "ReuseDuration", "seconds", |l| {
        Some(l.elapsed_s)
    }),
    (
        "BytesReadPerConnection",
        "ReuseBytesReadPerConnection",
        "bytes/connection",
        |l| (l.ok > 0).then(|| l.bytes as f64 / l.ok as f64),
    ),
    (
        "NewConnectionThroughput",
        "ReuseConnectionThroughput",
        "bytes/sec",
        SweepConfiguration::bytes_per_s,
    ),
    (
        "NewConnectionsPerSec",
        "ReuseConnectionsPerSec",
        "count",
        SweepConfiguration::fetches_per_s,
    ),
];

/// Returns the table. There are no rows for configurations with reused connections, and none for those that did not
/// always resume sessions as planned, because the table has no place for the note about it. Values that can't be known,
/// such as the rate of zero calls, are left out.
pub fn metrics(record: &LadderRecord) -> Vec<SweepMetric> {
    let mut lines = Vec::new();
    for link in sweep_configurations(record) {
        let applies = match link.mode {
            ConnectionMode::New => true,
            ConnectionMode::Resumed => link.full == 0,
            ConnectionMode::Reused => false,
        };
        let Some(scenario) = link.scenario_name().filter(|_| applies) else {
            continue;
        };
        for (new, resumed, unit, value) in METRICS {
            let name = if link.mode == ConnectionMode::New {
                new
            } else {
                resumed
            };
            lines.extend(value(&link).map(|value| SweepMetric {
                scenario: scenario.clone(),
                name,
                unit,
                value,
            }));
        }
    }
    lines
}

/// Returns the table as CSV (RFC 4180), with its header. No field needs quotes.
pub fn csv(record: &LadderRecord) -> String {
    let mut out = "ScenarioName,MetricName,MetricUnit,MetricValue\r\n".to_owned();
    for m in metrics(record) {
        let _ = write!(
            out,
            "{},{},{},{}\r\n",
            m.scenario,
            m.name,
            m.unit,
            format_number(m.value)
        );
    }
    out
}

/// Formats whole numbers exactly, and other numbers with three decimals.
pub(super) fn format_number(value: f64) -> String {
    if value.fract() == 0.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.3}")
    }
}
