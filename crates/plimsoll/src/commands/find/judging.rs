//! What a trial says of its rate.

use std::time::Duration;

use plimsoll_model::objective::Verdict::{CannotBeJudged, Missed, NotSupported};
use plimsoll_model::objective::{Measured, Standing};
use plimsoll_model::plan::{Metric, Objective, Plan};
use plimsoll_model::record::{Counts, StageRecord};
use plimsoll_model::run::Run;
use plimsoll_model::search::Verdict;
use plimsoll_model::{Outcome, objective};

/// How long calls may take after the last arrival of a trial: those that are not done by
/// then have missed every limit on time.
pub(super) fn drain(plan: &Plan) -> Duration {
    let longest = plan
        .objectives
        .iter()
        .filter(|o| matches!(o.metric, Metric::Time(timed, _) if timed.counts_failures()))
        .map(|o| Duration::from_nanos(o.limit as u64))
        .max()
        .unwrap_or(plan.load.drain);
    (longest * 4)
        .max(Duration::from_millis(200))
        .min(plan.load.drain)
}

/// What a trial says of its rate. Without an objective on errors, `implied_errors_share` of the
/// calls may fail.
pub(super) fn judge(
    objectives: &[Objective],
    implied_errors_share: Option<f64>,
    plan: &Plan,
    run: &Run,
) -> Verdict {
    let limited = run
        .summary
        .health
        .problems
        .iter()
        .find(|p| p.invalidates && p.kind.is_generator_limit());
    let standing = match limited {
        Some(_) => Standing::OtherLoad,
        None => Standing::Sound,
    };
    let implied = implied_errors_share.map(|share| Objective {
        metric: Metric::Errors,
        stage: None,
        below: true,
        limit: share,
        text: format!("errors < {}% (implied)", share * 100.0),
    });
    let promised: Vec<Objective> = objectives.iter().cloned().chain(implied).collect();
    let mut measured = Measured::of(run, plan.load.deadline);
    let judged = objective::judge(&promised, &measured, standing);
    let unmet = |verdict| judged.iter().filter(move |j| j.verdict == verdict);
    let mut missed: Vec<String> = unmet(Missed).map(|j| j.objective.clone()).collect();
    if missed.is_empty()
        && let Some(unclear) = unmet(CannotBeJudged).next()
    {
        return Verdict::GeneratorLimited {
            reason: match limited {
                Some(problem) => problem.text.clone(),
                None => format!("{}: {}", unclear.objective, unclear.measured),
            },
        };
    }
    // At a rate that is met there are enough calls.
    missed.extend(unmet(NotSupported).map(|j| j.objective.clone()));
    if missed.is_empty() {
        return Verdict::Met;
    }
    // Calls that ran into their deadline were slow; those that failed otherwise are errors.
    let record = measured.all.record.clone();
    let failed = failures(&record);
    let slow = record.outcomes.of(Outcome::DeadlineExceeded);
    let without = &mut measured.all.record;
    without.outcomes = Counts::default();
    without.outcomes.add(Outcome::Ok, record.ok());
    let but_for_errors = objective::judge(objectives, &measured, standing);
    Verdict::Missed {
        objectives: missed,
        errors: failed > slow && but_for_errors.iter().all(|j| j.verdict != Missed),
    }
}

/// Calls that failed, those left out that were given up with the trial.
fn failures(record: &StageRecord) -> u64 {
    let failed = record.outcomes.iter().filter(|(o, _)| !o.is_ok());
    failed
        .filter(|(o, _)| !o.is_given_up())
        .map(|(_, n)| n)
        .sum()
}

/// The share of the calls that failed.
pub(super) fn errors_share(run: &Run) -> Option<f64> {
    let record = run.measured();
    let failed = failures(&record);
    let all = record.ok() + failed;
    (all > 0).then(|| failed as f64 / all as f64)
}
