//! Prepares loads of HTTP calls for the engine: calls that share connections, or users who make several calls each.

use plimsoll_engine::Protocol;
use plimsoll_model::plan::ConnectionReuse;
use plimsoll_model::{Outcome, Plan};

use super::call::{CallPurpose, HttpCall, HttpVersion};
use super::conversation::{AcceptsBodies, ConversationScenario};
use super::driver::Http1Protocol;
use super::handshake::HandshakeProtocol;
use super::multiplexed::{Http2Protocol, HttpScheme};
use super::negotiated_driver::HttpProtocol;
use super::plan_import;
use super::request::HttpRequest;
use super::script::FrameScripts;
use super::section::HttpSpec;
use super::socket::SocketProtocol;
use crate::http2::NOT_HTTP2;
use crate::interface::protocol_module::{
    PlanSource, PrepareError, PrepareRequest, PreparedLoad, ProtocolModule, load_with_driver,
};
use crate::journey::{prepare_journey_load, prepare_user_load};

/// Advice for loads that use only HTTP/1.1.
pub(crate) const ONLY_HTTP1_HINT: &str =
    "the server must offer HTTP/1.1 by ALPN, the only version that such a load speaks";

impl ProtocolModule for HttpSpec {
    const PLAN_SOURCES: &'static [PlanSource] = &plan_import::PLAN_SOURCES;

    fn connect_advice(call: &HttpCall, outcome: Outcome) -> Option<&'static str> {
        match (outcome, &call.socket) {
            (Outcome::TlsAlpn | NOT_HTTP2, None) => Some(
                "the server does not support the requested protocol version: choose another with \
                 {call.http.version}, such as 1.1",
            ),
            (Outcome::TlsAlpn, Some(_)) => Some(ONLY_HTTP1_HINT),
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
        if call.purpose == CallPurpose::Handshake {
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
                prepare_user_load(plan, FrameScripts::new(protocol, socket))
            };
        }
        let scheme = match plan.tls {
            Some(_) => HttpScheme::Https,
            None => HttpScheme::Http,
        };
        let version = call.resolved_version(plan.tls.as_ref());
        if let Some(journey) = &call.journey {
            return prepare_journey_load(plan, journey);
        }
        if call.conversation.is_some() {
            return match version {
                HttpVersion::V2 => {
                    prepare_conversation_load(plan, call, Http2Protocol::new(&request, scheme))
                }
                _ => prepare_conversation_load(plan, call, Http1Protocol::new(&request)),
            };
        }
        Ok(match version {
            HttpVersion::V1 => load_with_driver(asked, Http1Protocol::new(&request)),
            HttpVersion::V2 => load_with_driver(asked, Http2Protocol::new(&request, scheme)),
            HttpVersion::Auto => load_with_driver(asked, HttpProtocol::new(&request)),
        })
    }
}

/// Prepares the load of users who have conversations with a model.
fn prepare_conversation_load<'a, P>(
    plan: &'a Plan,
    call: &HttpCall,
    protocol: P,
) -> Result<PreparedLoad<'a>, PrepareError>
where
    P: Protocol + 'a,
    P::Driver: AcceptsBodies + Send,
{
    let nothing = || PrepareError::Call("a conversation without messages".to_owned());
    prepare_user_load(
        plan,
        ConversationScenario::new(call, protocol).ok_or_else(nothing)?,
    )
}
