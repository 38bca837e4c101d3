//! A load that shards share, which meet in a folder.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "tests wait in real time")]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use support::peers::{python, succeeds};
use support::{Place, SERVER_MTLS, Server, signal, stderr_of, text, wait};

/// A plan of so many calls a second.
fn plan(place: &Place, server: &Server, rate: u32, seconds: u32) {
    let plan = format!(
        r#"
name = "sharded"
target = "{}"
seed = 7
requests = true

[call.grpc]
method = "score.ScoreService/GetScore"
message = {{ json = "[0.1, {{{{seq}}}}]" }}

[load]
rate = "{rate}/s"
arrivals = "poisson"
duration = "{seconds}s"
connections = 8

[objective]
errors = "< 0.1%"
"#,
        server.plaintext()
    );
    fs::write(place.path("plan.toml"), plan).unwrap();
}

fn rendezvous(place: &Place) -> String {
    format!("file://{}", place.path("meeting").display())
}

/// Shard `shard` of `of`, with more words.
fn shard(place: &Place, of: u32, shard: u32, more: &[&str]) -> Command {
    let mut command = place.command(&["run", "plan.toml", "--out", "merged"]);
    command
        .args(["--rendezvous", &rendezvous(place), "--run-id", "r1"])
        .args(["--shards", &of.to_string(), "--shard", &shard.to_string()])
        .args(more)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// What became of a shard: exit code, stdout, stderr with the white space made even.
fn over(mut child: Child) -> (i32, String, String) {
    let code = wait(&mut child);
    let output = child.wait_with_output().unwrap();
    let even = text(&output.stderr).replace('│', " ");
    let even = even.split_whitespace().collect::<Vec<_>>().join(" ");
    (code, text(&output.stdout), even)
}

/// Waits until the run's intervals are there.
#[track_caller]
fn begun(place: &Place, intervals: usize) {
    let began = Instant::now();
    loop {
        let lines = fs::read_to_string(place.path("merged/intervals.jsonl")).unwrap_or_default();
        if lines.lines().count() >= intervals {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "no load");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Number, arrival and outcome of every call, in order, from the first arrival.
fn calls(place: &Place, run: &str) -> Vec<(u64, u64)> {
    let run = plimsoll_model::run::Run::load(&place.path(run)).unwrap();
    let mut calls = Vec::new();
    run.each_request(|r| {
        assert!(r.sample.outcome.is_ok(), "{:?}", r.sample);
        calls.push((r.sample.number, r.sample.arrival.0));
        Ok(())
    })
    .unwrap();
    calls.sort_unstable();
    let first = calls[0].1;
    calls.iter().map(|(n, at)| (*n, at - first)).collect()
}

/// On a busy machine the generator may have been late; that is not what is asked here.
#[track_caller]
fn is_over(run: &Value) {
    let over = ["complete", "invalid"].map(Value::from);
    assert!(
        over.contains(&run["state"]),
        "{}: {}",
        run["state"],
        run["reason"]
    );
    assert_eq!(run["count_check"]["matches"], true);
}

#[test]
fn four_shards_send_what_one_process_sends_and_are_one_run() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "0s"]);
    plan(&place, &server, 400, 4);
    place.run(&["run", "plan.toml", "--out", "one", "-q"]);
    let one = place.run_json("one");
    is_over(&one);
    // One of them divides its part among processes of its own.
    let shards: Vec<Child> = [&[][..], &[], &["--processes", "2"], &[]]
        .into_iter()
        .zip(0..)
        .map(|(more, k)| shard(&place, 4, k, more).spawn().unwrap())
        .collect();
    let ended: Vec<_> = shards.into_iter().map(over).collect();
    let merged = place.run_json("merged");
    is_over(&merged);
    let codes: Vec<i32> = ended.iter().map(|(code, ..)| *code).collect();
    assert!(codes.iter().all(|code| *code == codes[0]), "{ended:?}");
    assert!(codes[0] == 0 || codes[0] == 90, "{ended:?}");
    for key in ["due", "ok", "errors", "not_started"] {
        assert_eq!(merged["total"][key], one["total"][key], "{key}");
    }
    // Every call once, and when it was due does not depend on who sent it.
    assert_eq!(calls(&place, "merged"), calls(&place, "one"));
    let table = merged["shards"].as_array().unwrap();
    assert_eq!(table.len(), 4);
    let sum = |key: &str| table.iter().map(|s| s[key].as_u64().unwrap()).sum::<u64>();
    assert_eq!(sum("due"), merged["total"]["due"].as_u64().unwrap());
    assert_eq!(sum("ok"), merged["total"]["ok"].as_u64().unwrap());
    let report = &ended[0].1;
    assert!(report.contains("from 4 shards"), "{report}");
    assert!(report.contains("lag p99"), "{report}");
    // From the rendezvous, afterwards, it is the same run.
    let again = place.run(&["merge", &rendezvous(&place), "--out", "again", "--json"]);
    let again: Value = serde_json::from_slice(&again.stdout).unwrap();
    for key in [
        "total",
        "stages",
        "count_check",
        "shards",
        "state",
        "health",
    ] {
        assert_eq!(again[key], merged[key], "{key}");
    }
    assert_eq!(calls(&place, "again"), calls(&place, "one"));
    // Who comes to the same run once more is turned away.
    let (code, _, printed) = over(shard(&place, 4, 2, &[]).spawn().unwrap());
    assert_eq!(code, 1);
    assert!(
        printed.contains("shard 2 of this run has come before"),
        "{printed}"
    );
}

