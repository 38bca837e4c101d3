//! Unix domain sockets: loads and servers of every kind over them, and with third-party peers.
//! Without a network, the server process is found through its socket.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "tests wait in real time")]

use crate::built;
use crate::support;

use std::fs;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use support::nginx;
use support::peers::{python, run_successfully, tool};
use support::{
    CLIENT_MTLS, MAX_WAIT, ORDER, Place, SCORE, SERVER_MTLS, SERVER_TLS, signal, stderr_of, text,
    wait,
};

/// A server on a socket, usually `s.sock` of the place; killed when dropped.
struct SocketServer(Child);

impl SocketServer {
    /// Starts it and waits until it accepts connections.
    #[track_caller]
    fn new(place: &Place, command: &mut Command) -> SocketServer {
        SocketServer::at(&place.path("s.sock"), command)
    }

    #[track_caller]
    fn at(path: &Path, command: &mut Command) -> SocketServer {
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let mut served = SocketServer(child);
        let end = Instant::now() + MAX_WAIT;
        while UnixStream::connect(path).is_err() {
            let ended = served.0.try_wait().unwrap();
            assert!(ended.is_none(), "{command:?} has ended: {ended:?}");
            assert!(Instant::now() < end, "{command:?} does not listen");
            thread::sleep(Duration::from_millis(20));
        }
        served
    }

    fn serve_on_socket(place: &Place, arguments: &[&str]) -> SocketServer {
        let listen = ["--listen", "unix:s.sock"];
        SocketServer::new(
            place,
            &mut place.command(&[&["serve"], arguments, &listen].concat()),
        )
    }

    #[track_caller]
    fn stop(mut self) {
        signal(&self.0, rustix::process::Signal::TERM);
        assert_eq!(wait(&mut self.0), 0);
    }
}

impl Drop for SocketServer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The server's certificate is checked against the CA and this name, because a socket has no host
/// name.
const NAMED_SERVER: [&str; 4] = ["--ca", "certs/ca.crt", "--server-name", "localhost"];
const CALLS: [&str; 6] = ["--calls", "60", "--clients", "3", "--connections", "3"];

/// Runs a load of 60 calls, all of which must succeed; returns its `run.json`.
#[track_caller]
fn load(place: &Place, command: &[&str], more: &[&str]) -> serde_json::Value {
    let _ = fs::remove_dir_all(place.path("run"));
    let fixed = ["-q", "--out", "run"];
    place.expect(0, &[command, &fixed, &CALLS[..], more].concat());
    let run = place.run_json("run");
    assert_eq!(run["total"]["ok"], 60, "{command:?} {more:?}: {run}");
    run
}

#[test]
fn every_protocol_works_over_unix_sockets() {
    let place = Place::new();
    place.certificates();
    let codec = built::build_c_example(&place.path("."));
    let codec = codec.to_str().unwrap();
    let loads: [(&[&str], &str, &[&str]); 6] = [
        (&["score"], "grpc", &SCORE),
        (&["orders"], "grpc", &ORDER),
        (&["fast"], "grpc", &ORDER),
        (&["bolt"], "bolt", &[]),
        (&["files"], "fetch", &[]),
        (
            &["plugin", codec],
            "plugin",
            &["--codec", codec, "--data", "x"],
        ),
    ];
    for (server, command, call) in loads {
        for secured in [false, true] {
            let (serve, tls): (&[&str], &[&str]) = if secured {
                (&SERVER_TLS, &NAMED_SERVER)
            } else {
                (&[], &[])
            };
            let served = SocketServer::serve_on_socket(&place, &[server, serve].concat());
            let url = match command {
                "fetch" => "unix:s.sock:/bytes/1KiB",
                _ => "unix:s.sock",
            };
            let run = load(&place, &[command, url], &[tls, call].concat());
            let security = if secured { "tls" } else { "plaintext" };
            assert_eq!(run["security"], security, "{server:?}");
            assert_eq!(run["target"], url);
            let report = place.expect(0, &["report", "run"]);
            assert!(report.contains(url), "{report}");
            let rss = run["total"]["server"]["rss_bytes_max"].as_u64();
            assert!(
                rss.is_some_and(|bytes| bytes > 100_000),
                "{server:?}: {run}"
            );
            // The kept plan gives the same load again.
            let plan = ["run", "run/plan.toml", "-q", "--out", "again"];
            place.expect(0, &plan);
            assert_eq!(place.run_json("again")["total"]["ok"], 60, "{server:?}");
            fs::remove_dir_all(place.path("again")).unwrap();
            served.stop();
            assert!(!place.path("s.sock").exists(), "{server:?} leaves its file");
        }
    }
}

