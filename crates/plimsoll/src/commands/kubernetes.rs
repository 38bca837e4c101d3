//! `plimsoll kubernetes`: prints or applies Kubernetes manifests of a run on several machines.

use std::path::PathBuf;

use clap::Args;
use plimsoll_engine::worker::StopUrgency;

use crate::failure::{Exit, Failure};
use crate::launching::{
    KubernetesJob, KubernetesManifests, LAST_LINES_OPTION, LaunchPlan, PodFlags, PodRendezvous,
};
use crate::load::documents::{OutputDirs, StdoutContent};
use crate::load::process::ProcessContext;
use crate::screen::console;
use crate::shards::identity::check_run_id;
use crate::shards::{self, RunFlags};

/// Print the Kubernetes manifests that run a plan on several nodes, or apply them.
#[derive(Debug, Args)]
#[command(before_help = "\
Example: eight shards that meet in a bucket, whose credentials are in the secret `store`
  plimsoll kubernetes plan.toml --shards 8 --rendezvous s3://loads/meeting --secret store \\
      --image registry.example/plimsoll --run-id r42 | kubectl apply -f -
  plimsoll watch s3://loads/meeting --run-id r42
  plimsoll merge s3://loads/meeting --run-id r42 --out runs/r42
Example: the same from beginning to end, with the exit code of a run on one machine
  plimsoll kubernetes plan.toml --shards 8 --rendezvous s3://loads/meeting --secret store \\
      --image registry.example/plimsoll --apply --out runs/r42
Example: four that meet on a volume which all nodes can write
  plimsoll kubernetes plan.toml --shards 4 --claim meeting --namespace load > run.yaml")]
pub(crate) struct KubernetesArguments {
    /// The plan. Its files must be under the current directory.
    #[arg(value_name = "PLAN")]
    plan: PathBuf,

    /// Number of shards, each a pod of the Job.
    #[arg(long, value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    shards: u32,

    /// Where the shards exchange data: s3://, gs:// or az://.
    #[arg(
        long,
        value_name = "URL",
        required_unless_present = "claim",
        conflicts_with = "claim"
    )]
    rendezvous: Option<String>,

    /// A PersistentVolumeClaim that all nodes can write to (ReadWriteMany), for the data that shards exchange and for
    /// the run directory.
    #[arg(long, value_name = "NAME")]
    claim: Option<String>,

    /// The run's name, different for each run [default: <name>-<UTC time>].
    #[arg(long, value_name = "ID")]
    run_id: Option<String>,

    #[command(flatten)]
    pods: PodFlags,

    /// Apply the manifests with kubectl, wait for the job, write the run directory from the bucket, and exit with the
    /// run's exit code.
    #[arg(long)]
    apply: bool,

    /// With --apply: the run directory [default: runs/<UTC time>-<name>].
    #[arg(long, value_name = "DIR", requires = "apply")]
    out: Option<PathBuf>,
}

/// Prints the manifests, or applies them and waits for the job. `process` returns the process's settings; it is called
/// only if the manifests are applied.
pub(crate) fn execute(
    arguments: &KubernetesArguments,
    made: &OutputDirs,
    process: impl FnOnce() -> Result<ProcessContext, Failure>,
) -> Result<Exit, Failure> {
    let load = LaunchPlan::read(&arguments.plan)?;
    let run_id = arguments
        .run_id
        .clone()
        .unwrap_or_else(|| load.generate_run_id());
    check_run_id(&run_id)?;
    let meeting = match (&arguments.rendezvous, &arguments.claim) {
        (Some(url), _) if url.starts_with("file:") || url.starts_with("tcp:") => {
            let what = if url.starts_with("file:") {
                "be a separate folder in each pod"
            } else {
                "need the name of shard 0's pod"
            };
            return Err(Failure::usage(
                format_args!("--rendezvous: {url} would {what}"),
                "give a bucket (s3://, gs:// or az://), or --claim with a volume that all nodes can write",
            ));
        }
        (Some(url), _) => PodRendezvous::Url(url),
        (None, claim) => PodRendezvous::Claim(claim.as_deref().unwrap_or_default()),
    };
    let objects = KubernetesManifests {
        load: &load,
        shards: arguments.shards,
        run_id: &run_id,
        rendezvous: meeting,
        pods: &arguments.pods,
    };
    let yaml = objects.yaml()?;
    if !arguments.apply {
        console::print_result(yaml)?;
        return Ok(Exit::Done);
    }
    let name = objects.name();
    let job = KubernetesJob {
        namespace: arguments.pods.namespace.as_deref(),
        name: &name,
        shards: arguments.shards,
    };
    let process = process()?;
    job.apply(&yaml)?;
    let mut asked = false;
    let mut interrupted = || match (process.stop.level(), meeting) {
        (StopUrgency::Run, _) => Ok(()),
        (StopUrgency::Graceful, PodRendezvous::Url(url)) => {
            if !std::mem::replace(&mut asked, true) {
                console::print_notice(
                    "stopping the run (once more: leave it running and stop watching)",
                );
                shards::request_run_stop(url, &run_id)?;
            }
            Ok(())
        }
        _ => Err(Failure::with_exit_and_help(
            Exit::Interrupted,
            format_args!("no longer waiting: the job {name} continues"),
            &format!("kubectl delete job {name} stops it"),
        )),
    };
    let outcome = job.wait(&mut interrupted)?;
    let exit = outcome.exit_code().map(Exit::from_code);
    if let Some(pod) = outcome.first_pod().filter(|_| exit != Some(Exit::Done)) {
        // The pod's log explains the failure better than its exit code.
        console::print_notice(
            job.pod_log(pod, &[LAST_LINES_OPTION])
                .unwrap_or_default()
                .trim_end(),
        );
    }
    match meeting {
        PodRendezvous::Url(url) => {
            let run = RunFlags {
                rendezvous: url.to_owned(),
                run_id: Some(run_id.clone()),
                access: Default::default(),
            };
            let merged =
                shards::merge(&run, arguments.out.as_deref(), StdoutContent::Tables, made)?;
            Ok(exit.unwrap_or(merged))
        }
        PodRendezvous::Claim(claim) => {
            if let Some(pod) = outcome.first_pod().filter(|_| exit == Some(Exit::Done)) {
                console::print_result(job.pod_log(pod, &[])?)?;
            }
            console::print_notice(format_args!(
                "the run directory is {} of the claim {claim}",
                objects.run_directory()
            ));
            Ok(exit.unwrap_or(Exit::Error))
        }
    }
}