#[test]
fn another_plan_and_a_shard_that_does_not_come_are_named() {
    let place = Place::new();
    let server = place.serve(&["score"]);
    plan(&place, &server, 100, 2);
    let first = shard(&place, 2, 0, &[]).spawn().unwrap();
    let other = shard(&place, 2, 1, &["--rate", "101/s"]).spawn().unwrap();
    for child in [first, other] {
        let (code, _, printed) = over(child);
        assert_eq!(code, 1, "{printed}");
        assert!(
            printed.contains("shard 1 has another plan than shard 0"),
            "{printed}"
        );
    }
    assert!(!place.path("merged").exists(), "nothing was measured");
    fs::remove_dir_all(place.path("meeting")).unwrap();
    let alone = shard(&place, 3, 0, &["--barrier", "2s"]).spawn().unwrap();
    let (code, _, printed) = over(alone);
    assert_eq!(code, 1, "{printed}");
    let named = "shards 1, 2 of 3 did not come within 2 s";
    assert!(printed.contains(named), "{printed}");
}

#[test]
fn one_that_is_ordered_to_end_hands_over_and_the_run_is_partial() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "1ms"]);
    plan(&place, &server, 100, 60);
    let leader = shard(&place, 2, 0, &[]).spawn().unwrap();
    let other = shard(&place, 2, 1, &[]).spawn().unwrap();
    begun(&place, 2);
    signal(&other, Signal::TERM);
    let (code, _, printed) = over(leader);
    assert_eq!(code, 90, "{printed}");
    assert!(
        printed.contains("shard 1 of 2: was stopped before its time"),
        "{printed}"
    );
    let (code, _, printed) = over(other);
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
fn a_run_whose_leader_is_lost_is_watched_and_merged_afterwards() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "1ms"]);
    plan(&place, &server, 100, 30);
    let mut leader = shard(&place, 2, 0, &[]).spawn().unwrap();
    let mut other = shard(&place, 2, 1, &[]).spawn().unwrap();
    begun(&place, 2);
    leader.kill().unwrap();
    leader.wait().unwrap();
    // The other one goes on, and says so a few times more.
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
fn whoever_watches_sees_the_whole_and_may_end_it() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "1ms"]);
    plan(&place, &server, 100, 60);
    let leader = shard(&place, 2, 0, &[]).spawn().unwrap();
    let other = shard(&place, 2, 1, &[]).spawn().unwrap();
    begun(&place, 2);
    let output = place.run(&["watch", &rendezvous(&place), "--stop"]);
    let seen = text(&output.stderr);
    assert!(seen.contains(" calls "), "{seen}");
    assert!(seen.contains("the run has ended"), "{seen}");
    for child in [leader, other] {
        let (code, _, printed) = over(child);
        assert_eq!(code, 130, "{printed}");
    }
    assert_eq!(output.status.code(), Some(130), "{seen}");
    let run = place.run_json("merged");
    assert_eq!(run["state"], "aborted");
    assert_eq!(run["count_check"]["matches"], true);
}

