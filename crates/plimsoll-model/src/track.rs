//! Comparisons of two versions of a service, such as two commits: what was compared, what the intervals say, and how the
//! error probability is divided over the comparisons of a search for the first slower commit.
//!
//! Pure: `plimsoll track` measures a ladder of two rungs for each comparison, and this module reads its record.

use std::path::Path;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::gate::{Gate, LadderMetric};
use crate::ladder::{AddedCost, GateOutcome, LadderRecord};
use crate::run::RunError;
use crate::statistics::paired::paired;
use crate::statistics::rank::median_of;
use crate::{document, input};

/// The record's file name in the directory of a comparison.
pub const FILE_NAME: &str = "track.json";

/// What the new version may exceed the old one by unless flags or the plan say otherwise: half of a change of 5 % of
/// the p99 and of 3 % of the server's CPU time, so that these are told from no change with equal ease.
pub const DEFAULT_GATES: [&str; 2] = ["p99 +2.5%", "server_cpu +1.5%"];

/// Probability that any interval of a comparison, or of a whole search, misses the true change.
///
/// Three eighths of it belong to the p99 and the server's CPU time, and half of that to the side on which a version is
/// called slower. So one version in 500, at most, whose change is exactly what is allowed is called slower, and an
/// unchanged one far more rarely.
pub const ERROR_PROBABILITY: f64 = 0.01;

/// Metrics that are reported whether or not a gate limits them.
const REPORTED_METRICS: [LadderMetric; 3] = [
    LadderMetric::P50,
    LadderMetric::P99,
    LadderMetric::ServerCpu,
];

/// What a comparison found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrackJudgement {
    /// Every interval is within what is allowed.
    NotSlower,
    /// A whole interval is beyond what is allowed.
    Slower,
    /// An interval is on both sides of what is allowed, or the versions fail too differently to be compared.
    Undecided,
}

/// A version of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrackedVersion {
    /// The name in reports: a commit's abbreviated id, or "old" and "new".
    pub name: String,
    /// The commit's full id; left out where a command was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The first line of the commit's message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
    /// Whether changes that are not committed were measured on top of the commit.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dirty: bool,
    /// The command that built it, with secrets masked; left out where there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<String>,
    /// The command that served it, with secrets masked.
    pub serve: String,
}

/// The change of one metric from the old to the new version.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MetricChange {
    /// The metric.
    pub metric: LadderMetric,
    /// The old version's value, in µs or bytes; `None`: not known.
    pub old: Option<f64>,
    /// The new version's value.
    pub new: Option<f64>,
    /// The lower end of the change's interval, in percent of the old value; `None`: too little was measured.
    pub low_percent: Option<f64>,
    /// The upper end.
    pub high_percent: Option<f64>,
    /// What is allowed; left out where nothing is limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<Gate>,
    /// The position of the interval relative to what is allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<GateOutcome>,
}

/// The change of the server's memory: the highest resident set of all its processes in a replicate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryChange {
    /// The median of the old version's replicates, bytes.
    pub old_bytes: f64,
    /// The median of the new version's.
    pub new_bytes: f64,
    /// The lower end of the change's interval, in percent of the old value; `None`: too few replicates.
    pub low_percent: Option<f64>,
    /// The upper end.
    pub high_percent: Option<f64>,
}

/// One comparison: a ladder of two rungs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VersionComparison {
    /// The ladder's directory, relative to the record's.
    pub directory: String,
    /// How often both servers were started.
    pub replicates: usize,
    /// Rounds in which each version had a batch of calls.
    pub rounds: usize,
    /// Probability that any of the intervals misses the true change.
    pub error_probability: f64,
    /// Calls of the old and of the new version that failed.
    pub errors: [u64; 2],
    /// Whether one version failed so much more often than the other that their times can't be compared.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fails_differently: bool,
    /// What the intervals say.
    pub verdict: TrackJudgement,
    /// The metrics' changes, limited ones first.
    pub changes: Vec<MetricChange>,
    /// The memory's change; left out where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryChange>,
}

impl VersionComparison {
    /// Reads what a ladder of two rungs found; `directory` is where it is.
    pub fn of(
        ladder: &LadderRecord,
        directory: String,
        error_probability: f64,
    ) -> VersionComparison {
        let batches = ladder.batches.as_ref();
        let errors = [0, 1].map(|rung| {
            let rung = ladder.rungs.get(rung);
            let slices = rung.into_iter().flat_map(|rung| &rung.slices);
            slices.map(|slice| slice.errors).sum::<u64>()
        });
        let fails_differently = ladder.fail_differently(1, 0);
        let gated = ladder.gated();
        let outcomes = || gated.iter().map(|gated| gated.outcome);
        let verdict = if outcomes().any(|outcome| outcome == GateOutcome::Beyond) {
            TrackJudgement::Slower
        } else if !gated.is_empty() && outcomes().all(|outcome| outcome == GateOutcome::Within) {
            TrackJudgement::NotSlower
        } else {
            TrackJudgement::Undecided
        };
        let limited = gated
            .iter()
            .map(|g| (g.gate.metric, Some((g.gate, g.outcome))));
        let is_limited = |metric: &LadderMetric| gated.iter().any(|g| g.gate.metric == *metric);
        let others = REPORTED_METRICS.into_iter().filter(|m| !is_limited(m));
        let changes = limited.chain(others.map(|metric| (metric, None)));
        let changes = changes.map(|(metric, limit)| change(ladder, metric, limit));
        VersionComparison {
            directory,
            replicates: batches.map_or(1, |batches| batches.replicates),
            rounds: batches.map_or(0, |batches| batches.rounds),
            error_probability,
            errors,
            fails_differently,
            verdict,
            changes: changes.collect(),
            memory: memory_change(ladder, error_probability),
        }
    }
}

