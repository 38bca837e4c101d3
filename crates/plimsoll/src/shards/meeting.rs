//! Where the shards of a run meet, and what becomes of one that fails on its way there: it tells the others, who
//! would wait for it otherwise.
//!
//! Invariant: whatever ends a command before its shard has joined the run, its plan, a file, a name, is known to shard
//! 0, and by that to all. From then on the run itself says what becomes of its shards ([`super::leader`]).

use std::cell::{Cell, OnceCell, RefCell};
use std::thread;
use std::time::Duration;

use plimsoll_engine::worker::StopLevel;
use plimsoll_engine::{Clock, Stop};
use plimsoll_model::plan::Shard;

use super::identity::{Identity, ShardFlags};
use super::member::RETRY_DELAY;
use super::objects::{self, Ended, Next, ORDERS_OBJECT, Orders, Withdrawal};
use super::store::{Answer, Ask, Role, Store};
use crate::console;
use crate::environment::Environment;
use crate::failure::{Exit, Failure};

/// How long a shard that fails tries to report it to shard 0, and how long shard 0 waits for the others to read its
/// own report: they may start later.
const REPORT_TIMEOUT: Duration = Duration::from_secs(60);

/// What the shards of a meeting carry out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loads {
    One,
    /// One after another, as [`super::team`] has them.
    Series,
}

/// A shard, and where it meets the others.
pub(crate) struct Meeting {
    pub(super) identity: Identity,
    loads: Loads,
    /// The run's folder, once it was opened.
    store: OnceCell<Store>,
    joined: Cell<bool>,
    /// Once signals are listened for.
    stop: RefCell<Stop>,
}

impl Meeting {
    /// Where the shard that `flags` ask for meets the others, if they ask for one.
    ///
    /// # Errors
    /// As [`ShardFlags::identity`].
    pub(crate) fn of(
        flags: &ShardFlags,
        loads: Loads,
        environment: &Environment,
    ) -> Result<Option<Meeting>, Failure> {
        let identity = flags.identity(|name| environment.value(name))?;
        Ok(identity.map(|identity| Meeting {
            identity,
            loads,
            store: OnceCell::new(),
            joined: Cell::new(false),
            stop: RefCell::new(Stop::new()),
        }))
    }

    /// Does `work`, in which this shard joins the others. A failure before that is reported to them.
    ///
    /// # Errors
    /// Those of `work`.
    pub(crate) fn attend(
        meeting: Option<&Meeting>,
        work: impl FnOnce() -> Result<Exit, Failure>,
    ) -> Result<Exit, Failure> {
        let ended = work();
        if let (Some(meeting), Err(failure)) = (meeting, &ended)
            && !meeting.joined.get()
            && let Err(problem) = meeting.store().and_then(|s| meeting.tell(&s, failure))
            // Where the rendezvous can't be opened, that is mostly what failed.
            && problem.to_string() != failure.to_string()
        {
            console::notice(format_args!(
                "this failure can't be reported to the other shards, which wait for --barrier: {problem}"
            ));
        }
        ended
    }

    /// Where `stop` asks for an end at once, nothing is waited for any more.
    pub(crate) fn heed(&self, stop: &Stop) {
        self.stop.replace(stop.clone());
    }

    /// Nobody waits for this shard.
    pub(crate) fn is_not_awaited(&self) {
        self.joined.set(true);
    }

    /// The folder of this run.
    ///
    /// # Errors
    /// Where the rendezvous can't be opened.
    pub(super) fn store(&self) -> Result<Store, Failure> {
        if let Some(store) = self.store.get() {
            return Ok(store.clone());
        }
        let Identity {
            rendezvous, access, ..
        } = &self.identity;
        let store = Store::open(rendezvous, access, self.identity.role())?;
        let folder = store.folder(&self.identity.run_id);
        Ok(self.store.get_or_init(|| folder).clone())
    }

    /// From here on the run says what becomes of this shard.
    ///
    /// # Errors
    /// Where the run has been led before, or the rendezvous can't be opened.
    pub(super) fn join(&self) -> Result<Store, Failure> {
        let store = self.store()?;
        self.joined.set(true);
        // That the store does not answer is noticed where it is asked again and again.
        let leads = self.identity.role() == Role::Leader;
        if leads && let Ok(Answer::Bytes { .. }) = store.ask_now(&Ask::Get(self.first())) {
            return Err(Failure::usage(
                format_args!(
                    "--run-id {}: shard 0 of this run has come before",
                    self.identity.run_id
                ),
                "give each run a --run-id of its own",
            ));
        }
        Ok(store)
    }

    /// What the leader of the run, or of the series, says first.
    fn first(&self) -> String {
        match self.loads {
            Loads::One => ORDERS_OBJECT.to_owned(),
            Loads::Series => objects::step(1),
        }
    }

    fn tell(&self, store: &Store, failure: &Failure) -> Result<(), Failure> {
        let shard = self.identity.shard;
        if self.identity.role() == Role::Leader {
            let ended = Ended::failed(failure);
            let bytes = match self.loads {
                Loads::One => objects::to_json(&Orders::ended(ended)),
                Loads::Series => objects::to_json(&Next::<()>::Ended(ended)),
            };
            // A run of the same name that goes on is none of its business. Not every store can create without
            // writing over.
            if let Ok(Answer::Bytes { .. }) = store.ask_now(&Ask::Get(self.first())) {
                return Ok(());
            }
            store.ask_now(&Ask::Put {
                name: self.first(),
                bytes,
                create: true,
            })?;
            if store.is_served() {
                console::notice(format_args!(
                    "shard 0 failed: {failure}; waiting up to {} s for the others to read why",
                    REPORT_TIMEOUT.as_secs()
                ));
            }
            store.see_off(shard.of - 1, REPORT_TIMEOUT, &self.stop.borrow());
            store.close(true);
            return Ok(());
        }
        let folder = match self.loads {
            Loads::One => store.clone(),
            Loads::Series => store.folder(&objects::of_series(1)),
        };
        let clock = Clock::new();
        let began = clock.now();
        let mut told = withdraw(&folder, shard, failure);
        if told.is_err() {
            console::notice(format_args!(
                "shard {} failed: {failure}; trying for {} s to report it to shard 0, which does not answer yet",
                shard.index,
                REPORT_TIMEOUT.as_secs()
            ));
        }
        let is_asked_to_end = || self.stop.borrow().level() == StopLevel::Now;
        while told.is_err()
            && !is_asked_to_end()
            && clock.now().duration_since(began) < REPORT_TIMEOUT
        {
            thread::sleep(RETRY_DELAY);
            told = withdraw(&folder, shard, failure);
        }
        told
    }
}

/// Tells the leader of the run in the folder `store` that `shard` does not take part.
///
/// # Errors
/// Where the store does not take it.
pub(super) fn withdraw(
    store: &Store,
    shard: Shard,
    why: impl std::fmt::Display,
) -> Result<(), Failure> {
    let reason = why.to_string();
    let ask = Ask::write(objects::withdrawal(shard.index), &Withdrawal { reason });
    store.ask_now(&ask).map(drop)
}
