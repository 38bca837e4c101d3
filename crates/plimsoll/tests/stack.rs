//! The whole stack with a real redis-server and haproxy: up, loaded, hurt, down.

#![allow(clippy::disallowed_methods, reason = "tests wait in real time")]

mod support;

use std::collections::HashMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_stack::sessions::{Balancer, is_healthy};
use serde_json::Value;
use support::{Place, wait};

/// Redis has the first port, these the next ones, and gateways those behind them.
const BACKENDS: u16 = 2;

/// The first of fifteen ports, below those that the system hands out by itself. Each test has a
/// `slot` of its own, for stacks that run at once; the process id separates several test runs.
fn first_port(slot: u32) -> u16 {
    const SLOTS: u32 = 10;
    assert!(slot < SLOTS, "{slot}");
    (10_000 + (std::process::id() % 150 * SLOTS + slot) * 15) as u16
}

/// A stack in the test's folder, taken down when dropped.
struct Stack<'a> {
    place: &'a Place,
    first_port: u16,
}

impl<'a> Stack<'a> {
    fn up(place: &'a Place, slot: u32, token_delay: &str) -> Stack<'a> {
        Stack::up_with(place, slot, token_delay, &[])
    }

    /// With variables for its processes.
    fn up_with(
        place: &'a Place,
        slot: u32,
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

    fn at(&self, n: u16) -> String {
        format!("127.0.0.1:{}", self.first_port + n)
    }

    fn load(&self, out: &str, more: &[&str]) -> Child {
        let (api, socket) = (
            format!("session://{}", self.at(10)),
            format!("ws://{}", self.at(11)),
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

    /// Tokens that a gateway has sent to clients.
    fn tokens_of(&self, gateway: u16) -> u64 {
        let mut stream = TcpStream::connect(self.at(BACKENDS + gateway)).expect("it listens");
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

    /// Waits until these gateways together have sent so many tokens.
    #[track_caller]
    fn until_tokens(&self, gateways: &[u16], tokens: u64) {
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
        let pid = rustix::process::Pid::from_raw(self.process(name)).expect("a process");
        rustix::process::kill_process(pid, signal).expect("it is there");
    }

    fn process(&self, name: &str) -> i32 {
        let state: Value =
            serde_json::from_str(&self.place.read("stack/stack.json")).expect("json");
        let processes = state["processes"].as_array().expect("a list");
        let process = processes.iter().find(|p| p["name"] == name).expect(name);
        process["pid"].as_i64().expect("a number") as i32
    }
}

impl Drop for Stack<'_> {
    fn drop(&mut self) {
        // A test that has taken it down itself leaves nothing to do.
        self.place
            .run(&["stack", "down", "sessions", "--dir", "stack"]);
    }
}

/// Sends a request and reads until `enough` is in the answer, or its end.
fn ask(to: &str, request: &str, enough: &str) -> String {
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

fn sessions_of(gateway: &str) -> u64 {
    let text = ask(
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
fn a_stack_comes_up_carries_load_and_goes_down_whole() {
    let place = Place::new();
    let stack = Stack::up(&place, 0, "2ms");
    let status = stack.status(0);
    assert_eq!(status.as_array().map(Vec::len), Some(7), "{status}");
    let gateways: Vec<String> = (3..6).map(|n| stack.at(n)).collect();

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
    let before: Vec<u64> = gateways.iter().map(|g| sessions_of(g)).collect();
    assert_eq!(before.iter().sum::<u64>(), 30);
    assert!(before.iter().all(|n| *n > 0), "all carry some: {before:?}");

    // The same session, the same gateway, whichever backend made it.
    let made = ask(
        &stack.at(10),
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
        let answer = ask(
            &stack.at(11),
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
        .map(|(g, n)| sessions_of(g) - n)
        .collect();
    grown.sort_unstable();
    assert_eq!(grown, [0, 0, 6]);

    // A second stack in the same folder is refused; the first is not harmed.
    let again = place.run(&["stack", "up", "sessions", "--dir", "stack"]);
    assert_eq!(again.status.code(), Some(1));
    assert!(support::stderr_of(&again).contains("a stack that is up"));
    assert!(
        place
            .expect(0, &["stack", "logs", "sessions", "--dir", "stack"])
            .contains("gateway-3: ")
    );

    // Down works after a crash, too, and leaves nothing behind.
    stack.kill("haproxy");
    let status = stack.status(1);
    assert_eq!(status[6]["state"], "gone", "{status}");
    let out = place.expect(0, &["stack", "down", "sessions", "--dir", "stack"]);
    assert!(out.contains("6 processes ended"), "{out}");
    assert!(!fs::exists(place.path("stack/jwt-secret")).expect("a folder"));
    for n in [0, 1, 2, 3, 4, 5, 10, 11, 12] {
        assert!(
            TcpStream::connect(stack.at(n)).is_err(),
            "{} still listens",
            stack.at(n)
        );
    }
}

#[test]
fn a_gateway_killed_under_load_costs_no_token() {
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
    // In the midst of its sessions' queries.
    stack.until_tokens(&[2], 20);
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
fn a_backend_killed_in_mid_stream_fails_its_queries_and_no_others() {
    let place = Place::new();
    let stack = Stack::up(&place, 2, "50ms");
    let mut load = stack.load(
        "run",
        &["--clients", "30", "--queries", "2", "--deadline", "4s"],
    );
    // Every session has a query under way, and half of those are this one's.
    stack.until_tokens(&[1, 2, 3], 60);
    stack.kill("backend-1");
    assert_eq!(wait(&mut load), 0);
    let run = place.run_json("run");
    let total = &run["total"];
    assert_eq!(run["count_check"]["matches"], true, "{run}");
    assert_eq!(total["due"], 60);
    // What the dead one had not sent never came: reported as such, not called a success.
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
fn haproxy_reloaded_under_load_costs_no_token() {
    let place = Place::new();
    let stack = Stack::up(&place, 3, "50ms");
    let mut load = stack.load("run", &["--clients", "30", "--queries", "3"]);
    for part in 1..=3 {
        stack.until_tokens(&[1, 2, 3], part * 90 * 18 / 4);
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
    // The new balancer takes new sessions.
    assert_eq!(wait(&mut stack.load("again", &["--clients", "5"])), 0);
    assert_eq!(place.run_json("again")["total"]["ok"], 5);
}

/// What waits for this goes on when a test fails, too.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Processes in the place of a stack's own, killed when dropped.
#[derive(Default)]
struct Replacing(HashMap<&'static str, Child>);

impl Replacing {
    /// Asks processes to end, and starts each anew when it has.
    fn restart(&mut self, stack: &Stack<'_>, names: &[&'static str]) {
        let parts = |pid: i32, file: &str| -> Vec<String> {
            let text = fs::read_to_string(format!("/proc/{pid}/{file}")).expect("a process");
            let parts = text.split('\0').map(str::to_owned);
            parts.filter(|part| !part.is_empty()).collect()
        };
        let mut commands = Vec::new();
        for name in names {
            let pid = match self.0.get(name) {
                Some(child) => child.id() as i32,
                None => stack.process(name),
            };
            let arguments = parts(pid, "cmdline");
            let mut command = Command::new(&arguments[0]);
            command
                .args(&arguments[1..])
                .env_clear()
                .envs(
                    parts(pid, "environ")
                        .iter()
                        .filter_map(|v| v.split_once('=')),
                )
                .current_dir(stack.place.path("."))
                .stdout(Stdio::null())
                .stderr(Stdio::inherit());
            commands.push((pid, command));
            let pid = rustix::process::Pid::from_raw(pid).expect("a process");
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it is there");
        }
        for ((pid, mut command), name) in commands.into_iter().zip(names) {
            let ended = || match fs::read_to_string(format!("/proc/{pid}/stat")) {
                Ok(stat) => stat
                    .rsplit(')')
                    .next()
                    .is_some_and(|rest| rest.starts_with(" Z")),
                Err(_) => true,
            };
            until(&format!("{name} ends"), ended);
            if let Some(mut old) = self.0.remove(name) {
                assert!(old.wait().expect("a child").success(), "{name}");
            }
            self.0
                .insert(name, command.spawn().expect("plimsoll starts"));
        }
    }
}

impl Drop for Replacing {
    fn drop(&mut self) {
        for child in self.0.values_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[track_caller]
fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A bus that is away is something to log at every request, and is logged a few times.
#[test]
fn a_backend_without_its_bus_does_not_fill_the_disk() {
    const REQUESTS: usize = 2000;
    let place = Place::new();
    let stack = Stack::up_with(&place, 6, "2ms", &[("PLIMSOLL_LOG_FORMAT", "json")]);
    stack.kill("redis");
    let request = "POST /session/create HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n";
    let began = Instant::now();
    while !ask(&stack.at(1), request, "}").contains(" 503 ") {
        assert!(began.elapsed() < Duration::from_secs(60), "the bus is away");
    }
    let mut stream = TcpStream::connect(stack.at(1)).expect("it listens");
    let limit = Some(Duration::from_secs(60));
    stream.set_read_timeout(limit).expect("a time");
    let last = request.replace("Host: x", "Host: x\r\nConnection: close");
    thread::scope(|scope| {
        let mut sending = stream.try_clone().expect("a socket");
        let all = request.repeat(REQUESTS - 1) + &last;
        scope.spawn(move || sending.write_all(all.as_bytes()).expect("it reads"));
        let mut answers = String::new();
        stream.read_to_string(&mut answers).expect("answers");
        assert_eq!(answers.matches(" 503 ").count(), REQUESTS);
    });
    let whiles = began.elapsed().as_secs() / 5 + 2;
    stack.signal("backend-1", rustix::process::Signal::TERM);
    let path = place.path("stack/backend-1.log");
    let log = || fs::read_to_string(&path).expect("a log");
    until("it says what it left out", || log().contains("left out"));
    let log = log();
    let said = log.lines().filter(|line| line.contains("is not reachable"));
    assert!(said.count() as u64 <= 10 * whiles, "{log}");
    // What it prints, as other servers do, is its address and what it counted.
    let printed = |line: &&str| !line.contains("listening on") && !line.starts_with("sessions ");
    for line in log.lines().filter(printed) {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        assert!(
            line["level"].is_string() && line["fields"]["message"].is_string(),
            "{line}"
        );
    }
}

#[test]
fn three_rolling_restarts_under_load_cost_nothing() {
    let place = Place::new();
    // Each stays for longer than a restart takes; by hand (PROGRAM_UNDER_TEST), as many as a stack is to carry.
    let clients: u64 =
        std::env::var("ROLLING_CLIENTS").map_or(40, |n| n.parse().expect("a number"));
    let (words, queries) = (clients.to_string(), clients * 120);
    // The balancer asks twice a second, and believes the third answer.
    let variables = [
        ("PLIMSOLL_LAME_DUCK", "3s"),
        ("PLIMSOLL_DRAIN", "2s"),
        ("PLIMSOLL_SESSIONS", &words),
    ];
    let stack = Stack::up_with(&place, 5, "10ms", &variables);
    let restarted = AtomicBool::new(false);
    let runs = thread::scope(|scope| {
        let loading = scope.spawn(|| {
            let more = [
                "--clients",
                &words,
                "--queries",
                "120",
                "--reconnect-pause",
                "200ms",
            ];
            let mut runs = 0;
            while !restarted.load(Ordering::Acquire) {
                let name = format!("run-{runs}");
                let code = wait(&mut stack.load(&name, &more));
                assert_eq!(code, 0, "{}", place.run_json(&name)["total"]);
                runs += 1;
            }
            runs
        });
        let _ending = Ending(&restarted);
        let mut replacing = Replacing::default();
        for _ in 0..3 {
            for (names, ports) in [
                (&["backend-1", "gateway-1"][..], &[1, 3][..]),
                (&["backend-2", "gateway-2", "gateway-3"], &[2, 4, 5]),
            ] {
                replacing.restart(&stack, names);
                until("they are back", || {
                    let state = ask(
                        &stack.at(12),
                        "GET /stats;csv HTTP/1.1\r\nHost: x\r\n\r\n",
                        "stats,BACKEND",
                    );
                    let up = state.lines().filter(|line| {
                        names.iter().any(|name| {
                            line.contains(&name.replace('-', "")) && line.contains(",UP,")
                        })
                    });
                    ports
                        .iter()
                        .all(|n| TcpStream::connect(stack.at(*n)).is_ok())
                        && up.count() == names.len()
                });
            }
        }
        restarted.store(true, Ordering::Release);
        let runs = loading.join().expect("loads");
        drop(replacing);
        runs
    });
    let mut reconnected = 0;
    for n in 0..runs {
        let run = place.run_json(&format!("run-{n}"));
        let total = &run["total"];
        let counts = &total["measures"]["counts"];
        assert_eq!(
            (&total["ok"], &total["errors"]),
            (&queries.into(), &0.into()),
            "{run}"
        );
        assert_eq!(counts["tokens_received"], queries * 18, "{counts}");
        assert_eq!(counts["tokens_duplicated"], 0, "{counts}");
        reconnected += counts["sessions_reconnected"].as_u64().unwrap_or(0);
    }
    assert!(reconnected > 0, "nobody noticed, in {runs} runs");
    println!("{runs} runs of {queries} queries, {reconnected} sessions reconnected");
}

#[test]
fn flags_of_session_load_tests_bring_a_stack_up_print_its_logs_and_take_it_down() {
    let place = Place::new();
    let stack = Stack {
        place: &place,
        first_port: first_port(9),
    };
    let port = |n: u16| (stack.first_port + n).to_string();
    let run = |more: &[&str]| {
        let mut command = place.command(&["stack", "run", "sessions", "--dir", "stack"]);
        let output = support::output(command.args(more), support::LONGEST);
        assert!(output.status.success(), "{}", support::stderr_of(&output));
        support::text(&output.stdout)
    };
    let instances = [
        "--fastapi-instances",
        "1",
        "--wsproxy-instances",
        "2",
        "--fastapi-workers",
        "2",
        "--sessions",
        "200",
    ];
    let ports = [
        ("--first-port", port(0)),
        ("--api-port", port(10)),
        ("--socket-port", port(11)),
        ("--stats-port", port(12)),
    ];
    let ports = ports.iter().flat_map(|(flag, port)| [*flag, port]);
    let up: Vec<&str> = ["--up-only"]
        .into_iter()
        .chain(instances)
        .chain(ports)
        .collect();
    run(&up);
    let status = stack.status(0);
    let named = |name: &str| {
        let processes = status.as_array().expect("a list").iter();
        let names = processes.filter_map(|process| process["name"].as_str());
        names.filter(|found| found.starts_with(name)).count()
    };
    assert_eq!((named("backend-"), named("gateway-")), (1, 2), "{status}");
    assert!(run(&["--logs"]).contains("gateway-2"));
    assert!(run(&["--down"]).contains(" processes ended"));
}

#[test]
fn an_embedded_stack_needs_neither_redis_nor_haproxy() {
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
    // No program is looked for that this does not need.
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
        printed.contains("the API is to listen on") && printed.contains("--api-port"),
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
    // The server that is watched is what was started, and not the load itself.
    assert!(run.to_string().contains("\"server_pids\":["), "{run}");
    assert_eq!(
        run["total"]["measures"]["counts"]["tokens_received"],
        40 * 18
    );
    assert!(TcpStream::connect(format!("127.0.0.1:{port}")).is_err());
}

/// In containers and on Kubernetes.
#[test]
fn the_stack_in_containers_has_the_same_balancer() {
    let deploy = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    let balancer = |backend: &dyn Fn(u16) -> String, gateway: &dyn Fn(u16) -> String| Balancer {
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
    // A pod's name in its service, and the service's in its namespace.
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
        assert_eq!(text, balancer.configuration(), "{file} is another one");
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

/// A script of `tests/peers`.
fn python(script: &str) -> std::process::Command {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let python = root.join(".peers/venv/bin/python");
    assert!(
        python.exists(),
        "{} is missing: tests/setup.sh tests makes it",
        python.display()
    );
    let mut command = std::process::Command::new(python);
    command.arg(script).current_dir(root.join("tests/peers"));
    command
}

#[test]
fn clients_that_open_their_sockets_late_get_every_token() {
    let place = Place::new();
    let stack = Stack::up(&place, 4, "20ms");
    let mut users = python("session_client.py");
    users
        .env("FASTAPI_URL", format!("http://{}", stack.at(10)))
        .env("WSPROXY_URL", format!("ws://{}", stack.at(11)))
        .env("CLIENTS", "200")
        .env("QUERIES_PER_CLIENT", "3");
    let output = support::output(&mut users, Duration::from_secs(300));
    let said = support::text(&output.stdout);
    assert!(
        output.status.success(),
        "{said}{}",
        support::text(&output.stderr)
    );
    let tally: Value = serde_json::from_str(&said).expect("json");
    // Each text is whole and in order, and it is the only one.
    let text = plimsoll_relays::llm::RESPONSE_TEXT;
    assert_eq!(tally["texts"], serde_json::json!({ text: 600 }), "{tally}");
    assert_eq!(
        (&tally["queries"], &tally["tokens"]),
        (&600.into(), &10_800.into()),
        "{tally}"
    );
}

/// A process that is killed when dropped.
struct Killed(Child);

impl Killed {
    fn start(command: &mut std::process::Command, address: &str, health: bool) -> Killed {
        let child = command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let mut process = Killed(child);
        let address = address.parse().expect("an address");
        let begun = Instant::now();
        while !is_healthy(address, health.then_some("/health")) {
            let ended = process.0.try_wait().expect("a child");
            assert_eq!(ended, None, "{command:?} has ended");
            assert!(begun.elapsed() < Duration::from_secs(60), "{command:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
        process
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_backend_of_fastapi_is_loaded_through_our_gateways_and_a_balancer() {
    const SECRET: &str = "a secret for tests, of 32 bytes and more";
    const TEXT: &str = "What  is sent\nonce arrives once,\u{a0}\u{1f6a2} \"quoted\" too.";
    let place = Place::new();
    let at = |n: u16| format!("127.0.0.1:{}", first_port(7) + n);
    let port = |n: u16| (first_port(7) + n).to_string();

    let mut redis = std::process::Command::new("redis-server");
    redis.args(["--port", &port(0), "--bind", "127.0.0.1", "--save", ""]);
    redis
        .args(["--appendonly", "no"])
        .current_dir(place.path(""));
    let _redis = Killed::start(&mut redis, &at(0), false);
    let url = format!("redis://{}", at(0));
    let mut backend = python("session_backend.py");
    backend
        .env("REDIS_URL", &url)
        .env("FASTAPI_HOST", "127.0.0.1")
        .env("FASTAPI_PORT", port(1))
        .env("FASTAPI_WORKERS", "2")
        .env("TOKEN_DELAY_MS", "10")
        .env("LLM_RESPONSE_TEXT", TEXT)
        .env("JWT_SECRET", SECRET)
        .env("JWT_ALGORITHM", "HS256");
    let _backend = Killed::start(&mut backend, &at(1), true);
    let gateways: Vec<Killed> = [2, 3]
        .into_iter()
        .map(|n| {
            let mut gateway = place.command(&["relay", "gateway"]);
            gateway
                .env("HOST", "127.0.0.1")
                .env("PORT", port(n))
                .env("REDIS_URL", &url)
                .env("PUBSUB_POOL_SIZE", "2")
                .env("JWT_SECRET", SECRET)
                .env("JWT_ALGORITHM", "HS256");
            Killed::start(&mut gateway, &at(n), true)
        })
        .collect();
    let balancer = Balancer {
        connections: 1000,
        api: at(4),
        sockets: at(5),
        stats: at(6),
        backends: vec![at(1)],
        gateways: vec![at(2), at(3)],
        looks_up_names: false,
    };
    fs::write(place.path("haproxy.cfg"), balancer.configuration()).expect("a file");
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin";
    let mut haproxy = std::process::Command::new("haproxy");
    haproxy.env("PATH", path).args(["-db", "-f"]);
    haproxy.arg(place.path("haproxy.cfg"));
    let _haproxy = Killed::start(&mut haproxy, &at(4), true);

    let tokens = TEXT.split_whitespace().count() as u64;
    let addresses = [(at(1), at(2)), (at(4), at(5))];
    for (name, (api, sockets)) in ["direct", "balanced"].into_iter().zip(addresses) {
        let (api, sockets) = (format!("session://{api}"), format!("ws://{sockets}"));
        let tokens_each = tokens.to_string();
        let run = [
            "session",
            &api,
            "--socket",
            &sockets,
            "--clients",
            "40",
            "--queries",
            "3",
            "--expect-tokens",
            &tokens_each,
            "--out",
            name,
            "-q",
        ];
        place.expect(0, &run);
        let run = place.run_json(name);
        assert_eq!(
            (&run["total"]["ok"], &run["total"]["due"]),
            (&120.into(), &120.into()),
            "{run}"
        );
        let counts = &run["total"]["measures"]["counts"];
        assert_eq!(counts["tokens_received"], 120 * tokens, "{counts}");
        assert_eq!(counts["sessions_ok"], 40, "{counts}");
    }
    drop(gateways);
}
