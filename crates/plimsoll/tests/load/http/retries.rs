//! Calls that a server did not process are retried once, counted and shown; and failures that are
//! only ours.

use std::fs;
use std::net::TcpListener;

use serde_json::Value;

use super::wire::{Recorder, always};
use super::{first_error, run_http, url};
use crate::support::nginx::Nginx;
use crate::support::peers::python;
use crate::support::ports::free_port;
use crate::support::{CLIENT_TLS, Place, Server, stderr_of};

fn calls_retried(run: &Value) -> u64 {
    let counts = &run["total"]["measures"]["counts"];
    counts["calls_retried"].as_u64().unwrap_or(0)
}

fn count_of(run: &Value, name: &str) -> u64 {
    let counts = &run["total"]["measures"]["counts"];
    counts[name].as_u64().unwrap_or(0)
}

/// The servers say how long to wait in seconds and as a date, and close connections that are idle meanwhile.
#[test]
fn refused_requests_respect_retry_after() {
    let place = Place::new();
    for (name, version) in [("uvicorn", "1.1"), ("hypercorn", "2")] {
        let mut command = python(&place, "asgi_server.py");
        command.arg(name);
        let server = Server::start(&mut command);
        let load = ["--clients", "1", "--calls", "3", "--http-version", version];
        let flags = [&load[..], &["--retry-refused", "5"]].concat();
        let run = run_http(&place, 0, &url(&server, "/busy/3"), &flags);
        assert_eq!(run["total"]["ok"], 3, "{name}: {run}");
        assert_eq!(count_of(&run, "calls_refused"), 1, "{name}: {run}");
        assert_eq!(count_of(&run, "refusals_retried"), 3, "{name}: {run}");
        // Two of the three waits last a second.
        let longest = run["total"]["response"]["max_us"].as_f64().unwrap();
        assert!(longest > 1.9e6, "{name}: {run}");
        let report = place.expect(0, &["report", "run"]);
        assert!(report.contains("refused"), "{name}: {report}");
        assert!(place.read("run/plan.toml").contains("retry_refused = 5"));

        let run = run_http(&place, 1, &url(&server, "/busy/100"), &load);
        assert_eq!(
            first_error(&run),
            ("HTTP_429_RETRY_AFTER", 3),
            "{name}: {run}"
        );
        assert_eq!(count_of(&run, "refusals_retried"), 0, "{name}: {run}");
    }
}

#[test]
fn requests_that_stay_refused_fail() {
    let place = Place::new();
    let server = place.serve(&["http"]);
    let load = ["--clients", "2", "--calls", "4", "--retry-refused", "2"];
    let short = ["--retry-wait", "10ms"];
    for version in ["1.1", "2"] {
        for status in ["429", "503"] {
            let flags = [&load[..], &short, &["--http-version", version]].concat();
            let path = format!("/status/{status}");
            let run = run_http(&place, 1, &url(&server, &path), &flags);
            let code = format!("HTTP_{status}_RETRY_AFTER");
            assert_eq!(first_error(&run), (code.as_str(), 4), "{version}: {run}");
            assert_eq!(count_of(&run, "calls_refused"), 4, "{version}: {run}");
            assert_eq!(count_of(&run, "refusals_retried"), 8, "{version}: {run}");
        }
    }
    // The server asks for a second, which is more than the deadline leaves.
    let flags = [&load[..], &["--deadline", "900ms"]].concat();
    let run = run_http(&place, 1, &url(&server, "/status/429"), &flags);
    assert_eq!(first_error(&run), ("HTTP_429_RETRY_AFTER", 4), "{run}");
    assert_eq!(count_of(&run, "refusals_retried"), 0, "{run}");
    for (flags, printed) in [
        (
            &["--retry-refused", "2", "--cold"][..],
            "new connection for each call",
        ),
        (&["--retry-refused", "0"], "use 1 to 100"),
        (
            &["--retry-refused", "2", "--retry-wait", "0s"],
            "sends requests again at once",
        ),
    ] {
        let fixed = [
            "http",
            "http://127.0.0.1:1",
            "--clients",
            "1",
            "--calls",
            "1",
        ];
        let refused = place.run(&[&fixed[..], flags].concat());
        let found = stderr_of(&refused);
        assert_eq!(refused.status.code(), Some(2), "{flags:?}: {found}");
        assert!(found.contains(printed), "{flags:?}: {found}");
    }
}

