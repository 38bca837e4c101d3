//! The run directory: everything that was measured, as data.
//!
//! `docs/run-format.md` specifies the format. [`RunWriter`] writes a directory during the run, so that a killed run
//! loses at most its last interval; [`Run::load`] reads it back. Every figure is a pure function of the intervals'
//! records ([`summary`]), so a run that is read back shows the same figures as when it was written. No clock is read
//! here.

mod consistency;
mod count_check;
mod delivery;
mod directory;
mod encoded_times;
mod ending;
pub mod header;
pub mod health;
pub mod interval;
mod json;
pub mod machine;
pub mod memory;
pub mod merge;
mod negotiated_tls;
mod overview;
pub mod rotation;
mod sampling;
mod shard_totals;
pub mod shards;
pub mod summary;
mod times_summary;
mod users;
mod writer;

pub use consistency::{CountSum, check_stage_numbers};
pub use count_check::CountCheck;
pub use delivery::DeliverySummary;
pub use directory::{Run, read_plan};
pub use ending::{RunEnding, UnsavedRun};
pub use header::{CommonConditions, MachineFacts, RunHeader, RunOrigin};
pub use health::{HealthProblem, find_problems};
pub use interval::{IntervalRecord, ResourceUsage};
pub use machine::{MachineUse, OtherProcess};
pub use memory::{KernelMemory, MemoryPhase, MemoryReading, MemorySummary, ProcessMemory};
pub use negotiated_tls::{
    CertificateAcceptance, NegotiatedHandshakes, NegotiatedTls, format_version,
};
pub use overview::{CpuOverview, RunOverview, TimesOverview, TotalOverview};
pub use rotation::{RotationPart, RotationSummary};
pub use sampling::SamplingSummary;
pub use shard_totals::ShardTotals;
pub use shards::{ShardFigures, ShardState};
pub use summary::{RunSummary, RunTotals, StageSummary, UsersSummary};
pub use times_summary::{InstrumentSummary, TimesSummary};
pub use users::UserLevels;
pub use writer::{MIN_CONNECTIONS_FOR_MEMORY, RunWriter};

pub use crate::formats::document::{RunError, SCHEMA_VERSION};
pub use crate::formats::labels::Labels;
/// A point in time, UTC.
pub use jiff::Timestamp;

use serde::{Deserialize, Serialize};

use crate::formats::named_enum::named;

named! {
    /// The state of a run.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum RunState by name {
        /// The run has not ended, or was killed before it could record its end.
        Running "running",
        /// The run reached its end.
        Complete "complete",
        /// The run was killed or the disk filled up; the directory contains the intervals that were written before.
        Partial "partial",
        /// The run was stopped before its end, and all of its data was written.
        Aborted "aborted",
        /// The run reached its end, but its figures don't describe the target; its health lists the problems.
        Invalid "invalid",
    }
}

/// Names of the files in a run directory.
pub mod file_name {
    /// The resolved plan, without secrets.
    pub const PLAN: &str = "plan.toml";
    /// The state of the run, its machine, and its figures.
    pub const RUN: &str = "run.json";
    /// One line per second, with histograms.
    pub const INTERVALS: &str = "intervals.jsonl";
    /// One line per call, where calls are recorded.
    pub const REQUESTS: &str = "requests.jsonl.zst";
    /// The report page.
    pub const REPORT: &str = "report.html";
    /// The log messages of the run.
    pub const LOG: &str = "log.txt";
}
