//! What can go wrong with a run directory.

use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("{path}: {doing} failed")]
    Io {
        path: PathBuf,
        doing: &'static str,
        #[source]
        source: io::Error,
    },
    #[error(
        "{0}: the run directory exists and is not empty; give another one, or remove this one first"
    )]
    NotEmpty(PathBuf),
    #[error("{0}: not a run directory: it has no run.json; give the directory that a run printed")]
    NotARun(PathBuf),
    #[error(
        "{path}: written by {age} Plimsoll, in version {found} of the run format; this one reads version {expected}",
        age = if *found > u64::from(*expected) { "a newer" } else { "an older" }
    )]
    Version {
        path: PathBuf,
        found: u64,
        expected: u32,
    },
    #[error("{path}: not valid: {problem}")]
    Garbage { path: PathBuf, problem: String },
    #[error("{path}:{line}: {problem}")]
    Line {
        path: PathBuf,
        line: u64,
        problem: String,
    },
    #[error(
        "{0}: this run kept no record of its single calls; run with --requests (requests = true in the plan) to export them"
    )]
    NoRequests(PathBuf),
}

impl RunError {
    /// An error while `doing` something with the file at `path`.
    pub fn io(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> RunError {
        let path = path.to_owned();
        move |source| RunError::Io {
            path,
            doing,
            source,
        }
    }
}
