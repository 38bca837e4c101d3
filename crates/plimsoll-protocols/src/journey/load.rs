//! Prepares loads of users, each of whom makes one call after another over its own connections.

use std::iter;
use std::sync::Arc;

use plimsoll_engine::Protocol;
use plimsoll_engine::script::scenario::Scenario;
use plimsoll_engine::script::user::{MIN_REST_PAUSE, UserScripts};
use plimsoll_engine::tls::TlsClient;
use plimsoll_model::Plan;
use plimsoll_model::plan::Target;

use super::plan::JourneyPlan;
use super::scenario::JourneyScenario;
use crate::interface::prepare_error::PrepareError;
use crate::interface::protocol_module::PreparedLoad;

/// Prepares the load of users who follow a journey.
///
/// # Errors
/// Returns an error if a step's request can't be sent, a TLS certificate or key is unusable, or a target's name can't
/// be resolved.
pub(crate) fn prepare_journey_load<'a>(
    plan: &'a Plan,
    journey: &JourneyPlan,
) -> Result<PreparedLoad<'a>, PrepareError> {
    let own = (&plan.target, journey.targets.is_secured(0));
    let targets: Vec<(&Target, bool)> = iter::once(own).chain(journey.other_targets()).collect();
    let authorities = targets.iter().map(|(target, _)| target.authority());
    let authorities: Vec<String> = authorities.collect();
    let borrowed: Vec<&str> = authorities.iter().map(String::as_str).collect();
    let steps = journey.prepare(&borrowed, &plan.load)?;
    let alpn_of = |link: u8| {
        let mut calls = journey.steps.iter().zip(&steps);
        calls.find_map(|(step, call)| (step.link == link).then(|| call.alpn()).flatten())
    };
    let tls = |link: u8, (target, is_secured): (&Target, bool)| {
        let offered: Vec<&[u8]> = alpn_of(link).into_iter().collect();
        let tls = plan.tls.as_ref().filter(|_| is_secured);
        let client = tls.map(|tls| TlsClient::new(tls, target, &offered));
        Ok::<_, PrepareError>(client.transpose()?.map(|client| {
            if journey.has_pause_of(MIN_REST_PAUSE) {
                client.for_idle_connections()
            } else {
                client
            }
        }))
    };
    let links = (0..).zip(&targets).map(|(link, (target, is_secured))| {
        // Resolves the names now, so that an unknown one is reported before the load begins.
        plimsoll_engine::resolve(target)?;
        Ok(((*target).clone(), tls(link, (target, *is_secured))?))
    });
    let links = links.collect::<Result<Vec<_>, PrepareError>>()?;
    let scenario = JourneyScenario::new(Arc::new(journey.clone()), steps, plan.seed);
    let mut users = UserScripts::with_links(scenario, links, &plan.load);
    if journey.has_rows_by_client() {
        users = users.with_numbers_by_client();
    }
    Ok(Box::new(move |place, stop, observe| {
        plimsoll_engine::run_scripts(plan, users, place, stop, observe)
    }))
}

/// Prepares the load of users with one connection each.
///
/// # Errors
/// Returns an error if a TLS certificate or key is unusable, or the target's name can't be resolved.
pub(crate) fn prepare_user_load<'a, C: Scenario + 'a>(
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
