//! The conductor: starts the workers, gives them one moment to begin, puts their
//! intervals together, and watches both ends' resources.
//!
//! It runs on the caller's thread and is the only part that sees all workers. Workers
//! never wait for it: they hand intervals over and go on.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use plimsoll_model::plan::{Arrivals, Plan, Reuse, Target, Watch};
use plimsoll_model::record::{Interval, RequestRecord};
use plimsoll_model::run::{IntervalRecord, NegotiatedTls, Resources};
use plimsoll_model::schedule::Schedule;
use plimsoll_model::{Outcome, Time};

use crate::clock::Clock;
use crate::driver::Protocol;
use crate::network::os::{OsNetwork, SocketOptions};
use crate::resolver::first_address;
use crate::resources::{Usage, Watched};
use crate::script::Scripts;
use crate::script::worker::ScriptWorker;
use crate::stop::Stop;
use crate::tls::{TlsClient, TlsSetupError};
use crate::worker::{Control, Established, Share, StopLevel, Worker, WorkerInterval};

/// Why a run could not begin, or had to end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Tls(#[from] TlsSetupError),
    #[error("{url}: host name {host:?} not resolved: {source}")]
    Resolve {
        url: String,
        host: String,
        source: io::Error,
    },
    /// Not one connection came up.
    #[error("{url}: {detail} [{}]: {}", outcome.code(), outcome.explanation())]
    NoConnection {
        url: String,
        outcome: Outcome,
        detail: String,
    },
    #[error(
        "{needed} connections need {needed_descriptors} descriptors, and this process may have {limit} (ulimit -n): raise the limit, or ask for at most {most} connections a process"
    )]
    Descriptors {
        needed: u32,
        needed_descriptors: u64,
        limit: u64,
        most: u64,
    },
    #[error("the event loop failed: {0}")]
    Loop(io::Error),
    #[error("interrupted before the load began")]
    Interrupted,
    #[error("a worker thread ended without a word; this is a defect in plimsoll")]
    WorkerLost,
}

/// What a caller sees of a run while it happens.
#[derive(Debug)]
pub enum Observation<'a> {
    /// Connections are coming up.
    Connecting { open: u64, wanted: u64 },
    /// The load begins.
    Started { workers: u32, connections: u64 },
    /// A second of the run is over. The calls it ended, one by one, where the plan keeps them.
    Interval(&'a IntervalRecord, &'a [RequestRecord]),
}

/// How a run ended.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Stopped before its time.
    pub interrupted: bool,
    pub workers: u32,
    /// How the connecting went, over all workers.
    pub established: Established,
    /// The server processes that were watched.
    pub watched_pids: Vec<i32>,
    /// What the first connection's TLS handshake agreed on.
    pub negotiated: Option<NegotiatedTls>,
}

