//! The overview of a run for a list of runs, which is read without the run's intervals.

use std::path::Path;

use jiff::Timestamp;
use serde::Deserialize;
use serde::de::IgnoredAny;
use toml::{Table, Value};

use super::directory::read_plan;
use super::header::{LoopKind, MachineFacts};
use super::{RunError, RunState, file_name};
use crate::formats::document;
use crate::formats::labels::Labels;

/// Maximum sum of a run's calls.
const MAX_CALL_SUM: u64 = 1 << 60;

/// The header of a run, with the figures that were written when it ended.
#[derive(Clone, Debug, Deserialize)]
pub struct RunOverview {
    /// The state in which the run ended.
    pub state: RunState,
    /// The plan's name.
    pub name: String,
    /// The time at which the run began, before its first call.
    pub started_at: Timestamp,
    /// The call, such as gRPC's `package.Service/Method`.
    pub call: Option<String>,
    /// The URL as the user wrote it.
    pub target: Option<String>,
    /// The arrival model.
    #[serde(rename = "loop")]
    pub load_loop: Option<LoopKind>,
    /// The machine that generated the load.
    pub machine: Option<MachineFacts>,
    /// The version of Plimsoll that measured or imported the run.
    #[serde(default)]
    pub tool_version: String,
    /// The user's labels of the run.
    #[serde(default)]
    pub labels: Labels,
    /// The stages that are not warm-up, together.
    pub total: TotalOverview,
}

/// Figures of all measured stages.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct TotalOverview {
    /// Calls that ended ok.
    pub ok: u64,
    /// Calls that failed.
    pub errors: u64,
    /// Calls per second that ended; `None`: not known.
    pub achieved_per_s: Option<f64>,
    /// Response times, µs; `None`: no call has one.
    pub response: Option<TimesOverview>,
    /// CPU use of the client; `None`: not known.
    pub client: Option<CpuOverview>,
    /// CPU use of the watched server; `None`: not known, or none was watched.
    pub server: Option<CpuOverview>,
}

/// Percentiles, µs; `None`: too few calls.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct TimesOverview {
    /// The median.
    pub p50_us: Option<f64>,
    /// The 99th percentile.
    pub p99_us: Option<f64>,
}

/// CPU use of the client or of the watched server.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct CpuOverview {
    /// User and system CPU time per call, µs.
    pub cpu_us_per_call: Option<f64>,
}

impl RunOverview {
    /// Reads the overview of the run in `dir`. `None`: `run.json` alone is not enough, because the run has not ended,
    /// or has objectives, whose verdicts need the intervals.
    ///
    /// # Errors
    /// When `run.json` can't be read, or its counts are impossible.
    pub fn load(dir: &Path) -> Result<Option<RunOverview>, RunError> {
        #[derive(Deserialize)]
        struct StoredRunState {
            state: RunState,
            total: Option<IgnoredAny>,
        }
        let path = dir.join(file_name::RUN);
        let stored: StoredRunState = document::read(&path)?;
        let has_objectives = || -> Result<bool, RunError> {
            let plan: Table = read_plan(dir)?.parse().unwrap_or_default();
            let is_limited = |table: &Table| {
                let objectives = table.get("objective").and_then(Value::as_table);
                objectives.is_some_and(|objectives| !objectives.is_empty())
            };
            let steps = plan.get("steps").and_then(Value::as_array);
            let mut steps = steps.into_iter().flatten().filter_map(Value::as_table);
            Ok(is_limited(&plan) || steps.any(is_limited))
        };
        let has_ended = stored.state != RunState::Running && stored.total.is_some();
        if !has_ended || has_objectives()? {
            return Ok(None);
        }
        let overview = document::read_checked(&path, |overview: &RunOverview| {
            let TotalOverview { ok, errors, .. } = overview.total;
            if ok
                .checked_add(errors)
                .is_some_and(|sum| sum <= MAX_CALL_SUM)
            {
                Ok(())
            } else {
                Err(format!(
                    "{ok} calls that ended well and {errors} that failed are more than 2^60"
                ))
            }
        })?;
        Ok(Some(overview))
    }
}
