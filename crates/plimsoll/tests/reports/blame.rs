//! Attribution of failures, with real processes: a generator that was stopped, and a server that
//! died. Exit code, screen, run directory, JUnit and JSON must agree.

#![allow(clippy::disallowed_methods, reason = "tests wait in real time")]

use crate::support;

use std::fs;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use support::{MAX_WAIT, Place, SCORE, signal, wait};

/// Runs a load that must meet `objective`, and acts once its first second is written.
fn start_load(place: &Place, url: &str, objective: &str) -> Child {
    let fixed = ["grpc", url, "--rate", "500/s", "--duration", "4s", "-q"];
    let kept = ["--out", "run", "--objective", objective];
    let mut command = place.command(&[&fixed[..], &kept, &SCORE].concat());
    let screen = fs::File::create(place.path("screen")).expect("writable");
    let mut child = command
        .stdout(screen)
        .stderr(Stdio::null())
        .spawn()
        .expect("plimsoll starts");
    let intervals = place.path("run/intervals.jsonl");
    let began = Instant::now();
    while fs::metadata(&intervals).map_or(0, |file| file.len()) == 0 {
        let ended = child.try_wait().expect("a child");
        assert!(ended.is_none(), "{ended:?}: {}", place.read("screen"));
        assert!(began.elapsed() < MAX_WAIT, "no interval");
        thread::sleep(Duration::from_millis(10));
    }
    child
}

/// What each document reports about the only objective and about the run.
struct Documents {
    verdict: String,
    objective: String,
    run: Value,
}

/// Asserts that the documents agree with each other and with the exit code.
#[track_caller]
fn assert_documents_agree(place: &Place, code: i32) -> Documents {
    let screen = place.read("screen");
    let json = place.expect_run(0, &["report", "run", "--json"]);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let documents = Documents {
        verdict: text(&json["verdict"]),
        objective: text(&json["objectives"][0]["verdict"]),
        run: place.run_json("run"),
    };
    let (expected, word, on_screen) = match documents.objective.as_str() {
        "met" => (0, "PASS", ": met"),
        "missed" => (99, "FAIL", ": MISSED"),
        _ => (90, "INCONCLUSIVE", ": INCONCLUSIVE"),
    };
    assert_eq!(code, expected, "{screen}");
    let verdict = match expected {
        0 => "pass",
        99 => "fail",
        _ => "invalid",
    };
    assert_eq!(documents.verdict, verdict, "{screen}");
    assert!(screen.contains(&format!("verdict: {word}")), "{screen}");
    assert!(screen.contains(on_screen), "{screen}");
    // The screen shows what the run directory holds.
    let again = place.expect(0, &["report", "run"]);
    assert!(screen.starts_with(&again), "{screen}\n{again}");
    let junit = place.expect(0, &["report", "run", "--junit", "-"]);
    let cases = ["<failure ", "<error "].map(|kind| junit.matches(kind).count());
    match expected {
        0 => assert_eq!(cases, [0, 0], "{junit}"),
        // The run itself is valid: a missed objective is proof whatever else happened.
        99 => assert_eq!(cases, [1, 0], "{junit}"),
        _ => {
            assert_eq!(cases[0], 0, "{junit}");
            assert!((1..=2).contains(&cases[1]), "{junit}");
        }
    }
    let markdown = place.expect(0, &["report", "run", "--markdown", "-"]);
    let in_words = if verdict == "invalid" {
        "inconclusive"
    } else {
        verdict
    };
    assert!(markdown.contains(&format!("| {in_words} |")), "{markdown}");
    assert_eq!(
        documents.run["count_check"]["matches"], true,
        "{}",
        documents.run
    );
    documents
}

/// The generator is stopped for far longer than the limit, and the limit is far above the time that
/// a server on a busy machine needs for all but one call in a hundred.
#[test]
fn stalled_generator_does_not_fail_target() {
    let place = Place::new();
    let server = place.serve(&["score"]);
    let url = server.plaintext();
    let mut child = start_load(&place, &url, "p99 < 500ms");
    signal(&child, Signal::STOP);
    thread::sleep(Duration::from_millis(1_500));
    signal(&child, Signal::CONT);
    let code = wait(&mut child);
    let documents = assert_documents_agree(&place, code);
    // The response times show that the limit was missed, but not because of the target.
    let p99 = documents.run["total"]["response"]["p99_us"].as_f64();
    assert!(p99.is_some_and(|us| us > 500_000.0), "{}", documents.run);
    assert_eq!(documents.objective, "cannot_be_judged", "{}", documents.run);
    assert_eq!(documents.verdict, "invalid");
}

#[test]
fn dead_server_fails_run_despite_late_generator() {
    for pause in [false, true] {
        let place = Place::new();
        let server = place.serve(&["score"]);
        let url = server.plaintext();
        let mut child = start_load(&place, &url, "errors < 1%");
        signal(&server.child, Signal::KILL);
        if pause {
            signal(&child, Signal::STOP);
            thread::sleep(Duration::from_millis(500));
            signal(&child, Signal::CONT);
        }
        let code = wait(&mut child);
        let documents = assert_documents_agree(&place, code);
        assert_eq!(documents.objective, "missed", "{}", documents.run);
        let codes = documents.run["total"]["errors_by_code"].as_array();
        let mut codes = codes.expect("a list").iter();
        assert!(
            codes.any(|e| e["code"] == "CONNECT_REFUSED"),
            "{}",
            documents.run
        );
    }
}
