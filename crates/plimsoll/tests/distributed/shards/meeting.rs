//! A shard that fails before the barrier: no other shard waits for it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::series::rungs;
use super::support::{MAX_WAIT, Place, signal, wait};
use super::{Rendezvous, finish};

const RUN: &[&str] = &["run", "rungs-no-more.toml"];
const FIND_COMMAND: &[&str] = &["find", "rungs-no-more.toml", "--objective", "p99 < 1s"];
const LADDER_COMMAND: &[&str] = &["ladder", "rungs.toml"];
const SWEEP: &[&str] = &["sweep", "sweep.toml"];

/// Returns a place with a plan for each command. No load begins, so nothing is called.
fn place() -> Place {
    let place = Place::new();
    rungs(&place, "grpc://127.0.0.1:1", "");
    let plan = place.read("rungs.toml");
    let one =
        plan.split("[ladder]").next().unwrap().to_owned() + "duration = \"1s\"\nconnections = 6\n";
    fs::write(place.path("rungs-no-more.toml"), one).unwrap();
    let links = r#"
name = "links"
target = "https://localhost:1"
[tls]
insecure = true
[call.fetch]
[load]
clients = 6
reuse = "never"
[ladder]
size = ["1KiB", "1MiB"]
"#;
    fs::write(place.path("sweep.toml"), links).unwrap();
    fs::create_dir(place.path("full")).unwrap();
    fs::write(place.path("full/file"), "").unwrap();
    place
}

fn start(place: &Place, meeting: &Rendezvous, words: &[&str], k: u32, more: &[&str]) -> Child {
    let words = [words, more, &["--barrier", "30m"]].concat();
    meeting.shard_command(place, &words, 3, k).spawn().unwrap()
}

/// Starts three shards, of which `failing` has `more` flags and starts last: all must end and
/// report its reason.
#[track_caller]
fn assert_all_end(
    meeting: &Rendezvous,
    place: &Place,
    words: &[&str],
    failing: u32,
    more: &[&str],
    why: &str,
) {
    let others = (0..3).filter(|k| *k != failing);
    let mut shards: Vec<(u32, Child)> = others
        .map(|k| (k, start(place, meeting, words, k, &[])))
        .collect();
    let first = start(place, meeting, words, failing, more);
    shards.insert(0, (failing, first));
    let who = match failing {
        0 => "shard 0, which leads the run: ".to_owned(),
        k => format!("shard {k} of 3: "),
    };
    let mut of_first = None;
    for (k, child) in shards {
        let (code, _, printed) = finish(child);
        assert!(printed.contains(why), "{words:?} {k} {code}: {printed}");
        if k == failing {
            of_first = Some(code);
            continue;
        }
        assert!(printed.contains(&who), "{words:?} {k} {code}: {printed}");
        // If another shard fails, shard 0 ends with its own code; if shard 0 fails, all end with
        // its code.
        let wanted = if failing == 0 { of_first.unwrap() } else { 1 };
        assert_eq!(code, wanted, "{words:?} {k}: {printed}");
    }
}

#[test]
fn leader_failure_ends_all_shards() {
    for (words, more, why) in [
        (
            LADDER_COMMAND,
            &["--batch", "20"][..],
            "batches need one clock",
        ),
        (LADDER_COMMAND, &["--out", "full"], "full is not empty"),
        (SWEEP, &["--slice", "1ms"], "must be at least 100ms"),
        (
            SWEEP,
            &["--junit", "nowhere/x.xml"],
            "there is no folder for",
        ),
        (FIND_COMMAND, &["--precision", "no"], "precision"),
        (FIND_COMMAND, &["--out", "full"], "full is not empty"),
        (RUN, &["--out", "full"], "full"),
        (
            RUN,
            &["--ca", "nowhere.crt"],
            "a TLS setting for a plaintext target",
        ),
        (RUN, &["--telemetry", "127.0.0.1:none"], "telemetry"),
    ] {
        let place = place();
        assert_all_end(&Rendezvous::folder(&place), &place, words, 0, more, why);
    }
}

#[test]
fn member_failure_ends_all_shards() {
    for (words, more, why) in [
        (
            LADDER_COMMAND,
            &["--batch", "20"][..],
            "batches need one clock",
        ),
        (SWEEP, &["--slice", "1ms"], "must be at least 100ms"),
        (FIND_COMMAND, &["--precision", "no"], "precision"),
        (
            RUN,
            &["--ca", "nowhere.crt"],
            "a TLS setting for a plaintext target",
        ),
        (
            RUN,
            &["--markdown", "nowhere/x.md"],
            "there is no folder for",
        ),
    ] {
        let place = place();
        assert_all_end(&Rendezvous::folder(&place), &place, words, 1, more, why);
    }
}

