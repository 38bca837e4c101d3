//! Objectives: evaluates the limits of a plan against the measurements of all calls except the warm-up's.
//!
//! A failed call counts as slower than any limit, so that failing fast does not improve a percentile. Failures and
//! delays that the generator may have caused do not count against the target ([`blame`]). The verdict then follows from
//! one table ([`verdict_table`]). `plimsoll run` judges runs when they end, and reports judge the runs that they read.

mod blame;
mod fidelity;
mod lost_objective;
mod objective_inputs;
mod running_totals;
mod verdict_table;

use serde::{Deserialize, Serialize};

use crate::formats::quantity::plural;
use crate::formats::units::Rate;
use crate::metrics::measure::Count;
use crate::plan::{ConnectionEnd, Metric, Objective, Statistic, TimeMetric};
use crate::records::record::{StageRecord, TimeHistogram};
use crate::runs::run::health::ProblemKind;
use crate::runs::run::memory::MemoryGrowth;
use crate::runs::run::{MemorySummary, Run, RunState};
use crate::spec;
use crate::statistics::quantile::quantile;

pub use blame::RunCircumstances;
use blame::{FailureCounts, TimeEvidence, times_for_objective};
pub use lost_objective::{ExpectedCalls, OBJECTIVE_LOST_SUFFIX, find_lost_objective};
pub use objective_inputs::{MeasuredCalls, ObjectiveInputs};
pub use running_totals::{LiveObjectiveInputs, objective_value, plotted_objective};
pub use verdict_table::{LimitCheck, ObjectiveVerdict, RunValidity, RunVerdict, decide_verdict};

/// An objective with its verdict and measured value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ObjectiveResult {
    /// The objective as text, in a uniform notation that starts with the metric's name.
    pub objective: String,
    /// The verdict.
    pub verdict: ObjectiveVerdict,
    /// The measured value and, where the verdict is inconclusive, the reason.
    pub measured: String,
    /// The [instrument interval](crate::records::instrument) by which a time was judged, µs; `None` where failed calls
    /// decide the verdict.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instrument_us: Option<[f64; 2]>,
}

fn has_problem(run: &Run, kind: ProblemKind) -> bool {
    run.summary.health.problems.iter().any(|p| p.kind == kind)
}

/// Judges `objectives` by the values that were `measured`, in a run of this validity.
pub fn judge_objectives(
    objectives: &[Objective],
    measured: &ObjectiveInputs,
    validity: RunValidity,
) -> Vec<ObjectiveResult> {
    objectives
        .iter()
        .map(|objective| {
            let evidence = match measured.for_objective(objective) {
                Some(part) => evaluate(objective, &part, &measured.circumstances),
                None => ObjectiveEvaluation {
                    check: LimitCheck::TooFew,
                    text: match objective.step {
                        None => "no calls in this stage".to_owned(),
                        Some(_) => "no calls of this step".to_owned(),
                    },
                    interval: None,
                },
            };
            let finite = |(low, high): (f64, f64)| high.is_finite().then_some([low, high]);
            ObjectiveResult {
                objective: objective.text.clone(),
                verdict: decide_verdict(validity_for(objective, validity), evidence.check),
                measured: evidence.text,
                instrument_us: evidence.interval.and_then(finite).map(to_micros),
            }
        })
        .collect()
}

/// Returns the validity of the run for this objective: an objective about the load itself is judged even if the load
/// differs from the plan.
fn validity_for(objective: &Objective, validity: RunValidity) -> RunValidity {
    if objective.metric == Metric::Fidelity && validity == RunValidity::OtherLoad {
        RunValidity::Sound
    } else {
        validity
    }
}

/// Returns whether, and how far, objectives can be judged by `run`.
pub fn run_validity(run: &Run) -> RunValidity {
    let lost = run
        .reason
        .as_deref()
        .is_some_and(|r| r.ends_with(OBJECTIVE_LOST_SUFFIX));
    match run.state {
        _ if run.summary.total.ok == 0 => RunValidity::Unproven,
        _ if has_problem(run, ProblemKind::CountsDiffer) => RunValidity::Unproven,
        RunState::Running | RunState::Partial => RunValidity::Unproven,
        RunState::Aborted if !lost => RunValidity::Unproven,
        _ if !run.summary.health.valid => RunValidity::OtherLoad,
        RunState::Aborted => RunValidity::Lost,
        RunState::Complete | RunState::Invalid => RunValidity::Sound,
    }
}

