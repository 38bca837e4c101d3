//! Journeys as users of the engine: each call is a step's request, and its answer is checked for what later steps need.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_engine::driver::{Protocol, Tracer};
use plimsoll_engine::script::scenario::{EndedCall, NextCall, Scenario, UserCall};
use plimsoll_model::plan::GoodputBounds;
use plimsoll_model::template::TraceIds;
use plimsoll_model::{Outcome, Time};

use super::flow::{JourneyPosition, NextStep};
use super::plan::JourneyPlan;
use super::step_protocol::{CapturedResponse, StepProtocol, TakenValues};
use super::take::AnswerParts;

/// An answer lacks what a later step needs.
const TAKE_MISSING: Outcome = Outcome::coded("TAKE_MISSING");

/// The protocol of all steps; its connections begin with the first.
#[derive(Clone, Debug)]
pub struct JourneyProtocol<P>(Vec<P>);

impl<P: StepProtocol> Protocol for JourneyProtocol<P> {
    type Driver = P::Driver;

    fn alpn(&self) -> Option<&'static [u8]> {
        self.0[0].alpn()
    }

    fn set_clock_origin(&self, unix_ns: u64) {
        self.0
            .iter()
            .for_each(|step| step.set_clock_origin(unix_ns));
    }

    fn driver(&self) -> P::Driver {
        self.0[0].driver()
    }

    fn goodput(&self) -> GoodputBounds {
        GoodputBounds::default()
    }

    fn trace_ids(&self) -> Option<TraceIds> {
        self.0.iter().find_map(Protocol::trace_ids)
    }

    fn tracer(&self) -> Option<Box<dyn Tracer>> {
        self.0[0].tracer()
    }
}

/// The journeys of all users of a run. `C`: the call that a step is.
#[derive(Debug)]
pub struct JourneyScenario<P, C> {
    protocol: JourneyProtocol<P>,
    plan: Arc<JourneyPlan<C>>,
    seed: u64,
}

impl<P: StepProtocol, C> JourneyScenario<P, C> {
    /// Makes the journeys of `plan`; `protocols` are those of its steps, in order.
    pub fn new(plan: Arc<JourneyPlan<C>>, protocols: Vec<P>, seed: u64) -> JourneyScenario<P, C> {
        JourneyScenario {
            protocol: JourneyProtocol(protocols),
            plan,
            seed,
        }
    }

    /// Takes the values of the current step's answer.
    fn take(
        &self,
        values: &mut Arc<TakenValues>,
        state: &P::UserState,
        position: &mut JourneyPosition,
        answer: &CapturedResponse<'_>,
    ) -> Result<(), (Outcome, String)> {
        let step = &self.plan.steps[position.step];
        let parts = AnswerParts {
            fields: &answer.fields,
            body: answer.body.as_deref().map_err(String::as_str),
            cookie: &|name| P::cookie(state, name),
        };
        for take in &step.takes {
            let value = take.value(&parts, &mut |bound| position.below(bound));
            let value = match value {
                Ok(value) => Some(value),
                Err(_) if take.is_optional => None,
                Err(problem) => {
                    let name = &self.plan.taken[take.name];
                    let step = &self.plan.names[position.step];
                    let source = &take.source;
                    let text = format!("step {step}: `{name}` ({source}): {problem}");
                    return Err((TAKE_MISSING, text));
                }
            };
            Arc::make_mut(values)[take.name] = value;
        }
        Ok(())
    }
}

/// What a user keeps from step to step. `S`: what the protocol keeps.
#[derive(Debug, Default)]
pub struct JourneyMemory<S> {
    position: Option<JourneyPosition>,
    values: Arc<TakenValues>,
    state: S,
}

impl<P: StepProtocol, C: Send + Sync + 'static> Scenario for JourneyScenario<P, C> {
    type Protocol = JourneyProtocol<P>;
    type Memory = JourneyMemory<P::UserState>;

    fn protocol(&self) -> &JourneyProtocol<P> {
        &self.protocol
    }

    fn calls(&self) -> u32 {
        self.plan.max_calls
    }

    fn step_names(&self) -> &[String] {
        &self.plan.names
    }

    fn begin(&self, number: u64, user: &mut Self::Memory) {
        user.values = Arc::new(vec![None; self.plan.taken.len()]);
        // The golden ratio spreads consecutive numbers over all bits, and the lowest bit keeps the seed from being 0.
        let seed = (self.seed ^ number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1;
        user.position = Some(JourneyPosition::start(&self.plan, seed, &user.values));
    }

    fn current_step(&self, user: &Self::Memory) -> usize {
        user.position.as_ref().map_or(0, |position| position.step)
    }

    fn pause_before(&self, _call: u32) -> Duration {
        Duration::ZERO
    }

    fn replaces_connections(&self) -> bool {
        true
    }

    fn prepare(
        &self,
        _call: UserCall,
        _now: Time,
        user: &mut Self::Memory,
        driver: &mut P::Driver,
    ) -> Result<(), (Outcome, String)> {
        let at = self.current_step(user);
        let step = &self.plan.steps[at];
        let name = &self.plan.names[at];
        let unbound = step.needs.iter().find(|name| user.values[**name].is_none());
        if let Some(taken) = unbound {
            let taken = &self.plan.taken[*taken];
            let text = format!("step {name}: `{taken}` is not bound: no answer has had it");
            return Err((TAKE_MISSING, text));
        }
        let selected = self.protocol.0[at].select(driver, &user.values, &user.state);
        selected.map_err(|problem| (TAKE_MISSING, format!("step {name}: {problem}")))
    }

    fn check_answer(
        &self,
        user: &mut Self::Memory,
        driver: &mut P::Driver,
        now: Time,
    ) -> Result<(), (Outcome, String)> {
        let JourneyMemory {
            position: Some(position),
            values,
            state,
        } = user
        else {
            return Ok(());
        };
        let protocol = &self.protocol.0[position.step];
        protocol.keep(driver, now, values, state);
        if self.plan.steps[position.step].takes.is_empty() {
            return Ok(());
        }
        protocol.with_answer(driver, |answer| self.take(values, state, position, &answer))
    }

    fn after_call(&self, ended: EndedCall, user: &mut Self::Memory) -> NextCall {
        let Some(position) = &mut user.position else {
            return NextCall::Finish { is_ok: false };
        };
        match position.advance(&self.plan, ended.outcome, &user.values) {
            NextStep::After(pause) => NextCall::After(pause),
            NextStep::End { is_ok } => NextCall::Finish { is_ok },
        }
    }

    fn on_response_text(&self, _text: String, _user: &mut Self::Memory) {}
}
