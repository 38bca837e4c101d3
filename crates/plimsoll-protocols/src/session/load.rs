//! Registers sessions as a load of the engine.

use plimsoll_engine::tls::TlsClient;
use plimsoll_model::plan::Target;
use plimsoll_model::{Outcome, Plan};

use super::loadtest::LOADTEST_FILES;
use super::{SessionCall, SessionOptions, SessionSection, Sessions};
use crate::http::ONLY_HTTP1;
use crate::owned::{Asked, Files, Load, Owned, Unmade};

impl Owned for SessionSection {
    const FOREIGN_FILES: Option<&'static Files> = Some(&LOADTEST_FILES);

    fn advice(_: &SessionCall, outcome: Outcome) -> Option<&'static str> {
        (outcome == Outcome::TlsAlpn).then_some(ONLY_HTTP1)
    }

    fn load<'a>(asked: Asked<'a>, call: &SessionCall) -> Result<Load<'a>, Unmade> {
        let plan = asked.plan;
        let sessions = Sessions::new(sessions(plan, call)?);
        Ok(Box::new(move |place, stop, observe| {
            plimsoll_engine::run_scripts(plan, sessions, place, stop, observe)
        }))
    }
}

/// Makes the settings that all sessions of a plan share.
fn sessions(plan: &Plan, call: &SessionCall) -> Result<SessionOptions, Unmade> {
    // Resolves the name now, so that an unknown one is reported before the load begins.
    plimsoll_engine::resolve(&call.socket)?;
    let tls = |secured: bool, target: &Target| match plan.tls.as_ref().filter(|_| secured) {
        None => Ok(None),
        Some(tls) => TlsClient::new(tls, target, &[]).map(Some),
    };
    Ok(SessionOptions {
        api: plan.target.clone(),
        api_tls: tls(call.api_secured, &plan.target)?,
        socket_tls: tls(call.socket_secured, &call.socket)?,
        api_host: plan.target.authority(),
        socket_host: call.socket.authority(),
        call: call.clone(),
        deadline: plan.load.deadline.or(plan.load.stall_timeout),
        seed: plan.seed,
    })
}
