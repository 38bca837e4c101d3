//! `--telemetry`: what a run does, as others read it while it goes on.

mod support;

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

fn load<'a>(url: &'a str, telemetry: &'a str, duration: &'a str) -> Vec<&'a str> {
    let mut arguments = vec!["grpc", url];
    arguments.extend(SCORE);
    arguments.extend(["--rate", "200/s", "--duration", duration, "--out", "run"]);
    arguments.extend(["--telemetry", telemetry, "--progress", "none"]);
    arguments
}

/// The Prometheus project's own parser reads a scrape of a run that goes on.
#[test]
fn a_run_is_scraped_while_it_goes_on() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "2ms"]);
    let url = server.plaintext();
    let mut run = place
        .command(&load(&url, "127.0.0.1:0", "60s"))
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

/// Takes requests until one says that a run has ended, and answers each; their bodies.
fn collector(listener: &TcpListener, requests: usize) -> Vec<String> {
    let mut bodies = Vec::new();
    let mut connection = None;
    while bodies.len() < requests {
        let mut stream = connection.take().unwrap_or_else(|| {
            let (stream, _) = listener.accept().expect("a connection");
            BufReader::new(stream)
        });
        let mut length = 0;
        let mut first = String::new();
        if stream.read_line(&mut first).expect("text") == 0 {
            continue;
        }
        assert!(first.starts_with("POST /v1/metrics "), "{first}");
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).expect("text");
            let line = line.trim().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(n) = line.strip_prefix("content-length: ") {
                length = n.parse().expect("a number");
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).expect("a body");
        bodies.push(text(&body));
        let answer =
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
        stream
            .get_mut()
            .write_all(answer.as_bytes())
            .expect("answered");
        connection = Some(stream);
    }
    bodies
}

/// OpenTelemetry's own definition of the message takes every post, and the last one has all calls.
#[test]
fn a_collector_is_told_of_a_run() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "2ms"]);
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let collector_url = format!("http://{}", listener.local_addr().expect("an address"));
    let taken = thread::spawn(move || collector(&listener, 3));
    let url = server.plaintext();
    place.expect(0, &load(&url, &collector_url, "4s"));
    let bodies = taken.join().expect("a collector");
    let script = "
import sys, json
from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
request = json_format.Parse(sys.argv[1], ExportMetricsServiceRequest())
metrics = {m.name: m for m in request.resource_metrics[0].scope_metrics[0].metrics}
ok = [p.as_int for p in metrics['plimsoll.calls'].sum.data_points if any(a.key == 'plimsoll.outcome' and a.value.string_value == 'OK' for a in p.attributes)]
response = metrics['plimsoll.response'].exponential_histogram.data_points[0]
assert sum(response.positive.bucket_counts) == response.count == ok[0] > 0, (response.count, ok)
assert metrics['plimsoll.due'].sum.is_monotonic
print(json.dumps(ok[0]))
";
    let mut last = 0;
    for body in &bodies {
        let read = output(
            Command::new(python()).args(["-c", script, body]),
            support::LONGEST,
        );
        assert!(read.status.success(), "{}\n{body}", text(&read.stderr));
        let ok: Value = serde_json::from_slice(&read.stdout).expect("a number");
        let ok = ok.as_u64().expect("a number");
        assert!(ok >= last, "{ok} after {last}");
        last = ok;
    }
}

/// A collector that is not there is complained of once, and costs the run nothing.
#[test]
fn a_collector_that_is_gone_does_not_end_a_run() {
    let place = Place::new();
    let server = place.serve(&["score"]);
    let gone = TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = format!("http://{}", gone.local_addr().expect("an address"));
    drop(gone);
    let url = server.plaintext();
    let ended = place.run(&load(&url, &address, "3s"));
    assert_eq!(ended.status.code(), Some(0), "{}", text(&ended.stderr));
    let said = text(&ended.stderr);
    assert_eq!(said.matches("--telemetry: ").count(), 1, "{said}");
    assert_eq!(place.run_json("run")["total"]["due"], 600);
}

#[test]
fn what_is_no_place_is_said_before_the_load() {
    let place = Place::new();
    for (wrong, why) in [
        ("nowhere", "--telemetry: `nowhere`: invalid socket address"),
        (
            "name.invalid:9464",
            "--telemetry: `name.invalid:9464`: failed to lookup address",
        ),
    ] {
        let ended = place.run(&load("grpc://127.0.0.1:1", wrong, "1s"));
        assert_eq!(ended.status.code(), Some(2));
        let said = text(&ended.stderr);
        assert!(said.contains(why), "{said}");
        assert!(said.contains("write HOST:PORT"), "{said}");
        assert!(!place.path("run").exists());
    }
}
