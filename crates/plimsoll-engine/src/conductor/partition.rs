//! Division of a plan among processes and their workers: pure arithmetic, except for the number of cores and
//! descriptors available to this process.

use std::sync::Arc;
use std::thread;

use plimsoll_model::plan::{ConnectionReuse, Plan, Shard};
use plimsoll_model::records::record::CallSampler;

use crate::error::EngineError;
use crate::event_loop::WorkerShare;
use crate::transport::address::Address;
use crate::transport::descriptors::descriptor_limit;

/// Returns how many connections the calls of `plan` have open at the same time; 0 if that is not known beforehand.
pub fn concurrent_connections(plan: &Plan) -> u64 {
    match plan.load.reuse {
        ConnectionReuse::Always => u64::from(plan.load.connections),
        ConnectionReuse::Never => plan.load.arrivals.clients().map_or(0, u64::from),
    }
}

/// Returns how many connections the scripts of a plan's users have open at the same time; 0 if that is not known
/// beforehand.
pub fn concurrent_script_connections(plan: &Plan) -> u64 {
    let clients = plan.load.arrivals.clients();
    let links = 1 + plan.call.other_targets().len() as u64;
    clients.map_or(0, |clients| u64::from(clients) * links)
}

/// Properties of a run that its plan does not contain.
pub(super) struct RunProperties {
    /// Maximum number of workers; further ones would have nothing to do.
    pub(super) max_workers: u32,
    /// Number of calls that a script makes; they are started together and counted one by one.
    pub(super) calls_per_script: u64,
    /// Connections that this process opens before the load.
    pub(super) wanted: u64,
    pub(super) trace: bool,
    /// Whether connections are mostly idle, so that their memory is measured.
    pub(super) is_mostly_idle: bool,
}

/// Returns the number of workers of each process: limited by connections, clients and usable cores. A target
/// on this machine keeps half of the cores.
pub(super) fn worker_count(plan: &Plan, most: u32, shard: Shard, target: &[Address]) -> u32 {
    let clients = plan.load.arrivals.clients().unwrap_or(u32::MAX);
    // A worker without a connection or client would wait forever for calls to end.
    let limit = plan
        .load
        .in_flight_limit
        .map_or(u32::MAX, |limit| limit.calls);
    let most = (most.min(clients).min(limit) / shard.of).max(1);
    if let Some(workers) = plan.load.workers {
        return u32::from(workers).clamp(1, most);
    }
    // If the limit were divided among workers, one of them could reach its part while another has capacity.
    if plan.load.in_flight_limit.is_some() {
        return 1;
    }
    // A single worker sends all calls of a short batch, so that the worker's CPU time is the CPU time of the batch.
    if (plan.load.batches).is_some_and(|turns| turns.read_cpu && turns.slot.is_none()) {
        return 1;
    }
    let cores = thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let usable = if target.iter().all(Address::is_local) {
        (cores / 2).max(1)
    } else {
        cores
    };
    match plan.load.reuse {
        ConnectionReuse::Always => plan.load.connections.clamp(1, usable.min(most)),
        ConnectionReuse::Never => 1,
    }
}

/// Divides a shard of a plan among its workers without losing a connection, a client or a call.
pub(super) fn worker_shares(
    plan: &Plan,
    shape: &RunProperties,
    shard: Shard,
    workers: u32,
) -> Vec<WorkerShare> {
    let load = Arc::new(plan.load.clone());
    let together = shape.calls_per_script;
    let warmup: Vec<bool> = plan.load.stages.iter().map(|stage| stage.warmup).collect();
    (0..workers)
        .map(|worker| {
            let place = shard.sub_shard(worker, workers);
            WorkerShare {
                calls: plan
                    .load
                    .calls
                    .map(|calls| place.share(calls.div_ceil(together)) * together),
                keep_requests: plan.keep_requests,
                sampler: (plan.span_sample > 0)
                    .then(|| CallSampler::new(plan.seed, plan.span_sample, warmup.clone())),
                trace: shape.trace,
                ..WorkerShare::new(place, Arc::clone(&load), plan.seed)
            }
        })
        .collect()
}

/// Descriptors that a process needs in addition to those of its connections.
const RESERVED_PROCESS_DESCRIPTORS: u64 = 64;

/// Returns how many connections this process may have under its limit of open descriptors.
pub fn max_connections() -> u64 {
    descriptor_limit().saturating_sub(RESERVED_PROCESS_DESCRIPTORS)
}

pub(super) fn check_descriptors(needed: u64) -> Result<(), EngineError> {
    let most = max_connections();
    if needed > most {
        return Err(EngineError::Descriptors {
            needed,
            needed_descriptors: needed + RESERVED_PROCESS_DESCRIPTORS,
            limit: descriptor_limit(),
            most,
        });
    }
    Ok(())
}
