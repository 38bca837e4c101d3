//! Connects a shard to its run's rendezvous, and reports early failures of the shard to the other shards, which would
//! otherwise wait for it.
//!
//! Invariant: any failure of a command before its shard has joined the run, such as an invalid plan or a missing
//! file, is reported to shard 0, which reports it to all others. After joining, the leader tracks the shard
//! ([`super::leader`]).

use std::cell::{Cell, OnceCell, RefCell};
use std::thread;
use std::time::Duration;

use plimsoll_engine::worker::StopUrgency;
use plimsoll_engine::{Clock, StopFlag};
use plimsoll_model::plan::Shard;

use super::identity::{ShardFlags, ShardIdentity};
use super::member::RETRY_DELAY;
use super::objects::{self, NextLoad, ORDERS_OBJECT, Orders, RunResult, Withdrawal};
use super::store::{RendezvousStore, ShardRole, StoreRequest, StoreResponse};
use crate::failure::{Exit, Failure};
use crate::screen::console;
use crate::settings::environment::Environment;

/// How long a failing shard tries to report its failure to shard 0. It is also how long a failing shard 0 keeps serving
/// its report to shards that start later.
const REPORT_TIMEOUT: Duration = Duration::from_secs(60);

/// Whether the shards run a single load or a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadSequence {
    Single,
    /// Several loads, one after another ([`super::ShardGroup`]).
    Series,
}

/// A shard and its connection to the rendezvous.
pub(crate) struct ShardContext {
    pub(super) identity: ShardIdentity,
    loads: LoadSequence,
    /// The run's folder in the rendezvous, opened on first use.
    store: OnceCell<RendezvousStore>,
    has_joined: Cell<bool>,
    /// The stop flag that signal handlers set. Until they are installed, this is a placeholder that is never set.
    stop: RefCell<StopFlag>,
}

impl ShardContext {
    /// Returns the context of the shard that `flags` describe; `None` if the flags request no shards.
    ///
    /// # Errors
    /// As for [`ShardFlags::identity`].
    pub(crate) fn from_flags(
        flags: &ShardFlags,
        loads: LoadSequence,
        environment: &Environment,
    ) -> Result<Option<ShardContext>, Failure> {
        let identity = flags.identity(|name| environment.value(name))?;
        Ok(identity.map(|identity| ShardContext {
            identity,
            loads,
            store: OnceCell::new(),
            has_joined: Cell::new(false),
            stop: RefCell::new(StopFlag::new()),
        }))
    }

    /// Runs `work`, during which this shard joins the run. A failure before it has joined is reported to the other
    /// shards.
    ///
    /// # Errors
    /// When `work` fails.
    pub(crate) fn run_and_report_failure(
        meeting: Option<&ShardContext>,
        work: impl FnOnce() -> Result<Exit, Failure>,
    ) -> Result<Exit, Failure> {
        let ended = work();
        if let (Some(meeting), Err(failure)) = (meeting, &ended)
            && !meeting.has_joined.get()
            && let Err(problem) = meeting.store().and_then(|s| meeting.report_failure(&s, failure))
            // If the report fails for the same reason as `work`, such as an invalid rendezvous, don't repeat it.
            && problem.to_string() != failure.to_string()
        {
            console::print_notice(format_args!(
                "this failure can't be reported to the other shards, which wait for --barrier: {problem}"
            ));
        }
        ended
    }

    /// Sets the stop flag. An immediate stop ends the wait for other shards.
    pub(crate) fn set_stop_flag(&self, stop: &StopFlag) {
        self.stop.replace(stop.clone());
    }

    /// Marks the shard as joined, so that failures are not reported to other shards. For dry runs, where no other shard
    /// waits for this one.
    pub(crate) fn mark_joined(&self) {
        self.has_joined.set(true);
    }

    /// Returns the store of this run's folder.
    ///
    /// # Errors
    /// When the rendezvous can't be opened.
    pub(super) fn store(&self) -> Result<RendezvousStore, Failure> {
        if let Some(store) = self.store.get() {
            return Ok(store.clone());
        }
        let ShardIdentity {
            rendezvous, access, ..
        } = &self.identity;
        let store = RendezvousStore::open(rendezvous, access, self.identity.role())?;
        let folder = store.subfolder(&self.identity.run_id);
        Ok(self.store.get_or_init(|| folder).clone())
    }

