//! Finds the first slower commit of a range by bisection: each candidate is measured side by side with the good commit,
//! and git chooses the next candidate, the one that divides the remaining commits best.

use std::collections::BTreeSet;
use std::path::Path;

use plimsoll_model::comparisons::track::{
    CommitCheck, CommitFinding, CommitSearch, ERROR_PROBABILITY, ErrorBudget, TrackJudgement,
    TrackedVersion, VersionComparison,
};
use plimsoll_report::quantity::plural;
use plimsoll_report::track as shown;

use super::commits::{GitCommit, GitRepository, MergeAncestry};
use super::comparing::{PreparedVersion, VersionComparer};
use super::trees::{BuildResult, BuiltTrees};
use crate::failure::Failure;
use crate::load::documents::OutputDirs;
use crate::load::execution;
use crate::screen::console;

/// Factor by which the time for the second comparison of a commit exceeds that for the first, which was undecided.
const RETRY_BUDGET_FACTOR: u32 = 2;

/// A bisection, as requested on the command line.
pub(crate) struct BisectionRequest<'a> {
    pub(crate) repository: &'a GitRepository,
    pub(crate) comparer: &'a VersionComparer<'a>,
    pub(crate) good: &'a GitCommit,
    pub(crate) bad: &'a GitCommit,
    pub(crate) follow: MergeAncestry,
    pub(crate) build: Option<&'a str>,
    pub(crate) serve: &'a str,
    /// The directory for the results, which exists.
    pub(crate) dir: &'a Path,
}

/// The state of a bisection.
struct CommitBisection<'a> {
    asked: &'a BisectionRequest<'a>,
    trees: BuiltTrees<'a>,
    good: PreparedVersion,
    budget: ErrorBudget,
    search: CommitSearch,
    /// Number of comparisons so far; it numbers their directories, starting at 1.
    compared: usize,
    is_interrupted: bool,
}

/// Bisects the range. `save` is called with the state of the search after each step. Returns the state of the search,
/// and whether the user interrupted it.
///
/// # Errors
/// When the good or the bad commit can't be built or started, or when git or `save` fails.
pub(crate) fn bisect(
    asked: &BisectionRequest<'_>,
    mut save: impl FnMut(&CommitSearch) -> Result<(), Failure>,
) -> Result<(CommitSearch, bool), Failure> {
    let BisectionRequest {
        repository,
        good,
        bad,
        follow,
        ..
    } = *asked;
    if !repository.is_ancestor(good, bad)? {
        return Err(Failure::usage(
            format_args!("--bisect: {} is no ancestor of {}", good.name(), bad.name()),
            "give the good commit first: --bisect GOOD..BAD, on one line of history",
        ));
    }
    let mut suspects = repository.suspect_ids(&bad.id, std::slice::from_ref(&good.id), follow)?;
    if suspects.is_empty() {
        return Err(Failure::usage(
            format_args!(
                "--bisect: there is no commit between {} and {}",
                good.name(),
                bad.name()
            ),
            "give two different commits: --bisect GOOD..BAD",
        ));
    }
    let process = asked.comparer.process;
    let mut trees = BuiltTrees::new(repository, asked.build, asked.dir, process)?;
    let prepared = |commit: &GitCommit, folder| {
        PreparedVersion::from_commit(commit, asked.build, asked.serve, folder)
    };
    let built_end = |trees: &mut BuiltTrees<'_>, commit: &GitCommit| match trees.build(commit)? {
        BuildResult::Built(folder) => Ok(prepared(commit, folder)),
        BuildResult::Failed(reason) => {
            Err(Failure::error(format_args!("{}: {reason}", commit.name())))
        }
    };
    let good_version = built_end(&mut trees, good)?;
    let bad_version = built_end(&mut trees, bad)?;
    let mut bisection = CommitBisection {
        asked,
        trees,
        good: good_version,
        budget: ErrorBudget::new(ERROR_PROBABILITY),
        search: CommitSearch {
            commits: suspects.len(),
            ..CommitSearch::default()
        },
        compared: 0,
        is_interrupted: false,
    };
    let first = bisection.test_version(&bad_version, suspects.len())?;
    save(&bisection.search)?;
    if first != CommitFinding::Slower {
        if first == CommitFinding::Undecided {
            bisection.search.suspects = suspects;
        }
        return Ok((bisection.search, bisection.is_interrupted));
    }
    let (mut good_ids, mut bad_id) = (vec![good.id.clone()], bad.id.clone());
    let mut skipped = BTreeSet::new();
    while suspects.len() > 1 {
        let is_candidate = |id: &&String| **id != bad_id && !skipped.contains(*id);
        let Some(id) = suspects.iter().find(is_candidate).cloned() else {
            bisection.search.suspects = suspects;
            return Ok((bisection.search, false));
        };
        let candidate = repository.commit_by_id(&id)?;
        match bisection.test_candidate(&candidate, suspects.len())? {
            CommitFinding::Slower => bad_id = id,
            CommitFinding::NotSlower => good_ids.push(id),
            CommitFinding::Skipped => drop(skipped.insert(id)),
            CommitFinding::Undecided => {
                bisection.search.suspects = suspects;
                return Ok((bisection.search, bisection.is_interrupted));
            }
        }
        suspects = repository.suspect_ids(&bad_id, &good_ids, follow)?;
        bisection.search.suspects.clone_from(&suspects);
        save(&bisection.search)?;
    }
    let first = repository.commit_by_id(&bad_id)?;
    bisection.search.first_slower = Some(bisection.version_from_commit(&first));
    bisection.search.suspects.clear();
    Ok((bisection.search, false))
}

