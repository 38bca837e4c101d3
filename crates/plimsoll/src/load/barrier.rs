//! Lets several loads of one process wait for each other, with their connections open, and start together.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use plimsoll_engine::worker::{ConnectSummary, StopUrgency};
use plimsoll_engine::{Clock, EngineError, Observation, RunCompletion, RunRole, StopFlag};
use plimsoll_model::Time;
use plimsoll_model::plan::{Plan, Shard};

use crate::load::protocols::{PreparedLoad, initial_connection_count};

/// How often a waiting load checks for a stop request.
pub(crate) const STOP_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Time from when the last load is ready to the common start, long enough for all threads to wake up before it.
const START_LEAD_TIME: Duration = Duration::from_millis(200);

/// The barrier at which loads wait for each other.
pub(crate) struct StartBarrier {
    /// The clock that all loads use.
    clock: Clock,
    state: Mutex<BarrierState>,
    changed: Condvar,
}

/// State of a [`StartBarrier`], guarded by its mutex.
struct BarrierState {
    missing: usize,
    is_aborted: bool,
    start: Option<Time>,
}

impl StartBarrier {
    pub(crate) fn new(loads: usize) -> StartBarrier {
        StartBarrier {
            clock: Clock::new(),
            state: Mutex::new(BarrierState {
                missing: loads,
                is_aborted: false,
                start: None,
            }),
            changed: Condvar::new(),
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, BarrierState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Aborts the start of all loads because one of them can't start.
    pub(crate) fn abort(&self) {
        self.lock_state().is_aborted = true;
        self.changed.notify_all();
    }

    /// Runs `load`, starting it together with the other loads of the barrier.
    ///
    /// # Errors
    /// When the load fails; [`EngineError::Interrupted`] if another load can't start.
    pub(crate) fn run_load(
        &self,
        plan: &Plan,
        load: PreparedLoad<'_>,
        stop: &StopFlag,
        observe: &mut dyn FnMut(Observation<'_>),
    ) -> Result<RunCompletion, EngineError> {
        let wanted = initial_connection_count(plan);
        let mut problem = None;
        let mut start = |established: &ConnectSummary, _workers| match established
            .require_any(&plan.target.url, wanted)
        {
            Ok(()) => self.wait_for_start(stop),
            Err(error) => {
                problem = Some(error);
                None
            }
        };
        let place = RunRole::Shard {
            shard: Shard::WHOLE_RUN,
            clock: self.clock,
            start: &mut start,
        };
        let ended = load(place, stop, observe);
        match problem {
            Some(problem) => Err(problem),
            None => ended,
        }
    }

    fn wait_for_start(&self, stop: &StopFlag) -> Option<Time> {
        let mut state = self.lock_state();
        state.missing = state.missing.saturating_sub(1);
        if state.missing == 0 {
            state.start = Some(self.clock.now() + START_LEAD_TIME);
            self.changed.notify_all();
        }
        loop {
            if state.start.is_some() || state.is_aborted || stop.level() != StopUrgency::Run {
                return state.start.filter(|_| !state.is_aborted);
            }
            let waited = self.changed.wait_timeout(state, STOP_POLL_INTERVAL);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
