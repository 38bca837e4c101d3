//! The metrics of a ladder's rung (one variant in a comparison), and the additional measurements that supply some of
//! them.

use serde::{Deserialize, Serialize};

use crate::formats::named_enum::named;

named! {
    /// A statistic of a rung.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum LadderMetric by key and name {
        /// Median time of a call, µs: the response time if each rung is measured in runs of its own (slices), the
        /// service time if the rungs take turns within one run (batches).
        P50 "p50" "p50",
        /// 99th percentile of the same time, µs.
        P99 "p99" "p99",
        /// Median time from the send of a call to its first token, µs.
        FirstToken "first_token" "first token (p50)",
        /// Median of the calls' mean times from one token to the next, µs.
        TimePerToken "time_per_token" "time per token (p50)",
        /// 99th percentile of all times from one event with tokens to the next, µs.
        TokenGap "token_gap" "token gap (p99)",
        /// User and system CPU time of the client per call, µs.
        ClientCpu "client_cpu" "client CPU a call",
        /// User and system CPU time of the watched server per call, µs.
        ServerCpu "server_cpu" "server CPU a call",
        /// User and system CPU time of all proxies per call, sidecars included, µs.
        SidecarCpu "sidecar_cpu" "proxy CPU a call",
        /// Highest memory of all proxies together, bytes.
        ProxyMemory "proxy_memory" "proxy memory",
        /// The client's CPU time per call at full load, where the client never waits for an arrival, µs.
        BusyClientCpu "busy_client_cpu" "client CPU a call at full load",
        /// The server's CPU time per call at full load, µs.
        BusyServerCpu "busy_server_cpu" "server CPU a call at full load",
        /// Median time from the start of a connection until it can carry a call, µs.
        ConnectionTime "connection_time" "new connection (p50)",
        /// CPU time of the client for a new connection and one call on it, µs.
        ConnectionClientCpu "connection_client_cpu" "client CPU a new connection",
        /// CPU time of the server for a new connection and one call on it, µs.
        ConnectionServerCpu "connection_server_cpu" "server CPU a new connection",
        /// Bytes that TCP carries in both directions for a connection, without its calls.
        ConnectionBytes "connection_bytes" "bytes a new connection",
        /// Median setup time of connections that resume TLS sessions, µs.
        ResumedTime "resumed_time" "resumed connection (p50)",
        /// CPU time of the client for a resumed connection and one call on it, µs.
        ResumedClientCpu "resumed_client_cpu" "client CPU a resumed connection",
        /// CPU time of the server for a resumed connection and one call on it, µs.
        ResumedServerCpu "resumed_server_cpu" "server CPU a resumed connection",
        /// Bytes that TCP carries in both directions for a resumed connection, without its calls.
        ResumedBytes "resumed_bytes" "bytes a resumed connection",
        /// Bytes of the client's heap per open connection.
        ClientMemory "client_memory" "client memory a connection",
        /// Bytes of the server's memory per open connection.
        ServerMemory "server_memory" "server memory a connection",
        /// Bytes that TCP carries in both directions for a call on an open connection.
        ToolCallLength "call_bytes" "bytes a call",
    }
}

named! {
    /// Additional measurements of a ladder whose rungs are measured in batches. Each is made separately, in short runs
    /// (slices) of every rung in turn.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum ExtraMeasurement by name and words {
        /// A closed loop at full load.
        Saturated "saturated" "a call at full load",
        /// A new connection for each call, one after the other.
        Connections "connections" "new connections",
        /// A new connection for each call, with TLS sessions resumed from tickets; not measured for plaintext.
        Resumed "resumed" "resumed connections",
        /// Many open connections to a restarted server.
        Memory "memory" "memory a connection",
    }
}

impl ExtraMeasurement {
    /// Returns the measurement of this name in plans.
    pub fn from_name(name: &str) -> Option<ExtraMeasurement> {
        ExtraMeasurement::ALL
            .into_iter()
            .find(|part| part.name() == name)
    }

    /// Returns the measurement's metrics that have a confidence interval.
    pub fn metrics_with_interval(self) -> &'static [LadderMetric] {
        match self {
            ExtraMeasurement::Saturated => {
                &[LadderMetric::BusyClientCpu, LadderMetric::BusyServerCpu]
            }
            ExtraMeasurement::Connections => &[
                LadderMetric::ConnectionTime,
                LadderMetric::ConnectionClientCpu,
                LadderMetric::ConnectionServerCpu,
            ],
            ExtraMeasurement::Resumed => &[
                LadderMetric::ResumedTime,
                LadderMetric::ResumedClientCpu,
                LadderMetric::ResumedServerCpu,
            ],
            ExtraMeasurement::Memory => &[LadderMetric::ClientMemory, LadderMetric::ServerMemory],
        }
    }
}

/// The unit of a metric's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LadderUnit {
    /// Microseconds.
    Micros,
    /// Bytes.
    Bytes,
}

impl LadderMetric {
    /// Returns the unit of the metric's values and differences.
    pub fn unit(self) -> LadderUnit {
        match self {
            LadderMetric::ProxyMemory
            | LadderMetric::ClientMemory
            | LadderMetric::ServerMemory
            | LadderMetric::ConnectionBytes
            | LadderMetric::ResumedBytes
            | LadderMetric::ToolCallLength => LadderUnit::Bytes,
            _ => LadderUnit::Micros,
        }
    }

    /// Returns the additional measurement that the metric comes from; `None`: the metric is measured in the batches.
    pub fn source_measurement(self) -> Option<ExtraMeasurement> {
        ExtraMeasurement::ALL
            .into_iter()
            .find(|part| part.metrics_with_interval().contains(&self))
    }

    /// Returns whether only calls that stream tokens have the metric.
    pub fn is_about_tokens(self) -> bool {
        matches!(
            self,
            LadderMetric::FirstToken | LadderMetric::TimePerToken | LadderMetric::TokenGap
        )
    }

    /// Returns whether differences are those of whole runs even if rungs are measured in batches: a batch has too few
    /// values for the percentile.
    pub fn is_compared_by_run(self) -> bool {
        self == LadderMetric::TokenGap
    }

    /// Returns whether the metric is counted exactly and has no confidence interval.
    pub fn is_exact(self) -> bool {
        matches!(
            self,
            LadderMetric::ConnectionBytes
                | LadderMetric::ResumedBytes
                | LadderMetric::ToolCallLength
        )
    }
}
