//! Sessions as users run them: the whole stack in one process, each bundled plan, the report, and
//! the errors if the stack is missing.

#![allow(clippy::disallowed_methods, reason = "tests wait in real time")]

mod abroad;
mod compatibility;
mod ending;
mod journey;
mod problems;
mod searches;

use crate::support;

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
    /// Kept open, because the server prints its counts at its end.
    rest: BufReader<std::process::ChildStdout>,
}

impl Stack {
    fn start(place: &Place) -> Stack {
        Stack::start_with(place, &[])
    }

    fn start_with(place: &Place, more: &[&str]) -> Stack {
        Stack::start_with_default_pace(place, &[&["--token-delay", "2ms"], more].concat())
    }

    /// Starts the stack with the tokens' default pace, unless `more` changes it.
    fn start_with_default_pace(place: &Place, more: &[&str]) -> Stack {
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
fn shipped_session_plans_run() {
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
fn saved_session_run_reports_and_replays() {
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
    // The run's output is the report, followed by the location of its page.
    let report = place.expect(0, &["report", "run"]);
    assert!(out.starts_with(&report), "{out}\n{report}");
    // The plan kept in the run gives the same run again.
    let saved = place.read("run/plan.toml");
    fs::write(place.path("again.toml"), saved).expect("a file");
    place.expect(0, &["run", "again.toml", "--out", "again", "-q"]);
    let again = place.run_json("again");
    assert_eq!(again["total"]["ok"], 10);
    // A duration: clients begin new sessions until it is over.
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
fn sighup_reloads_certificates_and_secrets() {
    let place = Place::new();
    let secret = |byte: u8| vec![byte; 40];
    let signed_with = |api: &str, byte: u8| {
        let (session, token) = session_token(api);
        let verifier = plimsoll_relays::token::TokenKeys::new(&[secret(byte)]).expect("a secret");
        verifier.verify(&token, &session).is_ok()
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
    // An unusable file changes nothing.
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
    // Certificates are also read again without a signal, within a second.
    signal(&stack.child, rustix::process::Signal::HUP);
    until("another certificate", &|| {
        load("others/ca.crt", "certs").0 == Some(0)
    });
    // The gateway and the API also reload the client CA.
    fs::copy(place.path("others/ca.crt"), place.path("clients.crt")).expect("a file");
    signal(&stack.child, rustix::process::Signal::HUP);
    until("another client", &|| {
        load("others/ca.crt", "others").0 == Some(0)
    });
    assert_ne!(load("others/ca.crt", "certs").0, Some(0));
}

#[test]
fn compression_requires_both_ends() {
    let place = Place::new();
    // A long token of repeated words, because frames of ordinary tokens are short.
    let text = "carries ".repeat(40).replace(' ', "-") + " end";
    let text = ["--text", &text, "--tokens", "40"];
    let stacks = [
        Stack::start_with(&place, &text),
        Stack::start_with(&place, &[&text[..], &["--compression"]].concat()),
    ];
    // The bytes on the wire, as a relay in between counts them.
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
        let run = place.expect_run(0, &[&to[..], &load, flags].concat());
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
    // An offer from one side alone does not enable compression.
    let near = whole * 9 / 10..whole * 11 / 10;
    assert!(near.contains(&received(plain, &offer)));
    assert!(near.contains(&received(deflating, &[])));
    let compressed = received(deflating, &offer);
    assert!(compressed < whole / 2, "{compressed} of {whole}");
}

fn get_health(api: &str) -> String {
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
    // Sessions and tokens are exactly those of one process.
    assert!(out.contains("5 ok, 0 failed"), "{out}");
    assert!(out.contains("180 received once"), "{out}");
    assert!(out.contains("from 2 processes"), "{out}");
}

#[test]
fn tls_sessions_verify_server_certificate() {
    let place = Place::new();
    place.certificates();
    let both = ["--tls-version", "1.3", "--tls-version", "1.2"];
    let stack = Stack::start_with(&place, &[&support::SERVER_TLS[..], &both].concat());
    // The certificate is valid for names, not only for this machine's address.
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
        // The log lines of the API and of the gateway.
        let handshakes = run["tls"]["handshakes"].as_array().expect("a list");
        assert!(
            handshakes.iter().all(|h| h["version"] == spoken),
            "{handshakes:?}"
        );
        assert_eq!(run["total"]["ok"], 30, "{run}");
        assert_eq!(run["total"]["measures"]["counts"]["tokens_received"], 540);
    }
    // Another CA is not trusted, and nothing is sent in plaintext instead.
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
    // A third-party client over the same link, and one that does not speak TLS.
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

/// A child process, killed when dropped.
struct KilledOnDrop(std::process::Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns a script of `tests/peers` in the environment that has websockets.
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
