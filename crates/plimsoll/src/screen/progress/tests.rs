use super::*;
use plimsoll_model::Outcome;
use plimsoll_model::runs::run::UserLevels;

/// Returns the lines of intervals with these end times, ms, and numbers of calls.
fn lines(intervals: &[(u64, u64)]) -> Vec<String> {
    let progress = Progress::with_display(ProgressDisplay::Hidden, None, None);
    let mut began = Duration::ZERO;
    let lines = intervals.iter().map(|&(end_ms, calls)| {
        let end = Duration::from_millis(end_ms);
        let mut record = StageRecord::default();
        record.outcomes.add(Outcome::Ok, calls);
        let interval = IntervalRecord {
            start_offset: began,
            length: end - began,
            stages: vec![(0, record)],
            ..IntervalRecord::default()
        };
        began = end;
        progress.interval_line(&interval, false, calls, 0)
    });
    lines.collect()
}

#[test]
fn line_ends_with_users_and_waiting_users() {
    let progress = Progress::with_display(ProgressDisplay::Hidden, None, None);
    let line = |waiting| {
        let users = UserLevels {
            in_flight: 1_012,
            waiting,
            ..UserLevels::default()
        };
        let interval = IntervalRecord {
            length: Duration::from_secs(1),
            users: Some(users),
            ..IntervalRecord::default()
        };
        progress.interval_line(&interval, false, 0, 0)
    };
    assert!(line(0).ends_with("  users 1,012"), "{}", line(0));
    assert!(line(3).ends_with("  users 1,012 (3 waiting)"));
}

#[test]
fn each_call_milestone_prints_one_line() {
    let mut progress = Progress::with_display(ProgressDisplay::Hidden, None, Some(1_000));
    progress.counting_since = Some(Duration::ZERO);
    let interval = IntervalRecord {
        length: Duration::from_secs(2),
        ..IntervalRecord::default()
    };
    progress.calls = 4_000;
    assert_eq!(
        progress.milestone_lines(0, &interval),
        [
            "1,000 calls, 0.5 s elapsed",
            "2,000 calls, 1.0 s elapsed, 2,000/s",
            "3,000 calls, 1.5 s elapsed, 2,000/s",
            "4,000 calls, 2.0 s elapsed, 2,000/s",
        ]
    );
    assert!(progress.milestone_lines(4_000, &interval).is_empty());
}

/// The second interval was long, so the third is short; the last one is the remainder at the end of the load.
#[test]
fn rate_is_shown_only_for_full_intervals() {
    assert_eq!(
        lines(&[(999, 500), (2_800, 900), (3_000, 150), (3_004, 12)]),
        [
            "  1.0s calls 501/s",
            "  2.8s calls 500/s",
            "  3.0s calls 150 in 0.200 s",
            "  3.0s calls 12 in 0.004 s",
        ]
    );
}
