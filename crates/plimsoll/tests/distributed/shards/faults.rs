//! Failures of shards, and watching a sharded run.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::support::{self, Place, signal, text};
use super::terminal::TestTerminal;
use super::{finish, plan, rendezvous, shard, wait_for_intervals};

#[test]
fn mismatched_or_missing_shards_are_named() {
    let place = Place::new();
    let server = place.serve(&["score"]);
    plan(&place, &server, 100, 2);
    let first = shard(&place, 2, 0, &[]).spawn().unwrap();
    let other = shard(&place, 2, 1, &["--rate", "101/s"]).spawn().unwrap();
    for child in [first, other] {
        let (code, _, printed) = finish(child);
        assert_eq!(code, 1, "{printed}");
        assert!(
            printed.contains("shard 1 has another plan than shard 0"),
            "{printed}"
        );
    }
    assert!(!place.path("merged").exists(), "nothing was measured");
    fs::remove_dir_all(place.path("meeting")).unwrap();
    let alone = shard(&place, 3, 0, &["--barrier", "2s"]).spawn().unwrap();
    let (code, _, printed) = finish(alone);
    assert_eq!(code, 1, "{printed}");
    let named = "shards 1, 2 of 3 did not join within 2 s";
    assert!(printed.contains(named), "{printed}");
}

#[test]
fn terminated_shard_hands_over_partial_results() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "1ms"]);
    plan(&place, &server, 100, 60);
    let leader = shard(&place, 2, 0, &[]).spawn().unwrap();
    let other = shard(&place, 2, 1, &[]).spawn().unwrap();
    wait_for_intervals(&place, 2);
    signal(&other, Signal::TERM);
    let (code, _, printed) = finish(leader);
    assert_eq!(code, 90, "{printed}");
    assert!(
        printed.contains("shard 1 of 2: was stopped early"),
        "{printed}"
    );
    let (code, _, printed) = finish(other);
    assert_eq!(code, 90, "{printed}");
    let run = place.run_json("merged");
    assert_eq!(run["state"], "partial");
    assert_eq!(
        run["count_check"]["matches"], true,
        "{}",
        run["count_check"]
    );
    assert_eq!(run["shards"][1]["state"], "stopped");
}

#[test]
fn merge_recovers_run_with_lost_leader() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "1ms"]);
    plan(&place, &server, 100, 30);
    let mut leader = shard(&place, 2, 0, &[]).spawn().unwrap();
    let mut other = shard(&place, 2, 1, &[]).spawn().unwrap();
    wait_for_intervals(&place, 2);
    leader.kill().unwrap();
    leader.wait().unwrap();
    // The other shard continues and reports that a few times.
    let log = place.path("meeting/r1/logs/00001");
    let said = || fs::read_dir(&log).unwrap().count();
    let (before, began) = (said(), Instant::now());
    while said() < before + 4 {
        assert!(began.elapsed() < Duration::from_secs(60));
        thread::sleep(Duration::from_millis(100));
    }
    other.kill().unwrap();
    other.wait().unwrap();
    let output = place.run(&[
        "merge",
        &rendezvous(&place),
        "--run-id",
        "r1",
        "--out",
        "late",
    ]);
    let run = place.run_json("late");
    assert_eq!(run["state"], "partial", "{}", text(&output.stderr));
    assert_eq!(run["shards"][0]["state"], "lost");
    let ok = |k: usize| run["shards"][k]["ok"].as_u64().unwrap();
    assert!(ok(0) > 0 && ok(1) > ok(0), "{}", run["shards"]);
    assert_eq!(run["total"]["ok"].as_u64().unwrap(), ok(0) + ok(1));
}

#[test]
fn merge_names_reason_of_aborted_run() {
    let place = Place::new();
    let server = place.serve(&["score"]);
    plan(&place, &server, 100, 1);
    let leader = shard(&place, 2, 0, &[]).spawn().unwrap();
    let other = shard(&place, 3, 1, &[]).spawn().unwrap();
    let reason = "counts 3 shards, and shard 0 2";
    for child in [leader, other] {
        let (code, _, printed) = finish(child);
        assert_eq!(code, 1, "{printed}");
        assert!(printed.contains(reason), "{printed}");
    }
    let url = rendezvous(&place);
    let output = place.run(&["merge", &url, "--run-id", "r1", "--out", "late"]);
    assert_eq!(output.status.code(), Some(1));
    let printed = text(&output.stderr).replace('│', " ");
    let printed = printed.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(printed.contains(reason), "{printed}");
    assert!(!place.path("late").exists(), "{printed}");
}

