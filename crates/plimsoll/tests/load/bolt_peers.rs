//! The Java libraries of SOFABolt and SOFARPC: our load on their servers, and their clients on our
//! server. `tests/setup.sh tests` builds them.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use serde_json::Value;

use crate::support::ports::free_port;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

fn java(part: &[&str], settings: &[&str]) -> Command {
    let built = root().join(".peers/java");
    assert!(
        built.join("classes/peer/Peer.class").is_file(),
        "{} holds no Java peers: run tests/setup.sh tests",
        built.display()
    );
    let classes = format!("{0}/classes:{0}/lib/*", built.display());
    let mut command = Command::new("java");
    command
        // Higher compiler tiers cost more than such short processes gain from them.
        .args(["-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Xmx256m"])
        .args(settings)
        .args(["-cp", &classes, "peer.Peer"])
        .args(part);
    command
}

/// A server process that is killed with the test.
struct Server {
    child: Child,
    out: BufReader<ChildStdout>,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// Starts `command` and reads its output up to the line that contains `ready`.
    fn start(mut command: Command, ready: &str) -> (Server, String) {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains(ready) {
            line.clear();
            let read = out.read_line(&mut line).unwrap();
            assert!(read > 0, "{command:?} ended before it said `{ready}`");
        }
        let server = Server {
            child,
            out,
            port: 0,
        };
        (server, line)
    }

    fn java(part: &str) -> Server {
        // The Java libraries cannot listen on port 0.
        let port = free_port();
        let (mut server, _) = Server::start(java(&[part, &port.to_string()], &[]), "READY");
        server.port = port;
        server
    }

    fn ours(flags: &[&str]) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        command
            .args(["serve", "bolt", "--listen", "127.0.0.1:0"])
            .args(flags);
        Server::start_listening(command)
    }

    /// Starts a command that prints the address it listens on.
    fn start_listening(command: Command) -> Server {
        let (mut server, line) = Server::start(command, "listening on");
        server.port = line
            .split("127.0.0.1:")
            .nth(1)
            .and_then(|rest| rest.split_whitespace().next())
            .unwrap()
            .parse()
            .unwrap();
        server
    }

    /// Stops our server; returns what it printed about its calls.
    fn stop(mut self) -> String {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let mut text = String::new();
        self.out.read_to_string(&mut text).unwrap();
        assert!(self.child.wait().unwrap().success(), "{text}");
        text
    }
}

fn run_load_on(server: &Server, flags: &[&str]) -> (i32, Value) {
    run_load(&format!("sofa://127.0.0.1:{}", server.port), flags)
}

fn run_load(url: &str, flags: &[&str]) -> (i32, Value) {
    let runs = tempfile::tempdir().unwrap();
    let output: Output = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(["bolt", url])
        .args(["--json", "--quiet", "--out"])
        .arg(runs.path().join("run"))
        .args(flags)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    let mut json: Value =
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}{error}"));
    assert_eq!(json["runs"].as_array().map(Vec::len), Some(1), "{json}");
    (output.status.code().unwrap(), json["runs"][0].take())
}

/// Returns the successful calls and the errors by code, after checking that every scheduled call
/// was counted once.
fn check_counts(run: &Value) -> (u64, Vec<(String, u64)>) {
    assert_eq!(run["count_check"]["matches"], true, "{run}");
    let errors = run["total"]["errors_by_code"].as_array().unwrap();
    let errors = errors
        .iter()
        .map(|e| {
            (
                e["code"].as_str().unwrap().to_owned(),
                e["count"].as_u64().unwrap(),
            )
        })
        .collect();
    (run["total"]["ok"].as_u64().unwrap(), errors)
}

fn assert_all_ok(server: &Server, calls: u64, flags: &[&str]) {
    let number = calls.to_string();
    let flags: Vec<&str> = flags.iter().copied().chain(["-n", &number]).collect();
    let (exit, run) = run_load_on(server, &flags);
    assert_eq!(
        (exit, check_counts(&run)),
        (0, (calls, vec![])),
        "{flags:?}: {}",
        run["details"]
    );
}

