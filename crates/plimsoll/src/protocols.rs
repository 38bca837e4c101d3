//! The one choice of protocol: what the engine needs for a plan's call section.

use plimsoll_engine::script::user::{Course, Users};
use plimsoll_engine::tls::TlsClient;
use plimsoll_engine::{EngineError, Protocol};
use plimsoll_model::Plan;
use plimsoll_model::plan::{Arrivals, GrpcCall, Reuse, Shard, Target};
use plimsoll_protocols::fetch::FetchCall;
use plimsoll_protocols::grpc::{GrpcProtocol, GrpcRequest};
use plimsoll_protocols::http::{
    Conversations, FrameScripts, Http1Protocol, Http2Protocol, HttpCall, HttpProtocol, HttpRequest,
    HttpVersion, SocketProtocol,
};
use plimsoll_protocols::registry::{self, Asked, driven};
use plimsoll_protocols::session::{SessionCall, SessionOptions, Sessions};

pub(crate) use plimsoll_protocols::registry::Load;

use crate::advice::{self, Versions};
use crate::credentials;
use crate::failure::{Exit, Failure};

/// Everything that can be wrong before the load, checked.
///
/// # Errors
/// Where the protocol can't make the calls that the plan asks for.
pub(crate) fn prepare(plan: &Plan, trace: bool) -> Result<Load<'_>, Failure> {
    credentials::keep_fresh(plan);
    let asked = Asked { plan, trace };
    let authority = plan.target.authority();
    if let Some(call) = plan.call.of_type() {
        let protocol = GrpcProtocol::new(&GrpcRequest {
            call,
            authority: &authority,
            secure: plan.tls.is_some(),
            deadline: plan.load.deadline,
        })
        .map_err(Failure::error)?;
        return Ok(driven(asked, protocol));
    }
    if let Some(call) = plan.call.of_type::<HttpCall>() {
        let request = HttpRequest {
            call,
            authority: &authority,
            closes: plan.load.reuse == Reuse::Never,
        };
        if let Some(socket) = &call.socket {
            let protocol = SocketProtocol::new(&request, socket);
            return match socket.script.is_empty() {
                true => Ok(driven(asked, protocol)),
                false => used(plan, FrameScripts::new(protocol, socket)),
            };
        }
        if call.conversation.is_some() {
            return conversations(plan, call, &request);
        }
        return Ok(match call.version_over(plan.tls.as_ref()) {
            HttpVersion::V1 => driven(asked, Http1Protocol::new(&request)),
            HttpVersion::V2 => driven(asked, Http2Protocol::new(&request, plan.tls.is_some())),
            HttpVersion::Auto => driven(asked, HttpProtocol::new(&request)),
        });
    }
    if let Some(call) = plan.call.of_type::<SessionCall>() {
        let sessions = Sessions::new(sessions(plan, call)?);
        return Ok(Box::new(move |place, stop, observe| {
            plimsoll_engine::run_scripts(plan, sessions, place, stop, observe)
        }));
    }
    let load = registry::load(asked);
    load.unwrap_or_else(|| Err("this program has no such protocol".to_owned()))
        .map_err(Failure::error)
}

/// Users who talk to a model.
fn conversations<'a>(
    plan: &'a Plan,
    call: &HttpCall,
    request: &HttpRequest<'_>,
) -> Result<Load<'a>, Failure> {
    let nothing = || Failure::error("a conversation without messages");
    match call.version_over(plan.tls.as_ref()) {
        HttpVersion::V2 => {
            let protocol = Http2Protocol::new(request, plan.tls.is_some());
            used(
                plan,
                Conversations::new(call, protocol).ok_or_else(nothing)?,
            )
        }
        _ => {
            let protocol = Http1Protocol::new(request);
            used(
                plan,
                Conversations::new(call, protocol).ok_or_else(nothing)?,
            )
        }
    }
}

/// The load of users, who have a connection each.
fn used<C: Course>(plan: &Plan, course: C) -> Result<Load<'_>, Failure>
where
    <C::Protocol as Protocol>::Driver: Send,
{
    let offered: Vec<&[u8]> = course.protocol().alpn().into_iter().collect();
    let tls = match &plan.tls {
        None => None,
        Some(tls) => {
            let client = TlsClient::new(tls, &plan.target, &offered);
            Some(client.map_err(|e| could_not_begin(e.into(), versions(plan)))?)
        }
    };
    // A name that does not resolve is reported before the load.
    plimsoll_engine::resolve(&plan.target).map_err(|e| could_not_begin(e, versions(plan)))?;
    let users = Users::new(course, &plan.target, tls, plan.load.deadline);
    Ok(Box::new(move |place, stop, observe| {
        plimsoll_engine::run_scripts(plan, users, place, stop, observe)
    }))
}

