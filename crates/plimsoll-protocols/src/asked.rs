//! What a server can be asked without a load: commands of a protocol. [`crate::registry`] lists them.

use clap::{ArgMatches, Command};
use plimsoll_model::spec::{Problem, Surroundings};
use serde_json::Value;

use crate::unmade::{Unmade, Usage};

/// The flags of a command that asks.
#[cfg(all(feature = "schema", feature = "targets"))]
pub(crate) trait Question: clap::Args {
    /// The command's name.
    const COMMAND_NAME: &str;

    /// # Errors
    /// Where a flag's value is wrong by itself, and when the server does not answer.
    fn ask(self, asking: Asking<'_>) -> Result<Answer, Unanswered>;
}

/// The environment in which a question is asked.
#[derive(Clone, Copy)]
pub struct Asking<'a> {
    /// Files and variables that flags name.
    pub surroundings: &'a dyn Surroundings,
    /// Prints a line for people.
    pub notice: &'a dyn Fn(&str),
}

/// What came of a question.
#[derive(Debug, Default)]
pub struct Answer {
    /// What people read, lines and all.
    pub text: String,
    /// The same for programs, where the command has it.
    pub json: Value,
    /// Why the server is not as it should be.
    pub failed: Option<String>,
}

/// Why a question has no answer.
#[derive(Debug)]
pub enum Unanswered {
    /// One flag is wrong by itself.
    Usage(Usage),
    /// Flags that can't be meant, by the keys of a plan that they stand for.
    Flags(Vec<Problem>),
    /// There is no way to the server.
    NoWay(Unmade),
    /// What it answered instead, and what to do about it.
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

/// A question whose type is forgotten.
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

    /// Its command.
    pub fn command(&self) -> Command {
        (self.flags)(Command::new(self.name))
    }

    /// Asks, with the flags that were typed.
    ///
    /// # Errors
    /// Where a flag's value is wrong by itself, and when the server does not answer.
    pub fn ask(&self, typed: &ArgMatches, asking: Asking<'_>) -> Result<Answer, Unanswered> {
        (self.ask)(typed, asking)
    }
}