#[test]
fn java_sofabolt_server_handles_our_load() {
    let server = Server::java("bolt-server");
    let echo = ["--class", "java.lang.String", "--content", "\"hello\""];
    for version in ["v1", "v2", "v2-crc"] {
        let version = ["--bolt-version", version];
        let fleet = ["--clients", "64", "-c", "4", "--in-flight", "32"];
        assert_all_ok(&server, 3000, &[&echo[..], &version, &fleet].concat());
        // Heartbeats are sent in between, and the connection still works afterwards.
        let slow = ["--rate", "2/s", "--heartbeat", "100ms"];
        assert_all_ok(&server, 3, &[&echo[..], &version, &slow].concat());
        assert_all_ok(
            &server,
            10,
            &[&echo[..], &version, &["--oneway", "--rate", "100/s"]].concat(),
        );
    }
    let (exit, run) = run_load_on(
        &server,
        &[
            "--class",
            "java.lang.String",
            "--content",
            "\"throw\"",
            "--fleet",
            "2",
            "-n",
            "20",
        ],
    );
    assert_eq!(
        (exit, check_counts(&run)),
        (1, (0, vec![("BOLT_SERVER_EXCEPTION".to_owned(), 20)]))
    );
    assert!(
        run["details"].to_string().contains("thrown on request"),
        "{}",
        run["details"]
    );
    let (_, run) = run_load_on(
        &server,
        &[
            "--class",
            "no.such.Class",
            "--content",
            "1",
            "--fleet",
            "1",
            "-n",
            "5",
        ],
    );
    assert_eq!(
        check_counts(&run),
        (0, vec![("BOLT_SERVER_EXCEPTION".to_owned(), 5)])
    );
    let (_, run) = run_load_on(
        &server,
        &[&echo[..], &["--codec", "9", "--fleet", "1", "-n", "5"]].concat(),
    );
    assert_eq!(
        check_counts(&run),
        (0, vec![("BOLT_SERVER_DESERIAL_EXCEPTION".to_owned(), 5)])
    );
}

#[test]
fn java_sofarpc_server_handles_our_load() {
    let server = Server::java("sofa-server");
    let hello = ["--service", "peer.HelloService:1.0", "-m", "sayHello"];
    let test = ["--service", "peer.TestService:1.0", "-m", "echoStr"];
    let folder = tempfile::tempdir().unwrap();
    let long = folder.path().join("long.json");
    std::fs::write(&long, format!("[\"{}\"]", "é\u{1F600}x".repeat(20_000))).unwrap();
    let long = format!("@{}", long.display());
    assert_all_ok(
        &server,
        2000,
        &[&hello[..], &["--data", "[\"world\"]", "--fleet", "20"]].concat(),
    );
    assert_all_ok(
        &server,
        200,
        &[&test[..], &["--data", &long, "--rate", "100/s", "-c", "4"]].concat(),
    );
    for (call, needle) in [
        (
            [&hello[..], &["--data", "[\"throw\"]"]].concat(),
            "thrown on request",
        ),
        (
            vec!["--service", "peer.Nothing:1.0", "-m", "x"],
            "RPC cannot find service",
        ),
        (
            vec!["--service", "peer.HelloService:1.0", "-m", "nothing"],
            "RPC-020100011",
        ),
    ] {
        let (exit, run) = run_load_on(
            &server,
            &[&call[..], &["--fleet", "2", "-n", "20"]].concat(),
        );
        assert_eq!(
            (exit, check_counts(&run)),
            (1, (0, vec![("SOFA_ERROR".to_owned(), 20)])),
            "{call:?}"
        );
        assert!(
            run["details"].to_string().contains(needle),
            "{}",
            run["details"]
        );
    }
}

fn java_client(part: &[&str], settings: &[&str]) {
    let output = java(part, settings).output().unwrap();
    let (out, error) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        output.status.success() && out.contains("OK"),
        "{part:?}: {out}\n{error}"
    );
}

