//! A load divided over shards that meet in a folder, in a bucket, or at shard 0.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "tests wait in real time")]

mod faults;
mod hostile;
mod launchers;
mod meeting;
mod series;

use crate::support;
use crate::terminal;

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_model::records::record::TimeHistogram;
use serde_json::Value;
use support::peers::peer;
use support::ports::free_port;
use support::{Place, Server, text, wait};

/// Returns a plan with this many calls per second.
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

/// The place where shards meet.
struct Rendezvous {
    url: String,
    /// Further flags that the place requires.
    variables: Vec<(&'static str, String)>,
}

impl Rendezvous {
    fn folder(place: &Place) -> Rendezvous {
        Rendezvous {
            url: format!("file://{}", place.path("meeting").display()),
            variables: Vec::new(),
        }
    }

    /// Starts a third-party object store with a bucket.
    fn bucket(store: &Server) -> Rendezvous {
        let variables = [
            ("AWS_ENDPOINT_URL", format!("http://{}", store.address())),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ACCESS_KEY_ID", "key".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "secret".to_owned()),
        ];
        Rendezvous {
            url: "s3://loads/meeting".to_owned(),
            variables: variables.to_vec(),
        }
    }

    /// Returns a rendezvous at shard 0.
    fn leader() -> Rendezvous {
        let token = "0123456789abcdef".to_owned();
        Rendezvous {
            url: format!("tcp://127.0.0.1:{}", free_port()),
            variables: vec![("PLIMSOLL_RENDEZVOUS_TOKEN", token)],
        }
    }

    /// Adds the place's certificates.
    fn with_certificates(mut self) -> Rendezvous {
        let certs = ("PLIMSOLL_RENDEZVOUS_CERTS", "certs".to_owned());
        self.variables.push(certs);
        self
    }

