//! Contents of requests and responses: varying data, compressed messages, and invalid answers.

mod answers;
mod binary_metadata;
mod expectations;
mod framed;
mod journeys;
mod loops;
mod pauses;
mod protobuf_frames;
mod rows;
mod sockets;
mod targets;

use crate::built;
use crate::path_counts;
use crate::support;

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use serde_json::Value;
use support::{CLIENT_TLS, Place, SCORE, SERVER_TLS, stderr_of};

use plimsoll_wire::hpack::Encoder;
use plimsoll_wire::http2::{self, flags, kind, write};

/// Returns how often each error occurred.
fn errors(run: &Value) -> Vec<(&str, u64)> {
    let errors = run["total"]["errors_by_code"].as_array().expect("a list");
    let each = errors.iter().map(|e| {
        let code = e["code"].as_str().expect("a code");
        (code, e["count"].as_u64().expect("a count"))
    });
    each.collect()
}

// --- data that varies ----------------------------------------------------------------

#[test]
fn each_call_uses_its_own_row() {
    let place = Place::new();
    fs::write(
        place.path("vectors.csv"),
        "vector\n\"[1, 2]\"\nno vector\n[3]\n",
    )
    .expect("writable");
    let server = place.serve(&["score"]);
    let url = server.plaintext();
    let run = |code: i32, order: &str, calls: &str| {
        let mut arguments = vec!["grpc", &url, "-q", "--json", SCORE[0], SCORE[1]];
        arguments.extend(["-d", r#"{"json": "{{row.vector}}"}"#]);
        arguments.extend(["--rows", "vectors.csv", "--rows-order", order]);
        arguments.extend(["--rate", "300/s", "--calls", calls]);
        arguments.extend(["--workers", "2", "--connections", "2"]);
        place
            .run(&arguments)
            .status
            .code()
            .filter(|got| *got == code)
    };
    // The server reports how many of each row it had.
    assert_eq!(run(0, "round-robin", "30"), Some(0));
    assert_eq!(run(0, "unique", "3"), Some(0));
    assert_eq!(run(2, "unique", "4"), Some(2));
    let (_, said) = server.stop();
    assert!(said.contains("scored 22, invalid 11"), "{said}");
}

#[test]
fn rows_flag_overrides_plan_rows() {
    let place = Place::new();
    let server = place.serve(&["score"]);
    let plan = format!(
        r#"
target = "{}"
objective = {{ p50 = "< 10s" }}
[rows]
file = "own.csv"
order = "random"
[call.grpc]
method = "score.ScoreService/GetScore"
message = {{ json = "{{{{row.vector}}}}" }}
[load]
rate = "300/s"
calls = 6
[ladder]
"load.connections" = [1, 2]
"#,
        server.plaintext()
    );
    fs::write(place.path("plan.toml"), plan).expect("writable");
    fs::write(place.path("own.csv"), "vector\n[3]\n").expect("writable");
    fs::write(place.path("typed.jsonl"), "{\"vector\": \"none\"}\n").expect("writable");
    let run = |more: &[&str]| {
        let arguments = ["run", "plan.toml", "-q", "--json"];
        match place.run(&[&arguments, more].concat()).status.code() {
            // A busy machine may have sent six calls late, which makes the objective inconclusive.
            Some(90) => Some(0),
            code => code,
        }
    };
    assert_eq!(run(&[]), Some(0));
    assert_eq!(run(&["--rows", "typed.jsonl"]), Some(1));
    // The order remains that of the plan until a flag overrides it.
    let order = ["--rows-order", "unique"];
    assert_eq!(run(&order), Some(2));
    for command in ["run", "ladder", "find"] {
        let output = place.run(&[command, "plan.toml", "--rows", "gone.csv"]);
        assert_eq!(output.status.code(), Some(2), "{}", stderr_of(&output));
        assert!(
            stderr_of(&output).contains("can't read gone.csv"),
            "{command}"
        );
    }
    let (_, said) = server.stop();
    assert!(said.contains("scored 6, invalid 6"), "{said}");
}

#[test]
fn seeded_random_data_repeats_exactly() {
    let place = Place::new();
    // A vector is present or absent at random; how often depends only on the seed.
    let data = r#"{"json": "[{{random 0 1}}{{random 0 1}}]"}"#;
    let failures = |seed: &str, out: &str, spread: &[&str]| {
        let server = place.serve(&["score"]);
        let url = server.plaintext();
        let mut arguments = vec!["grpc", &url, "-q", SCORE[0], SCORE[1], "-d", data];
        arguments.extend(["--rate", "500/s", "--calls", "200"]);
        arguments.extend(spread);
        arguments.extend(["--connections", "4", "--seed", seed, "--out", out]);
        place.expect(0, &arguments);
        let run = place.run_json(out);
        let (_, said) = server.stop();
        (errors(&run).first().map(|e| e.1), said)
    };
    let (failed, first) = failures("7", "a", &[]);
    // `[01]` is not JSON, so half of the calls fail.
    assert!(failed.is_some_and(|n| (60..140).contains(&n)), "{first}");
    // The result is independent of the number of workers.
    assert_eq!(failed, failures("7", "b", &["--workers", "3"]).0);
    assert_eq!(failed, failures("7", "c", &["--processes", "2"]).0);
    assert_ne!(failed, failures("8", "d", &[]).0);
}

#[test]
fn invalid_data_templates_are_rejected_before_load() {
    let place = Place::new();
    fs::write(place.path("r.csv"), "price\n5\nmany\n").expect("writable");
    fs::write(place.path("users.csv"), "user\nann\n\"b\nx-evil: 1\"\n").expect("writable");
    let order = |data: &str, more: &[&str]| {
        let mut arguments = vec![
            "grpc",
            "grpc://127.0.0.1:1",
            "-m",
            "orders.OrderService/Submit",
        ];
        arguments.extend(["-d", data, "--rate", "1/s", "--calls", "1"]);
        arguments.extend(more);
        let output = place.run(&arguments);
        assert_eq!(output.status.code(), Some(2), "{}", stderr_of(&output));
        stderr_of(&output)
    };
    let rows = ["--rows", "r.csv"];
    for (data, more, problem) in [
        (r#"{"price": {{sec}}}"#, &[][..], "did you mean seq?"),
        (
            r#"{"price": "{{uuid}}"}"#,
            &[],
            "this template is not a number",
        ),
        (r#"{"price": {{row.price}}}"#, &[], "needs rows"),
        (
            r#"{"price": {{row.price}}}"#,
            &rows,
            "r.csv, row 2, column \"price\"",
        ),
        (
            r#"{"price": {{row.prize}}}"#,
            &rows,
            "did you mean row.price?",
        ),
        (
            r#"{"price": 5}"#,
            &rows,
            "not used by any message or metadata",
        ),
        (
            r#"{"price": 5}"#,
            &["--rows-order", "random"],
            "missing: name a CSV",
        ),
        (
            r#"{"price": {{row.price}}}"#,
            &["--rows", "gone.csv"],
            "can't read gone.csv",
        ),
        (
            r#"{"price": 5}"#,
            &["--metadata", "x-id: {{message}}"],
            "metadata are sent before the first message",
        ),
        (
            r#"{"price": 5}"#,
            &["--metadata", "x: {{row.user}}", "--rows", "users.csv"],
            "users.csv, row 2, column \"user\": not a metadata value",
        ),
        (
            r#"{"price": 5}"#,
            &["--compression", "zstd"],
            "use \"gzip\" or \"none\"",
        ),
    ] {
        let printed = order(data, more);
        assert!(printed.contains(problem), "{data}: {printed}");
    }
}

// --- compressed messages --------------------------------------------------------------

#[test]
fn servers_handle_gzip_in_both_directions() {
    let place = Place::new();
    let text = "hi ".repeat(1000);
    for (service, method, data) in [
        ("score", SCORE[1], SCORE[3].to_owned()),
        ("orders", "orders.OrderService/Submit", "{}".to_owned()),
        (
            "echo",
            "grpc.examples.echo.Echo/UnaryEcho",
            format!(r#"{{"message": "{text}"}}"#),
        ),
        (
            "echo",
            "grpc.examples.echo.Echo/BidirectionalStreamingEcho",
            format!(r#"{{"message": "{{{{seq}}}} {text}"}}"#),
        ),
    ] {
        let server = place.serve(&[service]);
        let url = server.plaintext();
        let mut arguments = vec!["grpc", &url, "-q", "--json", "-m", method, "-d", &data];
        arguments.extend(["--compression", "gzip", "--clients", "4", "--calls", "40"]);
        let run = place.expect_run(0, &arguments);
        assert_eq!(run["total"]["ok"], 40, "{run}");
        if service == "echo" {
            // Without compression there would be 3,000 bytes each way.
            for way in ["bytes_sent", "bytes_received"] {
                let bytes = run["total"][way].as_u64().expect("bytes");
                assert!((40 * 20..40 * 200).contains(&bytes), "{way}: {bytes}");
            }
        }
    }
}

// --- invalid answers -----------------------------------------------------------------

// --- connections ---------------------------------------------------------------------

/// The first handshake of a worker cannot have a ticket; any further full handshake is a failure.
#[test]
fn cold_calls_resume_after_each_workers_first() {
    let place = Place::new();
    place.certificates();
    let server = place.serve(&[&["score", "--delay", "1ms"], &SERVER_TLS[..]].concat());
    let url = server.tls();
    let flags = ["--cold", "--resume", "--clients", "1", "--calls", "10"];
    let flags = [&["grpc", &url, "-q"], &SCORE[..], &flags, &CLIENT_TLS].concat();
    let objective = ["--objective", "errors < 1%", "--out", "run"];
    place.expect(0, &[&flags[..], &objective].concat());
    let run = place.run_json("run");
    let total = &run["total"];
    let count = |key: &str| total[key].as_u64().expect("counted");
    let full = count("connections_full");
    assert!((1..=2).contains(&full), "{run}");
    assert_eq!(full + count("connections_resumed"), 10, "{run}");
    assert_eq!(run["health"]["valid"], true, "{run}");
    let problem = &run["health"]["problems"];
    let problem = problem.as_array().expect("a list").iter();
    let kinds: Vec<_> = problem.map(|p| &p["kind"]).collect();
    assert!(kinds.contains(&&"not_resumed".into()), "{run}");
    assert!(place.expect(0, &["report", "run"]).contains("first byte"));
}
