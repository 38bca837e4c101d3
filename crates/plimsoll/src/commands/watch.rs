//! `plimsoll watch`: shows a run on several machines while it is in progress.

use clap::Args;

use crate::failure::{Exit, Failure};
use crate::process::Process;
use crate::shards::{self, RunFlags, Watching};

/// Show the progress of a run on several machines, or stop it.
#[derive(Debug, Args)]
#[command(before_help = "\
Example: watch a run, and then stop it
  plimsoll watch s3://loads/rendezvous --run-id r42
  plimsoll watch s3://loads/rendezvous --run-id r42 --stop")]
pub(crate) struct Arguments {
    #[command(flatten)]
    run: RunFlags,

    /// Ask the run to end: calls in flight may finish, and everything measured is kept.
    #[arg(long)]
    stop: bool,
}

pub(crate) fn execute(arguments: &Arguments, process: &Process) -> Result<Exit, Failure> {
    let watching = if arguments.stop {
        Watching::ToItsEnd
    } else {
        Watching::Alone
    };
    shards::watch(&arguments.run, watching, process)
}
