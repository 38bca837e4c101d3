//! Determines this shard's number, the number of shards and the run ID: from flags, or from the environment variables
//! that a cluster scheduler sets for each process.

use std::time::Duration;

use clap::Args;
use plimsoll_model::formats::units::{Period, parse_seconds};
use plimsoll_model::plan::Shard;

use super::store::{RendezvousAccess, ShardRole};
use crate::failure::Failure;

/// Maximum number of shards.
pub(super) const MAX_SHARDS: u32 = 10_000;

/// How long shards wait for each other by default.
const DEFAULT_BARRIER_TIMEOUT: Duration = Duration::from_secs(300);

#[derive(Debug, Default, Args)]
pub(crate) struct ShardFlags {
    /// Where the shards of a run on several machines exchange data: file:///FOLDER, s3://, gs://, az://, or
    /// tcp://HOST:PORT, where shard 0 listens.
    #[arg(long, value_name = "URL", help_heading = "Shards")]
    rendezvous: Option<String>,

    /// Number of shards [default: from Slurm, MPI or AWS Batch].
    #[arg(long, value_name = "N", help_heading = "Shards",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_SHARDS)))]
    shards: Option<u32>,

    /// Number of this shard, from 0 [default: from Kubernetes, Slurm, MPI, Nomad or AWS Batch].
    #[arg(long, value_name = "K", help_heading = "Shards")]
    shard: Option<u32>,

    /// The run's name in the rendezvous, different for each run [default: from Slurm, Open
    /// MPI or AWS Batch].
    #[arg(long, value_name = "ID", help_heading = "Shards")]
    run_id: Option<String>,

    /// How long shards wait for each other before the load [default: 5min].
    #[arg(long, value_name = "TIME", value_parser = parse_seconds, help_heading = "Shards")]
    barrier: Option<Period>,

    #[command(flatten)]
    access: RendezvousAccess,
}

/// Identity of one shard of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShardIdentity {
    pub(crate) rendezvous: String,
    pub(crate) access: RendezvousAccess,
    pub(crate) shard: Shard,
    pub(crate) run_id: String,
    pub(crate) barrier: Duration,
}

/// The environment variables that a cluster scheduler sets for each process.
struct SchedulerVariables {
    name: &'static str,
    index: &'static str,
    count: &'static [&'static str],
    /// Variables that together identify the run.
    id: &'static [&'static str],
}

/// Known schedulers; the first whose index variable is set is used. The order matters: MPI may start processes within
/// a Slurm allocation, and Slurm sets PMI's variables, too.
const SCHEDULERS: [SchedulerVariables; 6] = [
    SchedulerVariables {
        name: "Open MPI",
        index: "OMPI_COMM_WORLD_RANK",
        count: &["OMPI_COMM_WORLD_SIZE"],
        id: &["PMIX_NAMESPACE"],
    },
    SchedulerVariables {
        name: "Slurm",
        index: "SLURM_PROCID",
        count: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        id: &["SLURM_JOB_ID", "SLURM_STEP_ID"],
    },
    SchedulerVariables {
        name: "MPI (PMI)",
        index: "PMI_RANK",
        count: &["PMI_SIZE"],
        id: &[],
    },
    SchedulerVariables {
        name: "Kubernetes",
        index: "JOB_COMPLETION_INDEX",
        count: &[],
        id: &[],
    },
    SchedulerVariables {
        name: "Nomad",
        index: "NOMAD_ALLOC_INDEX",
        count: &[],
        id: &[],
    },
    SchedulerVariables {
        name: "AWS Batch",
        index: "AWS_BATCH_JOB_ARRAY_INDEX",
        count: &["AWS_BATCH_JOB_ARRAY_SIZE"],
        id: &["AWS_BATCH_JOB_ID"],
    },
];

impl ShardFlags {
    /// Returns whether the flags request that this process is a shard.
    pub(crate) fn are_requested(&self) -> bool {
        self.rendezvous.is_some()
    }

