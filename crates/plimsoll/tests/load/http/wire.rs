//! Typed values arrive byte for byte, and templates that cannot be filled in are rejected; tested
//! with a server that records its requests.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use super::run_http;
use crate::support::{Place, stderr_of};

/// A received request: head and body.
type ReceivedRequest = (String, Vec<u8>);

/// The response to the request of this number on its connection, from 0; `None` closes it.
type AnswerFn = fn(usize) -> Option<&'static [u8]>;

/// Records the requests that it answers until the test ends.
pub(crate) struct Recorder {
    port: u16,
    received: Arc<Mutex<Vec<ReceivedRequest>>>,
}

impl Recorder {
    pub(crate) fn start(answer: AnswerFn) -> Recorder {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let received = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&received);
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let all = Arc::clone(&all);
                thread::spawn(move || serve(connection, answer, &all));
            }
        });
        Recorder { port, received }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    pub(crate) fn take(&self) -> Vec<ReceivedRequest> {
        std::mem::take(&mut *self.received.lock().expect("no panic"))
    }
}

fn serve(connection: TcpStream, answer: AnswerFn, all: &Mutex<Vec<ReceivedRequest>>) {
    let mut writer = connection.try_clone().expect("a socket");
    let mut reader = BufReader::new(connection);
    for number in 0.. {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if !matches!(reader.read_line(&mut head), Ok(1..)) {
                return;
            }
        }
        let lines = head.lines();
        let mut length = lines.filter_map(|line| line.strip_prefix("content-length: "));
        let length = length.next_back().and_then(|length| length.parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        if reader.read_exact(&mut body).is_err() {
            return;
        }
        all.lock().expect("no panic").push((head, body));
        let written = answer(number).map(|answer| writer.write_all(answer));
        if !matches!(written, Some(Ok(()))) {
            return;
        }
    }
}

/// Answers all requests in the same way.
pub(crate) fn always(_: usize) -> Option<&'static [u8]> {
    Some(OK)
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nset-cookie: a=1\r\ncontent-length: 2\r\n\r\nok";

