//! Loads that follow one another on the same shards, as the trials of a search and the slices of a ladder do.
//!
//! Shard 0 decides what comes next and writes it down ([`Next`]); the others read that and make
//! the same plan of it as shard 0 does. Each load is a run of its own, in a folder of the series,
//! with all that a run of shards has: another plan is refused, and one that is lost is named.

use std::cell::Cell;
use std::thread;

use plimsoll_engine::Clock;
use plimsoll_engine::worker::StopLevel;
use plimsoll_model::Plan;
use plimsoll_model::run::{Run, State};
use plimsoll_model::spec::Spec;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::identity::Identity;
use super::meeting::{Meeting, withdraw};
use super::member::{LEADER_PATIENCE, RETRY_DELAY};
use super::objects::{self, Ended, Next, from_json};
use super::store::{Answer, Ask, Role, SHUTDOWN_GRACE, Store};
use super::{INTERRUPTED_REASON, Part};
use crate::execution::{self, By, Job};
use crate::failure::{Exit, Failure};
use crate::process::Process;

/// This process among the shards of a series.
pub(crate) struct Team<'a> {
    identity: &'a Identity,
    process: &'a Process,
    /// The series' folder.
    store: Store,
    /// Loads that were begun.
    begun: Cell<u32>,
}

impl<'a> Team<'a> {
    /// Has `decide` make one load after another, with the shards that meet there or alone. Of several, shard 0
    /// decides, and all end as it ends; the others make their part of load after load, until there is no more.
    /// `plan_of` makes the same plan of a step as shard 0 does.
    ///
    /// # Errors
    /// As `decide`. Where the rendezvous can't be opened, shard 0 does not say what comes next, a plan is wrong, a
    /// run is over for this shard, or the others can't learn of the end.
    pub(crate) fn make<S: DeserializeOwned>(
        meeting: Option<&Meeting>,
        process: &Process,
        plan_of: impl Fn(S) -> Result<(Spec, Plan), Failure>,
        decide: impl FnOnce(Option<&Team<'_>>) -> Result<Exit, Failure>,
    ) -> Result<Exit, Failure> {
        let Some(meeting) = meeting else {
            return decide(None);
        };
        let identity = &meeting.identity;
        let team = Team {
            store: meeting.join()?,
            identity,
            process,
            begun: Cell::new(0),
        };
        if identity.role() == Role::Member {
            return team.follow(plan_of);
        }
        let ended = decide(Some(&team));
        let next = Next::<()>::Ended(match &ended {
            Ok(exit) => Ended::with(exit.code()),
            Err(failure) => Ended::failed(failure),
        });
        let announced = team.announce(team.begun.get() + 1, &next);
        team.store
            .see_off(identity.shard.of - 1, SHUTDOWN_GRACE, &process.stop);
        team.store.close(announced.is_ok());
        ended.and_then(|exit| announced.map(|()| exit))
    }

    /// Announces what comes next, with its number in the series.
    fn announce(&self, number: u32, next: &Next<impl Serialize>) -> Result<(), Failure> {
        let ask = Ask::write(objects::step(number), next);
        self.store.ask_now(&ask).map(drop)
    }

    /// Shard 0: has all make a load, from which the others make the same plan as this one by `step`.
    ///
    /// # Errors
    /// When the load could not begin, a shard was lost, or results can't be kept.
    pub(crate) fn lead(&self, step: impl Serialize, job: Job<'_>) -> Result<Run, Failure> {
        let number = self.begun.get() + 1;
        // What can't be led is not announced.
        let part = self.part(number, job.spec, job.plan)?;
        self.announce(number, &Next::Load(step))?;
        self.begun.set(number);
        let run = part.lead(
            |carry| Ok(execution::carry_out(job, self.process, By::Other(carry))?),
            |_| Exit::Done,
        )?;
        match run.state {
            // What a shard less sends is another load.
            State::Partial => Err(Failure::error(run.reason.as_deref().unwrap_or("partial"))),
            _ => Ok(run),
        }
    }

    fn follow<S: DeserializeOwned>(
        &self,
        plan_of: impl Fn(S) -> Result<(Spec, Plan), Failure>,
    ) -> Result<Exit, Failure> {
        loop {
            let number = self.begun.get() + 1;
            let next = self.next();
            match next.inspect_err(|failure| self.withdraw(number, failure))? {
                Some(Next::Load(step)) => {
                    self.begun.set(number);
                    let part = plan_of(step)
                        .and_then(|(spec, plan)| self.part(number, &spec, &plan))
                        .inspect_err(|failure| self.withdraw(number, failure))?;
                    part.follow()?;
                }
                Some(Next::Ended(ended)) => return ended.result(),
                None => {
                    self.withdraw(number, INTERRUPTED_REASON);
                    return Ok(Exit::Interrupted);
                }
            }
        }
    }

    /// Tells shard 0 that this one takes no part in a load; who can't be told notices it later.
    fn withdraw(&self, number: u32, why: impl std::fmt::Display) {
        let folder = self.store.folder(&objects::of_series(number));
        let _ = withdraw(&folder, self.identity.shard, why);
    }

    /// Waits for what comes next; `None`: this process is interrupted.
    fn next<S: DeserializeOwned>(&self) -> Result<Option<Next<S>>, Failure> {
        let number = self.begun.get() + 1;
        let patience = match number {
            1 => self.identity.barrier,
            _ => LEADER_PATIENCE,
        };
        let clock = Clock::new();
        let began = clock.now();
        let name = objects::step(number);
        loop {
            // Who is not there yet does not listen either.
            let answer = self.store.ask_now(&Ask::Get(name.clone()));
            let waited = clock.now().duration_since(began);
            match answer {
                Ok(Answer::Bytes { bytes, .. }) => {
                    return from_json(&name, &bytes).map(Some).map_err(Failure::error);
                }
                Err(failure) if waited >= patience => return Err(failure),
                _ if waited >= patience => {
                    return Err(Failure::error(format_args!(
                        "shard 0, which leads, has announced nothing for {} s",
                        waited.as_secs()
                    )));
                }
                _ if self.process.stop.level() != StopLevel::Run => {
                    return Ok(None);
                }
                _ => thread::sleep(RETRY_DELAY),
            }
        }
    }

    fn part(&self, number: u32, spec: &Spec, plan: &Plan) -> Result<Part<'a>, Failure> {
        let store = self.store.folder(&objects::of_series(number));
        Part::new(spec, plan, self.identity, self.process, store)
    }
}