/// Carry a plan out.
///
/// `observe` is called on this thread, once an interval and while connecting.
///
/// # Errors
/// When the load could not begin, or the event loop failed. Everything observed until
/// then stands.
pub fn run<P: Protocol>(
    plan: &Plan,
    protocol: P,
    trace: bool,
    stop: &Stop,
    observe: &mut dyn FnMut(Observation<'_>),
) -> Result<Finished, RunError> {
    check_descriptors(plan)?;
    let tls = match &plan.tls {
        Some(tls) => Some(TlsClient::new(tls, &plan.target, protocol.alpn())?),
        None => None,
    };
    let protocol = Arc::new(protocol);
    let wanted = match plan.load.reuse {
        Reuse::Always => u64::from(plan.load.connections),
        Reuse::Never => 0,
    };
    let target = plan.target.clone();
    carry_out(
        plan,
        trace,
        stop,
        wanted,
        observe,
        move |clock, share, hands| {
            work(
                clock,
                &target,
                share,
                Arc::clone(&protocol),
                tls.as_ref().map(TlsClient::for_worker),
                hands,
            );
        },
    )
}

/// Carry a plan of scripts out; otherwise as [`run`].
///
/// # Errors
/// As [`run`].
pub fn run_scripts<C: Scripts>(
    plan: &Plan,
    scripts: C,
    stop: &Stop,
    observe: &mut dyn FnMut(Observation<'_>),
) -> Result<Finished, RunError> {
    check_descriptors(plan)?;
    let scripts = Arc::new(scripts);
    let target = plan.target.clone();
    carry_out(plan, false, stop, 0, observe, move |clock, share, hands| {
        work_scripts(clock, &target, share, Arc::clone(&scripts), hands);
    })
}

/// One address of a host.
///
/// # Errors
/// When there is none.
pub fn resolve(target: &Target) -> Result<SocketAddr, RunError> {
    first_address(&target.host, target.port).map_err(|source| RunError::Resolve {
        url: target.url.clone(),
        host: target.host.clone(),
        source,
    })
}

/// Starts the workers, each with `work` on a thread of its own, and conducts them.
fn carry_out(
    plan: &Plan,
    trace: bool,
    stop: &Stop,
    wanted: u64,
    observe: &mut dyn FnMut(Observation<'_>),
    work: impl Fn(Clock, Share, Hands) + Clone + Send + 'static,
) -> Result<Finished, RunError> {
    let address = resolve(&plan.target)?;
    let watched = match plan.watch {
        Watch::TargetPort => Watched::listening_on(address),
        Watch::Port(port) => {
            let mut watched = address;
            watched.set_port(port);
            Watched::listening_on(watched)
        }
        Watch::Pid(pid) => Some(Watched::pid(pid)),
        Watch::Nothing => None,
    };
    let workers = worker_count(plan, address.ip().is_loopback());
    let clock = Clock::new();
    let shared = Arc::new(Shared {
        stop: stop.clone(),
        start: AtomicU64::new(0),
        connections: AtomicI64::new(0),
    });
    let (tell, told) = mpsc::channel();
    let mut threads = Vec::new();
    let mut spares = Vec::new();
    for share in shares(plan, workers, trace) {
        let (give, given) = mpsc::channel();
        let hands = Hands {
            shared: Arc::clone(&shared),
            tell: tell.clone(),
            spares: given,
        };
        let work = work.clone();
        threads.push(thread::spawn(move || work(clock, share, hands)));
        spares.push(give);
    }
    drop(tell);

    let mut conductor = Conductor {
        shared,
        told,
        spares,
        clock,
        watched,
        client: Watched::own(),
        pending: Vec::new(),
        reached: vec![None; workers as usize],
        negotiated: None,
        observe,
    };
    let outcome = conductor.conduct(plan, workers, wanted);
    if outcome.is_err() {
        // Workers that wait for a start must not wait for ever.
        conductor.shared.stop.request();
        conductor.shared.stop.request();
    }
    for thread in threads {
        thread.join().map_err(|_| RunError::WorkerLost)?;
    }
    outcome
}

/// How many loops: as many as there are connections to spread and cores to run on. A
/// target on this machine keeps half of the cores.
fn worker_count(plan: &Plan, local: bool) -> u32 {
    if let Some(workers) = plan.load.workers {
        return u32::from(workers).max(1);
    }
    let cores = thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let usable = if local { (cores / 2).max(1) } else { cores };
    match plan.load.reuse {
        Reuse::Always => plan.load.connections.clamp(1, usable),
        Reuse::Never => 1,
    }
}

/// Divide a plan among workers without losing a connection, a client or a call.
fn shares(plan: &Plan, workers: u32, trace: bool) -> Vec<Share> {
    let load = Arc::new(plan.load.clone());
    let schedule = Schedule::new(&plan.load, plan.seed);
    let clients = match plan.load.arrivals {
        Arrivals::Open(_) => 0,
        Arrivals::Closed { clients, .. } => clients,
    };
    (0..workers)
        .map(|index| Share {
            index,
            of: workers,
            connections: part(u64::from(plan.load.connections), index, workers) as u32,
            clients: part(u64::from(clients), index, workers) as u32,
            calls: plan.load.calls.map(|calls| part(calls, index, workers)),
            load: Arc::clone(&load),
            schedule: schedule.clone(),
            keep_requests: plan.keep_requests,
            trace,
        })
        .collect()
}

/// The `index`th of `of` parts of `whole`; the first ones take what is left over.
fn part(whole: u64, index: u32, of: u32) -> u64 {
    whole / u64::from(of) + u64::from(u64::from(index) < whole % u64::from(of))
}

/// Descriptors that a run needs besides its connections.
const DESCRIPTORS_BESIDES: u64 = 64;

fn check_descriptors(plan: &Plan) -> Result<(), RunError> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile)
        .current
        .unwrap_or(u64::MAX);
    let needed = match (plan.load.reuse, plan.load.arrivals) {
        (Reuse::Always, _) => plan.load.connections,
        (Reuse::Never, Arrivals::Closed { clients, .. }) => clients,
        (Reuse::Never, Arrivals::Open(_)) => 0,
    };
    let needed_descriptors = u64::from(needed) + DESCRIPTORS_BESIDES;
    if needed_descriptors > limit {
        return Err(RunError::Descriptors {
            needed,
            needed_descriptors,
            limit,
            most: limit.saturating_sub(DESCRIPTORS_BESIDES),
        });
    }
    Ok(())
}

/// What all threads of a run share.
struct Shared {
    stop: Stop,
    /// Nanoseconds on the run's clock; 0: not known yet.
    start: AtomicU64,
    connections: AtomicI64,
}

enum Told {
    Established(Established),
    Interval(Box<WorkerInterval>),
    Failed(io::Error),
}

/// A worker's end of the conversation.
struct Hands {
    shared: Arc<Shared>,
    tell: Sender<Told>,
    spares: Receiver<Interval>,
}

impl Control for Hands {
    #[inline]
    fn stop_level(&self) -> StopLevel {
        self.shared.stop.level()
    }

    fn start(&self) -> Option<Time> {
        match self.shared.start.load(Ordering::Acquire) {
            0 => None,
            start => Some(Time(start)),
        }
    }

    fn connections(&self, change: i64) {
        self.shared.connections.fetch_add(change, Ordering::Relaxed);
    }

    fn interval(&mut self, interval: WorkerInterval) -> Option<Interval> {
        // The conductor is gone only when the run is given up.
        let _ = self.tell.send(Told::Interval(Box::new(interval)));
        self.spares.try_recv().ok()
    }
}

/// A worker's thread, from connecting to the last call's end.
fn work<P: Protocol>(
    clock: Clock,
    target: &Target,
    share: Share,
    protocol: Arc<P>,
    tls: Option<TlsClient>,
    mut hands: Hands,
) {
    OsNetwork::sharpen_timers();
    let options = SocketOptions {
        sources: share.load.source_addresses.clone(),
        spin: share.load.spin,
    };
    let index = share.index;
    let carry = |hands: &mut Hands| -> io::Result<()> {
        let network = OsNetwork::new(clock, &target.host, target.port, options, index as usize)?;
        let mut worker = Worker::new(share, network, protocol, tls);
        let established = worker.establish(hands)?;
        // The conductor is gone only when the run is given up.
        let _ = hands.tell.send(Told::Established(established));
        if worker.await_start(hands)?
            && let Some(start) = hands.start()
        {
            worker.run(start, hands)?;
        }
        Ok(())
    };
    if let Err(e) = carry(&mut hands) {
        let _ = hands.tell.send(Told::Failed(e));
    }
    tracing::debug!(worker = index, "worker ended");
}

/// A worker's thread for scripts, which make their own connections.
fn work_scripts<C: Scripts>(
    clock: Clock,
    target: &Target,
    share: Share,
    scripts: Arc<C>,
    mut hands: Hands,
) {
    OsNetwork::sharpen_timers();
    let options = SocketOptions {
        sources: share.load.source_addresses.clone(),
        spin: share.load.spin,
    };
    let index = share.index as usize;
    let carry = |hands: &mut Hands| -> io::Result<()> {
        let network = OsNetwork::new(clock, &target.host, target.port, options, index)?;
        let mut worker = ScriptWorker::new(share, network, scripts);
        // The conductor is gone only when the run is given up.
        let _ = hands.tell.send(Told::Established(Established::default()));
        while hands.start().is_none() {
            if hands.stop_level() != StopLevel::Run {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(5));
        }
        match hands.start() {
            Some(start) => worker.run(start, hands),
            None => Ok(()),
        }
    };
    if let Err(e) = carry(&mut hands) {
        let _ = hands.tell.send(Told::Failed(e));
    }
    tracing::debug!(worker = index, "worker ended");
}

/// One interval, as far as workers have handed it over.
struct Pending {
    index: u32,
    merged: Interval,
    end_ns: u64,
    in_flight: u64,
    backlog: u64,
    connections: u64,
    busiest_ns: u64,
}

struct Conductor<'a, 'o> {
    shared: Arc<Shared>,
    told: Receiver<Told>,
    spares: Vec<Sender<Interval>>,
    clock: Clock,
    watched: Option<Watched>,
    client: Watched,
    pending: Vec<Pending>,
    /// The last interval each worker has handed over; `u32::MAX` once it has ended.
    reached: Vec<Option<u32>>,
    negotiated: Option<NegotiatedTls>,
    observe: &'a mut (dyn FnMut(Observation<'_>) + 'o),
}

