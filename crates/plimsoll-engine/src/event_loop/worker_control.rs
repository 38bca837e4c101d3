//! The messages and the interface between a worker and the conductor.

use plimsoll_model::Time;
use plimsoll_model::records::record::RecordedInterval;
use plimsoll_model::runs::run::{NegotiatedTls, UserLevels};

/// How urgently a run must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StopUrgency {
    /// The run continues.
    Run,
    /// No call is started any more; calls in flight may continue for a short time.
    Graceful,
    /// The run ends now; calls in flight are counted as interrupted.
    Now,
}

/// The records of one worker in one interval.
#[derive(Debug)]
pub struct WorkerInterval {
    /// The worker's number in this process, from 0.
    pub worker: u32,
    /// The interval's number: 0 is the first second of the load.
    pub index: u32,
    /// Whether this is the worker's last interval.
    pub is_last: bool,
    /// The parameters that this worker's TLS handshakes negotiated; present only in the last interval.
    pub negotiated: Option<NegotiatedTls>,
    /// End of the interval in nanoseconds from the load's start.
    pub end_ns: u64,
    /// Length of the interval in nanoseconds, since the end of this worker's previous interval.
    pub length_ns: u64,
    /// The results of the worker's calls in this interval.
    pub recorded: RecordedInterval,
    /// Calls in flight at the end of the interval.
    pub in_flight: u64,
    /// Number of calls that are due and not started.
    pub backlog: u64,
    /// The plan's connections that were established at the end of the interval.
    pub connections: u32,
    /// Users who make several calls each; `None` where calls are independent.
    pub users: Option<UserLevels>,
    /// Time not spent waiting, in nanoseconds. In a closed loop at full speed this is nearly the whole interval; in an
    /// open loop it shows how close the generator is to its limit.
    pub busy_ns: u64,
}

/// A worker's interface to its conductor.
pub trait WorkerControl {
    /// Returns how urgently the run must end; called once per loop iteration.
    fn stop_urgency(&self) -> StopUrgency;
    /// Returns when the load begins; `None` until that is known.
    fn start_time(&self) -> Option<Time>;
    /// Reports that the number of established connections has changed.
    fn add_connections(&self, change: i64);
    /// Sends an interval, and returns an emptied one for reuse if there is one.
    fn send_interval(&mut self, interval: WorkerInterval) -> Option<RecordedInterval>;
}
