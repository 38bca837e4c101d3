//! Comparisons of two versions of a service, such as two commits: the versions, the verdict from the intervals, and the
//! division of the error probability over the comparisons of a search for the first slower commit.
//!
//! `plimsoll track` measures a ladder of two rungs for each comparison, and this module evaluates the ladder's record.

use std::path::Path;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::comparisons::ladder::{AddedCost, GateOutcome, LadderRecord};
use crate::metrics::gate::{Gate, LadderMetric};
use crate::runs::run::RunError;
use crate::statistics::paired::paired_difference;
use crate::statistics::rank::median_of_unsorted;
use crate::{formats::document, formats::input};

/// The record's file name in the directory of a comparison.
pub const FILE_NAME: &str = "track.json";

/// Default limits on how far the new version may exceed the old one. They are half of the changes that should be
/// detected, 5 % of the p99 and 3 % of the server's CPU time. So a change of that size is as easy to distinguish from
/// the limit as no change at all.
pub const DEFAULT_GATES: [&str; 2] = ["p99 +2.5%", "server_cpu +1.5%"];

/// Probability that any interval of a comparison, or of a whole search, misses the true change.
///
/// Of this 0.01, 0.00375 is reserved for the intervals of the p99 and the server's CPU time. Half of that, 0.001875, is
/// for errors on the side on which a version is judged slower. So if a version's change is exactly the allowed one, it
/// is judged slower in fewer than 1 of 500 cases; an unchanged version is judged slower far more rarely.
pub const ERROR_PROBABILITY: f64 = 0.01;

/// Metrics that are reported whether or not a gate limits them.
const REPORTED_METRICS: [LadderMetric; 3] = [
    LadderMetric::P50,
    LadderMetric::P99,
    LadderMetric::ServerCpu,
];

/// The verdict of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrackJudgement {
    /// Every interval is within the allowed change.
    NotSlower,
    /// At least one whole interval exceeds the allowed change.
    Slower,
    /// An interval contains the allowed change, or the versions' failure rates differ too much for a comparison.
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
    /// Whether the measured version includes uncommitted changes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dirty: bool,
    /// The command that built the version, with secrets masked; left out where there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<String>,
    /// The command that started the server, with secrets masked.
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
    /// The lower end of the change's interval, in percent of the old value; `None`: there is too little data.
    pub low_percent: Option<f64>,
    /// The upper end.
    pub high_percent: Option<f64>,
    /// The gate that limits the change; left out where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gate: Option<Gate>,
    /// Where the interval lies relative to the allowed change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<GateOutcome>,
}

/// The change of the server's memory, which is the highest resident set of all its processes in a replicate.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryChange {
    /// The median of the old version's replicates, bytes.
    pub old_bytes: f64,
    /// The median of the new version's replicates, bytes.
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
    /// Number of replicates; both servers were restarted for each.
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
    /// The verdict that follows from the intervals.
    pub verdict: TrackJudgement,
    /// The metrics' changes, limited ones first.
    pub changes: Vec<MetricChange>,
    /// The memory's change; left out where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryChange>,
}

impl VersionComparison {
    /// Evaluates a ladder of two rungs, which is stored in `directory`.
    pub fn from_ladder(
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
        let fails_differently = ladder.failure_rates_differ(1, 0);
        let gated = ladder.evaluate_gates();
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
        let changes = changes.map(|(metric, limit)| metric_change(ladder, metric, limit));
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

fn metric_change(
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
    let (low, high) = match ladder.added_cost(1, 0, metric) {
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
            .map(|slice| Some(slice.memory.server_rss_bytes_max? as f64))
            .collect()
    };
    let (old, new) = (values(0)?, values(1)?);
    let (old_bytes, new_bytes) = (
        median_of_unsorted(old.clone())?,
        median_of_unsorted(new.clone())?,
    );
    let differences: Vec<f64> = new.iter().zip(&old).map(|(new, old)| new - old).collect();
    let found = paired_difference(&differences, alpha);
    let percent = |bytes: f64| bytes / old_bytes * 100.0;
    Some(MemoryChange {
        old_bytes,
        new_bytes,
        low_percent: found.map(|d| percent(d.low)),
        high_percent: found.map(|d| percent(d.high)),
    })
}

/// An error probability that is divided over the comparisons of a search. Their number is not known in advance, since
/// commits that can't be built make a search longer. The sum of the shares never exceeds the total.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ErrorBudget {
    left: f64,
}

impl ErrorBudget {
    /// Creates a budget of which nothing has been spent.
    pub fn new(error_probability: f64) -> ErrorBudget {
        ErrorBudget {
            left: error_probability,
        }
    }

    /// Spends and returns the share of the next comparison. `candidates`: the number of commits that may still be the
    /// first slower one. The rest is enough for an equal share in each further comparison of the bisection, and for one
    /// more in case the search takes longer.
    pub fn spend(&mut self, candidates: usize) -> f64 {
        let share = self.left / f64::from(halving_count(candidates) + 1);
        self.left -= share;
        share
    }

    /// Returns the error probability that has not been spent.
    pub fn remaining(&self) -> f64 {
        self.left
    }
}

/// Returns how many halvings it takes to find one of `candidates` commits: the base-2 logarithm, rounded up, and at
/// least one.
fn halving_count(candidates: usize) -> u32 {
    candidates.max(2).next_power_of_two().trailing_zeros()
}

/// The result of a search's step for a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommitFinding {
    /// The commit is slower than the good commit by more than the allowed change.
    Slower,
    /// The commit is not slower by more than that.
    NotSlower,
    /// Even the longest comparison was inconclusive.
    Undecided,
    /// The commit was skipped, because it can't be built or its server does not start.
    Skipped,
}

/// One step of a search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CommitCheck {
    /// The commit.
    pub version: TrackedVersion,
    /// The result for the commit.
    pub outcome: CommitFinding,
    /// The comparisons with the good commit, the second of which is longer; empty where the commit was skipped.
    pub comparisons: Vec<VersionComparison>,
}

/// A search for the first slower commit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CommitSearch {
    /// Number of commits in the range.
    pub commits: usize,
    /// The steps, in order; the first compares the bad commit with the good one.
    pub steps: Vec<CommitCheck>,
    /// The first slower commit; left out where it was not found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_slower: Option<TrackedVersion>,
    /// Ids of the commits that may be the first slower one, the newest first; empty where it was found, or where no
    /// commit is slower.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub suspects: Vec<String>,
    /// Upper bound of the probability that any comparison had a wrong verdict.
    pub error_probability: f64,
}

/// The record of a run of `plimsoll track`.
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
    /// The version to judge; in a search, the bad commit.
    pub new: TrackedVersion,
    /// The limits on how far the new version may exceed the old one.
    pub gates: Vec<Gate>,
    /// The verdict; `None`: the measurement was interrupted before there was one.
    pub verdict: Option<TrackJudgement>,
    /// The result in a sentence.
    pub summary: String,
    /// Whether a signal ended the measurement.
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
    /// When there is no record, or it was written in another version of the format.
    pub fn load(dir: &Path) -> Result<TrackRecord, RunError> {
        document::read(&dir.join(FILE_NAME))
    }

    /// Returns whether `dir` contains a record.
    pub fn exists_in(dir: &Path) -> bool {
        input::is_plain_file(&dir.join(FILE_NAME))
    }
}
