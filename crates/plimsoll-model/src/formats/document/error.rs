//! Errors of run directories.

use std::io;
use std::path::{Path, PathBuf};

/// Why a run directory, or a document next to one, can't be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// An error of the file system.
    #[error("{path}: {doing} failed")]
    Io {
        /// The path of the file or folder.
        path: PathBuf,
        /// The attempted operation, as in "reading it".
        doing: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The directory of a new run contains other files.
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
        /// The path of the document.
        path: PathBuf,
        /// Its version.
        found: u64,
        /// The version that this code reads.
        expected: u32,
    },
    /// A document that is not valid JSON, or lacks a key.
    #[error("{path}: not valid: {problem}")]
    InvalidDocument {
        /// The path of the document.
        path: PathBuf,
        /// The problem with it.
        problem: String,
    },
    /// An invalid line of a line-based file.
    #[error("{path}:{line}: {problem}")]
    Line {
        /// The path of the file.
        path: PathBuf,
        /// The number of the line, from 1.
        line: u64,
        /// The problem with it.
        problem: String,
    },
    /// The log of calls was requested, but the run has none.
    #[error(
        "{0}: this run has no log of its calls; run with --requests (requests = true in the plan) to export them"
    )]
    NoRequests(PathBuf),
}

impl RunError {
    /// Creates the error of a line of the file at `path`.
    pub(crate) fn invalid_line(path: &Path, line: u64) -> impl FnOnce(String) -> RunError {
        let path = path.to_owned();
        move |problem| RunError::Line {
            path,
            line,
            problem,
        }
    }

    /// Creates the error of the operation `doing` on the file at `path`.
    pub fn io(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> RunError {
        let path = path.to_owned();
        move |source| RunError::Io {
            path,
            doing,
            source,
        }
    }
}
