//! `plimsoll merge`: writes the run directory of a run on several machines from its shards' logs.

use std::path::PathBuf;

use clap::Args;

use crate::failure::{Exit, Failure};
use crate::load::documents::{DocumentFlags, OutputDirs};
use crate::shards::{self, RunFlags};

/// Write the run directory of a run on several machines from the logs of its shards.
#[derive(Debug, Args)]
#[command(before_help = "\
Example: a run whose shard 0 was lost
  plimsoll merge s3://loads/rendezvous --run-id r42 --out runs/r42")]
pub(crate) struct MergeArguments {
    #[command(flatten)]
    run: RunFlags,

    /// The run directory [default: runs/<UTC time>-<name>].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) documents: DocumentFlags,
}

pub(crate) fn execute(arguments: &MergeArguments, made: &OutputDirs) -> Result<Exit, Failure> {
    let (out, screen) = (
        arguments.out.as_deref(),
        arguments.documents.stdout_content(),
    );
    shards::merge(&arguments.run, out, screen, made)
}
