//! What happens to a measurement, a server and a relay on a defect of this program: panics injected
//! at the worst known places.
//!
//! `make test-release` runs these tests on a release build, too, with only the feature `fault`
//! added.

#![cfg(any(debug_assertions, feature = "fault"))]
#![allow(clippy::disallowed_methods, reason = "tests wait in real time")]

use crate::support;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{MAX_WAIT, ORDER, Place, SCORE, Server, only_run, output, stderr_of, text};

/// EX_SOFTWARE of sysexits.h.
const DEFECT_EXIT_CODE: i32 = 70;

/// Returns a command with `fault` injected in each of its processes.
fn command_with_fault(place: &Place, fault: &str, arguments: &[&str]) -> Command {
    let mut command = place.command(arguments);
    command.env("PLIMSOLL_FAULT", fault);
    command
}

fn count(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("{value} is not a count"))
}

/// Asserts that the output names the place, says that it is Plimsoll's defect, and what to do.
#[track_caller]
fn assert_defect_reported(output: &Output, fault: &str) {
    let printed = stderr_of(output);
    for words in [
        "a bug in plimsoll, not in the target: ",
        &format!("injected fault: {fault}"),
        "please report it",
        "plimsoll --version",
    ] {
        assert!(printed.contains(words), "{words:?} in {printed}");
    }
}

/// Asserts that the run is partial because of `fault` and that every call is counted exactly once.
#[track_caller]
fn assert_partial_run(place: &Place, output: &Output, fault: &str) -> Value {
    let all = format!("{}\n{}", text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(DEFECT_EXIT_CODE), "{all}");
    assert_defect_reported(output, fault);
    let run = place.run_json("run");
    assert_eq!(run["state"], "partial", "{all}");
    let reason = run["reason"].as_str().expect("a reason");
    assert!(reason.contains("a bug in plimsoll"), "{reason}");
    assert!(reason.contains(fault), "{reason}");
    let check = &run["count_check"];
    assert_eq!(check["matches"], true, "{check}");
    assert!(text(&output.stdout).contains("PARTIAL"), "{all}");
    // The measurements are on screen and on the page, and can be read again.
    let report = place.expect(0, &["report", "run"]);
    assert!(text(&output.stdout).starts_with(&report), "{all}");
    assert!(place.path("run/report.html").exists());
    run
}

/// A load of half a minute, which the fault ends early.
fn load<'a>(url: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let fixed = ["--duration", "30s", "--out", "run", "-q"];
    [&["grpc", url], &SCORE[..], &fixed, more].concat()
}

#[test]
fn worker_panic_loses_no_figures() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "1ms"]);
    let url = server.plaintext();
    for more in [
        &["--rate", "400/s"][..],
        &["--clients", "8", "--think", "10ms"],
        &["--rate", "400/s", "--requests"],
    ] {
        let _ = fs::remove_dir_all(place.path("run"));
        let two = ["--connections", "4", "--workers", "2"];
        let arguments = load(&url, &[&two, more].concat());
        let mut command = command_with_fault(&place, "call:600", &arguments);
        let output = output(&mut command, MAX_WAIT);
        let run = assert_partial_run(&place, &output, "call");
        // All 599 calls that ended before, of either worker and any second, and the calls of the
        // other worker that were in flight.
        let ended = count(&run["total"]["ok"]);
        assert!((599..10_000).contains(&ended), "{ended}: {}", run["total"]);
        let lost = count(&run["count_check"]["in_flight"]);
        assert!((1..200).contains(&lost), "{}", run["count_check"]);
    }
    let (code, counted) = server.stop();
    assert_eq!(code, 0, "{counted}");
}

#[test]
fn panic_with_cold_connections_loses_no_figures() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "1ms"]);
    let url = server.plaintext();
    let arguments = load(&url, &["--cold", "--rate", "100/s"]);
    let output = output(
        &mut command_with_fault(&place, "call:120", &arguments),
        MAX_WAIT,
    );
    let run = assert_partial_run(&place, &output, "call");
    assert!(count(&run["total"]["ok"]) >= 119, "{}", run["total"]);
}

