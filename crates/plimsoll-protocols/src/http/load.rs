//! Registers HTTP calls as a load of the engine: connections shared by calls, or users who make several calls each.

use std::sync::Arc;

use plimsoll_engine::Protocol;
use plimsoll_engine::script::scenario::Scenario;
use plimsoll_engine::script::user::UserScripts;
use plimsoll_engine::tls::TlsClient;
use plimsoll_model::plan::ConnectionReuse;
use plimsoll_model::{Outcome, Plan};

use super::call::journey::JourneyPlan;
use super::call::{HttpCall, HttpVersion};
use super::conversation::{AcceptsBodies, ConversationScenario};
use super::driver::Http1Protocol;
use super::handshake::HandshakeProtocol;
use super::journey::JourneyScenario;
use super::multiplexed::{Http2Protocol, HttpScheme};
use super::negotiated_driver::HttpProtocol;
use super::plan_import;
use super::request::HttpRequest;
use super::script::FrameScripts;
use super::section::HttpSpec;
use super::socket::SocketProtocol;
use super::step_protocol::{AnswerCapture, StepProtocol};
use crate::http2::NOT_HTTP2;
use crate::protocol_module::{
    PlanSource, PrepareError, PrepareRequest, PreparedLoad, ProtocolModule, load_with_driver,
};

/// Advice for loads that only speak HTTP/1.1.
pub(crate) const ONLY_HTTP1: &str =
    "the server must offer HTTP/1.1 by ALPN, the only version that such a load speaks";

impl ProtocolModule for HttpSpec {
    const PLAN_SOURCES: &'static [PlanSource] = &plan_import::PLAN_SOURCES;

    fn advice(call: &HttpCall, outcome: Outcome) -> Option<&'static str> {
        match (outcome, &call.socket) {
            (Outcome::TlsAlpn | NOT_HTTP2, None) => Some(
                "the server does not support the requested protocol version: choose another with \
                 {call.http.version}, such as 1.1",
            ),
            (Outcome::TlsAlpn, Some(_)) => Some(ONLY_HTTP1),
            (Outcome::SocketRefused | Outcome::SocketDenied, Some(_)) => Some(
                "the server answered, but opened no WebSocket: is the path of ws:// or wss:// \
                 right, and does it require another header field or subprotocol?",
            ),
            _ => None,
        }
    }

    fn load<'a>(
        asked: PrepareRequest<'a>,
        call: &HttpCall,
    ) -> Result<PreparedLoad<'a>, PrepareError> {
        let plan = asked.plan;
        if call.handshake_only {
            return Ok(load_with_driver(asked, HandshakeProtocol));
        }
        let authority = plan.target.authority();
        let request = HttpRequest {
            call,
            authority: &authority,
            closes: plan.load.reuse == ConnectionReuse::Never,
        };
        if let Some(socket) = &call.socket {
            let protocol = SocketProtocol::new(&request, socket);
            return if socket.script.is_empty() {
                Ok(load_with_driver(asked, protocol))
            } else {
                user_load(plan, FrameScripts::new(protocol, socket))
            };
        }
        let scheme = match plan.tls {
            Some(_) => HttpScheme::Https,
            None => HttpScheme::Http,
        };
        let version = call.version_over(plan.tls.as_ref());
        if let Some(journey) = &call.journey {
            return match version {
                HttpVersion::V2 => journeys(plan, journey, scheme, |call, capture| {
                    Http2Protocol::of_step(&HttpRequest { call, ..request }, scheme, capture)
                }),
                _ => journeys(plan, journey, scheme, |call, capture| {
                    Http1Protocol::of_step(&HttpRequest { call, ..request }, capture)
                }),
            };
        }
        if call.conversation.is_some() {
            return match version {
                HttpVersion::V2 => {
                    conversation_load(plan, call, Http2Protocol::new(&request, scheme))
                }
                _ => conversation_load(plan, call, Http1Protocol::new(&request)),
            };
        }
        Ok(match version {
            HttpVersion::V1 => load_with_driver(asked, Http1Protocol::new(&request)),
            HttpVersion::V2 => load_with_driver(asked, Http2Protocol::new(&request, scheme)),
            HttpVersion::Auto => load_with_driver(asked, HttpProtocol::new(&request)),
        })
    }
}

/// Makes the load of users who talk to a model.
fn conversation_load<'a, P>(
    plan: &'a Plan,
    call: &HttpCall,
    protocol: P,
) -> Result<PreparedLoad<'a>, PrepareError>
where
    P: Protocol + 'a,
    P::Driver: AcceptsBodies + Send,
{
    let nothing = || PrepareError::Call("a conversation without messages".to_owned());
    user_load(
        plan,
        ConversationScenario::new(call, protocol).ok_or_else(nothing)?,
    )
}

/// Makes the load of users who follow a journey.
fn journeys<'a, P>(
    plan: &'a Plan,
    journey: &JourneyPlan,
    scheme: HttpScheme,
    step: impl Fn(&HttpCall, AnswerCapture) -> P,
) -> Result<PreparedLoad<'a>, PrepareError>
where
    P: StepProtocol + 'a,
    P::Driver: Send,
{
    let steps = journey
        .requests()
        .map(|(call, capture)| step(call, capture));
    let steps = steps.collect();
    let journey = Arc::new(journey.clone());
    user_load(
        plan,
        JourneyScenario::new(journey, steps, scheme, plan.seed),
    )
}

/// Makes the load of users, who have a connection each.
fn user_load<'a, C: Scenario + 'a>(
    plan: &'a Plan,
    course: C,
) -> Result<PreparedLoad<'a>, PrepareError>
where
    <C::Protocol as Protocol>::Driver: Send,
{
    let offered: Vec<&[u8]> = course.protocol().alpn().into_iter().collect();
    let tls = match &plan.tls {
        None => None,
        Some(tls) => Some(TlsClient::new(tls, &plan.target, &offered)?),
    };
    // Resolves the name now, so that an unknown one is reported before the load begins.
    plimsoll_engine::resolve(&plan.target)?;
    let users = UserScripts::new(course, &plan.target, tls, &plan.load);
    Ok(Box::new(move |place, stop, observe| {
        plimsoll_engine::run_scripts(plan, users, place, stop, observe)
    }))
}
