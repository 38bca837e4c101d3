//! The conductor: starts the workers, gives them a common start time, merges their intervals, and measures
//! the resources of client and server.
//!
//! The conductor runs on the caller's thread and is the only part that sees all workers. Workers never wait for it:
//! they send it their intervals and continue.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use plimsoll_model::Time;
use plimsoll_model::plan::{ConnectionReuse, Plan, Shard, Target};
use plimsoll_model::records::record::RequestRecord;
use plimsoll_model::runs::run::merge::IntervalMerger;
use plimsoll_model::runs::run::{IntervalRecord, NegotiatedTls, ShardFigures};

use crate::clock::Clock;
use crate::defect;
use crate::driver::Protocol;
use crate::error::EngineError;
use crate::event_loop::client::{LoopClient, LoopHandler};
use crate::event_loop::{ConnectSummary, EventLoop, WorkerControl, WorkerShare};
use crate::host::cores;
use crate::host::machine_meter::MachineMeter;
use crate::host::resources::{BatchMeter, ResourceMeter, WatchedProcesses, find_server_processes};
use crate::script::ScriptFactory;
use crate::script::worker::ScriptWorker;
use crate::stop_flag::StopFlag;
use crate::tls::TlsClient;
use crate::transport::address::Address;
use crate::transport::network::os::{OsNetwork, SocketOptions};
use crate::transport::network::resolver;
use crate::worker::Worker;

mod idle_memory;
mod partition;
mod run_loop;
mod worker_handle;

use idle_memory::IdleMemorySampler;
use partition::{RunProperties, check_descriptors, worker_count, worker_shares};
pub use partition::{concurrent_connections, concurrent_script_connections, max_connections};
use run_loop::Conductor;
use worker_handle::{SharedRunState, WorkerHandle, WorkerMessage};

/// An event that is reported to the caller while a run is in progress.
#[derive(Debug)]
pub enum Observation<'a> {
    /// Connections are being established.
    Connecting {
        /// Connections that are established.
        open: u64,
        /// Connections that the plan requires.
        wanted: u64,
    },
    /// The load begins.
    Started {
        /// Worker threads of this process.
        workers: u32,
        /// Connections that are established.
        connections: u64,
        /// Time from now until the load begins, as far as this process knows.
        lead: Duration,
    },
    /// An interval of one second has ended. Contains its record and, if the plan records calls individually, the calls
    /// that ended in it.
    Interval(&'a IntervalRecord, &'a [RequestRecord]),
    /// The load has ended. Contains the figures of each shard, if the load had shards.
    Shards(&'a [ShardFigures]),
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct RunCompletion {
    /// Whether the run was stopped early.
    pub interrupted: bool,
    /// Worker threads of this process.
    pub workers: u32,
    /// The result of connecting, over all workers.
    pub established: ConnectSummary,
    /// Process ids of the server whose resources were measured.
    pub watched_pids: Vec<i32>,
    /// The parameters that the TLS handshakes negotiated; `None` without TLS.
    pub negotiated: Option<NegotiatedTls>,
}

/// The role of this process in a run, which determines when the load begins.
pub enum RunRole<'a> {
    /// The only process: the load begins as soon as its connections are established.
    Standalone,
    /// One of several processes that share a clock.
    Shard {
        /// The position of this process among all processes.
        shard: Shard,
        /// The clock that all processes share.
        clock: Clock,
        /// Called with the result of connecting and the number of workers. Waits for the other processes and
        /// returns the common start time; `None` if the load must not begin.
        start: &'a mut dyn FnMut(&ConnectSummary, u32) -> Option<Time>,
    },
}

/// How much of the connections' traffic is written to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceLevel {
    /// No traffic is written.
    Off,
    /// Every frame is written, one line each.
    Frames,
}

