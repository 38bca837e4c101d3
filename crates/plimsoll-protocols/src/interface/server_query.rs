//! Queries of a server without a load: subcommands of a protocol, such as `plimsoll grpc list`.
//! [`crate::registry`] lists them and the binary runs them.

use clap::{ArgMatches, Command};
use plimsoll_model::spec::{Problem, ResolveContext};
use serde_json::Value;

use crate::interface::prepare_error::{PrepareError, UsageError};

/// The flags of a query's command.
#[cfg(all(feature = "schema", feature = "targets"))]
pub(crate) trait ServerQuery: clap::Args {
    /// The command's name.
    const COMMAND_NAME: &str;

    /// Sends the query to the server and returns its result.
    ///
    /// # Errors
    /// Returns an error if a flag's value is invalid on its own, or if the server does not answer.
    fn run(self, asking: QueryContext<'_>) -> Result<QueryOutput, QueryError>;
}

/// The environment of a query.
#[derive(Clone, Copy)]
pub struct QueryContext<'a> {
    /// Access to the files and variables that flags refer to.
    pub surroundings: &'a dyn ResolveContext,
    /// Prints a line to the user.
    pub notice: &'a dyn Fn(&str),
}

/// The result of a query.
#[derive(Debug, Default)]
pub struct QueryOutput {
    /// The text to print, including line ends.
    pub text: String,
    /// The result as JSON, if the command has a JSON form.
    pub json: Value,
    /// Why a check of the server failed; `None`: it passed.
    pub failed: Option<String>,
}

/// Why a query has no result.
#[derive(Debug)]
pub enum QueryError {
    /// A flag's value is invalid on its own.
    Usage(UsageError),
    /// Problems of flags, by the plan keys that the flags stand for.
    Flags(Vec<Problem>),
    /// The server can't be reached.
    Unreachable(PrepareError),
    /// The server or a file did not provide the result: the reason, and advice if there is any.
    Refused(String, Option<&'static str>),
}

impl From<UsageError> for QueryError {
    fn from(wrong: UsageError) -> QueryError {
        QueryError::Usage(wrong)
    }
}

impl From<PrepareError> for QueryError {
    fn from(why: PrepareError) -> QueryError {
        QueryError::Unreachable(why)
    }
}

/// The type-erased command of a query.
#[derive(Debug)]
pub struct QueryCommand {
    /// The command's name.
    pub name: &'static str,
    flags: fn(Command) -> Command,
    ask: fn(&ArgMatches, QueryContext<'_>) -> Result<QueryOutput, QueryError>,
}

impl QueryCommand {
    #[cfg(all(feature = "schema", feature = "targets"))]
    pub(crate) const fn new<Q: ServerQuery>() -> QueryCommand {
        QueryCommand {
            name: Q::COMMAND_NAME,
            flags: Q::augment_args,
            ask: |typed, asking| {
                let question = Q::from_arg_matches(typed).map_err(UsageError::from)?;
                question.run(asking)
            },
        }
    }

    /// Returns the clap command.
    pub fn command(&self) -> Command {
        (self.flags)(Command::new(self.name))
    }

    /// Runs the query with the flags that clap has parsed.
    ///
    /// # Errors
    /// Returns an error if a flag's value is invalid on its own, or if the server does not answer.
    pub fn run(
        &self,
        typed: &ArgMatches,
        asking: QueryContext<'_>,
    ) -> Result<QueryOutput, QueryError> {
        (self.ask)(typed, asking)
    }
}
