//! Sessions as a person runs them: the whole stack in one process, each ready plan, the
//! report, and what is reported when the stack is not there.

#![allow(clippy::disallowed_methods, reason = "tests wait in real time")]

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use support::{Place, Server, signal, wait};

/// `serve llm --with-gateway` on free ports.
struct Stack {
    child: Child,
    api: String,
    gateway: String,
    /// Kept open: the server prints what it counted at its end.
    rest: BufReader<std::process::ChildStdout>,
}

impl Stack {
    fn start(place: &Place) -> Stack {
        Stack::start_with(place, &[])
    }

    fn start_with(place: &Place, more: &[&str]) -> Stack {
        Stack::start_without(place, &[&["--token-delay", "2ms"], more].concat())
    }

    /// With the tokens' pace as it is, or as `more` has it.
    fn start_without(place: &Place, more: &[&str]) -> Stack {
        let mut child = place
            .command(&[
                "serve",
                "llm",
                "--listen",
                "127.0.0.1:0",
                "--with-gateway",
                "127.0.0.1:0",
                "--drain",
                "1s",
            ])
            .args(more)
            .stdout(Stdio::piped())
            .spawn()
            .expect("plimsoll starts");
        let mut lines = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let mut address = || {
            let mut line = String::new();
            lines.read_line(&mut line).expect("a line");
            let address = line.trim().rsplit(' ').next().expect("a word").to_owned();
            assert!(address.contains(':'), "{line}");
            address
        };
        let (api, gateway) = (address(), address());
        Stack {
            child,
            api,
            gateway,
            rest: lines,
        }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        signal(&self.child, rustix::process::Signal::TERM);
        let code = wait(&mut self.child);
        if !std::thread::panicking() {
            assert_eq!(code, 0, "the server stops in good order");
        }
    }
}

#[test]
fn every_ready_plan_of_sessions_runs() {
    let place = Place::new();
    let stack = Stack::start(&place);
    let plans = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plans");
    let mut seen = 0;
    for entry in fs::read_dir(plans).expect("plans/ is there") {
        let path = entry.expect("an entry").path();
        let name = path
            .file_stem()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        if !name.starts_with("sessions-") {
            continue;
        }
        let plan = fs::read_to_string(&path).expect("a plan");
        let plan = plan
            .replace("localhost:8000", &stack.api)
            .replace("localhost:4040", &stack.gateway);
        fs::write(place.path("plan.toml"), &plan).expect("a file");
        let queries: u64 = plan
            .lines()
            .find_map(|line| line.strip_prefix("queries = "))
            .and_then(|n| n.trim().parse().ok())
            .expect("queries");
        let arguments = [
            "run",
            "plan.toml",
            "--clients",
            "3",
            "--think",
            "0s",
            "--out",
            &name,
            "-q",
        ];
        // A plan with objectives may end with 90 or 99 on a busy machine.
        let code = place.run(&arguments).status.code();
        assert!(matches!(code, Some(0 | 90 | 99)), "{name}: {code:?}");
        let run = place.run_json(&name);
        assert_eq!(run["total"]["ok"], 3 * queries, "{name}: {run}");
        assert_eq!(run["count_check"]["matches"], true, "{name}");
        let counts = &run["total"]["measures"]["counts"];
        assert_eq!(counts["tokens_received"], 3 * queries * 18, "{name}");
        assert_eq!(counts["tokens_missing"], 0, "{name}");
        assert_eq!(counts["sessions_ok"], 3, "{name}");
        seen += 1;
    }
    assert_eq!(seen, 4);
}

#[test]
fn a_run_of_sessions_is_reported_and_read_back() {
    let place = Place::new();
    let stack = Stack::start(&place);
    let (api, socket) = (
        format!("session://{}", stack.api),
        format!("ws://{}", stack.gateway),
    );
    let out = place.expect(
        0,
        &[
            "session",
            &api,
            "--socket",
            &socket,
            "--clients",
            "5",
            "--queries",
            "2",
            "--out",
            "run",
            "-q",
        ],
    );
    assert!(out.contains("5 ok, 0 failed"), "{out}");
    assert!(out.contains("180 received once"), "{out}");
    assert!(out.contains("token gap"), "{out}");
    // But for where the run says that its page is.
    let report = place.expect(0, &["report", "run"]);
    assert!(out.starts_with(&report), "{out}\n{report}");
    // The plan that the run keeps is the same run again.
    let saved = place.read("run/plan.toml");
    fs::write(place.path("again.toml"), saved).expect("a file");
    place.expect(0, &["run", "again.toml", "--out", "again", "-q"]);
    let again = place.run_json("again");
    assert_eq!(again["total"]["ok"], 10);
    // For a time: clients begin their next session until it is up.
    place.expect(
        0,
        &[
            "session",
            &api,
            "--socket",
            &socket,
            "--clients",
            "2",
            "--queries",
            "3",
            "--duration",
            "500ms",
            "--out",
            "timed",
            "-q",
        ],
    );
    let timed = place.run_json("timed");
    assert_eq!(timed["total"]["errors"], 0, "{timed}");
    assert_eq!(timed["count_check"]["matches"], true, "{timed}");
    assert!(timed["total"]["ok"].as_u64() > Some(6), "{timed}");
}