/// Runs a plan, or this process's share of it.
///
/// `observe` is called on this thread, once per interval and while connecting.
///
/// # Errors
/// Returns an error if the load could not begin, or an event loop failed. Everything observed until then remains valid.
pub fn run<P: Protocol>(
    plan: &Plan,
    protocol: P,
    role: RunRole<'_>,
    trace: TraceLevel,
    stop: &StopFlag,
    observe: &mut dyn FnMut(Observation<'_>),
) -> Result<RunCompletion, EngineError> {
    let shard = role.shard();
    check_descriptors(shard.share(concurrent_connections(plan)))?;
    let tls = match &plan.tls {
        Some(tls) => {
            let offered: Vec<&[u8]> = protocol
                .alpn()
                .into_iter()
                .chain(protocol.alpn_choices().iter().copied())
                .collect();
            let client = TlsClient::new(tls, &plan.target, &offered)?;
            Some(if protocol.is_mostly_idle() {
                client.for_idle_connections()
            } else {
                client
            })
        }
        None => None,
    };
    let rests = protocol.is_mostly_idle();
    let protocol = Arc::new(protocol);
    let wanted = match plan.load.reuse {
        ConnectionReuse::Always => shard.share(u64::from(plan.load.connections)),
        ConnectionReuse::Never => 0,
    };
    let most_workers = match plan.load.reuse {
        ConnectionReuse::Always => plan.load.connections,
        ConnectionReuse::Never => u32::MAX,
    };
    let target = plan.target.clone();
    let shape = RunProperties {
        max_workers: most_workers,
        calls_per_script: 1,
        wanted,
        trace: trace == TraceLevel::Frames,
        is_mostly_idle: rests,
    };
    run_workers(
        plan,
        &shape,
        role,
        stop,
        observe,
        move |clock, share, handle| {
            let protocol = Arc::clone(&protocol);
            let tls = tls.as_ref().map(TlsClient::for_worker);
            run_worker(
                clock,
                &[&target],
                share,
                handle,
                |share, network, handle| {
                    protocol.set_clock_origin(clock.origin_unix_ns());
                    let mut worker = Worker::new(share, network, protocol, tls);
                    worker.set_batch_meter(handle.batch_meter.take());
                    let established = worker.establish_connections(handle)?;
                    Ok((worker, established))
                },
            );
        },
    )
}

/// Runs a plan whose users follow scripts; otherwise the same as [`run`].
///
/// # Errors
/// Returns the same errors as [`run`].
pub fn run_scripts<C: ScriptFactory>(
    plan: &Plan,
    scripts: C,
    role: RunRole<'_>,
    stop: &StopFlag,
    observe: &mut dyn FnMut(Observation<'_>),
) -> Result<RunCompletion, EngineError> {
    check_descriptors(role.shard().share(concurrent_script_connections(plan)))?;
    let shape = RunProperties {
        max_workers: u32::MAX,
        calls_per_script: u64::from(scripts.calls_per_script().max(1)),
        wanted: 0,
        trace: false,
        is_mostly_idle: false,
    };
    let scripts = Arc::new(scripts);
    run_workers(
        plan,
        &shape,
        role,
        stop,
        observe,
        move |clock, share, handle| {
            let scripts = Arc::clone(&scripts);
            run_worker(
                clock,
                &scripts.targets(),
                share,
                handle,
                |share, network, _| {
                    scripts.set_clock_origin(clock.origin_unix_ns());
                    let worker = ScriptWorker::new(share, network, Arc::clone(&scripts));
                    // Scripts open their connections during the load, so there is nothing to establish before it.
                    Ok((worker, ConnectSummary::default()))
                },
            );
        },
    )
}

/// Returns all addresses of a target, in the order in which connections are spread over them; at least one.
///
/// # Errors
/// Returns an error if the name does not resolve.
pub fn resolve(target: &Target) -> Result<Arc<[Address]>, EngineError> {
    resolver::target_addresses(target).map_err(|source| EngineError::Resolve {
        url: target.url.clone(),
        host: target.next_hop().host.clone(),
        is_proxy: target.proxy.is_some(),
        source,
    })
}

impl RunRole<'_> {
    fn shard(&self) -> Shard {
        match self {
            RunRole::Standalone => Shard::WHOLE_RUN,
            RunRole::Shard { shard, .. } => *shard,
        }
    }
}

/// Starts the workers, each of which runs `work` on its own thread, and coordinates them until they have ended.
fn run_workers(
    plan: &Plan,
    shape: &RunProperties,
    role: RunRole<'_>,
    stop: &StopFlag,
    observe: &mut dyn FnMut(Observation<'_>),
    work: impl Fn(Clock, WorkerShare, WorkerHandle) + Clone + Send + 'static,
) -> Result<RunCompletion, EngineError> {
    let addresses = resolve(&plan.target)?;
    let server = find_server_processes(&plan.watch, &addresses);
    let shard = role.shard();
    let workers = worker_count(plan, shape.max_workers, shard, &addresses);
    let clock = match &role {
        RunRole::Standalone => Clock::new(),
        RunRole::Shard { clock, .. } => *clock,
    };
    let shared = Arc::new(SharedRunState {
        stop: stop.clone(),
        start: AtomicU64::new(0),
        connections: AtomicI64::new(0),
    });
    let (sender, messages) = mpsc::channel();
    let client = WatchedProcesses::this_process();
    let holding = (shape.is_mostly_idle).then(|| IdleMemorySampler::new(&client, server.as_ref()));
    let client = ResourceMeter::new(client);
    let mut server = server.map(ResourceMeter::new);
    // The CPU time of batches with a fixed number of calls is measured only with a single worker: with several, each
    // would start only some of the batches.
    let turns = plan
        .load
        .batches
        .filter(|t| t.read_cpu && (workers == 1 || t.slot.is_some()));
    let turn_meter = turns.map(|turns| BatchMeter::new(turns, server.as_mut()));
    let mut threads = Vec::new();
    let mut spares = Vec::new();
    for mut share in worker_shares(plan, shape, shard, workers) {
        share.unix_zero_ns = clock.origin_unix_ns();
        let (give, given) = mpsc::channel();
        let handle = WorkerHandle {
            shared: Arc::clone(&shared),
            sender: sender.clone(),
            spares: given,
            last_cpu: Duration::ZERO,
            batch_meter: turn_meter.clone(),
        };
        let work = work.clone();
        let index = share.index;
        let thread = thread::Builder::new()
            .name(format!("worker {index}"))
            .spawn(move || {
                let sender = handle.sender.clone();
                if let Err(defect) = defect::catch_panic(|| work(clock, share, handle)) {
                    // A send fails only if the run was abandoned.
                    let _ = sender.send(WorkerMessage::Defect(index, defect));
                }
            });
        match thread {
            Ok(thread) => threads.push(thread),
            Err(e) => {
                request_immediate_stop(stop);
                return Err(EngineError::Loop(e));
            }
        }
        spares.push(give);
    }
    drop(sender);

    let mut conductor = Conductor {
        shared,
        messages,
        spares,
        clock,
        idle_memory: holding,
        client,
        server,
        machine: MachineMeter::new(),
        shard,
        shares_process: plan.load.batches.is_some(),
        token_counter: plan.call.token_counter().cloned(),
        intervals: IntervalMerger::new(workers as usize),
        negotiated: None,
        observe,
    };
    let outcome = conductor.run(plan, role, workers, shape.wanted);
    if outcome.is_err() {
        // Workers may still be waiting for the start: stop them.
        request_immediate_stop(&conductor.shared.stop);
    }
    for thread in threads {
        // A panic on the thread was already caught and reported there.
        let _ = thread.join();
    }
    outcome
}

fn request_immediate_stop(stop: &StopFlag) {
    stop.request();
    stop.request();
}

/// Runs a worker's thread, from connecting to the end of the last call. `begin` creates the event loop and establishes
/// the connections that must exist before the load.
fn run_worker<C: LoopClient>(
    clock: Clock,
    targets: &[&Target],
    share: WorkerShare,
    mut handle: WorkerHandle,
    begin: impl FnOnce(WorkerShare, OsNetwork, &mut WorkerHandle) -> io::Result<ReadyLoop<C>>,
) where
    EventLoop<C, OsNetwork>: LoopHandler<C::ConnectRequest>,
{
    OsNetwork::minimize_timer_slack();
    if share.load.pin_last_core && share.of == 1 {
        cores::pin_to_generator_core();
    }
    let options = SocketOptions {
        sources: share.load.source_addresses.clone(),
        spin: share.load.spin,
        wants_receive_times: share.measures_lateness()
            && targets.iter().all(|target| target.socket.is_none()),
    };
    let index = share.index;
    let carry = |handle: &mut WorkerHandle| -> io::Result<()> {
        let network = OsNetwork::new(clock, targets, options, index as usize)?;
        let (mut worker, established) = begin(share, network, handle)?;
        // A send fails only if the run was abandoned.
        let _ = handle.sender.send(WorkerMessage::Established(established));
        if worker.await_start(handle)?
            && let Some(start) = handle.start_time()
        {
            handle.reset_cpu_time();
            worker.run(start, handle)?;
        }
        Ok(())
    };
    if let Err(e) = carry(&mut handle) {
        let _ = handle.sender.send(WorkerMessage::Failed(e));
    }
    tracing::debug!(worker = index, "worker ended");
}

/// An event loop that is ready for the load, and the result of connecting.
type ReadyLoop<C> = (EventLoop<C, OsNetwork>, ConnectSummary);
