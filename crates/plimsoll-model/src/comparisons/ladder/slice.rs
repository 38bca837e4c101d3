//! One slice (a short run of one variant, or rung, of a ladder), and its network traffic.

use serde::{Deserialize, Serialize};

use super::{ExtraMeasurement, LadderMetric, SliceThroughput};
use crate::metrics::measure::{Count, TimeMeasure};
use crate::objective::{self, ObjectiveResult, RunVerdict};
use crate::runs::run::{Run, StageSummary};

/// One slice of a rung: a separate run. Times are in µs. `None`: not known, or too few calls.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SliceResult {
    /// Median response time of calls that ended ok.
    pub p50_us: Option<f64>,
    /// 99th percentile of the same response time.
    pub p99_us: Option<f64>,
    /// Times of tokens; left out where the calls stream none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<TokenFigures>,
    /// User and system CPU time of the client.
    pub client_cpu_us_per_call: Option<f64>,
    /// User and system CPU time of the watched server.
    pub server_cpu_us_per_call: Option<f64>,
    /// User and system CPU time of all proxies, sidecars included; left out where there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sidecar_cpu_us_per_call: Option<f64>,
    /// Memory of client, server and proxies.
    #[serde(flatten)]
    pub memory: SliceMemory,
    /// Median time until a connection could carry a call; left out where none was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connection_p50_us: Option<f64>,
    /// The TCP traffic; left out where it was not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carried: Option<TcpTraffic>,
    /// Calls that ended ok; left out by older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ok: Option<u64>,
    /// Calls that ended with an error.
    pub errors: u64,
    /// Whether the run is valid: its figures describe the target and not the generator.
    pub valid: bool,
    /// Whether the run is invalid only because the server did full handshakes where the plan resumes sessions.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub not_resumed: bool,
    /// The verdict on the plan's objectives; left out where the plan has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conclusion: Option<RunVerdict>,
    /// The plan's objectives with their measured values; left out where there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objectives: Vec<ObjectiveResult>,
    /// The run directory, relative to the ladder's.
    pub run: String,
    /// The throughput, where it was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<SliceThroughput>,
}

/// Memory of client, server and proxies in a slice. Figures that were not measured are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SliceMemory {
    /// Highest memory of the proxies since they were started: the sum of their resident sets. Left out where there are
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_rss_bytes_max: Option<u64>,
    /// Bytes of the client's heap. Left out where there are few connections, or several threads made them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_bytes_per_connection: Option<f64>,
    /// Memory of the server. Left out where it was not restarted for the slice, or there are few connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_bytes_per_connection: Option<f64>,
    /// Highest resident set of all server processes together, in bytes. Left out unless commits were compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_rss_bytes_max: Option<u64>,
}

/// Times of the tokens of calls that ended ok, µs. `None`: not known, or too few calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TokenFigures {
    /// Median time from the send of a call to its first token.
    pub first_p50_us: Option<f64>,
    /// Median of the calls' mean times from one token to the next.
    pub per_token_p50_us: Option<f64>,
    /// 99th percentile of all times from one event with tokens to the next.
    pub gap_p99_us: Option<f64>,
}

impl TokenFigures {
    /// Returns the figures of a run; `None`: its calls streamed no tokens.
    fn from_summary(total: &StageSummary) -> Option<TokenFigures> {
        let times = &total.measures.as_ref()?.times;
        let of = |measure: TimeMeasure| times.get(measure.key());
        let first = of(TimeMeasure::FirstToken)?;
        Some(TokenFigures {
            first_p50_us: first.p50_us,
            per_token_p50_us: of(TimeMeasure::TokenMean).and_then(|times| times.p50_us),
            gap_p99_us: of(TimeMeasure::TokenGap).and_then(|times| times.p99_us),
        })
    }
}

/// Bytes that TCP carried in both directions, with the number of calls and connections that caused them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TcpTraffic {
    /// Bytes carried in both directions together.
    pub bytes: u64,
    /// Calls that were sent, including the warm-up's.
    pub calls: u64,
    /// Connections that were counted.
    pub connections: u64,
}