    /// Returns this shard's identity; `None` without `--rendezvous`. `variable` looks up environment variables.
    ///
    /// # Errors
    /// When a value is missing from both flags and variables, or values contradict each other.
    pub(crate) fn identity(
        &self,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<ShardIdentity>, Failure> {
        let Some(rendezvous) = self.rendezvous.clone() else {
            let given = [
                ("--shards", self.shards.is_some()),
                ("--shard", self.shard.is_some()),
                ("--run-id", self.run_id.is_some()),
                ("--barrier", self.barrier.is_some()),
            ];
            return match given.into_iter().find(|(_, given)| *given) {
                None => Ok(None),
                Some((flag, _)) => Err(Failure::usage(
                    format_args!("{flag} without --rendezvous"),
                    "name where the shards meet: --rendezvous file:///SHARED/FOLDER, s3://BUCKET/PREFIX or tcp://HOST:PORT",
                )),
            };
        };
        let scheduler = match self.shard {
            // If the flag --shard is given, the number of shards and the run ID must be set by flags, too.
            Some(_) => None,
            None => SCHEDULERS.iter().find(|e| variable(e.index).is_some()),
        };
        let number = |name: &str| -> Result<Option<u32>, Failure> {
            let Some(text) = variable(name) else {
                return Ok(None);
            };
            text.trim().parse().map(Some).map_err(|_| {
                Failure::usage(
                    format_args!("{name} is {text:?} in the environment, which is not a number"),
                    "give the number with --shard and --shards",
                )
            })
        };
        let index = match (self.shard, scheduler) {
            (Some(shard), _) => shard,
            (None, Some(engine)) => number(engine.index)?.unwrap_or(0),
            (None, None) => {
                return Err(Failure::usage(
                    "--rendezvous without --shard, and no scheduler says which shard this is",
                    "give --shard K, from 0; Kubernetes (Indexed Job), Slurm, MPI, Nomad and AWS Batch (array) set a variable for it",
                ));
            }
        };
        let mut of = self.shards;
        for name in scheduler.map_or(&[][..], |e| e.count) {
            if of.is_none() {
                of = number(name)?;
            }
        }
        let Some(of) = of else {
            let who = scheduler.map_or_else(
                || format!("--shard {index}"),
                |e| format!("{} ({}={index})", e.name, e.index),
            );
            return Err(Failure::usage(
                format_args!("{who} says which shard this is, but not how many there are"),
                "give all shards the same --shards N",
            ));
        };
        if index >= of || of > MAX_SHARDS {
            return Err(Failure::usage(
                format_args!("shard {index} of {of}"),
                &format!("shards are numbered from 0, and there are {MAX_SHARDS} at most"),
            ));
        }
        let parts = scheduler.map_or(&[][..], |e| e.id).iter();
        let found: Vec<String> = parts.filter_map(|name| variable(name)).collect();
        let run_id = match &self.run_id {
            Some(id) => id.clone(),
            // Remove the suffix `:INDEX`, which AWS appends to the job ID.
            None if !found.is_empty() => {
                let id = found.join(".");
                let id = id.split(':').next().unwrap_or_default();
                id.replace(|c: char| !is_run_id_character(c), "-")
            }
            None => {
                return Err(Failure::usage(
                    "--rendezvous without --run-id, and no scheduler says which run this is",
                    "give all shards of a run the same --run-id, and each run a different one",
                ));
            }
        };
        check_run_id(&run_id)?;
        Ok(Some(ShardIdentity {
            rendezvous,
            shard: Shard { index, of },
            run_id,
            barrier: self.barrier.map_or(DEFAULT_BARRIER_TIMEOUT, |p| p.0),
            access: self.access.clone(),
        }))
    }
}

impl ShardIdentity {
    pub(crate) fn role(&self) -> ShardRole {
        match self.shard.index {
            0 => ShardRole::Leader,
            _ => ShardRole::Member,
        }
    }
}

fn is_run_id_character(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')
}

/// Checks that a run ID can be used as the name of a folder.
///
/// # Errors
/// When the ID is too long, or has characters that are not allowed.
pub(crate) fn check_run_id(id: &str) -> Result<(), Failure> {
    let plain = id.chars().all(is_run_id_character) && !id.starts_with('.');
    if plain && (1..=200).contains(&id.len()) {
        return Ok(());
    }
    Err(Failure::usage(
        format_args!("--run-id {id:?}"),
        "use letters, digits, `-`, `_` and `.`, at most 200 characters, without a leading `.`",
    ))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn identity(
        flags: ShardFlags,
        variables: &[(&str, &str)],
    ) -> Result<Option<(u32, u32, String)>, String> {
        let variables: BTreeMap<&str, &str> = variables.iter().copied().collect();
        let found = flags.identity(|name| variables.get(name).map(ToString::to_string));
        found
            .map(|found| found.map(|f| (f.shard.index, f.shard.of, f.run_id)))
            .map_err(|e| e.to_string())
    }

    fn meeting() -> ShardFlags {
        ShardFlags {
            rendezvous: Some("file:///r".into()),
            ..ShardFlags::default()
        }
    }

    #[test]
    fn shard_index_comes_from_scheduler_variables() {
        for (variables, found) in [
            (
                &[
                    ("SLURM_PROCID", "3"),
                    ("SLURM_NTASKS", "4"),
                    ("SLURM_JOB_ID", "77"),
                    ("SLURM_STEP_ID", "0"),
                    ("PMI_RANK", "1"),
                    ("PMI_SIZE", "2"),
                ][..],
                (3, 4, "77.0"),
            ),
            (
                &[
                    ("OMPI_COMM_WORLD_RANK", "1"),
                    ("OMPI_COMM_WORLD_SIZE", "2"),
                    ("PMIX_NAMESPACE", "prterun-node-12@1"),
                    ("SLURM_PROCID", "0"),
                    ("SLURM_NTASKS", "1"),
                ],
                (1, 2, "prterun-node-12-1"),
            ),
            (
                &[
                    ("AWS_BATCH_JOB_ARRAY_INDEX", "2"),
                    ("AWS_BATCH_JOB_ARRAY_SIZE", "9"),
                    ("AWS_BATCH_JOB_ID", "ab-cd:2"),
                ],
                (2, 9, "ab-cd"),
            ),
        ] {
            let (index, of, id) = found;
            assert_eq!(
                identity(meeting(), variables),
                Ok(Some((index, of, id.to_owned())))
            );
        }
        let flags = ShardFlags {
            shards: Some(8),
            run_id: Some("r1".into()),
            ..meeting()
        };
        let found = identity(flags, &[("JOB_COMPLETION_INDEX", "7")]);
        assert_eq!(found, Ok(Some((7, 8, "r1".to_owned()))));
        // Without a rendezvous the variables of a scheduler are ignored.
        let found = identity(ShardFlags::default(), &[("SLURM_PROCID", "3")]);
        assert_eq!(found, Ok(None));
    }

    #[test]
    fn incomplete_shard_identity_is_rejected() {
        let index = ("JOB_COMPLETION_INDEX", "7");
        let with = |shards, id: Option<&str>| ShardFlags {
            shards,
            run_id: id.map(str::to_owned),
            ..meeting()
        };
        for (flags, variables, words) in [
            (meeting(), &[][..], "no scheduler says which shard"),
            (
                with(None, Some("r")),
                &[index],
                "Kubernetes (JOB_COMPLETION_INDEX=7) says which shard this is, but not how many there are",
            ),
            (with(Some(8), None), &[index], "--run-id"),
            (with(Some(7), Some("r")), &[index], "shard 7 of 7"),
            (with(Some(9), Some("../r")), &[index], "--run-id"),
            (
                with(Some(9), Some("r")),
                &[("NOMAD_ALLOC_INDEX", "x")],
                "NOMAD_ALLOC_INDEX is \"x\"",
            ),
            (
                ShardFlags {
                    shards: Some(2),
                    ..ShardFlags::default()
                },
                &[],
                "--shards without --rendezvous",
            ),
        ] {
            let problem = identity(flags, variables).unwrap_err();
            assert!(problem.contains(words), "{problem}\n{words}");
        }
    }
}
