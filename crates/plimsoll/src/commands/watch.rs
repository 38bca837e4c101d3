//! `plimsoll watch`: a run of several machines while it goes on.

use clap::Args;

use crate::failure::{Exit, Failure};
use crate::process::Process;
use crate::shards::identity::AccessFlags;
use crate::shards::{self, Watching};

/// Show a run on several machines while it goes on, or end it.
#[derive(Debug, Args)]
#[command(before_help = "\
Example: look on, and then ask the run to end
  plimsoll watch s3://loads/rendezvous --run-id r42
  plimsoll watch s3://loads/rendezvous --run-id r42 --stop")]
pub(crate) struct Arguments {
    /// The --rendezvous that the shards have.
    #[arg(value_name = "URL")]
    rendezvous: String,

    /// The run's name there [default: the only one].
    #[arg(long, value_name = "ID")]
    run_id: Option<String>,

    #[command(flatten)]
    access: AccessFlags,

    /// Ask the run to end: calls in flight may finish, and everything measured is kept.
    #[arg(long)]
    stop: bool,
}

pub(crate) fn execute(arguments: &Arguments, process: &Process) -> Result<Exit, Failure> {
    let id = arguments.run_id.as_deref();
    let access = arguments.access.access();
    let watching = match arguments.stop {
        true => Watching::ToItsEnd,
        false => Watching::Alone,
    };
    shards::watch(&arguments.rendezvous, &access, id, watching, process)
}
