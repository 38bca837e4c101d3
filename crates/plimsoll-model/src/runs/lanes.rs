//! A run of several lanes: loads that run side by side, each with another kind of call. Each lane has its own run
//! directory, and `lanes.json` lists them. This module describes that file: `plimsoll run` writes it, and reports read
//! it.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::formats::document;
use crate::formats::input;
use crate::runs::run::RunError;

/// The record's file name in the directory of the run.
pub const FILE_NAME: &str = "lanes.json";

/// A run of several lanes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LanesRecord {
    /// The version of the run format.
    pub schema_version: u32,
    /// The plan's name.
    pub name: String,
    /// The version of Plimsoll that measured.
    pub tool_version: String,
    /// The time at which the lanes started together.
    pub started_at: Timestamp,
    /// The lanes in the order of their names.
    pub lanes: Vec<LaneRecord>,
}

/// One lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneRecord {
    /// The key of the lane's table in the plan.
    pub name: String,
    /// The lane's share of the arrivals, relative to the sum of all weights.
    pub weight: u32,
    /// The run directory, relative to the record's.
    pub run: String,
}

impl LanesRecord {
    /// Returns the run directories of the lanes in `dir`.
    ///
    /// # Errors
    /// When a run directory is not inside `dir`.
    pub fn run_dirs(&self, dir: &Path) -> Result<Vec<PathBuf>, RunError> {
        let below = |lane: &LaneRecord| {
            input::resolve_subfolder(dir, &lane.run).map_err(|e| RunError::InvalidDocument {
                path: dir.join(FILE_NAME),
                problem: format!("the run of lane {}: {e}", lane.name),
            })
        };
        self.lanes.iter().map(below).collect()
    }

    /// Writes `lanes.json` in `dir` atomically.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn write(&self, dir: &Path) -> Result<(), RunError> {
        document::write(&dir.join(FILE_NAME), self)
    }

    /// Reads the record in `dir`.
    ///
    /// # Errors
    /// When there is no record, or it was written in another version of the format.
    pub fn load(dir: &Path) -> Result<LanesRecord, RunError> {
        document::read(&dir.join(FILE_NAME))
    }

    /// Returns whether `dir` contains the record of a run with lanes.
    pub fn exists_in(dir: &Path) -> bool {
        input::is_plain_file(&dir.join(FILE_NAME))
    }
}