impl Conductor<'_, '_> {
    fn conduct(&mut self, plan: &Plan, workers: u32, wanted: u64) -> Result<Finished, RunError> {
        let established = self.await_connections(plan, workers, wanted)?;
        let mut usage = Usages {
            client: self.client.usage().unwrap_or_default(),
            server: self.watched.as_ref().and_then(Watched::usage),
        };
        (self.observe)(Observation::Started {
            workers,
            connections: u64::from(established.open),
        });
        // Far enough ahead that every worker sees it in time.
        let start = self.clock.now() + Duration::from_millis(100);
        self.shared.start.store(start.0, Ordering::Release);

        let mut last_end = 0;
        let mut failure = None;
        loop {
            match self.told.recv() {
                Ok(Told::Interval(interval)) => {
                    self.take(*interval);
                    self.emit(&mut usage, &mut last_end);
                }
                Ok(Told::Failed(e)) => {
                    self.shared.stop.request();
                    failure = Some(e);
                }
                Ok(Told::Established(_)) => {}
                // Every worker has ended.
                Err(_) => break,
            }
        }
        self.reached.fill(Some(u32::MAX));
        self.emit(&mut usage, &mut last_end);
        if let Some(e) = failure {
            return Err(RunError::Loop(e));
        }
        Ok(Finished {
            interrupted: self.shared.stop.level() != StopLevel::Run,
            workers,
            established,
            watched_pids: self
                .watched
                .as_ref()
                .map_or_else(Vec::new, |watched| watched.pids().to_vec()),
            negotiated: self.negotiated.take(),
        })
    }