/// Judges the objectives in `run`'s plan by what the run measured. The list is empty where the plan has no objectives
/// or can't be parsed (imported runs).
pub fn judge_run(run: &Run) -> Vec<ObjectiveResult> {
    let Ok(spec) = spec::read(&run.plan) else {
        return Vec::new();
    };
    let objectives = spec.objectives();
    if objectives.is_empty() {
        return Vec::new();
    }
    judge_objectives(
        &objectives,
        &ObjectiveInputs::from_run(run, spec.deadline()),
        run_validity(run),
    )
}

/// Returns whether full handshakes, in place of resumed ones, are the only problem that makes `run` invalid.
pub(crate) fn is_invalid_only_for_full_handshakes(run: &Run) -> bool {
    let problems = &run.summary.health.problems;
    let mut invalidating = problems.iter().filter(|p| p.invalidates);
    run.state == RunState::Invalid && invalidating.all(|p| p.kind == ProblemKind::NotResumed)
}

/// Returns the bytes of memory per open connection (the larger of the first and last measurement), and the text for
/// reports.
fn connection_memory(end: ConnectionEnd, memory: Option<&MemorySummary>) -> (Option<f64>, String) {
    let each = memory.and_then(|memory| {
        let of = |growth: &MemoryGrowth| match end {
            ConnectionEnd::Client => growth.client,
            ConnectionEnd::Server => growth.server,
        };
        let held = of(&memory.per_connection)?.rss_bytes;
        Some(held.max(of(&memory.per_connection_last)?.rss_bytes))
    });
    let text = each.map_or("not measured".to_owned(), |bytes| {
        format!("{bytes:.0}B a connection")
    });
    (each, text)
}

/// The evaluation of one objective.
struct ObjectiveEvaluation {
    check: LimitCheck,
    /// The measured value as text, with the reason where the limit lies within the interval.
    text: String,
    /// The instrument interval of a time, in nanoseconds.
    interval: Option<(f64, f64)>,
}

/// Converts nanoseconds to µs with three decimals.
fn to_micros(ns: [f64; 2]) -> [f64; 2] {
    ns.map(|ns| ns.round() / 1e3)
}

/// Evaluates an objective independently of the state of the run.
fn evaluate(
    objective: &Objective,
    part: &MeasuredCalls,
    circumstances: &RunCircumstances,
) -> ObjectiveEvaluation {
    if let (Metric::Fidelity, Some(delivery)) = (objective.metric, &part.delivery) {
        return fidelity::evaluate(objective, delivery);
    }
    let record = &part.record;
    let (value, text) = measured_value(objective, part);
    let Some(value) = value else {
        return ObjectiveEvaluation {
            check: LimitCheck::TooFew,
            text,
            interval: None,
        };
    };
    let interval = instrument_interval(objective, value, record, circumstances);
    // The objective is met if both ends of the interval are within the limit, and missed if neither is.
    let (low, high) = interval.unwrap_or((value, value));
    let (is_met, is_missed) = if objective.is_upper {
        (high <= objective.limit, low > objective.limit)
    } else {
        (low >= objective.limit, high < objective.limit)
    };
    let is_sure = match objective.metric {
        Metric::Errors => {
            let all = record.ok_calls() + FailureCounts::from_record(record).total();
            let sure =
                FailureCounts::from_record(record).count_external_failures(record, circumstances);
            sure as f64 > objective.limit * all as f64
        }
        Metric::FailedUsers => {
            // Each failure that the generator may have caused may be the reason why one user failed.
            let failures = FailureCounts::from_record(record);
            let excused =
                failures.total() - failures.count_external_failures(record, circumstances);
            let failed = failed_user_count(record);
            let sure = failed.saturating_sub(excused) as f64;
            sure > objective.limit * ended_user_count(record) as f64
        }
        Metric::Rate => {
            let held_back = 1.0 + blame::max_rate_loss(record);
            !circumstances.is_short_of_resources
                && !circumstances.has_busy_worker
                && !circumstances.not_resumed
                && value * held_back < objective.limit
        }
        Metric::Fidelity | Metric::Resumed | Metric::Memory(_) | Metric::Finish(_) => true,
        Metric::Time(..) => is_missed,
    };
    let text = match interval {
        Some((low, high)) if high.is_finite() => format_interval(low, high),
        _ => text,
    };
    let (found, text) = match (is_met, is_sure) {
        (true, _) => (LimitCheck::Met, text),
        (false, true) => (LimitCheck::Missed, text),
        (false, false) => {
            let why = doubt_reason(objective, record, circumstances);
            (LimitCheck::Within, format!("{text}; {why}"))
        }
    };
    ObjectiveEvaluation {
        check: found,
        text,
        interval,
    }
}

