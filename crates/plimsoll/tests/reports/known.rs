//! `plimsoll serve known` and `plimsoll assay`: a server with known delays, and the accuracy of
//! runs against it.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::support;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::Value;
use support::{Place, SERVER_TLS, Server, stderr_of};

const BIMODAL: &str = "law = 'bimodal'\nfast = '2ms'\nslow = '20ms'\nslow_share = 0.1\n";

/// Starts a server with `law`, whose envelope file is named after it.
fn serve(place: &Place, name: &str, law: &str, more: &[&str]) -> Server {
    let (file, envelope) = (format!("{name}.toml"), format!("{name}.jsonl"));
    fs::write(place.path(&file), law).unwrap();
    let flags = ["known", "--law", &file, "--envelope", &envelope];
    place.serve(&[&flags[..], more].concat())
}

/// Makes 60 calls in a third of a second, 20 of them as warm-up.
fn load(place: &Place, url: &str, out: &str, more: &[&str]) {
    let flags = [
        "--rate",
        "200/s",
        "--warmup",
        "100ms",
        "--duration",
        "200ms",
    ];
    let flags = [&["http", url, "--out", out, "-q"], &flags[..], more].concat();
    place.expect(0, &flags);
}

/// Stops the server, which opens its envelope; returns its counts.
fn stop(server: Server) -> String {
    let (code, printed) = server.stop();
    assert_eq!(code, 0, "{printed}");
    printed
}

