//! The one choice of protocol: what the engine needs for a plan's call section.

use plimsoll_engine::EngineError;
use plimsoll_model::Plan;
use plimsoll_model::plan::{Reuse, Shard};
use plimsoll_protocols::grpc::GrpcCall;
use plimsoll_protocols::http::HttpCall;
use plimsoll_protocols::registry::{self, Unmade};
use plimsoll_protocols::session::SessionCall;

pub(crate) use plimsoll_protocols::registry::{Asked, Load};

use crate::advice::{self, Versions};
use crate::credentials;
use crate::failure::{Exit, Failure};

/// Everything that can be wrong before the load, checked.
///
/// # Errors
/// Where the protocol can't make the calls that the plan asks for.
pub(crate) fn prepare(asked: Asked<'_>) -> Result<Load<'_>, Failure> {
    let plan = asked.plan;
    credentials::keep_fresh(plan);
    let unknown = || Err(Unmade::Call("this program has no such protocol".to_owned()));
    let load = registry::load(asked).unwrap_or_else(unknown);
    load.map_err(|unmade| failed(unmade, versions(plan)))
}

/// A load that could not be made, with what to do about it.
fn failed(unmade: Unmade, versions: Versions) -> Failure {
    match unmade {
        Unmade::Engine(error) => could_not_begin(error, versions),
        Unmade::Call(why) => Failure::error(why),
    }
}

/// All servers that are asked without a load speak gRPC.
pub(crate) fn asked_in_vain(unmade: Unmade) -> Failure {
    failed(unmade, Versions::Two)
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
        let clients = plan.load.arrivals.clients().unwrap_or(u32::MAX);
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
    match call.of_type::<SessionCall>().is_some() {
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
