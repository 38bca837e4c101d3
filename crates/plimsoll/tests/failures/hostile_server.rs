//! Every behaviour of `serve hostile` against a load: the load ends by itself, counts add up, the
//! code is the documented one, and memory is bounded.
//!
//! `HOSTILE=h2-` runs the behaviours whose names begin with `h2-`.

use crate::support;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use plimsoll_hostile::{HostileBehaviour, HostileProtocol, behaviours};
use plimsoll_model::Outcome;
use serde_json::Value;
use support::{CLIENT_TLS, MAX_WAIT, Place, SCORE, SERVER_TLS, output_watched, stderr_of};

/// Concurrent runs; most of their time is waiting.
const MAX_CONCURRENT_RUNS: usize = 4;

/// Most bytes of memory of a load above those of an idle load of the same protocol.
const MAX_EXTRA_BYTES: u64 = 64 << 20;

const CALLS: u64 = 2;

/// The server, and the address of each behaviour.
struct Server {
    child: Child,
    served: Vec<(HostileProtocol, &'static HostileBehaviour, String)>,
}

impl Server {
    fn start(place: &Place) -> Server {
        place.certificates();
        let mut command = place.command(&["serve", "hostile", "--listen", "127.0.0.1:0", "--json"]);
        command
            .args(SERVER_TLS)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut server = Server {
            child: command.spawn().expect("plimsoll starts"),
            served: Vec::new(),
        };
        let out = server.child.stdout.take().expect("stdout is piped");
        let mut lines = BufReader::new(out).lines();
        for (wire, behaviour) in behaviours() {
            let line = lines.next().expect("a line a behaviour").expect("text");
            let line: Value = serde_json::from_str(&line).expect("JSON");
            assert_eq!(line["name"], behaviour.name);
            let url = line["url"].as_str().expect("a URL").to_owned();
            server.served.push((wire, behaviour, url));
        }
        server
    }

