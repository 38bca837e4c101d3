//! Bad input: targets that misbehave, credentials that don't fit, plans and machines that
//! are not up to it.
//!
//! Each must end in bounded time with one clear message (what, where, what to do) or a
//! classified count of every call, with the right exit code, and never with a panic. Targets that
//! misbehave towards each connection alike are in `hostile_server`.

mod support;

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

use plimsoll_protocols::grpc::canned::{Canned, CannedConnection, CannedOptions};
use plimsoll_stack::certificates::{Options, Validity, make_certificates};
use plimsoll_wire::http2::ErrorCode;
use serde_json::Value;
use support::{
    CLIENT_MTLS, CLIENT_TLS, LONGEST, Place, SCORE, SERVER_MTLS, SERVER_TLS, aloud, output,
    stderr_of, text,
};

/// Runs a command: it ends in time, by itself, and without a panic.
#[track_caller]
fn attempt(command: &mut Command) -> Output {
    let output = output(command, LONGEST);
    let printed = stderr_of(&output);
    assert!(!printed.contains("panicked"), "{printed}");
    assert!(output.status.code().is_some(), "{:?}", output.status);
    output
}

fn score<'a>(url: &'a str, flags: &[&'a str]) -> Vec<&'a str> {
    [&["grpc", url, "-q"], &SCORE[..], flags].concat()
}

/// No connection comes up, so the load does not begin: one message with the code and
/// `advice`, exit code 1, and a run directory that says so.
#[track_caller]
fn cannot_begin(place: &Place, url: &str, flags: &[&str], code: &str, advice: &str) {
    let mut arguments = score(url, &["--rate", "50/s", "--calls", "5", "--out", "never"]);
    arguments.extend(flags);
    let output = attempt(&mut place.command(&arguments));
    let printed = stderr_of(&output);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.contains(&format!("[{code}]")), "{code}: {printed}");
    assert!(printed.contains(url), "{url}: {printed}");
    let help = printed.split("help: ").nth(1).unwrap_or_default();
    assert!(help.contains(advice), "{advice:?}: {printed}");
    // Whoever reads reports learns of it, too.
    place.expect(0, &["report", "never", "--junit", "never.xml"]);
    let junit = fs::read_to_string(place.path("never.xml")).expect("the report");
    assert!(junit.contains("<error ") && junit.contains(code), "{junit}");
}

/// A run that is counted to its end; `run.json`.
#[track_caller]
fn counted(place: &Place, exit: i32, arguments: &[&str]) -> Value {
    let _ = fs::remove_dir_all(place.path("run"));
    let mut arguments = arguments.to_vec();
    arguments.extend(["--out", "run"]);
    let output = attempt(&mut place.command(&arguments));
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

/// How often each error happened.
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

/// Every call over a connection of its own fails, is counted under `code`, and the run
/// keeps the message about it.
#[track_caller]
fn each_cold_call_fails(place: &Place, url: &str, flags: &[&str], code: &str) {
    let mut arguments = score(url, &["--cold", "--rate", "50/s", "--calls", "5"]);
    arguments.extend(flags);
    let run = counted(place, 1, &arguments);
    assert_eq!(errors(&run), [(code, 5)], "{run}");
    assert_eq!(run["details"][0]["code"], code, "{run}");
    assert_ne!(run["details"][0]["text"], "", "{run}");
}

/// A question to a server fails with the same message as a load.
#[track_caller]
fn cannot_be_asked(place: &Place, url: &str, flags: &[&str], code: &str, advice: &str) {
    let load = ["grpc", url, "-m", "a.B/C", "--clients", "1", "--calls", "1"];
    for arguments in [
        &["grpc", "list", url][..],
        &["grpc", "describe", url, "a.B"],
        &["check", "echo", url],
        &load,
    ] {
        let output = attempt(&mut place.command(&[arguments, flags].concat()));
        let printed = stderr_of(&output);
        assert_eq!(output.status.code(), Some(1), "{printed}");
        assert!(printed.contains(&format!("[{code}]")), "{code}: {printed}");
        assert!(printed.contains(url), "{url}: {printed}");
        let help = printed.split("help: ").nth(1).unwrap_or_default();
        assert!(help.contains(advice), "{advice:?}: {printed}");
    }
}

#[track_caller]
fn fails_as(place: &Place, url: &str, flags: &[&str], code: &str, advice: &str) {
    cannot_begin(place, url, flags, code, advice);
    cannot_be_asked(place, url, flags, code, advice);
    each_cold_call_fails(place, url, flags, code);
}

/// A server that does to each connection what it is told to; its port. It listens until
/// the test's process ends.
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

/// Reads and throws away until the peer closes.
fn read_out(mut stream: &TcpStream) {
    let mut buffer = [0; 4096];
    while stream.read(&mut buffer).is_ok_and(|n| n > 0) {}
}

/// A proper gRPC server that looks, before it writes, at what it has to write. `false`
/// from `mood` ends it.
fn grpc(
    mut stream: &TcpStream,
    options: CannedOptions,
    mut mood: impl FnMut(&mut CannedConnection, &mut Vec<u8>, &mut Vec<u32>) -> bool,
) {
    let mut connection = Canned::new(options).connection();
    let (mut out, mut held) = (Vec::new(), Vec::new());
    connection.open(&mut out);
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
        hold: true,
        ..CannedOptions::default()
    }
}