#[test]
fn script_panic_loses_no_figures() {
    let place = Place::new();
    let mut command = place.command(&["serve", "llm", "--with-gateway", "127.0.0.1:0"]);
    command.args(["--listen", "127.0.0.1:0", "--token-delay", "1ms"]);
    let mut stack = Server::start(&mut command);
    let (api, socket) = (
        format!("session://{}", stack.address()),
        format!("ws://{}", stack.next_address()),
    );
    let arguments = [
        &["session", &api, "--socket", &socket][..],
        &["--clients", "4", "--queries", "2", "--duration", "30s"],
        &["--out", "run", "-q"],
    ]
    .concat();
    let output = output(
        &mut command_with_fault(&place, "script:2000", &arguments),
        MAX_WAIT,
    );
    let run = assert_partial_run(&place, &output, "script");
    assert!(count(&run["total"]["ok"]) > 0, "{}", run["total"]);
}

#[test]
fn panicking_process_hands_over_its_measurements() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "1ms"]);
    let url = server.plaintext();
    let two = ["--rate", "400/s", "--connections", "4", "--processes", "2"];
    let output = output(
        &mut command_with_fault(&place, "call:400", &load(&url, &two)),
        MAX_WAIT,
    );
    let run = assert_partial_run(&place, &output, "call");
    let reason = run["reason"].as_str().expect("a reason");
    assert!(reason.starts_with("process "), "{reason}");
    // Its own 399 calls, and nearly as many of the other process.
    assert!(count(&run["total"]["ok"]) > 500, "{}", run["total"]);
}

#[test]
fn interval_observer_panic_keeps_results() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "1ms"]);
    let url = server.plaintext();
    let arguments = load(&url, &["--rate", "100/s"]);
    let output = output(
        &mut command_with_fault(&place, "interval:2", &arguments),
        MAX_WAIT,
    );
    let run = assert_partial_run(&place, &output, "interval");
    assert!(count(&run["total"]["ok"]) > 20, "{}", run["total"]);
}

/// A panic in the first call leaves only that call.
#[test]
fn panic_in_first_call_exits_as_defect() {
    let place = Place::new();
    let server = place.serve(&["score"]);
    let url = server.plaintext();
    let mut command = command_with_fault(&place, "call:1", &load(&url, &["--rate", "100/s"]));
    let output = output(&mut command, MAX_WAIT);
    assert_eq!(output.status.code(), Some(DEFECT_EXIT_CODE));
    assert_defect_reported(&output, "call");
}

/// Starts a server with an injected fault and reads its output.
fn serve(place: &Place, fault: &str, arguments: &[&str]) -> Server {
    let mut command = command_with_fault(place, fault, arguments);
    Server::start(command.stderr(Stdio::piped()))
}

/// Asserts that the server continues and reports the panic at its end.
#[track_caller]
fn assert_ends_as_defect(mut server: Server, fault: &str) -> String {
    let stderr = server.child.stderr.take();
    let (code, counted) = server.stop();
    let mut printed = String::new();
    stderr
        .expect("stderr is piped")
        .read_to_string(&mut printed)
        .expect("text");
    assert_eq!(code, DEFECT_EXIT_CODE, "{counted}{printed}");
    assert!(counted.contains("panics 1"), "{counted}");
    assert!(printed.contains("a bug in plimsoll"), "{printed}");
    assert!(
        printed.contains(&format!("injected fault: {fault}")),
        "{printed}"
    );
    counted
}

/// Returns the number that follows some words.
#[track_caller]
fn number_after(text: &str, words: &str) -> u64 {
    let behind = text.split(words).nth(1).unwrap_or_default();
    let digits: String = behind.chars().take_while(char::is_ascii_digit).collect();
    digits
        .parse()
        .unwrap_or_else(|_| panic!("{words:?} in {text}"))
}