    fn command(&self, place: &Place, words: &[&str]) -> Command {
        let mut command = place.command(words);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Returns the command of shard `shard` of `of`.
    fn shard_command(&self, place: &Place, words: &[&str], of: u32, shard: u32) -> Command {
        let mut command = self.command(place, words);
        command
            .args(["--rendezvous", &self.url, "--run-id", "r1"])
            .args(["--shards", &of.to_string(), "--shard", &shard.to_string()]);
        command
    }

    /// Returns the command of a shard that runs the plan, with more arguments.
    fn shard(&self, place: &Place, of: u32, shard: u32, more: &[&str]) -> Command {
        let words = [&["run", "plan.toml", "--out", "merged"], more].concat();
        self.shard_command(place, &words, of, shard)
    }
}

fn rendezvous(place: &Place) -> String {
    Rendezvous::folder(place).url
}

/// Returns the command of shard `shard` of `of` that meets in a folder, with more arguments.
fn shard(place: &Place, of: u32, shard: u32, more: &[&str]) -> Command {
    Rendezvous::folder(place).shard(place, of, shard, more)
}

/// The result of a shard: exit code, stdout, and stderr with normalised white space.
fn finish(mut child: Child) -> (i32, String, String) {
    let code = wait(&mut child);
    let output = child.wait_with_output().unwrap();
    let even = text(&output.stderr).replace('│', " ");
    let even = even.split_whitespace().collect::<Vec<_>>().join(" ");
    (code, text(&output.stdout), even)
}

/// Waits until the run has written intervals.
#[track_caller]
fn wait_for_intervals(place: &Place, intervals: usize) {
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

/// Returns number, arrival and outcome of every call, ordered by arrival.
fn calls(place: &Place, run: &str) -> Vec<(u64, u64)> {
    let run = plimsoll_model::runs::run::Run::load(&place.path(run)).unwrap();
    let mut calls = Vec::new();
    run.for_each_request(|r| {
        assert!(r.sample.outcome.is_ok(), "{:?}", r.sample);
        calls.push((r.sample.number, r.sample.arrival.0));
        Ok(())
    })
    .unwrap();
    calls.sort_unstable();
    let first = calls[0].1;
    calls.iter().map(|(n, at)| (*n, at - first)).collect()
}

/// On a busy machine the generator may have been late, which does not matter here.
#[track_caller]
fn assert_complete(run: &Value) {
    let over = ["complete", "invalid"].map(Value::from);
    assert!(
        over.contains(&run["state"]),
        "{}: {}",
        run["state"],
        run["reason"]
    );
    assert_eq!(run["count_check"]["matches"], true);
}

/// Compares four shards with one process: every call must be the same.
#[track_caller]
fn assert_four_shards_match_one(place: &Place, meeting: &Rendezvous) {
    let server = place.serve(&["score", "--delay", "0s"]);
    plan(place, &server, 400, 4);
    place.run(&["run", "plan.toml", "--out", "one", "-q"]);
    let one = place.run_json("one");
    assert_complete(&one);
    // One of them divides its part among processes.
    let shards: Vec<Child> = [&[][..], &[], &["--processes", "2"], &[]]
        .into_iter()
        .zip(0..)
        .map(|(more, k)| meeting.shard(place, 4, k, more).spawn().unwrap())
        .collect();
    let ended: Vec<_> = shards.into_iter().map(finish).collect();
    let codes: Vec<i32> = ended.iter().map(|(code, ..)| *code).collect();
    assert!(codes.iter().all(|code| *code == codes[0]), "{ended:?}");
    assert!(codes[0] == 0 || codes[0] == 90, "{ended:?}");
    let merged = place.run_json("merged");
    assert_complete(&merged);
    for key in ["due", "ok", "errors", "not_started"] {
        assert_eq!(merged["total"][key], one["total"][key], "{key}");
    }
    // Each call is made once, and its due time is independent of the shard that sends it.
    assert_eq!(calls(place, "merged"), calls(place, "one"));
    let table = merged["shards"].as_array().unwrap();
    assert_eq!(table.len(), 4);
    let sum = |key: &str| table.iter().map(|s| s[key].as_u64().unwrap()).sum::<u64>();
    assert_eq!(sum("due"), merged["total"]["due"].as_u64().unwrap());
    assert_eq!(sum("ok"), merged["total"]["ok"].as_u64().unwrap());
    assert_histogram_complete(place, "merged");
    let report = &ended[0].1;
    assert!(report.contains("from 4 shards"), "{report}");
    assert!(report.contains("send delay p99"), "{report}");
    // If connections take longer than a second to come up, all of them are reported.
    for line in ended[0].2.split("connecting: ").skip(1) {
        assert!(line.contains(" of 8 "), "{line}");
    }
}

/// Asserts that the histogram of response times has exactly the calls of all shards.
#[track_caller]
fn assert_histogram_complete(place: &Place, run: &str) {
    let run = plimsoll_model::runs::run::Run::load(&place.path(run)).unwrap();
    let mut calls = TimeHistogram::default();
    run.for_each_request(|r| {
        calls.record(r.sample.done.since(r.sample.arrival));
        Ok(())
    })
    .unwrap();
    let mut merged = TimeHistogram::default();
    for interval in run.intervals().unwrap() {
        for (_, stage) in interval.stages {
            merged.merge(&stage.response);
        }
    }
    assert_eq!(merged.histogram(), calls.histogram());
}

/// Asserts that merging the rendezvous gives the same run.
#[track_caller]
fn assert_merge_reproduces(place: &Place, meeting: &Rendezvous) {
    let words = ["merge", &meeting.url, "--out", "again", "--json"];
    let again = support::output(&mut meeting.command(place, &words), support::MAX_WAIT);
    let again = support::only_run(&serde_json::from_slice(&again.stdout).unwrap());
    let merged = place.run_json("merged");
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
    assert_eq!(calls(place, "again"), calls(place, "one"));
    // A shard that joins the finished run is rejected.
    let (code, _, printed) = finish(meeting.shard(place, 4, 2, &[]).spawn().unwrap());
    assert_eq!(code, 1);
    assert!(
        printed.contains("shard 2 of this run has already joined"),
        "{printed}"
    );
}

#[test]
fn shards_sharing_folder_match_single_process() {
    let place = Place::new();
    let meeting = Rendezvous::folder(&place);
    assert_four_shards_match_one(&place, &meeting);
    assert_merge_reproduces(&place, &meeting);
}

#[test]
fn shards_sharing_bucket_match_single_process() {
    let place = Place::new();
    let store = Server::start(&mut Command::new(peer("bin/go-s3")));
    let meeting = Rendezvous::bucket(&store);
    assert_four_shards_match_one(&place, &meeting);
    assert_merge_reproduces(&place, &meeting);
}

#[test]
fn shards_using_leader_match_single_process() {
    let place = Place::new();
    place.certificates();
    let meeting = Rendezvous::leader().with_certificates();
    // The data that shard 0 stores for the others is below this folder.
    let kept = place.path("kept");
    fs::create_dir(&kept).unwrap();
    let mut meeting = meeting;
    let folder = ("TMPDIR", kept.display().to_string());
    meeting.variables.push(folder);
    assert_four_shards_match_one(&place, &meeting);
    let left = fs::read_dir(&kept).unwrap().count();
    assert_eq!(left, 0, "what was handed over is in the run directory");
}

#[test]
fn wrong_token_or_certificate_is_rejected() {
    let place = Place::new();
    place.certificates();
    place.expect(0, &["certs", "others"]);
    let server = place.serve(&["score"]);
    plan(&place, &server, 100, 2);
    let meeting = Rendezvous::leader().with_certificates();
    let mut leader = meeting
        .shard(&place, 2, 0, &["--barrier", "120s"])
        .spawn()
        .unwrap();
    let other = |variable: (&str, &str)| {
        let mut shard = meeting.shard(&place, 2, 1, &[]);
        finish(shard.env(variable.0, variable.1).spawn().unwrap())
    };
    for (variable, words) in [
        (
            ("PLIMSOLL_RENDEZVOUS_TOKEN", "another token of some length"),
            "its token differs from shard 0's (--rendezvous-token)",
        ),
        (
            ("PLIMSOLL_RENDEZVOUS_CERTS", "others"),
            "the rendezvous can't be used: invalid peer certificate",
        ),
        (
            ("PLIMSOLL_RENDEZVOUS_TOKEN", "short"),
            "shorter than 16 characters",
        ),
        (("PLIMSOLL_RENDEZVOUS_CERTS", "nowhere"), "nowhere/ca.crt"),
    ] {
        let (code, _, printed) = other(variable);
        assert!(matches!(code, 1 | 2), "{code} {printed}");
        assert!(printed.contains(words), "{words}: {printed}");
    }
    // A client without a certificate gets no answer.
    let mut bare = meeting.command(&place, &["merge", &meeting.url, "--run-id", "r1"]);
    let bare = support::output(
        bare.env_remove("PLIMSOLL_RENDEZVOUS_CERTS"),
        support::MAX_WAIT,
    );
    assert_eq!(bare.status.code(), Some(1));
    // The run itself is not affected.
    let shard = meeting.shard(&place, 2, 1, &[]).spawn().unwrap();
    let (code, _, printed) = finish(shard);
    assert!(matches!(code, 0 | 90), "{printed}");
    assert_eq!(wait(&mut leader), code);
    assert_complete(&place.run_json("merged"));
}

#[test]
fn merge_recovers_lost_leader_folder() {
    let place = Place::new();
    let kept = place.path("kept");
    fs::create_dir(&kept).unwrap();
    let server = place.serve(&["score", "--delay", "1ms"]);
    plan(&place, &server, 100, 60);
    let mut meeting = Rendezvous::leader();
    let folder = ("TMPDIR", kept.display().to_string());
    meeting.variables.push(folder);
    let mut leader = meeting.shard(&place, 2, 0, &[]).spawn().unwrap();
    let mut other = meeting.shard(&place, 2, 1, &[]).spawn().unwrap();
    wait_for_intervals(&place, 2);
    // Another machine sees the whole run, too.
    let words = ["watch", &meeting.url, "--run-id", "r1"];
    let mut watch = meeting.command(&place, &words).spawn().unwrap();
    wait_for_intervals(&place, 4);
    leader.kill().unwrap();
    leader.wait().unwrap();
    assert_eq!(wait(&mut watch), 1);
    other.kill().unwrap();
    other.wait().unwrap();
    let mut found = fs::read_dir(&kept).unwrap();
    let folder = found.next().unwrap().unwrap().path();
    let url = format!("file://{}", folder.display());
    place.run(&["merge", &url, "--out", "late"]);
    let run = place.run_json("late");
    assert_eq!(run["state"], "partial");
    let ok = |k: usize| run["shards"][k]["ok"].as_u64().unwrap();
    assert!(ok(0) > 0 && ok(1) > 0, "{}", run["shards"]);
    assert_eq!(run["total"]["ok"].as_u64().unwrap(), ok(0) + ok(1));
}

/// An object store that redirects gets no second request, because requests are signed and carry
/// data.
#[test]
fn store_redirect_is_not_followed() {
    let place = Place::new();
    let (store, elsewhere) = (
        TcpListener::bind("127.0.0.1:0").unwrap(),
        TcpListener::bind("127.0.0.1:0").unwrap(),
    );
    elsewhere.set_nonblocking(true).unwrap();
    let address = store.local_addr().unwrap();
    let target = elsewhere.local_addr().unwrap();
    thread::spawn(move || {
        for stream in store.incoming() {
            let mut stream = stream.unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            while lines
                .next()
                .is_some_and(|line| line.is_ok_and(|line| !line.is_empty()))
            {}
            let head =
                format!("HTTP/1.1 307 Temporary Redirect\r\nlocation: http://{target}/x\r\n");
            let rest = "content-length: 0\r\nconnection: close\r\n\r\n";
            let _ = stream.write_all((head + rest).as_bytes());
        }
    });
    let mut command = place.command(&["merge", "s3://loads/meeting", "--out", "merged"]);
    command
        .env("AWS_ENDPOINT_URL", format!("http://{address}"))
        .envs([("AWS_ALLOW_HTTP", "true"), ("AWS_REGION", "us-east-1")])
        .envs([
            ("AWS_ACCESS_KEY_ID", "key"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
        ]);
    let ended = support::output(&mut command, support::MAX_WAIT);
    assert_ne!(ended.status.code(), Some(0));
    let said = support::stderr_of(&ended);
    assert!(said.contains("307"), "{said}");
    assert!(elsewhere.accept().is_err(), "the redirect was followed");
}

/// Connections without a token are closed: they block neither shards nor shard 0's descriptors.
#[test]
fn silent_connections_block_no_shards() {
    let place = Place::new();
    let server = place.serve(&["score"]);
    plan(&place, &server, 100, 2);
    let meeting = Rendezvous::leader();
    let address = meeting.url.strip_prefix("tcp://").unwrap().to_owned();
    let first = meeting.shard(&place, 2, 0, &[]).spawn().unwrap();
    let mut silent: Vec<TcpStream> = Vec::new();
    // More connections than are allowed at once.
    while silent.len() < 400 {
        match TcpStream::connect(&address) {
            Ok(stream) => silent.push(stream),
            // Shard 0 may not listen yet.
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
    let mut rest = Vec::new();
    // The oldest connection is closed, the newest is not.
    let _ = silent[0].set_read_timeout(Some(support::MAX_WAIT));
    assert!(matches!(silent[0].read_to_end(&mut rest), Ok(0) | Err(_)));
    let newest = silent.last_mut().unwrap();
    newest.set_nonblocking(true).unwrap();
    let peeked = newest.peek(&mut [0]).map_err(|e| e.kind());
    assert_eq!(peeked, Err(ErrorKind::WouldBlock));
    let second = meeting.shard(&place, 2, 1, &[]).spawn().unwrap();
    for shard in [first, second] {
        let (code, _, printed) = finish(shard);
        assert_eq!(code, 0, "{printed}");
    }
}
