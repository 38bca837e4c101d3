//! `--telemetry`: a run as monitoring systems see it while it is in progress.

use crate::support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use serde_json::Value;
use support::{Place, SCORE, output, text};

fn python() -> PathBuf {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.peers/venv/bin/python");
    assert!(python.exists(), "no .peers/venv: run `make setup-tests`");
    python
}

fn load_arguments<'a>(url: &'a str, telemetry: &'a str, duration: &'a str) -> Vec<&'a str> {
    let mut arguments = vec!["grpc", url];
    arguments.extend(SCORE);
    arguments.extend(["--rate", "200/s", "--duration", duration, "--out", "run"]);
    arguments.extend(["--telemetry", telemetry, "--progress", "none"]);
    arguments
}

/// Prometheus's own parser reads a scrape of a run in progress.
#[test]
fn metrics_are_scraped_during_run() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "2ms"]);
    let url = server.plaintext();
    let mut run = place
        .command(&load_arguments(&url, "127.0.0.1:0", "60s"))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let mut said = BufReader::new(run.stderr.take().expect("piped"));
    let mut line = String::new();
    said.read_line(&mut line).expect("text");
    let address = line
        .split_once("metrics are at ")
        .and_then(|(_, rest)| rest.split('/').next())
        .unwrap_or_else(|| panic!("no address in {line}"));
    let due = |text: &str| {
        let due = text
            .lines()
            .find_map(|l| l.strip_prefix("plimsoll_live_due_total{"));
        due.and_then(|l| l.rsplit(' ').next()?.parse::<f64>().ok())
            .unwrap_or(0.0)
    };
    let mut last;
    loop {
        last = scrape(address);
        if due(&last) >= 400.0 {
            break;
        }
    }
    support::signal(&run, rustix::process::Signal::TERM);
    assert_eq!(support::wait(&mut run), 130);
    let script = "
import sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse
families = {f.name: f for f in parse(sys.stdin.read())}
for name, kind in [('due', 'counter'), ('in_flight', 'gauge'), ('calls', 'counter'), ('cpu_seconds', 'counter'), ('response_seconds', 'histogram'), ('lag_seconds', 'histogram')]:
    assert families['plimsoll_live_' + name].type == kind, name
counts = [s.value for s in families['plimsoll_live_response_seconds'].samples if s.name.endswith('_count')]
calls = [s.value for s in families['plimsoll_live_calls'].samples if s.labels['outcome'] == 'OK']
assert counts == calls, (counts, calls)
";
    let mut parser = Command::new(python())
        .args(["-c", script])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("python");
    let mut input = parser.stdin.take().expect("piped");
    input.write_all(last.as_bytes()).expect("given");
    drop(input);
    let ended = parser.wait_with_output().expect("ended");
    assert!(ended.status.success(), "{}\n{last}", text(&ended.stderr));
}

fn scrape(address: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("connected");
    write!(
        stream,
        "GET /metrics HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n"
    )
    .expect("asked");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    body.to_owned()
}

/// A request that a collector received: head in lower case, and body.
struct ReceivedPost {
    head: String,
    body: Vec<u8>,
}

/// Accepts this many requests with metrics and answers each with `answer`; returns them.
fn accept_posts(listener: &TcpListener, requests: usize, answer: &str) -> Vec<ReceivedPost> {
    let mut posts = Vec::new();
    let mut connection = None;
    while posts.len() < requests {
        let mut stream = connection.take().unwrap_or_else(|| {
            let (stream, _) = listener.accept().expect("a connection");
            BufReader::new(stream)
        });
        let mut head = String::new();
        if stream.read_line(&mut head).expect("text") == 0 {
            continue;
        }
        assert!(head.starts_with("POST /v1/metrics "), "{head}");
        let mut length = 0;
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).expect("text");
            let line = line.trim();
            if line.is_empty() {
                break;
            }
            let lower = line.to_ascii_lowercase();
            if let Some(n) = lower.strip_prefix("content-length: ") {
                length = n.parse().expect("a number");
            }
            head.push_str(&lower);
            head.push('\n');
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).expect("a body");
        posts.push(ReceivedPost { head, body });
        let sent = stream.get_mut().write_all(answer.as_bytes());
        sent.expect("answered");
        connection = Some(stream);
    }
    posts
}