    fn await_connections(
        &mut self,
        plan: &Plan,
        workers: u32,
        wanted: u64,
    ) -> Result<Established, RunError> {
        let mut total = Established::default();
        let mut missing = workers;
        while missing > 0 {
            match self.told.recv_timeout(Duration::from_millis(250)) {
                Ok(Told::Established(one)) => {
                    missing -= 1;
                    total.open += one.open;
                    total.failed += one.failed;
                    total.failure = total.failure.or(one.failure);
                }
                Ok(Told::Failed(e)) => return Err(RunError::Loop(e)),
                Ok(Told::Interval(_)) => {}
                Err(RecvTimeoutError::Timeout) => {
                    let open = self.shared.connections.load(Ordering::Relaxed);
                    (self.observe)(Observation::Connecting {
                        open: u64::try_from(open).unwrap_or(0),
                        wanted,
                    });
                }
                Err(RecvTimeoutError::Disconnected) => return Err(RunError::WorkerLost),
            }
        }
        if self.shared.stop.level() != StopLevel::Run {
            return Err(RunError::Interrupted);
        }
        if wanted > 0 && total.open == 0 {
            let (outcome, detail) = total
                .failure
                .unwrap_or((Outcome::ConnectFailed, "no connection came up".to_owned()));
            return Err(RunError::NoConnection {
                url: plan.target.url.clone(),
                outcome,
                detail,
            });
        }
        Ok(total)
    }

