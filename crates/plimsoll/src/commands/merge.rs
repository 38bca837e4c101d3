//! `plimsoll merge`: a run of several machines from what its shards wrote.

use std::path::PathBuf;

use clap::Args;

use crate::documents::{DocumentFlags, Made};
use crate::failure::{Exit, Failure};
use crate::shards;

/// Write the run directory of a run on several machines, from what its shards measured.
#[derive(Debug, Args)]
#[command(before_help = "\
Example: a run whose shard 0 was lost
  plimsoll merge s3://loads/rendezvous --run-id r42 --out runs/r42")]
pub(crate) struct Arguments {
    /// The --rendezvous that the shards had.
    #[arg(value_name = "URL")]
    rendezvous: String,

    /// The run's name there [default: the only one].
    #[arg(long, env = "PLIMSOLL_RUN_ID", value_name = "ID")]
    run_id: Option<String>,

    /// The run directory [default: runs/<UTC time>-<name>].
    #[arg(long, env = "PLIMSOLL_OUT", value_name = "DIR")]
    out: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) documents: DocumentFlags,
}

pub(crate) fn execute(arguments: &Arguments, made: &Made) -> Result<Exit, Failure> {
    let (id, out) = (arguments.run_id.as_deref(), arguments.out.as_deref());
    let screen = arguments.documents.screen();
    shards::merge(&arguments.rendezvous, id, out, screen, made)
}