fn change(
    ladder: &LadderRecord,
    metric: LadderMetric,
    limit: Option<(Gate, GateOutcome)>,
) -> MetricChange {
    let value = |rung: usize| ladder.rungs.get(rung)?.median(metric);
    let old = value(0);
    let percent = |difference: f64| {
        let old = old.filter(|old| *old > 0.0)?;
        Some(difference / old * 100.0)
    };
    let (low, high) = match ladder.added(1, 0, metric) {
        AddedCost::Significant(d) | AddedCost::NotSignificant(d) => (Some(d.low), Some(d.high)),
        AddedCost::Exact(more) => (Some(more), Some(more)),
        AddedCost::TooFewRounds => (None, None),
    };
    MetricChange {
        metric,
        old,
        new: value(1),
        low_percent: low.and_then(percent),
        high_percent: high.and_then(percent),
        gate: limit.map(|(gate, _)| gate),
        outcome: limit.map(|(_, outcome)| outcome),
    }
}

fn memory_change(ladder: &LadderRecord, alpha: f64) -> Option<MemoryChange> {
    let values = |rung: usize| -> Option<Vec<f64>> {
        let slices = ladder.rungs.get(rung)?.slices.iter();
        slices
            .map(|slice| Some(slice.server_rss_bytes_max? as f64))
            .collect()
    };
    let (old, new) = (values(0)?, values(1)?);
    let (old_bytes, new_bytes) = (median_of(old.clone())?, median_of(new.clone())?);
    let differences: Vec<f64> = new.iter().zip(&old).map(|(new, old)| new - old).collect();
    let found = paired(&differences, alpha);
    let percent = |bytes: f64| bytes / old_bytes * 100.0;
    Some(MemoryChange {
        old_bytes,
        new_bytes,
        low_percent: found.map(|d| percent(d.low)),
        high_percent: found.map(|d| percent(d.high)),
    })
}

/// Divides an error probability over the comparisons of a search, whose number is not known beforehand: commits that
/// can't be built make a search longer. The shares never exceed the whole.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ErrorBudget {
    left: f64,
}

impl ErrorBudget {
    /// Returns a budget of which nothing has been spent.
    pub fn new(error_probability: f64) -> ErrorBudget {
        ErrorBudget {
            left: error_probability,
        }
    }

    /// Takes the share of the next comparison, while the first slower commit may be any of `candidates`. A share is left
    /// for each comparison that halving takes from there on, and one for a longer search.
    pub fn spend(&mut self, candidates: usize) -> f64 {
        let share = self.left / f64::from(halvings(candidates) + 1);
        self.left -= share;
        share
    }

    /// Returns what has not been spent.
    pub fn left(&self) -> f64 {
        self.left
    }
}

/// Returns how many halvings single one out of `candidates`, at least one: the base-2 logarithm, rounded up.
fn halvings(candidates: usize) -> u32 {
    candidates.max(2).next_power_of_two().trailing_zeros()
}

/// What a step of a search found about a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommitFinding {
    /// It is slower than the good commit by more than is allowed.
    Slower,
    /// It is not.
    NotSlower,
    /// The longest comparison did not decide.
    Undecided,
    /// It can't be built, or its server does not start; it was skipped.
    Skipped,
}

/// One step of a search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CommitCheck {
    /// The commit.
    pub version: TrackedVersion,
    /// What was found.
    pub outcome: CommitFinding,
    /// The comparisons with the good commit, the second one longer; empty where the commit was skipped.
    pub comparisons: Vec<VersionComparison>,
}

/// A search for the first slower commit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CommitSearch {
    /// Commits of the range.
    pub commits: usize,
    /// The steps, in order; the first compares the bad commit with the good one.
    pub steps: Vec<CommitCheck>,
    /// The first slower commit; left out where it was not found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_slower: Option<TrackedVersion>,
    /// Ids of the commits that may be the first slower one, the newest first; empty where it was found, or where nothing
    /// is slower.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub suspects: Vec<String>,
    /// Upper bound of the probability that any comparison was decided wrongly.
    pub error_probability: f64,
}

/// What `plimsoll track` measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrackRecord {
    /// The version of the run format.
    pub schema_version: u32,
    /// The version of Plimsoll that measured.
    pub tool_version: String,
    /// When the first comparison began.
    pub started_at: Timestamp,
    /// The version to compare with.
    pub old: TrackedVersion,
    /// The version to judge; the bad commit of a search.
    pub new: TrackedVersion,
    /// What the new version may exceed the old one by.
    pub gates: Vec<Gate>,
    /// What was found; `None`: interrupted before that.
    pub verdict: Option<TrackJudgement>,
    /// The result in a sentence.
    pub summary: String,
    /// Whether a signal ended it.
    pub interrupted: bool,
    /// The comparison; left out where a search made several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comparison: Option<VersionComparison>,
    /// The search; left out where two versions were compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub search: Option<CommitSearch>,
}

impl TrackRecord {
    /// Writes `track.json` in `dir` atomically.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn write(&self, dir: &Path) -> Result<(), RunError> {
        document::write(&dir.join(FILE_NAME), self)
    }

    /// Reads the record in `dir`.
    ///
    /// # Errors
    /// When there is none, or it was written in another version of the format.
    pub fn load(dir: &Path) -> Result<TrackRecord, RunError> {
        document::read(&dir.join(FILE_NAME))
    }

    /// Returns whether `dir` holds a record.
    pub fn is_in(dir: &Path) -> bool {
        input::is_entry(&dir.join(FILE_NAME))
    }
}