#[test]
fn json_rows_arrive_byte_for_byte() {
    let (place, server) = (Place::new(), Recorder::start(always));
    let values = [
        "12345678901234567890123",
        "1.10",
        "1e3",
        "-0.0",
        "1E+400",
        "true",
        "null",
        "[1, 2.50]",
        r#"{"z": 1, "a": "\u00e9\/"}"#,
        r#""\u00e9\/""#,
    ];
    let lines = values.map(|value| format!(r#"{{"z": {value},  "account": 1.0, "b": "x"}}"#));
    fs::write(place.path("rows.jsonl"), lines.join("\n")).unwrap();
    let load = ["--rows", "rows.jsonl", "--clients", "1", "-n", "10"];
    let flags = [&load[..], &["-d", "{{row}}"]].concat();
    run_http(&place, 0, &server.url("/"), &flags);
    let bodies = server.take().into_iter().map(|(_, body)| text(body));
    assert_eq!(bodies.collect::<Vec<_>>(), lines);

    let flags = [&load[..], &["-d", r#"{"n": {{row.z}}, "s": "{{row.z}}"}"#]].concat();
    run_http(&place, 0, &server.url("/{{row.account}}"), &flags);
    let received = server.take();
    for ((head, body), value) in received.into_iter().zip(values) {
        assert!(head.starts_with("POST /1.0 "), "{head}");
        let body = text(body);
        if value.starts_with('"') {
            assert_eq!(body, r#"{"n": é/, "s": "é/"}"#);
        } else {
            let bare = format!("{{\"n\": {value}, \"s\": ");
            assert!(body.starts_with(&bare), "{body}");
            let sent: serde_json::Value = serde_json::from_str(&body.replace("1E+400", "0"))
                .unwrap_or_else(|e| panic!("{e}: {body}"));
            let quoted = sent["s"].as_str().expect("a string").to_owned();
            assert_eq!(quoted, value.replace("1E+400", "0"));
        }
    }
}

#[test]
fn repeated_headers_are_sent_in_order() {
    let (place, server) = (Place::new(), Recorder::start(always));
    fs::write(place.path("users.csv"), "user\nann\n").unwrap();
    let flags = [
        "-H",
        "Cookie: a=1",
        "-H",
        "x-a: {{row.user}}",
        "-H",
        "cookie: b=2",
        "-H",
        "X-A: second",
        "--rows",
        "users.csv",
        "--clients",
        "1",
        "-n",
        "1",
    ];
    run_http(&place, 0, &server.url("/"), &flags);
    let fields = |received: Vec<ReceivedRequest>| -> Vec<String> {
        let (head, _) = received.into_iter().next().expect("a request");
        let lines = head.lines().map(str::to_ascii_lowercase);
        let wanted = |line: &String| line.starts_with("cookie") || line.starts_with("x-a");
        lines.filter(wanted).collect()
    };
    let expected = ["cookie: a=1", "cookie: b=2", "x-a: ann", "x-a: second"];
    assert_eq!(fields(server.take()), expected);

    // The saved plan gives the same run; each secret is asked for by a variable.
    let plan = place.read("run/plan.toml");
    assert!(!plan.contains("b=2"), "{plan}");
    let again = place
        .command(&["run", "run/plan.toml", "-q", "--out", "again"])
        .env("PLIMSOLL_METADATA_COOKIE_1", "a=1")
        .env("PLIMSOLL_METADATA_COOKIE_2", "b=2")
        .output()
        .unwrap();
    assert_eq!(again.status.code(), Some(0), "{}", stderr_of(&again));
    assert_eq!(fields(server.take()), expected);
}

#[test]
fn typed_names_flag_preserves_header_case() {
    let (place, server) = (Place::new(), Recorder::start(always));
    let flags = [
        "-H",
        "X-CaseD: 1",
        "-H",
        "X-SeQ: {{seq}}",
        "--clients",
        "1",
        "-n",
        "1",
    ];
    for (asked, names) in [
        (&["--typed-names"][..], ["X-CaseD: 1", "X-SeQ: 0"]),
        (&[], ["x-cased: 1", "x-seq: 0"]),
    ] {
        run_http(&place, 0, &server.url("/"), &[&flags[..], asked].concat());
        let (head, _) = server.take().remove(0);
        for name in names {
            assert!(head.contains(&format!("\r\n{name}\r\n")), "{head}");
        }
    }
}

#[test]
fn every_expected_header_value_is_required() {
    let (place, server) = (Place::new(), Recorder::start(always));
    let url = server.url("/");
    for (first, code) in [("session=9", 1), ("a=1", 0)] {
        let wanted = format!("Set-Cookie: {first}");
        let flags = [
            "--expect-header",
            &wanted,
            "--expect-header",
            "set-cookie: a=1",
        ];
        let run = run_http(
            &place,
            code,
            &url,
            &[&flags[..], &["--clients", "1", "-n", "2"]].concat(),
        );
        assert_eq!(run["total"]["ok"], if code == 0 { 2 } else { 0 }, "{run}");
        if code != 0 {
            let details = run["details"].to_string();
            assert!(details.contains("not `session=9`"), "{details}");
            assert!(!details.contains("not `a=1`"), "{details}");
        }
    }
}

#[test]
fn templates_in_unsupported_options_are_rejected() {
    let (place, server) = (Place::new(), Recorder::start(always));
    let url = server.url("/");
    for (command, flags) in [
        ("http", &["--expect-body", "\"id\": {{seq}}"][..]),
        ("http", &["--expect-header", "x-id: {{ uuid }}"]),
        (
            "http",
            &["--stream", "sse", "--stream-until", "{{row.end}}"],
        ),
        ("http", &["--host", "{{client}}.example"]),
        ("ws", &["-d", "x", "--until", "contains:{{seq}}"]),
        ("ws", &["-d", "x", "--expect-body", "{{now}}"]),
        ("ws", &["-d", "x", "--error", "{{seq}}"]),
        ("ws", &["-d", "x", "--subprotocol", "{{seq}}"]),
        ("fetch", &["--host", "{{seq}}"]),
    ] {
        let typed = [&[command, &url, "--clients", "1", "--out", "run"], flags].concat();
        let refused = place.run(&typed);
        let said = stderr_of(&refused);
        assert_eq!(refused.status.code(), Some(2), "{typed:?}: {said}");
        assert!(
            said.contains("fields are not supported here"),
            "{typed:?}: {said}"
        );
    }
    assert!(server.take().is_empty());
}

#[test]
fn unclosed_quote_is_reported_with_line() {
    let (place, server) = (Place::new(), Recorder::start(always));
    fs::write(
        place.path("u.csv"),
        "user,city\nann,Ulm\nbob,\"Bern\ncid,Rom\n",
    )
    .unwrap();
    let url = server.url("/");
    let flags = [
        "http",
        &url,
        "--rows",
        "u.csv",
        "-H",
        "x-user: {{row.user}}",
    ];
    let refused = place.run(&[&flags[..], &["--clients", "1", "-n", "1"]].concat());
    let said = stderr_of(&refused);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(
        said.contains("u.csv, line 3: a quote that is never closed"),
        "{said}"
    );
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("a text")
}