/// Answers `n` requests. `true` until more have come.
fn answer_first(
    n: usize,
) -> impl FnMut(&mut CannedConnection, &mut Vec<u8>, &mut Vec<u32>) -> bool {
    let mut left = n;
    move |connection, out, held| {
        let answered = held.len().min(left);
        for stream in held.drain(..answered) {
            connection.complete(stream, out);
        }
        left -= answered;
        held.is_empty()
    }
}

/// The same bytes at every run, and no sense in them.
fn garbage(seed: u32) -> Vec<u8> {
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

#[test]
fn a_server_of_another_ca() {
    let place = Place::new();
    place.certificates();
    place.expect(0, &["certs", "others"]);
    let server = place.serve(&[&["score"], &SERVER_TLS[..]].concat());
    let flags = ["--ca", "others/ca.crt"];
    fails_as(&place, &server.tls(), &flags, "TLS_UNKNOWN_CA", "--ca");
}

#[test]
fn an_expired_certificate() {
    let place = Place::new();
    let time = |text: &str| text.parse().expect("a time of day");
    let options = Options {
        validity: Validity::Between {
            not_before: time("2024-01-01T00:00:00Z"),
            not_after: time("2024-02-01T00:00:00Z"),
        },
        ..Options::default()
    };
    make_certificates(&place.path("certs"), &options).expect("certificates");
    let server = place.serve(&[&["score"], &SERVER_TLS[..]].concat());
    let code = "TLS_CERTIFICATE_EXPIRED";
    fails_as(&place, &server.tls(), &CLIENT_TLS, code, "renew");
}

/// Checked anew for each connection, or once for all that show the same: what has expired
/// is taken by neither.
#[test]
fn a_certificate_that_expires_while_the_load_runs() {
    let place = Place::new();
    place.certificates_for(Duration::from_secs(5));
    // Not mutual TLS: who of the two finds the other's certificate expired first would be a race.
    let server = place.serve(&[&["score"], &SERVER_TLS[..]].concat());
    let url = server.tls();
    let runs: Vec<Output> = thread::scope(|scope| {
        let started = ["each", "once"].map(|chain| {
            let mut arguments = score(&url, &["--cold", "--rate", "20/s", "--duration", "8s"]);
            arguments.extend(CLIENT_TLS);
            arguments.extend(["--chain", chain, "--out", chain, "--json"]);
            let mut command = place.command(&arguments);
            scope.spawn(move || attempt(&mut command))
        });
        started.map(|run| run.join().expect("a run")).into()
    });
    for (chain, output) in ["each", "once"].into_iter().zip(runs) {
        assert_eq!(output.status.code(), Some(0), "{}", stderr_of(&output));
        let run = place.run_json(chain);
        assert_eq!(run["count_check"]["matches"], true, "{run}");
        let total = &run["total"];
        let [(code, failed)] = errors(&run)[..] else {
            panic!("one kind of error: {run}");
        };
        assert_eq!(code, "TLS_CERTIFICATE_EXPIRED", "{run}");
        let ok = total["ok"].as_u64().expect("a count");
        // Its last second counts whole: six of eight at most, less what the server took to
        // come up.
        assert!((1..=120).contains(&ok), "{ok} and {failed}");
        assert_eq!(ok + failed, 160, "{run}");
        let said = run["details"][0]["text"].as_str().expect("a text");
        assert!(said.contains("the certificate expired at 20"), "{said}");
    }
}

#[test]
fn a_missing_client_certificate_and_one_of_another_ca() {
    let place = Place::new();
    place.certificates();
    place.expect(0, &["certs", "others"]);
    let server = place.serve(&[&["score"], &SERVER_MTLS[..]].concat());
    let code = "TLS_CLIENT_CERTIFICATE_REQUIRED";
    fails_as(&place, &server.tls(), &CLIENT_TLS, code, "--cert");
    let flags = [
        &CLIENT_TLS[..],
        &["--cert", "others/client.crt", "--key", "others/client.key"],
    ]
    .concat();
    let code = "TLS_CLIENT_CERTIFICATE_REJECTED";
    fails_as(&place, &server.tls(), &flags, code, "--cert");
}

#[test]
fn a_certificate_for_another_host_name() {
    let place = Place::new();
    place.certificates();
    let server = place.serve(&[&["score"], &SERVER_TLS[..]].concat());
    let flags = [&CLIENT_TLS[..], &["--server-name", "api.test"]].concat();
    let code = "TLS_NAME_MISMATCH";
    fails_as(&place, &server.tls(), &flags, code, "--server-name");
}

#[test]
fn key_files_that_are_of_no_use() {
    let place = Place::new();
    place.certificates();
    place.expect(0, &["certs", "others"]);
    fs::write(place.path("text.key"), "not a key\n").expect("writable");
    for (key, words) in [
        ("nowhere.key", &["nowhere.key", "No such file"][..]),
        ("certs", &["client key certs", "a folder, not a file"]),
        ("text.key", &["text.key", "PRIVATE KEY"]),
        ("certs/client.crt", &["certs/client.crt", "PRIVATE KEY"]),
        (
            "others/client.key",
            &["others/client.key", "does not belong"],
        ),
    ] {
        let flags = [
            &["--clients", "1", "--calls", "1", "--out", "never"],
            &CLIENT_TLS[..],
            &["--cert", "certs/client.crt", "--key", key],
        ]
        .concat();
        let output = attempt(&mut place.command(&score("grpcs://localhost:1", &flags)));
        let printed = stderr_of(&output);
        assert_eq!(output.status.code(), Some(1), "{printed}");
        for word in words {
            assert!(printed.contains(word), "{word:?}: {printed}");
        }
        assert!(!place.path("never").exists());
    }
}

/// Run as another user where this one may read everything.
#[test]
fn a_key_file_that_may_not_be_read() {
    let place = Place::new();
    place.certificates();
    // A folder that everyone may enter, with a key that only its owner may read.
    let dir = place.path("");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).expect("ours");
    fs::set_permissions(place.path("certs"), fs::Permissions::from_mode(0o755)).expect("ours");
    for readable in ["certs/ca.crt", "certs/client.crt"] {
        fs::set_permissions(place.path(readable), fs::Permissions::from_mode(0o644)).expect("ours");
    }
    // The binary may lie where other users can't come.
    let binary = place.path("plimsoll");
    fs::copy(env!("CARGO_BIN_EXE_plimsoll"), &binary).expect("a copy of plimsoll");
    let flags = [
        &["--clients", "1", "--calls", "1"],
        &CLIENT_MTLS[..],
        &["--out", "/tmp/never-kept-by-plimsoll-tests"],
    ]
    .concat();
    let mut command = Command::new(&binary);
    command
        .args(score("grpcs://localhost:1", &flags))
        .current_dir(&dir)
        .env_clear();
    if rustix::process::geteuid().is_root() {
        command.uid(65534).gid(65534);
    } else {
        let none = fs::Permissions::from_mode(0o000);
        fs::set_permissions(place.path("certs/client.key"), none).expect("ours");
    }
    let output = attempt(&mut command);
    let printed = stderr_of(&output);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(
        printed.contains("client key certs/client.key: Permission denied"),
        "{printed}"
    );
}

