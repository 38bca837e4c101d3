//! A batch script for Slurm.

use std::fmt::Write as _;
use std::path::Path;

use super::Load;

/// What a job asks for.
pub(crate) struct Script<'a> {
    pub(crate) load: &'a Load,
    pub(crate) shards: u32,
    pub(crate) per_node: u32,
    pub(crate) cores: u32,
    pub(crate) time: Option<&'a str>,
    pub(crate) partition: Option<&'a str>,
    /// `None`: a folder where the job was submitted.
    pub(crate) rendezvous: Option<&'a str>,
    pub(crate) program: &'a Path,
}

impl Script<'_> {
    /// For `sbatch`.
    pub(crate) fn text(&self) -> String {
        let name = &self.load.name;
        let mut text = format!(
            "#!/bin/bash\n\
             #SBATCH --job-name={name}\n\
             #SBATCH --ntasks={}\n\
             #SBATCH --ntasks-per-node={}\n\
             #SBATCH --cpus-per-task={}\n",
            self.shards, self.per_node, self.cores
        );
        for (option, value) in [("time", self.time), ("partition", self.partition)] {
            if let Some(value) = value {
                let _ = writeln!(text, "#SBATCH --{option}={value}");
            }
        }
        let rendezvous = self.rendezvous.map_or_else(
            || "\"file://${SLURM_SUBMIT_DIR:-$PWD}/rendezvous\"".to_owned(),
            quoted,
        );
        let (program, plan) = (
            quoted(&self.program.to_string_lossy()),
            quoted(&self.load.path.to_string_lossy()),
        );
        let _ = write!(
            text,
            "# {} shards of one load. Each finds its number in Slurm's variables; the run is named after the job.\n\
             # All end with the exit code of the first, which writes the run directory. A shard that is lost ends\n\
             # no other: the run is then partial.\n\
             set -euo pipefail\n\
             rendezvous={rendezvous}\n\
             exec srun --kill-on-bad-exit=0 {program} run {plan} \\\n    \
             --rendezvous \"$rendezvous\" --out \"runs/{name}-$SLURM_JOB_ID\"\n",
            self.shards
        );
        text
    }
}

/// A word of a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}
