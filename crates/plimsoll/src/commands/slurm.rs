//! `plimsoll slurm`: a run on several machines as a batch script.

use std::path::PathBuf;

use clap::Args;

use crate::console;
use crate::failure::{Exit, Failure};
use crate::launching::{Load, Script};

/// Print a batch script for Slurm that runs a plan on several machines.
#[derive(Debug, Args)]
#[command(before_help = "\
Example: eight shards on eight nodes, ten minutes at most
  plimsoll slurm plan.toml --shards 8 --time 10:00 > load.sh
  sbatch load.sh")]
pub(crate) struct Arguments {
    /// The plan, as the nodes see it from the folder where the job is submitted.
    #[arg(value_name = "PLAN")]
    plan: PathBuf,

    /// How many shards: tasks of the job.
    #[arg(long, env = "PLIMSOLL_SHARDS", value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    shards: u32,

    /// Where the shards meet [default: the folder rendezvous where the job is submitted].
    #[arg(long, env = "PLIMSOLL_RENDEZVOUS", value_name = "URL")]
    rendezvous: Option<String>,

    /// Shards on a node.
    #[arg(long, env = "PLIMSOLL_PER_NODE", value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    per_node: u32,

    /// Cores of a shard.
    #[arg(long, env = "PLIMSOLL_CORES", value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    cores: u32,

    /// The job's time limit, in Slurm's format: 10:00 is ten minutes [default: the partition's].
    #[arg(long, env = "PLIMSOLL_TIME", value_name = "TIME", value_parser = word)]
    time: Option<String>,

    /// The partition [default: the cluster's].
    #[arg(long, env = "PLIMSOLL_PARTITION", value_name = "NAME", value_parser = word)]
    partition: Option<String>,

    /// This program on the nodes.
    #[arg(
        long,
        env = "PLIMSOLL_PROGRAM",
        value_name = "FILE",
        default_value = "plimsoll"
    )]
    program: PathBuf,
}

/// What a line of options may hold.
fn word(text: &str) -> Result<String, String> {
    let legal = |c: char| c.is_ascii_alphanumeric() || "-_:.,".contains(c);
    match !text.is_empty() && text.chars().all(legal) {
        true => Ok(text.to_owned()),
        false => Err("expected letters, digits and -_:., only".to_owned()),
    }
}

pub(crate) fn execute(arguments: &Arguments) -> Result<Exit, Failure> {
    let load = Load::read(&arguments.plan)?;
    let script = Script {
        load: &load,
        shards: arguments.shards,
        per_node: arguments.per_node,
        cores: arguments.cores,
        time: arguments.time.as_deref(),
        partition: arguments.partition.as_deref(),
        rendezvous: arguments.rendezvous.as_deref(),
        program: &arguments.program,
    };
    console::result(script.text())?;
    Ok(Exit::Done)
}
