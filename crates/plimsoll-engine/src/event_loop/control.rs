//! What a worker and the conductor report to each other.

use plimsoll_model::Time;
use plimsoll_model::record::Interval;
use plimsoll_model::run::NegotiatedTls;

/// How urgently a run is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StopLevel {
    /// The run goes on.
    Run,
    /// Start nothing more; let calls in flight end for a short while.
    Graceful,
    /// End now; what is in flight is counted as interrupted.
    Now,
}

/// What one worker recorded in one interval.
#[derive(Debug)]
pub struct WorkerInterval {
    /// The worker's number in this process, from 0.
    pub worker: u32,
    /// 0 for the first second of the load.
    pub index: u32,
    /// The last one of this worker.
    pub last: bool,
    /// What this worker's TLS handshakes agreed on; comes with the last interval.
    pub negotiated: Option<NegotiatedTls>,
    /// When the interval ended, from the load's start. Nanoseconds.
    pub end_ns: u64,
    /// From the end of this worker's interval before. Nanoseconds.
    pub length_ns: u64,
    /// What its calls came to.
    pub recorded: Interval,
    /// Calls that had begun and not ended when the interval ended.
    pub in_flight: u64,
    /// Arrivals that are due and not started.
    pub backlog: u64,
    /// Those of the plan's connections that were up then.
    pub connections: u32,
    /// Time not spent waiting, in nanoseconds. In a closed loop at full speed that is
    /// nearly all of it; in an open loop it says how close the generator is to its limit.
    pub busy_ns: u64,
}

/// The worker's side of the conversation.
pub trait Control {
    /// Asked once a turn.
    fn stop_level(&self) -> StopLevel;
    /// When the load begins, once that is known.
    fn start(&self) -> Option<Time>;
    /// A connection of the plan came up (+1) or went down (−1).
    fn connections(&self, change: i64);
    /// Hand over an interval; get an emptied one back where there is one.
    fn interval(&mut self, interval: WorkerInterval) -> Option<Interval>;
}
