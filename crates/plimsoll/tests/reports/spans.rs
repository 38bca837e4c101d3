//! `--spans`: the client's half of traces, against a service that OpenTelemetry instruments, a collector that reads
//! them by OpenTelemetry's own definition, and collectors that misbehave.

#![expect(clippy::disallowed_methods, reason = "tests wait in real time")]

use crate::support;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStdout, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::peers::python;
use support::{Place, SCORE, output, text};

/// An instrumented service and a collector, both of OpenTelemetry (`tests/peers/traced_server.py`).
struct TracedPeers {
    child: Child,
    out: BufReader<ChildStdout>,
    service: String,
    collector: String,
}

impl TracedPeers {
    fn start(place: &Place, kind: &str) -> TracedPeers {
        let mut child = python(place, "traced_server.py")
            .arg(kind)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python");
        let mut out = BufReader::new(child.stdout.take().expect("piped"));
        let mut address = || {
            let mut line = String::new();
            out.read_line(&mut line).expect("text");
            let (_, address) = line.trim().split_once(' ').expect("an address");
            address.to_owned()
        };
        let (service, collector) = (address(), address());
        TracedPeers {
            child,
            out,
            service,
            collector: format!("http://{collector}"),
        }
    }

    /// Returns what the comparison of all spans found, those in `files` included; it must have passed.
    #[track_caller]
    fn compare(mut self, files: &[&str]) -> Value {
        let mut input = self.child.stdin.take().expect("piped");
        writeln!(input, "{}", files.join("\n")).expect("it reads");
        drop(input);
        let mut said = String::new();
        self.out.read_to_string(&mut said).expect("text");
        assert_eq!(support::wait(&mut self.child), 0, "{said}");
        serde_json::from_str(&said).expect("JSON")
    }
}

