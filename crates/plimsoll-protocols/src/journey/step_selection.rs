//! Chooses the steps of one user by repeats, loops, branches, conditions and retries. Each user has its own random number
//! generator, so a journey is the same in every run with the same seed.

use std::time::Duration;

use plimsoll_model::Outcome;

use super::plan::{
    JourneyPlan, JourneyStep, MAX_WHILE_REPEATS, OnFailure, RepeatRule, StepCondition,
};
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
    /// The index of the loop that the user is in, and what its iterations have been like.
    current_loop: Option<(usize, LoopProgress)>,
    /// Whether a step has failed with `on_failure = "continue"`.
    has_failed: bool,
    random: Xorshift,
}

/// A user's progress in a loop.
#[derive(Clone, Copy, Debug, Default)]
struct LoopProgress {
    /// The number of iterations that are over.
    iterations: u32,
    /// Whether a step of the current iteration has failed.
    has_failed: bool,
    /// Whether the current iteration has made a step.
    has_steps: bool,
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
            current_loop: None,
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
                OnFailure::Continue => {
                    self.has_failed = true;
                    if let Some((_, progress)) = &mut self.current_loop {
                        progress.has_failed = true;
                    }
                }
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

    /// Returns the first step at or after `from`, or at the start of its loop, whose branch is taken and whose
    /// condition is met.
    fn find_step(
        &mut self,
        plan: &JourneyPlan,
        from: usize,
        values: &CapturedValues,
    ) -> Option<usize> {
        let mut index = from;
        loop {
            index = self.continue_loop(plan, index, values);
            let step = plan.steps.get(index)?;
            if let (None, Some(entered)) = (self.current_loop, step.in_loop) {
                self.current_loop = Some((entered, LoopProgress::default()));
            }
            if self.is_step_made(plan, step, values) {
                if let Some((_, progress)) = &mut self.current_loop {
                    progress.has_steps = true;
                }
                return Some(index);
            }
            index += 1;
        }
    }

    /// Returns where a user goes on who has reached `index`: at the start of the loop that ends there, if that is
    /// repeated, or else at `index`.
    fn continue_loop(
        &mut self,
        plan: &JourneyPlan,
        index: usize,
        values: &CapturedValues,
    ) -> usize {
        let Some((number, progress)) = self.current_loop else {
            return index;
        };
        let current = &plan.loops[number];
        if index < current.end {
            return index;
        }
        let iterations = progress.iterations + 1;
        let repeats = match current.repeat {
            RepeatRule::Times(times) => iterations < times,
            RepeatRule::While(name) => {
                !progress.has_failed && values[name].is_some() && iterations < MAX_WHILE_REPEATS
            }
        };
        // Where no step was made and no branch is drawn anew, further iterations would make none either.
        if !repeats || !(progress.has_steps || current.has_forks) {
            self.current_loop = None;
            return index;
        }
        if current.has_forks {
            self.fork = None;
        }
        let progress = LoopProgress {
            iterations,
            ..LoopProgress::default()
        };
        self.current_loop = Some((number, progress));
        current.first
    }

    /// Returns whether the step's branch is taken, which is drawn at a fork's first step, and its condition is met.
    fn is_step_made(
        &mut self,
        plan: &JourneyPlan,
        step: &JourneyStep,
        values: &CapturedValues,
    ) -> bool {
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
