//! Generates a batch script for Slurm.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;

use super::LaunchPlan;

/// Flags that describe the job.
#[derive(Debug, Args)]
pub(crate) struct BatchScriptFlags {
    /// Number of shards, each a task of the job.
    #[arg(long, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    shards: u32,

    /// Where the shards exchange data [default: the folder "rendezvous" in the directory from which the job is
    /// submitted].
    #[arg(long, value_name = "URL")]
    rendezvous: Option<String>,

    /// Shards per node.
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    per_node: u32,

    /// Cores per shard.
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    cores: u32,

    /// The job's time limit, in Slurm's format: 10:00 is ten minutes [default: the partition's].
    #[arg(long, value_name = "TIME", value_parser = parse_unquoted)]
    time: Option<String>,

    /// The partition [default: the cluster's].
    #[arg(long, value_name = "NAME", value_parser = parse_unquoted)]
    partition: Option<String>,

    /// Path of this program on the nodes.
    #[arg(long, value_name = "FILE", default_value = "plimsoll")]
    program: PathBuf,
}

/// Parses the value of a flag; accepts only values that need no quoting on an #SBATCH line.
fn parse_unquoted(text: &str) -> Result<String, String> {
    let legal = |c: char| c.is_ascii_alphanumeric() || "-_:.,".contains(c);
    if !text.is_empty() && text.chars().all(legal) {
        Ok(text.to_owned())
    } else {
        Err("expected letters, digits and -_:., only".to_owned())
    }
}

impl BatchScriptFlags {
    /// Returns the batch script for `sbatch`.
    pub(crate) fn batch_script(&self, load: &LaunchPlan) -> String {
        let name = &load.name;
        let mut text = format!(
            "#!/bin/bash\n\
             #SBATCH --job-name={name}\n\
             #SBATCH --ntasks={}\n\
             #SBATCH --ntasks-per-node={}\n\
             #SBATCH --cpus-per-task={}\n",
            self.shards, self.per_node, self.cores
        );
        for (option, value) in [("time", &self.time), ("partition", &self.partition)] {
            if let Some(value) = value {
                let _ = writeln!(text, "#SBATCH --{option}={value}");
            }
        }
        let rendezvous = self.rendezvous.as_deref().map_or_else(
            || "\"file://${SLURM_SUBMIT_DIR:-$PWD}/rendezvous\"".to_owned(),
            quote_for_shell,
        );
        let (program, plan) = (
            quote_for_shell(&self.program.to_string_lossy()),
            quote_for_shell(&load.path.to_string_lossy()),
        );
        let _ = write!(
            text,
            "# {} shards of one load. Each finds its number in Slurm's variables; the run is named after the job.\n\
             # All end with the exit code of the first, which writes the run directory. If a shard is lost,\n\
             # the others continue, and the run is partial.\n\
             set -euo pipefail\n\
             rendezvous={rendezvous}\n\
             exec srun --kill-on-bad-exit=0 {program} run {plan} \\\n    \
             --rendezvous \"$rendezvous\" --out \"runs/{name}-$SLURM_JOB_ID\"\n",
            self.shards
        );
        text
    }
}

/// Quotes a word for a POSIX shell.
fn quote_for_shell(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}