/// nginx ends a connection after some requests: with GOAWAY, or over HTTP/1.1 with `Connection:
/// close`.
#[test]
fn calls_unprocessed_by_nginx_are_retried() {
    let place = Place::new();
    place.certificates();
    fs::create_dir(place.path("site")).unwrap();
    fs::write(place.path("site/a"), "hello").unwrap();
    let port = free_port();
    let certificates = place.path("certs");
    // A second server, because connection limits are set per server.
    let more = format!(
        "}} server {{ listen 127.0.0.1:{port} ssl http2; ssl_protocols TLSv1.3; keepalive_requests 50;\n\
         ssl_certificate {0}/server.crt; ssl_certificate_key {0}/server.key;",
        certificates.display()
    );
    let _nginx = Nginx::start(&place, &more);
    let url = format!("https://localhost:{port}/a");
    let flags = ["--http-version", "2", "--clients", "8", "--calls", "3000"];
    let flags = [&flags[..], &CLIENT_TLS].concat();
    let run = run_http(&place, 0, &url, &flags);
    assert_eq!(run["total"]["errors"], 0, "{run}");
    assert_eq!(run["total"]["ok"], 3000, "{run}");
    assert!(calls_retried(&run) > 0, "{run}");
    let report = place.expect(0, &["report", "run"]);
    assert!(report.contains("sent again"), "{report}");

    let run = run_http(&place, 0, &url, &[&flags[..], &["--no-retry"]].concat());
    let (code, errors) = first_error(&run);
    assert_eq!((code, calls_retried(&run)), ("GOAWAY", 0), "{run}");
    assert!(errors > 0, "{run}");
    let plan = place.read("run/plan.toml");
    assert!(plan.contains("no_retry = true"), "{plan}");
}

/// The connection is idle between two calls for much longer than its close takes to arrive.
#[test]
fn idle_timeout_races_are_distinguished_from_failures() {
    let place = Place::new();
    let server = Recorder::start(|number| always(number).filter(|_| number == 0));
    let load = ["--connections", "1", "--rate", "2/s", "--duration", "3s"];
    let url = server.url("/");
    let run = run_http(&place, 0, &url, &load);
    assert_eq!(
        (&run["total"]["ok"], &run["total"]["errors"]),
        (&6.into(), &0.into()),
        "{run}"
    );
    assert_eq!(calls_retried(&run), 5, "{run}");

    let run = run_http(&place, 0, &url, &[&load[..], &["--no-retry"]].concat());
    assert_eq!(
        (first_error(&run).0, calls_retried(&run)),
        ("IDLE_CLOSED", 0),
        "{run}"
    );
    // A request that may have been processed is repeated only if it has an idempotency key.
    let run = run_http(&place, 0, &url, &[&load[..], &["-X", "POST"]].concat());
    assert_eq!(
        (first_error(&run).0, calls_retried(&run)),
        ("IDLE_CLOSED", 0),
        "{run}"
    );
    let details = run["details"].to_string();
    assert!(details.contains("had been idle for"), "{details}");
    let keyed = ["-X", "POST", "-H", "idempotency-key: {{uuid}}"];
    let run = run_http(&place, 0, &url, &[&load[..], &keyed].concat());
    assert_eq!(calls_retried(&run), 5, "{run}");
}

