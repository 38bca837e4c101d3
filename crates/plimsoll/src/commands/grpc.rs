//! `plimsoll grpc`: the quick form of a plan, for one gRPC method.

use clap::{Args, Subcommand};
use plimsoll_protocols::flags::RowFlags;
use plimsoll_protocols::grpc::GrpcFlags;
use plimsoll_protocols::grpc::reflection::{self, ReflectionError};

use crate::arguments::Origins;
use crate::console;
use crate::environment::Environment;
use crate::execution::{OutputFlags, Process};
use crate::failure::{Exit, Failure};
use crate::link_flags::LinkFlags;
use crate::load_flags::LoadFlags;
use crate::quick;

/// Put load on a gRPC method: the same as a plan, typed as flags.
#[derive(Debug, Args)]
#[command(before_help = "\
Example: 1000 calls a second over one mutual-TLS connection, for 30 s after a warm-up of 5 s
  plimsoll grpc grpcs://localhost:50051 -m score.ScoreService/GetScore -d '{\"json\": \"[0.1, 0.2]\"}' \\
      --ca certs/ca.crt --cert certs/client.crt --key certs/client.key \\
      --rate 1000/s --warmup 5s --duration 30s
Example: streams of 100 messages, 20 ms apart, each to be answered
  plimsoll grpc grpc://localhost:50054 -m grpc.examples.echo.Echo/BidirectionalStreamingEcho -d '{\"message\": \"hi\"}' --messages 100 --pace 20ms --expect 100 --rate 50/s --duration 30s
Example: orders that differ from call to call, for the users of a file in turn
  plimsoll grpc grpc://localhost:50052 -m orders.OrderService/Submit --rows users.csv \\
      -d '{\"instrumentID\": {{row.instrument}}, \"price\": {{random 100 10000}}}' --rate 1000/s --duration 30s
Example: what a server has to offer (server reflection)
  plimsoll grpc list grpc://localhost:50051
  plimsoll grpc describe grpc://localhost:50051 score.ScoreService/GetScore
Example: 60 calls, each over a new connection; 1,000,000 orders from 10,000 clients
  plimsoll grpc grpc://localhost:50051 -m score.ScoreService/GetScore -d @vector.json --cold --calls 60
  plimsoll grpc grpc://localhost:50052 -m orders.OrderService/Submit -d '{\"price\": 5}' --fleet 10000 --calls 1000000",
    after_help = crate::environment::HELP)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    question: Option<Question>,

    /// grpc://HOST:PORT (plaintext), grpcs://HOST:PORT (TLS 1.3), or unix:/PATH.
    #[arg(value_name = "URL", env = "PLIMSOLL_TARGET")]
    target: Option<String>,

    #[command(flatten)]
    call: GrpcFlags,

    #[command(flatten)]
    rows: RowFlags,

    #[command(flatten)]
    load: LoadFlags,

    #[command(flatten)]
    pub(crate) output: OutputFlags,
}

/// What a server with reflection can be asked, instead of loading it.
#[derive(Debug, Subcommand)]
enum Question {
    List(ListArguments),
    Describe(DescribeArguments),
}

/// The services and methods of a server, a line each (server reflection).
#[derive(Debug, Args)]
#[command(before_help = "Example: over TLS\n  \
    plimsoll grpc list grpcs://localhost:50051 --ca certs/ca.crt --metadata 'authorization: $TOKEN'")]
struct ListArguments {
    #[command(flatten)]
    link: LinkFlags,
}

/// A service, method, message or enum of a server, with all it is made of.
#[derive(Debug, Args)]
#[command(before_help = "Example: what to write into the message of a call\n  \
    plimsoll grpc describe grpc://localhost:50051 score.ScoreService/GetScore")]
struct DescribeArguments {
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

fn answer(question: &Question, environment: &Environment) -> Result<Exit, Failure> {
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

pub(crate) fn execute(
    arguments: &Arguments,
    origins: &Origins,
    environment: &Environment,
    process: &Process,
) -> Result<Exit, Failure> {
    if let Some(question) = &arguments.question {
        return answer(question, environment);
    }
    let call = quick::call(&arguments.call.spec()?)?;
    let mut spec = quick::spec(arguments.target.as_deref(), call, &arguments.load, origins)?;
    arguments.rows.apply(&mut spec);
    quick::run(&spec, &arguments.output, environment, process)
}
