//! `plimsoll check`: functional tests of a link, a pass or a failure each.

use std::fmt::Write as _;

use clap::{Args, Subcommand};
use plimsoll_model::units::Period;
use plimsoll_protocols::grpc::check::{self, CaseResult, EchoCheck};

use crate::arguments::Json;
use crate::console;
use crate::environment::Environment;
use crate::failure::{Exit, Failure};
use crate::link_flags::LinkFlags;

/// Try a server out: does every kind of call work over this link?
#[derive(Debug, Args)]
#[command(
    before_help = "Example: the four echoes, over mutual TLS\n  \
        plimsoll check echo grpcs://localhost:50054 --ca certs/ca.crt \\\n      \
        --cert certs/client.crt --key certs/client.key",
    arg_required_else_help = true,
    subcommand_required = true,
    disable_help_subcommand = true
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Echo(EchoArguments),
}

/// grpc.examples.echo.Echo: one call of each kind, messages, headers and trailers checked.
#[derive(Debug, Args)]
#[command(before_help = "Example: against `plimsoll serve echo`\n  \
    plimsoll check echo grpc://127.0.0.1:50054")]
struct EchoArguments {
    #[command(flatten)]
    link: LinkFlags,

    /// What is said.
    #[arg(
        short,
        long,
        env = "PLIMSOLL_MESSAGE",
        value_name = "TEXT",
        default_value = "this is examples/metadata"
    )]
    message: String,

    /// What ServerStreamingEcho has to bring, and what the client streams send.
    #[arg(
        long,
        env = "PLIMSOLL_MESSAGES",
        value_name = "N",
        default_value_t = 10
    )]
    messages: usize,

    /// For each of the four calls.
    #[arg(
        long,
        env = "PLIMSOLL_DEADLINE",
        value_name = "TIME",
        default_value = "10s"
    )]
    deadline: Period,

    #[command(flatten)]
    json: Json,
}

/// # Errors
/// When there is no way to the server.
pub(crate) fn execute(arguments: &Arguments, environment: &Environment) -> Result<Exit, Failure> {
    let What::Echo(arguments) = &arguments.what;
    let check = EchoCheck {
        message: arguments.message.clone(),
        messages: arguments.messages,
        sent: arguments.messages,
        deadline: arguments.deadline.0,
    };
    let results = arguments
        .link
        .with_connection(environment, async |connection| {
            let mut results = Vec::new();
            for case in check::CASES {
                results.push(check::run(&connection, case, &check).await);
            }
            Ok(results)
        })?;
    let failed = results.iter().filter(|r| !r.problems.is_empty()).count();
    if arguments.json.json {
        let document = serde_json::json!({ "passed": failed == 0, "cases": results });
        let text = serde_json::to_string_pretty(&document).map_err(Failure::error)?;
        console::result(format_args!("{text}\n"))?;
    } else {
        console::result(shown(&results))?;
    }
    if failed > 0 {
        console::tell(format_args!("{failed} of {} cases failed", results.len()));
        return Ok(Exit::Error);
    }
    Ok(Exit::Done)
}

fn shown(results: &[CaseResult]) -> String {
    let mut out = String::new();
    for result in results {
        let _ = writeln!(out, "--- {} ---", result.case);
        for (what, value) in [
            ("timestamp from header", &result.header_timestamp),
            ("location from header", &result.header_location),
        ] {
            if let Some(value) = value {
                let _ = writeln!(out, "{what}:\n 0. {value}");
            }
        }
        if !result.messages.is_empty() {
            out.push_str("response:\n");
            for message in &result.messages {
                let _ = writeln!(out, " - {message}");
            }
        }
        if let Some(timestamp) = &result.trailer_timestamp {
            let _ = writeln!(out, "timestamp from trailer:\n 0. {timestamp}");
        }
        for problem in &result.problems {
            let _ = writeln!(out, "wrong: {problem}");
        }
        let verdict = match result.problems.is_empty() {
            true => "passed",
            false => "FAILED",
        };
        let _ = writeln!(out, "finish case {}: {verdict}\n", result.case);
    }
    out
}