/// Runs an assay of a run, which may fail on a busy machine.
fn run_assay(place: &Place, run: &str, envelope: &str) -> Value {
    let output = place.run(&["assay", run, envelope, "--json"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let holds = document["intervals_that_hold"] == document["intervals"];
    let code = if holds { 0 } else { 99 };
    assert_eq!(output.status.code(), Some(code), "{document}");
    document
}

#[test]
fn http_runs_are_compared_with_truth() {
    let place = Place::new();
    place.certificates();
    for (name, scheme, tls, client) in [
        ("plain1", "http", &[][..], &["--connections", "8"][..]),
        ("plain2", "http", &[], &["--http-version", "2"]),
        (
            "tls2",
            "https",
            &SERVER_TLS,
            &["--http-version", "2", "--ca", "certs/ca.crt"],
        ),
    ] {
        let server = serve(&place, name, BIMODAL, tls);
        let url = format!("{scheme}://localhost:{}/", server.port);
        load(&place, &url, &format!("run-{name}"), client);
        let counted = stop(server);
        assert!(counted.starts_with("answered 60"), "{counted}");
        let found = run_assay(&place, &format!("run-{name}"), &format!("{name}.jsonl"));
        assert_eq!(found["basis"], "schedule", "{found}");
        assert_eq!(found["disagreements"], serde_json::json!([]), "{found}");
        let counts = ["requests", "calls", "compared"].map(|key| found[key].as_u64().unwrap());
        assert_eq!(counts, [60, 60, 40], "{found}");
        for figure in found["figures"].as_array().unwrap() {
            let number = |key: &str, at: usize| figure[key][at].as_f64().unwrap();
            assert!(number("true_us", 0) >= 2000.0, "{figure}");
            // Delays in the client only add to what it measures.
            assert!(
                number("instrument_us", 1) >= number("true_us", 0) * 0.998,
                "{figure}"
            );
        }
        assert!(
            place
                .run(&["assay", &format!("run-{name}"), &format!("{name}.jsonl")])
                .stdout
                .len()
                > 500
        );
    }
}

#[test]
fn grpc_calls_are_answered_by_known_server() {
    let place = Place::new();
    let server = serve(&place, "law", BIMODAL, &["--seed", "7"]);
    let url = server.plaintext();
    let load = [
        "grpc",
        &url,
        "--out",
        "run",
        "-q",
        "--clients",
        "2",
        "--calls",
        "40",
    ];
    place.expect(0, &[&load[..], &support::SCORE].concat());
    stop(server);
    let envelope = place.read("law.jsonl");
    assert_eq!(envelope.lines().count(), 42);
    // A closed loop has no schedule, and therefore no intervals.
    let found = place.expect_json(90, &["assay", "run", "law.jsonl", "--json"]);
    assert_eq!(
        (&found["basis"], &found["seed"]),
        (&"arrivals".into(), &7.into())
    );
}

#[test]
fn assay_finds_intervals_of_another_server() {
    let place = Place::new();
    let quick = serve(&place, "quick", BIMODAL, &[]);
    let slow = serve(&place, "slow", "law = 'constant'\ndelay = '2s'", &[]);
    let url = |server: &Server| format!("http://127.0.0.1:{}/", server.port);
    load(&place, &url(&quick), "run", &["--http-version", "2"]);
    load(&place, &url(&slow), "other", &["--http-version", "2"]);
    stop(quick);
    stop(slow);
    let found = place.expect_json(99, &["assay", "run", "slow.jsonl", "--json"]);
    assert_eq!(found["intervals_that_hold"], 0, "{found}");
    let said = place.expect(99, &["assay", "other", "quick.jsonl"]);
    assert!(said.contains("DOES NOT HOLD"), "{said}");
}

#[test]
fn http_1_requests_in_pieces_are_answered_in_order() {
    let place = Place::new();
    let server = serve(&place, "law", BIMODAL, &[]);
    let mut client = TcpStream::connect(server.address()).unwrap();
    let requests = "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n\
        HEAD / HTTP/1.1\r\nhost: a\r\n\r\n\
        GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\nleft over";
    for piece in requests.as_bytes().chunks(7) {
        client.write_all(piece).unwrap();
    }
    let mut answers = String::new();
    client.read_to_string(&mut answers).unwrap();
    let heads: Vec<&str> = answers.split("HTTP/1.1 200 OK").skip(1).collect();
    assert_eq!(heads.len(), 3, "{answers}");
    assert_eq!(
        [0, 1, 2].map(|i| heads[i].ends_with("known\n")),
        [true, false, true],
        "{answers}"
    );
    assert_eq!(
        [0, 1, 2].map(|i| heads[i].contains("Connection: close")),
        [false, false, true]
    );
    let mut strange = TcpStream::connect(server.address()).unwrap();
    strange.write_all(b"not a request\r\n\r\n").unwrap();
    assert_eq!(strange.read_to_end(&mut Vec::new()).unwrap_or(0), 0);
    assert!(stop(server).starts_with("answered 3,"));
    let lines = place.read("law.jsonl");
    assert_eq!(
        lines
            .lines()
            .filter(|line| line.contains("written_ns"))
            .count(),
        3,
        "{lines}"
    );
}

#[test]
fn tampered_envelope_is_refused_by_name() {
    let place = Place::new();
    let server = serve(&place, "law", BIMODAL, &[]);
    let url = format!("http://127.0.0.1:{}/", server.port);
    load(&place, &url, "run", &["--http-version", "2"]);
    let refused = |envelope: &str, flags: &[&str]| {
        fs::write(place.path("other.jsonl"), envelope).unwrap();
        let output = place.run(&[&["assay", "run", "other.jsonl"], flags].concat());
        assert_eq!(output.status.code(), Some(1));
        stderr_of(&output)
    };
    let sealed = place.read("law.jsonl");
    assert!(
        refused(&sealed, &[]).contains("its commitment is not opened"),
        "{}",
        refused(&sealed, &[])
    );
    stop(server);
    let whole = place.read("law.jsonl");
    let lines: Vec<&str> = whole.lines().collect();
    let opening = lines[lines.len() - 1];
    for (changed, reason) in [
        (
            whole.replace("0.1", "0.2"),
            "seed, nonce and law do not match the commitment",
        ),
        (
            whole.replacen(lines[5], "", 1).replace("\n\n", "\n"),
            "59 requests, but the server wrote 60",
        ),
        (
            whole.replacen("due_ns\":", "due_ns\":1", 1),
            "lines of requests are not those that the server wrote",
        ),
        (
            whole.replacen(opening, &format!("{opening}\n{opening}"), 1),
            "follows the line that opens the commitment",
        ),
        (
            whole.replacen("\"request\"", "\"recuest\"", 1),
            "is not a valid line of an envelope",
        ),
        (String::new(), "it is empty"),
    ] {
        assert_ne!(changed, whole);
        let said = refused(&changed, &[]);
        assert!(said.contains(reason), "{reason}: {said}");
    }
    let said = refused(&whole, &["--commitment", "00"]);
    assert!(
        said.contains("--commitment: other.jsonl has the commitment"),
        "{said}"
    );
    let commitment: Value = serde_json::from_str(lines[0]).unwrap();
    let commitment = commitment["sealed"]["commitment"].as_str().unwrap();
    let output = place.run(&["assay", "run", "law.jsonl", "--commitment", commitment]);
    assert_ne!(output.status.code(), Some(1), "{}", stderr_of(&output));
}

#[test]
fn known_server_refuses_bad_law_and_taken_file() {
    let place = Place::new();
    fs::write(place.path("law.toml"), "law = 'constant'\ndealy = '1ms'").unwrap();
    let said = |flags: &[&str]| {
        let listen = ["--listen", "127.0.0.1:0"];
        let output = place.run(&[&["serve", "known"], flags, &listen].concat());
        assert_eq!(output.status.code(), Some(1));
        stderr_of(&output)
    };
    let wrong = said(&["--law", "law.toml"]);
    assert!(
        wrong.contains("law.toml: constant has no key `dealy`: use `delay`"),
        "{wrong}"
    );
    let missing = said(&["--law", "none.toml"]);
    assert!(missing.contains("none.toml: can't read it"), "{missing}");
    fs::write(place.path("law.toml"), "law = 'constant'\ndelay = '1ms'").unwrap();
    fs::write(place.path("envelope.jsonl"), "mine").unwrap();
    let taken = said(&["--law", "law.toml"]);
    assert!(
        taken.contains("envelope.jsonl exists: move it away"),
        "{taken}"
    );
    assert_eq!(place.read("envelope.jsonl"), "mine");
}

#[test]
fn known_server_refuses_several_processes_by_name() {
    let place = Place::new();
    fs::write(place.path("law.toml"), BIMODAL).unwrap();
    let flags = ["serve", "known", "--law", "law.toml", "--processes", "2"];
    let output = place.run(&[&flags[..], &["--listen", "127.0.0.1:0"]].concat());
    assert_eq!(output.status.code(), Some(2));
    let said = stderr_of(&output);
    assert!(
        said.contains("--processes 2: serve known: one process numbers all requests"),
        "{said}"
    );
    assert!(said.contains("--workers N"), "{said}");
    assert!(!place.path("envelope.jsonl").exists());
}

#[test]
fn known_server_answers_event_streams_over_http_1() {
    let place = Place::new();
    let server = serve(&place, "law", BIMODAL, &[]);
    let url = format!("http://127.0.0.1:{}/", server.port);
    let events = ["--stream", "sse", "--header", "accept: text/event-stream"];
    load(
        &place,
        &url,
        "run",
        &[&events[..], &["--connections", "8"]].concat(),
    );
    let mut client = TcpStream::connect(server.address()).unwrap();
    let request =
        "GET / HTTP/1.1\r\nhost: a\r\naccept: text/event-stream\r\nconnection: close\r\n\r\n";
    client.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(
        answer.contains("Content-Type: text/event-stream") && answer.ends_with("data: known\n\n"),
        "{answer}"
    );
    stop(server);
    let run: Value = serde_json::from_str(&place.read("run/run.json")).unwrap();
    let messages = &run["total"]["messages"];
    assert_eq!(messages["received"], 40, "{run}");
    // The histogram keeps three digits.
    let first_us = messages["first_message"]["min_us"].as_f64().unwrap();
    assert!(first_us >= 1998.0, "{first_us}");
}
