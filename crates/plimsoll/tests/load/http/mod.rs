//! `http` over HTTP/1.1 and HTTP/2, and `serve http`, against each other and against nginx, HAProxy, Go,
//! connect-go, Node, Python (aiohttp, uvicorn, hypercorn, Django) and curl.

#![allow(clippy::disallowed_methods, reason = "tests wait in real time")]

mod abroad;
mod asgi;
mod canaries;
mod canaries_in_bodies;
mod connect;
mod credentials;
mod journeys;
mod judging;
mod packed;
mod recordings;
mod retries;
mod typed;
mod websockets;
mod wire;

use crate::support;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use plimsoll_model::comparisons::ladder::LadderRecord;
use serde_json::Value;
use support::haproxy::Haproxy;
use support::nginx::Nginx;
use support::peers::{peer, python, tool};
use support::ports::free_port;
use support::traces;
use support::{
    CLIENT_MTLS, CLIENT_TLS, MAX_WAIT, Place, SERVER_MTLS, SERVER_TLS, Server, only_run, output,
    text,
};

/// A load of 40 calls from four clients.
const FORTY_CALLS: [&str; 4] = ["--clients", "4", "--calls", "40"];

/// Runs `http`; it must end with `code`, or report that the machine was too busy to hold the rate.
#[track_caller]
fn run_http(place: &Place, code: i32, url: &str, flags: &[&str]) -> Value {
    let _ = fs::remove_dir_all(place.path("run"));
    let fixed = ["http", url, "-q", "--json", "--out", "run"];
    run_measured(place, code, &[&fixed, flags].concat())
}

#[track_caller]
fn run_measured(place: &Place, code: i32, arguments: &[&str]) -> Value {
    let said = place.run(arguments);
    let (out, printed) = (text(&said.stdout), text(&said.stderr));
    let ended = said.status.code();
    let too_busy = code == 0 && ended == Some(90);
    assert!(
        ended == Some(code) || too_busy,
        "{arguments:?}: {ended:?}\n{out}\n{printed}"
    );
    only_run(&serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}")))
}

fn url(server: &Server, path: &str) -> String {
    format!("http://{}{path}", server.address())
}

fn first_error(run: &Value) -> (&str, u64) {
    let first = &run["total"]["errors_by_code"][0];
    (
        first["code"].as_str().unwrap_or("none"),
        first["count"].as_u64().unwrap_or(0),
    )
}

/// Returns the number of events, the number of answers with events, and the gaps between events.
fn event_counts(run: &Value) -> (u64, u64, u64) {
    let messages = &run["total"]["messages"];
    let number = |value: &Value| value.as_u64().unwrap_or(u64::MAX);
    (
        number(&messages["received"]),
        number(&messages["first_message"]["count"]),
        number(&messages["inter_message"]["count"]),
    )
}

#[test]
fn client_and_server_count_same_requests() {
    let place = Place::new();
    place.certificates();
    let links = [
        (&[][..], &[][..], "http", "127.0.0.1"),
        (&SERVER_TLS[..], &CLIENT_TLS[..], "https", "localhost"),
        (&SERVER_MTLS[..], &CLIENT_MTLS[..], "https", "localhost"),
    ];
    for (link, version) in links.iter().flat_map(|link| [(link, "1.1"), (link, "2")]) {
        let (server, client, scheme, host) = link;
        let client = [client, &["--http-version", version][..]].concat();
        let server = place.serve(&[&["http"], *server].concat());
        let url = format!("{scheme}://{host}:{}", server.port);
        let run = run_http(&place, 0, &url, &[&FORTY_CALLS[..], &client].concat());
        assert_eq!(run["protocol"], "http");
        assert_eq!(run["http_version"], version);
        assert_eq!(run["call"], "GET /");
        assert_eq!(run["total"]["ok"], 40, "{run}");
        assert_eq!(run["total"]["bytes_received"], 40 * 1024);
        assert_eq!(run["count_check"]["matches"], true);
        // Clients share a connection that multiplexes their calls.
        assert_eq!(run["connections"], if version == "2" { 1 } else { 4 });
        let cold = ["--cold", "--calls", "5"];
        let run = run_http(&place, 0, &url, &[&cold[..], &client].concat());
        assert_eq!(run["total"]["ok"], 5, "{run}");
        let (code, printed) = server.stop();
        assert_eq!(code, 0);
        assert!(printed.contains("answered 45"), "{printed}");
        // A client that leaves while the server still sends tickets or settings resets the
        // connection, which the server may count as broken.
        assert!(!printed.contains("refused"), "{printed}");
    }
}

