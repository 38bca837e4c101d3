//! One load over several machines: shards that meet in a folder or an object store.
//!
//! Whoever starts many processes (Kubernetes, Slurm, MPI, a shell) starts the same `plimsoll run`
//! in each; [`identity`] finds out which shard it is. All write what they measure into the
//! rendezvous ([`objects`]), second by second, as a process of a spread load writes it on its
//! pipe. Shard 0 leads: besides its part of the load it waits for all, gives the beginning, reads
//! the logs and merges them ([`leader`]); everything behind it sees one run. What a shard does is
//! in [`member`]. Both are state machines without I/O; [`exchange`] drives them, and [`store`]
//! makes their requests. Loads that follow one another, as the trials of a search do, are each a
//! run of their own; [`team`] passes on which comes next. The load itself is the engine's, at
//! another place. Whoever fails on the way to the others tells them ([`meeting`]). Nothing here knows a protocol.

mod digests;
mod exchange;
pub(crate) mod identity;
mod lane;
mod leader;
mod meeting;
mod member;
mod merging;
mod objects;
mod reading;
mod store;
mod team;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::Duration;

use jiff::Timestamp;
use plimsoll_engine::worker::{Established, StopLevel};
use plimsoll_engine::{Clock, EngineError, Finished, Observation, Place, Stop};
use plimsoll_model::plan::Watch;
use plimsoll_model::record::RequestRecord;
use plimsoll_model::run::RunHeader;
use plimsoll_model::spec::Spec;
use plimsoll_model::{Plan, Time};

use crate::console;
use crate::execution::{self, By, Carry, OutputFlags};
use crate::failure::{Exit, Failure};
use crate::process::Process;
use crate::protocols::connections_beforehand;
use crate::spread::wire::{End, Message, Ready, messages};
use crate::spread::{self, Spread, SpreadLoad};
use exchange::{Closing, Leading, Rendezvous};
use identity::Identity;
use leader::{Charge, Leader};
use meeting::withdraw;
use member::{Event, Member};
use objects::{Arrival, Ended, Head, Orders};
use store::{Role, SHUTDOWN_GRACE, Store};

pub(crate) use meeting::{Loads, Meeting};
pub(crate) use reading::{RunFlags, Watching, ask_to_end, merge, watch};
pub(crate) use team::Team;

/// How often a shard that waits for the others looks whether it is to stop.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Why a shard takes no part that a signal ended.
const INTERRUPTED_REASON: &str = "it was interrupted before the load began";

/// Carries out the part of `plan` that this shard has. Shard 0 writes the run and judges it; all
/// end alike.
///
/// # Errors
/// When the shards did not come together, or the load could not begin.
pub(crate) fn execute(
    spec: &Spec,
    plan: &Plan,
    output: &OutputFlags,
    process: &Process,
    meeting: &Meeting,
) -> Result<Exit, Failure> {
    if output.dry_run {
        return execution::execute(spec, plan, output, process, By::Machine, |_| Ok(()));
    }
    // A plan that can't be carried out fails before anybody waits.
    drop(process.prepare(plan)?);
    let identity = &meeting.identity;
    let part = Part::new(spec, plan, identity, process, meeting.store()?)?;
    let store = meeting.join()?;
    let ended = match identity.role() {
        Role::Leader => part.lead(
            |carry| execution::execute(spec, plan, output, process, By::Other(carry), |_| Ok(())),
            |exit| *exit,
        ),
        Role::Member => part.follow(),
    };
    store.see_off(identity.shard.of - 1, SHUTDOWN_GRACE, &process.stop);
    store.close(ended.is_ok());
    ended
}

/// What this process has to do with the run.
struct Part<'a> {
    plan: Plan,
    plan_toml: String,
    spread: Spread,
    identity: &'a Identity,
    process: &'a Process,
    clock: Clock,
    store: Arc<Store>,
    arrival: Arrival,
}

impl<'a> Part<'a> {
    fn new(
        spec: &Spec,
        plan: &Plan,
        identity: &'a Identity,
        process: &'a Process,
        store: Store,
    ) -> Result<Part<'a>, Failure> {
        let filled_in = spec.filled_in(plan);
        let mut plan = plan.clone();
        if identity.role() == Role::Member {
            // One machine has the server, if any, and one account of it is enough.
            plan.watch = Watch::Nothing;
        }
        Ok(Part {
            plan_toml: filled_in.to_toml().map_err(Failure::error)?,
            spread: Spread::of(&plan, identity.shard)?,
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
                digests: digests::of(&filled_in)?,
            },
        })
    }
}