fn bind_listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    (listener, url)
}

/// OpenTelemetry's own definition parses every request in both encodings, and the last one has all
/// calls.
#[test]
fn collector_receives_metrics_in_both_encodings() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "2ms"]);
    for (encoding, kind, parse) in [
        (
            "http/protobuf",
            "application/x-protobuf",
            "ExportMetricsServiceRequest.FromString(body)",
        ),
        (
            "http/json",
            "application/json",
            "json_format.Parse(body, ExportMetricsServiceRequest())",
        ),
    ] {
        let (listener, collector_url) = bind_listener();
        let answer = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        let taken = thread::spawn(move || accept_posts(&listener, 3, answer));
        let url = server.plaintext();
        let out = format!("run-{}", kind.len());
        let mut arguments = load_arguments(&url, &collector_url, "4s");
        for word in arguments.iter_mut().filter(|word| **word == "run") {
            *word = &out;
        }
        arguments.extend(["--telemetry-header", "X-Typed: $KEY"]);
        let mut command = place.command(&arguments);
        command
            .env("OTEL_EXPORTER_OTLP_PROTOCOL", encoding)
            .env("OTEL_EXPORTER_OTLP_HEADERS", "x-key=a%20b")
            .env("KEY", "hush");
        let ended = output(&mut command, support::MAX_WAIT);
        assert_eq!(ended.status.code(), Some(0), "{}", text(&ended.stderr));
        assert!(!text(&ended.stderr).contains("hush"));
        let script = format!(
            "
import sys, json
from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
body = sys.stdin.buffer.read()
request = {parse}
metrics = {{m.name: m for m in request.resource_metrics[0].scope_metrics[0].metrics}}
ok = [p.as_int for p in metrics['plimsoll.calls'].sum.data_points if any(a.key == 'plimsoll.outcome' and a.value.string_value == 'OK' for a in p.attributes)]
response = metrics['plimsoll.response'].exponential_histogram.data_points[0]
assert sum(response.positive.bucket_counts) == response.count == ok[0] > 0, (response.count, ok)
assert response.start_time_unix_nano < response.time_unix_nano
assert 0.002 <= response.min <= response.max and response.sum >= response.count * response.min
assert metrics['plimsoll.due'].sum.is_monotonic and metrics['plimsoll.due'].sum.aggregation_temporality == 2
assert metrics['plimsoll.cpu'].sum.data_points[0].as_double >= 0
print(json.dumps(ok[0]))
"
        );
        let mut last = 0;
        for post in taken.join().expect("a collector") {
            for field in [
                format!("content-type: {kind}"),
                "x-key: a b".into(),
                "x-typed: hush".into(),
            ] {
                assert!(
                    post.head.lines().any(|line| line == field),
                    "{field}: {}",
                    post.head
                );
            }
            let mut parser = Command::new(python())
                .args(["-c", &script])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("python");
            let mut input = parser.stdin.take().expect("piped");
            input.write_all(&post.body).expect("given");
            drop(input);
            let read = parser.wait_with_output().expect("ended");
            assert!(read.status.success(), "{encoding}: {}", text(&read.stderr));
            let ok: Value = serde_json::from_slice(&read.stdout).expect("a number");
            let ok = ok.as_u64().expect("a number");
            assert!(ok >= last, "{ok} after {last}");
            last = ok;
        }
    }
}

#[test]
fn collector_rejection_is_reported() {
    let place = Place::new();
    let server = place.serve(&["score"]);
    let (listener, collector_url) = bind_listener();
    let answer =
        "HTTP/1.1 400 Bad Request\r\nContent-Length: 24\r\n\r\n\x08\x03no such tenant: hush!\n";
    let taken = thread::spawn(move || accept_posts(&listener, 1, answer));
    let url = server.plaintext();
    let mut arguments = load_arguments(&url, &collector_url, "2s");
    arguments.extend(["--telemetry-header", "x-key: hush"]);
    let ended = place.run(&arguments);
    taken.join().expect("a collector");
    assert_eq!(ended.status.code(), Some(0), "{}", text(&ended.stderr));
    let said = support::stderr_of(&ended);
    assert!(
        said.contains("answers 400 Bad Request: no such tenant: …!"),
        "{said}"
    );
}