    fn take(&mut self, from: WorkerInterval) {
        let worker = from.worker as usize;
        self.negotiated = self.negotiated.take().or(from.negotiated);
        self.reached[worker] = Some(if from.last { u32::MAX } else { from.index });
        let at = match self.pending.binary_search_by_key(&from.index, |p| p.index) {
            Ok(at) => at,
            Err(at) => {
                self.pending.insert(
                    at,
                    Pending {
                        index: from.index,
                        merged: Interval::default(),
                        end_ns: 0,
                        in_flight: 0,
                        backlog: 0,
                        connections: 0,
                        busiest_ns: 0,
                    },
                );
                at
            }
        };
        let pending = &mut self.pending[at];
        pending.merged.merge(&from.recorded);
        pending.end_ns = pending.end_ns.max(from.end_ns);
        pending.in_flight += from.in_flight;
        pending.backlog += from.backlog;
        pending.connections += u64::from(from.connections);
        pending.busiest_ns = pending.busiest_ns.max(from.busy_ns);
        let mut spare = from.recorded;
        spare.clear();
        // A worker that has ended takes no spare.
        let _ = self.spares[worker].send(spare);
    }

    /// Pass on the intervals that every worker has left behind.
    fn emit(&mut self, usage: &mut Usages, last_end: &mut u64) {
        let Some(Some(complete)) = self.reached.iter().min() else {
            return;
        };
        let complete = *complete;
        while self
            .pending
            .first()
            .is_some_and(|first| first.index <= complete)
        {
            let pending = self.pending.remove(0);
            let now = Usages {
                client: self.client.usage().unwrap_or_default(),
                server: self.watched.as_ref().and_then(Watched::usage),
            };
            // The run format counts in µs: in whole ones the run's figures are the same
            // whether they come from memory or from the files.
            let end = (pending.end_ns / 1000 * 1000).max(*last_end);
            let length = end - *last_end;
            let Interval {
                stages,
                details,
                requests,
                ..
            } = pending.merged;
            let record = IntervalRecord {
                index: u64::from(pending.index),
                start_offset: Duration::from_nanos(*last_end),
                length: Duration::from_nanos(length),
                stages: (0u8..)
                    .zip(stages)
                    .filter_map(|(stage, record)| Some((stage, *record?)))
                    .filter(|(_, record)| !record.is_empty())
                    .collect(),
                in_flight: pending.in_flight,
                backlog: pending.backlog,
                connections_open: pending.connections,
                busiest_worker_ratio: pending.busiest_ns as f64 / length.max(1) as f64,
                client: Some(difference(usage.client, now.client)),
                server: now
                    .server
                    .map(|now| difference(usage.server.unwrap_or(now), now)),
                details,
            };
            *usage = now;
            *last_end = end;
            (self.observe)(Observation::Interval(&record, &requests));
        }
    }
}

struct Usages {
    client: Usage,
    server: Option<Usage>,
}

fn difference(before: Usage, now: Usage) -> Resources {
    Resources {
        cpu_user_us: now.cpu_user_us.saturating_sub(before.cpu_user_us),
        cpu_system_us: now.cpu_system_us.saturating_sub(before.cpu_system_us),
        rss_bytes: now.rss_bytes,
        descriptors: now.descriptors,
        threads: now.threads,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up_to_the_whole() {
        for (whole, of) in [(10u64, 3u32), (1, 4), (0, 2), (1_000_000, 7)] {
            let parts: Vec<u64> = (0..of).map(|i| part(whole, i, of)).collect();
            assert_eq!(parts.iter().sum::<u64>(), whole);
            assert!(parts.iter().max().unwrap() - parts.iter().min().unwrap() <= 1);
        }
    }
}
