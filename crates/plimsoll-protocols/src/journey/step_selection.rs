//! Chooses the steps of one user by repeats, branches, conditions and retries. Each user has its own random number
//! generator, so a journey is the same in every run with the same seed.

use std::time::Duration;

use plimsoll_model::Outcome;

use super::plan::{JourneyPlan, MAX_WHILE_REPEATS, OnFailure, RepeatRule, StepCondition};
use super::step_protocol::CapturedValues;
use super::step_spec::PauseSpec;
use crate::shared::xorshift::Xorshift;

/// The position of a user in its journey.
#[derive(Debug)]
pub(super) struct JourneyPosition {
    /// The step of the current call.
    pub(super) step: usize,
    /// The attempt of the current call, from 1.
    attempt: u32,
    /// How many times the current step has run already.
    passes: u32,
    /// The fork that the user reached last and the branch that was drawn there.
    fork: Option<(u32, u32)>,
    /// Whether a step has failed with `on_failure = "continue"`.
    has_failed: bool,
    random: Xorshift,
}

/// The next action of a user after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextStep {
    /// The user runs the step at the new position after this pause.
    After(Duration),
    /// The journey is over.
    End { is_ok: bool },
}

impl JourneyPosition {
    /// Creates the position at the first step. `seed` must not be 0.
    pub(super) fn start(plan: &JourneyPlan, seed: u64, values: &CapturedValues) -> JourneyPosition {
        let mut position = JourneyPosition {
            step: 0,
            attempt: 1,
            passes: 0,
            fork: None,
            has_failed: false,
            random: Xorshift::new(seed),
        };
        // The first step has no condition (resolution checks this), so some step is always found.
        position.step = position.find_step(plan, 0, values).unwrap_or(0);
        position
    }

    /// Moves to the next step, or to the next attempt, after a call has ended with `outcome`.
    pub(super) fn advance(
        &mut self,
        plan: &JourneyPlan,
        outcome: Outcome,
        values: &CapturedValues,
    ) -> NextStep {
        let step = &plan.steps[self.step];
        let was_ok = outcome.is_ok();
        if !was_ok {
            match step.on_failure {
                OnFailure::Retry { attempts, backoff } if self.attempt < attempts => {
                    let pause = backoff.saturating_mul(1 << (self.attempt - 1).min(20));
                    self.attempt += 1;
                    return NextStep::After(pause);
                }
                OnFailure::Continue => self.has_failed = true,
                OnFailure::End | OnFailure::Retry { .. } => return NextStep::End { is_ok: false },
            }
        }
        self.attempt = 1;
        self.passes += 1;
        let repeats = match step.repeat {
            RepeatRule::Times(times) => self.passes < times,
            RepeatRule::While(name) => {
                was_ok && values[name].is_some() && self.passes < MAX_WHILE_REPEATS
            }
        };
        if !repeats {
            self.passes = 0;
            match self.find_step(plan, self.step + 1, values) {
                Some(next) => self.step = next,
                None => {
                    return NextStep::End {
                        is_ok: !self.has_failed,
                    };
                }
            }
        }
        let pause = plan.steps[self.step].pause;
        NextStep::After(self.draw_pause(pause))
    }

    /// Returns the first step at or after `from` whose branch is taken and whose condition is met.
    fn find_step(
        &mut self,
        plan: &JourneyPlan,
        from: usize,
        values: &CapturedValues,
    ) -> Option<usize> {
        (from..plan.steps.len()).find(|&index| {
            let step = &plan.steps[index];
            if let Some(place) = step.branch {
                if self.fork.is_none_or(|(fork, _)| fork != place.fork) {
                    self.fork = Some((place.fork, self.draw_branch(plan, place.fork)));
                }
                if self.fork != Some((place.fork, place.branch)) {
                    return false;
                }
            }
            step.condition
                .as_ref()
                .is_none_or(|condition| condition.is_satisfied(values))
        })
    }

    /// Draws a branch of a fork with a probability in proportion to its weight.
    fn draw_branch(&mut self, plan: &JourneyPlan, fork: u32) -> u32 {
        let places = plan.steps.iter().filter_map(|step| step.branch);
        let places = places.filter(|place| place.fork == fork && place.weight > 0);
        let sum: u64 = places.clone().map(|place| u64::from(place.weight)).sum();
        let mut drawn = self.draw_number_below(sum.max(1));
        for place in places {
            match drawn.checked_sub(u64::from(place.weight)) {
                Some(rest) => drawn = rest,
                None => return place.branch,
            }
        }
        0
    }

    /// Draws a number below `bound`, which must not be 0.
    pub(super) fn draw_number_below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.random.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    fn draw_pause(&mut self, pause: PauseSpec) -> Duration {
        match pause {
            PauseSpec::Fixed(pause) => pause,
            PauseSpec::Uniform(low, high) => {
                let span = u64::try_from((high - low).as_nanos()).unwrap_or(u64::MAX);
                low + Duration::from_nanos(self.draw_number_below(span.saturating_add(1)))
            }
            PauseSpec::Exponential(mean) => {
                // A number in (0, 1] with 53 random bits; 0 is excluded to keep the logarithm finite.
                let drawn = (self.draw_number_below(1 << 53) + 1) as f64 / (1_u64 << 53) as f64;
                mean.mul_f64(-drawn.ln())
            }
        }
    }
}

impl StepCondition {
    fn is_satisfied(&self, values: &CapturedValues) -> bool {
        let is_met = match (&values[self.name], &self.value) {
            (None, _) => false,
            (Some(_), None) => true,
            (Some(value), Some(wanted)) => **value == *wanted.as_bytes(),
        };
        is_met != self.is_negated
    }
}
