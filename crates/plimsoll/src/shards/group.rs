//! Runs a series of loads on the same shards, such as the trials of a search or the slices (short runs of one variant)
//! of a ladder.
//!
//! Shard 0 decides which load comes next and announces it; the others derive the same plan from the announcement. Each
//! load is a run in its own subfolder of the series, with all checks of a sharded run: shards with another plan are
//! rejected, and lost shards are reported.

use std::cell::Cell;
use std::thread;

use plimsoll_engine::Clock;
use plimsoll_engine::worker::StopUrgency;
use plimsoll_model::Plan;
use plimsoll_model::runs::run::{Run, RunState};
use plimsoll_model::spec::Spec;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::context::{ShardContext, withdraw};
use super::identity::ShardIdentity;
use super::member::{LEADER_TIMEOUT, RETRY_DELAY};
use super::objects::{self, NextLoad, RunResult, from_json};
use super::store::{RendezvousStore, SHUTDOWN_GRACE, ShardRole, StoreRequest, StoreResponse};
use super::{INTERRUPTED_REASON, ShardRun};
use crate::failure::{Exit, Failure};
use crate::load::execution::{self, LoadRunner, PlannedRun};
use crate::load::process::ProcessContext;

/// This process's view of the shards that run a series of loads.
pub(crate) struct ShardGroup<'a> {
    identity: &'a ShardIdentity,
    process: &'a ProcessContext,
    /// The folder of the series in the rendezvous.
    store: RendezvousStore,
    /// Number of loads started so far.
    loads_started: Cell<u32>,
}

impl<'a> ShardGroup<'a> {
    /// Runs a series of loads. On shard 0, `decide` chooses and runs the loads one after another; the same applies if
    /// the load is not split over shards, in which case `meeting` is `None`. The other shards run their share of each
    /// announced load and end with shard 0's exit code. They get the plan of a load by passing its announcement to
    /// `plan_of`.
    ///
    /// # Errors
    /// When `decide` fails, the rendezvous can't be opened, shard 0 announces nothing, a plan is invalid, the run is
    /// lost for this shard, or the result can't be announced.
    pub(crate) fn run<S: DeserializeOwned>(
        meeting: Option<&ShardContext>,
        process: &ProcessContext,
        plan_of: impl Fn(S) -> Result<(Spec, Plan), Failure>,
        decide: impl FnOnce(Option<&ShardGroup<'_>>) -> Result<Exit, Failure>,
    ) -> Result<Exit, Failure> {
        let Some(meeting) = meeting else {
            return decide(None);
        };
        let identity = &meeting.identity;
        let team = ShardGroup {
            store: meeting.join()?,
            identity,
            process,
            loads_started: Cell::new(0),
        };
        if identity.role() == ShardRole::Member {
            return team.run_member(plan_of);
        }
        let ended = decide(Some(&team));
        let next = NextLoad::<()>::Ended(match &ended {
            Ok(exit) => RunResult::from_exit(exit.code()),
            Err(failure) => RunResult::from_failure(failure),
        });
        let announced = team.announce(team.loads_started.get() + 1, &next);
        team.store
            .wait_for_peers_to_finish(identity.shard.of - 1, SHUTDOWN_GRACE, &process.stop);
        team.store.close(announced.is_ok());
        ended.and_then(|exit| announced.map(|()| exit))
    }

    /// Announces load number `number` of the series, or the end of the series if there is no such load.
    fn announce(&self, number: u32, next: &NextLoad<impl Serialize>) -> Result<(), Failure> {
        let ask = StoreRequest::put_json_request(objects::announcement_object_name(number), next);
        self.store.send_and_wait(&ask).map(drop)
    }

    /// Runs a load on all shards. Only shard 0 calls this; the other shards derive the same plan from `step`.
    ///
    /// # Errors
    /// When the load can't start, a shard is lost, or the results can't be saved.
    pub(crate) fn run_load(
        &self,
        step: impl Serialize,
        job: PlannedRun<'_>,
    ) -> Result<Run, Failure> {
        let number = self.loads_started.get() + 1;
        // Prepare shard 0's own share first, so that no load is announced that it can't run.
        let part = self.new_shard_run(number, job.spec, job.plan)?;
        self.announce(number, &NextLoad::Load(step))?;
        self.loads_started.set(number);
        let run = part.run_as_leader(
            |carry| {
                Ok(execution::measure(
                    job,
                    self.process,
                    LoadRunner::External(carry),
                )?)
            },
            |_| Exit::Done,
        )?;
        match run.state {
            // In a partial run the calls of a shard are missing, so it is not a result for the planned load.
            RunState::Partial => Err(Failure::error(run.reason.as_deref().unwrap_or("partial"))),
            _ => Ok(run),
        }
    }

    fn run_member<S: DeserializeOwned>(
        &self,
        plan_of: impl Fn(S) -> Result<(Spec, Plan), Failure>,
    ) -> Result<Exit, Failure> {
        loop {
            let number = self.loads_started.get() + 1;
            let next = self.wait_for_announcement();
            match next.inspect_err(|failure| self.withdraw(number, failure))? {
                Some(NextLoad::Load(step)) => {
                    self.loads_started.set(number);
                    let part = plan_of(step)
                        .and_then(|(spec, plan)| self.new_shard_run(number, &spec, &plan))
                        .inspect_err(|failure| self.withdraw(number, failure))?;
                    part.run_as_member()?;
                }
                Some(NextLoad::Ended(ended)) => return ended.into_exit(),
                None => {
                    self.withdraw(number, INTERRUPTED_REASON);
                    return Ok(Exit::Interrupted);
                }
            }
        }
    }

    /// Tells shard 0 that this shard does not take part in a load. Errors are ignored, because shard 0 then times out.
    fn withdraw(&self, number: u32, why: impl std::fmt::Display) {
        let folder = self.store.subfolder(&objects::load_folder_name(number));
        let _ = withdraw(&folder, self.identity.shard, why);
    }

    /// Waits for the announcement of the next load; returns `None` if this process is interrupted.
    fn wait_for_announcement<S: DeserializeOwned>(&self) -> Result<Option<NextLoad<S>>, Failure> {
        let number = self.loads_started.get() + 1;
        let patience = match number {
            1 => self.identity.barrier,
            _ => LEADER_TIMEOUT,
        };
        let clock = Clock::new();
        let began = clock.now();
        let name = objects::announcement_object_name(number);
        loop {
            // Retry after errors, because shard 0 may not have started yet.
            let answer = self.store.send_and_wait(&StoreRequest::Get(name.clone()));
            let waited = clock.now().duration_since(began);
            match answer {
                Ok(StoreResponse::Bytes { bytes, .. }) => {
                    return from_json(&name, &bytes).map(Some).map_err(Failure::error);
                }
                Err(failure) if waited >= patience => return Err(failure),
                _ if waited >= patience => {
                    return Err(Failure::error(format_args!(
                        "shard 0, which leads the run, has announced nothing for {} s",
                        waited.as_secs()
                    )));
                }
                _ if self.process.stop.level() != StopUrgency::Run => {
                    return Ok(None);
                }
                _ => thread::sleep(RETRY_DELAY),
            }
        }
    }

    fn new_shard_run(
        &self,
        number: u32,
        spec: &Spec,
        plan: &Plan,
    ) -> Result<ShardRun<'a>, Failure> {
        let store = self.store.subfolder(&objects::load_folder_name(number));
        ShardRun::new(spec, plan, self.identity, self.process, store)
    }
}
