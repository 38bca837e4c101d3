//! The whole stack with a real redis-server and haproxy: started, loaded, damaged, stopped.

#![allow(clippy::disallowed_methods, reason = "tests wait in real time")]

mod abroad;
mod compatibility;
mod restarts;

use crate::support;

use std::collections::HashMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_stack::sessions::{BalancerConfig, is_healthy};
use serde_json::Value;
use support::{Place, wait};

/// Redis has the first port, these the next ones, and gateways the following ones.
const BACKENDS: u16 = 2;

/// Returns the first of the 15 ports of a test's stack. The ports of a process are above those of [`free_port`] and below
/// those that the kernel gives to clients, and none of them was in use when it took its first.
///
/// [`free_port`]: crate::support::ports::free_port
fn first_port(slot: u16) -> u16 {
    const SLOTS: u16 = 10;
    const PORTS: u16 = 15;
    const FIRST: u16 = 22_100;
    const PROCESSES: u16 = 70;
    static BASE: LazyLock<u16> = LazyLock::new(|| {
        let own = (std::process::id() % u32::from(PROCESSES)) as u16;
        let bases = (0..PROCESSES).map(|n| FIRST + (own + n) % PROCESSES * (SLOTS * PORTS));
        let is_free = |base: &u16| {
            (*base..base + SLOTS * PORTS).all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok())
        };
        let mut free = bases.filter(is_free);
        free.next().expect("a range of free ports")
    });
    assert!(slot < SLOTS, "{slot}");
    *BASE + slot * PORTS
}

/// A stack in the test's folder, stopped when dropped.
struct Stack<'a> {
    place: &'a Place,
    first_port: u16,
}

impl<'a> Stack<'a> {
    fn up(place: &'a Place, slot: u16, token_delay: &str) -> Stack<'a> {
        Stack::up_with(place, slot, token_delay, &[])
    }

    /// Starts the stack with variables for its processes.
    fn up_with(
        place: &'a Place,
        slot: u16,
        token_delay: &str,
        variables: &[(&str, &str)],
    ) -> Stack<'a> {
        let first_port = first_port(slot);
        let stack = Stack { place, first_port };
        let port = |n: u16| (first_port + n).to_string();
        let mut command = place.command(&[
            "stack",
            "up",
            "sessions",
            "--dir",
            "stack",
            "--backends",
            "2",
            "--workers",
            "2",
            "--gateways",
            "3",
            "--first-port",
            &port(0),
            "--api-port",
            &port(10),
            "--socket-port",
            &port(11),
            "--stats-port",
            &port(12),
            "--token-delay",
            token_delay,
        ]);
        command
            .env("PLIMSOLL_SESSIONS", "200")
            .envs(variables.iter().copied());
        let output = support::output(&mut command, Duration::from_secs(90));
        assert!(output.status.success(), "{}", support::stderr_of(&output));
        stack
    }

    fn address(&self, n: u16) -> String {
        format!("127.0.0.1:{}", self.first_port + n)
    }

    fn load(&self, out: &str, more: &[&str]) -> Child {
        let (api, socket) = (
            format!("session://{}", self.address(10)),
            format!("ws://{}", self.address(11)),
        );
        let mut arguments = vec!["session", &api, "--socket", &socket, "--out", out, "-q"];
        arguments.extend(more);
        self.place
            .command(&arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("plimsoll starts")
    }

    fn status(&self, code: i32) -> Value {
        let arguments = ["stack", "status", "sessions", "--dir", "stack", "--json"];
        self.place.expect_json(code, &arguments)
    }

    /// Returns the tokens that a gateway has sent to clients.
    fn tokens_of(&self, gateway: u16) -> u64 {
        let mut stream = TcpStream::connect(self.address(BACKENDS + gateway)).expect("it listens");
        let request = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).expect("sent");
        let mut page = String::new();
        stream.read_to_string(&mut page).expect("text");
        let counter = "\nplimsoll_gateway_frames_total ";
        let rest = page
            .split(counter)
            .nth(1)
            .and_then(|rest| rest.lines().next());
        rest.and_then(|n| n.trim().parse().ok())
            .unwrap_or_else(|| panic!("no count in {page}"))
    }

