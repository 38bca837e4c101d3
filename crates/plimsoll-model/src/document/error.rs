//! What can go wrong with a run directory.

use std::io;
use std::path::{Path, PathBuf};

/// Why a run directory, or a document beside one, can't be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The file system refused.
    #[error("{path}: {doing} failed")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was tried, as in "reading it".
        doing: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A run would be written among other files.
    #[error(
        "{0}: the run directory exists and is not empty; give another one, or remove this one first"
    )]
    NotEmpty(PathBuf),
    /// A folder without `run.json`.
    #[error("{0}: not a run directory: it has no run.json; give the directory that a run printed")]
    NotARun(PathBuf),
    /// A document of another version of the format.
    #[error(
        "{path}: written by {age} Plimsoll, in version {found} of the run format; this one reads version {expected}",
        age = if *found > u64::from(*expected) { "a newer" } else { "an older" }
    )]
    Version {
        /// The document.
        path: PathBuf,
        /// Its version.
        found: u64,
        /// The version that this code reads.
        expected: u32,
    },
    /// A document that is no JSON, or lacks a key.
    #[error("{path}: not valid: {problem}")]
    Garbage {
        /// The document.
        path: PathBuf,
        /// The problem with it.
        problem: String,
    },
    /// One line of a file of lines.
    #[error("{path}:{line}: {problem}")]
    Line {
        /// The file.
        path: PathBuf,
        /// Its number, from 1.
        line: u64,
        /// The problem with it.
        problem: String,
    },
    /// The calls of a run that kept none.
    #[error(
        "{0}: this run kept no record of its single calls; run with --requests (requests = true in the plan) to export them"
    )]
    NoRequests(PathBuf),
}

impl RunError {
    /// A problem with a line of the file at `path`.
    pub(crate) fn line(path: &Path, line: u64) -> impl FnOnce(String) -> RunError {
        let path = path.to_owned();
        move |problem| RunError::Line {
            path,
            line,
            problem,
        }
    }

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
