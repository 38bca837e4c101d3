//! Queries of a server without a load: subcommands of a protocol, such as `plimsoll grpc list`.
//! [`crate::registry`] lists them and the binary runs them.

use clap::{ArgMatches, Command};
use plimsoll_model::spec::{Problem, Surroundings};
use serde_json::Value;

use crate::unmade::{Unmade, Usage};

/// The flags of a query's command.
#[cfg(all(feature = "schema", feature = "targets"))]
pub(crate) trait Question: clap::Args {
    /// The command's name.
    const COMMAND_NAME: &str;

    /// Sends the query to the server and returns its result.
    ///
    /// # Errors
    /// Returns an error if a flag's value is invalid by itself, or if the server does not answer.
    fn ask(self, asking: Asking<'_>) -> Result<Answer, Unanswered>;
}

/// The environment of a query.
#[derive(Clone, Copy)]
pub struct Asking<'a> {
    /// Access to the files and variables that flags refer to.
    pub surroundings: &'a dyn Surroundings,
    /// Prints a line to the user.
    pub notice: &'a dyn Fn(&str),
}

/// The result of a query.
#[derive(Debug, Default)]
pub struct Answer {
    /// The text to print, including line ends.
    pub text: String,
    /// The same as JSON, if the command has a JSON form.
    pub json: Value,
    /// Why a check of the server failed; `None`: it passed.
    pub failed: Option<String>,
}

/// Why a query has no result.
#[derive(Debug)]
pub enum Unanswered {
    /// A flag's value is invalid by itself.
    Usage(Usage),
    /// Flags that a plan does not accept, by the plan keys that they stand for.
    Flags(Vec<Problem>),
    /// The server can't be reached.
    NoWay(Unmade),
    /// The server, or a file, did not give the result: the reason, and advice.
    Refused(String, Option<&'static str>),
}

impl From<Usage> for Unanswered {
    fn from(wrong: Usage) -> Unanswered {
        Unanswered::Usage(wrong)
    }
}

impl From<Unmade> for Unanswered {
    fn from(why: Unmade) -> Unanswered {
        Unanswered::NoWay(why)
    }
}

/// The type-erased command of a query.
#[derive(Debug)]
pub struct Ask {
    /// The command's name.
    pub name: &'static str,
    flags: fn(Command) -> Command,
    ask: fn(&ArgMatches, Asking<'_>) -> Result<Answer, Unanswered>,
}

impl Ask {
    #[cfg(all(feature = "schema", feature = "targets"))]
    pub(crate) const fn of<Q: Question>() -> Ask {
        Ask {
            name: Q::COMMAND_NAME,
            flags: Q::augment_args,
            ask: |typed, asking| {
                let question = Q::from_arg_matches(typed).map_err(Usage::from)?;
                question.ask(asking)
            },
        }
    }

    /// Returns the clap command.
    pub fn command(&self) -> Command {
        (self.flags)(Command::new(self.name))
    }

    /// Runs the query with the typed flags.
    ///
    /// # Errors
    /// Returns an error if a flag's value is invalid by itself, or if the server does not answer.
    pub fn ask(&self, typed: &ArgMatches, asking: Asking<'_>) -> Result<Answer, Unanswered> {
        (self.ask)(typed, asking)
    }
}
