//! Synthetic runs for tests.

use std::time::Duration;

use plimsoll_model::Outcome;
use plimsoll_model::records::record::StageRecord;
use plimsoll_model::runs::run::header::PlannedStage;
use plimsoll_model::runs::run::{IntervalRecord, Run, RunEnding, RunHeader, RunOrigin, RunWriter};

/// Returns a run of three seconds at 500/s, of which one call a second fails, and its directory.
pub(crate) fn run(name: &str) -> (tempfile::TempDir, Run) {
    run_with(name, Outcome::Reset, 0)
}

/// The same, but one call a second ends with `outcome`, and `not_started` calls are never sent.
pub(crate) fn run_with(name: &str, outcome: Outcome, not_started: u64) -> (tempfile::TempDir, Run) {
    let dir = tempfile::tempdir().expect("a directory");
    let header = RunHeader {
        target: Some("grpc://127.0.0.1:1".to_owned()),
        protocol: Some("grpc".to_owned()),
        call: Some("a.B/C".to_owned()),
        connections: Some(1),
        seed: Some(1),
        planned_stages: vec![PlannedStage {
            name: "steady".to_owned(),
            warmup: false,
            duration_us: Some(3_000_000),
            rate_from_per_s: Some(500.0),
            rate_to_per_s: Some(500.0),
        }],
        ..RunHeader::new(
            RunOrigin::Measured,
            name,
            "0",
            "2026-01-01T00:00:00Z".parse().expect("a time"),
        )
    };
    let plan = "[objective]\n\"p99\" = \"< 1ms\"\n";
    let mut writer = RunWriter::create(&dir.path().join("run"), header, plan).expect("a run");
    for index in 0..3 {
        let mut record = StageRecord {
            due: 500 + not_started,
            not_started,
            ..StageRecord::default()
        };
        for call in 0..499 {
            record.response.record(2_000_000 + call * 10_000);
            record.service.record(1_900_000 + call * 10_000);
        }
        record.outcomes.add(Outcome::Ok, 499);
        record.outcomes.add(outcome, 1);
        let interval = IntervalRecord {
            index,
            start_offset: Duration::from_secs(index),
            length: Duration::from_secs(1),
            stages: vec![(0, record)],
            ..IntervalRecord::default()
        };
        writer.add_interval(&interval, &[]).expect("written");
    }
    let run = writer.finish(RunEnding::complete()).expect("ended");
    (dir, run)
}
