//! Splits one load over several machines: shards that communicate through a folder or an object store.
//!
//! A scheduler (Kubernetes, Slurm, MPI, a shell) starts the same `plimsoll run` on each machine; [`identity`]
//! determines which shard it is. Each shard runs its share of the load with the engine, and writes its measurements
//! into the rendezvous ([`objects`]) once a second, in the format that processes of a multi-process load write to
//! pipes. Shard 0 is also the coordinator ([`leader`]): it waits for all shards, sets the start time, reads the logs
//! and merges them, so that reports see one run. [`member`] is the state machine of every shard, including shard 0.
//! Both state machines do no I/O; [`exchange`] drives them, and [`store`] sends their requests. Each load of a series,
//! such as a trial of a search, is a separate run; [`ShardGroup`] announces which load comes next. A shard that fails
//! before it has joined reports that to the others ([`ShardContext`]). This module does not depend on the protocol of
//! the load.

mod context;
mod digests;
mod exchange;
mod group;
pub(crate) mod identity;
mod leader;
mod member;
mod merging;
mod objects;
mod reading;
mod store;
mod store_request_slot;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::Duration;

use jiff::Timestamp;
use plimsoll_engine::worker::{ConnectSummary, StopUrgency};
use plimsoll_engine::{Clock, EngineError, Observation, RunCompletion, RunRole, StopFlag};
use plimsoll_model::plan::WatchedProcess;
use plimsoll_model::records::record::RequestRecord;
use plimsoll_model::runs::run::RunHeader;
use plimsoll_model::spec::Spec;
use plimsoll_model::{Plan, Time};

use crate::failure::{Exit, Failure};
use crate::load::execution::{self, LoadFunction, LoadRunner, OutputFlags};
use crate::load::multiprocess::wire::{FinishReport, ReadyReport, ShardMessage, send_observation};
use crate::load::multiprocess::{self, MultiprocessLoad, ProcessLayout};
use crate::load::process::ProcessContext;
use crate::load::profiler;
use crate::load::protocols::initial_connection_count;
use crate::screen::console;
use context::withdraw;
use exchange::{LeaderDriver, LeaderShutdown, MemberHandle};
use identity::ShardIdentity;
use leader::{Leader, LeaderConfig};
use member::{Member, MemberEvent};
use objects::{Arrival, Orders, RunManifest, RunResult};
use store::{RendezvousStore, SHUTDOWN_GRACE, ShardRole};

pub(crate) use context::{LoadSequence, ShardContext};
pub(crate) use group::ShardGroup;
pub(crate) use reading::{RunFlags, WatchMode, merge, request_run_stop, watch};

/// How often a shard that waits for the others checks for a stop request.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Reason in the withdrawal of a shard that was stopped by a signal.
const INTERRUPTED_REASON: &str = "it was interrupted before the load began";

/// Runs this shard's share of `plan`. Shard 0 writes the run directory and judges the run; all shards end with the same
/// exit code.
///
/// # Errors
/// When a shard is missing, or the load can't start.
pub(crate) fn execute(
    spec: &Spec,
    plan: &Plan,
    output: &OutputFlags,
    process: &ProcessContext,
    meeting: &ShardContext,
) -> Result<Exit, Failure> {
    if output.dry_run {
        return execution::execute(spec, plan, output, process, LoadRunner::Local, |_| Ok(()));
    }
    // Check that the plan can be run, before any other shard waits for this one.
    drop(process.prepare(plan)?);
    let identity = &meeting.identity;
    let part = ShardRun::new(spec, plan, identity, process, meeting.store()?)?;
    let store = meeting.join()?;
    let ended = match identity.role() {
        ShardRole::Leader => part.run_as_leader(
            |carry| {
                execution::execute(
                    spec,
                    plan,
                    output,
                    process,
                    LoadRunner::External(carry),
                    |_| Ok(()),
                )
            },
            |exit| *exit,
        ),
        ShardRole::Member => part.run_as_member(),
    };
    store.wait_for_peers_to_finish(identity.shard.of - 1, SHUTDOWN_GRACE, &process.stop);
    store.close(ended.is_ok());
    ended
}

/// This shard's share of a run.
struct ShardRun<'a> {
    plan: Plan,
    plan_toml: String,
    layout: ProcessLayout,
    identity: &'a ShardIdentity,
    process: &'a ProcessContext,
    clock: Clock,
    store: Arc<RendezvousStore>,
    arrival: Arrival,
}