#[test]
fn leader_rendezvous_reports_failures_to_all() {
    for failing in [0, 1] {
        for (words, more, why) in [
            (
                LADDER_COMMAND,
                &["--batch", "20"][..],
                "batches need one clock",
            ),
            (
                RUN,
                &["--ca", "nowhere.crt"],
                "a TLS setting for a plaintext target",
            ),
        ] {
            let place = place();
            assert_all_end(&Rendezvous::leader(), &place, words, failing, more, why);
        }
    }
}

#[track_caller]
fn wait_for_file(file: &Path) {
    let began = Instant::now();
    while !file.exists() {
        assert!(began.elapsed() < MAX_WAIT, "no {}", file.display());
        thread::sleep(Duration::from_millis(50));
    }
}

/// Two of three shards join, one of which is interrupted.
#[test]
fn interrupted_shard_is_not_awaited() {
    for (words, folder) in [(RUN, "meeting/r1"), (LADDER_COMMAND, "meeting/r1/00001")] {
        for interrupted in [0, 1] {
            let place = place();
            let meeting = Rendezvous::folder(&place);
            let shards = [0, 1].map(|k| start(&place, &meeting, words, k, &[]));
            for k in [0, 1] {
                wait_for_file(&place.path(&format!("{folder}/arrivals/0000{k}.json")));
            }
            signal(&shards[interrupted], Signal::TERM);
            let [first, second] = shards.map(finish);
            let ended = format!("{first:?} {second:?}");
            let (why, codes) = match interrupted {
                0 => ("the run was interrupted before the load began", [130, 1]),
                _ => (
                    "shard 1 of 3: it was interrupted before the load began",
                    [1, 1],
                ),
            };
            assert_eq!([first.0, second.0], codes, "{ended}");
            assert!(second.2.contains(why), "{ended}");
            assert!(interrupted == 0 || first.2.contains(why), "{ended}");
        }
    }
}

/// Without shard 0 nothing coordinates the end, so the second signal ends the run.
#[test]
fn interrupted_member_exits_on_second_signal() {
    let place = place();
    let meeting = Rendezvous::folder(&place);
    let mut other = start(&place, &meeting, RUN, 1, &[]);
    wait_for_file(&place.path("meeting/r1/arrivals/00001.json"));
    signal(&other, Signal::TERM);
    wait_for_file(&place.path("meeting/r1/arrivals/00001.withdrawn.json"));
    signal(&other, Signal::TERM);
    assert_eq!(wait(&mut other), 130);
    let (code, _, printed) = finish(start(&place, &meeting, RUN, 0, &[]));
    assert_eq!(code, 1, "{printed}");
    assert!(
        printed.contains("shard 1 of 3: it was interrupted"),
        "{printed}"
    );
}

/// A shard that reports a failure waits for the others for a minute, or until a second signal.
#[test]
fn failed_shard_exits_on_second_signal() {
    let place = place();
    for (failing, said) in [
        (0, "waiting up to"),
        (1, "to report it to shard 0, which does not answer yet"),
    ] {
        // Each at an address of its own, where no other shard joins.
        let mut shards = [(); 2].map(|()| {
            let nowhere = ["--ca", "nowhere.crt"];
            let mut shard = start(&place, &Rendezvous::leader(), RUN, failing, &nowhere);
            let mut lines = BufReader::new(shard.stderr.take().unwrap()).lines();
            assert!(lines.any(|line| line.unwrap().contains(said)), "{failing}");
            (shard, lines)
        });
        let [(left, _), (waiting, _)] = &mut shards;
        // Two different signals, because equal ones may be merged.
        signal(left, Signal::INT);
        signal(left, Signal::TERM);
        wait(left);
        assert_eq!(waiting.try_wait().unwrap(), None, "{failing}");
        waiting.kill().unwrap();
        waiting.wait().unwrap();
    }
}

#[test]
fn run_id_accepts_one_leader() {
    let place = place();
    let meeting = Rendezvous::folder(&place);
    for words in [RUN, LADDER_COMMAND] {
        let wrong = start(&place, &meeting, words, 0, &["--ca", "nowhere.crt"]);
        assert_eq!(finish(wrong).0, 2);
        let (code, _, printed) = finish(start(&place, &meeting, words, 0, &[]));
        assert_eq!(code, 2, "{printed}");
        assert!(
            printed.contains("shard 0 of this run has already joined"),
            "{printed}"
        );
        fs::remove_dir_all(place.path("meeting")).unwrap();
    }
    // Commands that only show a plan notify nobody.
    let shown = start(
        &place,
        &meeting,
        RUN,
        0,
        &["--ca", "nowhere.crt", "--dry-run"],
    );
    assert_eq!(finish(shown).0, 2);
    assert!(!place.path("meeting").exists());
}