/// What a load needs of the machine that makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Needs {
    /// Connections at once, as far as that is known beforehand.
    pub(crate) connections: u64,
    /// It can't be divided into more parts, each with connections and clients of its own.
    pub(crate) parts: u32,
}

impl Needs {
    pub(crate) fn of(plan: &Plan) -> Needs {
        let clients = match plan.load.arrivals {
            Arrivals::Open(_) => u32::MAX,
            Arrivals::Closed { clients, .. } => clients,
        };
        if plan.call.calls_in_a_row().is_some() {
            return Needs {
                connections: plimsoll_engine::connections_of_scripts(plan),
                parts: clients,
            };
        }
        let connections = match plan.load.reuse {
            Reuse::Always => plan.load.connections,
            Reuse::Never => u32::MAX,
        };
        Needs {
            connections: plimsoll_engine::connections_at_once(plan),
            parts: clients.min(connections),
        }
    }
}

impl Needs {
    /// What `shard` of the load needs.
    pub(crate) fn of_shard(self, shard: Shard) -> Needs {
        Needs {
            connections: shard.part(self.connections),
            parts: self.parts / shard.of.max(1),
        }
    }
}

/// What the sessions of a plan share.
fn sessions(plan: &Plan, call: &SessionCall) -> Result<SessionOptions, Failure> {
    // A name that does not resolve is reported before the load.
    plimsoll_engine::resolve(&call.socket).map_err(|e| could_not_begin(e, versions(plan)))?;
    let tls = |secured: bool, target: &Target| match plan.tls.as_ref().filter(|_| secured) {
        None => Ok(None),
        Some(tls) => TlsClient::new(tls, target, &[])
            .map(Some)
            .map_err(|e| could_not_begin(e.into(), versions(plan))),
    };
    Ok(SessionOptions {
        api: plan.target.clone(),
        socket: call.socket.clone(),
        api_tls: tls(call.api_secured, &plan.target)?,
        socket_tls: tls(call.socket_secured, &call.socket)?,
        api_host: plan.target.authority(),
        socket_host: call.socket.authority(),
        agent: call.agent.clone(),
        queries: call.queries,
        query: call.query.clone(),
        expect_tokens: call.expect_tokens,
        think: call.think,
        deadline: plan.load.deadline,
        reconnects: call.reconnects,
        reconnect_pause: call.reconnect_pause,
        reconnect_pause_most: call.reconnect_pause_most,
        compression: call.compression,
        headers: call.headers.clone(),
        goodput: call.goodput,
        seed: plan.seed,
    })
}

/// The versions that the calls of a plan speak.
pub(crate) fn versions(plan: &Plan) -> Versions {
    let call = &plan.call;
    if call.of_type::<GrpcCall>().is_some() {
        return Versions::Two;
    }
    if let Some(call) = call.of_type::<HttpCall>() {
        return match call.socket {
            None => Versions::Chosen,
            Some(_) => Versions::One,
        };
    }
    let fetches = call.of_type::<FetchCall>().is_some();
    match fetches || call.of_type::<SessionCall>().is_some() {
        true => Versions::One,
        false => Versions::None,
    }
}

/// A load that did not begin, with what to do about it.
pub(crate) fn could_not_begin(error: EngineError, versions: Versions) -> Failure {
    let exit = match error {
        EngineError::Interrupted => Exit::Interrupted,
        EngineError::Defect(_) => Exit::Defect,
        _ => Exit::Error,
    };
    let help = match &error {
        EngineError::NoConnection { outcome, url, .. } => {
            Some(advice::on_no_connection(*outcome, url, versions))
        }
        EngineError::Resolve { .. } => Some("check the host name of the target".to_owned()),
        _ => None,
    };
    let report = match help {
        Some(help) => miette::miette!(help = help, "{error}"),
        None => miette::miette!("{error}"),
    };
    Failure::new(exit, report)
}
