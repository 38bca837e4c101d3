//! Why what was asked for is not made: what was typed is wrong, or a load of it is impossible.

use std::fmt::Display;

use plimsoll_engine::EngineError;
use plimsoll_engine::tls::TlsSetupError;
use plimsoll_model::spec::Problem;

/// A mistake in what was typed, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// What was typed, and why it can't be meant.
    pub message: String,
    /// What would be right.
    pub help: String,
}

impl Usage {
    pub(crate) fn new(message: impl Display, help: &str) -> Usage {
        Usage {
            message: message.to_string(),
            help: help.to_owned(),
        }
    }
}

/// Why a load can't be made.
#[derive(Debug)]
pub enum Unmade {
    /// The engine, or the link to the target.
    Engine(EngineError),
    /// The protocol can't make the calls that the plan asks for.
    Call(String),
}

/// Why a protocol can't send the call that it is to make.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RequestError(String);

impl RequestError {
    pub(crate) fn new(why: impl ToString) -> RequestError {
        RequestError(why.to_string())
    }

    /// A connection that carries no calls.
    pub(crate) fn in_flight() -> RequestError {
        RequestError::new("0 calls in flight carry nothing: use 1 or more")
    }
}

impl From<RequestError> for Unmade {
    fn from(error: RequestError) -> Unmade {
        Unmade::Call(error.0)
    }
}

impl From<clap::Error> for Usage {
    fn from(error: clap::Error) -> Usage {
        Usage::new(error, "--help lists what there is")
    }
}

/// A plan can't hold what was typed.
impl From<Problem> for Usage {
    fn from(problem: Problem) -> Usage {
        let help = problem
            .help
            .as_deref()
            .unwrap_or("write it as --help shows it");
        Usage::new(&problem, help)
    }
}

impl From<String> for Unmade {
    fn from(why: String) -> Unmade {
        Unmade::Call(why)
    }
}

impl From<EngineError> for Unmade {
    fn from(error: EngineError) -> Unmade {
        Unmade::Engine(error)
    }
}

impl From<TlsSetupError> for Unmade {
    fn from(error: TlsSetupError) -> Unmade {
        Unmade::Engine(error.into())
    }
}