// --- the wrong server ----------------------------------------------------------------

#[test]
fn a_plaintext_port_spoken_to_with_tls_and_the_reverse() {
    let place = Place::new();
    place.certificates();
    let plain = place.serve(&["score"]);
    let secure = place.serve(&[&["score"], &SERVER_TLS[..]].concat());
    fails_as(&place, &plain.tls(), &CLIENT_TLS, "TLS_NOT_TLS", "grpc://");
    fails_as(&place, &secure.plaintext(), &[], "NOT_HTTP2", "grpcs://");
}

#[test]
fn an_http_1_server() {
    let place = Place::new();
    let port = server(|mut stream| {
        let mut buffer = [0; 4096];
        let _ = stream.read(&mut buffer);
        let _ = stream.write_all(
            b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        );
        let _ = stream.shutdown(Shutdown::Write);
        read_out(&stream);
    });
    fails_as(&place, &plaintext(port), &[], "NOT_HTTP2", "gRPC server");
}

#[test]
fn nobody_listens() {
    let place = Place::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    drop(listener);
    fails_as(&place, &plaintext(port), &[], "CONNECT_REFUSED", "server");
}

#[test]
fn a_server_that_accepts_and_says_nothing() {
    let place = Place::new();
    place.certificates();
    let port = server(|stream| read_out(&stream));
    let patience = ["--connect-timeout", "300ms"];
    let code = "CONNECT_TIMEOUT";
    fails_as(
        &place,
        &plaintext(port),
        &patience,
        code,
        "--connect-timeout",
    );
    let flags = [&CLIENT_TLS[..], &patience].concat();
    fails_as(&place, &tls(port), &flags, code, "--connect-timeout");
}