/// Returns the instrument interval of a time that was measured as `value`, in nanoseconds; `None`: the objective
/// limits something else.
fn instrument_interval(
    objective: &Objective,
    value: f64,
    record: &StageRecord,
    circumstances: &RunCircumstances,
) -> Option<(f64, f64)> {
    let Metric::Time(timed, statistic) = objective.metric else {
        return None;
    };
    let evidence = TimeEvidence::new(timed, record, circumstances);
    let low = match statistic {
        Statistic::Percentile(p) => evidence.lower_bound(p),
        Statistic::Mean => evidence.lower_bound_of_mean(value, circumstances),
    };
    Some((low.min(value), value))
}

/// Formats an instrument interval: as one number where both ends agree to two significant digits or differ by at
/// most 1 %.
fn format_interval(low: f64, high: f64) -> String {
    match format_two_digits(low) == format_two_digits(high) || high - low <= high / 100.0 {
        true => format_ns(high),
        false if low == 0.0 => format!("at most {}", format_ns(high)),
        false => format!("{} to {}", format_ns(low), format_ns(high)),
    }
}

/// Formats `ns`, rounded to two significant digits.
fn format_two_digits(ns: f64) -> String {
    format!("{ns:.1e}")
}

/// Describes why the generator may have caused the result.
fn doubt_reason(
    objective: &Objective,
    record: &StageRecord,
    circumstances: &RunCircumstances,
) -> String {
    if circumstances.is_short_of_resources {
        return "this machine ran out of descriptors or ports, which may be the cause".to_owned();
    }
    if circumstances.too_few_connections {
        return "calls waited for connections: the plan has too few".to_owned();
    }
    if circumstances.not_resumed {
        return "with full handshakes, although resumption was requested".to_owned();
    }
    let longest = record.delayed.histogram().map_or(0, |h| h.max());
    let at = match objective.metric {
        Metric::Time(_, Statistic::Percentile(p)) => record.pacing.histogram().map(|h| {
            format!(
                "generator delay p{p} {}",
                format_ns(h.value_at_quantile(p / 100.0) as f64)
            )
        }),
        _ => None,
    };
    let mut seen: Vec<String> = at.into_iter().collect();
    if longest > 0 {
        seen.push(format!(
            "it stalled for up to {}",
            format_ns(longest as f64)
        ));
    }
    if circumstances.has_busy_worker {
        seen.push("a worker used a whole core".to_owned());
    }
    match FailureCounts::from_record(record).local {
        0 => {}
        1 => seen.push("1 failure is the generator's own".to_owned()),
        local => seen.push(format!("{local} failures are the generator's own")),
    }
    let seen = if seen.is_empty() {
        String::new()
    } else {
        format!(" ({})", seen.join(", "))
    };
    format!("the generator may be the cause{seen}")
}

/// Returns the number of calls that certainly took longer than `limit` although their time was not recorded.
fn count_unrecorded_slow_calls(timed: TimeMetric, limit: u64, record: &StageRecord) -> u64 {
    if !timed.counts_failures_as_slowest() {
        return 0;
    }
    FailureCounts::from_record(record).total() + record.cut_off.count_longer_than(limit)
}

