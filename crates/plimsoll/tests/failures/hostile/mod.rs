//! Bad input: misbehaving targets, wrong credentials, invalid plans, and inadequate machines.
//!
//! Each must end in bounded time with one clear message (what, where, what to do) or a classified
//! count of every call, with the right exit code and without a panic. Targets that misbehave in the
//! same way on each connection are in `hostile_server`.

mod answers;
mod credentials;
mod machines;
mod mistakes;

use crate::support;

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use plimsoll_protocols::grpc::canned::{CannedConnection, CannedOptions, CannedServer};
use plimsoll_stack::certificates::{CertificateOptions, Validity, make_certificates};
use plimsoll_wire::http2::ErrorCode;
use serde_json::Value;
use support::{
    CLIENT_MTLS, CLIENT_TLS, MAX_WAIT, Place, SCORE, SERVER_MTLS, SERVER_TLS, output,
    print_uncaptured, stderr_of, text,
};

/// Runs a command, which must exit in time, by itself and without a panic.
#[track_caller]
fn run_to_end(command: &mut Command) -> Output {
    let output = output(command, MAX_WAIT);
    let printed = stderr_of(&output);
    assert!(!printed.contains("panicked"), "{printed}");
    assert!(output.status.code().is_some(), "{:?}", output.status);
    output
}

fn score_load<'a>(url: &'a str, flags: &[&'a str]) -> Vec<&'a str> {
    [&["grpc", url, "-q"], &SCORE[..], flags].concat()
}

/// Asserts that the load does not begin because no connection succeeds: one message with the code
/// and `advice`, exit code 1, and a run directory that records it.
#[track_caller]
fn assert_start_fails(place: &Place, url: &str, flags: &[&str], code: &str, advice: &str) {
    let mut arguments = score_load(url, &["--rate", "50/s", "--calls", "5", "--out", "never"]);
    arguments.extend(flags);
    let output = run_to_end(&mut place.command(&arguments));
    let printed = stderr_of(&output);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.contains(&format!("[{code}]")), "{code}: {printed}");
    assert!(printed.contains(url), "{url}: {printed}");
    let help = printed.split("help: ").nth(1).unwrap_or_default();
    assert!(help.contains(advice), "{advice:?}: {printed}");
    // Documents for other programs record it, too.
    place.expect(0, &["report", "never", "--junit", "never.xml"]);
    let junit = fs::read_to_string(place.path("never.xml")).expect("the report");
    assert!(junit.contains("<error ") && junit.contains(code), "{junit}");
}

/// Runs a load to its end; returns `run.json`.
#[track_caller]
fn run_load(place: &Place, exit: i32, arguments: &[&str]) -> Value {
    let _ = fs::remove_dir_all(place.path("run"));
    let mut arguments = arguments.to_vec();
    arguments.extend(["--out", "run"]);
    let output = run_to_end(&mut place.command(&arguments));
    let printed = stderr_of(&output);
    assert_eq!(output.status.code(), Some(exit), "{printed}");
    let run = place.run_json("run");
    assert_eq!(run["count_check"]["matches"], true, "{run}");
    assert_eq!(run["count_check"]["in_flight"], 0, "{run}");
    assert_eq!(run["count_check"]["backlog"], 0, "{run}");
    if run["total"]["ok"] == 0 {
        assert!(printed.contains("not one call succeeded"), "{printed}");
        assert_eq!(exit, 1);
    }
    run
}

/// Returns how often each error occurred.
fn errors(run: &Value) -> Vec<(&str, u64)> {
    run["total"]["errors_by_code"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|e| {
            let code = e["code"].as_str().expect("a code");
            (code, e["count"].as_u64().expect("a count"))
        })
        .collect()
}

/// Asserts that every call over a connection of its own fails, is counted under `code`, and that
/// the run keeps the message.
#[track_caller]
fn assert_cold_calls_fail(place: &Place, url: &str, flags: &[&str], code: &str) {
    let mut arguments = score_load(url, &["--cold", "--rate", "50/s", "--calls", "5"]);
    arguments.extend(flags);
    let run = run_load(place, 1, &arguments);
    assert_eq!(errors(&run), [(code, 5)], "{run}");
    assert_eq!(run["details"][0]["code"], code, "{run}");
    assert_ne!(run["details"][0]["text"], "", "{run}");
}

/// Asserts that a reflection query fails with the same message as a load.
#[track_caller]
fn assert_reflection_fails(place: &Place, url: &str, flags: &[&str], code: &str, advice: &str) {
    let load = ["grpc", url, "-m", "a.B/C", "--clients", "1", "--calls", "1"];
    for arguments in [
        &["grpc", "list", url][..],
        &["grpc", "describe", url, "a.B"],
        &["check", "echo", url],
        &load,
    ] {
        let output = run_to_end(&mut place.command(&[arguments, flags].concat()));
        let printed = stderr_of(&output);
        assert_eq!(output.status.code(), Some(1), "{printed}");
        assert!(printed.contains(&format!("[{code}]")), "{code}: {printed}");
        assert!(printed.contains(url), "{url}: {printed}");
        let help = printed.split("help: ").nth(1).unwrap_or_default();
        assert!(help.contains(advice), "{advice:?}: {printed}");
    }
}

#[track_caller]
fn assert_fails_everywhere(place: &Place, url: &str, flags: &[&str], code: &str, advice: &str) {
    assert_start_fails(place, url, flags, code, advice);
    assert_reflection_fails(place, url, flags, code, advice);
    assert_cold_calls_fail(place, url, flags, code);
}

