//! What of a run is one worker's.

use std::sync::Arc;

use plimsoll_model::plan::{Arrivals, Load, Reuse, Shard};
use plimsoll_model::schedule::Schedule;

/// Connections that may be coming up at once, over all workers of a run: fewer than any
/// listen backlog holds, since a dropped SYN costs a second.
const MAX_CONNECTING: usize = 256;

/// So many of them are a worker's own at least.
const FEWEST_CONNECTING: usize = 8;

/// One worker's part of a run.
#[derive(Clone, Debug)]
pub struct Share {
    /// This worker's place among all workers of all shards.
    pub index: u32,
    /// How many workers all shards have.
    pub of: u32,
    /// Connections to keep.
    pub connections: u32,
    /// Closed loop: clients of this worker.
    pub clients: u32,
    /// Calls of this worker that may be in flight, where the plan limits them.
    pub in_flight: u32,
    /// Closed loop: calls of this worker that are not warm-up.
    pub calls: Option<u64>,
    /// The plan's load, of which this is a part.
    pub load: Arc<Load>,
    /// All arrivals; this worker takes every [`Share::of`]th.
    pub schedule: Schedule,
    /// Calls are handed over one by one, too.
    pub keep_requests: bool,
    /// What connections carry is explained in the log.
    pub trace: bool,
}

impl Share {
    /// What is `place`'s of a load.
    pub fn at(place: Shard, load: Arc<Load>, seed: u64) -> Share {
        Share {
            index: place.index,
            of: place.of,
            connections: place.part(u64::from(load.connections)) as u32,
            clients: place.part(load.arrivals.clients().map_or(0, u64::from)) as u32,
            in_flight: place.part(load.in_flight_limit.map_or(0, |limit| limit.calls.into()))
                as u32,
            calls: load.calls.map(|calls| place.part(calls)),
            schedule: Schedule::new(&load, seed),
            load,
            keep_requests: false,
            trace: false,
        }
    }

    /// The load says when calls are due and connections are kept: what the generator itself adds to a call's time can be
    /// told apart.
    pub(crate) fn measures_lateness(&self) -> bool {
        matches!(self.load.arrivals, Arrivals::Open(_)) && self.load.reuse != Reuse::Never
    }

    /// Connections of this worker that may be coming up at once.
    pub(crate) fn most_connecting(&self) -> usize {
        (MAX_CONNECTING / self.of.max(1) as usize).max(FEWEST_CONNECTING)
    }
}
