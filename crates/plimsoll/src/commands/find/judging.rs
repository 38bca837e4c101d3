//! Judges trials: whether a rate meets the objectives.

use std::time::Duration;

use plimsoll_model::objective::ObjectiveVerdict::{CannotBeJudged, Missed, NotSupported};
use plimsoll_model::objective::{ObjectiveInputs, RunValidity};
use plimsoll_model::plan::{Metric, Objective, Plan};
use plimsoll_model::records::record::OutcomeCounts;
use plimsoll_model::runs::run::{Run, RunError, RunState};
use plimsoll_model::search::{BacklogGrowth, SearchRecord, SearchVariable, TrialVerdict};
use plimsoll_model::spec::DEFAULT_DEADLINE;
use plimsoll_model::{Outcome, objective};

/// Returns the drain time of a trial. It is so long that calls that take longer would miss every time objective.
pub(super) fn drain_time(plan: &Plan) -> Duration {
    let bound = plan.load.drain.unwrap_or(DEFAULT_DEADLINE);
    let longest = plan
        .objectives
        .iter()
        .filter(
            |o| matches!(o.metric, Metric::Time(timed, _) if timed.counts_failures_as_slowest()),
        )
        .map(|o| Duration::from_nanos(o.limit as u64))
        .max()
        .unwrap_or(bound);
    (longest * 4).max(Duration::from_millis(200)).min(bound)
}

/// Returns the warm-up of a trial. Warm-up and trial together last whole seconds, because the backlog is recorded in
/// intervals, which end at whole seconds.
pub(super) fn warmup_time(length: Duration) -> Duration {
    let usual = (length / 5).clamp(Duration::from_millis(200), Duration::from_secs(1));
    let whole = Duration::from_secs_f64((length + usual).as_secs_f64().ceil());
    whole - length
}

/// Returns how the backlog grew in a trial; `None` if it was too short to tell.
pub(super) fn backlog_growth(plan: &Plan, run: &Run) -> Result<Option<BacklogGrowth>, RunError> {
    let length = |warmup: bool| -> Duration {
        let stages = plan.load.stages.iter().filter(|s| s.warmup == warmup);
        stages.filter_map(|s| s.duration).sum()
    };
    let intervals = run.intervals()?;
    let planned = length(true) + length(false);
    // Leave out the last interval of a trial that ended early: its calls in flight were draining.
    let end = match (run.state, intervals.last()) {
        (RunState::Aborted, Some(last)) => planned.min(last.start_offset),
        _ => planned,
    };
    Ok(BacklogGrowth::from_intervals(&intervals, length(true), end))
}

