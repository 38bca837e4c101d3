use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use tempfile::TempDir;

use super::*;
use crate::records::record::StageRecord;
use crate::runs::run::header::PlannedStage;
use crate::runs::run::{RunEnding, RunOrigin, RunWriter};

/// A run of one interval with ten calls that were due, in a folder of its own.
fn run() -> (TempDir, PathBuf) {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("run");
    let mut header = RunHeader::new(RunOrigin::Measured, "n", "0", jiff::Timestamp::UNIX_EPOCH);
    header.planned_stages = vec![PlannedStage::default()];
    let mut writer = RunWriter::create(&dir, header, "target = \"x\"\n").unwrap();
    let record = StageRecord {
        due: 10,
        not_started: 10,
        ..StageRecord::default()
    };
    let interval = IntervalRecord {
        length: std::time::Duration::from_secs(1),
        stages: vec![(0, record)],
        ..IntervalRecord::default()
    };
    writer.add_interval(&interval, &[]).unwrap();
    writer.finish(RunEnding::complete()).unwrap();
    (parent, dir)
}

#[track_caller]
fn refused(dir: &Path, words: &[&str]) {
    let error = Run::load(dir).unwrap_err();
    let source = std::error::Error::source(&error).map(ToString::to_string);
    let text = format!("{error} {}", source.unwrap_or_default());
    for word in words {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn symlinks_and_fifos_are_rejected() {
    for file in [file_name::RUN, file_name::PLAN, file_name::INTERVALS] {
        let (parent, dir) = run();
        let outside = parent.path().join("outside");
        fs::rename(dir.join(file), &outside).unwrap();
        symlink(&outside, dir.join(file)).unwrap();
        refused(&dir, &[file, "a link, not a file"]);
        fs::remove_file(dir.join(file)).unwrap();
        let made = std::process::Command::new("mkfifo")
            .arg(dir.join(file))
            .status();
        assert!(made.unwrap().success());
        refused(&dir, &[file, "a FIFO, not a file"]);
    }
    // A link is not a record of calls.
    let (parent, dir) = run();
    let outside = parent.path().join("outside");
    fs::write(&outside, "").unwrap();
    symlink(&outside, dir.join(file_name::REQUESTS)).unwrap();
    assert!(!Run::load(&dir).unwrap().has_requests);
}

#[test]
fn unterminated_files_hit_size_limit() {
    let (_parent, dir) = run();
    let path = dir.join(file_name::INTERVALS);
    let opened = fs::File::create(&path).unwrap();
    // A hole in the file: nothing is written, and all of it is zeros to a reader.
    opened.set_len(1 << 40).unwrap();
    refused(&dir, &["intervals.jsonl:1", "a line of more than"]);
    let opened = fs::File::create(dir.join(file_name::PLAN)).unwrap();
    opened.set_len(1 << 40).unwrap();
    fs::write(&path, "").unwrap();
    refused(&dir, &["plan.toml", "it has more than"]);
}

#[test]
fn overflowing_count_error_names_line() {
    let (_parent, dir) = run();
    let path = dir.join(file_name::INTERVALS);
    let line = fs::read_to_string(&path).unwrap();
    let huge = line.replace("\"due\":10", &format!("\"due\":{}", u64::MAX));
    fs::write(&path, format!("{line}{huge}")).unwrap();
    refused(
        &dir,
        &["intervals.jsonl:2", "`due` is 18446744073709551615"],
    );
    // Each of these counts is possible, but their sum is not.
    let large = line.replace("\"due\":10", &format!("\"due\":{}", 1_u64 << 53));
    let numbered = |index: u64| large.replace("\"index\":0", &format!("\"index\":{index}"));
    fs::write(&path, (0..300).map(numbered).collect::<String>()).unwrap();
    refused(&dir, &["intervals.jsonl:128", "add up to more than 2^60"]);
}

#[test]
fn repeated_stage_is_rejected() {
    let (_parent, dir) = run();
    let path = dir.join(file_name::INTERVALS);
    let line = fs::read_to_string(&path).unwrap();
    let (before, stages) = line.split_once("\"stages\":[").unwrap();
    let (stage, after) = stages.split_once("],\"details\"").unwrap();
    let twice = format!("{before}\"stages\":[{stage},{stage}],\"details\"{after}");
    fs::write(&path, twice).unwrap();
    refused(&dir, &["intervals.jsonl:1", "stage 0 comes after stage 0"]);
}

#[test]
fn contradictory_intervals_are_rejected() {
    let (_parent, dir) = run();
    let path = dir.join(file_name::INTERVALS);
    let line = fs::read_to_string(&path).unwrap();
    fs::write(&path, line.repeat(2)).unwrap();
    refused(
        &dir,
        &["intervals.jsonl:2", "interval 0 comes after interval 0"],
    );
    let unplanned = line.replace("\"stage\":0", "\"stage\":7");
    assert_ne!(unplanned, line);
    fs::write(&path, unplanned).unwrap();
    refused(&dir, &["intervals.jsonl:1", "stage 7 is not planned"]);
}

#[test]
fn too_many_stages_are_rejected() {
    let (_parent, dir) = run();
    let path = dir.join(file_name::RUN);
    let mut document: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    let stage = document["planned_stages"][0].clone();
    document["planned_stages"] = vec![stage; 257].into();
    fs::write(&path, document.to_string()).unwrap();
    refused(&dir, &["run.json", "257 planned stages"]);
}
