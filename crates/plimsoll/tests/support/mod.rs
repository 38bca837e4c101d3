//! Helpers of tests that run whole commands: a folder for `plimsoll`, servers as child processes,
//! bounded waiting.
//!
//! Invariant: nothing outlives a test and nothing waits forever: a child that does not exit in time
//! is killed, and the test fails.

#![allow(
    dead_code,
    reason = "a test binary uses what it needs of this, and no other part"
)]
#![allow(clippy::disallowed_methods, reason = "tests wait in real time")]

pub(crate) mod haproxy;
pub(crate) mod nginx;
pub(crate) mod openssl;
pub(crate) mod peers;
#[path = "../../../plimsoll-protocols/tests/ports/mod.rs"]
pub(crate) mod ports;
pub(crate) mod traces;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_model::runs::run::Timestamp;
use plimsoll_stack::certificates::{CertificateOptions, Validity, make_certificates};
use serde_json::Value;
use tempfile::TempDir;

/// Flags for a call of the score service.
pub(crate) const SCORE: [&str; 4] = [
    "-m",
    "score.ScoreService/GetScore",
    "-d",
    r#"{"json": "[0.1, 0.2]"}"#,
];

/// Flags for a call of the order service.
pub(crate) const ORDER: [&str; 4] = ["-m", "orders.OrderService/Submit", "-d", r#"{"price": 5}"#];

/// Upper bound for every command, server and peer of these tests, also on a busy machine.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(300);

/// Returns the only run in the output of `--json`.
#[track_caller]
pub(crate) fn only_run(document: &Value) -> Value {
    assert_eq!(document["version"], 1, "{document}");
    match document["runs"].as_array().map(Vec::as_slice) {
        Some([run]) => run.clone(),
        _ => panic!("not one run: {document}"),
    }
}

/// A working folder. Commands do not inherit environment variables of the test runner.
pub(crate) struct Place(TempDir);

impl Place {
    pub(crate) fn new() -> Place {
        Place(tempfile::tempdir().expect("a temporary folder"))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        // Tests may be pointed at another build of the program.
        let program = std::env::var_os("PROGRAM_UNDER_TEST");
        let program = program.unwrap_or_else(|| env!("CARGO_BIN_EXE_plimsoll").into());
        let mut command = Command::new(program);
        command
            .args(arguments)
            .current_dir(self.0.path())
            .env_clear();
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        output(&mut self.command(arguments), MAX_WAIT)
    }

    /// Runs a command that must end with `code`; returns its JSON output.
    #[track_caller]
    pub(crate) fn expect(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(
            output.status.code(),
            Some(code),
            "{arguments:?}\n{out}\n{err}"
        );
        out
    }

    #[track_caller]
    pub(crate) fn expect_json(&self, code: i32, arguments: &[&str]) -> Value {
        let out = self.expect(code, arguments);
        serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}"))
    }

    /// Returns the only run that a command has measured or shows.
    #[track_caller]
    pub(crate) fn expect_run(&self, code: i32, arguments: &[&str]) -> Value {
        only_run(&self.expect_json(code, arguments))
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    pub(crate) fn run_json(&self, run: &str) -> Value {
        serde_json::from_str(&self.read(&format!("{run}/run.json"))).expect("run.json is JSON")
    }

    /// Starts a reference server on a free port.
    pub(crate) fn serve(&self, arguments: &[&str]) -> Server {
        let mut command = self.command(&["serve"]);
        command
            .args(arguments)
            .args(["--listen", "127.0.0.1:0"])
            .stderr(Stdio::inherit());
        Server::start(&mut command)
    }

    /// Creates certificates in `certs/` that are valid for this long from now, to the second, and
    /// replace existing ones.
    pub(crate) fn certificates_for(&self, time: Duration) {
        let now = Timestamp::now();
        let options = CertificateOptions {
            validity: Validity::Between {
                not_before: now - Duration::from_secs(3600),
                not_after: now + time,
            },
            force: true,
            ..CertificateOptions::default()
        };
        make_certificates(&self.path("certs"), &options).expect("certificates");
    }

    /// Creates `certs/` with a CA, a server certificate and a client certificate.
    pub(crate) fn certificates(&self) {
        self.expect(0, &["certs", "certs"]);
    }
}

/// Flags of `serve` with a certificate of [`Place::certificates`].
pub(crate) const SERVER_TLS: [&str; 4] = [
    "--tls-cert",
    "certs/server.crt",
    "--tls-key",
    "certs/server.key",
];

/// Flags of `serve` that also require a client certificate.
pub(crate) const SERVER_MTLS: [&str; 6] = [
    "--tls-cert",
    "certs/server.crt",
    "--tls-key",
    "certs/server.key",
    "--tls-client-ca",
    "certs/ca.crt",
];

/// Flags of a client that trusts the server of [`Place::certificates`].
pub(crate) const CLIENT_TLS: [&str; 2] = ["--ca", "certs/ca.crt"];

/// Flags of a client that also presents a certificate.
pub(crate) const CLIENT_MTLS: [&str; 6] = [
    "--ca",
    "certs/ca.crt",
    "--cert",
    "certs/client.crt",
    "--key",
    "certs/client.key",
];

/// A server in a process of its own, killed when dropped.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) port: u16,
    out: BufReader<ChildStdout>,
}

