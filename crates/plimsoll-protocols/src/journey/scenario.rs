//! Runs journeys as a [`Scenario`] of the engine: each call sends a step's request, and the values that later steps use
//! are taken from its response.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_engine::driver::{Protocol, Tracer};
use plimsoll_engine::script::LinkId;
use plimsoll_engine::script::scenario::{
    ConnectionNeed, EndedCall, NextAction, Scenario, UserCall,
};
use plimsoll_model::plan::GoodputBounds;
use plimsoll_model::rows::template::TraceIds;
use plimsoll_model::{Outcome, Time};

use super::capture::AnswerParts;
use super::cookies::CookieJar;
use super::plan::JourneyPlan;
use super::step_protocol::{CapturedResponse, CapturedValues, StepCall, StepDriver, StepMoment};
use super::step_selection::{JourneyPosition, NextStep};

/// The outcome of a call whose response lacks a value that a later step uses, or whose own request needs a value that
/// is not known.
const VALUE_MISSING: Outcome = Outcome::coded("TAKE_MISSING");

/// The shortest pause of users who give back the buffers of their connections after each answer. Allocating them anew
/// costs less than a microsecond.
const MIN_RELEASE_PAUSE: Duration = Duration::from_millis(10);

/// The requests of all steps.
pub struct JourneyProtocol(Vec<Box<dyn StepCall>>);

impl fmt::Debug for JourneyProtocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("JourneyProtocol")
            .field(&self.0.len())
            .finish()
    }
}

impl Protocol for JourneyProtocol {
    type Driver = Box<dyn StepDriver>;

    fn alpn(&self) -> Option<&'static [u8]> {
        self.0[0].alpn()
    }

    fn set_clock_origin(&self, unix_ns: u64) {
        self.0
            .iter()
            .for_each(|step| step.set_clock_origin(unix_ns));
    }

    fn new_driver(&self) -> Box<dyn StepDriver> {
        self.0[0].driver()
    }

    fn goodput_bounds(&self) -> GoodputBounds {
        GoodputBounds::default()
    }

    fn trace_ids(&self) -> Option<TraceIds> {
        self.0.iter().find_map(|step| step.trace_ids())
    }

    fn new_tracer(&self) -> Option<Box<dyn Tracer>> {
        self.0[0].tracer()
    }
}

/// The journeys of all users of a run.
#[derive(Debug)]
pub struct JourneyScenario {
    protocol: JourneyProtocol,
    plan: Arc<JourneyPlan>,
    seed: u64,
    /// Whether users pause so long that it is worth giving back the buffers of their connections.
    releases_buffers: bool,
}

impl JourneyScenario {
    /// Creates the journeys of `plan`. `calls`: the requests of its steps, in order.
    pub fn new(
        plan: Arc<JourneyPlan>,
        calls: Vec<Box<dyn StepCall>>,
        seed: u64,
    ) -> JourneyScenario {
        JourneyScenario {
            protocol: JourneyProtocol(calls),
            releases_buffers: plan.has_pause_of(MIN_RELEASE_PAUSE),
            plan,
            seed,
        }
    }

    /// Takes the values from the current step's response.
    fn capture_values(
        &self,
        values: &mut Arc<CapturedValues>,
        cookies: &CookieJar,
        position: &mut JourneyPosition,
        answer: &CapturedResponse<'_>,
    ) -> Result<(), (Outcome, String)> {
        let step = &self.plan.steps[position.step];
        let parts = AnswerParts {
            fields: &answer.fields,
            body: answer.body.as_deref().map_err(String::as_str),
            cookie: &|name| cookies.cookie_value(name).map(str::to_owned),
        };
        for take in &step.takes {
            let value = take.extract_value(&parts, &mut |bound| position.draw_number_below(bound));
            let value = match value {
                Ok(value) => Some(value),
                Err(_) if take.is_optional => None,
                Err(problem) => {
                    let name = &self.plan.taken[take.name];
                    let step = &self.plan.names[position.step];
                    let source = &take.source;
                    let text = format!("step {step}: `{name}` ({source}): {problem}");
                    return Err((VALUE_MISSING, text));
                }
            };
            Arc::make_mut(values)[take.name] = value;
        }
        Ok(())
    }
}