#[test]
fn garbage_instead_of_a_greeting() {
    let place = Place::new();
    place.certificates();
    static SEED: AtomicU32 = AtomicU32::new(1);
    let port = server(|mut stream| {
        let _ = stream.write_all(&garbage(SEED.fetch_add(1, Ordering::Relaxed)));
        let _ = stream.shutdown(Shutdown::Write);
        read_out(&stream);
    });
    let cold = ["--cold", "--rate", "200/s", "--calls", "100"];
    let run = counted(&place, 1, &score(&plaintext(port), &cold));
    // Most of it does not even look like a frame; what does breaks the rules for the first.
    for (code, _) in errors(&run) {
        assert!(matches!(code, "NOT_HTTP2" | "PROTOCOL_ERROR"), "{run}");
    }
    assert_eq!(run["total"]["errors"], 100, "{run}");
    let flags = [&cold[..], &CLIENT_TLS].concat();
    let run = counted(&place, 1, &score(&tls(port), &flags));
    assert_eq!(errors(&run), [("TLS_NOT_TLS", 100)], "{run}");
}

// --- servers that fail in the middle -------------------------------------------------

/// With an open loop, a machine that is late sends many calls at once, and all of them are in
/// flight when a connection ends.
const FEW_IN_FLIGHT: [&str; 4] = ["--clients", "2", "--calls", "200"];

#[test]
fn resets_after_some_calls() {
    let place = Place::new();
    let port = server(|stream| {
        grpc(&stream, held(), answer_first(10));
        // Closing without lingering resets the connection, with a call in flight.
        let _ = rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO));
    });
    let run = counted(&place, 0, &score(&plaintext(port), &FEW_IN_FLIGHT));
    assert_eq!(run["total"]["due"], 200);
    let errors = errors(&run);
    assert!(
        matches!(errors[..], [("RESET", n)] if (1..=100).contains(&n)),
        "{errors:?}"
    );
    assert!(run["total"]["connections_full"].as_u64() > Some(5), "{run}");
}

