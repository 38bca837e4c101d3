//! `plimsoll merge`: a run of several machines from what its shards wrote.

use std::path::PathBuf;

use clap::Args;

use crate::documents::{DocumentFlags, Made};
use crate::failure::{Exit, Failure};
use crate::shards;
use crate::shards::identity::AccessFlags;

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
    #[arg(long, value_name = "ID")]
    run_id: Option<String>,

    #[command(flatten)]
    access: AccessFlags,

    /// The run directory [default: runs/<UTC time>-<name>].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) documents: DocumentFlags,
}

pub(crate) fn execute(arguments: &Arguments, made: &Made) -> Result<Exit, Failure> {
    let (id, out) = (arguments.run_id.as_deref(), arguments.out.as_deref());
    let screen = arguments.documents.screen();
    let access = arguments.access.access();
    shards::merge(&arguments.rendezvous, &access, id, out, screen, made)
}