#[test]
fn java_clients_work_with_our_server() {
    let server = Server::ours(&[]);
    let port = server.port.to_string();
    for query in ["-", "_PROTOCOL=2&_VERSION=1", "_PROTOCOL=2&_VERSION=2"] {
        // Idle for ten heartbeat intervals; three unanswered heartbeats would close the connection.
        java_client(
            &["bolt-client", "127.0.0.1", &port, query, "200", "2000"],
            &["-Dbolt.tcp.heartbeat.interval=200"],
        );
    }
    java_client(&["sofa-client", "127.0.0.1", &port, "200"], &[]);
    let printed = server.stop();
    let heartbeats = printed
        .split("heartbeats ")
        .nth(1)
        .and_then(|rest| rest.split([',', '\n']).next())
        .and_then(|number| number.trim().parse::<u32>().ok())
        .unwrap_or(0);
    assert!(heartbeats >= 15, "{printed}");
    assert!(
        printed.contains("oneway 3") && !printed.contains("malformed"),
        "{printed}"
    );
}

/// Starts a sidecar with one route to `upstream`.
fn relay(folder: &Path, name: &str, upstream: u16, tls: &str) -> Server {
    let file = folder.join(format!("{name}.toml"));
    let text = format!(
        "[[route]]\nname = \"{name}\"\nprotocol = \"bolt\"\nlisten = \"127.0.0.1:0\"\nupstream = [\"127.0.0.1:{upstream}\"]\nheartbeat = \"300ms\"\n{tls}\n"
    );
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.args(["relay", "sidecar"]).arg(&file);
    Server::start_listening(command)
}

#[test]
fn java_peers_work_through_sidecar_chains() {
    let folder = tempfile::tempdir().unwrap();
    let certs = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .arg("certs")
        .arg(folder.path())
        .output()
        .unwrap();
    assert!(certs.status.success(), "{certs:?}");
    let tls = |key: &str, who: &str| {
        let at = folder.path().display();
        let name = match key {
            "upstream_tls" => ", server_name = \"localhost\"",
            _ => "",
        };
        format!(
            "{key} = {{ ca = \"{at}/ca.crt\", cert = \"{at}/{who}.crt\", key = \"{at}/{who}.key\"{name} }}"
        )
    };
    let (bolt, sofa) = (Server::java("bolt-server"), Server::java("sofa-server"));
    let pair = |port: u16, name: &str| {
        let server = relay(
            folder.path(),
            &format!("{name}-in"),
            port,
            &tls("listen_tls", "server"),
        );
        let client = relay(
            folder.path(),
            &format!("{name}-out"),
            server.port,
            &tls("upstream_tls", "client"),
        );
        (server, client)
    };
    let one = (
        relay(folder.path(), "bolt-one", bolt.port, ""),
        relay(folder.path(), "sofa-one", sofa.port, ""),
    );
    let (bolt_in, bolt_out) = pair(bolt.port, "bolt");
    let (sofa_in, sofa_out) = pair(sofa.port, "sofa");
    let ours = Server::ours(&[]);
    let ours_one = relay(folder.path(), "ours-one", ours.port, "");
    let (ours_in, ours_out) = pair(ours.port, "ours");
    for to_ours in [&ours_one, &ours_out] {
        let port = to_ours.port.to_string();
        let crc = "_PROTOCOL=2&_VERSION=2";
        java_client(
            &["bolt-client", "127.0.0.1", &port, crc, "100", "1000"],
            &["-Dbolt.tcp.heartbeat.interval=200"],
        );
        java_client(&["sofa-client", "127.0.0.1", &port, "100"], &[]);
    }
    for (to_bolt, to_sofa) in [(&one.0, &one.1), (&bolt_out, &sofa_out)] {
        let port = to_bolt.port.to_string();
        for query in ["-", "_PROTOCOL=2&_VERSION=2"] {
            // Idle for several heartbeat intervals of the client and the sidecars.
            java_client(
                &["bolt-client", "127.0.0.1", &port, query, "100", "1500"],
                &["-Dbolt.tcp.heartbeat.interval=200"],
            );
        }
        java_client(
            &["sofa-client", "127.0.0.1", &to_sofa.port.to_string(), "100"],
            &[],
        );
        // Our own load: many client connections share few upstream ones, and failures are passed
        // on.
        let echo = [
            "--class",
            "java.lang.String",
            "--content",
            "\"hello\"",
            "--fleet",
            "20",
        ];
        for version in ["v1", "v2", "v2-crc"] {
            assert_all_ok(
                to_bolt,
                1000,
                &[&echo[..], &["--bolt-version", version]].concat(),
            );
        }
        let (exit, run) = run_load_on(
            to_sofa,
            &[
                "--service",
                "peer.Nothing:1.0",
                "-m",
                "x",
                "--fleet",
                "2",
                "-n",
                "20",
            ],
        );
        assert_eq!(
            (exit, check_counts(&run)),
            (1, (0, vec![("SOFA_ERROR".to_owned(), 20)]))
        );
    }
    // The service is gone: every call is answered all the same.
    drop((sofa, sofa_in));
    let (exit, run) = run_load_on(&sofa_out, &["--fleet", "2", "-n", "20"]);
    assert_eq!(
        (exit, check_counts(&run)),
        (1, (0, vec![("BOLT_NO_PROCESSOR".to_owned(), 20)]))
    );
    let sidecars = [one.0, one.1, bolt_out, bolt_in, sofa_out];
    for sidecar in sidecars.into_iter().chain([ours_one, ours_out, ours_in]) {
        sidecar.stop();
    }
    let printed = ours.stop();
    assert!(!printed.contains("malformed"), "{printed}");
}

