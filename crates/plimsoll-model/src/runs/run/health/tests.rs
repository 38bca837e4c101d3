use super::*;
use crate::runs::run::header::LoopKind;
use crate::runs::run::interval::IntervalRecord;

fn record(pacing_us: u64, lag_us: u64) -> StageRecord {
    let mut record = StageRecord::default();
    for _ in 0..1_000 {
        record.response.record(5_000_000);
        record.pacing.record(pacing_us * 1_000);
        record.lag.record(lag_us * 1_000);
    }
    record
}

fn judged(
    record: &StageRecord,
    is_open: bool,
    tick: Duration,
    observed: &GeneratorStats,
) -> Vec<HealthProblem> {
    let header = RunHeader {
        load_loop: is_open.then_some(LoopKind::Open),
        tick_us: Some(tick.as_micros() as u64),
        ..RunHeader::default()
    };
    find_problems(record, &header, observed, None)
}

fn kinds(problems: &[HealthProblem]) -> Vec<(ProblemKind, bool)> {
    problems.iter().map(|p| (p.kind, p.invalidates)).collect()
}

#[test]
fn late_pacing_differs_from_waiting() {
    let calm = GeneratorStats::default();
    assert_eq!(judged(&record(100, 120), true, Duration::ZERO, &calm), []);
    assert_eq!(
        kinds(&judged(&record(600, 620), true, Duration::ZERO, &calm)),
        [(ProblemKind::PacingLate, false)]
    );
    // Waiting for the next tick is planned; any longer delay is lateness.
    let tick = Duration::from_micros(550);
    assert_eq!(
        kinds(&judged(&record(600, 620), true, tick, &calm)),
        [(ProblemKind::Bundled, false)]
    );
    assert_eq!(
        kinds(&judged(&record(1_200, 1_220), true, tick, &calm))[0],
        (ProblemKind::PacingLate, false)
    );
    // A lag alone does not show what calls waited for.
    assert_eq!(judged(&record(20, 90_000), true, Duration::ZERO, &calm), []);
    let mut waited = record(20, 90_000);
    (waited.due, waited.waited_for_stream) = (1_000, 9);
    assert_eq!(judged(&waited, true, Duration::ZERO, &calm), []);
    waited.waited_for_connection = 2;
    let problems = judged(&waited, true, Duration::ZERO, &calm);
    assert_eq!(
        kinds(&problems),
        [(ProblemKind::WaitedForConnection, false)]
    );
    let text = &problems[0].text;
    assert!(
        text.starts_with(
            "9 of 1000 calls waited for a free stream and 2 for a connection to come up (send delay p99"
        ),
        "{text}"
    );
    // A late generator does not hide the wait.
    waited.pacing = record(60_000, 0).pacing;
    assert_eq!(
        kinds(&judged(&waited, true, Duration::ZERO, &calm)),
        [
            (ProblemKind::PacingLate, false),
            (ProblemKind::WaitedForConnection, false)
        ]
    );
    assert_eq!(judged(&record(600, 620), false, Duration::ZERO, &calm), []);
}

