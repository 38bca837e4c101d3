//! What starts the shards of a run: a batch script for Slurm, objects for Kubernetes. Both are printed, for
//! a person to read and the cluster's own commands to take; on request `kubectl` is run with the latter.

mod apply;
mod kubernetes;
mod slurm;

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use plimsoll_model::spec::Spec;

use crate::execution::slug;
use crate::failure::Failure;
use crate::planning;

pub(crate) use apply::{Job, LAST_LINES};
pub(crate) use kubernetes::{Meeting, Objects, PodFlags};
pub(crate) use slurm::ScriptFlags;

/// A plan that shards can carry out.
pub(crate) struct Load {
    pub(crate) path: PathBuf,
    pub(crate) spec: Spec,
    pub(crate) text: String,
    /// In words that may be part of any name.
    pub(crate) name: String,
}

impl Load {
    /// # Errors
    /// When there is no such plan, or it has lanes.
    pub(crate) fn read(path: &Path) -> Result<Load, Failure> {
        let (spec, text) = planning::read(path)?;
        if !spec.lanes.is_empty() {
            return Err(Failure::usage(
                format_args!(
                    "{}: shards can't carry out a plan with lanes",
                    path.display()
                ),
                "lanes run on one machine: give each kind of call a plan",
            ));
        }
        let stem = path.file_stem().map(|stem| stem.to_string_lossy());
        let name = spec.name.as_deref().or(stem.as_deref()).unwrap_or_default();
        let name = match slug(name) {
            empty if empty.is_empty() => "run".to_owned(),
            name => name,
        };
        Ok(Load {
            path: path.to_owned(),
            spec,
            text,
            name,
        })
    }

    /// A name for a run of now.
    pub(crate) fn run_id(&self) -> String {
        let stamp = Timestamp::now().strftime("%Y%m%dt%H%M%Sz");
        format!("{}-{stamp}", self.name)
    }
}