impl<'a> ShardRun<'a> {
    fn new(
        spec: &Spec,
        plan: &Plan,
        identity: &'a ShardIdentity,
        process: &'a ProcessContext,
        store: RendezvousStore,
    ) -> Result<ShardRun<'a>, Failure> {
        if plan.profile.is_some() {
            return Err(profiler::multi_machine_profile_failure());
        }
        let filled_in = spec.with_defaults(plan);
        let mut plan = plan.clone();
        if identity.role() == ShardRole::Member {
            // Only shard 0 watches the server's process, because at most one machine runs the server.
            plan.watch = WatchedProcess::Nothing;
        }
        Ok(ShardRun {
            plan_toml: filled_in.to_toml().map_err(Failure::error)?,
            layout: ProcessLayout::choose(&plan, identity.shard)?,
            plan,
            identity,
            process,
            clock: Clock::new(),
            store: Arc::new(store),
            arrival: Arrival {
                version: objects::FORMAT_VERSION,
                shard: identity.shard.index,
                of: identity.shard.of,
                token: uuid::Uuid::new_v4().to_string(),
                digests: digests::compute(&filled_in)?,
            },
        })
    }
}

impl ShardRun<'_> {
    fn start_member(&self, stop: &StopFlag) -> Result<MemberHandle, Failure> {
        let (now, unix) = (self.clock.now(), self.clock.origin_unix_ns());
        let member = Member::new(self.arrival.clone(), now, unix, self.identity.barrier);
        MemberHandle::start(member, Arc::clone(&self.store), self.clock, stop.clone())
    }

    /// Runs this shard's load, and waits for the coordinator to announce the run's result.
    fn run_as_member(&self) -> Result<Exit, Failure> {
        let shard = self.identity.shard;
        self.print_status("waiting for the other shards");
        let stop = self.process.stop.child();
        let rendezvous = self.start_member(&stop).inspect_err(|failure| {
            // Ignore errors: if the withdrawal can't be written, the coordinator times out.
            let _ = withdraw(&self.store, shard, failure);
        })?;
        let over = match self.run_load(&rendezvous, &stop) {
            LoadEnding::Over(over) => Some(over),
            LoadEnding::Done => {
                self.print_status("its share is done; waiting for the end of the run");
                wait_for_run_end(&rendezvous, || false)
            }
            LoadEnding::Withdrawn => {
                let _ = withdraw(&self.store, shard, INTERRUPTED_REASON);
                wait_for_run_end(&rendezvous, || stop.level() == StopUrgency::Now)
            }
        };
        match over {
            Some(MemberEvent::Ended(ended)) => ended.into_exit(),
            Some(MemberEvent::Lost(reason)) => Err(Failure::error(reason)),
            Some(_) => Ok(Exit::Error),
            None => Ok(Exit::Interrupted),
        }
    }

    /// Coordinates the run while another thread runs shard 0's own load. `conclude` is called with a function that runs
    /// the load on all shards; it writes the run directory and judges the run. `exit` is called with the result of
    /// `conclude`, and returns the exit code of all shards.
    fn run_as_leader<T>(
        &self,
        conclude: impl FnOnce(&mut LoadFunction<'_>) -> Result<T, Failure>,
        exit: impl FnOnce(&T) -> Exit,
    ) -> Result<T, Failure> {
        self.print_status("waiting for the other shards");
        let version = env!("CARGO_PKG_VERSION");
        let head = RunManifest {
            version: objects::FORMAT_VERSION,
            of: self.identity.shard.of,
            keep_requests: self.plan.keep_requests,
            header: RunHeader::for_plan(&self.plan, &self.plan_toml, version, Timestamp::now()),
            plan_toml: self.plan_toml.clone(),
        };
        let charge = LeaderConfig {
            arrival: self.arrival.clone(),
            manifest: head,
            url: self.plan.target.url.clone(),
            barrier: self.identity.barrier,
        };
        let wanted = initial_connection_count(&self.plan);
        let (now, unix) = (self.clock.now(), self.clock.origin_unix_ns());
        // Shard 0's own load gets a separate stop flag, so that the coordinator's orders stop it, just as they stop the
        // loads of other shards.
        let stop = StopFlag::new();
        let closing = RefCell::new(None);
        let mut charge = Some(charge);
        let ended = self.start_member(&stop).and_then(|rendezvous| {
            thread::scope(|scope| {
                let mut own = Some((rendezvous, stop));
                let mut carry = |run_stop: &StopFlag, observe: &mut dyn FnMut(Observation<'_>)| {
                    let (Some(charge), Some((rendezvous, stop))) = (charge.take(), own.take())
                    else {
                        return Err(EngineError::Interrupted);
                    };
                    let leader = Leader::new(charge, now, unix);
                    let mut leading =
                        LeaderDriver::new(leader, Arc::clone(&self.store), self.clock);
                    scope.spawn(move || self.run_load(&rendezvous, &stop));
                    let mut wished = || self.process.stop.request();
                    let result = leading.run_leader(run_stop, &mut wished, wanted, observe);
                    *closing.borrow_mut() = LeaderShutdown::start(leading).ok();
                    result
                };
                conclude(&mut carry)
            })
        });
        match (closing.into_inner(), &ended) {
            (Some(closing), Ok(done)) => {
                closing.announce_result(RunResult::from_exit(exit(done).code()))
            }
            (Some(closing), Err(failure)) => {
                closing.announce_result(RunResult::from_failure(failure))
            }
            // The run failed before its load started: tell the other shards, which would otherwise wait.
            (None, Err(failure)) => {
                let orders = Orders::with_result(RunResult::from_failure(failure));
                self.store
                    .send_and_wait(&store::StoreRequest::put_json_request(
                        objects::ORDERS_OBJECT,
                        &orders,
                    ))?;
            }
            (None, Ok(_)) => {}
        }
        ended
    }

    /// Waits until all shards have arrived, and runs this shard's load.
    fn run_load(&self, rendezvous: &MemberHandle, stop: &StopFlag) -> LoadEnding {
        let connect = |event: MemberEvent| {
            (event == MemberEvent::Connect || event.is_over()).then_some(event)
        };
        match wait_for_event(rendezvous, || is_stopped(stop), connect) {
            Some(MemberEvent::Connect) => {}
            Some(over) => return LoadEnding::Over(over),
            None => {
                // The coordinator reads this message if all shards have arrived in the meantime.
                rendezvous.send(ShardMessage::Finished(FinishReport::new_interrupted()));
                rendezvous.close();
                return LoadEnding::Withdrawn;
            }
        }
        let mut missed = None;
        let begun = Cell::new(Time::NEVER);
        let mut start = |established: &ConnectSummary, workers: u32| {
            rendezvous.send(ShardMessage::Ready(ReadyReport::new(established, workers)));
            let begin = wait_for_event(rendezvous, || is_stopped(stop), start_time_from_event)?;
            let at = begin.map_err(|why| missed = Some(why)).ok()?;
            begun.set(at);
            if self.identity.shard.index > 0 {
                self.print_status("the load begins");
            }
            Some(at)
        };
        let place = RunRole::Shard {
            shard: self.identity.shard,
            clock: self.clock,
            start: &mut start,
        };
        let send = |message| {
            rendezvous.send(match message {
                ShardMessage::Request(request) => {
                    ShardMessage::Request(make_relative_to_start(begun.get(), request))
                }
                message => message,
            });
        };
        let mut observe = |event: Observation<'_>| send_observation(&event, send);
        let result = self.run_engine(place, stop, &mut observe);
        rendezvous.send(match (result, missed) {
            (_, Some(LoadStartError::Over(over))) => return LoadEnding::Over(over),
            (_, Some(LoadStartError::TooLate(problem))) => ShardMessage::Failed(problem),
            (Ok(finished), None) => ShardMessage::Finished(FinishReport::from_completion(finished)),
            (Err(EngineError::Interrupted), None) => {
                ShardMessage::Finished(FinishReport::new_interrupted())
            }
            (Err(e @ EngineError::Defect(_)), None) => ShardMessage::Defect(e.to_string()),
            (Err(e), None) => ShardMessage::Failed(e.to_string()),
        });
        rendezvous.close();
        LoadEnding::Done
    }

    fn run_engine(
        &self,
        place: RunRole<'_>,
        stop: &StopFlag,
        observe: &mut dyn FnMut(Observation<'_>),
    ) -> Result<RunCompletion, EngineError> {
        let plan = &self.layout.apply_to(&self.plan);
        if self.layout.processes == 1 {
            let load = self
                .process
                .prepare(plan)
                .map_err(|e| EngineError::Shards(e.to_string()))?;
            return load(place, stop, observe);
        }
        let unwritten = |e: std::io::Error| {
            EngineError::Shards(format!(
                "can't write the plan for this shard's processes: {e}"
            ))
        };
        let folder = tempfile::tempdir().map_err(unwritten)?;
        let plan_file = folder
            .path()
            .join(plimsoll_model::runs::run::file_name::PLAN);
        std::fs::write(&plan_file, &self.plan_toml).map_err(unwritten)?;
        let load = MultiprocessLoad {
            plan,
            layout: &self.layout,
            plan_file: &plan_file,
        };
        multiprocess::run(load, place, self.process, stop, observe)
    }

    /// Prints the activity `doing` of this shard, unless progress is hidden.
    fn print_status(&self, doing: &str) {
        if self.process.progress != crate::screen::progress::ProgressStyle::None {
            let shard = self.identity.shard;
            console::print_notice(format_args!(
                "shard {} of {}: {doing}",
                shard.index, shard.of
            ));
        }
    }
}

/// How a shard's load ended.
enum LoadEnding {
    /// The load has ended; its measurements have been passed to the member's log.
    Done,
    /// The shard was stopped before all shards had arrived.
    Withdrawn,
    /// The run is over for this shard; the event has the result or the reason.
    Over(MemberEvent),
}

/// Why a shard's load did not start.
enum LoadStartError {
    /// The run is over for this shard; the event has the result or the reason.
    Over(MemberEvent),
    TooLate(String),
}

/// Makes a call's times relative to the start of the load, because the machines have different clocks.
fn make_relative_to_start(begin: Time, mut request: RequestRecord) -> RequestRecord {
    let sample = &mut request.sample;
    for time in [
        &mut sample.arrival,
        &mut sample.sent,
        &mut sample.first_byte,
        &mut sample.done,
    ] {
        // Phases that the call did not reach have no time.
        if *time != Time::NEVER {
            *time = Time(time.since(begin));
        }
    }
    request
}

fn is_stopped(stop: &StopFlag) -> bool {
    stop.level() != StopUrgency::Run
}

/// Returns the start time from an event, or why the load does not start; `None` for unrelated events.
fn start_time_from_event(event: MemberEvent) -> Option<Result<Time, LoadStartError>> {
    match event {
        MemberEvent::Begin(at) => Some(Ok(at)),
        MemberEvent::MissedStart(by) => Some(Err(LoadStartError::TooLate(format!(
            "learned of the start {:.1} s too late: the rendezvous is slow, or this machine's clock is wrong",
            by.as_secs_f64()
        )))),
        event => event.is_over().then_some(Err(LoadStartError::Over(event))),
    }
}

/// Waits for the event that ends the run; `None` if `should_stop` returns true first.
fn wait_for_run_end(
    rendezvous: &MemberHandle,
    should_stop: impl Fn() -> bool,
) -> Option<MemberEvent> {
    wait_for_event(rendezvous, should_stop, |event| {
        event.is_over().then_some(event)
    })
}

/// Waits for an event for which `wanted` returns a value, and returns that value; returns `None` if `tired`, the
/// condition for giving up, is true first.
fn wait_for_event<T>(
    rendezvous: &MemberHandle,
    tired: impl Fn() -> bool,
    wanted: impl Fn(MemberEvent) -> Option<T>,
) -> Option<T> {
    loop {
        // Check for a stop before receiving: the event that explains a stop is sent before the stop is requested.
        let tired = tired();
        let event = match rendezvous.events.recv_timeout(STOP_POLL_INTERVAL) {
            Ok(event) => event,
            Err(RecvTimeoutError::Timeout) if tired => return None,
            Err(RecvTimeoutError::Timeout) => continue,
            // The member's thread has ended without a final event.
            Err(RecvTimeoutError::Disconnected) => {
                MemberEvent::Lost("the connection to the rendezvous was closed".to_owned())
            }
        };
        if let Some(found) = wanted(event) {
            return Some(found);
        }
    }
}