/// Starts a server that handles each connection with a callback; returns its port. It listens until
/// the test process ends.
fn server(serve: impl Fn(TcpStream) + Clone + Send + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = stream.set_nodelay(true);
            let serve = serve.clone();
            thread::spawn(move || serve(stream));
        }
    });
    port
}

fn plaintext(port: u16) -> String {
    format!("grpc://127.0.0.1:{port}")
}

fn tls(port: u16) -> String {
    format!("grpcs://localhost:{port}")
}

/// Reads and discards until the peer closes.
fn discard_input(mut stream: &TcpStream) {
    let mut buffer = [0; 4096];
    while stream.read(&mut buffer).is_ok_and(|n| n > 0) {}
}

/// Serves valid gRPC; `mood` is called before each write with what is to be written, and ends the
/// connection by returning `false`.
fn serve_grpc(
    mut stream: &TcpStream,
    options: CannedOptions,
    mut mood: impl FnMut(&mut CannedConnection, &mut Vec<u8>, &mut Vec<u32>) -> bool,
) {
    let mut connection = CannedServer::new(options).new_connection();
    let (mut out, mut held) = (Vec::new(), Vec::new());
    connection.send_preface(&mut out);
    let mut buffer = [0; 16 << 10];
    loop {
        if !mood(&mut connection, &mut out, &mut held) || stream.write_all(&out).is_err() {
            return;
        }
        out.clear();
        let Ok(n @ 1..) = stream.read(&mut buffer) else {
            return;
        };
        if connection
            .receive(&buffer[..n], &mut out, &mut held)
            .is_err()
        {
            let _ = stream.write_all(&out);
            return;
        }
    }
}

fn held() -> CannedOptions {
    CannedOptions {
        answered_by_caller: true,
        ..CannedOptions::default()
    }
}

/// Answers `n` requests; returns `true` until more have arrived.
fn answer_first(
    n: usize,
) -> impl FnMut(&mut CannedConnection, &mut Vec<u8>, &mut Vec<u32>) -> bool {
    let mut left = n;
    move |connection, out, held| {
        let answered = held.len().min(left);
        for stream in held.drain(..answered) {
            connection.answer_held_request(stream, out);
        }
        left -= answered;
        held.is_empty()
    }
}

/// Returns pseudo-random bytes, the same in every run.
fn random_bytes(seed: u32) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9) | 1;
    std::iter::repeat_with(|| {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        x.to_le_bytes()
    })
    .take(1024)
    .flatten()
    .collect()
}

// --- credentials ---------------------------------------------------------------------

// --- the wrong server ----------------------------------------------------------------

#[test]
fn tls_and_plaintext_mismatch_is_reported() {
    let place = Place::new();
    place.certificates();
    let plain = place.serve(&["score"]);
    let secure = place.serve(&[&["score"], &SERVER_TLS[..]].concat());
    assert_fails_everywhere(&place, &plain.tls(), &CLIENT_TLS, "TLS_NOT_TLS", "grpc://");
    assert_fails_everywhere(&place, &secure.plaintext(), &[], "NOT_HTTP2", "grpcs://");
}

#[test]
fn http1_server_is_reported() {
    let place = Place::new();
    let port = server(|mut stream| {
        let mut buffer = [0; 4096];
        let _ = stream.read(&mut buffer);
        let _ = stream.write_all(
            b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        );
        let _ = stream.shutdown(Shutdown::Write);
        discard_input(&stream);
    });
    assert_fails_everywhere(&place, &plaintext(port), &[], "NOT_HTTP2", "gRPC server");
}

#[test]
fn closed_port_is_reported_as_refused() {
    let place = Place::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    drop(listener);
    assert_fails_everywhere(&place, &plaintext(port), &[], "CONNECT_REFUSED", "server");
}

#[test]
fn silent_server_causes_connect_timeout() {
    let place = Place::new();
    place.certificates();
    let port = server(|stream| discard_input(&stream));
    let patience = ["--connect-timeout", "300ms"];
    let code = "CONNECT_TIMEOUT";
    assert_fails_everywhere(
        &place,
        &plaintext(port),
        &patience,
        code,
        "--connect-timeout",
    );
    let flags = [&CLIENT_TLS[..], &patience].concat();
    assert_fails_everywhere(&place, &tls(port), &flags, code, "--connect-timeout");
}

#[test]
fn garbage_preface_fails_every_call() {
    let place = Place::new();
    place.certificates();
    static SEED: AtomicU32 = AtomicU32::new(1);
    let port = server(|mut stream| {
        let _ = stream.write_all(&random_bytes(SEED.fetch_add(1, Ordering::Relaxed)));
        let _ = stream.shutdown(Shutdown::Write);
        discard_input(&stream);
    });
    let cold = ["--cold", "--rate", "200/s", "--calls", "100"];
    let run = run_load(&place, 1, &score_load(&plaintext(port), &cold));
    // Most of it does not even look like a frame; the part that does violates the rules for the
    // first frame.
    for (code, _) in errors(&run) {
        assert!(matches!(code, "NOT_HTTP2" | "PROTOCOL_ERROR"), "{run}");
    }
    assert_eq!(run["total"]["errors"], 100, "{run}");
    let flags = [&cold[..], &CLIENT_TLS].concat();
    let run = run_load(&place, 1, &score_load(&tls(port), &flags));
    assert_eq!(errors(&run), [("TLS_NOT_TLS", 100)], "{run}");
}

// --- servers that fail in the middle -------------------------------------------------

// --- plans ---------------------------------------------------------------------------

// --- the machine ---------------------------------------------------------------------