#[test]
fn what_is_missing_is_asked_for() {
    let place = Place::new();
    let server = place.serve(&["score"]);
    plan(&place, &server, 100, 1);
    for (more, variables, printed) in [
        (
            &["--rendezvous", "file:///x"][..],
            &[][..],
            "no engine says which shard this is",
        ),
        (
            &["--rendezvous", "file:///x"],
            &[("JOB_COMPLETION_INDEX", "1")],
            "Kubernetes (JOB_COMPLETION_INDEX=1) says which shard this is, and not of how many",
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
            "ftp:// is no kind of rendezvous that is known",
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
    assert!(support::stderr_of(&output).contains("no run is there"));
}

/// What one process measures, and what shards did.
#[track_caller]
fn is_the_same(place: &Place, run: &str) {
    let (one, merged) = (place.run_json("one"), place.run_json(run));
    is_over(&merged);
    for key in ["due", "ok", "errors", "not_started"] {
        assert_eq!(merged["total"][key], one["total"][key], "{key}");
    }
    assert_eq!(calls(place, run), calls(place, "one"));
    assert_eq!(merged["shards"].as_array().unwrap().len(), 3);
}

/// `srun` that starts the tasks here, with the variables that Slurm gives them.
const SRUN: &str = r#"#!/bin/bash
while [[ $1 == --* ]]; do shift; done
export SLURM_STEP_NUM_TASKS=3 SLURM_STEP_ID=0
for k in 0 1 2; do SLURM_PROCID=$k "$@" & tasks+=($!); done
worst=0
for task in "${tasks[@]}"; do
    code=0
    wait "$task" || code=$?
    ((code <= worst)) || worst=$code
done
exit "$worst"
"#;

#[test]
fn a_batch_script_starts_the_shards_of_a_plan() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "0s"]);
    plan(&place, &server, 300, 3);
    place.run(&["run", "plan.toml", "--out", "one", "-q"]);
    let program = place.command(&[]).get_program().to_owned();
    let program = program.to_str().unwrap();
    let options = [
        "--shards",
        "3",
        "--per-node",
        "2",
        "--cores",
        "4",
        "--time",
        "10:00",
    ];
    let words = [&["slurm", "plan.toml", "--program", program][..], &options].concat();
    let script = place.expect(0, &words);
    for line in [
        "#SBATCH --job-name=sharded",
        "#SBATCH --ntasks=3",
        "#SBATCH --ntasks-per-node=2",
        "#SBATCH --cpus-per-task=4",
        "#SBATCH --time=10:00",
    ] {
        assert!(script.lines().any(|l| l == line), "{line}: {script}");
    }
    fs::write(place.path("load.sh"), script).unwrap();
    fs::create_dir(place.path("bin")).unwrap();
    fs::write(place.path("bin/srun"), SRUN).unwrap();
    fs::set_permissions(place.path("bin/srun"), fs::Permissions::from_mode(0o755)).unwrap();
    let mut batch = Command::new("bash");
    batch
        .arg("load.sh")
        .current_dir(place.path(""))
        .env_clear()
        .env(
            "PATH",
            format!("{}:/usr/bin:/bin", place.path("bin").display()),
        )
        .env("SLURM_JOB_ID", "77");
    let mut batch = batch
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    assert!(matches!(wait(&mut batch), 0 | 90));
    is_the_same(&place, "runs/sharded-77");
    let refused = place.run(&["slurm", "plan.toml", "--shards", "3", "--partition", "a b"]);
    assert_eq!(refused.status.code(), Some(2));
}