/// The state of one user between steps.
#[derive(Debug, Default)]
pub struct JourneyMemory {
    position: Option<JourneyPosition>,
    values: Arc<CapturedValues>,
    /// The cookies of each host, see [`JourneyTargets::cookie_jar_index`](super::targets::JourneyTargets::cookie_jar_index).
    cookies: Vec<CookieJar>,
}

impl Scenario for JourneyScenario {
    type Protocol = JourneyProtocol;
    type UserState = JourneyMemory;

    fn protocol(&self) -> &JourneyProtocol {
        &self.protocol
    }

    fn new_driver(&self, link: LinkId, _user: &JourneyMemory) -> Box<dyn StepDriver> {
        let mut steps = self.plan.steps.iter();
        let first = steps.position(|step| step.link == link.0);
        self.protocol.0[first.unwrap_or(0)].driver()
    }

    fn current_link(&self, user: &JourneyMemory) -> LinkId {
        LinkId(self.plan.steps[self.current_step(user)].link)
    }

    fn connection_need(&self, user: &JourneyMemory) -> ConnectionNeed {
        self.protocol.0[self.current_step(user)].connection_need()
    }

    fn missing_connection_failure(&self, user: &JourneyMemory) -> (Outcome, String) {
        let name = &self.plan.names[self.current_step(user)];
        let text = format!("step {name}: no step before it has opened a WebSocket");
        (Outcome::SocketClosed, text)
    }

    fn max_calls(&self) -> u32 {
        self.plan.max_calls
    }

    fn step_names(&self) -> &[String] {
        &self.plan.names
    }

    fn choose_first_call(&self, number: u64, user: &mut JourneyMemory) {
        let jars = self.plan.targets.cookie_jars();
        user.cookies = (0..jars).map(|_| CookieJar::default()).collect();
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

    fn replaces_lost_connections(&self) -> bool {
        true
    }

    fn prepare_call(
        &self,
        call: UserCall,
        now: Time,
        user: &mut JourneyMemory,
        driver: &mut Box<dyn StepDriver>,
    ) -> Result<(), (Outcome, String)> {
        let at = self.current_step(user);
        let step = &self.plan.steps[at];
        let name = &self.plan.names[at];
        let unbound = step
            .used_names
            .iter()
            .find(|name| user.values[**name].is_none());
        if let Some(taken) = unbound {
            let taken = &self.plan.taken[*taken];
            let text = format!("step {name}: `{taken}` is not bound: no answer has had it");
            return Err((VALUE_MISSING, text));
        }
        let cookies = &user.cookies[self.plan.targets.cookie_jar_index(step.link)];
        let selected = self.protocol.0[at].select_request(
            &mut **driver,
            StepMoment {
                number: call.number,
                now,
            },
            &user.values,
            cookies,
        );
        selected.map_err(|problem| (VALUE_MISSING, format!("step {name}: {problem}")))
    }

    fn check_answer(
        &self,
        user: &mut JourneyMemory,
        driver: &mut Box<dyn StepDriver>,
        now: Time,
    ) -> Result<(), (Outcome, String)> {
        let JourneyMemory {
            position: Some(position),
            values,
            cookies,
        } = user
        else {
            return Ok(());
        };
        let step = &self.plan.steps[position.step];
        let (call, cookies) = (
            &self.protocol.0[position.step],
            &mut cookies[self.plan.targets.cookie_jar_index(step.link)],
        );
        call.store_cookies(&**driver, now, values, cookies);
        let mut taken = Ok(());
        if !step.takes.is_empty() {
            call.inspect_response(&**driver, &mut |answer| {
                taken = self.capture_values(values, cookies, position, &answer);
            });
        }
        if self.releases_buffers {
            call.release_buffers(&mut **driver);
        }
        taken
    }

    fn next_action(&self, ended: EndedCall, user: &mut JourneyMemory) -> NextAction {
        let Some(position) = &mut user.position else {
            return NextAction::Finish { is_ok: false };
        };
        match position.advance(&self.plan, ended.outcome, &user.values) {
            NextStep::After(pause) => NextAction::CallAfter(pause),
            NextStep::End { is_ok } => NextAction::Finish { is_ok },
        }
    }

    fn on_response_text(&self, _text: String, _user: &mut JourneyMemory) {}
}
