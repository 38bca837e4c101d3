//! Where several loads of one process wait for each other, with their connections up: they begin together.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use plimsoll_engine::worker::{Established, StopLevel};
use plimsoll_engine::{Clock, EngineError, Finished, Observation, Place, Stop};
use plimsoll_model::Time;
use plimsoll_model::plan::{Plan, Shard};

use crate::protocols::{Load, connections_beforehand};

/// How often a load that waits looks whether it is to end.
pub(crate) const STOP_POLL_INTERVAL: Duration = Duration::from_millis(50);

/// From the last one's arrival to the start: far enough ahead that all see it in time.
const START_LEAD_TIME: Duration = Duration::from_millis(200);

pub(crate) struct Barrier {
    /// All loads are on this clock.
    clock: Clock,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    missing: usize,
    given_up: bool,
    start: Option<Time>,
}

impl Barrier {
    pub(crate) fn new(loads: usize) -> Barrier {
        Barrier {
            clock: Clock::new(),
            state: Mutex::new(State {
                missing: loads,
                given_up: false,
                start: None,
            }),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One of the loads can't begin, so none does.
    pub(crate) fn give_up(&self) {
        self.state().given_up = true;
        self.changed.notify_all();
    }

    /// Puts `load` on its target from the moment at which all begin.
    ///
    /// # Errors
    /// As the load's own, and [`EngineError::Interrupted`] where another one can't begin.
    pub(crate) fn load(
        &self,
        plan: &Plan,
        load: Load<'_>,
        stop: &Stop,
        observe: &mut dyn FnMut(Observation<'_>),
    ) -> Result<Finished, EngineError> {
        let wanted = connections_beforehand(plan);
        let mut problem = None;
        let mut start = |established: &Established, _workers| match established
            .check(&plan.target.url, wanted)
        {
            Ok(()) => self.arrive(stop),
            Err(error) => {
                problem = Some(error);
                None
            }
        };
        let place = Place::Shard {
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

    fn arrive(&self, stop: &Stop) -> Option<Time> {
        let mut state = self.state();
        state.missing = state.missing.saturating_sub(1);
        if state.missing == 0 {
            state.start = Some(self.clock.now() + START_LEAD_TIME);
            self.changed.notify_all();
        }
        loop {
            if state.start.is_some() || state.given_up || stop.level() != StopLevel::Run {
                return state.start.filter(|_| !state.given_up);
            }
            let waited = self.changed.wait_timeout(state, STOP_POLL_INTERVAL);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