impl TcpTraffic {
    /// Returns the traffic of `run`; `None`: it was not counted.
    fn from_run(run: &Run) -> Option<TcpTraffic> {
        let record = run.measured_record();
        let measures = &record.measures;
        let check = &run.summary.count_check;
        let connections = measures.counter(Count::LinkConnections);
        (connections > 0).then(|| TcpTraffic {
            bytes: measures.counter(Count::LinkBytesSent)
                + measures.counter(Count::LinkBytesReceived),
            calls: check.ok + check.errors + check.cut_off,
            connections,
        })
    }

    /// Returns the sum of all traffic.
    pub(super) fn sum(all: impl Iterator<Item = TcpTraffic>) -> Option<TcpTraffic> {
        all.reduce(|a, b| TcpTraffic {
            bytes: a.bytes + b.bytes,
            calls: a.calls + b.calls,
            connections: a.connections + b.connections,
        })
    }
}

/// Returns the share of calls that failed, 0 to 1; `None`: no call ended.
pub(super) fn failed_share(ok: u64, errors: u64) -> Option<f64> {
    let calls = ok + errors;
    (calls > 0).then(|| errors as f64 / calls as f64)
}

impl SliceResult {
    /// Returns the share of calls that failed, 0 to 1; `None`: no call ended, or the counts are not known.
    pub(super) fn failed_share(&self) -> Option<f64> {
        failed_share(self.ok?, self.errors)
    }

    /// Summarises `run`, which is stored in `directory`.
    pub fn from_run(run: &Run, directory: String) -> SliceResult {
        let total = &run.summary.total;
        let objectives = objective::judge_run(run);
        SliceResult {
            p50_us: total.response.and_then(|r| r.p50_us),
            p99_us: total.response.and_then(|r| r.p99_us),
            tokens: TokenFigures::from_summary(total),
            client_cpu_us_per_call: total.client.and_then(|c| c.cpu_us_per_call),
            server_cpu_us_per_call: total.server.and_then(|s| s.cpu_us_per_call),
            sidecar_cpu_us_per_call: None,
            memory: SliceMemory {
                client_bytes_per_connection: run.header.heap_bytes_per_connection,
                ..SliceMemory::default()
            },
            connection_p50_us: run
                .summary
                .phases()
                .and_then(|phases| phases.connection?.p50_us),
            carried: TcpTraffic::from_run(run),
            ok: Some(total.ok),
            errors: total.errors,
            // Where times are known only as intervals, a difference between rungs may be due to the generator.
            valid: run.summary.health.valid && !run.summary.health.is_late(),
            not_resumed: objective::is_invalid_only_for_full_handshakes(run),
            conclusion: RunVerdict::from_results(&objectives),
            objectives,
            run: directory,
            volume: None,
        }
    }

    /// Returns whether the measurement may be limited by the generator.
    pub fn is_generator_limited(&self) -> bool {
        !self.valid && !self.not_resumed
    }

    pub(super) fn value(&self, metric: LadderMetric) -> Option<f64> {
        match metric {
            // If the server did not resume sessions, the values are those of new connections.
            _ if self.not_resumed
                && metric.source_measurement() == Some(ExtraMeasurement::Resumed) =>
            {
                None
            }
            LadderMetric::P50 => self.p50_us,
            LadderMetric::P99 => self.p99_us,
            LadderMetric::FirstToken => self.tokens?.first_p50_us,
            LadderMetric::TimePerToken => self.tokens?.per_token_p50_us,
            LadderMetric::TokenGap => self.tokens?.gap_p99_us,
            LadderMetric::ClientCpu
            | LadderMetric::BusyClientCpu
            | LadderMetric::ConnectionClientCpu
            | LadderMetric::ResumedClientCpu => self.client_cpu_us_per_call,
            LadderMetric::ServerCpu
            | LadderMetric::BusyServerCpu
            | LadderMetric::ConnectionServerCpu
            | LadderMetric::ResumedServerCpu => self.server_cpu_us_per_call,
            LadderMetric::SidecarCpu => self.sidecar_cpu_us_per_call,
            LadderMetric::ProxyMemory => self.memory.proxy_rss_bytes_max.map(|bytes| bytes as f64),
            LadderMetric::ClientMemory => self.memory.client_bytes_per_connection,
            LadderMetric::ServerMemory => self.memory.server_bytes_per_connection,
            LadderMetric::ConnectionTime | LadderMetric::ResumedTime => self.connection_p50_us,
            LadderMetric::ConnectionBytes
            | LadderMetric::ResumedBytes
            | LadderMetric::ToolCallLength => None,
        }
    }
}