#[test]
fn a_server_that_stops_talking_but_listens_on() {
    let place = Place::new();
    let port = server(|stream| {
        grpc(&stream, held(), answer_first(10));
        let _ = stream.shutdown(Shutdown::Write);
        read_out(&stream);
    });
    let run = counted(&place, 0, &score(&plaintext(port), &FEW_IN_FLIGHT));
    assert_eq!(run["total"]["due"], 200);
    let errors = errors(&run);
    assert!(
        matches!(errors[..], [("CONNECTION_CLOSED", n)] if (1..=100).contains(&n)),
        "{errors:?}"
    );
}

#[test]
fn garbage_between_answers() {
    let place = Place::new();
    static SEED: AtomicU32 = AtomicU32::new(1);
    let port = server(|mut stream| {
        grpc(&stream, held(), answer_first(10));
        let _ = stream.write_all(&garbage(SEED.fetch_add(1, Ordering::Relaxed)));
        let _ = stream.shutdown(Shutdown::Write);
        read_out(&stream);
    });
    let run = counted(&place, 0, &score(&plaintext(port), &FEW_IN_FLIGHT));
    assert!(run["total"]["ok"].as_u64() >= Some(100), "{run}");
    let errors = errors(&run);
    assert!(!errors.is_empty());
    for (code, _) in errors {
        // Garbage that looks like a short unknown frame is skipped, as RFC 9113 §5.5 asks.
        assert!(
            matches!(code, "PROTOCOL_ERROR" | "CONNECTION_CLOSED" | "GOAWAY"),
            "{run}"
        );
    }
}

#[test]
fn a_server_that_writes_a_byte_at_a_time() {
    let place = Place::new();
    let port = server(|mut stream| {
        let drip = |bytes: &[u8]| {
            bytes.iter().all(|byte| {
                thread::sleep(Duration::from_millis(20));
                stream
                    .try_clone()
                    .is_ok_and(|mut s| s.write_all(&[*byte]).is_ok())
            })
        };
        let mut answer = answer_first(usize::MAX);
        grpc(&stream, held(), |connection, out, held| {
            let whole = answer(connection, out, held) && drip(out);
            out.clear();
            whole
        });
        let _ = stream.flush();
    });
    let url = plaintext(port);
    // Slow is not wrong.
    let run = counted(&place, 0, &score(&url, &["--clients", "1", "--calls", "2"]));
    assert_eq!(run["total"]["ok"], 2, "{run}");
    assert!(run["total"]["service"]["min_us"].as_f64() > Some(500_000.0));
    // Unless someone says how slow it may be.
    let flags = ["--clients", "1", "--calls", "1", "--deadline", "200ms"];
    let run = counted(&place, 1, &score(&url, &flags));
    assert_eq!(errors(&run), [("DEADLINE_EXCEEDED", 1)]);
    let patience = ["--connect-timeout", "100ms"];
    fails_as(
        &place,
        &url,
        &patience,
        "CONNECT_TIMEOUT",
        "--connect-timeout",
    );
}

#[test]
fn goaway_after_every_few_calls() {
    let place = Place::new();
    // As servers do that want no call to be lost: announced first, and every call that
    // comes is answered until the client has closed.
    let port = server(|stream| {
        let mut answer = answer_first(usize::MAX);
        let mut announced = false;
        grpc(&stream, held(), |connection, out, held| {
            let goes_on = answer(connection, out, held);
            if !announced && connection.answered() >= 5 {
                announced = true;
                connection.announce_goaway(out);
            }
            goes_on
        });
    });
    let flags = ["--rate", "500/s", "--duration", "2s"];
    let run = counted(&place, 0, &score(&plaintext(port), &flags));
    assert_eq!(run["total"]["ok"], 1000, "{run}");
    assert!(
        run["total"]["connections_full"].as_u64() > Some(50),
        "{run}"
    );

    // Abruptly: the fifth call is the last that counts, whatever is under way.
    let port = server(|stream| {
        let options = CannedOptions {
            goaway_after: Some(5),
            ..CannedOptions::default()
        };
        grpc(&stream, options, |_, _, _| true);
    });
    let run = counted(&place, 0, &score(&plaintext(port), &FEW_IN_FLIGHT));
    assert_eq!(run["total"]["due"], 200, "{run}");
    assert!(run["total"]["ok"].as_u64() > Some(100), "{run}");
    for (code, _) in errors(&run) {
        assert_eq!(code, "GOAWAY", "{run}");
    }
}

