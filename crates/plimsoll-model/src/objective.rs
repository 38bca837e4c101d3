//! Objectives: what was promised, and what was measured of the calls that count.
//!
//! A call that failed, or was never started, took longer than any limit: failing fast
//! does not help a percentile. The binary judges the runs it makes, the report the runs it reads.

use serde::{Deserialize, Serialize};

use crate::measure::TimeMeasure;
use crate::plan::{End, Metric, Objective, Statistic, Timed};
use crate::record::{StageRecord, Times};
use crate::run::health::ProblemKind;
use crate::run::memory::MemoryGrowth;
use crate::run::{MemorySummary, Run, State};
use crate::spec;
use crate::statistics::quantile::quantile;
use crate::units::Rate;

/// What became of an objective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Met,
    Missed,
    /// The run has too few calls, or handshakes, to tell.
    NotSupported,
}

/// An objective with what was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// Begins with the metric's name, however it was typed.
    pub objective: String,
    pub verdict: Verdict,
    pub measured: String,
}

impl Judged {
    /// Full handshakes, where resumed ones were promised, were found out by this objective.
    fn is_lost_resumption(&self) -> bool {
        self.verdict == Verdict::Missed && self.objective.starts_with("resumed")
    }
}

/// What a run with objectives comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Conclusion {
    /// Every objective was met.
    Pass,
    /// An objective was missed.
    Fail,
    /// The run proves nothing: generator-limited, incomplete, without a success, or with too
    /// few calls.
    Invalid,
}

impl Conclusion {
    pub fn name(self) -> &'static str {
        match self {
            Conclusion::Pass => "pass",
            Conclusion::Fail => "fail",
            Conclusion::Invalid => "invalid",
        }
    }
}

/// The calls of a run, or of one of its stages, that objectives are judged by.
#[derive(Clone, Debug, Default)]
pub struct Part {
    pub record: StageRecord,
    pub achieved_per_s: Option<f64>,
    /// What connections held, where that was measured: of the whole run.
    pub memory: Option<MemorySummary>,
}

/// What objectives are judged by: all calls that are not warm-up, and each stage's.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    pub all: Part,
    pub stages: Vec<(String, Part)>,
}

impl Measured {
    pub fn of(run: &Run) -> Measured {
        let part = |record: StageRecord, achieved_per_s| Part {
            record,
            achieved_per_s,
            memory: run.summary.memory,
        };
        Measured {
            all: part(run.measured(), run.summary.total.achieved_per_s),
            stages: run
                .stages()
                .filter(|(stage, _)| !stage.warmup)
                .map(|(stage, record)| {
                    let record = record.clone();
                    (stage.name.clone(), part(record, stage.achieved_per_s))
                })
                .collect(),
        }
    }

    /// `None`: nothing was measured of the stage.
    fn part(&self, stage: Option<&str>) -> Option<&Part> {
        match stage {
            None => Some(&self.all),
            Some(name) => self
                .stages
                .iter()
                .find(|(known, _)| known == name)
                .map(|(_, part)| part),
        }
    }
}

