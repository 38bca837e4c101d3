//! Makes loads of users, who have a connection each and make one call after another over it.

use std::sync::Arc;

use plimsoll_engine::Protocol;
use plimsoll_engine::script::scenario::Scenario;
use plimsoll_engine::script::user::UserScripts;
use plimsoll_engine::tls::TlsClient;
use plimsoll_model::Plan;

use super::plan::JourneyPlan;
use super::scenario::JourneyScenario;
use super::step_protocol::{AnswerCapture, StepProtocol};
use crate::protocol_module::{PrepareError, PreparedLoad};

/// Makes the load of users who follow a journey; `step` prepares the request of a step.
///
/// # Errors
/// What part of a step's request can't be sent, and the errors of [`load_users`].
pub(crate) fn load_journeys<'a, C, P>(
    plan: &'a Plan,
    journey: &JourneyPlan<C>,
    step: impl Fn(&C, AnswerCapture) -> Result<P, PrepareError>,
) -> Result<PreparedLoad<'a>, PrepareError>
where
    C: Clone + Send + Sync + 'static,
    P: StepProtocol + 'a,
    P::Driver: Send,
{
    let steps = journey
        .requests()
        .map(|(call, capture)| step(call, capture));
    let steps = steps.collect::<Result<Vec<P>, PrepareError>>()?;
    let journey = Arc::new(journey.clone());
    load_users(plan, JourneyScenario::new(journey, steps, plan.seed))
}

/// Makes the load of users, who have a connection each.
///
/// # Errors
/// What is wrong with the certificates or keys of TLS, and why the target's name can't be resolved.
pub(crate) fn load_users<'a, C: Scenario + 'a>(
    plan: &'a Plan,
    scenario: C,
) -> Result<PreparedLoad<'a>, PrepareError>
where
    <C::Protocol as Protocol>::Driver: Send,
{
    let offered: Vec<&[u8]> = scenario.protocol().alpn().into_iter().collect();
    let tls = match &plan.tls {
        None => None,
        Some(tls) => Some(TlsClient::new(tls, &plan.target, &offered)?),
    };
    // Resolves the name now, so that an unknown one is reported before the load begins.
    plimsoll_engine::resolve(&plan.target)?;
    let users = UserScripts::new(scenario, &plan.target, tls, &plan.load);
    Ok(Box::new(move |place, stop, observe| {
        plimsoll_engine::run_scripts(plan, users, place, stop, observe)
    }))
}