#[test]
fn open_loop_templated_bodies_are_accounted_exactly() {
    let place = Place::new();
    fs::write(
        place.path("users.csv"),
        "user,city\nann,\"A \"\"town\"\"\"\nbob,Ulm\n",
    )
    .unwrap();
    let server = place.serve(&["http"]);
    let load = ["--rate", "100/s", "--duration", "1s", "--connections", "4"];
    let body = [
        "--rows",
        "users.csv",
        "-d",
        r#"{"user": "{{row.user}}", "city": "{{row.city}}", "n": {{seq}}}"#,
        "-H",
        "x-user: {{row.user}}",
        "--expect-header",
        "content-type: application/json",
        "--expect-body",
        r#"", "n": "#,
    ];
    let run = run_http(
        &place,
        0,
        &url(&server, "/echo"),
        &[&load[..], &body].concat(),
    );
    assert_eq!(run["total"]["due"], 100);
    assert_eq!(run["total"]["ok"], 100, "{run}");
    assert_eq!(run["call"], "POST /echo");
    // The rows are used in turn: the quotes of the first are escaped, and the numbers have one or two digits.
    let sizes = |n: u64| {
        let row = if n.is_multiple_of(2) {
            "ann,A \\\"town\\\""
        } else {
            "bob,Ulm"
        };
        row.len() as u64 - 1
            + n.to_string().len() as u64
            + "{\"user\": \"\", \"city\": \"\", \"n\": }".len() as u64
    };
    let expected: u64 = (0..100).map(sizes).sum();
    assert_eq!(run["total"]["bytes_received"], expected);
    // The run directory has a plan that can be run again, including the body.
    let plan = place.read("run/plan.toml");
    assert!(
        plan.contains("[call.http]") && plan.contains("{{row.user}}"),
        "{plan}"
    );
    let again = ["run", "run/plan.toml", "--json", "-q", "--out", "again"];
    let again = run_measured(&place, 0, &again);
    assert_eq!(again["total"]["bytes_received"], expected);
}

#[test]
fn unexpected_status_header_and_body_are_failures() {
    let place = Place::new();
    let server = place.serve(&["http"]);
    let three = ["--clients", "1", "--calls", "3"];
    for (path, flags, code, detail) in [
        (
            "/status/503",
            &[][..],
            "HTTP_503_RETRY_AFTER",
            "GET /status/503: 503 Service Unavailable, retry-after: 1: 503 Service Unavailable",
        ),
        (
            "/status/404",
            &[],
            "HTTP_404",
            "GET /status/404: 404 Not Found: 404 Not Found",
        ),
        (
            "/status/307",
            &[],
            "HTTP_307",
            "GET /status/307: 307 Temporary Redirect: 307 Temporary Redirect",
        ),
        ("/status/599", &[], "HTTP_5XX", "GET /status/599: 599"),
        ("/", &["--expect", "201,3xx"], "HTTP_2XX", "GET /: 200 OK"),
        (
            "/",
            &["--expect-header", "x-cache: hit"],
            "HTTP_HEADER",
            "GET /: 200 OK, without x-cache",
        ),
        (
            "/",
            &["--expect-body", "ok"],
            "HTTP_BODY",
            "GET /: the body does not contain the expected text",
        ),
        (
            "/",
            &["--max-body", "1000B"],
            "MESSAGE_TOO_LARGE",
            "http: a body of more than 1000 bytes",
        ),
    ] {
        let run = run_http(
            &place,
            1,
            &url(&server, path),
            &[&three[..], flags].concat(),
        );
        assert_eq!(first_error(&run), (code, 3), "{path} {flags:?}");
        let printed = run["details"][0]["text"].as_str().unwrap_or_default();
        assert!(printed.starts_with(detail), "{printed}");
    }
    let found = ["--expect", "404,5xx"];
    let run = run_http(
        &place,
        0,
        &url(&server, "/status/404"),
        &[&three[..], &found].concat(),
    );
    assert_eq!(run["total"]["ok"], 3);
    let head = ["-X", "HEAD"];
    let run = run_http(&place, 0, &url(&server, "/"), &[&three[..], &head].concat());
    assert_eq!(
        (&run["total"]["ok"], &run["total"]["bytes_received"]),
        (&3.into(), &0.into())
    );
}