impl CommitBisection<'_> {
    fn version_from_commit(&self, commit: &GitCommit) -> TrackedVersion {
        let (build, serve) = (self.asked.build, self.asked.serve);
        PreparedVersion::from_commit(commit, build, serve, Default::default()).version
    }

    /// Builds a commit within the range and compares it with the good commit. Commits that can't be built or started
    /// are skipped.
    fn test_candidate(
        &mut self,
        commit: &GitCommit,
        suspects: usize,
    ) -> Result<CommitFinding, Failure> {
        let built = self.trees.build(commit)?;
        let reason = match built {
            BuildResult::Failed(reason) => reason,
            BuildResult::Built(folder) => {
                let (build, serve) = (self.asked.build, self.asked.serve);
                let version = PreparedVersion::from_commit(commit, build, serve, folder);
                match self.test_version(&version, suspects) {
                    Err(failure) if failure.is_caused_by_service(&commit.name()) => {
                        failure.to_string()
                    }
                    outcome => return outcome,
                }
            }
        };
        console::print_notice(format_args!("{} is skipped: {reason}", commit.name()));
        self.search.steps.push(CommitCheck {
            version: self.version_from_commit(commit),
            outcome: CommitFinding::Skipped,
            comparisons: Vec::new(),
        });
        Ok(CommitFinding::Skipped)
    }

    /// Compares a version with the good one; if the result is undecided, compares them again for a longer time.
    fn test_version(
        &mut self,
        version: &PreparedVersion,
        suspects: usize,
    ) -> Result<CommitFinding, Failure> {
        console::print_notice(format_args!(
            "{} against {}: {} may be the first slower one",
            version.version.name,
            self.good.version.name,
            plural(suspects as u64, "commit")
        ));
        let each = self.budget.spend(suspects) / 2.0;
        self.search.error_probability = ERROR_PROBABILITY - self.budget.remaining();
        let mut comparisons = Vec::new();
        let mut outcome = CommitFinding::Undecided;
        for longer in [1, RETRY_BUDGET_FACTOR] {
            let comparison = self.compare(version, each, longer)?;
            let is_hopeless = comparison.fails_differently;
            let sentence =
                shown::describe_comparison(&self.good.version, &version.version, &comparison);
            console::print_notice(sentence);
            outcome = match comparison.verdict {
                TrackJudgement::Slower => CommitFinding::Slower,
                TrackJudgement::NotSlower => CommitFinding::NotSlower,
                TrackJudgement::Undecided => CommitFinding::Undecided,
            };
            comparisons.push(comparison);
            // A longer comparison does not help if the versions fail different shares of calls.
            if outcome != CommitFinding::Undecided || self.is_interrupted || is_hopeless {
                break;
            }
            if longer < RETRY_BUDGET_FACTOR {
                console::print_notice("not decided: measuring longer");
            }
        }
        if self.is_interrupted {
            outcome = CommitFinding::Undecided;
        }
        self.search.steps.push(CommitCheck {
            version: version.version.clone(),
            outcome,
            comparisons,
        });
        Ok(outcome)
    }

    fn compare(
        &mut self,
        version: &PreparedVersion,
        error_probability: f64,
        longer: u32,
    ) -> Result<VersionComparison, Failure> {
        self.compared += 1;
        let directory = format!("comparison-{}", self.compared);
        let dir = self.asked.dir.join(&directory);
        let versions = [&self.good, version];
        let at = (dir.as_path(), directory.as_str());
        let comparer = self.asked.comparer;
        let (comparison, ladder) = comparer.compare(versions, at, error_probability, longer)?;
        self.is_interrupted = ladder.interrupted;
        // Write an HTML page for each comparison, because the reports that the command writes show only one.
        execution::write_page(&dir, &OutputDirs::default())?;
        Ok(comparison)
    }
}

/// Returns the verdict of a bisection on its bad commit.
pub(crate) fn judgement(found: &CommitSearch) -> TrackJudgement {
    let first = found.steps.first().map(|step| step.outcome);
    if found.first_slower.is_some() {
        TrackJudgement::Slower
    } else if first == Some(CommitFinding::NotSlower) {
        TrackJudgement::NotSlower
    } else {
        TrackJudgement::Undecided
    }
}

/// Returns the directory of the comparison that is shown in the reports that the command writes: the last comparison
/// whose commit was slower, or else the last comparison.
pub(crate) fn shown_comparison_dir(found: &CommitSearch) -> Option<&str> {
    let slower = found.steps.iter().rev();
    let mut slower = slower.filter(|step| step.outcome == CommitFinding::Slower);
    let step = slower.next().or(found.steps.last())?;
    Some(step.comparisons.last()?.directory.as_str())
}