#[test]
fn server_survives_connection_panic() {
    let place = Place::new();
    for (name, fault) in [
        ("score", "connection:2"),
        ("fast", "fast:40"),
        // Forty connections trigger this fault point about eighty times while they connect.
        ("hold", "hold:200"),
        ("files", "connection:2"),
    ] {
        let server = serve(&place, fault, &["serve", name, "--listen", "127.0.0.1:0"]);
        let _ = fs::remove_dir_all(place.path("run"));
        let address = server.address();
        let (url, more) = match name {
            "files" => (
                format!("http://{address}/bytes/100"),
                &["--clients", "4", "--calls", "200"][..],
            ),
            "hold" => (
                format!("tcp://{address}"),
                &["--connections", "40", "--for", "2s", "--keepalive", "100ms"][..],
            ),
            _ => (
                format!("grpc://{address}"),
                &["--clients", "4", "--connections", "4", "--calls", "200"][..],
            ),
        };
        let command = match name {
            "files" => "fetch",
            "hold" => "hold",
            _ => "grpc",
        };
        let call = if command == "grpc" { &SCORE[..] } else { &[] };
        let fixed = [command, &url, "--out", "run", "-q", "--json"];
        let flags = [&fixed, call, more].concat();
        // Calls in flight on the lost connections have failed. The connections that replaced them
        // were served by the same server in the same run.
        let first = place.expect_run(0, &flags);
        let of = |run: &Value, key: &str| count(&run["total"][key]);
        let failed = of(&first, "errors");
        assert_eq!(
            of(&first, "ok") + failed,
            of(&first, "due"),
            "{name}: {first}"
        );
        assert!(of(&first, "ok") > of(&first, "due") / 2, "{name}: {first}");
        let _ = fs::remove_dir_all(place.path("run"));
        let again = place.expect_run(0, &flags);
        assert_eq!(again["total"]["errors"], 0, "{name}: {again}");
        assert_eq!(again["total"]["connections_lost"], 0, "{name}: {again}");
        let (fault, _) = fault.split_once(':').expect("a number");
        let counted = assert_ends_as_defect(server, fault);
        let lost = number_after(&counted, "connections broken ");
        assert!(
            lost >= 1 && failed <= lost,
            "{name}: {failed} failed; {counted}"
        );
    }
}

#[test]
fn multiprocess_server_reports_panics_at_exit() {
    let place = Place::new();
    let arguments = [
        "serve",
        "score",
        "--listen",
        "127.0.0.1:0",
        "--processes",
        "2",
    ];
    let mut command = command_with_fault(&place, "connection:3", &arguments);
    let server = Server::start(command.stderr(Stdio::null()));
    let url = server.plaintext();
    let flags = ["--connections", "16", "--clients", "16", "--calls", "200"];
    let fixed = ["grpc", &url, "--out", "run", "-q"];
    place.run(&[&fixed, &SCORE[..], &flags].concat());
    let (code, counted) = server.stop();
    assert_eq!(code, DEFECT_EXIT_CODE, "{counted}");
    assert!(counted.contains("panics "), "{counted}");
}

#[test]
fn sidecar_survives_worker_panic() {
    let place = Place::new();
    let service = place.serve(&["orders"]);
    let toml = format!(
        "admin = \"127.0.0.1:0\"\n[[route]]\nname = \"orders\"\nprotocol = \"grpc\"\n\
         listen = \"127.0.0.1:0\"\nupstream = [\"{}\"]\n",
        service.address()
    );
    fs::write(place.path("sidecar.toml"), toml).expect("writable");
    let mut server = serve(&place, "sidecar:100", &["relay", "sidecar", "sidecar.toml"]);
    let admin = server.next_address();
    let url = server.plaintext();
    let fixed = ["grpc", &url, "--out", "run", "-q", "--json"];
    let load = ["--clients", "4", "--connections", "2", "--calls", "300"];
    let flags = [&fixed, &ORDER[..], &load].concat();
    let run = only_run(&serde_json::from_slice(&place.run(&flags).stdout).expect("a run"));
    assert!(count(&run["total"]["ok"]) > 200, "{run}");
    fs::remove_dir_all(place.path("run")).expect("a run");
    let again = place.expect_run(0, &flags);
    assert_eq!(again["total"]["errors"], 0, "{again}");
    let page = http_get(&admin, "/metrics");
    assert!(
        page.contains("\nplimsoll_sidecar_panics_total 1\n"),
        "{page}"
    );
    let stderr = server.child.stderr.take();
    assert_eq!(server.stop().0, DEFECT_EXIT_CODE);
    drop(stderr);
}

