use super::*;
use crate::Outcome;
use crate::metrics::measure::TimeMeasure;
use crate::records::record::StepRecord;
use crate::spec::Spec;

pub(super) fn objectives(typed: &[(&str, &str)]) -> Vec<Objective> {
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

fn measured(record: StageRecord) -> ObjectiveInputs {
    let part = MeasuredCalls {
        record,
        achieved_per_s: Some(100.0),
        memory: None,
        delivery: None,
    };
    ObjectiveInputs {
        stages: vec![("peak".to_owned(), part.clone())],
        all: part,
        circumstances: RunCircumstances::default(),
    }
}

/// Judges the first of `objectives` by how much of a load was delivered.
pub(super) fn judged_delivery(
    objectives: &[Objective],
    delivery: Option<crate::runs::run::DeliverySummary>,
    validity: RunValidity,
) -> ObjectiveResult {
    let mut measured = measured(record(900, 0, 0));
    measured.all.delivery = delivery;
    judge_objectives(objectives, &measured, validity).remove(0)
}

/// 992 calls had succeeded when the run was stopped because of their times; 110 had not started.
#[test]
fn abandoned_calls_are_not_errors() {
    let mut r = record(800, 192, 0);
    r.outcomes.add(Outcome::Interrupted, 4);
    r.not_started = 106;
    for _ in 0..110 {
        r.cut_off.record(3_000_000);
    }
    let typed = [("errors", "< 1%"), ("p50", "< 10ms"), ("p99", "< 10ms")];
    use ObjectiveVerdict::{Met, Missed};
    assert_eq!(verdicts(&typed, r.clone()), [Met, Met, Missed]);
    let errors = judge_objectives(&objectives(&typed[..1]), &measured(r), RunValidity::Lost);
    assert_eq!(errors[0].measured, "0.0000%");
}

/// A generator pause of 80 ms at 500 calls per second, with an objective of p99.9 < 20 ms.
#[test]
fn generator_pause_neither_fails_nor_masks_objectives() {
    let paused = |slow_of_its_own: u64| {
        let mut r = record(5_000, 40 + slow_of_its_own, 0);
        for ms in 1..=40u64 {
            r.pacing.record(2 * ms * 1_000_000);
        }
        for _ in 0..90 {
            r.delayed.record(80_000_000);
        }
        r
    };
    let typed = [("p50", "< 20ms"), ("p99.9", "< 20ms")];
    use ObjectiveVerdict::{CannotBeJudged, Met, Missed};
    assert_eq!(verdicts(&typed, paused(0)), [Met, CannotBeJudged]);
    assert_eq!(verdicts(&typed, paused(200)), [Met, Missed]);
    let judged = judge_objectives(
        &objectives(&typed),
        &measured(paused(0)),
        RunValidity::Sound,
    );
    assert_eq!(
        judged[1].measured,
        "5.00ms to 50.00ms; the generator may be the cause (generator delay p99.9 80.02ms, it stalled for up to 80.02ms)"
    );
    // The pause does not end a run early, either.
    let lost = |r| {
        let objectives = objectives(&typed);
        find_lost_objective(&objectives, &measured(r), &|_| Some(5_040)).is_some()
    };
    assert!(!lost(paused(0)) && lost(paused(200)));
}

/// Most calls were refused, which lateness of the generator can't cause.
#[test]
fn errors_count_even_under_wrong_load() {
    let mut r = record(300, 0, 0);
    r.outcomes.add(Outcome::ConnectRefused, 700);
    for _ in 0..1_000 {
        r.pacing.record(30_000_000);
    }
    let judged = judge_objectives(&usual(), &measured(r), RunValidity::OtherLoad);
    let verdicts: Vec<ObjectiveVerdict> = judged.into_iter().map(|j| j.verdict).collect();
    assert_eq!(
        verdicts,
        [ObjectiveVerdict::Missed, ObjectiveVerdict::Missed]
    );
    // An objective that is met under the wrong load proves nothing.
    let judged = judge_objectives(
        &usual(),
        &measured(record(900, 0, 0)),
        RunValidity::OtherLoad,
    );
    assert!(
        judged
            .iter()
            .all(|j| j.verdict == ObjectiveVerdict::CannotBeJudged)
    );
}

#[test]
fn local_failures_make_objectives_inconclusive() {
    let mut r = record(900, 0, 0);
    r.outcomes.add(Outcome::NoPorts, 100);
    let circumstances = RunCircumstances {
        is_short_of_resources: true,
        ..RunCircumstances::default()
    };
    let measured = ObjectiveInputs {
        circumstances,
        ..measured(r)
    };
    let judged = judge_objectives(&usual(), &measured, RunValidity::Sound);
    assert!(
        judged
            .iter()
            .all(|j| j.verdict == ObjectiveVerdict::CannotBeJudged)
    );
}

fn verdicts(typed: &[(&str, &str)], record: StageRecord) -> Vec<ObjectiveVerdict> {
    let judged = judge_objectives(&objectives(typed), &measured(record), RunValidity::Sound);
    judged.into_iter().map(|j| j.verdict).collect()
}

#[test]
fn objective_is_lost_when_unrecoverable() {
    let objectives = usual();
    let lost = |fast, slow, failed| {
        let measured = measured(record(fast, slow, failed));
        find_lost_objective(&objectives, &measured, &|_| Some(1_000)).map(|o| o.text.as_str())
    };
    assert_eq!(lost(100, 10, 0), None);
    assert_eq!(lost(100, 11, 0), Some("p99 < 10ms"));
    assert_eq!(lost(0, 0, 21), Some("errors < 2%"));
    assert_eq!(lost(0, 0, 10), None);
}

#[test]
fn mean_and_stage_objectives_become_lost() {
    let lost = |typed, fast, slow, expected: Option<u64>| {
        let objectives = objectives(&[typed]);
        let measured = measured(record(fast, slow, 0));
        find_lost_objective(&objectives, &measured, &|_| expected).is_some()
    };
    // 20 × 50 ms are 1 ms for each of 1,000 calls.
    assert!(lost(("mean", "< 900us"), 0, 20, Some(1_000)));
    assert!(!lost(("mean", "< 1100us"), 0, 20, Some(1_000)));
    assert!(!lost(("mean", "< 900us"), 0, 20, None), "no end is known");
    assert!(lost(("p99 at peak", "< 10ms"), 0, 11, Some(1_000)));
    assert!(!lost(("p99 at elsewhere", "< 10ms"), 0, 11, Some(1_000)));
    assert!(!lost(("token_gap.p99", "< 1us"), 0, 11, Some(10)));
}

#[test]
fn measured_times_are_readable() {
    assert_eq!(
        [1_500.0, 52_192_900.0, 2.5e9].map(format_ns),
        ["1.5us", "52.19ms", "2.50s"]
    );
}

#[test]
fn lost_objective_counts_as_missed() {
    let judged = judge_objectives(&usual(), &measured(record(600, 11, 0)), RunValidity::Lost);
    let verdicts: Vec<ObjectiveVerdict> = judged.into_iter().map(|j| j.verdict).collect();
    assert_eq!(verdicts, [ObjectiveVerdict::Met, ObjectiveVerdict::Missed]);
}

#[test]
fn resumed_share_requires_handshakes() {
    let judged = |full, resumed| {
        let mut r = record(10, 0, 0);
        (r.connections_full, r.connections_resumed) = (full, resumed);
        let objectives = objectives(&[("resumed", ">= 99%")]);
        let judged = judge_objectives(&objectives, &measured(r), RunValidity::OtherLoad);
        (judged[0].verdict, judged[0].measured.clone())
    };
    let expected = |verdict, text: &str| (verdict, text.to_owned());
    assert_eq!(
        judged(1, 99),
        expected(
            ObjectiveVerdict::CannotBeJudged,
            "99.0000% of 100 handshakes"
        )
    );
    assert_eq!(
        judged(2, 98),
        expected(ObjectiveVerdict::Missed, "98.0000% of 100 handshakes")
    );
    assert_eq!(
        judged(0, 0),
        expected(ObjectiveVerdict::NotSupported, "no handshake was made")
    );
}

#[test]
fn all_time_metrics_are_judged() {
    let mut r = record(1_000, 0, 0);
    for _ in 0..1_000 {
        r.lag.record(30_000);
        r.measures.record(TimeMeasure::FirstToken, 40_000_000);
        r.measures.record(TimeMeasure::TokenGap, 2_000_000);
    }
    use ObjectiveVerdict::{Met, Missed, NotSupported};
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
    // A failed call never got its first token, and has no lag.
    r.outcomes.add(Outcome::Reset, 50);
    assert_eq!(verdicts(&[("ttft.p99", "< 1h")], r.clone()), [Missed]);
    assert_eq!(verdicts(&[("lag.p99", "< 50us")], r), [Met]);
}

#[test]
fn step_objectives_judge_only_their_step() {
    let steps = "[[steps]]\nname = \"log in\"\nobjective = { errors = \"< 1%\", p99 = \"< 10ms\" }\n\
                 [[steps]]\nmethod = \"PUT\"\npath = \"/order\"\nobjective = { \"service.p50\" = \"< 10ms\" }";
    let mut spec = Spec::default();
    let section = toml::from_str(steps).expect("TOML");
    spec.call.sections.insert("http", section);
    let names = ["log in", "PUT /order", "leave"].map(str::to_owned);
    let mut whole = record(1_000, 1_000, 0);
    whole.steps = StepRecord::empty_records(&names);
    let fast = record(1_000, 0, 0);
    (whole.steps[0].response, whole.steps[0].outcomes) = (fast.response, fast.outcomes);
    let slow = record(0, 1_000, 0);
    (whole.steps[1].service, whole.steps[1].outcomes) = (slow.response, slow.outcomes);
    let objectives = spec.objectives();
    let judged = judge_objectives(&objectives, &measured(whole.clone()), RunValidity::Sound);
    let found: Vec<(&str, ObjectiveVerdict)> = judged
        .iter()
        .map(|result| (result.objective.as_str(), result.verdict))
        .collect();
    use ObjectiveVerdict::{Met, Missed, NotSupported};
    assert_eq!(
        found,
        [
            ("errors of log in < 1%", Met),
            ("p99 of log in < 10ms", Met),
            ("service.p50 of PUT /order < 10ms", Missed),
        ]
    );
    // Failures of one step are not held against another.
    whole.steps[1].outcomes.add(Outcome::Reset, 500);
    let judged = judge_objectives(&objectives, &measured(whole), RunValidity::Sound);
    assert_eq!(judged[0].verdict, Met);
    let judged = judge_objectives(&objectives, &measured(record(10, 0, 0)), RunValidity::Sound);
    assert!(judged.iter().all(|result| result.verdict == NotSupported));
}

#[test]
fn failed_users_are_judged_by_certain_failures() {
    let judged = |failed_user_count, certain, local| {
        let mut r = record(1_000, 0, certain);
        r.outcomes.add(Outcome::NoPorts, local);
        r.measures.add(Count::UsersOk, 100 - failed_user_count);
        r.measures.add(Count::UsersFailed, failed_user_count);
        let judged = judge_objectives(
            &objectives(&[("users_failed", "< 5%")]),
            &measured(r),
            RunValidity::Sound,
        );
        (judged[0].verdict, judged[0].measured.clone())
    };
    use ObjectiveVerdict::{CannotBeJudged, Met, Missed, NotSupported};
    assert_eq!(judged(5, 5, 0), (Met, "5.0000% of 100 users".to_owned()));
    assert_eq!(judged(6, 6, 0).0, Missed);
    assert_eq!(judged(6, 3, 3).0, CannotBeJudged);
    assert_eq!(
        verdicts(&[("users_failed", "< 5%")], record(10, 0, 0)),
        [NotSupported]
    );
}
