//! The one choice of protocol: what the engine needs for a plan's call section.

use plimsoll_engine::tls::TlsClient;
use plimsoll_engine::{EngineError, Finished, Observation, Place, Protocol, Stop};
use plimsoll_model::Plan;
use plimsoll_model::plan::{
    Arrivals, BoltCall, BoltVersion, CallPlan, HttpVersion, Reuse, SessionCall, Shard, Target,
};
use plimsoll_plugin::Codec;
use plimsoll_protocols::bolt::{BoltProtocol, BoltRequest, Form};
use plimsoll_protocols::fetch::{FetchProtocol, FetchRequest};
use plimsoll_protocols::grpc::{GrpcProtocol, GrpcRequest};
use plimsoll_protocols::hold::HoldProtocol;
use plimsoll_protocols::http::{Http1Protocol, Http2Protocol, HttpProtocol, HttpRequest};
use plimsoll_protocols::plugin::{PluginProtocol, PluginRequest};
use plimsoll_protocols::session::{SessionOptions, Sessions};

use crate::advice;
use crate::failure::{Exit, Failure};

/// Called once, it puts the load of this process on the target.
pub(crate) type Load<'a> = Box<
    dyn FnOnce(Place<'_>, &Stop, &mut dyn FnMut(Observation<'_>)) -> Result<Finished, EngineError>
        + 'a,
>;

/// Everything that can be wrong before the load, checked.
///
/// # Errors
/// Where the protocol can't make the calls that the plan asks for.
pub(crate) fn prepare(plan: &Plan, trace: bool) -> Result<Load<'_>, Failure> {
    match &plan.call {
        CallPlan::Grpc(call) => {
            let authority = plan.target.authority();
            let protocol = GrpcProtocol::new(&GrpcRequest {
                call,
                authority: &authority,
                secure: plan.tls.is_some(),
                deadline: plan.load.deadline,
            })
            .map_err(Failure::error)?;
            Ok(driven(plan, trace, protocol))
        }
        CallPlan::Bolt(call) => {
            let protocol = BoltProtocol::new(&bolt_request(call)).map_err(Failure::error)?;
            Ok(driven(plan, trace, protocol))
        }
        CallPlan::Fetch(call) => {
            let authority = plan.target.authority();
            let protocol = FetchProtocol::new(&FetchRequest {
                path: &call.path,
                host: call.host.as_deref().unwrap_or(&authority),
                size: call.size,
                per_connection: match plan.load.reuse {
                    Reuse::Never => Some(1),
                    Reuse::Always => call.per_connection,
                },
            });
            Ok(driven(plan, trace, protocol))
        }
        CallPlan::Http(call) => {
            let authority = plan.target.authority();
            let request = HttpRequest {
                call,
                authority: &authority,
                closes: plan.load.reuse == Reuse::Never,
            };
            Ok(match call.version_over(plan.tls.as_ref()) {
                HttpVersion::V1 => driven(plan, trace, Http1Protocol::new(&request)),
                HttpVersion::V2 => {
                    let protocol = Http2Protocol::new(&request, plan.tls.is_some());
                    driven(plan, trace, protocol)
                }
                HttpVersion::Auto => driven(plan, trace, HttpProtocol::new(&request)),
            })
        }
        CallPlan::Plugin(call) => {
            let codec = Codec::load(&call.codec).map_err(Failure::error)?;
            let protocol = PluginProtocol::new(&PluginRequest {
                codec: &codec,
                frame: &call.frame,
                in_flight: call.in_flight.unwrap_or(u32::MAX),
                heartbeat: call.heartbeat,
                max_frame: call.max_frame,
            })
            .map_err(Failure::error)?;
            Ok(driven(plan, trace, protocol))
        }
        CallPlan::Hold(call) => {
            let protocol = HoldProtocol::new(call.greeting, call.message);
            Ok(driven(plan, trace, protocol))
        }
        CallPlan::Session(call) => {
            let sessions = Sessions::new(sessions(plan, call)?);
            Ok(Box::new(move |place, stop, observe| {
                plimsoll_engine::run_scripts(plan, sessions, place, stop, observe)
            }))
        }
    }
}

/// The load of a protocol whose calls share connections, or have one each.
fn driven<'a, P>(plan: &'a Plan, trace: bool, protocol: P) -> Load<'a>
where
    P: Protocol + 'a,
    P::Driver: Send,
{
    Box::new(move |place, stop, observe| {
        plimsoll_engine::run(plan, protocol, place, trace, stop, observe)
    })
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
        if let CallPlan::Session(_) = plan.call {
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

fn bolt_request(call: &BoltCall) -> BoltRequest<'_> {
    BoltRequest {
        form: match call.version {
            BoltVersion::V1 => Form::V1,
            BoltVersion::V2 => Form::V2,
            BoltVersion::V2Crc => Form::V2_CRC,
        },
        codec: call.codec,
        class: &call.class,
        header: &call.header,
        content: &call.content,
        timeout: call.timeout,
        oneway: call.oneway,
        in_flight: call.in_flight.unwrap_or(u32::MAX),
        heartbeat: call.heartbeat,
        max_content: call.max_content,
    }
}

/// What the sessions of a plan share.
fn sessions(plan: &Plan, call: &SessionCall) -> Result<SessionOptions, Failure> {
    // A name that does not resolve is reported before the load.
    plimsoll_engine::resolve(&call.socket).map_err(could_not_begin)?;
    let tls = |secured: bool, target: &Target| match plan.tls.as_ref().filter(|_| secured) {
        None => Ok(None),
        Some(tls) => TlsClient::new(tls, target, &[])
            .map(Some)
            .map_err(|e| could_not_begin(e.into())),
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
        goodput: call.goodput,
        seed: plan.seed,
    })
}

/// A load that did not begin, with what to do about it.
pub(crate) fn could_not_begin(error: EngineError) -> Failure {
    let exit = match error {
        EngineError::Interrupted => Exit::Interrupted,
        EngineError::Defect(_) => Exit::Defect,
        _ => Exit::Error,
    };
    let help = match &error {
        EngineError::NoConnection { outcome, url, .. } => {
            Some(advice::on_no_connection(*outcome, url))
        }
        EngineError::Resolve { .. } => Some("check the host name of the target"),
        _ => None,
    };
    let report = match help {
        Some(help) => miette::miette!(help = help, "{error}"),
        None => miette::miette!("{error}"),
    };
    Failure::new(exit, report)
}