#[test]
fn objects_for_kubernetes_are_of_its_schema_and_their_pods_are_the_shards_of_a_plan() {
    let place = Place::new();
    place.certificates();
    let server = place.serve(&[&["score", "--delay", "0s"][..], &SERVER_MTLS].concat());
    plan(&place, &server, 300, 3);
    let rows = "data/rows.csv";
    fs::create_dir(place.path("data")).unwrap();
    let secured = place
        .read("plan.toml")
        .replace(&server.plaintext(), &server.tls());
    let tls =
        "[tls]\nca = \"certs/ca.crt\"\ncert = \"certs/client.crt\"\nkey = \"./certs/client.key\"\n";
    let varied = secured.replace("{{seq}}", "{{row.v}}");
    let whole = format!("{varied}\n# öffentlich\n{tls}\n[rows]\nfile = \"{rows}\"\n");
    // Line ends that YAML does not keep in a text.
    fs::write(place.path(rows), "v\r\n0.5\r\n0.25\r\n").unwrap();
    fs::write(place.path("plan.toml"), whole).unwrap();
    let one = place.run(&["run", "plan.toml", "--out", "one", "-q"]);
    assert!(
        matches!(one.status.code(), Some(0 | 90)),
        "{}",
        stderr_of(&one)
    );
    let words = ["kubernetes", "plan.toml", "--shards", "3"];
    let named = ["--run-id", "R_1"];
    let claim = [
        "--claim",
        "meeting",
        "--namespace",
        "load",
        "--secret",
        "store",
    ];
    let objects = place.expect(0, &[&words[..], &named, &claim].concat());
    for line in [
        "# öffentlich",
        "name: plimsoll-r-1",
        "namespace: \"load\"",
        "name: \"store\"",
    ] {
        assert!(objects.contains(line), "{line}: {objects}");
    }
    // A key is in the secret alone.
    assert!(!objects.contains("PRIVATE KEY"), "{objects}");
    fs::write(place.path("run.yaml"), &objects).unwrap();
    let program = place.command(&[]).get_program().to_owned();
    let mut pods = python(&place, "kubernetes_pods.py");
    let output = succeeds(pods.arg("run.yaml").arg(program).arg("nodes"));
    let printed = text(&output.stdout);
    let codes = printed.lines().last().unwrap();
    assert!(matches!(codes, "0 0 0" | "90 90 90"), "{printed}");
    is_the_same(&place, "nodes/claim/runs/R_1");

    // Of a bucket, the schema.
    let bucket = [
        "--rendezvous",
        "s3://loads/meeting",
        "--service-account",
        "loads",
    ];
    let objects = place.expect(0, &[&words[..], &named, &bucket].concat());
    assert!(!objects.contains("kind: ServiceAccount"), "{objects}");
    assert!(
        objects.contains("plimsoll merge s3://loads/meeting --run-id R_1"),
        "{objects}"
    );
    for (more, refused) in [
        (
            &["--rendezvous", "file:///tmp/meeting"][..],
            "a folder of each pod's own",
        ),
        (&[], "--rendezvous <URL>"),
        (&["--claim", "meeting", "--run-id", "../r"], "--run-id"),
    ] {
        let output = place.run(&[&words[..], more].concat());
        assert_eq!(output.status.code(), Some(2));
        let printed = stderr_of(&output);
        assert!(printed.contains(refused), "{printed}");
    }
    let outside = place
        .read("plan.toml")
        .replace("certs/ca.crt", "/etc/ca.crt");
    fs::write(place.path("plan.toml"), outside).unwrap();
    let output = place.run(&[&words[..], &named, &bucket].concat());
    let printed = stderr_of(&output);
    assert!(
        printed.contains("tls.ca: /etc/ca.crt is not under the current directory"),
        "{printed}"
    );
}