impl Drop for TracedPeers {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Asserts that a run reached its end. On a busy machine the generator may have been late, which does not matter here.
#[track_caller]
fn assert_measured(place: &Place, name: &str) {
    let run = place.run_json(name);
    let state = run["state"].as_str().unwrap_or_default();
    assert!(
        ["complete", "invalid"].contains(&state),
        "{}",
        run["reason"]
    );
    assert_eq!(run["count_check"]["matches"], true, "{run}");
}

fn kept(found: &Value) -> u64 {
    ["slowest", "sample"]
        .iter()
        .filter_map(|kind| found["kept"][kind].as_u64())
        .sum()
}

/// Each exported call of gRPC is the parent of the service's own span, over processes that share the load.
#[test]
fn grpc_server_spans_hang_below_client_spans() {
    let place = Place::new();
    let peers = TracedPeers::start(&place, "grpc");
    let url = format!("grpc://{}", peers.service);
    let mut arguments = vec!["grpc", &url, "--traceparent", "--span-sample", "30"];
    arguments.extend(SCORE);
    arguments.extend(["--rate", "200/s", "--duration", "2s", "--processes", "2"]);
    arguments.extend([
        "--connections",
        "4",
        "--out",
        "run",
        "-q",
        "--spans",
        &peers.collector,
    ]);
    place.run(&arguments);
    assert_measured(&place, "run");
    let found = peers.compare(&[]);
    let calls = found["calls"].as_u64().expect("a number");
    assert_eq!(found["matched"], calls, "{found}");
    assert_eq!(kept(&found), calls);
    // The slowest may be in the sample as well.
    assert!((30..=40).contains(&calls), "{found}");
    assert_eq!(found["kept"]["slowest"], 10, "{found}");
    assert_eq!(found["phases"]["request"], calls, "{found}");
    assert_eq!(found["names"][0], "score.ScoreService/GetScore");
    let attributes = &found["attributes"];
    for (key, value) in [
        ("rpc.system", Value::from("grpc")),
        ("rpc.service", "score.ScoreService".into()),
        ("rpc.method", "GetScore".into()),
        ("server.address", "127.0.0.1".into()),
        ("plimsoll.outcome", "OK".into()),
    ] {
        assert_eq!(attributes[key], value, "{found}");
    }
    assert_eq!(found["resources"][0]["service.name"], "plimsoll");
}

/// The same over HTTP, with a connection for each call, from a file and in OTLP's JSON.
#[test]
fn http_spans_have_phases_of_own_connections() {
    let place = Place::new();
    let peers = TracedPeers::start(&place, "http");
    let url = format!("http://{}/page?part={{{{seq}}}}", peers.service);
    let load = [
        "--cold",
        "--rate",
        "50/s",
        "--duration",
        "2s",
        "--out",
        "run",
    ];
    let mut arguments = vec!["http", &url, "--traceparent", "--span-sample", "20", "-q"];
    arguments.extend(load);
    place.run(&arguments);
    assert_measured(&place, "run");
    place.expect(0, &["report", "run", "--spans", "spans.jsonl"]);
    let lines = place.read("spans.jsonl");
    let mut command = place.command(&["report", "run", "--spans", "-"]);
    let printed = output(&mut command, support::MAX_WAIT);
    assert_eq!(text(&printed.stdout), lines);
    let path = place.path("spans.jsonl");
    let found = peers.compare(&[&path.to_string_lossy()]);
    let calls = found["calls"].as_u64().expect("a number");
    assert_eq!(found["matched"], calls, "{found}");
    assert!((20..=30).contains(&calls), "{found}");
    for phase in ["connect", "tcp", "request", "receive"] {
        assert_eq!(found["phases"][phase], calls, "{phase}: {found}");
    }
    assert_eq!(found["names"][0], "GET");
    assert_eq!(found["attributes"]["http.request.method"], "GET");
    assert_eq!(found["attributes"]["url.template"], "/page?part={{seq}}");
}

/// Failed calls are errors, with the status of the answer.
#[test]
fn failed_calls_are_errors_with_their_status() {
    let place = Place::new();
    let peers = TracedPeers::start(&place, "http");
    let url = format!("http://{}/broken", peers.service);
    let mut arguments = vec!["http", &url, "--traceparent", "--cold", "--clients", "2"];
    arguments.extend(["--calls", "20", "--out", "run", "-q"]);
    let ended = place.run(&arguments);
    assert_eq!(ended.status.code(), Some(1), "{}", text(&ended.stderr));
    let mut command = place.command(&["report", "run", "--spans", &peers.collector]);
    command.env("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json");
    let ended = output(&mut command, support::MAX_WAIT);
    let said = support::stderr_of(&ended);
    assert_eq!(ended.status.code(), Some(0), "{said}");
    let found = peers.compare(&[]);
    let spans = &found["spans"];
    let expected = format!("{spans} of {spans} spans accepted by the collector");
    assert!(said.contains(&expected), "{said}");
    assert_eq!(
        (&found["calls"], &found["errors"]),
        (&10.into(), &10.into())
    );
    assert_eq!(found["matched"], 10, "{found}");
    assert_eq!(found["attributes"]["error.type"], "HTTP_503");
    assert_eq!(found["attributes"]["http.response.status_code"], 503);
    let url = &found["attributes"]["url.full"];
    assert!(
        url.as_str().is_some_and(|url| url.ends_with("/broken")),
        "{url}"
    );
}

/// The sample depends on the seed, and not on the number of processes or shards that choose it.
#[test]
fn sample_is_same_over_processes_and_shards() {
    let place = Place::new();
    let server = place.serve(&["score"]);
    let url = server.plaintext();
    let numbers = |name: &str| {
        let lines = place.expect(0, &["report", name, "--spans", "-"]);
        let mut numbers = Vec::new();
        for line in lines.lines() {
            let request: Value = serde_json::from_str(line).expect("JSON");
            let spans = &request["resourceSpans"][0]["scopeSpans"][0]["spans"];
            for span in spans.as_array().expect("spans") {
                let of = |key: &str| {
                    let all = span["attributes"].as_array().into_iter().flatten();
                    let found = all.into_iter().find(|attribute| attribute["key"] == key);
                    found.map(|attribute| attribute["value"].clone())
                };
                if let Some(number) = of("plimsoll.call") {
                    numbers.push(number["intValue"].as_str().expect("text").to_owned());
                }
            }
        }
        numbers.sort();
        numbers
    };
    // The slowest are other calls in each run, so the sample is read from the intervals.
    let sampled = |name: &str| {
        let mut ranks: Vec<(u64, u64)> = Vec::new();
        for line in place.read(&format!("{name}/intervals.jsonl")).lines() {
            let interval: Value = serde_json::from_str(line).expect("JSON");
            for stage in interval["stages"].as_array().expect("stages") {
                for call in stage["sampled"].as_array().into_iter().flatten() {
                    let number = |key: &str| call[key].as_u64().expect("a number");
                    ranks.push((number("rank"), number("number")));
                }
            }
        }
        ranks.sort_unstable();
        ranks.truncate(25);
        ranks
    };
    let plan = format!(
        "name = \"sample\"\ntarget = \"{url}\"\ntraceparent = true\nspan_sample = 25\n\
         [call.grpc]\nmethod = \"score.ScoreService/GetScore\"\nmessage = {{ json = \"[0.1]\" }}\n\
         [load]\nrate = \"300/s\"\nduration = \"2s\"\nconnections = 4\n"
    );
    fs::write(place.path("plan.toml"), plan).expect("writable");
    let load = |name: &str, seed: &str, more: &[&str]| {
        let fixed = ["run", "plan.toml", "--seed", seed, "--out", name, "-q"];
        let mut command = place.command(&[&fixed, more].concat());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    for (name, seed, more) in [
        ("one", "7", &[][..]),
        ("two", "7", &["--processes", "2", "--workers", "2"]),
        ("other", "8", &[]),
    ] {
        let mut child = load(name, seed, more).spawn().expect("started");
        support::wait(&mut child);
        assert_measured(&place, name);
    }
    let meeting = format!("file://{}", place.path("meeting").display());
    let shards: Vec<Child> = ["0", "1"]
        .map(|shard| {
            let meeting = ["--rendezvous", &meeting, "--run-id", "r1", "--shards", "2"];
            let mut command = load("shards", "7", &[&meeting[..], &["--shard", shard]].concat());
            command.spawn().expect("started")
        })
        .into();
    for mut shard in shards {
        support::wait(&mut shard);
    }
    assert_measured(&place, "shards");
    let one = sampled("one");
    assert_eq!(one.len(), 25);
    assert_eq!(sampled("two"), one);
    assert_eq!(sampled("shards"), one);
    assert_ne!(sampled("other"), one);
    for name in ["one", "two", "shards"] {
        let exported = numbers(name);
        let in_sample = one.iter().map(|(_, number)| number.to_string());
        assert!(
            in_sample
                .into_iter()
                .all(|number| exported.contains(&number))
        );
        assert!((25..=35).contains(&exported.len()), "{}", exported.len());
    }
}

/// Accepts a connection and reads one request; returns the connection.
fn accept_post(listener: &TcpListener) -> TcpStream {
    let (stream, _) = listener.accept().expect("a connection");
    let mut reader = BufReader::new(stream.try_clone().expect("a socket"));
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("text");
        let line = line.trim().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(n) = line.strip_prefix("content-length: ") {
            length = n.parse().expect("a number");
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("a body");
    stream
}

/// A collector's refusal, redirect, silence or endless answer is reported, changes no verdict, and does not hold the
/// end of the run.
#[test]
fn bad_collector_changes_no_verdict() {
    let place = Place::new();
    let server = place.serve(&["score"]);
    let url = server.plaintext();
    let partial =
        "{\"partialSuccess\":{\"rejectedSpans\":\"2\",\"errorMessage\":\"too old: hush\"}}";
    let partial = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{partial}",
        partial.len()
    );
    for (answer, is_endless, expected) in [
        (partial.as_str(), false, "2 spans rejected: too old: …"),
        (
            "HTTP/1.1 307 Temporary Redirect\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
            false,
            "redirects are not followed, give the URL that takes spans",
        ),
        (
            "HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno",
            false,
            "answers 401 Unauthorized: no",
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 14\r\n\r\n<html>log in!!",
            false,
            "answers 200 OK with text/html, which is no answer of a collector: <html>log in!!",
        ),
        ("", true, "did not accept all spans within 4 s"),
        ("HTTP/1.1 200 OK\r\nX-Long: ", true, "--spans: "),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let collector = format!("http://{}", listener.local_addr().expect("an address"));
        let answer = answer.to_owned();
        let collecting = thread::spawn(move || {
            let mut stream = accept_post(&listener);
            let end = Instant::now() + support::MAX_WAIT;
            let _ = stream.write_all(answer.as_bytes());
            // An endless answer trickles until the client has had enough.
            while is_endless && Instant::now() < end {
                let more: &[u8] = if answer.is_empty() { b"" } else { b"x" };
                let mut buffer = [0];
                let _ = stream.set_read_timeout(Some(Duration::from_millis(20)));
                let is_closed = matches!(stream.read(&mut buffer), Ok(0));
                if is_closed || stream.write_all(more).is_err() {
                    break;
                }
            }
        });
        let _ = fs::remove_dir_all(place.path("run"));
        let mut arguments = vec!["grpc", &url, "--traceparent", "--clients", "2"];
        arguments.extend(SCORE);
        arguments.extend(["--calls", "50", "--out", "run", "--spans", &collector]);
        arguments.extend(["--progress", "none"]);
        let mut command = place.command(&arguments);
        command
            .env("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json")
            .env("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "x-key=hush");
        let ended = output(&mut command, support::MAX_WAIT);
        let said = support::stderr_of(&ended);
        assert_eq!(ended.status.code(), Some(0), "{said}");
        assert!(said.contains(expected), "{expected}: {said}");
        assert!(!said.contains("hush"), "{said}");
        assert_eq!(place.run_json("run")["state"], "complete", "{said}");
        // `report` was asked for nothing else, so it fails.
        collecting.join().expect("a collector");
    }
    let gone = TcpListener::bind("127.0.0.1:0").expect("bound");
    let collector = format!("http://{}", gone.local_addr().expect("an address"));
    drop(gone);
    let ended = place.run(&["report", "run", "--spans", &collector]);
    assert_ne!(ended.status.code(), Some(0), "{}", text(&ended.stderr));
}

/// What can't be exported is refused before the load.
#[test]
fn impossible_export_is_refused_before_load() {
    let place = Place::new();
    for (flags, expected) in [
        (
            &["--spans", "spans.jsonl"][..],
            "--spans: only calls that carry trace ids have spans",
        ),
        (
            &["--span-sample", "5"],
            "`--span-sample`: needs `--traceparent`: only calls",
        ),
        (
            &["--traceparent", "--span-sample", "1001"],
            "a sample has at most 1000",
        ),
        (
            &["--traceparent", "--spans", "ftp://x"],
            "--spans: not the URL of a collector: `ftp://`",
        ),
        (
            &["--traceparent", "--spans", "no/folder"],
            "--spans: there is no folder",
        ),
    ] {
        let mut arguments = vec!["grpc", "grpc://127.0.0.1:1", "--out", "run"];
        arguments.extend(["--clients", "1", "--calls", "1"]);
        arguments.extend(SCORE);
        arguments.extend(flags);
        let ended = place.run(&arguments);
        let said = support::stderr_of(&ended);
        assert_eq!(ended.status.code(), Some(2), "{said}");
        assert!(said.contains(expected), "{expected}: {said}");
        assert!(!place.path("run").exists());
    }
    let ended = place.run(&["find", "plan.toml", "--spans", "spans.jsonl"]);
    let said = support::stderr_of(&ended);
    assert_eq!(ended.status.code(), Some(2), "{said}");
    assert!(
        said.contains("--spans: a search or a ladder has several runs"),
        "{said}"
    );
}
