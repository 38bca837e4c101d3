//! `plimsoll watch`: shows a run on several machines while it is in progress.

use clap::Args;

use crate::failure::{Exit, Failure};
use crate::load::process::ProcessContext;
use crate::shards::{self, RunFlags, WatchMode};

/// Show the progress of a run on several machines, or stop it.
#[derive(Debug, Args)]
#[command(before_help = "\
Example: watch a run, and then stop it
  plimsoll watch s3://loads/rendezvous --run-id r42
  plimsoll watch s3://loads/rendezvous --run-id r42 --stop")]
pub(crate) struct WatchArguments {
    #[command(flatten)]
    run: RunFlags,

    /// Request the run to stop: calls in flight may finish, and all measurements are kept.
    #[arg(long)]
    stop: bool,
}

pub(crate) fn execute(
    arguments: &WatchArguments,
    process: &ProcessContext,
) -> Result<Exit, Failure> {
    let watching = if arguments.stop {
        WatchMode::RequestStop
    } else {
        WatchMode::Observe
    };
    shards::watch(&arguments.run, watching, process)
}
