//! What a trial says of its rate.

use std::time::Duration;

use plimsoll_model::objective::Measured;
use plimsoll_model::plan::{Metric, Objective, Plan};
use plimsoll_model::record::Counts;
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

/// What a trial says of its rate.
pub(super) fn judge(
    objectives: &[Objective],
    implied_errors_share: Option<f64>,
    run: &Run,
) -> Verdict {
    let limited = run
        .summary
        .health
        .problems
        .iter()
        .find(|p| p.invalidates && p.kind.is_generator_limit());
    if let Some(problem) = limited {
        return Verdict::GeneratorLimited {
            reason: problem.text.clone(),
        };
    }
    let mut measured = Measured::of(run);
    let record = measured.all.record.clone();
    let mut missed: Vec<String> = objective::judge(objectives, &measured)
        .into_iter()
        .filter(|j| j.verdict != objective::Verdict::Met)
        .map(|j| j.objective)
        .collect();
    let all = record.ended() + record.not_started;
    let failed = all - record.ok();
    if let Some(share) = implied_errors_share
        && failed as f64 > share * all as f64
    {
        missed.push(format!("errors < {}% (implied)", share * 100.0));
    }
    if missed.is_empty() {
        return Verdict::Met;
    }
    // Calls that ran into their deadline were slow; those that failed otherwise are errors.
    let slow = record.outcomes.of(Outcome::DeadlineExceeded) + record.not_started;
    let without = &mut measured.all.record;
    without.not_started = 0;
    without.outcomes = Counts::default();
    without.outcomes.add(Outcome::Ok, record.ok());
    let but_for_errors = objective::judge(objectives, &measured);
    Verdict::Missed {
        objectives: missed,
        errors: failed > slow
            && but_for_errors
                .iter()
                .all(|j| j.verdict != objective::Verdict::Missed),
    }
}
