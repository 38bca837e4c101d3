//! Objectives: what was promised, and what was measured of the calls that count.
//!
//! A call that failed, or was never started, took longer than any limit: failing fast
//! does not help a percentile. The binary judges the runs it makes, the report the runs it reads.

use crate::plan::{Metric, Objective};
use crate::record::{StageRecord, Times};
use crate::run::Run;
use crate::spec;
use crate::statistics::quantile::quantile;
use crate::units::Rate;
use serde::Serialize;

/// What became of an objective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Met,
    Missed,
    /// The run has too few calls to tell.
    NotSupported,
}

/// An objective with what was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Judged {
    pub objective: String,
    pub verdict: Verdict,
    pub measured: String,
}

/// Judges `objectives` by the calls of `record` (warm-up left out), ended at `achieved_per_s`.
pub fn judge(
    objectives: &[Objective],
    record: &StageRecord,
    achieved_per_s: Option<f64>,
) -> Vec<Judged> {
    objectives
        .iter()
        .map(|objective| {
            let (value, measured) = measure(objective.metric, record, achieved_per_s);
            let verdict = match value {
                None => Verdict::NotSupported,
                Some(value) if objective.below && value <= objective.limit => Verdict::Met,
                Some(value) if !objective.below && value >= objective.limit => Verdict::Met,
                Some(_) => Verdict::Missed,
            };
            Judged {
                objective: objective.text.clone(),
                verdict,
                measured,
            }
        })
        .collect()
}

/// The objectives in `run`'s plan, judged by what it measured. Empty where the plan has none,
/// or can't be read as one (imported runs).
pub fn judge_run(run: &Run) -> Vec<Judged> {
    let objectives: Vec<Objective> = spec::read(&run.plan)
        .map(|spec| spec.objectives())
        .unwrap_or_default();
    judge(
        &objectives,
        &run.measured(),
        run.summary.total.achieved_per_s,
    )
}

/// The first of `objectives` that can no longer be met, given what `record` shows of a run
/// that will have `expected` calls in all: enough of them have failed or taken too long.
pub fn lost<'a>(
    objectives: &'a [Objective],
    record: &StageRecord,
    expected: u64,
) -> Option<&'a Objective> {
    let failed = record.errors() + record.not_started;
    objectives.iter().filter(|o| o.below).find(|o| {
        let (share, over) = match o.metric {
            Metric::Percentile(p) => {
                let slow = record.response.histogram().map_or(0, |h| {
                    let within = h.count_between(0, o.limit as u64);
                    h.len() - within.min(h.len())
                });
                (1.0 - p / 100.0, failed + slow)
            }
            Metric::Errors => (o.limit, failed),
            _ => return false,
        };
        over as f64 > share * expected.max(record.ended()) as f64
    })
}

fn measure(
    metric: Metric,
    record: &StageRecord,
    achieved_per_s: Option<f64>,
) -> (Option<f64>, String) {
    let all = record.ended() + record.not_started;
    let time = |ns: Option<f64>| match ns {
        Some(ns) if ns.is_infinite() => (Some(ns), "calls that failed".to_owned()),
        Some(ns) => (Some(ns), readable(ns)),
        None => (None, format!("too few calls to tell ({all})")),
    };
    match metric {
        Metric::Percentile(p) => time(response_quantile(p / 100.0, record, all)),
        Metric::Mean => time(record.response.histogram().map(|h| {
            if record.ok() < all {
                f64::INFINITY
            } else {
                h.mean()
            }
        })),
        Metric::Lag(p) => time(at(&record.lag, p / 100.0)),
        Metric::Errors => {
            let share = (all > 0).then(|| (all - record.ok()) as f64 / all as f64);
            let text = share.map_or("no calls".to_owned(), |s| format!("{:.4}%", s * 100.0));
            (share, text)
        }
        Metric::Rate => {
            let text = achieved_per_s.map_or("not known".to_owned(), |rate| {
                Rate((rate * 10.0).round() / 10.0).to_string()
            });
            (achieved_per_s, text)
        }
    }
}

/// Nanoseconds with the unit that suits.
fn readable(ns: f64) -> String {
    match ns {
        ns if ns < 1e6 => format!("{:.1}us", ns / 1e3),
        ns if ns < 1e9 => format!("{:.2}ms", ns / 1e6),
        ns => format!("{:.2}s", ns / 1e9),
    }
}

fn at(times: &Times, p: f64) -> Option<f64> {
    Some(quantile(times.histogram()?, p)? as f64)
}

/// The percentile over all calls, with those that did not end ok at infinity.
fn response_quantile(p: f64, record: &StageRecord, all: u64) -> Option<f64> {
    let ok = record.ok();
    if all == ok {
        return at(&record.response, p);
    }
    let rank = p * all as f64;
    if rank > ok as f64 {
        return Some(f64::INFINITY);
    }
    at(&record.response, rank / ok as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Outcome;
    use crate::spec::Spec;

    fn objectives() -> Vec<Objective> {
        let mut spec = Spec::default();
        spec.objective.insert("p99".into(), "< 10ms".into());
        spec.objective.insert("errors".into(), "< 2%".into());
        spec.objectives()
    }

    fn record(fast: u64, slow: u64, failed: u64) -> StageRecord {
        let mut record = StageRecord::default();
        for _ in 0..fast {
            record.response.record(5_000_000);
        }
        for _ in 0..slow {
            record.response.record(50_000_000);
        }
        record.outcomes.add(Outcome::Ok, fast + slow);
        record.outcomes.add(Outcome::Reset, failed);
        record
    }

    #[test]
    fn an_objective_is_lost_when_no_end_of_the_run_can_save_it() {
        let objectives = objectives();
        let lost = |fast, slow, failed| {
            lost(&objectives, &record(fast, slow, failed), 1_000).map(|o| o.text.as_str())
        };
        assert_eq!(lost(100, 10, 0), None);
        assert_eq!(lost(100, 11, 0), Some("p99 < 10ms"));
        assert_eq!(lost(0, 0, 21), Some("errors < 2%"));
        assert_eq!(lost(0, 0, 10), None);
    }

    #[test]
    fn what_was_measured_is_readable() {
        assert_eq!(
            [1_500.0, 52_192_900.0, 2.5e9].map(readable),
            ["1.5us", "52.19ms", "2.50s"]
        );
    }

    #[test]
    fn what_is_lost_is_missed_by_the_calls_that_were_made() {
        let verdicts: Vec<Verdict> = judge(&objectives(), &record(600, 11, 0), None)
            .into_iter()
            .map(|j| j.verdict)
            .collect();
        assert_eq!(verdicts, [Verdict::Met, Verdict::Missed]);
    }
}