#[test]
fn streams_that_are_refused_or_reset() {
    let place = Place::new();
    for (error, code) in [
        (ErrorCode::REFUSED_STREAM, "STREAM_REFUSED"),
        (ErrorCode::INTERNAL_ERROR, "STREAM_RESET"),
    ] {
        let port = server(move |stream| {
            let options = CannedOptions {
                reset_every: Some((4, error)),
                ..CannedOptions::default()
            };
            grpc(&stream, options, |_, _, _| true);
        });
        let flags = ["--clients", "1", "--calls", "100"];
        let run = counted(&place, 0, &score(&plaintext(port), &flags));
        assert_eq!(run["total"]["ok"], 75, "{run}");
        assert_eq!(errors(&run), [(code, 25)]);
    }
}

#[test]
fn calls_that_are_never_answered() {
    let place = Place::new();
    let port = server(|stream| grpc(&stream, held(), |_, _, _| true));
    let url = plaintext(port);
    let flags = ["--rate", "100/s", "--calls", "20", "--deadline", "200ms"];
    let run = counted(&place, 1, &score(&url, &flags));
    assert_eq!(errors(&run), [("DEADLINE_EXCEEDED", 20)]);
    assert!(
        run["total"]["failed"]["min_us"].as_f64() >= Some(199_000.0),
        "{run}"
    );
    // Without a deadline the end of the run ends them.
    let flags = [
        "--rate",
        "100/s",
        "--calls",
        "20",
        "--deadline",
        "none",
        "--drain",
        "200ms",
    ];
    let run = counted(&place, 1, &score(&url, &flags));
    assert_eq!(errors(&run), []);
    let cut_off = &run["total"]["cut_off_by_code"][0];
    assert_eq!(cut_off["code"], "CUT_OFF", "{run}");
    assert_eq!(cut_off["count"], 20, "{run}");
}

// --- plans ---------------------------------------------------------------------------

/// A plan with one line changed: exit code 2, the place, and what would be right.
#[test]
fn plans_with_a_mistake() {
    let place = Place::new();
    let plan = "\
target = \"grpc://127.0.0.1:1\"

[call.grpc]
method = \"score.ScoreService/GetScore\"

[load]
rate = \"10/s\"
duration = \"1s\"
";
    for (right, wrong, words) in [
        (
            "rate =",
            "ratee =",
            &["plan.toml:7:1", "ratee", "did you mean `rate`"][..],
        ),
        ("\"10/s\"", "\"0/s\"", &["plan.toml:7:8", "rate of 0"]),
        ("\"10/s\"", "\"10\"", &["plan.toml:7:8", "no unit", "10/s"]),
        ("\"1s\"", "\"1\"", &["plan.toml:8:12", "no unit", "1s"]),
        ("\"1s\"", "1", &["plan.toml:8:12", "1s"]),
        ("\"1s\"", "\"-1s\"", &["plan.toml:8:12"]),
        ("GetScore", "GetScores", &["plan.toml:4:10", "did you mean"]),
        ("[load]", "[load", &["plan.toml:6:"]),
    ] {
        fs::write(place.path("plan.toml"), plan.replace(right, wrong)).expect("writable");
        let arguments = ["run", "plan.toml", "--out", "never", "-q"];
        let output = attempt(&mut place.command(&arguments));
        let printed = stderr_of(&output);
        assert_eq!(output.status.code(), Some(2), "{printed}");
        for word in words {
            assert!(printed.contains(word), "{wrong}: {word:?}: {printed}");
        }
        assert!(!place.path("never").exists());
    }
}

