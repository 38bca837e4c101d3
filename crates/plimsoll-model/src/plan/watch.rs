//! The server process that a run watches, and the metrics that the server publishes itself.

/// The server process whose CPU, memory and descriptors are read every interval.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum WatchedProcess {
    /// The process that listens on the target's port, if it is on this machine.
    #[default]
    TargetPort,
    /// The process that listens on this port of this machine.
    Port(u16),
    /// The process with this id.
    Pid(u32),
    /// The processes of a control group, by its path, the name of a unit or the id of a container.
    Group(String),
    /// All processes that Plimsoll started before the load.
    Started,
    /// No process.
    Nothing,
}

/// Where a server publishes its own metrics, in the text format of Prometheus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricsSource {
    /// The path `/metrics` at the target's host and port.
    Target,
    /// This URL.
    Url(String),
}