#[test]
fn event_streams_are_timed_and_end_checked() {
    let place = Place::new();
    let server = place.serve(&["http", "--pace", "20ms"]);
    let load = ["--clients", "2", "--calls", "6"];
    let sse = ["--stream", "sse", "--stream-until", "[DONE]"];
    let run = run_http(
        &place,
        0,
        &url(&server, "/sse/5"),
        &[&load[..], &sse].concat(),
    );
    assert_eq!(run["total"]["ok"], 6, "{run}");
    // Five events and the final one, in each of six answers.
    assert_eq!(event_counts(&run), (36, 6, 30));
    // Four gaps of 20 ms and one of zero; a busy machine only lengthens them.
    let mean = run["total"]["messages"]["inter_message"]["mean_us"]
        .as_f64()
        .unwrap();
    assert!(mean > 15_000.0, "{mean}");
    let service = run["total"]["service"]["min_us"].as_f64().unwrap();
    assert!(service > 79_000.0, "{service}");

    let lines = [
        "--stream",
        "ndjson",
        "--stream-until",
        "contains:\"done\":true",
    ];
    let run = run_http(
        &place,
        0,
        &url(&server, "/ndjson/3"),
        &[&load[..], &lines].concat(),
    );
    assert_eq!(event_counts(&run), (18, 6, 12));

    for (path, flags, code) in [
        (
            "/sse/2",
            &["--stream", "sse", "--stream-until", "event:done"][..],
            "STREAM_SHORT",
        ),
        (
            "/sse/2",
            &["--stream", "sse", "--stream-error", "contains:\"n\":1"],
            "EVENT_ERROR",
        ),
        ("/bytes/100", &["--stream", "ndjson"], "BAD_ANSWER"),
    ] {
        let run = run_http(&place, 1, &url(&server, path), &[&load[..], flags].concat());
        assert_eq!(first_error(&run), (code, 6), "{path} {flags:?}");
    }
}

#[test]
fn auto_version_follows_server_alpn_choice() {
    let place = Place::new();
    place.certificates();
    fs::create_dir(place.path("site")).unwrap();
    fs::write(place.path("site/a"), "hello").unwrap();
    let auto = ["--http-version", "auto"];
    let secured = place.serve(&[&["http"], &SERVER_TLS[..]].concat());
    let plain = place.serve(&["http"]);
    // The server does not speak HTTP/2.
    let nginx = Nginx::start(&place, "");
    for (url, tls, version) in [
        (
            format!("https://localhost:{}/", secured.port),
            &CLIENT_TLS[..],
            "2",
        ),
        (
            format!("https://localhost:{}/a", nginx.port),
            &CLIENT_TLS,
            "1.1",
        ),
        (url(&plain, "/"), &[], "1.1"),
    ] {
        let run = run_http(&place, 0, &url, &[&FORTY_CALLS[..], &auto, tls].concat());
        assert_eq!(run["total"]["ok"], 40, "{run}");
        assert_eq!(run["http_version"], version, "{run}");
        let chosen = &run["tls"]["handshakes"][0]["chosen"];
        assert_eq!(chosen.as_str(), (!tls.is_empty()).then_some(version));
        let cold = ["--cold", "--calls", "5"];
        let run = run_http(&place, 0, &url, &[&cold[..], &auto, tls].concat());
        assert_eq!(run["total"]["ok"], 5, "{run}");
    }
    let sse = ["--stream", "sse", "--stream-until", "[DONE]"];
    let url = format!("https://localhost:{}/sse/4", secured.port);
    let run = run_http(
        &place,
        0,
        &url,
        &[&FORTY_CALLS[..], &auto, &CLIENT_TLS, &sse].concat(),
    );
    assert_eq!(event_counts(&run), (200, 40, 160));
}

#[test]
fn deadline_resets_stream_but_keeps_connection() {
    let place = Place::new();
    let server = place.serve(&["http", "--delay", "300ms"]);
    let flags = [
        "--http-version",
        "2",
        "--deadline",
        "50ms",
        "--clients",
        "4",
        "--calls",
        "8",
    ];
    let run = run_http(&place, 1, &url(&server, "/"), &flags);
    assert_eq!(first_error(&run), ("DEADLINE_EXCEEDED", 8), "{run}");
    assert_eq!(run["count_check"]["matches"], true);
    assert_eq!(run["total"]["connections_lost"], 0, "{run}");
}