#[test]
fn watch_shows_progress_and_stops_run() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "1ms"]);
    plan(&place, &server, 100, 60);
    let leader = shard(&place, 2, 0, &[]).spawn().unwrap();
    let other = shard(&place, 2, 1, &[]).spawn().unwrap();
    wait_for_intervals(&place, 2);
    let output = place.run(&["watch", &rendezvous(&place), "--stop"]);
    let seen = text(&output.stderr);
    assert!(seen.contains(" calls "), "{seen}");
    assert!(seen.contains("the run has ended"), "{seen}");
    for child in [leader, other] {
        let (code, _, printed) = finish(child);
        assert_eq!(code, 130, "{printed}");
    }
    assert_eq!(output.status.code(), Some(130), "{seen}");
    let run = place.run_json("merged");
    assert_eq!(run["state"], "aborted");
    assert_eq!(run["count_check"]["matches"], true);
}

#[test]
fn watch_ctrl_c_asks_before_stopping() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "1ms"]);
    plan(&place, &server, 100, 600);
    let leader = shard(&place, 2, 0, &[]).spawn().unwrap();
    let other = shard(&place, 2, 1, &[]).spawn().unwrap();
    wait_for_intervals(&place, 2);
    let url = rendezvous(&place);
    let asks = |answer: &str| {
        let mut seat = TestTerminal::start(&place.path(""), &["watch", &url]);
        seat.until("progress", |text| text.contains(" calls "));
        seat.press("\x03");
        seat.until("question", |text| text.contains("stop the run?"));
        seat.press(answer);
        seat.end()
    };
    // Any answer but yes, and another Ctrl-C, leave the run alone.
    for answer in ["n\n", "\x03"] {
        let (code, text) = asks(answer);
        assert_eq!(code, 130);
        assert!(text.contains("no longer watching"), "{text}");
        assert!(!text.contains("stopping"), "{text}");
        assert!(!place.path("meeting/r1/stop-request.json").exists());
    }
    let (code, text) = asks("y\n");
    assert_eq!(code, 130);
    assert!(text.contains("asked the run to stop"), "{text}");
    for child in [leader, other] {
        let (code, _, printed) = finish(child);
        assert_eq!(code, 130, "{printed}");
    }
    assert_eq!(place.run_json("merged")["state"], "aborted");
}

#[test]
fn missing_shard_settings_are_reported() {
    let place = Place::new();
    let server = place.serve(&["score"]);
    plan(&place, &server, 100, 1);
    for (more, variables, printed) in [
        (
            &["--rendezvous", "file:///x"][..],
            &[][..],
            "no scheduler says which shard this is",
        ),
        (
            &["--rendezvous", "file:///x"],
            &[("JOB_COMPLETION_INDEX", "1")],
            "Kubernetes (JOB_COMPLETION_INDEX=1) says which shard this is, but not how many there are",
        ),
        (&["--shards", "2"], &[], "--shards without --rendezvous"),
        (
            &[
                "--rendezvous",
                "ftp://x",
                "--shard",
                "0",
                "--shards",
                "1",
                "--run-id",
                "a",
            ],
            &[],
            "ftp:// is not a known kind of rendezvous",
        ),
    ] {
        let mut command = place.command(&["run", "plan.toml"]);
        command.args(more).envs(variables.iter().copied());
        let output = support::output(&mut command, Duration::from_secs(60));
        assert_eq!(output.status.code(), Some(2));
        let seen = support::stderr_of(&output);
        assert!(seen.contains(printed), "{seen}");
    }
    let output = place.run(&["merge", &rendezvous(&place)]);
    assert_eq!(output.status.code(), Some(1));
    assert!(support::stderr_of(&output).contains("no runs found"));
}