    /// Waits until these gateways together have sent this many tokens.
    #[track_caller]
    fn wait_for_tokens(&self, gateways: &[u16], tokens: u64) {
        let began = Instant::now();
        loop {
            let sent: u64 = gateways.iter().map(|g| self.tokens_of(*g)).sum();
            if sent >= tokens {
                return;
            }
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "{sent} of {tokens}"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn kill(&self, name: &str) {
        self.signal(name, rustix::process::Signal::KILL);
    }

    fn signal(&self, name: &str, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.process_id(name)).expect("a process");
        rustix::process::kill_process(pid, signal).expect("it is there");
    }

    fn process_id(&self, name: &str) -> i32 {
        let state: Value =
            serde_json::from_str(&self.place.read("stack/stack.json")).expect("json");
        let processes = state["processes"].as_array().expect("a list");
        let process = processes.iter().find(|p| p["name"] == name).expect(name);
        process["pid"].as_i64().expect("a number") as i32
    }
}

impl Drop for Stack<'_> {
    fn drop(&mut self) {
        // Has no effect if the test has stopped it already.
        self.place
            .run(&["stack", "down", "sessions", "--dir", "stack"]);
    }
}

/// Sends a request and reads until `enough` is in the answer, or to the end.
fn send_request(to: &str, request: &str, enough: &str) -> String {
    let mut stream = TcpStream::connect(to).expect("it listens");
    stream
        .set_read_timeout(Some(Duration::from_secs(5)))
        .expect("a timeout");
    stream.write_all(request.as_bytes()).expect("it reads");
    let (mut answer, mut bytes) = (String::new(), [0; 4096]);
    while !answer.contains(enough) {
        match stream.read(&mut bytes) {
            Ok(0) | Err(_) => break,
            Ok(n) => answer.push_str(&String::from_utf8_lossy(&bytes[..n])),
        }
    }
    answer
}

fn session_count(gateway: &str) -> u64 {
    let text = send_request(
        gateway,
        "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
        "log_reads",
    );
    text.lines()
        .find_map(|line| line.strip_prefix("plimsoll_gateway_sessions_total "))
        .expect("the counter")
        .parse()
        .expect("a number")
}

#[test]
fn stack_carries_load_until_stopped() {
    let place = Place::new();
    let stack = Stack::up(&place, 0, "2ms");
    let status = stack.status(0);
    assert_eq!(status.as_array().map(Vec::len), Some(7), "{status}");
    let gateways: Vec<String> = (3..6).map(|n| stack.address(n)).collect();

    assert_eq!(
        wait(&mut stack.load("run", &["--clients", "30", "--queries", "3"])),
        0
    );
    let run = place.run_json("run");
    assert_eq!(run["total"]["ok"], 90, "{run}");
    assert_eq!(
        run["total"]["measures"]["counts"]["tokens_received"],
        90 * 18
    );
    let before: Vec<u64> = gateways.iter().map(|g| session_count(g)).collect();
    assert_eq!(before.iter().sum::<u64>(), 30);
    assert!(before.iter().all(|n| *n > 0), "all carry some: {before:?}");

    // The same session uses the same gateway, whichever backend created it.
    let made = send_request(
        &stack.address(10),
        "POST /session/create HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
        "\"}",
    );
    let made: Value =
        serde_json::from_str(made.split("\r\n\r\n").nth(1).expect("a body")).expect("json");
    let (id, token) = (
        made["session_id"].as_str().expect("an id"),
        made["token"].as_str().expect("a token"),
    );
    for _ in 0..6 {
        let answer = send_request(
            &stack.address(11),
            &format!(
                "GET /agent/ws/{id} HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                 Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
                 Authorization: Bearer {token}\r\n\r\n"
            ),
            "\r\n\r\n",
        );
        assert!(answer.starts_with("HTTP/1.1 101 "), "{answer}");
    }
    let mut grown: Vec<u64> = gateways
        .iter()
        .zip(&before)
        .map(|(g, n)| session_count(g) - n)
        .collect();
    grown.sort_unstable();
    assert_eq!(grown, [0, 0, 6]);

    // A second stack in the same folder is rejected; the first is not affected.
    let again = place.run(&["stack", "up", "sessions", "--dir", "stack"]);
    assert_eq!(again.status.code(), Some(1));
    assert!(support::stderr_of(&again).contains("a running stack"));
    assert!(
        place
            .expect(0, &["stack", "logs", "sessions", "--dir", "stack"])
            .contains("gateway-3: ")
    );

    // `down` works after a crash, too, and leaves nothing behind.
    stack.kill("haproxy");
    let status = stack.status(1);
    assert_eq!(status[6]["state"], "gone", "{status}");
    let out = place.expect(0, &["stack", "down", "sessions", "--dir", "stack"]);
    assert!(out.contains("6 processes ended"), "{out}");
    assert!(!fs::exists(place.path("stack/jwt-secret")).expect("a folder"));
    for n in [0, 1, 2, 3, 4, 5, 10, 11, 12] {
        assert!(
            TcpStream::connect(stack.address(n)).is_err(),
            "{} still listens",
            stack.address(n)
        );
    }
}

