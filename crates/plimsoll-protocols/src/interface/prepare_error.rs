//! Errors of preparing a load: invalid flags, or a plan whose load is impossible.

use std::fmt::Display;

use plimsoll_engine::EngineError;
use plimsoll_engine::tls::TlsSetupError;
use plimsoll_model::spec::Problem;

/// An invalid flag or argument, with advice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageError {
    /// The invalid input, and why it is invalid.
    pub message: String,
    /// How to write it correctly.
    pub help: String,
}

impl UsageError {
    pub(crate) fn new(message: impl Display, help: &str) -> UsageError {
        UsageError {
            message: message.to_string(),
            help: help.to_owned(),
        }
    }
}

/// Why a load can't be prepared.
#[derive(Debug)]
pub enum PrepareError {
    /// The engine can't run the load, or the target can't be reached.
    Engine(EngineError),
    /// The protocol can't make the calls that the plan asks for.
    Call(String),
}

/// Why a protocol can't send the call that the plan describes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RequestError(String);

impl RequestError {
    pub(crate) fn new(why: impl ToString) -> RequestError {
        RequestError(why.to_string())
    }

    /// Returns the error for a limit of 0 calls in flight per connection.
    pub(crate) fn zero_in_flight_error() -> RequestError {
        RequestError::new("0 calls in flight send nothing: use 1 or more")
    }
}

impl From<RequestError> for PrepareError {
    fn from(error: RequestError) -> PrepareError {
        PrepareError::Call(error.0)
    }
}

impl From<clap::Error> for UsageError {
    fn from(error: clap::Error) -> UsageError {
        UsageError::new(error, "--help lists all flags and arguments")
    }
}

/// Converts a problem that was found while the plan was built from flags.
impl From<Problem> for UsageError {
    fn from(problem: Problem) -> UsageError {
        let help = problem
            .help
            .as_deref()
            .unwrap_or("write it as --help shows it");
        UsageError::new(&problem, help)
    }
}

impl From<String> for PrepareError {
    fn from(why: String) -> PrepareError {
        PrepareError::Call(why)
    }
}

impl From<EngineError> for PrepareError {
    fn from(error: EngineError) -> PrepareError {
        PrepareError::Engine(error)
    }
}

impl From<TlsSetupError> for PrepareError {
    fn from(error: TlsSetupError) -> PrepareError {
        PrepareError::Engine(error.into())
    }
}