/// Returns the verdict on a trial of `search`. If the plan has no objective on errors, up to its `implied_errors_share`
/// of the calls may fail. `growing` is the growth of the backlog; `None` if the backlog did not clearly grow.
pub(super) fn judge(
    plan: &Plan,
    search: &SearchRecord,
    growing: Option<BacklogGrowth>,
    run: &Run,
) -> TrialVerdict {
    let limited = run
        .summary
        .health
        .problems
        .iter()
        .find(|p| p.invalidates && p.kind.is_generator_limit());
    let validity = match limited {
        Some(_) => RunValidity::OtherLoad,
        None => RunValidity::Sound,
    };
    let implied = search.implied_errors_share.map(|share| Objective {
        metric: Metric::Errors,
        stage: None,
        step: None,
        is_upper: true,
        limit: share,
        text: format!("errors < {}% (implied)", share * 100.0),
    });
    let promised: Vec<Objective> = plan.objectives.iter().cloned().chain(implied).collect();
    let mut measured = ObjectiveInputs::from_run(run, plan.load.deadline);
    // The search is for the highest rate with the plan's number of connections, so a shortage of connections does not
    // invalidate the trial.
    measured.circumstances.too_few_connections = false;
    let judged = objective::judge_objectives(&promised, &measured, validity);
    let unmet = |verdict| judged.iter().filter(move |j| j.verdict == verdict);
    let mut missed: Vec<String> = unmet(Missed).map(|j| j.objective.clone()).collect();
    if missed.is_empty()
        && let Some(unclear) = unmet(CannotBeJudged).next()
    {
        return TrialVerdict::GeneratorLimited {
            reason: match limited {
                Some(problem) => problem.text.clone(),
                None => format!("{}: {}", unclear.objective, unclear.measured),
            },
        };
    }
    // The number of calls of so many users is not known beforehand, so a longer trial follows.
    let unsupported = unmet(NotSupported).map(|j| j.objective.clone());
    let unsupported: Vec<String> = unsupported.collect();
    if search.goal.variable == SearchVariable::Users && missed.is_empty() && !unsupported.is_empty()
    {
        return TrialVerdict::TooFewCalls {
            objectives: unsupported,
        };
    }
    // The number of calls of a journey's step depends on the branches that users take, so a higher rate may not give
    // enough calls either.
    let mut objectives = promised.iter().zip(&judged);
    let few = objectives.find(|(o, j)| o.step.is_some() && j.verdict == NotSupported);
    if missed.is_empty()
        && let Some((_, few)) = few
    {
        return TrialVerdict::GeneratorLimited {
            reason: format!("{}: {}", few.objective, few.measured),
        };
    }
    // A rate that meets the objectives gives enough calls for every percentile, so an objective that can't be judged
    // for lack of calls counts as missed.
    missed.extend(unsupported);
    if missed.is_empty() {
        // If the generator is late, it causes a backlog itself; the growth of the backlog then says nothing about the
        // target.
        let late = run
            .summary
            .health
            .problems
            .iter()
            .find(|p| p.kind.is_generator_limit());
        return match late {
            _ if growing.is_none() => TrialVerdict::Met,
            Some(problem) => TrialVerdict::GeneratorLimited {
                reason: problem.text.clone(),
            },
            None => TrialVerdict::Growing,
        };
    }
    // Calls that exceeded their deadline count as slow, all other failed calls as errors.
    let record = measured.all.record.clone();
    let failed = record.errors();
    let slow = record.outcomes.get(Outcome::DeadlineExceeded);
    let without = &mut measured.all.record;
    without.outcomes = OutcomeCounts::default();
    without.outcomes.add(Outcome::Ok, record.ok_calls());
    for step in &mut without.steps {
        let ok = step.ok_calls();
        step.outcomes = OutcomeCounts::default();
        step.outcomes.add(Outcome::Ok, ok);
    }
    let but_for_errors = objective::judge_objectives(&plan.objectives, &measured, validity);
    TrialVerdict::Missed {
        objectives: missed,
        errors: failed > slow && but_for_errors.iter().all(|j| j.verdict != Missed),
    }
}

/// Returns the measured value of the plotted time objective, µs; `None` if there is no time objective, too few calls,
/// or too many failed calls.
pub(super) fn plotted_time_us(plan: &Plan, run: &Run) -> Option<f64> {
    let objective = objective::plotted_objective(&plan.objectives)?;
    let ns = objective::objective_value(
        objective,
        &ObjectiveInputs::from_run(run, plan.load.deadline),
    )?;
    ns.is_finite().then_some(ns / 1e3)
}

/// Returns the share of failed calls.
pub(super) fn error_share(run: &Run) -> Option<f64> {
    let record = run.measured_record();
    let failed = record.errors();
    let all = record.ok_calls() + failed;
    (all > 0).then(|| failed as f64 / all as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warmup_rounds_trial_to_whole_intervals() {
        for (length_ms, warmup_ms) in [
            (1_000, 1_000),
            (2_000, 1_000),
            (5_000, 1_000),
            (15_000, 1_000),
            (3_880, 1_120),
            (500, 500),
            (900, 1_100),
        ] {
            assert_eq!(
                warmup_time(Duration::from_millis(length_ms)),
                Duration::from_millis(warmup_ms),
                "{length_ms} ms"
            );
        }
    }
}