#[test]
fn sessions_work_over_unix_sockets() {
    let place = Place::new();
    place.certificates();
    for secured in [false, true] {
        let (serve, tls): (&[&str], &[&str]) = if secured {
            (&SERVER_TLS, &NAMED_SERVER)
        } else {
            (&[], &[])
        };
        let served = SocketServer::serve_on_socket(
            &place,
            &[&["llm", "--with-gateway", "unix:ws.sock"], serve].concat(),
        );
        let fast = ["session", "unix:s.sock", "--socket", "unix:ws.sock"];
        let load = [&fast, &["-q", "--out", "run", "--clients", "4"][..], tls].concat();
        let _ = fs::remove_dir_all(place.path("run"));
        place.expect(0, &load);
        assert_eq!(place.run_json("run")["total"]["ok"], 4);
        served.stop();
        assert!(!place.path("s.sock").exists() && !place.path("ws.sock").exists());
    }
    let gateway = SocketServer::new(
        &place,
        &mut place.command(&["relay", "gateway", "--echo", "--listen", "unix:s.sock"]),
    );
    let health = curl(&place, "http://localhost/health");
    assert!(text(&health).contains("healthy"), "{}", text(&health));
    gateway.stop();
    assert!(!place.path("s.sock").exists());
}

#[test]
fn unix_socket_holds_mtls_connections() {
    let place = Place::new();
    place.certificates();
    let served = SocketServer::serve_on_socket(&place, &[&["hold"], &SERVER_MTLS[..]].concat());
    let hold = ["hold", "tls+unix:s.sock", "-q", "--out", "run"];
    let more = ["--connections", "20", "--duration", "1s"];
    let name = ["--server-name", "localhost"];
    place.expect(0, &[&hold, &more[..], &CLIENT_MTLS, &name].concat());
    assert_eq!(place.run_json("run")["total"]["connections_full"], 20);
    served.stop();
}

#[test]
fn sidecars_relay_mtls_over_unix_sockets() {
    let place = Place::new();
    place.certificates();
    let tls = "{ ca = \"certs/ca.crt\", cert = \"certs/client.crt\", key = \"certs/client.key\", server_name = \"localhost\" }";
    let listen_tls =
        "{ ca = \"certs/ca.crt\", cert = \"certs/server.crt\", key = \"certs/server.key\" }";
    for (server, protocol, command) in [
        ("score", "grpc", "grpc"),
        ("score", "tcp", "grpc"),
        ("bolt", "bolt", "bolt"),
    ] {
        let served = SocketServer::serve_on_socket(&place, &[server]);
        let route = |name: &str, listen: &str, upstream: &str, tls: &str| {
            let text = format!(
                "workers = 2\n[[route]]\nname = \"r\"\nprotocol = \"{protocol}\"\n\
                 listen = \"unix:{listen}\"\nupstream = [\"unix:{upstream}\"]\n{tls}\n"
            );
            fs::write(place.path(name), text).unwrap();
            let mut command = place.command(&["relay", "sidecar", name]);
            SocketServer::at(&place.path(listen), &mut command)
        };
        let near = format!("listen_tls = {listen_tls}");
        let inner = route("inner.toml", "mid.sock", "s.sock", &near);
        let outer = format!("upstream_tls = {tls}");
        let outer = route("outer.toml", "in.sock", "mid.sock", &outer);
        let call: &[&str] = if command == "grpc" { &SCORE } else { &[] };
        load(&place, &[command, "unix:in.sock"], call);
        for (relay, file) in [(outer, "in.sock"), (inner, "mid.sock")] {
            relay.stop();
            assert!(!place.path(file).exists(), "{protocol}: {file}");
        }
        served.stop();
    }
}

#[test]
fn only_stale_socket_is_replaced() {
    let place = Place::new();
    drop(UnixListener::bind(place.path("s.sock")).unwrap());
    let served = SocketServer::serve_on_socket(&place, &["score"]);
    let second = ["serve", "score", "--listen", "unix:s.sock"];
    let output = place.run(&second);
    assert_eq!(output.status.code(), Some(1), "{}", stderr_of(&output));
    assert!(
        stderr_of(&output).contains("a server listens on it"),
        "{}",
        stderr_of(&output)
    );
    served.stop();
    fs::write(place.path("s.sock"), "mine").unwrap();
    let output = place.run(&second);
    assert!(
        stderr_of(&output).contains("a file that is not a socket"),
        "{}",
        stderr_of(&output)
    );
    assert_eq!(place.read("s.sock"), "mine");
}