/// 300/s at a service time of 4 ms over one connection.
#[test]
fn connections_needed_follow_from_rate_and_service() {
    let mut record = record(20, 900_000);
    record.service.record_n(4_000_000, 1_000);
    (record.due, record.waited_for_stream) = (1_000, 990);
    let header = |connections, calls_at_once| RunHeader {
        load_loop: Some(LoopKind::Open),
        connections: Some(connections),
        calls_at_once,
        planned_stages: vec![PlannedStage {
            rate_from_per_s: Some(300.0),
            rate_to_per_s: Some(300.0),
            ..PlannedStage::default()
        }],
        ..RunHeader::default()
    };
    let needed = |connections, at_once, record: &StageRecord| {
        let found = ConnectionsNeeded::new(record, &header(connections, at_once));
        found.map(|found| found.needed)
    };
    assert_eq!(needed(1, Some(1), &record), Some(2));
    assert_eq!(needed(2, Some(1), &record), None);
    // The peer decides how many calls a connection carries.
    assert_eq!(needed(1, None, &record), None);
    let problems = find_problems(
        &record,
        &header(1, Some(1)),
        &GeneratorStats::default(),
        None,
    );
    assert_eq!(kinds(&problems), [(ProblemKind::TooFewConnections, false)]);
    let expected = "990 of 1000 calls waited for a free connection (send delay p99 900.20 ms): the client's one connection carries one call at a time, and the rate needs at least 2 at a service p99 of 4.00 ms (-c 2), so the wait does not count against the target";
    assert_eq!(problems[0].text, expected);
    // A target that stalls twenty connections for 500 ms once is what calls waited for.
    let mut stalled = record.clone();
    stalled.service = TimeHistogram::default();
    stalled.service.record_n(4_000_000, 980);
    stalled.service.record_n(500_000_000, 20);
    assert_eq!(needed(30, Some(1), &stalled), None);
    // A target that carries 200/s keeps each of 100 connections for 500 ms, whatever their number.
    let mut saturated = record.clone();
    saturated.service = TimeHistogram::default();
    saturated.service.record_n(4_000_000, 20);
    saturated.service.record_n(500_000_000, 980);
    assert_eq!(needed(100, Some(1), &saturated), None);
    saturated.service = TimeHistogram::default();
    saturated.service.record_n(500_000_000, 1_000);
    assert_eq!(needed(100, Some(1), &saturated), Some(151));
    record.waited_for_stream = 0;
    assert_eq!(needed(1, Some(1), &record), None);
}

#[test]
fn busy_worker_does_not_invalidate_run() {
    let mut busy = GeneratorStats::default();
    for (length_ms, ratio) in [(1_000, 0.5), (1_400, 0.99), (6, 1.0)] {
        let interval = IntervalRecord {
            length: Duration::from_millis(length_ms),
            busiest_worker_ratio: ratio,
            ..IntervalRecord::default()
        };
        busy.add(&RunHeader::default(), &interval);
    }
    assert_eq!((busy.busy_interval_count(), busy.stalled_intervals), (1, 1));
    let stalled = (ProblemKind::MachineStalled, false);
    assert_eq!(
        kinds(&judged(&record(1, 1), true, Duration::ZERO, &busy)),
        [(ProblemKind::WorkerBusy, false), stalled]
    );
    assert_eq!(
        kinds(&judged(&record(1, 1), false, Duration::ZERO, &busy)),
        [(ProblemKind::WorkerBusy, false), stalled]
    );
}

#[test]
fn only_slow_failures_are_reported() {
    let calm = GeneratorStats::default();
    let mut r = record(1, 1);
    for _ in 0..20 {
        r.failed.record(100_000);
    }
    assert_eq!(judged(&r, true, Duration::ZERO, &calm), []);
    for _ in 0..20 {
        r.failed.record(1_000_000_000);
    }
    let problems = judged(&r, true, Duration::ZERO, &calm);
    assert_eq!(kinds(&problems), [(ProblemKind::SlowFailures, false)]);
    assert!(
        problems[0]
            .text
            .ends_with("with them the p99 is 1.00 s, not 5.00 ms"),
        "{}",
        problems[0].text
    );
}

#[test]
fn unused_connections_are_reported_with_count() {
    let mut r = record(1, 1);
    r.connections_full = 10;
    assert_eq!(
        judged(&r, true, Duration::ZERO, &GeneratorStats::default()),
        []
    );
    r.connections_unused = 7;
    let problems = judged(&r, true, Duration::ZERO, &GeneratorStats::default());
    assert_eq!(kinds(&problems), [(ProblemKind::ConnectionsUnused, false)]);
    let text = &problems[0].text;
    assert!(text.starts_with("7 of 10 connections ended before they brought an answer:"));
}