#[test]
fn bolt_works_over_tls_and_mtls() {
    let folder = tempfile::tempdir().unwrap();
    let certs = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .arg("certs")
        .arg(folder.path())
        .output()
        .unwrap();
    assert!(certs.status.success(), "{certs:?}");
    let file = |name: &str| folder.path().join(name).display().to_string();
    let [ca, cert, key] = ["ca.crt", "server.crt", "server.key"].map(file);
    let [own_cert, own_key] = ["client.crt", "client.key"].map(file);
    let tls = ["--tls-cert", &cert, "--tls-key", &key];
    let client = ["--ca", &ca, "--server-name", "localhost"];
    let identity = ["--cert", &own_cert, "--key", &own_key];
    let run = |server: &Server, flags: &[&str]| {
        let url = format!("sofas://127.0.0.1:{}", server.port);
        let flags: Vec<&str> = [&client[..], flags, &["-n", "400"]].concat();
        run_load(&url, &flags)
    };
    let server = Server::ours(&tls);
    for version in ["v1", "v2-crc"] {
        let flags = ["--bolt-version", version, "--clients", "64", "-c", "4"];
        let (exit, json) = run(&server, &flags);
        assert_eq!((exit, check_counts(&json)), (0, (400, vec![])), "{version}");
        assert_eq!(json["security"], "tls");
    }
    let printed = server.stop();
    assert!(!printed.contains("malformed"), "{printed}");
    let server = Server::ours(&[&tls[..], &["--tls-client-ca", &ca]].concat());
    let flags = [&identity[..], &["--rate", "400/s", "-c", "4"]].concat();
    let (exit, json) = run(&server, &flags);
    assert_eq!((exit, check_counts(&json)), (0, (400, vec![])));
    assert_eq!(json["security"], "mutual-tls");
    // A client without a certificate reports the refusal, and so does one whose server does not
    // speak TLS; no call succeeds.
    let (exit, json) = run(&server, &["--rate", "400/s", "--cold"]);
    let (ok, errors) = check_counts(&json);
    assert_eq!((exit, ok), (1, 0));
    assert_eq!(errors[0].0, "TLS_CLIENT_CERTIFICATE_REQUIRED");
    let plain = Server::ours(&[]);
    let (exit, json) = run(&plain, &["--rate", "400/s", "--cold"]);
    assert_eq!((exit, check_counts(&json).0), (1, 0));
}