#[test]
fn collector_redirect_is_not_followed() {
    let place = Place::new();
    let server = place.serve(&["score"]);
    let ((listener, collector_url), (elsewhere, target)) = (bind_listener(), bind_listener());
    elsewhere.set_nonblocking(true).expect("a socket");
    let answer = format!(
        "HTTP/1.1 307 Temporary Redirect\r\nLocation: {target}/\r\nContent-Length: 0\r\n\r\n"
    );
    let taken = thread::spawn(move || accept_posts(&listener, 1, &answer));
    let url = server.plaintext();
    let ended = place.run(&load_arguments(&url, &collector_url, "2s"));
    taken.join().expect("a collector");
    let said = support::stderr_of(&ended);
    assert!(said.contains("redirects are not followed"), "{said}");
    assert!(elsewhere.accept().is_err(), "the redirect was followed");
}

/// The run waits for the final export, but not forever.
#[test]
fn silent_collector_does_not_block_exit() {
    let place = Place::new();
    let server = place.serve(&["score"]);
    let (_listener, collector_url) = bind_listener();
    let url = server.plaintext();
    let ended = place.run(&load_arguments(&url, &collector_url, "2s"));
    assert_eq!(ended.status.code(), Some(0), "{}", text(&ended.stderr));
    let said = support::stderr_of(&ended);
    let last = "did not accept the last metrics within 3 s of the end";
    assert!(said.contains(last), "{said}");
}

#[test]
fn incomplete_scrape_does_not_block_exit() {
    let place = Place::new();
    let server = place.serve(&["score"]);
    let url = server.plaintext();
    let mut run = place
        .command(&load_arguments(&url, "127.0.0.1:0", "2s"))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let mut said = BufReader::new(run.stderr.take().expect("piped"));
    let mut line = String::new();
    said.read_line(&mut line).expect("text");
    let address = line.split_once("metrics are at ").expect("an address").1;
    let address = address.split('/').next().expect("an address").to_owned();
    let halves: Vec<TcpStream> = (0..200)
        .map(|_| {
            let mut stream = TcpStream::connect(&address).expect("connected");
            stream
                .write_all(b"GET /metrics HTTP/1.1\r\nHost:")
                .expect("asked");
            stream
        })
        .collect();
    assert!(scrape(&address).ends_with("# EOF\n"));
    assert_eq!(support::wait(&mut run), 0);
    drop(halves);
}

/// An unreachable collector is reported once and does not affect the run.
#[test]
fn run_survives_unreachable_collector() {
    let place = Place::new();
    let server = place.serve(&["score"]);
    let gone = TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = format!("http://{}", gone.local_addr().expect("an address"));
    drop(gone);
    let url = server.plaintext();
    let ended = place.run(&load_arguments(&url, &address, "3s"));
    assert_eq!(ended.status.code(), Some(0), "{}", text(&ended.stderr));
    let said = text(&ended.stderr);
    assert_eq!(said.matches("--telemetry: ").count(), 1, "{said}");
    assert_eq!(place.run_json("run")["total"]["due"], 600);
}

#[test]
fn invalid_telemetry_address_fails_before_load() {
    let place = Place::new();
    for (wrong, why) in [
        ("nowhere", "--telemetry: `nowhere`: invalid socket address"),
        (
            "name.invalid:9464",
            "--telemetry: `name.invalid:9464`: failed to lookup address",
        ),
    ] {
        let ended = place.run(&load_arguments("grpc://127.0.0.1:1", wrong, "1s"));
        assert_eq!(ended.status.code(), Some(2));
        let said = text(&ended.stderr);
        assert!(said.contains(why), "{said}");
        assert!(said.contains("write HOST:PORT"), "{said}");
        assert!(!place.path("run").exists());
    }
}
