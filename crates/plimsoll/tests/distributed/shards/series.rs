//! Series of loads on the same shards: the trials of a search and the slices of a ladder.

use std::fs;
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use super::support::{MAX_WAIT, Place, SERVER_TLS, signal, stderr_of};
use super::{Rendezvous, assert_complete, finish, plan};

#[test]
fn search_runs_over_shards() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "1ms"]);
    plan(&place, &server, 50, 1);
    let meeting = Rendezvous::folder(&place);
    let words = [
        "find",
        "plan.toml",
        "--out",
        "search",
        "--trial",
        "1s",
        "--trials",
        "1",
        "--confirm",
        "1s",
        // The search reaches this rate three trials later and ends.
        "--most",
        "400/s",
        "--budget",
        "120s",
    ];
    let shards: Vec<Child> = (0..3)
        .map(|k| meeting.shard_command(&place, &words, 3, k).spawn().unwrap())
        .collect();
    let ended: Vec<_> = shards.into_iter().map(finish).collect();
    let search: Value = serde_json::from_str(&place.read("search/search.json")).unwrap();
    // On a busy machine the generator may have been late; all shards still end with the same code.
    let codes: Vec<i32> = ended.iter().map(|(code, ..)| *code).collect();
    assert!(codes.iter().all(|code| *code == codes[0]), "{ended:?}");
    assert!(matches!(codes[0], 0 | 90), "{ended:?}");
    let trials = search["trials"].as_array().unwrap();
    assert!(trials.len() >= 2, "{trials:?}");
    for trial in trials {
        let run = place.run_json(&format!("search/{}", trial["run"].as_str().unwrap()));
        let shards = run["shards"].as_array().unwrap();
        assert_eq!(shards.len(), 3);
        let due: u64 = shards.iter().map(|s| s["due"].as_u64().unwrap()).sum();
        assert_eq!(due, run["total"]["due"].as_u64().unwrap());
        assert!(shards.iter().all(|s| s["due"].as_u64() > Some(0)), "{run}");
    }
    // Any trial can be merged again; the search itself has nothing to merge.
    let url = &meeting.url;
    let last = format!("r1/{:05}", trials.len());
    let named = place.run(&["merge", url, "--run-id", "r1"]);
    let printed = stderr_of(&named);
    assert!(printed.contains(&last), "{printed}");
    place.run(&["merge", url, "--run-id", &last, "--out", "again"]);
    let run = trials.last().unwrap()["run"].as_str().unwrap();
    let total = place.run_json(&format!("search/{run}"))["total"].clone();
    assert_eq!(place.run_json("again")["total"], total);
}

#[test]
fn search_ends_when_shard_is_lost() {
    let place = Place::new();
    let server = place.serve(&["score"]);
    plan(&place, &server, 50, 1);
    let meeting = Rendezvous::folder(&place);
    let words = ["find", "plan.toml", "--out", "search", "--trial", "60s"];
    let start = |k| meeting.shard_command(&place, &words, 2, k).spawn().unwrap();
    let (leader, other) = (start(0), start(1));
    let began = Instant::now();
    while !place
        .path("meeting/r1/00001/logs/00001/00000001.zst")
        .exists()
    {
        assert!(began.elapsed() < MAX_WAIT, "no trial");
        thread::sleep(Duration::from_millis(50));
    }
    signal(&other, Signal::TERM);
    let (code, _, printed) = finish(leader);
    assert_eq!(code, 1, "{printed}");
    let lost = "shard 1 of 2: was stopped early";
    assert!(printed.contains(lost), "{printed}");
    let (code, _, printed) = finish(other);
    assert_eq!(code, 1, "{printed}");
}

/// Returns a plan of two rungs.
pub(super) fn rungs(place: &Place, target: &str, more: &str) {
    let plan = format!(
        r#"
name = "rungs"
target = "{target}"
seed = 7

[call.grpc]
method = "score.ScoreService/GetScore"
message = {{ json = "[0.1]" }}

[load]
rate = "200/s"

[ladder]
"load.connections" = [6, 12]
{more}
"#
    );
    fs::write(place.path("rungs.toml"), plan).unwrap();
}

/// Asserts that each slice is a run of all three shards with as many calls as one machine's.
#[track_caller]
fn assert_slices_of_three_shards(place: &Place, dir: &str, calls: Option<u64>) {
    let record: Value = serde_json::from_str(&place.read(&format!("{dir}/ladder.json"))).unwrap();
    assert_eq!(record["batches"], Value::Null);
    let rungs = record["rungs"].as_array().unwrap();
    assert_eq!(rungs.len(), 2);
    for slice in rungs.iter().flat_map(|r| r["slices"].as_array().unwrap()) {
        let run = place.run_json(&format!("{dir}/{}", slice["run"].as_str().unwrap()));
        assert_complete(&run);
        let shards = run["shards"].as_array().unwrap();
        assert_eq!(shards.len(), 3);
        let due = |of: &Value| of["due"].as_u64().unwrap();
        let sum: u64 = shards.iter().map(due).sum();
        assert_eq!(sum, due(&run["total"]));
        assert!(calls.is_none_or(|calls| sum == calls), "{sum} {calls:?}");
        assert!(shards.iter().all(|shard| due(shard) > 0), "{run}");
    }
}