    /// Marks this shard as joined, and returns the store of the run's folder. From now on the leader tracks this shard.
    ///
    /// # Errors
    /// When the run ID was used before, or the rendezvous can't be opened.
    pub(super) fn join(&self) -> Result<RendezvousStore, Failure> {
        let store = self.store()?;
        self.has_joined.set(true);
        // Ignore an unreachable store here: it is reported by later requests, which are retried.
        let leads = self.identity.role() == ShardRole::Leader;
        if leads
            && let Ok(StoreResponse::Bytes { .. }) =
                store.send_and_wait(&StoreRequest::Get(self.first_announcement_name()))
        {
            return Err(Failure::usage(
                format_args!(
                    "--run-id {}: shard 0 of this run has already joined",
                    self.identity.run_id
                ),
                "give each run a --run-id of its own",
            ));
        }
        Ok(store)
    }

    /// Returns the name of the first object that the coordinator of the run or series writes.
    fn first_announcement_name(&self) -> String {
        match self.loads {
            LoadSequence::Single => ORDERS_OBJECT.to_owned(),
            LoadSequence::Series => objects::announcement_object_name(1),
        }
    }

    fn report_failure(&self, store: &RendezvousStore, failure: &Failure) -> Result<(), Failure> {
        let shard = self.identity.shard;
        if self.identity.role() == ShardRole::Leader {
            let ended = RunResult::from_failure(failure);
            let bytes = match self.loads {
                LoadSequence::Single => objects::to_json(&Orders::with_result(ended)),
                LoadSequence::Series => objects::to_json(&NextLoad::<()>::Ended(ended)),
            };
            // Don't overwrite the announcement of a run with the same name that is in progress. Check this first,
            // although `Put` with `create` must not overwrite, because some stores don't support that.
            if let Ok(StoreResponse::Bytes { .. }) =
                store.send_and_wait(&StoreRequest::Get(self.first_announcement_name()))
            {
                return Ok(());
            }
            store.send_and_wait(&StoreRequest::Put {
                name: self.first_announcement_name(),
                bytes,
                create: true,
            })?;
            if store.is_served_here() {
                console::print_notice(format_args!(
                    "shard 0 failed: {failure}; waiting up to {} s for the others to read why",
                    REPORT_TIMEOUT.as_secs()
                ));
            }
            store.wait_for_peers_to_finish(shard.of - 1, REPORT_TIMEOUT, &self.stop.borrow());
            store.close(true);
            return Ok(());
        }
        let folder = match self.loads {
            LoadSequence::Single => store.clone(),
            LoadSequence::Series => store.subfolder(&objects::load_folder_name(1)),
        };
        let clock = Clock::new();
        let began = clock.now();
        let mut reported = withdraw(&folder, shard, failure);
        if reported.is_err() {
            console::print_notice(format_args!(
                "shard {} failed: {failure}; trying for {} s to report it to shard 0, which does not answer yet",
                shard.index,
                REPORT_TIMEOUT.as_secs()
            ));
        }
        let is_asked_to_end = || self.stop.borrow().level() == StopUrgency::Now;
        while reported.is_err()
            && !is_asked_to_end()
            && clock.now().duration_since(began) < REPORT_TIMEOUT
        {
            thread::sleep(RETRY_DELAY);
            reported = withdraw(&folder, shard, failure);
        }
        reported
    }
}

/// Writes a withdrawal, which tells the coordinator of the run in `store` that `shard` does not take part.
///
/// # Errors
/// When the withdrawal can't be written.
pub(super) fn withdraw(
    store: &RendezvousStore,
    shard: Shard,
    why: impl std::fmt::Display,
) -> Result<(), Failure> {
    let reason = why.to_string();
    let ask = StoreRequest::put_json_request(
        objects::withdrawal_object_name(shard.index),
        &Withdrawal { reason },
    );
    store.send_and_wait(&ask).map(drop)
}