    fn of(&self, name: &str) -> &(HostileProtocol, &'static HostileBehaviour, String) {
        let found = self.served.iter().find(|(_, b, _)| b.name == name);
        found.unwrap_or_else(|| panic!("no behaviour {name}"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Behaviours that a client recognises at once, but whose call it only fails at the deadline,
/// because valid frames may still arrive.
const FAILS_AT_DEADLINE: [&str; 2] = ["ws-no-json", "ws-empty-flood"];

/// The error message expected for behaviours that share a code with others.
const EXPECTED_MESSAGES: [(&str, &str); 4] = [
    ("h2-length-short", "more DATA than content-length"),
    ("h2-length-long", "less DATA than content-length"),
    ("h2-length-no-data", "less DATA than content-length"),
    ("h2-length-word", "content-length is not a number"),
];

/// The behaviour that leaves a client of this protocol waiting.
fn idle(wire: HostileProtocol) -> &'static str {
    match wire {
        HostileProtocol::Http2 => "h2-no-answer",
        HostileProtocol::Http1 => "http-silent",
        HostileProtocol::Events => "sse-stall-at-once",
        HostileProtocol::WebSocket => "ws-stall",
        HostileProtocol::Bolt => "bolt-silent",
        HostileProtocol::Tls => "tls-silent-after-handshake",
    }
}

/// The code that a plain HTTP client reports, for behaviours that are not about gRPC or files.
fn expected_http_outcome(behaviour: &HostileBehaviour) -> Outcome {
    let differs = match behaviour.name {
        "grpc-http-503" => "HTTP_503",
        "grpc-http-302" => "HTTP_302",
        // Only gRPC interprets these codes.
        "h2-reset-stream-cancel" | "h2-reset-stream-calm" | "h2-reset-stream-security" => {
            "STREAM_RESET"
        }
        name => {
            // HTTP inspects neither messages nor their status.
            let is_of_messages = name.starts_with("grpc-")
                && !matches!(
                    behaviour.outcome,
                    Outcome::DeadlineExceeded
                        | Outcome::ConnectionClosed
                        | Outcome::Reset
                        | Outcome::ProtocolError
                );
            if is_of_messages {
                "OK"
            } else {
                behaviour.outcome.code()
            }
        }
    };
    Outcome::from_code(differs).expect("a code")
}

/// The client command of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    /// The protocol's own command.
    ProtocolCommand,
    /// The command `plimsoll http`.
    PlainHttp,
}

/// One load and its expected report.
struct Case {
    wire: HostileProtocol,
    name: String,
    load: Vec<String>,
    outcome: Outcome,
}

impl Case {
    fn new(wire: HostileProtocol, behaviour: &HostileBehaviour, url: &str, client: Client) -> Case {
        let (name, outcome) = match client {
            Client::ProtocolCommand => (behaviour.name.to_owned(), behaviour.outcome),
            Client::PlainHttp => (
                format!("{} by http", behaviour.name),
                expected_http_outcome(behaviour),
            ),
        };
        Case {
            wire,
            load: load(wire, behaviour.name, outcome, url, client),
            name,
            outcome,
        }
    }
}

/// Runs a load of two calls on separate connections. The timeout is short if the behaviour is about
/// waiting, and very long if not, so that a busy machine does not cause a timeout.
fn load(
    wire: HostileProtocol,
    name: &str,
    expected: Outcome,
    url: &str,
    client: Client,
) -> Vec<String> {
    let time = |outcome: Outcome| match expected == outcome {
        true => "1s",
        // Long enough to detect the behaviour on a busy machine.
        false if FAILS_AT_DEADLINE.contains(&name) => "5s",
        false => "60s",
    };
    let plain = url.replace("grpc://", "http://");
    let mut flags: Vec<&str> = match wire {
        HostileProtocol::Http2 if client == Client::PlainHttp => {
            vec!["http", &plain, "--http-version", "2"]
        }
        HostileProtocol::Events => vec!["llm", url, "--model", "m"],
        HostileProtocol::Http2 => [&["grpc", url][..], &SCORE].concat(),
        HostileProtocol::Http1 => vec!["fetch", url],
        HostileProtocol::Tls => [&["fetch", url][..], &CLIENT_TLS].concat(),
        HostileProtocol::Bolt => [
            &["bolt", url, "--class", "java.lang.String"][..],
            &["--content", "\"hello\""],
        ]
        .concat(),
        HostileProtocol::WebSocket => vec!["session", url],
    };
    let socket = url.replace("session://", "ws://");
    flags.extend(match wire {
        HostileProtocol::WebSocket => [
            &["--socket", &socket, "--reconnects", "0"][..],
            &["--clients", "2", "--queries", "1"],
        ]
        .concat(),
        _ => vec!["--cold", "--rate", "20/s", "--calls", "2"],
    });
    flags.extend(["--deadline", time(Outcome::DeadlineExceeded)]);
    flags.extend(["--connect-timeout", time(Outcome::ConnectTimeout)]);
    flags.extend(["--drain", "60s", "-q"]);
    flags.into_iter().map(str::to_owned).collect()
}

/// Runs a load with its run directory under `name`; returns what it wrote and its peak memory in
/// bytes (VmHWM of proc_pid_status(5), which only grows).
fn run(place: &Place, name: &str, load: &[String]) -> (Output, u64) {
    let mut arguments: Vec<&str> = load.iter().map(String::as_str).collect();
    arguments.extend(["--out", name]);
    let mut peak = 0;
    let mut command = place.command(&arguments);
    let output = output_watched(command.stdin(Stdio::null()), MAX_WAIT, |child| {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id()));
        let kilobytes = status.ok().and_then(|status| {
            let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        });
        // A process that has exited but was not waited for has no memory.
        peak = peak.max(kilobytes.unwrap_or(0) << 10);
    });
    (output, peak)
}

/// Returns what is wrong with the report.
fn find_problems(place: &Place, case: &Case, output: &Output) -> String {
    let printed = stderr_of(output);
    let Some(code) = output.status.code() else {
        return format!("ended by a signal: {printed}");
    };
    if printed.contains("panicked") {
        return printed;
    }
    let Ok(text) = fs::read_to_string(place.path(&case.name).join("run.json")) else {
        return format!("exit code {code} and no run: {printed}");
    };
    let run: Value = match serde_json::from_str(&text) {
        Ok(run) => run,
        Err(e) => return format!("run.json: {e}"),
    };
    let total = &run["total"];
    let mut seen: BTreeMap<&str, u64> = total["errors_by_code"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|error| Some((error["code"].as_str()?, error["count"].as_u64()?)))
        .collect();
    let ok = total["ok"].as_u64().unwrap_or(0);
    if ok > 0 {
        seen.insert("OK", ok);
    }
    let mut problems = String::new();
    // On a very busy machine a call's deadline may pass before the load could begin it; such a call
    // is attributed to nobody.
    let not_started = total["not_started"].as_u64().unwrap_or(0);
    let begun = CALLS.saturating_sub(not_started).max(1);
    let expected = BTreeMap::from([(case.outcome.code(), begun)]);
    if seen != expected || total["due"] != CALLS {
        let due = &total["due"];
        let _ = write!(problems, "{seen:?} of {due}, expected {expected:?}; ");
    }
    let told = run["details"][0]["text"].as_str().unwrap_or_default();
    if let Some((_, words)) = EXPECTED_MESSAGES
        .iter()
        .find(|(name, _)| case.name.starts_with(name))
        && !told.contains(words)
    {
        let _ = write!(problems, "the message lacks {words:?}: ");
    }
    let check = &run["count_check"];
    if check["matches"] != true || check["in_flight"] != 0 || check["backlog"] != 0 {
        let _ = write!(problems, "the counts differ: {check}; ");
    }
    let expected_exit = i32::from(ok == 0);
    if code != expected_exit {
        let _ = write!(
            problems,
            "exit code {code}, expected {expected_exit}: {printed}; "
        );
    }
    if !problems.is_empty() {
        let _ = write!(problems, "{}", run["details"]);
    }
    problems
}

#[test]
fn every_behaviour_ends_with_its_error_code() {
    let place = Place::new();
    let server = Server::start(&place);
    let idle: BTreeMap<HostileProtocol, u64> = HostileProtocol::ALL
        .into_iter()
        .map(|wire| {
            let (_, behaviour, url) = server.of(idle(wire));
            let case = Case::new(wire, behaviour, url, Client::ProtocolCommand);
            let (output, peak) = run(&place, "idle", &case.load);
            let printed = stderr_of(&output);
            assert!(peak > 1 << 20, "{wire:?}: {peak} B, {printed}");
            fs::remove_dir_all(place.path("idle")).unwrap_or_else(|e| panic!("{e}: {printed}"));
            (wire, peak)
        })
        .collect();
    let only = std::env::var("HOSTILE").unwrap_or_default();
    let chosen: Vec<Case> = server
        .served
        .iter()
        .filter(|(_, behaviour, _)| behaviour.name.starts_with(&only))
        .flat_map(|(wire, behaviour, url)| {
            // The plain HTTP client already covers files.
            let is_http2 = matches!(wire, HostileProtocol::Http2);
            let clients = [Client::ProtocolCommand]
                .into_iter()
                .chain(is_http2.then_some(Client::PlainHttp));
            clients.map(|client| Case::new(*wire, behaviour, url, client))
        })
        .collect();
    assert!(!chosen.is_empty(), "no behaviour begins with {only}");
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..MAX_CONCURRENT_RUNS {
            scope.spawn(|| {
                while let Some(case) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (output, peak) = run(&place, &case.name, &case.load);
                    let mut problems = find_problems(&place, case, &output);
                    let idle = idle[&case.wire];
                    if peak > idle + MAX_EXTRA_BYTES {
                        let _ = write!(problems, "held {peak} B, idle {idle} B");
                    }
                    if !problems.is_empty() {
                        let line = format!("{}: {problems}", case.name);
                        failed.lock().expect("nobody panics with it").push(line);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().expect("nobody panics with it");
    assert!(
        failed.is_empty(),
        "{} of {}:\n{}",
        failed.len(),
        chosen.len(),
        failed.join("\n")
    );
}

/// The page has a row for each behaviour between its two marks; `SNAPSHOTS=overwrite` writes them.
#[test]
fn page_lists_every_behaviour() {
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/hostile.md");
    let text = fs::read_to_string(&page).expect("docs/hostile.md");
    let mut rows = String::new();
    let mut last = None;
    for (wire, behaviour) in behaviours() {
        if last.replace(wire) != Some(wire) {
            let _ = write!(
                rows,
                "\n## {}\n\n| behaviour | what the server does | code |\n|---|---|---|\n",
                wire.name()
            );
        }
        let certificate = if behaviour.needs_certificate {
            " ¹"
        } else {
            ""
        };
        let _ = writeln!(
            rows,
            "| `{}`{certificate} | {} | `{}` |",
            behaviour.name,
            behaviour.description,
            behaviour.outcome.code()
        );
    }
    let (begin, end) = ("<!-- behaviours -->\n", "\n<!-- end of behaviours -->");
    let (head, rest) = text.split_once(begin).expect("the first mark");
    let (listed, tail) = rest.split_once(end).expect("the second mark");
    if std::env::var("SNAPSHOTS").is_ok_and(|wish| wish == "overwrite") {
        fs::write(&page, format!("{head}{begin}{rows}{end}{tail}")).expect("the page is written");
        return;
    }
    assert!(
        listed == rows,
        "docs/hostile.md is behind the code: SNAPSHOTS=overwrite cargo test -p plimsoll --test failures hostile_server"
    );
}
