//! A rendezvous with files of unknown origin: invalid ones are named, and nothing in them is
//! obeyed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{finish, plan, rendezvous, shard};
use crate::support::{Place, stderr_of};

/// Two shards write a run of a second into a folder.
fn two_shards() -> Place {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "0s"]);
    plan(&place, &server, 100, 1);
    let leader = shard(&place, 2, 0, &[]).spawn().unwrap();
    let other = shard(&place, 2, 1, &[]).spawn().unwrap();
    for child in [leader, other] {
        let (code, _, printed) = finish(child);
        // A busy machine may be too slow for it.
        assert!([0, 90].contains(&code), "{printed}");
    }
    place
}

/// Returns the parts of shard 1's log that contain intervals.
fn parts(place: &Place) -> Vec<(PathBuf, String)> {
    let log = place.path("meeting/r1/logs/00001");
    let files = fs::read_dir(log)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut parts: Vec<(PathBuf, String)> = files
        .map(|file| {
            let bytes = zstd::decode_all(fs::File::open(&file).unwrap()).unwrap();
            (file, String::from_utf8(bytes).unwrap())
        })
        .filter(|(_, text)| text.contains("\"due\":"))
        .collect();
    parts.sort();
    parts
}

fn write(file: &Path, text: &str) {
    let bytes = zstd::encode_all(text.as_bytes(), 1).unwrap();
    fs::write(file, bytes).unwrap();
}

/// Runs a merge; returns its exit code and output.
fn merge(place: &Place, out: &str) -> (Option<i32>, String) {
    let url = rendezvous(place);
    let output = place.run(&["merge", &url, "--run-id", "r1", "--out", out]);
    (output.status.code(), stderr_of(&output))
}

/// Returns `text` with another number of scheduled calls in its first interval.
fn with_due(text: &str, due: impl Fn(u64) -> u64) -> String {
    let (before, after) = text.split_once("\"due\":").unwrap();
    let digits = after.chars().take_while(char::is_ascii_digit).count();
    let number = due(after[..digits].parse().unwrap());
    format!("{before}\"due\":{number}{}", &after[digits..])
}

#[test]
fn inconsistent_shard_counts_are_reported() {
    let place = two_shards();
    let (file, text) = parts(&place).remove(0);
    for (out, due, words) in [
        (
            "wrapped",
            &(|_| u64::MAX) as &dyn Fn(u64) -> u64,
            "`due` is 18446744073709551615",
        ),
        (
            "contradicting",
            &|due| due + 1,
            "its counts contradict each other",
        ),
    ] {
        write(&file, &with_due(&text, due));
        let (code, _) = merge(&place, out);
        assert_ne!(code, Some(0));
        let run = place.run_json(out);
        assert_eq!(run["state"], "partial");
        let reason = run["reason"].as_str().unwrap();
        assert!(reason.starts_with("shard 1 of 2: "), "{reason}");
        assert!(reason.contains(words), "{reason}");
        assert_eq!(run["shards"][1]["state"], "failed");
    }
}

#[test]
fn merge_rejects_invalid_shard_count() {
    let place = two_shards();
    let head = place.path("meeting/r1/head.json");
    let text = fs::read_to_string(&head).unwrap();
    for of in ["4294967295", "100000", "0", "1", "3"] {
        let altered = text.replace("\"of\":2", &format!("\"of\":{of}"));
        assert_ne!(altered, text);
        fs::write(&head, altered).unwrap();
        let (code, printed) = merge(&place, "merged-again");
        assert_eq!(code, Some(1), "{printed}");
        assert!(
            printed.contains(&format!("counts {of} shards")),
            "{printed}"
        );
    }
}

#[test]
fn merge_reads_rendezvous_of_previous_version_only() {
    let place = two_shards();
    let head = place.path("meeting/r1/head.json");
    let text = fs::read_to_string(&head).unwrap();
    for (version, readable) in [(2, true), (1, false), (4, false)] {
        let altered = text.replacen("\"version\":3", &format!("\"version\":{version}"), 1);
        assert_ne!(altered, text);
        fs::write(&head, altered).unwrap();
        let (code, printed) = merge(&place, &format!("merged-{version}"));
        if readable {
            // The shards' arrivals have the version of the run, too.
            assert_eq!(code, Some(1), "{printed}");
            assert!(printed.contains("(version 3)"), "{printed}");
        }
        for shard in 0..2 {
            let arrival = place.path(&format!("meeting/r1/arrivals/{shard:05}.json"));
            let text = fs::read_to_string(&arrival).unwrap();
            let (_, rest) = text.split_once(',').unwrap();
            fs::write(&arrival, format!("{{\"version\":{version},{rest}")).unwrap();
        }
        let (code, printed) = merge(&place, &format!("merged-{version}"));
        if readable {
            // A busy machine may have been too slow for the load.
            assert!([Some(0), Some(90)].contains(&code), "{printed}");
            let again = place.run_json("merged-2");
            assert_eq!(
                again["total"]["due"],
                place.run_json("merged")["total"]["due"]
            );
        } else {
            assert_eq!(code, Some(1), "{printed}");
            assert!(printed.contains("another version"), "{printed}");
        }
    }
}

#[test]
fn merge_rejects_fifos_and_symlinks() {
    let place = two_shards();
    let (file, _) = parts(&place).remove(0);
    let outside = place.path("outside");
    fs::rename(&file, &outside).unwrap();
    symlink(&outside, &file).unwrap();
    let (code, printed) = merge(&place, "link");
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains("not a regular file"), "{printed}");
    fs::remove_file(&file).unwrap();
    assert!(
        Command::new("mkfifo")
            .arg(&file)
            .status()
            .unwrap()
            .success()
    );
    let (code, printed) = merge(&place, "fifo");
    assert_eq!(code, Some(1), "{printed}");
    assert!(printed.contains("not a regular file"), "{printed}");
}
