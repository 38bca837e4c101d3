//! `plimsoll grpc list` and `describe`: what a server has to offer, by its reflection.

use clap::{Args, Subcommand};
use plimsoll_protocols::grpc::reflection::{self, ReflectionError};

use crate::console;
use crate::environment::Environment;
use crate::failure::{Exit, Failure};
use crate::link_flags::LinkFlags;

/// What a server with reflection can be asked, instead of loading it.
#[derive(Debug, Subcommand)]
pub(crate) enum Question {
    List(ListArguments),
    Describe(DescribeArguments),
}

/// The services and methods of a server, a line each (server reflection).
#[derive(Debug, Args)]
#[command(before_help = "Example: over TLS\n  \
    plimsoll grpc list grpcs://localhost:50051 --ca certs/ca.crt --metadata 'authorization: $TOKEN'")]
pub(crate) struct ListArguments {
    #[command(flatten)]
    link: LinkFlags,
}

/// A service, method, message or enum of a server, with all it is made of.
#[derive(Debug, Args)]
#[command(before_help = "Example: what to write into the message of a call\n  \
    plimsoll grpc describe grpc://localhost:50051 score.ScoreService/GetScore")]
pub(crate) struct DescribeArguments {
    #[command(flatten)]
    link: LinkFlags,

    /// package.Service, package.Service/Method or package.Message.
    #[arg(value_name = "NAME")]
    what: String,
}

fn reflection_failure(error: ReflectionError) -> Failure {
    match error.advice() {
        Some(advice) => Failure::error_with_help(error, advice),
        None => Failure::error(error),
    }
}

/// # Errors
/// When there is no way to the server, or it does not answer.
pub(super) fn answer(question: &Question, environment: &Environment) -> Result<Exit, Failure> {
    let (link, what) = match question {
        Question::List(arguments) => (&arguments.link, None),
        Question::Describe(arguments) => (&arguments.link, Some(&arguments.what)),
    };
    let schema = link.with_connection(environment, async |connection| {
        let asked = reflection::schema(&connection, None).await;
        asked.map_err(reflection_failure)
    })?;
    for broken in schema.broken_services() {
        console::notice(format_args!("warning: {broken}"));
    }
    console::result(match what {
        None => schema.list(),
        Some(name) => schema.describe(name).map_err(Failure::error)?,
    })?;
    Ok(Exit::Done)
}