/// Judges `objectives`.
pub fn judge(objectives: &[Objective], measured: &Measured) -> Vec<Judged> {
    objectives
        .iter()
        .map(|objective| {
            let (value, measured) = match measured.part(objective.stage.as_deref()) {
                Some(part) => measure(objective.metric, part),
                None => (None, "no calls in this stage".to_owned()),
            };
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
    if objectives.is_empty() {
        return Vec::new();
    }
    judge(&objectives, &Measured::of(run))
}

/// What `run` comes to; `None` where it has no objectives.
pub fn conclude(run: &Run, judged: &[Judged]) -> Option<Conclusion> {
    if judged.is_empty() {
        return None;
    }
    let any = |verdict| judged.iter().any(|j| j.verdict == verdict);
    let lost = run.reason.as_deref().is_some_and(|r| r.ends_with(LOST));
    Some(if run.summary.total.ok == 0 {
        Conclusion::Invalid
    } else if run.state == State::Aborted && lost && any(Verdict::Missed) {
        // Whatever the rest of the run would have shown.
        Conclusion::Fail
    } else if only_not_resumed(run) && judged.iter().any(Judged::is_lost_resumption) {
        // What makes the run invalid is the very thing that was promised.
        Conclusion::Fail
    } else if run.state != State::Complete || any(Verdict::NotSupported) {
        Conclusion::Invalid
    } else if any(Verdict::Missed) {
        Conclusion::Fail
    } else {
        Conclusion::Pass
    })
}

/// Nothing but full handshakes makes `run` invalid.
pub(crate) fn only_not_resumed(run: &Run) -> bool {
    let problems = &run.summary.health.problems;
    let mut invalidating = problems.iter().filter(|p| p.invalidates);
    run.state == State::Invalid && invalidating.all(|p| p.kind == ProblemKind::NotResumed)
}

/// How the reason ends of a run that was stopped because an objective was lost.
pub const LOST: &str = "can no longer be met";

/// Calls that a run, or a stage of it, will have in all, where that is known beforehand.
pub type Expected<'a> = &'a dyn Fn(Option<&str>) -> Option<u64>;

/// The first of `objectives` that can no longer be met, given what was `measured` so far:
/// enough of the calls that are `expected` have failed or taken too long.
pub fn lost<'a>(
    objectives: &'a [Objective],
    measured: &Measured,
    expected: Expected<'_>,
) -> Option<&'a Objective> {
    objectives.iter().filter(|o| o.below).find(|o| {
        let stage = o.stage.as_deref();
        let (Some(part), Some(expected)) = (measured.part(stage), expected(stage)) else {
            return false;
        };
        is_lost(o, &part.record, expected)
    })
}

fn is_lost(objective: &Objective, record: &StageRecord, expected: u64) -> bool {
    let all = expected.max(record.ended()) as f64;
    let failed = record.errors() + record.not_started;
    let (timed, statistic) = match objective.metric {
        Metric::Errors => return failed as f64 > objective.limit * all,
        // How many handshakes there will be is not known beforehand.
        Metric::Rate | Metric::Resumed | Metric::Memory(_) => return false,
        // How many of these there will be is not known beforehand.
        Metric::Time(Timed::Measure(_) | Timed::MessageGap | Timed::Connection, _) => return false,
        Metric::Time(timed, statistic) => (timed, statistic),
    };
    let failed = if timed.counts_failures() { failed } else { 0 };
    let histogram = times(timed, record).and_then(Times::histogram);
    match statistic {
        Statistic::Percentile(p) => {
            let slow = histogram.map_or(0, |h| {
                h.len() - h.count_between(0, objective.limit as u64).min(h.len())
            });
            (failed + slow) as f64 > (1.0 - p / 100.0) * all
        }
        Statistic::Mean => {
            let sum = histogram.map_or(0.0, |h| h.mean() * h.len() as f64);
            failed > 0 || sum > objective.limit * all
        }
    }
}

fn times(timed: Timed, record: &StageRecord) -> Option<&Times> {
    let messages = record.messages.as_deref();
    match timed {
        Timed::Response => Some(&record.response),
        Timed::Service => Some(&record.service),
        Timed::FirstByte => Some(&record.first_byte),
        Timed::Lag => Some(&record.lag),
        Timed::Connection => Some(&record.phases.as_deref()?.total),
        Timed::FirstToken => {
            let tokens = record.measures.as_deref();
            tokens
                .map(|m| m.times(TimeMeasure::FirstToken))
                .filter(|times| !times.is_empty())
                .or_else(|| messages.map(|m| &m.first_message))
        }
        Timed::MessageGap => Some(&messages?.inter_message),
        Timed::Measure(measure) => Some(record.measures.as_deref()?.times(measure)),
    }
}

