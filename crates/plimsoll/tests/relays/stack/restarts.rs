//! Rolling restarts, and an unreachable bus.

use super::*;

/// Tells waiting threads to stop, also when a test fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Processes that replace a stack's own, killed when dropped.
#[derive(Default)]
struct ReplacedProcesses(HashMap<&'static str, Child>);

impl ReplacedProcesses {
    /// Asks processes to stop, and restarts each once it has.
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
                None => stack.process_id(name),
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
            wait_until(&format!("{name} ends"), ended);
            if let Some(mut old) = self.0.remove(name) {
                assert!(old.wait().expect("a child").success(), "{name}");
            }
            self.0
                .insert(name, command.spawn().expect("plimsoll starts"));
        }
    }
}

impl Drop for ReplacedProcesses {
    fn drop(&mut self) {
        for child in self.0.values_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[track_caller]
fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// An unreachable bus would be logged at every request; only a few lines are written.
#[test]
fn backend_limits_logging_without_redis() {
    const REQUESTS: usize = 2000;
    let place = Place::new();
    let stack = Stack::up_with(&place, 6, "2ms", &[("PLIMSOLL_LOG_FORMAT", "json")]);
    stack.kill("redis");
    let request = "POST /session/create HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n";
    let began = Instant::now();
    while !send_request(&stack.address(1), request, "}").contains(" 503 ") {
        assert!(began.elapsed() < Duration::from_secs(60), "the bus is away");
    }
    let mut stream = TcpStream::connect(stack.address(1)).expect("it listens");
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
    wait_until("it says what it left out", || log().contains("omitted"));
    let log = log();
    let said = log.lines().filter(|line| line.contains("is not reachable"));
    assert!(said.count() as u64 <= 10 * whiles, "{log}");
    // It prints its address and its counts, as other servers do.
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
fn rolling_restarts_lose_no_tokens() {
    let place = Place::new();
    // Each runs for longer than a restart takes; by hand (PROGRAM_UNDER_TEST), with as many
    // sessions as a stack must carry.
    let clients: u64 =
        std::env::var("ROLLING_CLIENTS").map_or(40, |n| n.parse().expect("a number"));
    let (words, queries) = (clients.to_string(), clients * 120);
    // The balancer probes twice a second and acts on the third failure.
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
        let _ending = StopOnDrop(&restarted);
        let mut replacing = ReplacedProcesses::default();
        for _ in 0..3 {
            for (names, ports) in [
                (&["backend-1", "gateway-1"][..], &[1, 3][..]),
                (&["backend-2", "gateway-2", "gateway-3"], &[2, 4, 5]),
            ] {
                replacing.restart(&stack, names);
                wait_until("they are back", || {
                    let state = send_request(
                        &stack.address(12),
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
                        .all(|n| TcpStream::connect(stack.address(*n)).is_ok())
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
    assert!(
        reconnected > 0,
        "no client noticed a restart in {runs} runs"
    );
    println!("{runs} runs of {queries} queries, {reconnected} sessions reconnected");
}