#[test]
fn gateway_kill_loses_no_tokens() {
    let place = Place::new();
    let stack = Stack::up(&place, 1, "50ms");
    let mut load = stack.load(
        "run",
        &[
            "--clients",
            "30",
            "--queries",
            "3",
            "--reconnect-pause",
            "200ms",
        ],
    );
    // The sessions' queries are in progress.
    stack.wait_for_tokens(&[2], 20);
    stack.kill("gateway-2");
    assert_eq!(wait(&mut load), 0);
    let run = place.run_json("run");
    let counts = &run["total"]["measures"]["counts"];
    assert_eq!(run["total"]["ok"], 90, "{run}");
    assert_eq!(counts["tokens_received"], 90 * 18, "{counts}");
    assert_eq!(counts["tokens_duplicated"], 0, "{counts}");
    assert_eq!(counts["history_gone"], 0, "{counts}");
    assert!(
        counts["sessions_reconnected"].as_u64() > Some(0),
        "{counts}"
    );
}

#[test]
fn backend_kill_fails_only_its_queries() {
    let place = Place::new();
    let stack = Stack::up(&place, 2, "50ms");
    let mut load = stack.load(
        "run",
        &["--clients", "30", "--queries", "2", "--deadline", "4s"],
    );
    // Every session has a query in progress, half of them at the backend that is killed.
    stack.wait_for_tokens(&[1, 2, 3], 60);
    stack.kill("backend-1");
    assert_eq!(wait(&mut load), 0);
    let run = place.run_json("run");
    let total = &run["total"];
    assert_eq!(run["count_check"]["matches"], true, "{run}");
    assert_eq!(total["due"], 60);
    // The frames that the dead backend had not sent are lost: the queries are reported as failed.
    assert!(total["errors"].as_u64() > Some(0), "{run}");
    assert!(total["ok"].as_u64() >= Some(20), "{run}");
    let counts = &total["measures"]["counts"];
    assert!(
        counts["tokens_received"].as_u64() >= total["ok"].as_u64().map(|ok| ok * 18),
        "{run}"
    );
    assert_eq!(counts["tokens_duplicated"], 0, "{run}");
}

#[test]
fn haproxy_reload_loses_no_tokens() {
    let place = Place::new();
    let stack = Stack::up(&place, 3, "50ms");
    let mut load = stack.load("run", &["--clients", "30", "--queries", "3"]);
    for part in 1..=3 {
        stack.wait_for_tokens(&[1, 2, 3], part * 90 * 18 / 4);
        stack.signal("haproxy", rustix::process::Signal::USR2);
    }
    assert_eq!(wait(&mut load), 0);
    let run = place.run_json("run");
    let counts = &run["total"]["measures"]["counts"];
    assert_eq!(run["total"]["ok"], 90, "{run}");
    assert_eq!(counts["tokens_received"], 90 * 18, "{counts}");
    for none in ["tokens_missing", "tokens_duplicated", "tokens_out_of_order"] {
        assert_eq!(counts[none], 0, "{counts}");
    }
    // The new balancer accepts new sessions.
    assert_eq!(wait(&mut stack.load("again", &["--clients", "5"])), 0);
    assert_eq!(place.run_json("again")["total"]["ok"], 5);
}

