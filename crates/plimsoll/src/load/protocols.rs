//! Prepares loads: selects the protocol of a plan's call section.

use plimsoll_engine::EngineError;
use plimsoll_engine::transport::address::LocalResourceError;
use plimsoll_model::plan::{ConnectionReuse, Shard};
use plimsoll_model::{Outcome, Plan};
use plimsoll_protocols::registry::{self, PrepareError};

pub(crate) use plimsoll_protocols::registry::{PrepareRequest, PreparedLoad};

use crate::failure::{Exit, Failure};
use crate::load::advice;
use crate::settings::credentials;

/// Prepares the load of a plan, and checks as much as possible before it starts.
///
/// # Errors
/// When the protocol can't make the calls of the plan.
pub(crate) fn prepare(asked: PrepareRequest<'_>) -> Result<PreparedLoad<'_>, Failure> {
    let plan = asked.plan;
    credentials::start_refreshing(plan);
    let unknown = || {
        Err(PrepareError::Call(
            "this program has no such protocol".to_owned(),
        ))
    };
    let load = registry::prepare_load(asked).unwrap_or_else(unknown);
    load.map_err(|unmade| {
        prepare_failure(unmade, &|outcome| registry::connect_advice(plan, outcome))
    })
}

/// Returns the error for a failed query to a server, with help.
pub(crate) fn query_failure(unmade: PrepareError) -> Failure {
    prepare_failure(unmade, &registry::query_advice)
}

/// Returns the error for a load that can't be prepared, with advice from its protocol.
fn prepare_failure(
    unmade: PrepareError,
    advice: &dyn Fn(Outcome) -> Option<&'static str>,
) -> Failure {
    match unmade {
        PrepareError::Engine(error) => start_failure_with_advice(error, advice),
        PrepareError::Call(why) => Failure::error(why),
    }
}

/// Resources that a load requires, and the maximum number of shares that it can be divided into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoadRequirements {
    /// Maximum number of concurrent connections, if the plan determines it.
    pub(crate) connections: u64,
    /// Maximum number of shares that the load can be divided into, each with its own connections and clients.
    pub(crate) max_parts: u32,
}

/// Returns the number of connections opened before the load: none if each call opens its own, or if users with several
/// calls open theirs during the load.
pub(crate) fn initial_connection_count(plan: &Plan) -> u64 {
    if plan.call.calls_per_user().is_some() {
        return 0;
    }
    match plan.load.reuse {
        ConnectionReuse::Always => u64::from(plan.load.connections),
        ConnectionReuse::Never => 0,
    }
}

impl LoadRequirements {
    pub(crate) fn from_plan(plan: &Plan) -> LoadRequirements {
        let clients = plan.load.arrivals.clients().unwrap_or(u32::MAX);
        if plan.call.calls_per_user().is_some() {
            return LoadRequirements {
                connections: plimsoll_engine::concurrent_script_connections(plan),
                max_parts: clients,
            };
        }
        let connections = match plan.load.reuse {
            ConnectionReuse::Always => plan.load.connections,
            ConnectionReuse::Never => u32::MAX,
        };
        let limit = plan.load.in_flight_limit;
        let limit = limit.map_or(u32::MAX, |limit| limit.calls);
        LoadRequirements {
            connections: plimsoll_engine::concurrent_connections(plan),
            max_parts: clients.min(connections).min(limit),
        }
    }

    /// Returns the requirements of `shard`'s share of the load.
    pub(crate) fn for_shard(self, shard: Shard) -> LoadRequirements {
        LoadRequirements {
            connections: shard.share(self.connections),
            max_parts: self.max_parts / shard.of.max(1),
        }
    }
}

/// Returns the error for a load of `plan` that did not start, with help.
pub(crate) fn start_failure(error: EngineError, plan: &Plan) -> Failure {
    start_failure_with_advice(error, &|outcome| registry::connect_advice(plan, outcome))
}

fn start_failure_with_advice(
    error: EngineError,
    of_protocol: &dyn Fn(Outcome) -> Option<&'static str>,
) -> Failure {
    let exit = match error {
        EngineError::Interrupted => Exit::Interrupted,
        EngineError::Defect(_) => Exit::Defect,
        _ => Exit::Error,
    };
    let help = match &error {
        EngineError::NoConnection { failure, url } => Some(advice::connect_failure_advice(
            failure,
            url,
            of_protocol(failure.outcome),
        )),
        EngineError::Resolve {
            source, is_proxy, ..
        } if LocalResourceError::from_io_error(source).is_none() => {
            Some(advice::unresolved_name_advice(*is_proxy))
        }
        _ => None,
    };
    match help {
        Some(help) => Failure::with_exit_and_help(exit, error, &help),
        None => Failure::new(exit, miette::miette!("{error}")),
    }
}