impl Part<'_> {
    fn rendezvous(&self, stop: &Stop) -> Result<Rendezvous, Failure> {
        let (now, unix) = (self.clock.now(), self.clock.unix_zero());
        let member = Member::new(self.arrival.clone(), now, unix, self.identity.barrier);
        Rendezvous::start(member, Arc::clone(&self.store), self.clock, stop.clone())
    }

    /// Makes the load, and waits for what the leader says of the run.
    fn follow(&self) -> Result<Exit, Failure> {
        let shard = self.identity.shard;
        self.notice_of("waiting for the others");
        let stop = self.process.stop.for_one();
        let rendezvous = self.rendezvous(&stop).inspect_err(|failure| {
            // Who can't be told notices it later.
            let _ = withdraw(&self.store, shard, failure);
        })?;
        let over = match self.carry(&rendezvous, &stop) {
            Carried::Over(over) => Some(over),
            Carried::Done => {
                self.notice_of("its part is done; waiting for the run's end");
                wait_for_end(&rendezvous, || false)
            }
            Carried::Withdrawn => {
                let _ = withdraw(&self.store, shard, INTERRUPTED_REASON);
                wait_for_end(&rendezvous, || stop.level() == StopLevel::Now)
            }
        };
        match over {
            Some(Event::Ended(ended)) => ended.result(),
            Some(Event::Lost(reason)) => Err(Failure::error(reason)),
            Some(_) => Ok(Exit::Error),
            None => Ok(Exit::Interrupted),
        }
    }

    /// Leads the run, and makes the load of shard 0 beside that. `conclude` has the whole measured by what it
    /// is given, writes it and judges it; `exit` says what all end with.
    fn lead<T>(
        &self,
        conclude: impl FnOnce(&mut Carry<'_>) -> Result<T, Failure>,
        exit: impl FnOnce(&T) -> Exit,
    ) -> Result<T, Failure> {
        self.notice_of("waiting for the others");
        let version = env!("CARGO_PKG_VERSION");
        let head = Head {
            version: objects::FORMAT_VERSION,
            of: self.identity.shard.of,
            keep_requests: self.plan.keep_requests,
            header: RunHeader::of(&self.plan, &self.plan_toml, version, Timestamp::now()),
            plan_toml: self.plan_toml.clone(),
        };
        let charge = Charge {
            own: self.arrival.clone(),
            head,
            url: self.plan.target.url.clone(),
            barrier: self.identity.barrier,
        };
        let wanted = connections_beforehand(&self.plan);
        let (now, unix) = (self.clock.now(), self.clock.unix_zero());
        // Shard 0's own load ends as all others' do: when it is ordered.
        let stop = Stop::new();
        let closing = RefCell::new(None);
        let mut charge = Some(charge);
        let ended = self.rendezvous(&stop).and_then(|rendezvous| {
            thread::scope(|scope| {
                let mut own = Some((rendezvous, stop));
                let mut carry = |run_stop: &Stop, observe: &mut dyn FnMut(Observation<'_>)| {
                    let (Some(charge), Some((rendezvous, stop))) = (charge.take(), own.take())
                    else {
                        return Err(EngineError::Interrupted);
                    };
                    let leader = Leader::new(charge, now, unix);
                    let mut leading = Leading::new(leader, Arc::clone(&self.store), self.clock);
                    scope.spawn(move || self.carry(&rendezvous, &stop));
                    let mut wished = || self.process.stop.request();
                    let result = leading.lead(run_stop, &mut wished, wanted, observe);
                    *closing.borrow_mut() = Closing::start(leading).ok();
                    result
                };
                conclude(&mut carry)
            })
        });
        match (closing.into_inner(), &ended) {
            (Some(closing), Ok(done)) => closing.end(Ended::with(exit(done).code())),
            (Some(closing), Err(failure)) => closing.end(Ended::failed(failure)),
            // It failed before the load: no shard may wait for a leader that is gone.
            (None, Err(failure)) => {
                let orders = Orders::ended(Ended::failed(failure));
                self.store
                    .ask_now(&store::Ask::write(objects::ORDERS_OBJECT, &orders))?;
            }
            (None, Ok(_)) => {}
        }
        ended
    }

    /// This shard's load, from the arrival of all to its end.
    fn carry(&self, rendezvous: &Rendezvous, stop: &Stop) -> Carried {
        let connect = |event: Event| (event == Event::Connect || event.is_over()).then_some(event);
        match wait(rendezvous, || is_stopped(stop), connect) {
            Some(Event::Connect) => {}
            Some(over) => return Carried::Over(over),
            None => {
                // The log is read where all had come meanwhile.
                rendezvous.send(Message::Finished(End::interrupted()));
                rendezvous.close();
                return Carried::Withdrawn;
            }
        }
        let mut missed = None;
        let begun = Cell::new(Time::NEVER);
        let mut start = |established: &Established, workers: u32| {
            rendezvous.send(Message::Ready(Ready::of(established, workers)));
            let begin = wait(rendezvous, || is_stopped(stop), beginning)?;
            let at = begin.map_err(|why| missed = Some(why)).ok()?;
            begun.set(at);
            if self.identity.shard.index > 0 {
                self.notice_of("the load begins");
            }
            Some(at)
        };
        let place = Place::Shard {
            shard: self.identity.shard,
            clock: self.clock,
            start: &mut start,
        };
        let send = |message| {
            rendezvous.send(match message {
                Message::Request(request) => Message::Request(since(begun.get(), request)),
                message => message,
            });
        };
        let mut observe = |event: Observation<'_>| messages(&event, send);
        let result = self.load(place, stop, &mut observe);
        rendezvous.send(match (result, missed) {
            (_, Some(Missed::Over(over))) => return Carried::Over(over),
            (_, Some(Missed::TooLate(problem))) => Message::Failed(problem),
            (Ok(finished), None) => Message::Finished(End::of(finished)),
            (Err(EngineError::Interrupted), None) => Message::Finished(End::interrupted()),
            (Err(e @ EngineError::Defect(_)), None) => Message::Defect(e.to_string()),
            (Err(e), None) => Message::Failed(e.to_string()),
        });
        rendezvous.close();
        Carried::Done
    }

    fn load(
        &self,
        place: Place<'_>,
        stop: &Stop,
        observe: &mut dyn FnMut(Observation<'_>),
    ) -> Result<Finished, EngineError> {
        let plan = &self.spread.laid_over(&self.plan);
        if self.spread.processes == 1 {
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
        let plan_file = folder.path().join(plimsoll_model::run::file::PLAN);
        std::fs::write(&plan_file, &self.plan_toml).map_err(unwritten)?;
        let load = SpreadLoad {
            plan,
            spread: &self.spread,
            plan_file: &plan_file,
        };
        spread::run(load, place, self.process, stop, observe)
    }

    /// For people, where they watch: what this shard does.
    fn notice_of(&self, doing: &str) {
        if self.process.progress != crate::progress::Style::None {
            let shard = self.identity.shard;
            console::notice(format_args!(
                "shard {} of {}: {doing}",
                shard.index, shard.of
            ));
        }
    }
}

/// How far a shard came with its load.
enum Carried {
    /// What it measured is in the log, or on its way there.
    Done,
    /// It was ordered to stop before all had come.
    Withdrawn,
    /// The run is over for this shard.
    Over(Event),
}

/// Why a shard's load did not begin.
enum Missed {
    /// The run is over for this shard.
    Over(Event),
    TooLate(String),
}

/// A call, whose times count from the beginning: machines have that in common, and no clock.
fn since(begin: Time, mut request: RequestRecord) -> RequestRecord {
    let sample = &mut request.sample;
    for time in [
        &mut sample.arrival,
        &mut sample.sent,
        &mut sample.first_byte,
        &mut sample.done,
    ] {
        // What did not happen has no time.
        if *time != Time::NEVER {
            *time = Time(time.since(begin));
        }
    }
    request
}

fn is_stopped(stop: &Stop) -> bool {
    stop.level() != StopLevel::Run
}

/// When the load begins, or why it does not, where the event says so.
fn beginning(event: Event) -> Option<Result<Time, Missed>> {
    match event {
        Event::Begin(at) => Some(Ok(at)),
        Event::BeganWithout(by) => Some(Err(Missed::TooLate(format!(
            "learned of the beginning {:.1} s too late: the rendezvous is slow, or this machine's clock is wrong",
            by.as_secs_f64()
        )))),
        event => event.is_over().then_some(Err(Missed::Over(event))),
    }
}

/// How the run ended; `None`: this shard is `tired` of waiting for that.
fn wait_for_end(rendezvous: &Rendezvous, tired: impl Fn() -> bool) -> Option<Event> {
    wait(rendezvous, tired, |event| event.is_over().then_some(event))
}

/// What `wanted` finds in the next event that it wants; `None`: this shard is `tired` of waiting.
fn wait<T>(
    rendezvous: &Rendezvous,
    tired: impl Fn() -> bool,
    wanted: impl Fn(Event) -> Option<T>,
) -> Option<T> {
    loop {
        // Looked at first: the event that explains a stop is sent before it.
        let tired = tired();
        let event = match rendezvous.events.recv_timeout(STOP_POLL_INTERVAL) {
            Ok(event) => event,
            Err(RecvTimeoutError::Timeout) if tired => return None,
            Err(RecvTimeoutError::Timeout) => continue,
            // The thread ended without saying why.
            Err(RecvTimeoutError::Disconnected) => {
                Event::Lost("the link to the rendezvous ended".to_owned())
            }
        };
        if let Some(found) = wanted(event) {
            return Some(found);
        }
    }
}