/// Asserts that a process that can no longer wait for its sockets exits with an error that names
/// the system call, after its other threads have finished.
#[track_caller]
fn assert_exits_with_error(mut server: Server, system_call: &str) {
    let code = support::wait(&mut server.child);
    let mut stderr = server.child.stderr.take().expect("stderr is piped");
    let mut printed = String::new();
    stderr.read_to_string(&mut printed).expect("text");
    assert_eq!(code, 1, "{printed}");
    assert!(printed.contains("Error: "), "{printed}");
    assert!(printed.contains(system_call), "{printed}");
}

#[test]
fn server_with_failing_epoll_exits_with_error() {
    let place = Place::new();
    let listen = ["--listen", "127.0.0.1:0", "--workers", "2"];
    for name in ["fast", "hold"] {
        let arguments = [&["serve", name][..], &listen].concat();
        let mut server = serve(&place, "epoll_pwait2:6", &arguments);
        let (address, began) = (server.address(), Instant::now());
        // Each connection wakes one of the workers; late ones are refused.
        while server.child.try_wait().expect("a child").is_none() && began.elapsed() < MAX_WAIT {
            drop(TcpStream::connect(&address));
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_exits_with_error(server, "epoll_pwait2");
    }
}

#[test]
fn sidecar_with_failing_epoll_exits_with_error() {
    let place = Place::new();
    let toml = "workers = 2\nadmin = \"127.0.0.1:0\"\n[[route]]\nname = \"orders\"\nprotocol = \"tcp\"\n\
                listen = \"127.0.0.1:0\"\nupstream = [\"127.0.0.1:1\"]\n";
    fs::write(place.path("sidecar.toml"), toml).expect("writable");
    let arguments = ["relay", "sidecar", "sidecar.toml"];
    // The workers wake up by themselves several times a second.
    assert_exits_with_error(serve(&place, "epoll_pwait2:8", &arguments), "epoll_pwait2");
}

#[test]
fn delays_work_when_timerfd_fails() {
    let place = Place::new();
    let arguments = [
        "serve",
        "score",
        "--listen",
        "127.0.0.1:0",
        "--delay",
        "1ms",
    ];
    let server = serve(&place, "timerfd_settime:2", &arguments);
    let url = server.plaintext();
    let flags = [
        "--clients",
        "1",
        "--calls",
        "20",
        "--out",
        "run",
        "-q",
        "--json",
    ];
    let run = place.expect_run(0, &[&["grpc", &url][..], &SCORE, &flags].concat());
    assert_eq!(count(&run["total"]["ok"]), 20, "{run}");
}

#[test]
fn gateway_survives_connection_panic() {
    let place = Place::new();
    let arguments = ["relay", "gateway", "--echo", "--listen", "127.0.0.1:0"];
    let server = serve(&place, "gateway:1", &arguments);
    assert_eq!(http_get(&server.address(), "/health"), "");
    let answer = http_get(&server.address(), "/health");
    assert!(answer.contains("healthy"), "{answer}");
    assert_ends_as_defect(server, "gateway");
}

/// Returns what a server answers over HTTP/1.1 until it closes the connection.
fn http_get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let limit = Some(Duration::from_secs(30));
    stream.set_read_timeout(limit).expect("a limit");
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    // The server may be gone before everything is sent.
    let _ = stream.write_all(request.as_bytes());
    let mut answer = String::new();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(30) {
        let mut bytes = [0; 4096];
        match stream.read(&mut bytes) {
            Ok(n @ 1..) => answer += &text(&bytes[..n]),
            _ => break,
        }
    }
    answer
}