/// The more of what a connection held at first and at last.
fn memory_of(end: End, memory: Option<&MemorySummary>) -> (Option<f64>, String) {
    let each = memory.and_then(|memory| {
        let of = |growth: &MemoryGrowth| match end {
            End::Client => growth.client,
            End::Server => growth.server,
        };
        let held = of(&memory.per_connection)?.rss_bytes;
        Some(held.max(of(&memory.per_connection_last)?.rss_bytes))
    });
    let text = each.map_or("not measured".to_owned(), |bytes| {
        format!("{bytes:.0}B a connection")
    });
    (each, text)
}

fn measure(metric: Metric, part: &Part) -> (Option<f64>, String) {
    let record = &part.record;
    let all = record.ended() + record.not_started;
    match metric {
        Metric::Time(timed, statistic) => {
            let failed = if timed.counts_failures() {
                all - record.ok()
            } else {
                0
            };
            let value = times(timed, record).and_then(|times| of_times(times, statistic, failed));
            match value {
                Some(ns) if ns.is_infinite() => (value, "calls that failed".to_owned()),
                Some(ns) => (value, readable(ns)),
                None => {
                    let n = times(timed, record)
                        .and_then(Times::histogram)
                        .map_or(0, |h| h.len() + failed);
                    (None, format!("too few calls to tell ({n})"))
                }
            }
        }
        Metric::Errors => {
            let share = (all > 0).then(|| (all - record.ok()) as f64 / all as f64);
            let text = share.map_or("no calls".to_owned(), |s| format!("{:.4}%", s * 100.0));
            (share, text)
        }
        Metric::Rate => {
            let text = part.achieved_per_s.map_or("not known".to_owned(), |rate| {
                Rate((rate * 10.0).round() / 10.0).to_string()
            });
            (part.achieved_per_s, text)
        }
        Metric::Resumed => {
            let handshakes = record.connections_resumed + record.connections_full;
            let share =
                (handshakes > 0).then(|| record.connections_resumed as f64 / handshakes as f64);
            let text = share.map_or("no handshake was made".to_owned(), |share| {
                format!("{:.4}% of {handshakes} handshakes", share * 100.0)
            });
            (share, text)
        }
        Metric::Memory(end) => memory_of(end, part.memory.as_ref()),
    }
}

