//! The share of a load that one worker runs.

use std::sync::Arc;

use plimsoll_model::plan::{ArrivalModel, ConnectionReuse, LoadPlan, Shard};
use plimsoll_model::records::record::CallSampler;
use plimsoll_model::schedule::Schedule;

/// Maximum number of connections that may be in the process of being established, over all workers of a run. It is
/// lower than any listen backlog, since a dropped SYN costs a second.
const MAX_PENDING_CONNECTIONS: usize = 256;

/// Minimum share of [`MAX_PENDING_CONNECTIONS`] that a single worker gets, however many workers there are.
const MIN_PENDING_CONNECTIONS: usize = 8;

/// One worker's share of a run.
#[derive(Clone, Debug)]
pub struct WorkerShare {
    /// This worker's index among all workers of all shards.
    pub index: u32,
    /// Total number of workers of all shards.
    pub of: u32,
    /// Number of this worker's persistent connections.
    pub connections: u32,
    /// Closed loop: number of this worker's clients.
    pub clients: u32,
    /// Maximum number of this worker's calls in flight, if the plan limits them; otherwise 0.
    pub in_flight: u32,
    /// Closed loop: number of this worker's calls, not counting warm-up; `None` if it is not limited.
    pub calls: Option<u64>,
    /// The load of the whole plan.
    pub load: Arc<LoadPlan>,
    /// The arrivals of all workers; this worker takes every n-th, where n is [`WorkerShare::of`].
    pub schedule: Schedule,
    /// Whether calls are also recorded individually.
    pub keep_requests: bool,
    /// Chooses the calls that are kept for spans; with `None`, only the slowest calls are kept.
    pub sampler: Option<CallSampler>,
    /// The wall-clock time at [`Time::ZERO`](plimsoll_model::Time::ZERO), in nanoseconds since 1970; 0 if time is
    /// simulated.
    pub unix_zero_ns: u64,
    /// Whether the bytes of connections are traced to the log.
    pub trace: bool,
}

impl WorkerShare {
    /// Returns one worker's share of `load`; `place` contains the worker's index and the number of workers.
    pub fn new(place: Shard, load: Arc<LoadPlan>, seed: u64) -> WorkerShare {
        WorkerShare {
            index: place.index,
            of: place.of,
            connections: place.share(u64::from(load.connections)) as u32,
            clients: place.share(load.arrivals.clients().map_or(0, u64::from)) as u32,
            in_flight: place.share(load.in_flight_limit.map_or(0, |limit| limit.calls.into()))
                as u32,
            calls: load.calls.map(|calls| place.share(calls)),
            schedule: Schedule::new(&load, seed),
            load,
            keep_requests: false,
            sampler: None,
            unix_zero_ns: 0,
            trace: false,
        }
    }

    /// Returns whether the generator's own delay can be measured separately: calls must have due times, and connections
    /// must be kept.
    pub(crate) fn measures_lateness(&self) -> bool {
        matches!(self.load.arrivals, ArrivalModel::Open(_))
            && self.load.reuse != ConnectionReuse::Never
    }

    /// Returns how many connections this worker may be establishing at the same time.
    pub(crate) fn max_pending_connections(&self) -> usize {
        (MAX_PENDING_CONNECTIONS / self.of.max(1) as usize).max(MIN_PENDING_CONNECTIONS)
    }
}
