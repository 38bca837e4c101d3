//! `plimsoll slurm`: prints a batch script for a run on several machines.

use std::path::PathBuf;

use clap::Args;

use crate::failure::{Exit, Failure};
use crate::launching::{BatchScriptFlags, LaunchPlan};
use crate::screen::console;

/// Print a batch script for Slurm that runs a plan on several machines.
#[derive(Debug, Args)]
#[command(before_help = "\
Example: eight shards on eight nodes, ten minutes at most
  plimsoll slurm plan.toml --shards 8 --time 10:00 > load.sh
  sbatch load.sh")]
pub(crate) struct SlurmArguments {
    /// The plan's path on the nodes, relative to the folder where the job is submitted.
    #[arg(value_name = "PLAN")]
    plan: PathBuf,

    #[command(flatten)]
    script: BatchScriptFlags,
}

pub(crate) fn execute(arguments: &SlurmArguments) -> Result<Exit, Failure> {
    let load = LaunchPlan::read(&arguments.plan)?;
    console::print_result(arguments.script.batch_script(&load))?;
    Ok(Exit::Done)
}