fn measured_value(objective: &Objective, part: &MeasuredCalls) -> (Option<f64>, String) {
    let record = &part.record;
    match objective.metric {
        Metric::Time(timed, statistic) => {
            let failed = count_unrecorded_slow_calls(timed, objective.limit as u64, record);
            let value = times_for_objective(timed, record)
                .and_then(|times| compute_statistic(times, statistic, failed));
            match value {
                Some(ns) if ns.is_infinite() => {
                    let recorded =
                        times_for_objective(timed, record).and_then(TimeHistogram::histogram);
                    let all = recorded.map_or(0, |h| h.len()) + failed;
                    let name = match statistic {
                        Statistic::Percentile(p) => format!("p{p} is"),
                        Statistic::Mean => "the mean includes".to_owned(),
                    };
                    let what = match record.abandoned_calls() {
                        0 => "a failed call",
                        _ => "a failed or cut-off call",
                    };
                    let share = failed as f64 / all as f64 * 100.0;
                    (value, format!("{name} {what}, {share:.1} % failed"))
                }
                Some(ns) => (value, format_ns(ns)),
                None => {
                    let n = times_for_objective(timed, record)
                        .and_then(TimeHistogram::histogram)
                        .map_or(0, |h| h.len() + failed);
                    (None, format!("not enough calls ({n})"))
                }
            }
        }
        Metric::Errors => {
            let failed = FailureCounts::from_record(record).total();
            let all = record.ok_calls() + failed;
            let share = (all > 0).then(|| failed as f64 / all as f64);
            let text = share.map_or("no calls".to_owned(), |s| format!("{:.4}%", s * 100.0));
            (share, text)
        }
        Metric::FailedUsers => {
            let (failed, all) = (failed_user_count(record), ended_user_count(record));
            let share = (all > 0).then(|| failed as f64 / all as f64);
            let text = share.map_or("no user ended".to_owned(), |share| {
                format!("{:.4}% of {}", share * 100.0, plural(all, "user"))
            });
            (share, text)
        }
        Metric::Rate => {
            let text = part.achieved_per_s.map_or("not known".to_owned(), |rate| {
                Rate((rate * 10.0).round() / 10.0).to_string()
            });
            (part.achieved_per_s, text)
        }
        Metric::Fidelity => {
            let low = part.delivery.map(|delivery| delivery.fidelity()[0]);
            let text = part.delivery.as_ref().map(fidelity::format_fidelity);
            (low, text.unwrap_or_else(|| "not known".to_owned()))
        }
        Metric::Resumed => {
            let handshakes = record.connections_resumed + record.connections_full;
            let share =
                (handshakes > 0).then(|| record.connections_resumed as f64 / handshakes as f64);
            let text = share.map_or("no handshake was made".to_owned(), |share| {
                format!(
                    "{:.4}% of {}",
                    share * 100.0,
                    plural(handshakes, "handshake")
                )
            });
            (share, text)
        }
        Metric::Memory(end) => connection_memory(end, part.memory.as_ref()),
        Metric::Finish(reason) => {
            let of = |count| record.measures.counter(count);
            let all: u64 = Count::FINISH_REASONS.into_iter().map(of).sum();
            let share = (all > 0).then(|| of(reason) as f64 / all as f64);
            let text = share.map_or("no answer has a finish reason".to_owned(), |share| {
                format!(
                    "{:.4}% of {all} answers with a finish reason",
                    share * 100.0
                )
            });
            (share, text)
        }
    }
}

/// Returns the number of users who stopped after a failed call, plus failed sessions.
fn failed_user_count(record: &StageRecord) -> u64 {
    let of = |count| record.measures.counter(count);
    of(Count::UsersFailed) + of(Count::keyed("sessions_failed"))
}

/// Returns the number of users and sessions that ended, successfully or not.
fn ended_user_count(record: &StageRecord) -> u64 {
    let of = |count| record.measures.counter(count);
    of(Count::UsersOk) + of(Count::keyed("sessions_ok")) + failed_user_count(record)
}

/// Returns a statistic of `times` and of `failed` further calls, which count as slower than any limit. `None`: too few
/// times.
fn compute_statistic(times: &TimeHistogram, statistic: Statistic, failed: u64) -> Option<f64> {
    let Some(h) = times.histogram() else {
        return (failed > 0).then_some(f64::INFINITY);
    };
    match statistic {
        Statistic::Mean if failed > 0 => Some(f64::INFINITY),
        Statistic::Mean => Some(h.mean()),
        Statistic::Percentile(p) => {
            let rank = p / 100.0 * (h.len() + failed) as f64;
            if failed == 0 {
                quantile(h, p / 100.0).map(|ns| ns as f64)
            } else if rank > h.len() as f64 {
                Some(f64::INFINITY)
            } else {
                quantile(h, rank / h.len() as f64).map(|ns| ns as f64)
            }
        }
    }
}

/// Formats nanoseconds in a suitable unit.
fn format_ns(ns: f64) -> String {
    match ns {
        ns if ns < 1e6 => format!("{:.1}us", ns / 1e3),
        ns if ns < 1e9 => format!("{:.2}ms", ns / 1e6),
        ns => format!("{:.2}s", ns / 1e9),
    }
}

#[cfg(test)]
mod tests;
