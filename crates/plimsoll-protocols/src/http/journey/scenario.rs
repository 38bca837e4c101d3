//! Journeys as users of the engine: each call is a step's request, and its answer is checked for what later steps need.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_engine::driver::{Protocol, Tracer};
use plimsoll_engine::script::scenario::{EndedCall, NextCall, Scenario, UserCall};
use plimsoll_model::plan::GoodputBounds;
use plimsoll_model::template::TraceIds;
use plimsoll_model::{Outcome, Time};

use super::cookies::CookieJar;
use super::flow::{JourneyPosition, NextStep};
use crate::http::call::journey::JourneyPlan;
use crate::http::checks::printable;
use crate::http::is_valid_in_path;
use crate::http::multiplexed::HttpScheme;
use crate::http::step_protocol::{CapturedResponse, StepProtocol, StepValues, TakenValues};
use crate::http::take::AnswerParts;

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

/// The journeys of all users of a run.
#[derive(Debug)]
pub struct JourneyScenario<P> {
    protocol: JourneyProtocol<P>,
    plan: Arc<JourneyPlan>,
    scheme: HttpScheme,
    seed: u64,
}

impl<P: StepProtocol> JourneyScenario<P> {
    /// Makes the journeys of `plan`; `protocols` are those of its steps, in order.
    pub fn new(
        plan: Arc<JourneyPlan>,
        protocols: Vec<P>,
        scheme: HttpScheme,
        seed: u64,
    ) -> JourneyScenario<P> {
        JourneyScenario {
            protocol: JourneyProtocol(protocols),
            plan,
            scheme,
            seed,
        }
    }

    /// Takes the values of the current step's answer.
    fn take(
        &self,
        user: &mut JourneyMemory,
        position: &mut JourneyPosition,
        answer: &CapturedResponse<'_>,
    ) -> Result<(), (Outcome, String)> {
        let step = &self.plan.steps[position.step];
        let cookies = &user.cookies;
        let parts = AnswerParts {
            fields: &answer.fields,
            body: answer.body,
            cookie: &|name| cookies.value(name).map(str::to_owned),
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
            Arc::make_mut(&mut user.values)[take.name] = value;
        }
        Ok(())
    }
}

/// What a user keeps from step to step.
#[derive(Debug, Default)]
pub struct JourneyMemory {
    position: Option<JourneyPosition>,
    values: Arc<TakenValues>,
    cookies: CookieJar,
}

impl<P: StepProtocol> Scenario for JourneyScenario<P> {
    type Protocol = JourneyProtocol<P>;
    type Memory = JourneyMemory;

    fn protocol(&self) -> &JourneyProtocol<P> {
        &self.protocol
    }

    fn calls(&self) -> u32 {
        self.plan.max_calls
    }

    fn step_names(&self) -> &[String] {
        &self.plan.names
    }

    fn begin(&self, number: u64, user: &mut JourneyMemory) {
        user.values = Arc::new(vec![None; self.plan.taken.len()]);
        // The golden ratio spreads consecutive numbers over all bits, and the lowest bit keeps the seed from being 0.
        let seed = (self.seed ^ number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1;
        user.position = Some(JourneyPosition::start(&self.plan, seed, &user.values));
    }

    fn current_step(&self, user: &JourneyMemory) -> usize {
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
        user: &mut JourneyMemory,
        driver: &mut P::Driver,
    ) -> Result<(), (Outcome, String)> {
        let at = self.current_step(user);
        let step = &self.plan.steps[at];
        let unbound = step.needs.iter().find(|name| user.values[**name].is_none());
        if let Some(name) = unbound {
            let (name, step) = (&self.plan.taken[*name], &self.plan.names[at]);
            let text = format!("step {step}: `{name}` is not bound: no answer has had it");
            return Err((TAKE_MISSING, text));
        }
        if let Some(name) = step.path_name {
            let value = user.values[name].as_deref().unwrap_or_default();
            let text = std::str::from_utf8(value).unwrap_or_default();
            if !text.starts_with('/') || !is_valid_in_path(text) {
                let (name, step) = (&self.plan.taken[name], &self.plan.names[at]);
                let shown = printable(value);
                let text = format!("step {step}: `{name}` is not a path: {shown}");
                return Err((TAKE_MISSING, text));
            }
        }
        let cookies = if step.has_own_cookies {
            String::new()
        } else {
            user.cookies
                .field(step.cookie_path(&user.values), self.scheme)
        };
        let values = StepValues {
            taken: Arc::clone(&user.values),
            cookies,
        };
        self.protocol.0[at].select(driver, values);
        Ok(())
    }

    fn check_answer(
        &self,
        user: &mut JourneyMemory,
        driver: &mut P::Driver,
        now: Time,
    ) -> Result<(), (Outcome, String)> {
        let Some(mut position) = user.position.take() else {
            return Ok(());
        };
        let path = self.plan.steps[position.step]
            .cookie_path(&user.values)
            .to_owned();
        let unix_s = (P::unix_ns(driver, now) / 1_000_000_000) as i64;
        let taken = P::with_answer(driver, |answer| {
            for (name, value) in &answer.fields {
                if name.eq_ignore_ascii_case(b"set-cookie") {
                    user.cookies.set(value, &path, unix_s);
                }
            }
            self.take(user, &mut position, &answer)
        });
        user.position = Some(position);
        taken
    }

    fn after_call(&self, ended: EndedCall, user: &mut JourneyMemory) -> NextCall {
        let Some(position) = &mut user.position else {
            return NextCall::Finish { is_ok: false };
        };
        match position.advance(&self.plan, ended.outcome, &user.values) {
            NextStep::After(pause) => NextCall::After(pause),
            NextStep::End { is_ok } => NextCall::Finish { is_ok },
        }
    }

    fn on_response_text(&self, _text: String, _user: &mut JourneyMemory) {}
}
