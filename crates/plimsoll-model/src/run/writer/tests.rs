use super::*;
use crate::run::{Source, header::PlannedStage};

fn header() -> RunHeader {
    RunHeader {
        planned_stages: vec![PlannedStage {
            name: "steady".to_owned(),
            ..PlannedStage::default()
        }],
        ..RunHeader::new(Source::Measured, "full", "0", jiff::Timestamp::UNIX_EPOCH)
    }
}

#[test]
fn a_full_disk_is_reported_once_and_leaves_what_was_written() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("run");
    let mut writer = RunWriter::create(&dir, header(), "").unwrap();
    let interval = IntervalRecord {
        length: std::time::Duration::from_secs(1),
        ..IntervalRecord::default()
    };
    writer.interval(&interval, &[]).unwrap();
    // Every write to /dev/full fails as on a full disk.
    writer.intervals.as_mut().unwrap().file =
        OpenOptions::new().write(true).open("/dev/full").unwrap();
    let error = writer.interval(&interval, &[]).unwrap_err();
    let RunError::Io { source, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(source.kind(), std::io::ErrorKind::StorageFull);
    writer.interval(&interval, &[]).unwrap();
    let run = writer.finish(Ending::complete()).unwrap();
    assert_eq!(run.state, State::Partial);
    assert!(run.reason.unwrap().contains("No space left"));
    assert_eq!(
        run.totals.intervals(),
        3,
        "the figures stay whole in memory"
    );
    let loaded = Run::load(&dir).unwrap();
    assert_eq!(
        (loaded.state, loaded.totals.intervals()),
        (State::Partial, 1)
    );
}

#[test]
fn the_figures_outlive_a_run_json_that_can_t_be_written() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("run");
    let mut writer = RunWriter::create(&dir, header(), "").unwrap();
    writer.interval(&IntervalRecord::default(), &[]).unwrap();
    fs::remove_dir_all(&dir).unwrap();
    let unsaved = writer.finish(Ending::complete()).unwrap_err();
    assert!(unsaved.error.to_string().contains("run.json"));
    assert_eq!(unsaved.run.totals.intervals(), 1);
    assert_eq!(unsaved.run.state, State::Partial);
    assert!(unsaved.run.reason.unwrap().contains("run.json"));
}

#[test]
fn a_log_on_a_full_disk_makes_the_run_partial() {
    let parent = tempfile::tempdir().unwrap();
    let mut writer = RunWriter::create(&parent.path().join("run"), header(), "").unwrap();
    writer.log("whole");
    writer.log.as_mut().unwrap().file = OpenOptions::new().write(true).open("/dev/full").unwrap();
    writer.log("lost");
    writer.interval(&IntervalRecord::default(), &[]).unwrap();
    let run = writer.finish(Ending::complete()).unwrap();
    assert_eq!(run.state, State::Partial);
    let reason = run.reason.unwrap();
    assert!(
        reason.contains("log.txt") && reason.contains("No space left"),
        "{reason}"
    );
}