fn run_three_shards(
    place: &Place,
    meeting: &Rendezvous,
    words: &[&str],
) -> Vec<(i32, String, String)> {
    let shards: Vec<Child> = (0..3)
        .map(|k| meeting.shard_command(place, words, 3, k).spawn().unwrap())
        .collect();
    shards.into_iter().map(finish).collect()
}

#[test]
fn sliced_ladder_runs_over_shards() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "0s"]);
    rungs(&place, &server.plaintext(), "");
    let meeting = Rendezvous::folder(&place);
    let words = ["ladder", "rungs.toml", "--out", "ladder"];
    let slices = [
        "--duration",
        "1s",
        "--warmup",
        "0s",
        "--slice",
        "1s",
        "--rounds",
        "2",
    ];
    let ended = run_three_shards(&place, &meeting, &[&words[..], &slices[..]].concat());
    // Two slices per rung are too few for a verdict.
    let codes: Vec<i32> = ended.iter().map(|(code, ..)| *code).collect();
    assert_eq!(codes, [codes[0]; 3], "{ended:?}");
    assert!(matches!(codes[0], 0 | 90), "{ended:?}");
    assert!(ended[0].1.contains("12"), "{ended:?}");
    assert_slices_of_three_shards(&place, "ladder", Some(200));
    // The same slice on one machine has exactly the same calls.
    place.run(
        &[
            &["ladder", "rungs.toml", "--out", "one", "-q"][..],
            &slices[..],
        ]
        .concat(),
    );
    for slice in ["rung-1/slice-01", "rung-2/slice-02"] {
        let [one, merged] = ["one", "ladder"].map(|dir| place.run_json(&format!("{dir}/{slice}")));
        for key in ["due", "not_started"] {
            assert_eq!(merged["total"][key], one["total"][key], "{key}");
        }
        assert_eq!(merged["plan_hash"], one["plan_hash"]);
    }
    // Any slice can be merged again.
    place.run(&[
        "merge",
        &meeting.url,
        "--run-id",
        "r1/00004",
        "--out",
        "again",
    ]);
    assert_eq!(place.run_json("again")["total"]["due"], 200);
}

#[test]
fn sweep_runs_over_shards() {
    let place = Place::new();
    place.certificates();
    let server = place.serve(&[&["files"], &SERVER_TLS[..]].concat());
    let plan = format!(
        r#"
name = "links"
target = "https://localhost:{}"
[tls]
ca = "certs/ca.crt"
groups = ["X25519"]
[call.fetch]
[load]
clients = 6
reuse = "never"
warmup = "300ms"
[ladder]
slice = "1s"
size = ["1KiB", "1MiB"]
"#,
        server.port
    );
    fs::write(place.path("sweep.toml"), plan).unwrap();
    let words = ["sweep", "sweep.toml", "--out", "sweep"];
    let ended = run_three_shards(&place, &Rendezvous::folder(&place), &words);
    assert!(ended.iter().all(|(code, ..)| *code == 0), "{ended:?}");
    assert_slices_of_three_shards(&place, "sweep", None);
    assert!(place.read("sweep/metrics.csv").contains("tls_client_"));
}

#[test]
fn sharded_ladder_rejects_local_options() {
    let place = Place::new();
    let meeting = Rendezvous::folder(&place);
    for (more, flags, seen) in [
        (
            "serve = [\"score\"]",
            &[][..],
            "ladder.serve with --rendezvous",
        ),
        (
            "batch = 20",
            &[],
            "ladder.batch (--batch): batches need one clock",
        ),
        (
            "via = [\"direct\", \"one sidecar\"]",
            &[],
            "ladder.via with --rendezvous",
        ),
        (
            "",
            &["--resolution", "1us"],
            "ladder.resolution (--resolution)",
        ),
    ] {
        rungs(&place, "grpc://127.0.0.1:1", more);
        let words = [&["ladder", "rungs.toml"][..], flags].concat();
        let (code, _, printed) =
            finish(meeting.shard_command(&place, &words, 2, 1).spawn().unwrap());
        assert_eq!(code, 2, "{printed}");
        assert!(printed.contains(seen), "{printed}");
    }
}