#[test]
fn exhausted_local_resources_invalidate_run() {
    let mut r = record(1, 1);
    r.connect_failures.add(Outcome::NoDescriptors, 3);
    r.outcomes.add(Outcome::NoPorts, 1);
    r.connect_failures.add(Outcome::NoSocket, 2);
    let problems = judged(&r, true, Duration::ZERO, &GeneratorStats::default());
    assert_eq!(
        kinds(&problems),
        [
            (ProblemKind::NoDescriptors, true),
            (ProblemKind::NoPorts, true),
            (ProblemKind::NoSocket, true)
        ]
    );
    assert!(problems[0].text.contains("3 times: raise `ulimit -n`"));
}

/// A run of intervals in which the target answered (`o`) or refused connections (`x`), and arrivals were noticed late
/// in those that are written in capitals.
fn intervals(kinds: &str) -> (StageRecord, GeneratorStats) {
    let (mut all, mut observed) = (StageRecord::default(), GeneratorStats::default());
    for kind in kinds.chars() {
        let late_us = if kind.is_uppercase() { 600 } else { 10 };
        let mut record = record(late_us, late_us);
        if kind.eq_ignore_ascii_case(&'x') {
            record.response.clear();
            record.outcomes.add(Outcome::ConnectRefused, 1_000);
        } else {
            record.outcomes.add(Outcome::Ok, 1_000);
        }
        all.merge(&record);
        let interval = IntervalRecord {
            length: Duration::from_secs(1),
            busiest_worker_ratio: if kind.is_uppercase() { 1.0 } else { 0.1 },
            stages: vec![(0, record)],
            ..IntervalRecord::default()
        };
        observed.add(&RunHeader::default(), &interval);
    }
    (all, observed)
}

#[test]
fn lateness_during_target_outage_is_excused() {
    let found = |kinds_of: &str| {
        let (record, observed) = intervals(kinds_of);
        kinds(&judged(&record, true, Duration::ZERO, &observed))
    };
    let gone = (ProblemKind::TargetGone, false);
    let late = (ProblemKind::PacingLate, false);
    let busy = (ProblemKind::WorkerBusy, false);
    assert_eq!(found("ooo"), []);
    assert_eq!(found("oOo"), [late, busy]);
    // The target goes, and comes back, in the middle of an interval.
    assert_eq!(found("ooOXX"), [gone]);
    assert_eq!(found("ooOXXOoo"), [gone]);
    // Lateness while the target was up still counts.
    assert_eq!(found("oOoxxoo"), [late, busy, gone]);
    assert_eq!(found("ooxxooO"), [late, busy, gone]);
}

/// A load of 4 s whose generator was late for one call in fifty.
#[test]
fn late_or_missing_arrivals_invalidate_run() {
    let header = RunHeader {
        load_loop: Some(LoopKind::Open),
        planned_stages: vec![PlannedStage {
            duration_us: Some(4_000_000),
            ..PlannedStage::default()
        }],
        ..RunHeader::default()
    };
    let problems = |late_ms: u64, unsent: u64, cut_off: u64| {
        let mut r = record(1, 1);
        r.pacing.record_n(late_ms * 1_000_000, 20);
        (r.due, r.not_started) = (1_020, unsent + cut_off);
        r.cut_off.record_n(1_000_000, cut_off);
        let problems = find_problems(&r, &header, &GeneratorStats::default(), None);
        let found = problems.iter().find(|p| p.invalidates);
        found.map(|p| (p.kind, p.text.clone()))
    };
    assert_eq!(problems(390, 0, 0), None);
    let (kind, text) = problems(450, 0, 0).unwrap();
    assert_eq!(kind, ProblemKind::LoadNotDelivered);
    assert!(
        text.starts_with("the load was not delivered: calls were sent up to 450.10 ms late (p99), 11 % of the load's length of 4 s"),
        "{text}"
    );
    let (kind, text) = problems(1, 11, 0).unwrap();
    assert_eq!(kind, ProblemKind::LoadNotDelivered);
    assert!(text.contains("11 of 1020 calls were not sent"), "{text}");
    // The run ended while these calls waited for the target.
    assert_eq!(problems(1, 0, 500), None);
}