#[test]
fn embedded_stack_needs_no_external_programs() {
    let place = Place::new();
    let port = first_port(8);
    let (api, socket) = (port.to_string(), (port + 1).to_string());
    let flags = [
        "sessions",
        "--dir",
        "stack",
        "--embedded",
        "--api-port",
        &api,
        "--socket-port",
        &socket,
        "--token-delay",
        "2ms",
    ];
    // Only the required programs are looked up.
    let mut command = place.command(&[&["stack", "up"], &flags[..]].concat());
    let output = support::output(command.env("PATH", ""), Duration::from_secs(30));
    assert!(output.status.success(), "{}", support::stderr_of(&output));
    let said = support::text(&output.stdout);
    assert!(!said.contains("statistics"), "{said}");
    let stack = Stack {
        place: &place,
        first_port: port,
    };
    let status = stack.status(0);
    assert_eq!(status.as_array().map(Vec::len), Some(1), "{status}");
    let taken = place.run(&[
        "stack",
        "up",
        "sessions",
        "--dir",
        "other",
        "--api-port",
        &api,
    ]);
    assert_eq!(taken.status.code(), Some(1));
    let printed = support::stderr_of(&taken);
    assert!(
        printed.contains("the API can't listen on") && printed.contains("--api-port"),
        "{printed}"
    );
    drop(stack);
    let run = [
        &["stack", "run"],
        &flags[..],
        &["--clients", "20", "--queries", "2", "--out", "run", "-q"],
    ];
    place.expect(0, &run.concat());
    let run = place.run_json("run");
    assert_eq!(run["total"]["ok"], 40, "{run}");
    // The watched process is the started server, not the load itself.
    assert!(run.to_string().contains("\"server_pids\":["), "{run}");
    assert_eq!(
        run["total"]["measures"]["counts"]["tokens_received"],
        40 * 18
    );
    assert!(TcpStream::connect(format!("127.0.0.1:{port}")).is_err());
}

/// Deployments in containers and on Kubernetes.
#[test]
fn containers_use_same_haproxy_config() {
    let deploy = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    let balancer =
        |backend: &dyn Fn(u16) -> String, gateway: &dyn Fn(u16) -> String| BalancerConfig {
            connections: 20_200,
            api: "*:8080".to_owned(),
            sockets: "*:8081".to_owned(),
            stats: "*:8404".to_owned(),
            backends: (0..2).map(backend).collect(),
            gateways: (0..3).map(gateway).collect(),
            looks_up_names: true,
        };
    let compose = balancer(&|i| format!("backend-{}:8000", i + 1), &|i| {
        format!("gateway-{}:4040", i + 1)
    });
    // A pod's name in its service, and the service's name in its namespace.
    let domain = "plimsoll-sessions.svc.cluster.local";
    let kubernetes = balancer(&|i| format!("backend-{i}.backends.{domain}:8000"), &|i| {
        format!("gateway-{i}.gateways.{domain}:4040")
    });
    for (file, balancer) in [
        ("haproxy.cfg", &compose),
        ("kubernetes/haproxy.cfg", &kubernetes),
    ] {
        let path = deploy.join(file);
        let text = fs::read_to_string(&path).expect("a file");
        assert_eq!(
            text,
            balancer.configuration(),
            "{file} differs from the generated configuration"
        );
        let checked = support::haproxy::command()
            .args(["-c", "-f"])
            .arg(&path)
            .output()
            .expect("haproxy runs");
        assert!(checked.status.success(), "{}", support::stderr_of(&checked));
    }
    // Every server of the balancer is a service.
    let services = fs::read_to_string(deploy.join("sessions.yaml")).expect("a file");
    for server in compose.backends.iter().chain(&compose.gateways) {
        let (name, port) = server.split_once(':').expect("a port");
        assert!(services.contains(&format!("\n  {name}: ")), "{name}");
        assert!(services.contains(&format!("0.0.0.0:{port}\"")), "{port}");
    }
}