#[test]
fn flags_with_a_mistake() {
    let place = Place::new();
    for (flags, words) in [
        (
            ["--rate", "0/s", "--duration", "1s"],
            ["--rate", "rate of 0"],
        ),
        (
            ["--rate", "10/s", "--duration", "1"],
            ["--duration", "no unit"],
        ),
        (["--rate", "10", "--duration", "1s"], ["--rate", "no unit"]),
        (["--rate", "10/s", "--calls", "0"], ["--calls", "0"]),
    ] {
        let arguments = score("grpc://127.0.0.1:1", &flags);
        let output = attempt(&mut place.command(&arguments));
        let printed = stderr_of(&output);
        assert_eq!(output.status.code(), Some(2), "{printed}");
        for word in words {
            assert!(printed.contains(word), "{flags:?}: {word:?}: {printed}");
        }
    }
}

// --- the machine ---------------------------------------------------------------------

/// `plimsoll` with `arguments` under a limit that a shell sets.
fn limited(place: &Place, limit: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", &format!("{limit}; exec \"$0\" \"$@\"")])
        .arg(env!("CARGO_BIN_EXE_plimsoll"))
        .args(arguments)
        .current_dir(place.path(""));
    command
}

/// The file size limit stands for a disk that fills up: writes fail in the middle. Every
/// user may set it, and everything else goes on.
#[test]
fn a_disk_that_fills_up_while_the_load_runs() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "1ms"]);
    let url = server.plaintext();
    let flags = [
        "--rate",
        "1000/s",
        "--duration",
        "3s",
        "--requests",
        "--out",
        "run",
    ];
    // 16 blocks of 512 bytes, and no death by signal at the limit.
    let limit = "trap '' XFSZ; ulimit -f 16";
    let output = attempt(&mut limited(&place, limit, &score(&url, &flags)));
    let said = stderr_of(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("the run directory is not written"), "{said}");
    assert!(said.contains("File too large"), "{said}");
    // What was measured is shown, whole.
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(table.contains("3,000 due"), "{table}");
    assert!(said.contains("run/"), "which file: {said}");
    // What was written before is a run that can be read, and says what it is.
    let run = place.expect_json(0, &["report", "run", "--json"]);
    assert_eq!(run["state"], "partial", "{run}");
}

/// `plimsoll grpc`, its run directory `full/run` on a disk of 32 KiB to which `filling` is done
/// beforehand. `None` where this user may not mount one.
fn on_a_small_disk(place: &Place, filling: &str, url: &str, flags: &[&str]) -> Option<Output> {
    fs::create_dir(place.path("full")).expect("a new folder");
    let script =
        format!("mount -t tmpfs -o size=32k tmpfs full || exit 77; {filling}; exec \"$0\" \"$@\"");
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", &script])
        .arg(env!("CARGO_BIN_EXE_plimsoll"))
        .args(score(url, &[flags, &["--out", "full/run"]].concat()))
        .current_dir(place.path(""));
    let output = attempt(&mut command);
    let printed = stderr_of(&output);
    if output.status.code() == Some(77) || printed.contains("unshare failed") {
        aloud(format_args!(
            "NOT TRIED: this user may not mount a small disk ({printed}); the limit of file sizes stands for it in the test beside this one"
        ));
        return None;
    }
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert!(printed.contains("No space left on device"), "{printed}");
    assert!(printed.contains("full/run"), "{printed}");
    assert!(
        printed.contains("help: ") && printed.contains("--out"),
        "{printed}"
    );
    Some(output)
}

/// The same with a disk that really is full: the run can't begin.
#[test]
fn a_full_disk_at_the_run_directory() {
    let place = Place::new();
    let flags = ["--clients", "1", "--calls", "1"];
    let fill = "head -c 32768 /dev/zero >full/ballast";
    if let Some(output) = on_a_small_disk(&place, fill, "grpc://127.0.0.1:1", &flags) {
        assert_eq!(output.stdout, b"");
    }
}

/// And one that somebody else fills up while the run goes on: nothing more can be written, not
/// even the totals, and they are shown.
#[test]
fn a_disk_that_somebody_else_fills_up() {
    let place = Place::new();
    let server = place.serve(&["score", "--delay", "1ms"]);
    let flags = ["--rate", "1000/s", "--duration", "3s", "--requests"];
    let fill = "(sleep 1; cat /dev/zero >full/ballast) 2>/dev/null & :";
    if let Some(output) = on_a_small_disk(&place, fill, &server.plaintext(), &flags) {
        let table = String::from_utf8_lossy(&output.stdout);
        // On a busy machine it may be generator-limited besides, which stands above it.
        assert!(table.contains("PARTIAL\n"), "{table}");
        assert!(table.contains("run.json: writing it failed"), "{table}");
        assert!(table.contains("3,000 due"), "{table}");
    }
}

