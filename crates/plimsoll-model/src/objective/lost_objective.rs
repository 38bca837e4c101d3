//! Detects, during a run, that an objective can no longer be met.

use super::ObjectiveInputs;
use super::blame::{self, FailureCounts, RunCircumstances, TimeEvidence, times_for_objective};
use crate::plan::{Metric, Objective, Statistic, TimeMetric};
use crate::records::instrument::max_count_beyond_quantile;
use crate::records::record::{StageRecord, TimeHistogram};

/// The end of the reason that is recorded for a run that was stopped because an objective can no longer be met.
pub const OBJECTIVE_LOST_SUFFIX: &str = "can no longer be met";

/// A function that returns how many calls a stage will have, given the stage's name, or how many the whole run will
/// have, given `None`. It returns `None` if the number is not known in advance.
pub type ExpectedCalls<'a> = &'a dyn Fn(Option<&str>) -> Option<u64>;

/// Returns the first of `objectives` that can no longer be met, given the values that were `measured` so far. That is
/// certain once so many of the `expected` calls have failed or taken too long, for reasons other than the generator,
/// that the remaining calls can't change the verdict.
pub fn find_lost_objective<'a>(
    objectives: &'a [Objective],
    measured: &ObjectiveInputs,
    expected: ExpectedCalls<'_>,
) -> Option<&'a Objective> {
    // The number of calls of a step is not known in advance.
    let mut known = objectives.iter().filter(|o| o.is_upper && o.step.is_none());
    known.find(|o| {
        let stage = o.stage.as_deref();
        let (Some(part), Some(expected)) = (measured.for_stage(stage), expected(stage)) else {
            return false;
        };
        is_lost(o, &part.record, expected, &measured.circumstances)
    })
}

fn is_lost(
    objective: &Objective,
    record: &StageRecord,
    expected: u64,
    circumstances: &RunCircumstances,
) -> bool {
    let most = expected.max(record.ended_calls());
    let all = most as f64;
    let failed = FailureCounts::from_record(record).count_external_failures(record, circumstances);
    let evidence = |timed| TimeEvidence::new(timed, record, circumstances);
    let (timed, statistic) = match objective.metric {
        Metric::Errors => return failed as f64 > objective.limit * all,
        // The rest of the run may still change these values by any amount.
        Metric::FailedUsers
        | Metric::Rate
        | Metric::Resumed
        | Metric::Memory(_)
        | Metric::Finish(_) => return false,
        // Fidelity describes the generator, so it is not a reason to stop loading the target.
        Metric::Fidelity => return false,
        // The number of these times is not known in advance.
        Metric::Time(TimeMetric::Measure(_), _) => return false,
        Metric::Time(timed, statistic) => (timed, statistic),
    };
    match statistic {
        Statistic::Percentile(p) => {
            let slow = evidence(timed).min_count_longer_than(objective.limit as u64);
            slow > max_count_beyond_quantile(p / 100.0, most)
        }
        Statistic::Mean => {
            let histogram = times_for_objective(timed, record).and_then(TimeHistogram::histogram);
            let sum = histogram.map_or(0.0, |h| h.mean() * h.len() as f64);
            let own = sum - blame::max_mean_error_ns(record) * record.ok_calls() as f64;
            timed.counts_failures_as_slowest() && failed > 0 || own > objective.limit * all
        }
    }
}
