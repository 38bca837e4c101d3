//! Compares two versions of a service, for `plimsoll track`: finds the commits, builds each in a separate work tree,
//! and measures their servers side by side as a ladder of two rungs (variants).

mod bisection;
mod commits;
mod comparing;
mod trees;

pub(crate) use bisection::{BisectionRequest, bisect, judgement, shown_comparison_dir};
pub(crate) use commits::{GitCommit, GitRepository, MergeAncestry};
pub(crate) use comparing::{PreparedVersion, VersionComparer, redact_command};
pub(crate) use trees::{BuildResult, BuiltTrees};