#[test]
fn too_few_descriptors_for_a_server_are_reported() {
    let place = Place::new();
    for arguments in [
        ["serve", "score", "--listen", "127.0.0.1:0"],
        ["relay", "gateway", "--echo", "--listen=127.0.0.1:0"],
    ] {
        let output = attempt(&mut limited(&place, "ulimit -n 12", &arguments));
        let printed = stderr_of(&output);
        assert_eq!(output.status.code(), Some(2), "{printed}");
        assert!(
            printed.contains("12 files may be open at once"),
            "{printed}"
        );
        assert!(printed.contains("ulimit -n"), "{printed}");
    }
}

#[test]
fn too_few_descriptors_are_reported_before_the_load() {
    let place = Place::new();
    let fleet = ["--fleet", "1000", "--calls", "1", "--out", "never"];
    let alone = [&fleet[..], &["--processes", "1"]].concat();
    for (limit, flags, code, words) in [
        (
            "ulimit -n 100",
            &alone[..],
            2,
            "1 hold 36 connections at most, and 1,000 are asked for",
        ),
        // Not even many processes hold them.
        (
            "ulimit -n 66",
            &fleet[..],
            1,
            "1,000 connections need 500 processes",
        ),
        (
            "ulimit -n 60",
            &fleet[..],
            1,
            "no process may have even one of 1,000 connections",
        ),
    ] {
        let arguments = score("grpc://127.0.0.1:1", flags);
        let output = attempt(&mut limited(&place, limit, &arguments));
        let printed = stderr_of(&output);
        assert_eq!(output.status.code(), Some(code), "{printed}");
        assert!(
            printed.contains(words) && printed.contains("ulimit -n"),
            "{printed}"
        );
        assert!(!place.path("never").exists());
    }
}

#[test]
fn a_process_to_watch_that_is_not_there() {
    let place = Place::new();
    let flags = ["--clients", "1", "--calls", "1", "--out", "never", "--pid"];
    let arguments = [&score("grpc://127.0.0.1:1", &flags)[..], &["999999999"]].concat();
    let output = attempt(&mut place.command(&arguments));
    let printed = stderr_of(&output);
    assert_eq!(output.status.code(), Some(2), "{printed}");
    for word in ["`--pid`", "no process 999999999", "help: "] {
        assert!(printed.contains(word), "{word:?}: {printed}");
    }
    assert!(!place.path("never").exists());
}

/// How many connections cold calls need is not known beforehand.
#[test]
fn descriptors_that_run_out_are_counted_and_condemn_the_run() {
    let place = Place::new();
    let port = server(|stream| read_out(&stream));
    let url = plaintext(port);
    let flags = [
        "--cold",
        "--rate",
        "200/s",
        "--calls",
        "200",
        "--connect-timeout",
        "2s",
        "--out",
        "run",
    ];
    let arguments = score(&url, &flags);
    let output = attempt(&mut limited(&place, "ulimit -n 90", &arguments));
    assert_eq!(output.status.code(), Some(1), "{}", stderr_of(&output));
    let run = place.run_json("run");
    assert_eq!(run["count_check"]["matches"], true, "{run}");
    let errors = errors(&run);
    let of = |code| errors.iter().find(|e| e.0 == code).map_or(0, |e| e.1);
    assert!(of("NO_DESCRIPTORS") > 0, "{errors:?}");
    assert_eq!(
        of("NO_DESCRIPTORS") + of("CONNECT_TIMEOUT"),
        200,
        "{errors:?}"
    );
    assert_eq!(run["state"], "invalid", "{run}");
    let report = text(&output.stdout);
    assert!(report.contains("ulimit -n"), "{report}");
    assert!(Path::new(&place.path("run/intervals.jsonl")).exists());
}