/// nginx closes connections that have been idle for a second, most of which the load does not need.
#[test]
fn closed_idle_connections_leave_a_run_valid() {
    let place = Place::new();
    place.certificates();
    fs::create_dir(place.path("site")).unwrap();
    fs::write(place.path("site/a"), "hello").unwrap();
    let port = free_port();
    let more = format!(
        "}} server {{ listen 127.0.0.1:{port}; keepalive_timeout 1s; client_header_timeout 1s;"
    );
    let _nginx = Nginx::start(&place, &more);
    let url = format!("http://127.0.0.1:{port}/a");
    let load = ["--connections", "4", "--rate", "2/s", "--duration", "5s"];
    let run = run_http(&place, 0, &url, &load);
    let total = &run["total"];
    assert_eq!(
        (&total["ok"], &total["errors"]),
        (&10.into(), &0.into()),
        "{run}"
    );
    let closed = total["connections_idle_closed"].as_u64().unwrap_or(0);
    assert!(closed > 4, "{run}");
    let problems = run["health"]["problems"].as_array().expect("a list");
    let is_wrong = |problem: &Value| problem["kind"] == "not_reused";
    assert!(!problems.iter().any(is_wrong), "{run}");
}

#[test]
fn immediately_dropped_request_is_not_retried() {
    let place = Place::new();
    let server = Recorder::start(|_| None);
    let flags = ["--clients", "2", "--calls", "10"];
    let run = run_http(&place, 1, &server.url("/"), &flags);
    assert_eq!(first_error(&run), ("CONNECTION_CLOSED", 10), "{run}");
    assert_eq!(calls_retried(&run), 0, "{run}");
}

#[test]
fn silent_server_fails_only_by_deadline() {
    let place = Place::new();
    // Connections stay in the listen backlog, because nobody accepts them.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}/", silent.local_addr().unwrap());
    let flags = ["--clients", "3", "--deadline", "200ms", "--duration", "2s"];
    let run = run_http(&place, 1, &url, &flags);
    let codes = run["total"]["errors_by_code"].as_array().expect("a list");
    assert_eq!(codes.len(), 1, "{run}");
    assert_eq!(first_error(&run).0, "DEADLINE_EXCEEDED", "{run}");
    assert_eq!(run["total"]["connections_unused"], Value::Null, "{run}");
}

#[test]
fn unresponsive_proxy_is_named() {
    let place = Place::new();
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = silent.local_addr().unwrap();
    let proxy = format!("http://{address}");
    let flags = [
        "--proxy",
        &proxy,
        "--connect-timeout",
        "300ms",
        "--clients",
        "1",
        "--calls",
        "1",
    ];
    let fixed = ["http", "http://127.0.0.1:9/", "-q", "--out", "run"];
    let ended = place.run(&[&fixed[..], &flags].concat());
    let said = crate::support::stderr_of(&ended);
    assert!(
        said.contains(&format!("for an answer of the proxy {address}")),
        "{said}"
    );
}

#[test]
fn response_head_over_limit_is_reported() {
    let place = Place::new();
    let server = Recorder::start(|_| Some(Box::leak(long_head().into_boxed_slice())));
    let load = ["--clients", "1", "--calls", "2"];
    let url = server.url("/");
    let run = run_http(&place, 1, &url, &load);
    assert_eq!(first_error(&run), ("HEAD_TOO_LARGE", 2), "{run}");
    let details = run["details"].to_string();
    assert!(details.contains("--max-head"), "{details}");
    run_http(
        &place,
        0,
        &url,
        &[&load[..], &["--max-head", "128KiB"]].concat(),
    );
}

/// A response head of 150 fields, and one with a field of 70,000 bytes.
fn long_head() -> Vec<u8> {
    let fields: String = (0..150).map(|n| format!("x-{n}: v\r\n")).collect();
    let long = "c".repeat(70_000);
    format!("HTTP/1.1 200 OK\r\n{fields}set-cookie: a={long}\r\ncontent-length: 0\r\n\r\n")
        .into_bytes()
}
