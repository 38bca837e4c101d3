//! `plimsoll mcp`: offers measurements to clients of the Model Context Protocol, over stdin and stdout.
//!
//! A tool call that sends load starts this program as a child process with the limits of `load_limits`, and answers
//! from the run directory that the child wrote. Stdout is reserved for protocol messages.

mod arguments;
mod child_process;
mod run_folder;
mod server;
mod tools;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use plimsoll_model::formats::units::{self, Period, Rate};
use rmcp::service::ServerInitializeError;
use rmcp::{ServiceExt as _, transport};

use crate::failure::{Exit, Failure};
use crate::settings::load_limits::{AllowedTarget, LoadLimits};
use crate::system::stopping;
use run_folder::RunFolder;
use server::McpServer;

/// Offer measurements to a client of the Model Context Protocol (MCP).
///
/// Requests come on stdin, and answers go to stdout. The client can check and run plans, and read, list and compare
/// runs. The flags limit the loads that it may run: by default only loopback addresses are allowed as targets.
#[derive(Debug, Args)]
#[command(before_help = "\
Example: the command that a client is configured with; it may load one server, for 30 s at most
  plimsoll mcp --allow staging.example:443 --max-rate 500/s --max-duration 30s
Example: a client that only reads runs
  plimsoll mcp --read-only --runs results")]
pub(crate) struct McpArguments {
    /// A target that may be called, or unix:/PATH; repeatable [default: any loopback address].
    #[arg(long, value_name = "HOST[:PORT]", help_heading = "Limits")]
    allow: Vec<AllowedTarget>,

    /// Maximum rate of a load.
    #[arg(
        long,
        value_name = "RATE",
        default_value = "10000/s",
        value_parser = units::parse_per_second::<Rate>,
        help_heading = "Limits"
    )]
    max_rate: Rate,

    /// Maximum duration of a load with its warm-up, and of a whole search or ladder.
    #[arg(
        long,
        value_name = "TIME",
        default_value = "60s",
        value_parser = units::parse_seconds,
        help_heading = "Limits"
    )]
    max_duration: Period,

    /// Maximum number of concurrent connections of a load.
    #[arg(long, value_name = "N", default_value_t = 200, help_heading = "Limits")]
    max_connections: u32,

    /// Send no load: only read, list and compare runs, and check plans.
    #[arg(long, help_heading = "Limits")]
    read_only: bool,

    /// Let plans run commands, load plugins, and start servers and proxies.
    #[arg(long, help_heading = "Limits")]
    allow_plan_code: bool,

    /// An environment variable that plans may send, such as a token; repeatable.
    #[arg(long, value_name = "NAME", help_heading = "Limits")]
    allow_env: Vec<String>,

    /// The folder of runs: new runs are written there, and only runs in it are read.
    #[arg(long, value_name = "DIR", default_value = "runs")]
    runs: PathBuf,
}

pub(crate) fn execute(arguments: &McpArguments) -> Result<Exit, Failure> {
    let runs = RunFolder::open(&arguments.runs)?;
    let here = std::env::current_dir()
        .and_then(|here| here.canonicalize())
        .map_err(|e| Failure::error(format_args!("can't determine the current folder: {e}")))?;
    if arguments.max_duration.0 == Duration::ZERO {
        return Err(Failure::usage(
            "--max-duration: no load takes no time",
            "give a time such as 60s, or --read-only for no load at all",
        ));
    }
    let limits = LoadLimits {
        allowed: arguments.allow.clone(),
        max_rate_per_s: arguments.max_rate.0,
        max_duration: arguments.max_duration.0,
        max_connections: arguments.max_connections,
        allows_plan_code: arguments.allow_plan_code,
        variables: arguments.allow_env.clone(),
        folders: vec![here, runs.dir().to_owned()],
        is_read_only: arguments.read_only,
    };
    let server = McpServer::new(limits, runs)?;
    stopping::run_until_stopped(Some(1), "", async |stopped| {
        let service = match server.serve(transport::stdio()).await {
            Ok(service) => service,
            // A client that disconnects before its first message is not an error.
            Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
            Err(e) => {
                return Err(Failure::error(format_args!(
                    "the client can't be served: {e}"
                )));
            }
        };
        let stop = service.cancellation_token();
        tokio::select! {
            ended = service.waiting() => {
                ended.map(drop).map_err(|e| Failure::error(format_args!("the server ended: {e}")))
            }
            () = stopped => {
                stop.cancel();
                Ok(())
            }
        }
    })?;
    Ok(Exit::Done)
}
