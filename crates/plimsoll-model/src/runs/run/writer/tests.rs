use super::*;
use crate::runs::run::{RunOrigin, header::PlannedStage};

fn header() -> RunHeader {
    RunHeader {
        planned_stages: vec![PlannedStage {
            name: "steady".to_owned(),
            ..PlannedStage::default()
        }],
        ..RunHeader::new(
            RunOrigin::Measured,
            "full",
            "0",
            jiff::Timestamp::UNIX_EPOCH,
        )
    }
}

#[test]
fn full_disk_reported_once_and_data_kept() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("run");
    let mut writer = RunWriter::create(&dir, header(), "").unwrap();
    let interval = IntervalRecord {
        length: std::time::Duration::from_secs(1),
        ..IntervalRecord::default()
    };
    writer.add_interval(&interval, &[]).unwrap();
    // Every write to /dev/full fails as on a full disk.
    writer.intervals.as_mut().unwrap().file =
        OpenOptions::new().write(true).open("/dev/full").unwrap();
    let error = writer.add_interval(&interval, &[]).unwrap_err();
    let RunError::Io { source, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(source.kind(), std::io::ErrorKind::StorageFull);
    writer.add_interval(&interval, &[]).unwrap();
    let run = writer.finish(RunEnding::complete()).unwrap();
    assert_eq!(run.state, RunState::Partial);
    assert!(run.reason.unwrap().contains("No space left"));
    assert_eq!(
        run.totals.interval_count(),
        3,
        "the figures stay whole in memory"
    );
    let loaded = Run::load(&dir).unwrap();
    assert_eq!(
        (loaded.state, loaded.totals.interval_count()),
        (RunState::Partial, 1)
    );
}

#[test]
fn totals_survive_failed_run_json_write() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("run");
    let mut writer = RunWriter::create(&dir, header(), "").unwrap();
    writer
        .add_interval(&IntervalRecord::default(), &[])
        .unwrap();
    fs::remove_dir_all(&dir).unwrap();
    let unsaved = writer.finish(RunEnding::complete()).unwrap_err();
    assert!(unsaved.error.to_string().contains("run.json"));
    assert_eq!(unsaved.run.totals.interval_count(), 1);
    assert_eq!(unsaved.run.state, RunState::Partial);
    assert!(unsaved.run.reason.unwrap().contains("run.json"));
}

#[test]
fn failed_log_write_makes_run_partial() {
    let parent = tempfile::tempdir().unwrap();
    let mut writer = RunWriter::create(&parent.path().join("run"), header(), "").unwrap();
    writer.log("whole");
    writer.log.as_mut().unwrap().file = OpenOptions::new().write(true).open("/dev/full").unwrap();
    writer.log("lost");
    writer
        .add_interval(&IntervalRecord::default(), &[])
        .unwrap();
    let run = writer.finish(RunEnding::complete()).unwrap();
    assert_eq!(run.state, RunState::Partial);
    let reason = run.reason.unwrap();
    assert!(
        reason.contains("log.txt") && reason.contains("No space left"),
        "{reason}"
    );
}

/// An interval with this many calls, and their records.
fn calls(index: u64, n: u64) -> (IntervalRecord, Vec<RequestRecord>) {
    let mut recorder = crate::Recorder::new(1).with_request_log(true);
    for number in 0..n {
        recorder.stage_mut(0).due += 1;
        recorder.record_call(&crate::CallSample {
            number,
            arrival: crate::Time(0),
            sent: crate::Time(1),
            first_byte: crate::Time(2),
            done: crate::Time(3),
            stage: 0,
            outcome: crate::Outcome::Ok,
            bytes_sent: 1,
            bytes_received: 1,
        });
    }
    let (record, requests) = IntervalRecord::from_worker(&recorder.take_interval(None));
    let interval = IntervalRecord {
        index,
        start_offset: std::time::Duration::from_secs(index),
        length: std::time::Duration::from_secs(1),
        ..record
    };
    (interval, requests)
}

fn request_lines(run: &Run) -> u64 {
    let mut lines = 0;
    run.for_each_request(|_| {
        lines += 1;
        Ok(())
    })
    .unwrap();
    lines
}

#[test]
fn killed_run_request_lines_match_calls() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("run");
    let writer = RunWriter::create(&dir, header(), "").unwrap();
    let mut writer = writer.with_request_log(true).unwrap();
    for (index, n) in [(0, 10), (1, 5)] {
        let (interval, requests) = calls(index, n);
        writer.add_interval(&interval, &requests).unwrap();
    }
    // The process has been killed, and `run.json` is unchanged.
    drop(writer);
    let run = Run::load(&dir).unwrap();
    assert_eq!((run.summary.total.ok, request_lines(&run)), (15, 15));
    // The run was killed before the second line of intervals was written.
    let path = dir.join(file_name::INTERVALS);
    let text = fs::read_to_string(&path).unwrap();
    let (first, _) = text.split_once('\n').unwrap();
    fs::write(&path, format!("{first}\n")).unwrap();
    let run = Run::load(&dir).unwrap();
    assert_eq!((run.summary.total.ok, request_lines(&run)), (10, 10));
}

#[test]
#[allow(clippy::disallowed_methods, reason = "a test waits in real time")]
fn request_lines_precede_their_interval() {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("run");
    let writer = RunWriter::create(&dir, header(), "").unwrap();
    let mut writer = writer.with_request_log(true).unwrap();
    // The socket that takes the intervals is full, so the writer blocks at a point where a process may be killed.
    let (mut to, mut from) = UnixStream::pair().unwrap();
    to.set_nonblocking(true).unwrap();
    while to.write(&[0; 4096]).is_ok() {}
    to.set_nonblocking(false).unwrap();
    writer.intervals.as_mut().unwrap().file = File::from(OwnedFd::from(to));
    let writing = std::thread::spawn(move || {
        let (interval, requests) = calls(0, 10);
        writer.add_interval(&interval, &requests).unwrap();
    });
    let path = dir.join(file_name::REQUESTS);
    let lines = || {
        let mut text = Vec::new();
        // The compressed file has no end yet.
        let _cut = zstd::Decoder::new(File::open(&path).unwrap())
            .and_then(|mut decoder| io::Read::read_to_end(&mut decoder, &mut text));
        text.iter().filter(|byte| **byte == b'\n').count()
    };
    let began = std::time::Instant::now();
    while lines() < 10 {
        assert!(began.elapsed() < std::time::Duration::from_secs(120));
        std::thread::yield_now();
    }
    let _all = io::copy(&mut from, &mut io::sink()).unwrap();
    writing.join().unwrap();
}
