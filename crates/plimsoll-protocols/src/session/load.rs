//! Registers sessions as a load of the engine.

use plimsoll_engine::tls::TlsClient;
use plimsoll_model::plan::Target;
use plimsoll_model::{Outcome, Plan};

use super::loadtest::LOADTEST_FORMAT;
use super::{SessionCall, SessionOptions, SessionScripts, SessionSection};
use crate::http::ONLY_HTTP1_HINT;
use crate::interface::protocol_module::{
    ForeignFormat, PrepareError, PrepareRequest, PreparedLoad, ProtocolModule,
};

impl ProtocolModule for SessionSection {
    const FOREIGN_FORMAT: Option<&'static ForeignFormat> = Some(&LOADTEST_FORMAT);

    fn connect_advice(_: &SessionCall, outcome: Outcome) -> Option<&'static str> {
        (outcome == Outcome::TlsAlpn).then_some(ONLY_HTTP1_HINT)
    }

    fn load<'a>(
        asked: PrepareRequest<'a>,
        call: &SessionCall,
    ) -> Result<PreparedLoad<'a>, PrepareError> {
        let plan = asked.plan;
        let sessions = SessionScripts::new(session_options(plan, call)?);
        Ok(Box::new(move |place, stop, observe| {
            plimsoll_engine::run_scripts(plan, sessions, place, stop, observe)
        }))
    }
}

/// Makes the settings that all sessions of a plan share.
fn session_options(plan: &Plan, call: &SessionCall) -> Result<SessionOptions, PrepareError> {
    // Resolves the name only to report an unknown name before the load begins.
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