/// A statistic of `times` and of so many `failed` calls, which took longer than any limit.
fn of_times(times: &Times, statistic: Statistic, failed: u64) -> Option<f64> {
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

/// Nanoseconds with the unit that suits.
fn readable(ns: f64) -> String {
    match ns {
        ns if ns < 1e6 => format!("{:.1}us", ns / 1e3),
        ns if ns < 1e9 => format!("{:.2}ms", ns / 1e6),
        ns => format!("{:.2}s", ns / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Outcome;
    use crate::measure::Measures;
    use crate::spec::Spec;

    fn objectives(typed: &[(&str, &str)]) -> Vec<Objective> {
        let mut spec = Spec::default();
        for (metric, limit) in typed {
            spec.objective.insert((*metric).into(), (*limit).into());
        }
        spec.objectives()
    }

    fn usual() -> Vec<Objective> {
        objectives(&[("p99", "< 10ms"), ("errors", "< 2%")])
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

    fn measured(record: StageRecord) -> Measured {
        let part = Part {
            record,
            achieved_per_s: Some(100.0),
            memory: None,
        };
        Measured {
            stages: vec![("peak".to_owned(), part.clone())],
            all: part,
        }
    }

    fn verdicts(typed: &[(&str, &str)], record: StageRecord) -> Vec<Verdict> {
        let judged = judge(&objectives(typed), &measured(record));
        judged.into_iter().map(|j| j.verdict).collect()
    }

    #[test]
    fn an_objective_is_lost_when_no_end_of_the_run_can_save_it() {
        let objectives = usual();
        let lost = |fast, slow, failed| {
            let measured = measured(record(fast, slow, failed));
            lost(&objectives, &measured, &|_| Some(1_000)).map(|o| o.text.as_str())
        };
        assert_eq!(lost(100, 10, 0), None);
        assert_eq!(lost(100, 11, 0), Some("p99 < 10ms"));
        assert_eq!(lost(0, 0, 21), Some("errors < 2%"));
        assert_eq!(lost(0, 0, 10), None);
    }

    #[test]
    fn means_and_single_stages_are_lost_too() {
        let lost = |typed, fast, slow, expected: Option<u64>| {
            let objectives = objectives(&[typed]);
            let measured = measured(record(fast, slow, 0));
            lost(&objectives, &measured, &|_| expected).is_some()
        };
        // 20 × 50 ms are 1 ms for each of 1,000.
        assert!(lost(("mean", "< 900us"), 0, 20, Some(1_000)));
        assert!(!lost(("mean", "< 1100us"), 0, 20, Some(1_000)));
        assert!(!lost(("mean", "< 900us"), 0, 20, None), "no end is known");
        assert!(lost(("p99 at peak", "< 10ms"), 0, 11, Some(1_000)));
        assert!(!lost(("p99 at elsewhere", "< 10ms"), 0, 11, Some(1_000)));
        assert!(!lost(("token_gap.p99", "< 1us"), 0, 11, Some(10)));
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
        let judged = judge(&usual(), &measured(record(600, 11, 0)));
        let verdicts: Vec<Verdict> = judged.into_iter().map(|j| j.verdict).collect();
        assert_eq!(verdicts, [Verdict::Met, Verdict::Missed]);
    }

    #[test]
    fn a_share_of_resumed_handshakes_needs_handshakes() {
        let judged = |full, resumed| {
            let mut r = record(10, 0, 0);
            (r.connections_full, r.connections_resumed) = (full, resumed);
            let judged = judge(&objectives(&[("resumed", ">= 99%")]), &measured(r));
            (judged[0].verdict, judged[0].measured.clone())
        };
        let told = |verdict, text: &str| (verdict, text.to_owned());
        assert_eq!(
            judged(1, 99),
            told(Verdict::Met, "99.0000% of 100 handshakes")
        );
        assert_eq!(
            judged(2, 98),
            told(Verdict::Missed, "98.0000% of 100 handshakes")
        );
        assert_eq!(
            judged(0, 0),
            told(Verdict::NotSupported, "no handshake was made")
        );
    }

    #[test]
    fn every_kind_of_time_is_judged() {
        let mut r = record(1_000, 0, 0);
        let mut measures = Measures::default();
        for _ in 0..1_000 {
            r.lag.record(30_000);
            measures.record(TimeMeasure::FirstToken, 40_000_000);
            measures.record(TimeMeasure::TokenGap, 2_000_000);
        }
        r.measures = Some(Box::new(measures));
        use Verdict::{Met, Missed, NotSupported};
        for (objective, limit, verdict) in [
            ("mean", "< 6ms", Met),
            ("mean", "< 4ms", Missed),
            ("lag.p99", "< 50us", Met),
            ("lag.p99", "< 10us", Missed),
            ("ttft.p99", "< 50ms", Met),
            ("ttft.p99", "< 30ms", Missed),
            ("token_gap.mean", "< 3ms", Met),
            ("message_gap.p99", "< 3ms", NotSupported),
            ("p99.99", "< 1s", NotSupported),
            ("rate", "> 90/s", Met),
            ("rate at peak", "> 110/s", Missed),
            ("p99 at peak", "< 10ms", Met),
            ("p99 at trough", "< 10ms", NotSupported),
        ] {
            assert_eq!(
                verdicts(&[(objective, limit)], r.clone()),
                [verdict],
                "{objective} {limit}"
            );
        }
        // A failed call never got its first token, and is not one of the lags.
        r.outcomes.add(Outcome::Reset, 50);
        assert_eq!(verdicts(&[("ttft.p99", "< 1h")], r.clone()), [Missed]);
        assert_eq!(verdicts(&[("lag.p99", "< 50us")], r), [Met]);
    }
}
