//! Unix domain sockets: loads and servers of every kind over them, and against what others
//! wrote. Where nothing goes through a network, a server is found by its socket.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::disallowed_methods, reason = "tests wait in real time")]

mod support;

use std::fs;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use support::nginx;
use support::peers::{python, succeeds, tool};
use support::{CLIENT_TLS, ORDER, Place, SCORE, SERVER_TLS, signal, text, told, wait};

const LONGEST: Duration = Duration::from_secs(30);

/// A server on a socket, most often `s.sock` of the place; killed when dropped.
struct Served(Child);

impl Served {
    /// Starts it, and waits until it can be connected to.
    #[track_caller]
    fn new(place: &Place, command: &mut Command) -> Served {
        Served::at(&place.path("s.sock"), command)
    }

    #[track_caller]
    fn at(path: &Path, command: &mut Command) -> Served {
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let mut served = Served(child);
        let end = Instant::now() + LONGEST;
        while UnixStream::connect(path).is_err() {
            let ended = served.0.try_wait().unwrap();
            assert!(ended.is_none(), "{command:?} has ended: {ended:?}");
            assert!(Instant::now() < end, "{command:?} does not listen");
            thread::sleep(Duration::from_millis(20));
        }
        served
    }

    fn ours(place: &Place, arguments: &[&str]) -> Served {
        let listen = ["--listen", "unix:s.sock"];
        Served::new(
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

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn every_protocol_is_spoken_over_a_socket_with_and_without_tls() {
    let place = Place::new();
    place.certificates();
    let calls = ["--calls", "60", "--clients", "3", "--connections", "3"];
    let loads: [(&[&str], &str, &[&str]); 5] = [
        (&["score"], "grpc", &SCORE),
        (&["orders"], "grpc", &ORDER),
        (&["fast"], "grpc", &ORDER),
        (&["bolt"], "bolt", &[]),
        (&["files"], "fetch", &[]),
    ];
    for (server, command, call) in loads {
        for secured in [false, true] {
            let (serve, tls): (&[&str], &[&str]) = match secured {
                true => (&SERVER_TLS, &CLIENT_TLS),
                false => (&[], &[]),
            };
            let server = [server, serve].concat();
            let served = Served::ours(&place, &server);
            let url = match command {
                "fetch" => "unix:s.sock:/bytes/1KiB",
                _ => "unix:s.sock",
            };
            let _ = fs::remove_dir_all(place.path("run"));
            let fixed = [command, url, "-q", "--out", "run"];
            place.expect(0, &[&fixed, &calls[..], tls, call].concat());
            let run = place.run_json("run");
            assert_eq!(run["total"]["ok"], 60, "{server:?}: {run}");
            let security = if secured { "tls" } else { "plaintext" };
            assert_eq!(run["security"], security, "{server:?}");
            let rss = run["total"]["server"]["rss_bytes_max"].as_u64();
            assert!(
                rss.is_some_and(|bytes| bytes > 100_000),
                "{server:?}: {run}"
            );
            served.stop();
            assert!(!place.path("s.sock").exists(), "{server:?} leaves its file");
        }
    }
}

#[test]
fn connections_are_held_over_a_socket() {
    let place = Place::new();
    place.certificates();
    let served = Served::ours(&place, &[&["hold"], &SERVER_TLS[..]].concat());
    let hold = [
        "hold",
        "tls+unix:s.sock",
        "-q",
        "--out",
        "run",
        "--connections",
        "20",
    ];
    let more = ["--duration", "1s"];
    place.expect(0, &[&hold, &more[..], &CLIENT_TLS].concat());
    assert_eq!(place.run_json("run")["total"]["connections_full"], 20);
    served.stop();
}

#[test]
fn sidecars_listen_on_sockets_and_lead_to_them() {
    let place = Place::new();
    let served = Served::ours(&place, &["score"]);
    for protocol in ["grpc", "tcp"] {
        let route = format!(
            "workers = 2\n[[route]]\nname = \"r\"\nprotocol = \"{protocol}\"\n\
             listen = \"unix:in.sock\"\nupstream = [\"unix:s.sock\"]\n"
        );
        fs::write(place.path("relay.toml"), route).unwrap();
        let relay = Served::at(
            &place.path("in.sock"),
            &mut place.command(&["relay", "sidecar", "relay.toml"]),
        );
        let _ = fs::remove_dir_all(place.path("run"));
        let load = [
            "grpc",
            "unix:in.sock",
            "-q",
            "--out",
            "run",
            "--calls",
            "60",
        ];
        let more = ["--clients", "4", "--connections", "4"];
        place.expect(0, &[&load, &more[..], &SCORE].concat());
        assert_eq!(place.run_json("run")["total"]["ok"], 60, "{protocol}");
        relay.stop();
        assert!(!place.path("in.sock").exists(), "{protocol}");
    }
    served.stop();
}

#[test]
fn a_stale_socket_is_replaced_and_one_in_use_is_not() {
    let place = Place::new();
    drop(UnixListener::bind(place.path("s.sock")).unwrap());
    let served = Served::ours(&place, &["score"]);
    let second = ["serve", "score", "--listen", "unix:s.sock"];
    let output = place.run(&second);
    assert_eq!(output.status.code(), Some(1), "{}", told(&output));
    assert!(
        told(&output).contains("already in use"),
        "{}",
        told(&output)
    );
    served.stop();
    fs::write(place.path("s.sock"), "mine").unwrap();
    let output = place.run(&second);
    assert!(
        told(&output).contains("a file that is no socket"),
        "{}",
        told(&output)
    );
    assert_eq!(place.read("s.sock"), "mine");
}

#[test]
fn what_is_wrong_with_a_socket_is_said() {
    let place = Place::new();
    let long = format!("unix:/{}", "x".repeat(120));
    let score = |url: &str| {
        [&["grpc", url, "-q", "--calls", "1"], &SCORE[..]]
            .concat()
            .join("\n")
    };
    for (command, needle) in [
        (
            score(&long),
            "a socket's path may have 107 bytes, and this one has 121",
        ),
        (
            score("unix:no.sock"),
            "connect to unix:no.sock: there is no such file",
        ),
        (
            format!("serve\nscore\n--listen\n{long}"),
            "may have 107 bytes",
        ),
        (
            "serve\nscore\n--listen\nunix:s.sock\n--processes\n2".to_owned(),
            "no port that several processes could share",
        ),
    ] {
        let output = place.run(&command.split('\n').collect::<Vec<_>>());
        assert!(!output.status.success());
        assert!(told(&output).contains(needle), "{}", told(&output));
    }
}

#[test]
fn grpcio_is_understood_at_either_end_of_a_socket() {
    let place = Place::new();
    let path = format!("unix:{}", place.path("s.sock").display());
    let mut theirs = python(&place, "grpcio_server.py");
    let served = Served::new(&place, theirs.args(["--listen", &path]));
    let load = [
        &["grpc", &path, "-q", "--out", "run", "--calls", "50"],
        &SCORE[..],
    ];
    place.expect(0, &load.concat());
    assert_eq!(place.run_json("run")["total"]["ok"], 50);
    let listed = place.expect(0, &["grpc", "list", &path]);
    assert!(listed.contains("score.ScoreService"), "{listed}");
    drop(served);
    // It was killed: its file is stale.
    let served = Served::ours(&place, &["score"]);
    let mut theirs = python(&place, "grpcio_client.py");
    succeeds(theirs.args(["score", &path]));
    served.stop();
}

#[test]
fn curl_and_nginx_are_understood_at_either_end_of_a_socket() {
    let place = Place::new();
    let served = Served::ours(&place, &["files"]);
    let mut curl = tool("curl");
    curl.current_dir(place.path("")).args([
        "-sS",
        "--fail",
        "--unix-socket",
        "s.sock",
        "http://localhost/bytes/1KiB",
    ]);
    assert_eq!(succeeds(&mut curl).stdout.len(), 1024);
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
    let served = Served::new(&place, nginx.args(["-c", "nginx.conf", "-e", "stderr"]));
    let load = [
        "fetch",
        "unix:s.sock:/file.bin",
        "-q",
        "--out",
        "run",
        "--calls",
        "70",
    ];
    let output = place.run(&load);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(place.run_json("run")["total"]["ok"], 70);
    assert_eq!(place.read("access.log").lines().count(), 70);
    drop(served);
}
