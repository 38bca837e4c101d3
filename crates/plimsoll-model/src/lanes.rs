//! A run of several lanes: each has a run directory of its own, and `lanes.json` beside them says
//! which they are. Pure: `plimsoll run` measures, and reports read the record.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::document;
use crate::input;
use crate::run::RunError;

/// The name of the file.
pub const FILE_NAME: &str = "lanes.json";

/// What was run together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LanesRecord {
    /// The version of the run format.
    pub schema_version: u32,
    /// The plan's name.
    pub name: String,
    /// The version of the Plimsoll that measured.
    pub tool_version: String,
    /// The time at which the lanes began together.
    pub started_at: Timestamp,
    /// The lanes in the order of their names.
    pub lanes: Vec<LaneRecord>,
}

/// One lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneRecord {
    /// The key of its table in the plan.
    pub name: String,
    /// Its arrivals among those of all weights together.
    pub weight: u32,
    /// The run directory, relative to the record's.
    pub run: String,
}

impl LanesRecord {
    /// The run directories of the lanes kept in `dir`.
    ///
    /// # Errors
    /// When one is not below `dir`.
    pub fn runs(&self, dir: &Path) -> Result<Vec<PathBuf>, RunError> {
        let below = |lane: &LaneRecord| {
            input::folder_below(dir, &lane.run).map_err(|e| RunError::Garbage {
                path: dir.join(FILE_NAME),
                problem: format!("the run of lane {}: {e}", lane.name),
            })
        };
        self.lanes.iter().map(below).collect()
    }

    /// Write `lanes.json` in `dir`, whole or not at all.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn write(&self, dir: &Path) -> Result<(), RunError> {
        document::write(&dir.join(FILE_NAME), self)
    }

    /// Read the record in `dir`.
    ///
    /// # Errors
    /// When there is none, or it was written in another version of the format.
    pub fn load(dir: &Path) -> Result<LanesRecord, RunError> {
        document::read(&dir.join(FILE_NAME))
    }

    /// Whether `dir` holds lanes.
    pub fn is_in(dir: &Path) -> bool {
        input::is_entry(&dir.join(FILE_NAME))
    }
}
