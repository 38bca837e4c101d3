//! Generates a batch script for Slurm, or manifests for Kubernetes, that start the shards of a run on a cluster. The
//! output is printed for the user to review and submit; with `--apply`, `kubectl` submits the manifests.

mod kubectl;
mod kubernetes;
mod slurm;

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use plimsoll_model::spec::Spec;

use crate::failure::Failure;
use crate::load::execution::slug;
use crate::load::planning;

pub(crate) use kubectl::{KubernetesJob, LAST_LINES_OPTION};
pub(crate) use kubernetes::{KubernetesManifests, PodFlags, PodRendezvous};
pub(crate) use slurm::BatchScriptFlags;

/// The plan of a run on a cluster.
pub(crate) struct LaunchPlan {
    pub(crate) path: PathBuf,
    pub(crate) spec: Spec,
    pub(crate) text: String,
    /// The plan's name reduced to letters, digits and `-`, valid in any resource name.
    pub(crate) name: String,
}

impl LaunchPlan {
    /// Reads the plan file.
    ///
    /// # Errors
    /// When the plan can't be read, or has lanes (loads that run side by side).
    pub(crate) fn read(path: &Path) -> Result<LaunchPlan, Failure> {
        let (spec, text) = planning::read_plan_file(path)?;
        if !spec.lanes.is_empty() {
            return Err(Failure::usage(
                format_args!("{}: shards can't run a plan with lanes", path.display()),
                "lanes run on one machine: give each kind of call a plan",
            ));
        }
        let stem = path.file_stem().map(|stem| stem.to_string_lossy());
        let name = spec.name.as_deref().or(stem.as_deref()).unwrap_or_default();
        let name = match slug(name) {
            empty if empty.is_empty() => "run".to_owned(),
            name => name,
        };
        Ok(LaunchPlan {
            path: path.to_owned(),
            spec,
            text,
            name,
        })
    }

    /// Returns a run ID from the plan's name and the current time.
    pub(crate) fn generate_run_id(&self) -> String {
        let stamp = Timestamp::now().strftime("%Y%m%dt%H%M%Sz");
        format!("{}-{stamp}", self.name)
    }
}