#[test]
fn unix_socket_errors_are_reported() {
    let place = Place::new();
    place.certificates();
    let long = format!("unix:/{}", "x".repeat(120));
    fs::write(place.path("file"), "").unwrap();
    drop(UnixListener::bind(place.path("stale.sock")).unwrap());
    let sidecar = |tls: &str| {
        format!(
            "[[route]]\nname = \"r\"\nprotocol = \"tcp\"\nlisten = \"unix:none/in.sock\"\n\
             upstream = [\"unix:s.sock\"]\n{tls}"
        )
    };
    fs::write(place.path("relay.toml"), sidecar("")).unwrap();
    let nameless = "upstream_tls = { ca = \"certs/ca.crt\", cert = \"certs/client.crt\", key = \"certs/client.key\" }";
    fs::write(place.path("nameless.toml"), sidecar(nameless)).unwrap();
    let grpc =
        |url: &str| format!("grpc {url} -q --clients 1 --calls 1 -m score.ScoreService/GetScore");
    for (command, needle) in [
        (
            grpc(&long),
            "a socket path can have 107 bytes at most, and this one has 121",
        ),
        (
            grpc("unix:no.sock"),
            "connect to unix:no.sock: there is no such file",
        ),
        (
            grpc("unix:file"),
            "connect to unix:file: it is not a socket",
        ),
        (grpc("unix:file/x"), "a part of its path is not a folder"),
        (
            grpc("unix:stale.sock"),
            "connect to unix:stale.sock: nothing listens on it",
        ),
        (
            grpc("http+unix:a.sock"),
            "is for http calls, not for grpc calls: write grpc+unix:a.sock",
        ),
        (
            grpc("grpcs+unix:a.sock"),
            "`--server-name`: missing: a Unix socket has no name",
        ),
        (
            grpc("unix:a.sock --ca certs/ca.crt"),
            "`--server-name`: missing: a Unix socket has no name",
        ),
        (
            "grpc list grpcs+unix:a.sock".to_owned(),
            "give the certificate's name with --server-name",
        ),
        (
            "grpc list sofa+unix:a.sock".to_owned(),
            "write grpc+unix:a.sock",
        ),
        (
            format!("serve score --listen {long}"),
            "can have 107 bytes at most",
        ),
        (
            "serve score --listen unix:none/a.sock".to_owned(),
            "there is no folder none",
        ),
        (
            "serve score --listen unix:a.sock --processes 2".to_owned(),
            "no port that several processes could share",
        ),
        (
            "relay gateway --echo --listen unix:a.sock --reuse-port".to_owned(),
            "no port that several processes could share",
        ),
        (
            "relay sidecar relay.toml".to_owned(),
            "listening on unix:none/in.sock: there is no folder none",
        ),
        (
            "relay sidecar nameless.toml".to_owned(),
            "route r: upstream_tls.server_name: missing",
        ),
    ] {
        let output = place.run(&command.split(' ').collect::<Vec<_>>());
        assert!(!output.status.success(), "{command}");
        let words = stderr_of(&output);
        assert!(words.contains(needle), "{command}: {words}");
    }
}

#[test]
fn grpcio_interoperates_over_unix_sockets() {
    let place = Place::new();
    place.certificates();
    let path = format!("unix:{}", place.path("s.sock").display());
    for secured in [false, true] {
        let (serve, tls): (&[&str], &[&str]) = if secured {
            (&SERVER_TLS, &NAMED_SERVER)
        } else {
            (&[], &[])
        };
        let mut theirs = python(&place, "grpcio_server.py");
        let theirs = theirs.args(["--listen", &path]).args(serve);
        let served = SocketServer::new(&place, theirs);
        load(&place, &["grpc", &path], &[tls, &SCORE].concat());
        let listed = place.expect(0, &[&["grpc", "list", &path], tls].concat());
        assert!(listed.contains("score.ScoreService"), "{listed}");
        drop(served);
        // The server was killed, so its socket file is stale and is replaced.
        let served = SocketServer::serve_on_socket(&place, &[&["score"], serve].concat());
        let mut theirs = python(&place, "grpcio_client.py");
        // By default grpcio sends the socket's path, which is no valid authority in HTTP/2.
        let authority = ["--authority", "localhost"];
        let theirs = theirs.args(["score", &path, "--calls", "20"]);
        run_successfully(theirs.args(tls).args(authority));
        served.stop();
    }
}

/// Returns what curl gets from `s.sock`.
#[track_caller]
fn curl(place: &Place, url: &str) -> Vec<u8> {
    let mut curl = tool("curl");
    curl.current_dir(place.path(""));
    let flags = ["-sS", "--fail", "--unix-socket", "s.sock", url];
    run_successfully(curl.args(flags)).stdout
}

#[test]
fn curl_and_nginx_interoperate_over_unix_sockets() {
    let place = Place::new();
    let served = SocketServer::serve_on_socket(&place, &["files"]);
    assert_eq!(curl(&place, "http://localhost/bytes/1KiB").len(), 1024);
    served.stop();

    fs::write(place.path("file.bin"), vec![7; 3000]).unwrap();
    let root = place.path("").display().to_string();
    let config = format!(
        "daemon off; master_process off; pid nginx.pid; error_log stderr crit;\n\
         events {{ worker_connections 256; }}\n\
         http {{ access_log access.log; client_body_temp_path t1; proxy_temp_path t2;\n\
         fastcgi_temp_path t3; uwsgi_temp_path t4; scgi_temp_path t5;\n\
         server {{ listen unix:{root}s.sock; keepalive_requests 100000; root {root}; }} }}\n"
    );
    fs::write(place.path("nginx.conf"), config).unwrap();
    let mut nginx = nginx::command();
    nginx.arg("-p").arg(place.path(""));
    let served = SocketServer::new(&place, nginx.args(["-c", "nginx.conf", "-e", "stderr"]));
    load(&place, &["fetch", "unix:s.sock:/file.bin"], &[]);
    assert_eq!(place.read("access.log").lines().count(), 60);
    drop(served);
}
