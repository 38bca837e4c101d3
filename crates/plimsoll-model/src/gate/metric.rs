//! What is measured of rungs, and in which part of a ladder.

use serde::{Deserialize, Serialize};

/// A statistic of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    P50,
    P99,
    ClientCpu,
    ServerCpu,
    /// Of the sidecars on the way, together.
    SidecarCpu,
    /// What each open connection adds to the server's memory, bytes.
    ServerMemory,
    /// What each open connection takes of the client's heap, bytes.
    ClientMemory,
    /// Of a client that keeps so many calls in flight that it never waits for the next arrival.
    BusyClientCpu,
    BusyServerCpu,
    /// From the beginning of a connection to when it can carry a call.
    ConnectionTime,
    /// A new connection and one call on it.
    ConnectionClientCpu,
    ConnectionServerCpu,
    /// What TCP carries both ways for a connection, apart from its calls.
    ConnectionBytes,
    /// As of new connections, where TLS sessions are resumed.
    ResumedTime,
    ResumedClientCpu,
    ResumedServerCpu,
    ResumedBytes,
    /// What TCP carries both ways for a call on a connection that is up.
    CallBytes,
}

/// What is measured of rungs that take turns besides their calls: short slices of its own, in rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// A closed loop that keeps the server as busy as it can.
    Saturated,
    /// A new connection for each call, one after the other.
    Connections,
    /// The same with TLS sessions that are resumed from tickets; plaintext has none to resume.
    Resumed,
    /// Many connections that are kept, at a server started afresh.
    Memory,
}

impl Part {
    pub const ALL: [Part; 4] = [
        Part::Saturated,
        Part::Connections,
        Part::Resumed,
        Part::Memory,
    ];

    /// As plans, flags and `ladder.json` write it.
    pub fn name(self) -> &'static str {
        match self {
            Part::Saturated => "saturated",
            Part::Connections => "connections",
            Part::Resumed => "resumed",
            Part::Memory => "memory",
        }
    }

    /// What is measured, for a person.
    pub fn words(self) -> &'static str {
        match self {
            Part::Saturated => "a call at a server kept busy",
            Part::Connections => "new connections",
            Part::Resumed => "resumed connections",
            Part::Memory => "memory a connection",
        }
    }

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
    Micros,
    Bytes,
}

impl Metric {
    pub const ALL: [Metric; 18] = [
        Metric::P50,
        Metric::P99,
        Metric::ClientCpu,
        Metric::ServerCpu,
        Metric::SidecarCpu,
        Metric::BusyClientCpu,
        Metric::BusyServerCpu,
        Metric::ConnectionTime,
        Metric::ConnectionClientCpu,
        Metric::ConnectionServerCpu,
        Metric::ConnectionBytes,
        Metric::ResumedTime,
        Metric::ResumedClientCpu,
        Metric::ResumedServerCpu,
        Metric::ResumedBytes,
        Metric::ClientMemory,
        Metric::ServerMemory,
        Metric::CallBytes,
    ];

    pub fn unit(self) -> Unit {
        match self {
            Metric::ClientMemory
            | Metric::ServerMemory
            | Metric::ConnectionBytes
            | Metric::ResumedBytes
            | Metric::CallBytes => Unit::Bytes,
            _ => Unit::Micros,
        }
    }

    /// As gates and `ladder.json` write it.
    pub fn key(self) -> &'static str {
        match self {
            Metric::P50 => "p50",
            Metric::P99 => "p99",
            Metric::ClientCpu => "client_cpu",
            Metric::ServerCpu => "server_cpu",
            Metric::SidecarCpu => "sidecar_cpu",
            Metric::ClientMemory => "client_memory",
            Metric::ServerMemory => "server_memory",
            Metric::BusyClientCpu => "busy_client_cpu",
            Metric::BusyServerCpu => "busy_server_cpu",
            Metric::ConnectionTime => "connection_time",
            Metric::ConnectionClientCpu => "connection_client_cpu",
            Metric::ConnectionServerCpu => "connection_server_cpu",
            Metric::ConnectionBytes => "connection_bytes",
            Metric::ResumedTime => "resumed_time",
            Metric::ResumedClientCpu => "resumed_client_cpu",
            Metric::ResumedServerCpu => "resumed_server_cpu",
            Metric::ResumedBytes => "resumed_bytes",
            Metric::CallBytes => "call_bytes",
        }
    }

    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            Metric::P50 => "p50",
            Metric::P99 => "p99",
            Metric::ClientCpu => "client CPU a call",
            Metric::ServerCpu => "server CPU a call",
            Metric::SidecarCpu => "sidecar CPU a call",
            Metric::ClientMemory => "client memory a connection",
            Metric::ServerMemory => "server memory a connection",
            Metric::BusyClientCpu => "client CPU a call, saturated",
            Metric::BusyServerCpu => "server CPU a call, saturated",
            Metric::ConnectionTime => "new connection (p50)",
            Metric::ConnectionClientCpu => "client CPU a new connection",
            Metric::ConnectionServerCpu => "server CPU a new connection",
            Metric::ConnectionBytes => "bytes a new connection",
            Metric::ResumedTime => "resumed connection (p50)",
            Metric::ResumedClientCpu => "client CPU a resumed connection",
            Metric::ResumedServerCpu => "server CPU a resumed connection",
            Metric::ResumedBytes => "bytes a resumed connection",
            Metric::CallBytes => "bytes a call",
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
