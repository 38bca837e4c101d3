//! What is measured of rungs, and in which part of a ladder.

use serde::{Deserialize, Serialize};

use crate::named::named;

named! {
    /// A statistic of a slice.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Metric by key and name {
        /// Median time of a call: response time in slices, service time in turns, µs.
        P50 "p50" "p50",
        /// The same at the 99th percentile, µs.
        P99 "p99" "p99",
        /// User and system CPU of the client for each call, µs.
        ClientCpu "client_cpu" "client CPU a call",
        /// The same of the watched server, µs.
        ServerCpu "server_cpu" "server CPU a call",
        /// The same of all proxies on the way together, sidecars among them, µs.
        SidecarCpu "sidecar_cpu" "proxy CPU a call",
        /// Memory of all proxies on the way together at its highest, bytes.
        ProxyMemory "proxy_memory" "proxy memory",
        /// CPU a call of a client that keeps so many calls in flight that it never waits for an arrival, µs.
        BusyClientCpu "busy_client_cpu" "client CPU a call, saturated",
        /// The same of such a client's server, µs.
        BusyServerCpu "busy_server_cpu" "server CPU a call, saturated",
        /// Median time from the beginning of a connection to when it can carry a call, µs.
        ConnectionTime "connection_time" "new connection (p50)",
        /// A new connection and one call on it.
        ConnectionClientCpu "connection_client_cpu" "client CPU a new connection",
        /// The server's end of the same.
        ConnectionServerCpu "connection_server_cpu" "server CPU a new connection",
        /// What TCP carries both ways for a connection, apart from its calls.
        ConnectionBytes "connection_bytes" "bytes a new connection",
        /// The same of connections that resume TLS sessions, µs.
        ResumedTime "resumed_time" "resumed connection (p50)",
        /// A resumed connection and one call on it.
        ResumedClientCpu "resumed_client_cpu" "client CPU a resumed connection",
        /// The server's end of the same.
        ResumedServerCpu "resumed_server_cpu" "server CPU a resumed connection",
        /// What TCP carries both ways for a resumed connection, apart from its calls.
        ResumedBytes "resumed_bytes" "bytes a resumed connection",
        /// What each open connection takes of the client's heap, bytes.
        ClientMemory "client_memory" "client memory a connection",
        /// What each open connection adds to the server's memory, bytes.
        ServerMemory "server_memory" "server memory a connection",
        /// What TCP carries both ways for a call on a connection that is up.
        CallBytes "call_bytes" "bytes a call",
    }
}

named! {
    /// What is measured of rungs that take turns besides their calls: short slices of its own, in rounds.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Part by name and words {
        /// A closed loop that keeps the server as busy as it can.
        Saturated "saturated" "a call at full load",
        /// A new connection for each call, one after the other.
        Connections "connections" "new connections",
        /// The same with TLS sessions that are resumed from tickets; plaintext has none to resume.
        Resumed "resumed" "resumed connections",
        /// Many connections that are kept, at a server started afresh.
        Memory "memory" "memory a connection",
    }
}

impl Part {
    /// The part of this name, as plans have it.
    pub fn from_name(name: &str) -> Option<Part> {
        Part::ALL.into_iter().find(|part| part.name() == name)
    }

    /// Its metrics that have an interval.
    pub fn metrics(self) -> &'static [Metric] {
        match self {
            Part::Saturated => &[Metric::BusyClientCpu, Metric::BusyServerCpu],
            Part::Connections => &[
                Metric::ConnectionTime,
                Metric::ConnectionClientCpu,
                Metric::ConnectionServerCpu,
            ],
            Part::Resumed => &[
                Metric::ResumedTime,
                Metric::ResumedClientCpu,
                Metric::ResumedServerCpu,
            ],
            Part::Memory => &[Metric::ClientMemory, Metric::ServerMemory],
        }
    }
}

/// What a metric's values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Microseconds.
    Micros,
    /// Bytes.
    Bytes,
}

impl Metric {
    /// Returns the unit of its values and of differences between them.
    pub fn unit(self) -> Unit {
        match self {
            Metric::ProxyMemory
            | Metric::ClientMemory
            | Metric::ServerMemory
            | Metric::ConnectionBytes
            | Metric::ResumedBytes
            | Metric::CallBytes => Unit::Bytes,
            _ => Unit::Micros,
        }
    }

    /// The slices that it is measured in, where rungs take turns; `None`: the turns.
    pub fn part(self) -> Option<Part> {
        Part::ALL
            .into_iter()
            .find(|part| part.metrics().contains(&self))
    }

    /// It is counted, so that it has no interval.
    pub fn is_exact(self) -> bool {
        matches!(
            self,
            Metric::ConnectionBytes | Metric::ResumedBytes | Metric::CallBytes
        )
    }
}