impl Server {
    /// Starts a server that prints its address on 127.0.0.1 in one of its first lines of stdout.
    #[track_caller]
    pub(crate) fn start(command: &mut Command) -> Server {
        Server::start_at("127.0.0.1:", command)
    }

    /// Starts a server that listens elsewhere; `host` is printed before the port.
    #[track_caller]
    pub(crate) fn start_at(host: &str, command: &mut Command) -> Server {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let mut out = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let mut said = String::new();
        loop {
            let n = out.read_line(&mut said).expect("text");
            let port = said
                .split(host)
                .nth(1)
                .and_then(|rest| rest.split_whitespace().next()?.parse().ok());
            match port {
                Some(port) => return Server { child, port, out },
                None if n == 0 => {
                    let _ = child.wait();
                    panic!("{command:?} ended without printing its address: {said:?}");
                }
                None => {}
            }
        }
    }

    /// Returns a further address of the server, printed in its next line.
    pub(crate) fn next_address(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("text");
        let address = line
            .split_whitespace()
            .find(|word| word.starts_with("127.0.0.1:"));
        address
            .unwrap_or_else(|| panic!("no address in {line:?}"))
            .to_owned()
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) fn plaintext(&self) -> String {
        format!("grpc://127.0.0.1:{}", self.port)
    }

    pub(crate) fn tls(&self) -> String {
        format!("grpcs://localhost:{}", self.port)
    }

    /// Stops the server; returns its exit code and the rest of its output.
    pub(crate) fn stop(mut self) -> (i32, String) {
        signal(&self.child, rustix::process::Signal::TERM);
        let code = wait(&mut self.child);
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).expect("text");
        (code, rest)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns status and text of `path`, requested with the host name `host`.
pub(crate) fn get(server: &Server, host: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(server.address()).expect("connected");
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    )
    .expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answered");
    let status = answer.split(' ').nth(1).and_then(|s| s.parse().ok());
    (status.expect("a status"), answer)
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Prints for the person who runs the tests, also if the test passes and its output is captured.
pub(crate) fn print_uncaptured(what: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{what}");
}

/// Returns a command's stderr without frame and line breaks.
pub(crate) fn stderr_of(output: &Output) -> String {
    text(&output.stderr)
        .replace('│', " ")
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

pub(crate) fn signal(child: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, signal).expect("the child is there");
}

/// Returns the exit code of a child that ends soon.
pub(crate) fn wait(child: &mut Child) -> i32 {
    wait_within(child, MAX_WAIT, |_| ())
        .expect("plimsoll did not end")
        .code()
        .unwrap_or(-1)
}

/// Runs a command, which must exit within `longest`.
#[track_caller]
pub(crate) fn output(command: &mut Command, longest: Duration) -> Output {
    output_with_stdin(command.stdin(Stdio::null()), longest)
}

/// Runs a command that has a standard input.
#[track_caller]
pub(crate) fn output_with_stdin(command: &mut Command, longest: Duration) -> Output {
    output_watched(command, longest, |_| ())
}

/// Runs a command; `watch` is called with the child repeatedly while it runs.
#[track_caller]
pub(crate) fn output_watched(
    command: &mut Command,
    longest: Duration,
    watch: impl FnMut(&Child),
) -> Output {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    // Both are read concurrently, because a full pipe would block the child.
    let out = drain(child.stdout.take());
    let err = drain(child.stderr.take());
    let status = wait_within(&mut child, longest, watch);
    let (stdout, stderr) = (
        out.join().expect("stdout is read"),
        err.join().expect("stderr is read"),
    );
    let Some(status) = status else {
        panic!(
            "{command:?} did not end within {longest:?}\n{}\n{}",
            text(&stdout),
            text(&stderr)
        );
    };
    Output {
        status,
        stdout,
        stderr,
    }
}

/// `None` for a child that had to be killed.
fn wait_within(
    child: &mut Child,
    longest: Duration,
    mut watch: impl FnMut(&Child),
) -> Option<ExitStatus> {
    let end = Instant::now() + longest;
    loop {
        watch(child);
        if let Some(status) = child.try_wait().expect("a child of ours") {
            return Some(status);
        }
        if Instant::now() >= end {
            stop(child);
            return None;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// Ends a child that takes too long. It is asked first, because its own children, which hold its
/// pipes, would outlive a kill.
fn stop(child: &mut Child) {
    signal(child, rustix::process::Signal::TERM);
    let end = Instant::now() + Duration::from_secs(30);
    while Instant::now() < end {
        if child.try_wait().expect("a child of ours").is_some() {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    let _ = child.kill();
    let _ = child.wait();
}

fn drain(from: Option<impl Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut from) = from {
            let _ = from.read_to_end(&mut bytes);
        }
        bytes
    })
}
