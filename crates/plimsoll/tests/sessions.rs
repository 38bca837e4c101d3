//! Sessions as a person runs them: the whole stack in one process, each ready plan, the
//! report, and what is told when the stack is not there.

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

use support::{Place, signal, wait};

/// `serve llm --with-gateway` on free ports.
struct Stack {
    child: Child,
    api: String,
    gateway: String,
    /// Kept open: the server tells what it counted at its end.
    _rest: BufReader<std::process::ChildStdout>,
}

impl Stack {
    fn start(place: &Place) -> Stack {
        let mut child = place
            .command(&[
                "serve",
                "llm",
                "--listen",
                "127.0.0.1:0",
                "--with-gateway",
                "127.0.0.1:0",
                "--token-delay",
                "2ms",
                "--drain",
                "1s",
            ])
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
            _rest: lines,
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
    assert_eq!(place.expect(0, &["report", "run"]), out);
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
fn what_is_wrong_with_sessions_is_told() {
    let place = Place::new();
    for (arguments, told) in [
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
            "write ws://HOST:PORT",
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
        (vec!["serve", "llm"], "--with-gateway"),
        (vec!["relay", "gateway"], "--redis is missing"),
    ] {
        let output = place.run(&arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let text = support::told(&output);
        assert!(text.contains(told), "{arguments:?}: {text}");
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