#[test]
fn http1_only_server_is_named_in_error() {
    let place = Place::new();
    let server = Server::start(&mut python(&place, "http_server.py"));
    let flags = ["--http2", "--clients", "1", "--calls", "1"];
    let said = place.run(&[&["http", &url(&server, "/bytes/1")], &flags[..]].concat());
    let printed = text(&said.stderr)
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    assert!(!said.status.success(), "{printed}");
    assert!(
        printed.contains("the server answered in HTTP/1"),
        "{printed}"
    );
}

#[test]
fn single_slot_server_makes_calls_queue() {
    let place = Place::new();
    let server = place.serve(&["http", "--pool", "1", "--delay", "50ms"]);
    let load = ["--rate", "40/s", "--duration", "1s", "--connections", "40"];
    let run = run_http(&place, 0, &url(&server, "/"), &load);
    assert_eq!(run["total"]["ok"], 40, "{run}");
    // Call k is due at 25 k ms and answered at 50 (k + 1) ms at the earliest: the last after 1025
    // ms.
    let longest = run["total"]["response"]["max_us"].as_f64().unwrap();
    assert!(longest > 1_000_000.0, "{longest}");
    let mean = run["total"]["response"]["mean_us"].as_f64().unwrap();
    assert!(mean > 530_000.0, "{mean}");
}

#[test]
fn unix_socket_works_as_target() {
    let place = Place::new();
    let mut command = place.command(&["serve", "http", "--listen", "unix:http.sock"]);
    let child = command.stdout(Stdio::null()).spawn().expect("a server");
    struct KilledOnDrop(std::process::Child);
    impl Drop for KilledOnDrop {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
    let _ends = KilledOnDrop(child);
    let end = Instant::now() + MAX_WAIT;
    while !Path::exists(&place.path("http.sock")) {
        assert!(Instant::now() < end, "no socket");
        std::thread::sleep(Duration::from_millis(10));
    }
    let run = run_http(&place, 0, "unix:http.sock:/bytes/10", &FORTY_CALLS);
    assert_eq!(run["total"]["bytes_received"], 400, "{run}");
}

#[test]
fn trace_shows_headers_without_secrets() {
    let place = Place::new();
    let server = place.serve(&["http"]);
    let flags = [
        "--trace",
        "--clients",
        "1",
        "--calls",
        "1",
        "-H",
        "authorization: Bearer s3cr3t",
        "-d",
        "{}",
    ];
    let address = url(&server, "/echo");
    let said = place.run(&[&["http", &address, "--out", "run"], &flags[..]].concat());
    let printed = text(&said.stderr);
    assert!(said.status.success(), "{printed}");
    assert!(
        printed.contains("POST /echo, host: 127.0.0.1:"),
        "{printed}"
    );
    assert!(
        printed.contains("200 OK, content-type: application/json"),
        "{printed}"
    );
    assert!(!printed.contains("s3cr3t"), "{printed}");
    assert!(!place.read("run/plan.toml").contains("s3cr3t"));
}

#[test]
fn http_ladder_is_measured() {
    let place = Place::new();
    let plan = "name = \"http\"\n[call.http]\npath = \"/bytes/100\"\n\
        [load]\nrate = \"100/s\"\nwarmup = \"100ms\"\nconnections = 2\n\
        [ladder]\nslice = \"300ms\"\nrounds = 2\nserve = [\"http\"]\ntls = [\"off\", \"server\", \"mutual\"]\n";
    fs::write(place.path("ladder.toml"), plan).unwrap();
    // On a busy machine the generator may be late, which the exit code shows.
    let said = place.run(&["ladder", "ladder.toml", "-q", "--out", "ladder"]);
    let printed = text(&said.stderr);
    assert!(matches!(said.status.code(), Some(0 | 90)), "{printed}");
    let record = LadderRecord::load(&place.path("ladder")).expect("a ladder");
    assert_eq!(record.rungs.len(), 3, "{printed}");
}

#[test]
fn fast_server_sends_configured_size_over_http2() {
    let place = Place::new();
    let server = place.serve(&["fast", "--answer-size", "1KiB"]);
    let two = [&FORTY_CALLS[..], &["--http-version", "2"]].concat();
    let run = run_http(&place, 0, &url(&server, "/any"), &two);
    assert_eq!(run["total"]["ok"], 40, "{run}");
    assert_eq!(run["total"]["bytes_received"], 40 * 1024, "{run}");

    let said = place.run(&["serve", "fast", "--answer-size", "2MiB"]);
    assert!(!said.status.success());
    assert!(text(&said.stderr).contains("answer-size"), "{said:?}");
}