#[test]
fn a_stack_that_is_stopped_lets_its_runs_end() {
    let place = Place::new();
    // Runs of 600 ms, in a second of drain time.
    let mut stack = Stack::start_with(&place, &["--tokens", "300"]);
    let (api, socket) = (
        format!("session://{}", stack.api),
        format!("ws://{}", stack.gateway),
    );
    let arguments = ["session", &api, "--socket", &socket, "--clients", "5"];
    let mut load = place
        .command(&arguments)
        .args(["--out", "run", "-q"])
        .stdout(Stdio::null())
        .spawn()
        .expect("plimsoll starts");
    let begun = (0..2000).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        health(&stack.api).contains("\"runs\":5")
    });
    assert!(begun, "the runs begin");
    signal(&stack.child, rustix::process::Signal::TERM);
    assert_eq!(wait(&mut load), 0);
    let run = place.run_json("run");
    assert_eq!(run["total"]["ok"], 5, "{run}");
    let counts = &run["total"]["measures"]["counts"];
    assert_eq!(counts["tokens_received"], 5 * 300, "{run}");
    let mut printed = String::new();
    stack.rest.read_to_string(&mut printed).expect("text");
    assert!(printed.contains("unfinished 0"), "{printed}");
}

/// What is accepted while the service stops is carried out whole, or is an error.
#[test]
fn runs_that_are_accepted_around_the_end_bring_all_their_tokens() {
    const RUNS: usize = 50;
    let place = Place::new();
    let mut stack = Stack::start_without(&place, &["--token-delay", "20ms"]);
    let connect = |to: &str| {
        let stream = std::net::TcpStream::connect(to).expect("it listens");
        let limit = Some(Duration::from_secs(60));
        stream.set_read_timeout(limit).expect("a time");
        stream
    };
    let mut open = Vec::new();
    for _ in 0..RUNS {
        let (session, token) = session_token(&stack.api);
        let mut socket = connect(&stack.gateway);
        write!(
            socket,
            "GET /agent/ws/{session} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
             Authorization: Bearer {token}\r\n\r\n"
        )
        .expect("it reads");
        // All of a request but its end.
        let mut run = connect(&stack.api);
        write!(
            run,
            "POST /session/{session}/run HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n"
        )
        .expect("it reads");
        open.push((socket, run));
    }
    signal(&stack.child, rustix::process::Signal::TERM);
    let began = std::time::Instant::now();
    while std::net::TcpStream::connect(&stack.api).is_ok() {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "it stops listening"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    for (_, run) in &mut open {
        // It may be gone; then there is no answer.
        let _ = run.write_all(b"\r\n");
    }
    let mut accepted = 0;
    for (mut socket, mut run) in open {
        let mut answer = String::new();
        let _ = run.read_to_string(&mut answer);
        let mut came = Vec::new();
        let _ = socket.read_to_end(&mut came);
        let came = String::from_utf8_lossy(&came);
        if !answer.starts_with("HTTP/1.1 200 ") {
            continue;
        }
        accepted += 1;
        assert_eq!(came.matches(r#""type":"token""#).count(), 18, "{came}");
        assert!(came.contains(r#""finish":"stop""#), "{came}");
    }
    assert!(accepted > 0, "none of the runs was accepted");
    let mut printed = String::new();
    stack.rest.read_to_string(&mut printed).expect("text");
    assert!(
        printed.contains(&format!("runs {accepted}, tokens {}", accepted * 18)),
        "{printed}"
    );
    assert!(printed.contains("unfinished 0"), "{printed}");
}

fn session_token(api: &str) -> (String, String) {
    let mut request = std::net::TcpStream::connect(api).expect("it listens");
    request
        .write_all(b"POST /session/create HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        .expect("it reads");
    let mut made = String::new();
    request.read_to_string(&mut made).expect("an answer");
    let (_, made) = made.split_once("\r\n\r\n").expect("a body");
    let made: serde_json::Value = serde_json::from_str(made).expect("JSON");
    let text = |key: &str| made[key].as_str().expect("text").to_owned();
    (text("session_id"), text("auth_token"))
}

#[test]
fn certificates_and_secrets_are_read_again_at_a_hangup() {
    let place = Place::new();
    let secret = |byte: u8| vec![byte; 40];
    let signed_with = |api: &str, byte: u8| {
        let (session, token) = session_token(api);
        let verifier = plimsoll_relays::token::Verifier::new(&[secret(byte)]).expect("a secret");
        verifier.check(&token, &session).is_ok()
    };
    let until = |what: &str, is_so: &dyn Fn() -> bool| {
        let began = std::time::Instant::now();
        while !is_so() {
            assert!(began.elapsed() < Duration::from_secs(60), "{what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    fs::write(place.path("secret"), secret(b'a')).expect("a file");
    let stack = Stack::start_with(&place, &["--jwt-secret-file", "secret"]);
    assert!(signed_with(&stack.api, b'a'));
    // One that can't be used changes nothing.
    fs::write(place.path("secret"), "short").expect("a file");
    signal(&stack.child, rustix::process::Signal::HUP);
    assert!(signed_with(&stack.api, b'a'));
    fs::write(place.path("secret"), secret(b'b')).expect("a file");
    signal(&stack.child, rustix::process::Signal::HUP);
    until("another secret", &|| signed_with(&stack.api, b'b'));

    place.certificates();
    let tls = [
        "--tls-cert",
        "certs/server.crt",
        "--tls-key",
        "certs/server.key",
        "--tls-client-ca",
        "clients.crt",
    ];
    fs::copy(place.path("certs/ca.crt"), place.path("clients.crt")).expect("a file");
    let stack = Stack::start_with(&place, &tls);
    let port = |address: &str| address.rsplit(':').next().expect("a port").to_owned();
    let api = format!("sessions://localhost:{}", port(&stack.api));
    let socket = format!("wss://localhost:{}", port(&stack.gateway));
    let runs = std::cell::Cell::new(0);
    let load = |ca: &str, whose: &str| {
        let (cert, key) = (format!("{whose}/client.crt"), format!("{whose}/client.key"));
        let shown = ["--cert", &cert, "--key", &key];
        let out = format!("run-{}", runs.replace(runs.get() + 1));
        let to = ["session", &api, "--socket", &socket, "--clients", "1", "-q"];
        let output = place.run(&[&to[..], &shown, &["--ca", ca, "--out", &out]].concat());
        (output.status.code(), support::stderr_of(&output))
    };
    let (code, printed) = load("certs/ca.crt", "certs");
    assert_eq!(code, Some(0), "{printed}");
    place.expect(0, &["certs", "others"]);
    for name in ["server.crt", "server.key"] {
        fs::copy(
            place.path("others").join(name),
            place.path("certs").join(name),
        )
        .expect("a file");
    }
    // It is read again by itself as well, within a second.
    signal(&stack.child, rustix::process::Signal::HUP);
    until("another certificate", &|| {
        load("others/ca.crt", "certs").0 == Some(0)
    });
    // So is the CA of the clients, by gateway and API.
    fs::copy(place.path("others/ca.crt"), place.path("clients.crt")).expect("a file");
    signal(&stack.child, rustix::process::Signal::HUP);
    until("another client", &|| {
        load("others/ca.crt", "others").0 == Some(0)
    });
    assert_ne!(load("others/ca.crt", "certs").0, Some(0));
}

#[test]
fn messages_are_compressed_where_both_ends_want_that() {
    let place = Place::new();
    // Words that repeat themselves; the frames of one token are short.
    let text = "carries ".repeat(40).replace(' ', "-") + " end";
    let text = ["--text", &text, "--tokens", "40"];
    let stacks = [
        Stack::start_with(&place, &text),
        Stack::start_with(&place, &[&text[..], &["--compression"]].concat()),
    ];
    // What passed on the wire, as a relay in between counts it.
    let received = |stack: &Stack, flags: &[&str]| {
        let _ = fs::remove_dir_all(place.path("run"));
        let _ = fs::remove_file(place.path("relay.log"));
        let route = format!(
            "access_log = \"relay.log\"\n[[route]]\nname = \"r\"\nprotocol = \"tcp\"\n\
             listen = \"127.0.0.1:0\"\nupstream = [\"{}\"]\n",
            stack.gateway
        );
        fs::write(place.path("relay.toml"), route).expect("a file");
        let relay = Server::start(&mut place.command(&["relay", "sidecar", "relay.toml"]));
        let (api, socket) = (format!("session://{}", stack.api), relay.address());
        let socket = format!("ws://{socket}");
        let to = [
            "session", &api, "--socket", &socket, "--json", "-q", "--out", "run",
        ];
        let load = ["--clients", "3", "--queries", "2"];
        let run = place.expect_json(0, &[&to[..], &load, flags].concat());
        assert_eq!(run["total"]["ok"], 6, "{run}");
        let counts = &run["total"]["measures"]["counts"];
        assert_eq!(counts["tokens_received"], 240, "{run}");
        assert_eq!(relay.stop().0, 0);
        let log = place.read("relay.log");
        let lines = log.lines().map(serde_json::from_str::<serde_json::Value>);
        let bytes = lines.map(|line| {
            line.expect("JSON")["bytes_down"]
                .as_u64()
                .expect("a number")
        });
        bytes.sum::<u64>()
    };
    let offer = ["--compression"];
    let [plain, deflating] = &stacks;
    let whole = received(plain, &[]);
    // An offer alone changes nothing, at either end.
    let near = whole * 9 / 10..whole * 11 / 10;
    assert!(near.contains(&received(plain, &offer)));
    assert!(near.contains(&received(deflating, &[])));
    let compressed = received(deflating, &offer);
    assert!(compressed < whole / 2, "{compressed} of {whole}");
}

fn health(api: &str) -> String {
    let mut stream = std::net::TcpStream::connect(api).expect("it listens");
    let request = "GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let mut answer = String::new();
    let asked = stream.write_all(request.as_bytes());
    asked
        .and_then(|()| stream.read_to_string(&mut answer))
        .expect("an answer");
    answer
}

#[test]
fn sessions_are_shared_by_processes() {
    let place = Place::new();
    let stack = Stack::start(&place);
    let (api, socket) = (
        format!("session://{}", stack.api),
        format!("ws://{}", stack.gateway),
    );
    let mut arguments = vec!["session", &api, "--socket", &socket, "--clients", "5"];
    arguments.extend(["--queries", "2", "--processes", "2", "--out", "run", "-q"]);
    let out = place.expect(0, &arguments);
    // Neither a session nor a token more or less than from one process.
    assert!(out.contains("5 ok, 0 failed"), "{out}");
    assert!(out.contains("180 received once"), "{out}");
    assert!(out.contains("from 2 processes"), "{out}");
}

#[test]
fn what_is_wrong_with_sessions_is_reported() {
    let place = Place::new();
    for (arguments, printed) in [
        (
            vec!["session", "grpc://a:1", "--clients", "1"],
            "write session://a:1",
        ),
        (
            vec![
                "session",
                "session://a:1",
                "--clients",
                "1",
                "--socket",
                "http://a:2",
            ],
            "is not the address of WebSockets: write ws://",
        ),
        (
            vec![
                "session",
                "session://a:1",
                "--clients",
                "1",
                "--queries",
                "0",
            ],
            "0 queries",
        ),
        (
            vec![
                "session",
                "session://a:1",
                "--clients",
                "1",
                "--agent",
                "a/b",
            ],
            "not one part of a path",
        ),
        (
            vec![
                "session",
                "session://a:1",
                "--clients",
                "1",
                "--goodput",
                "speed=1s",
            ],
            "not one of first_token (ttft), time_per_token (tpot), query (e2e)",
        ),
        (
            vec![
                "session",
                "session://a:1",
                "--clients",
                "1",
                "--goodput",
                "query=0s",
            ],
            "a bound of 0",
        ),
        (
            vec![
                "session",
                "session://a:1",
                "--clients",
                "1",
                "--ca",
                "x.crt",
            ],
            "sessions://",
        ),
        (
            vec!["session", "session://a:1", "--rate", "1/s", "--think", "1s"],
            "a pause between a session's queries",
        ),
        (vec!["relay", "gateway"], "--redis is missing"),
    ] {
        let output = place.run(&arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let text = support::stderr_of(&output);
        assert!(text.contains(printed), "{arguments:?}: {text}");
    }
    let out = place.run(&[
        "session",
        "session://127.0.0.1:1",
        "--clients",
        "2",
        "--queries",
        "2",
        "--out",
        "run",
        "-q",
    ]);
    assert_eq!(out.status.code(), Some(1));
    assert_eq!(place.run_json("run")["total"]["errors"], 4);
}

#[test]
fn a_run_of_sessions_is_exported_as_rows_and_a_summary() {
    let place = Place::new();
    let stack = Stack::start(&place);
    let out = place.expect(
        0,
        &[
            "session",
            &format!("session://{}", stack.api),
            "--socket",
            &format!("ws://{}", stack.gateway),
            "--clients",
            "5",
            "--queries",
            "20",
            "--requests",
            "--goodput",
            "first_token=20s,query=30s",
            "--goodput",
            "time_per_token=10s",
            "--out",
            "run",
            "-q",
        ],
    );
    let bounds = "100 of 100 queries";
    assert!(out.contains(bounds), "{out}");
    assert!(
        out.contains("within first token 20s, time per token 10s, query 30s"),
        "{out}"
    );
    // Percentiles from p10 on, and bars.
    assert!(out.contains("p10 ") && out.contains(" p95"), "{out}");
    assert!(out.contains("█"), "{out}");

    place.expect(0, &["report", "run", "--export", "sessions", "files"]);
    let mut names: Vec<String> = fs::read_dir(place.path("files"))
        .expect("a folder")
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .into_string()
                .expect("text")
        })
        .collect();
    names.sort();
    let [rows, summary] = &names[..] else {
        panic!("{names:?}");
    };
    // loadtest_YYYYMMDD_HHMMSS
    let stem = rows.strip_suffix(".csv").expect("rows");
    assert_eq!(*summary, format!("{stem}_summary.json"));
    let digits: String = stem.chars().filter(char::is_ascii_digit).collect();
    assert_eq!(digits.len(), 14, "{stem}");
    let csv = place.read(&format!("files/{rows}"));
    let mut lines = csv.split("\r\n");
    let head: Vec<&str> = lines.next().expect("a head").split(',').collect();
    let place_of = |name: &str| head.iter().position(|n| *n == name).expect(name);
    let mut seen = std::collections::BTreeSet::new();
    assert_eq!(
        head.join(","),
        "session_id,query_num,latency,tokens,create_time,connect_time,close_time,\
         reconnect_attempts,successful_reconnects,error"
    );
    for line in lines.filter(|line| !line.is_empty()) {
        let row: Vec<&str> = line.split(',').collect();
        assert_eq!(row.len(), head.len(), "{line}");
        let of = |name: &str| row[place_of(name)];
        assert_eq!((of("error"), of("tokens")), ("", "18"), "{line}");
        assert_eq!(
            (of("reconnect_attempts"), of("successful_reconnects")),
            ("0", "0")
        );
        let seconds = |name: &str| -> f64 { of(name).parse().expect(name) };
        // 18 tokens of 2 ms each.
        assert!(seconds("latency") > 0.034, "{line}");
        assert!(
            seconds("create_time") > 0.0 && seconds("connect_time") > 0.0,
            "{line}"
        );
        assert!(
            seen.insert((row[0].to_owned(), row[1].to_owned())),
            "{line}"
        );
    }
    let expected: std::collections::BTreeSet<(String, String)> = (0..5)
        .flat_map(|session| (1..=20).map(move |query| (session.to_string(), query.to_string())))
        .collect();
    assert_eq!(seen, expected);
    let summary: serde_json::Value =
        serde_json::from_str(&place.read(&format!("files/{summary}"))).expect("json");
    for (key, value) in [
        ("total_sessions", 5),
        ("successful_sessions", 5),
        ("failed_sessions", 0),
        ("total_queries", 100),
        ("successful_queries", 100),
        ("good_queries", 100),
        ("total_tokens", 1800),
        ("total_reconnect_attempts", 0),
        ("total_successful_reconnects", 0),
        ("sessions_with_reconnects", 0),
    ] {
        assert_eq!(summary[key], value, "{key}: {summary}");
    }
    assert_eq!(summary["errors"], serde_json::json!({}));
    let figure = |key: &str| summary[key].as_f64().expect(key);
    assert!(figure("latency_p10") <= figure("latency_p90"), "{summary}");
    assert!(figure("latency_p90") <= figure("latency_max"), "{summary}");
    assert!(figure("tps") > figure("qps") && figure("avg_create_time") > 0.0);
    assert!(
        summary["latency_p99"].is_null(),
        "100 queries don't support p99: {summary}"
    );
    let buckets = summary["latency_histogram"].as_array().expect("a list");
    let counted: u64 = buckets.iter().filter_map(|b| b["count"].as_u64()).sum();
    assert_eq!(counted, 100, "{summary}");

    // Read back, from either of the two.
    for (file, dir) in [
        (rows.clone(), "of_rows"),
        (format!("{stem}_summary.json"), "of_both"),
    ] {
        let file = format!("files/{file}");
        place.expect(0, &["import", &file, "--out", dir]);
        let report = place.expect(0, &["report", dir]);
        for part in ["5 ok, 0 failed", "1,800 received once", "p10 ", "█"] {
            let plain = report.replace('\u{202f}', ",");
            assert!(
                plain.contains(part) || plain.replace(',', "").contains(&part.replace(',', "")),
                "{part}: {report}"
            );
        }
        let imported = place.run_json(dir);
        assert_eq!(imported["total"]["ok"], 100, "{imported}");
    }

    // Without the calls there are no rows; and a run of something else has no sessions.
    place.expect(
        0,
        &[
            "session",
            &format!("session://{}", stack.api),
            "--socket",
            &format!("ws://{}", stack.gateway),
            "--clients",
            "1",
            "--out",
            "bare",
            "-q",
        ],
    );
    let output = place.run(&["report", "bare", "--export", "sessions", "none"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(support::stderr_of(&output).contains("no rows to write"));
    let files: Vec<_> = fs::read_dir(place.path("none"))
        .expect("a folder")
        .collect();
    assert_eq!(files.len(), 1, "the summary alone: {files:?}");
}

#[test]
fn variables_of_session_load_tests_are_understood_and_fill_their_folder() {
    let place = Place::new();
    // As the simulator's and the load's own files have them.
    let text = "one two three";
    fs::write(
        place.path(".env"),
        format!("LLM_RESPONSE_TEXT='{text}'\nTOKEN_DELAY_MS=1\nFASTAPI_WORKERS=2\n"),
    )
    .expect("a file");
    let stack = Stack::start_without(&place, &[]);
    fs::write(
        place.path(".env.loadtest"),
        format!(
            "FASTAPI_URL=http://{}\nWSPROXY_URL=ws://{}\nCLIENTS=4\nQUERIES_PER_CLIENT=2\n\
             OUTPUT_DIR=results\nJWT_SECRET=a-secret-of-thirty-two-bytes-or-more\n\
             JWT_ALGORITHM=HS256\nWS_MAX_RECONNECT_ATTEMPTS=5\nWS_INITIAL_BACKOFF_SECONDS=1.0\n\
             WS_MAX_BACKOFF_SECONDS=30.0\n",
            stack.api, stack.gateway
        ),
    )
    .expect("a file");
    place.expect(0, &["session", "--out", "run", "-q"]);
    let run = place.run_json("run");
    assert_eq!(
        (&run["total"]["ok"], &run["total"]["due"]),
        (&8.into(), &8.into()),
        "{run}"
    );
    assert_eq!(run["total"]["measures"]["counts"]["tokens_received"], 8 * 3);
    let mut files = fs::read_dir(place.path("results")).expect("a folder");
    let mut names = Vec::new();
    while let Some(Ok(entry)) = files.next() {
        names.push(entry.file_name().into_string().expect("text"));
    }
    names.sort();
    assert_eq!(names.len(), 2, "{names:?}");
    assert!(
        names[0].starts_with("loadtest_") && names[0].ends_with(".csv"),
        "{names:?}"
    );
    let rows = place.read(&format!("results/{}", names[0]));
    assert_eq!(rows.lines().count(), 1 + 8, "{rows}");
    let plan = place.expect(0, &["session", "--dry-run"]);
    for line in [
        "reconnects = 5",
        "reconnect_pause = \"1s\"",
        "reconnect_pause_most = \"30s\"",
    ] {
        assert!(plan.contains(line), "{line}: {plan}");
    }
    // Another algorithm than the one there is.
    let mut command = place.command(&["relay", "gateway", "--redis", "redis://127.0.0.1:1"]);
    command.env("JWT_ALGORITHM", "RS256");
    let output = support::output(&mut command, Duration::from_secs(60));
    assert_eq!(output.status.code(), Some(2));
    assert!(support::stderr_of(&output).contains("JWT_ALGORITHM: `RS256`"));
}

#[test]
fn a_redis_that_refuses_is_reported_at_the_start() {
    let place = Place::new();
    // Free again when it is known.
    let port = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port().to_string()
    };
    let _redis = Ended(
        std::process::Command::new("redis-server")
            .args(["--port", &port, "--bind", "127.0.0.1", "--save", ""])
            .args(["--requirepass", "right"])
            .current_dir(place.path(""))
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("redis-server is installed: tests/setup.sh tests"),
    );
    let refused = |url: String, flags: &[&str]| {
        let mut command = place.command(&["relay", "gateway", "--listen", "127.0.0.1:0"]);
        command.args(["--redis", &url]).args(flags);
        command.env("JWT_SECRET", "a secret for tests, of 32 bytes and more");
        let output = support::output(&mut command, Duration::from_secs(60));
        let said = support::stderr_of(&output);
        assert!(
            !output.status.success() && !said.contains("wrong"),
            "{said}"
        );
        said.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let limit = std::time::Instant::now() + Duration::from_secs(60);
    // It may not listen yet.
    let said = loop {
        let said = refused(format!("redis://:wrong@127.0.0.1:{port}"), &[]);
        if !said.contains("is not reachable") || std::time::Instant::now() > limit {
            break said;
        }
    };
    assert!(
        said.contains(&format!("redis at 127.0.0.1:{port} answered: WRONGPASS")),
        "{said}"
    );
    std::fs::write(place.path("junk.pem"), "junk").unwrap();
    for (url, flags, needle) in [
        ("redis://a:0", &[][..], "`0` is not a port"),
        ("http://:wrong@a", &[], "`http` is not a scheme"),
        ("redis://a", &["--redis-ca", "junk.pem"], "write rediss://"),
        (
            "rediss://a",
            &["--redis-ca", "none.pem"],
            "--redis-ca: can't read none.pem",
        ),
        (
            "rediss://a",
            &["--redis-ca", "junk.pem"],
            "no CA certificate in PEM",
        ),
    ] {
        let said = refused(url.to_owned(), flags);
        assert!(said.contains(needle), "{url} {flags:?}: {said}");
    }
}

/// Killed when dropped.
struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A script of `tests/peers`, in the environment that has websockets.
fn python(place: &Place, script: &str) -> std::process::Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let python = root.join(".peers/venv/bin/python");
    assert!(
        python.exists(),
        "{} is missing: tests/setup.sh tests makes it",
        python.display()
    );
    let mut command = std::process::Command::new(python);
    command
        .arg(root.join("tests/peers").join(script))
        .current_dir(place.path(""));
    command
}

#[test]
fn websockets_of_python_goes_through_our_gateway() {
    let place = Place::new();
    for (flags, how) in [(&[][..], &[][..]), (&["--compression"], &["compressed"])] {
        let stack = Stack::start_with(&place, flags);
        let mut command = python(&place, "websockets_client.py");
        command.args([&stack.api, &stack.gateway]).args(how);
        let output = support::output(&mut command, Duration::from_secs(60));
        let said = support::text(&output.stdout);
        assert!(
            output.status.success(),
            "{said}{}",
            support::text(&output.stderr)
        );
        assert!(said.starts_with("ok: websockets "), "{said}");
    }
}

#[test]
fn our_sessions_go_through_a_stack_of_python() {
    let place = Place::new();
    let mut server = support::Server::start(&mut python(&place, "websockets_server.py"));
    let sockets = server.next_address();
    let clients = [
        "--clients",
        "12",
        "--queries",
        "3",
        "--reconnect-pause",
        "20ms",
    ];
    let (api, socket) = (
        format!("session://{}", server.address()),
        format!("ws://{sockets}"),
    );
    let to = ["session", &api, "--socket", &socket, "--out", "run", "-q"];
    place.expect(0, &[&to[..], &clients[..]].concat());
    let run = place.run_json("run");
    assert_eq!(run["total"]["ok"], 36, "{run}");
    let counts = &run["total"]["measures"]["counts"];
    assert_eq!(counts["tokens_received"], 36 * 12, "{counts}");
    assert_eq!(counts["tokens_duplicated"], 0, "{counts}");
    // The sockets of every fourth session were dropped in mid-run.
    assert_eq!(counts["reconnects"], 3, "{counts}");
}

#[test]
fn sessions_over_tls_check_who_they_talk_to() {
    let place = Place::new();
    place.certificates();
    let both = ["--tls-version", "1.3", "--tls-version", "1.2"];
    let stack = Stack::start_with(&place, &[&support::SERVER_TLS[..], &both].concat());
    // The certificate is for names, not for this machine's number alone.
    let port = |address: &str| address.rsplit(':').next().expect("a port").to_owned();
    let api = format!("sessions://localhost:{}", port(&stack.api));
    let socket = format!("wss://localhost:{}", port(&stack.gateway));
    let to = [
        "session",
        &api,
        "--socket",
        &socket,
        "--clients",
        "10",
        "--queries",
        "3",
        "-q",
    ];
    for (records, version, spoken) in [
        ("library", "1.3", "TLSv1_3"),
        ("own", "1.3", "TLSv1_3"),
        ("library", "1.2", "TLSv1_2"),
    ] {
        let name = format!("{records}-{version}");
        let flags = [
            "--ca",
            "certs/ca.crt",
            "--records",
            records,
            "--tls-version",
            version,
            "--out",
            &name,
        ];
        let out = place.expect(0, &[&to[..], &flags[..]].concat());
        assert!(out.contains("TLS (TLS_"), "{out}");
        let run = place.run_json(&name);
        // Of the API and of the gateway.
        let handshakes = run["tls"]["handshakes"].as_array().expect("a list");
        assert!(
            handshakes.iter().all(|h| h["version"] == spoken),
            "{handshakes:?}"
        );
        assert_eq!(run["total"]["ok"], 30, "{run}");
        assert_eq!(run["total"]["measures"]["counts"]["tokens_received"], 540);
    }
    // Another CA is not trusted, and nothing is sent in the clear instead.
    place.expect(0, &["certs", "other"]);
    let flags = [
        "--ca",
        "other/ca.crt",
        "--out",
        "wrong",
        "--reconnects",
        "0",
    ];
    assert_eq!(
        place.run(&[&to[..], &flags[..]].concat()).status.code(),
        Some(1)
    );
    let run = place.run_json("wrong");
    assert_eq!(run["total"]["errors"], 30, "{run}");
    let codes = run["total"]["errors_by_code"].as_array().expect("a list");
    let unknown = codes.iter().find(|e| e["code"] == "TLS_UNKNOWN_CA");
    assert_eq!(unknown.expect("reported")["count"], 10, "{run}");
    // Somebody else's client over the same link, and one that speaks no TLS.
    let mut command = python(&place, "websockets_client.py");
    command.args([
        &format!("localhost:{}", port(&stack.api)),
        &format!("localhost:{}", port(&stack.gateway)),
        "certs/ca.crt",
    ]);
    let output = support::output(&mut command, Duration::from_secs(60));
    assert!(output.status.success(), "{}", support::text(&output.stderr));
    let plain = format!("session://{}", stack.api);
    let flags = ["session", &plain, "--clients", "1", "--out", "plain", "-q"];
    assert_eq!(place.run(&flags).status.code(), Some(1));
}

#[test]
fn our_sessions_go_through_a_stack_of_python_over_tls() {
    let place = Place::new();
    place.certificates();
    let mut command = python(&place, "websockets_server.py");
    command.args(["certs/server.crt", "certs/server.key"]);
    let mut server = support::Server::start(&mut command);
    let port = |address: String| address.rsplit(':').next().expect("a port").to_owned();
    let socket = format!("wss://localhost:{}", port(server.next_address()));
    let api = format!("sessions://localhost:{}", server.port);
    let flags = [
        "--ca",
        "certs/ca.crt",
        "--clients",
        "4",
        "--reconnect-pause",
        "20ms",
    ];
    let to = ["session", &api, "--socket", &socket, "--out", "run", "-q"];
    place.expect(0, &[&to[..], &flags[..]].concat());
    let run = place.run_json("run");
    assert_eq!(
        (&run["total"]["ok"], &run["total"]["due"]),
        (&4.into(), &4.into()),
        "{run}"
    );
    assert_eq!(run["total"]["measures"]["counts"]["reconnects"], 1, "{run}");
}

#[test]
fn sessions_that_the_end_of_the_run_cuts_off_have_not_failed() {
    let place = Place::new();
    let stack = Stack::start_with(&place, &["--tokens", "20000"]);
    let api = format!("session://{}", stack.api);
    let socket = format!("ws://{}", stack.gateway);
    let flags = ["--clients", "5", "--queries", "1", "--duration", "1s"];
    let end = ["--drain", "100ms", "--out", "run", "-q"];
    let arguments = [&["session", &api, "--socket", &socket][..], &flags, &end];
    // Not one query ended well, and none failed.
    place.expect(1, &arguments.concat());
    let run = place.run_json("run");
    let total = &run["total"];
    assert_eq!(
        (&total["cut_off"], &total["errors"]),
        (&5.into(), &0.into())
    );
    assert_eq!(total["errors_by_code"], serde_json::json!([]), "{total}");
    assert_eq!(total["cut_off_by_code"][0]["code"], "CUT_OFF", "{total}");
    assert_eq!(total["measures"]["counts"]["sessions_failed"], 0, "{total}");
    assert_eq!(run["calls_per_connection"], 1, "{run}");
    assert_eq!(run["count_check"]["matches"], true, "{run}");
}
