//! Honesty tests in real time: targets whose behaviour is known by arithmetic, compared with what
//! is reported.
//!
//! Calls that were due during a freeze of the target must be reported with their full wait; a tool
//! that takes the time of sending instead of the due time omits it. A busy machine makes calls
//! slower, never faster, so these tests assert lower bounds, which hold on any machine. The upper
//! bounds and the evenness of arrivals are tested in simulated time
//! (`plimsoll-protocols/tests/simulation/honesty.rs`, with the arithmetic) and measured by
//! `bench/pacing.py` and `bench/arrivals.py`.

use crate::support;

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_protocols::grpc::canned::{CannedConnection, CannedOptions, CannedServer};
use serde_json::Value;
use support::{Place, SCORE, print_uncaptured, signal};

/// Serialises the tests, because tests that measure time would disturb each other.
fn lock_tests() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(|failed| failed.into_inner())
}

const MS: u64 = 1_000_000;

/// A constant rate against a server that needs `delay` for an answer and freezes once. All times in
/// nanoseconds.
struct FreezeScenario {
    rate: u64,
    seconds: u64,
    delay: u64,
    freeze_after: u64,
    freeze: u64,
    /// Most calls in flight.
    streams: Option<u32>,
    server: TestedServer,
}

/// The server under test.
enum TestedServer {
    /// [`Exact`]: only the delay and the freeze, accurate to some microseconds.
    Exact,
    /// `plimsoll serve score`, which needs a while for the answers that the freeze has delayed.
    Score,
}

impl FreezeScenario {
    fn calls(&self) -> u64 {
        self.rate * self.seconds
    }

    /// Runs the load; returns what the tool reports.
    fn run(&self) -> Value {
        let place = Place::new();
        let (url, _server) = match self.server {
            TestedServer::Exact => {
                let freeze = self.freeze_after..self.freeze_after + self.freeze;
                let exact = ExactServer::start(self.delay, freeze, self.streams);
                (format!("grpc://127.0.0.1:{}", exact.port), None)
            }
            TestedServer::Score => {
                let ms = |ns: u64| format!("{}ms", ns / MS);
                let stall = format!("{}@{}", ms(self.freeze), ms(self.freeze_after));
                let streams = self.streams.unwrap_or(0).to_string();
                let server = place.serve(&[
                    "score",
                    "--delay",
                    &ms(self.delay),
                    "--stall",
                    &stall,
                    "--max-streams",
                    &streams,
                ]);
                (server.plaintext(), Some(server))
            }
        };
        let (rate, seconds) = (format!("{}/s", self.rate), format!("{}s", self.seconds));
        let mut arguments = vec![
            "grpc",
            &url,
            "--rate",
            &rate,
            "--duration",
            &seconds,
            "--out",
            "run",
            "--json",
            "-q",
        ];
        arguments.extend(SCORE);
        let run = place.expect_run(0, &arguments);
        let total = &run["total"];
        assert_eq!(total["due"], self.calls(), "{total}");
        assert_eq!(total["ok"], self.calls(), "{total}");
        assert_eq!(run["count_check"]["matches"], true, "{run}");
        run
    }
}

fn micros(run: &Value, times: &str, what: &str) -> f64 {
    run["total"][times][format!("{what}_us")]
        .as_f64()
        .unwrap_or_else(|| panic!("{times} has no {what}: {}", run["total"]))
}

/// Asserts that each percentile of the response time is at least this many milliseconds.
#[track_caller]
fn assert_at_least(run: &Value, at_least_ms: &[(&str, f64)]) {
    for (name, least) in at_least_ms {
        let seen = micros(run, "response", name) / 1e3;
        print_uncaptured(format_args!(
            "response {name}: {seen:.1} ms; by arithmetic {least:.1} ms"
        ));
        // Half a percent: the histogram's three digits, and one call more or less.
        assert!(
            seen >= least * 0.995,
            "response {name} {seen} ms, and it can't be below {least} ms"
        );
    }
}

/// The load has 20,000 calls in 10 s, answered in 5 ms except for a freeze of 500 ms. The 1,000
/// calls that are due in the freeze (or in the 5 ms before it) wait for its end, from 505 ms down
/// to 5 ms in steps of 0.5 ms. The slowest percent are the 200 that wait longest, so p99 is
/// 505 − 200 × 0.5 = 405 ms, and p99.9 (20 calls) is 495 ms.
#[test]
fn half_second_freeze_shows_in_percentiles() {
    let _alone = lock_tests();
    let frozen = FreezeScenario {
        rate: 2000,
        seconds: 10,
        delay: 5 * MS,
        freeze_after: 3000 * MS,
        freeze: 500 * MS,
        streams: None,
        server: TestedServer::Exact,
    };
    let run = frozen.run();
    assert_at_least(
        &run,
        &[
            ("p50", 5.0),
            ("p99", 405.0),
            ("p99.9", 495.0),
            ("max", 505.0),
        ],
    );
}

/// The same freeze with a server that allows 100 concurrent calls. 10 are in flight when it begins
/// and 90 more are sent, then no more can be: of 20,000 calls only 100, half a percent, are slow from
/// their send, so the p99 of the service time does not show the freeze. Tools that measure from the
/// send report this value. 910 more calls are due during the freeze. The 200th longest response time
/// is that of a call due 95 ms into the freeze, sent at its end, and answered 5 ms later.
#[test]
fn stream_wait_lengthens_only_response_time() {
    let _alone = lock_tests();
    let frozen = FreezeScenario {
        rate: 2000,
        seconds: 10,
        delay: 5 * MS,
        freeze_after: 3000 * MS,
        freeze: 500 * MS,
        streams: Some(100),
        server: TestedServer::Exact,
    };
    let run = frozen.run();
    assert_at_least(&run, &[("p99", 405.0), ("max", 505.0)]);
    let mean = |times| micros(&run, times, "mean");
    let service = mean("service");
    print_uncaptured(format_args!("service mean: {:.1} ms", service / 1e3));
    // The sum holds on any machine: of three means, one is the sum of the others.
    assert!(
        (mean("response") - mean("lag") - service).abs() <= 0.005 * mean("response"),
        "service mean {service} µs counts the wait for a stream, which is not service"
    );
    // The wait is send delay caused by the target: the generator noticed in time.
    let lag = micros(&run, "lag", "p99");
    assert!(lag > 300_000.0, "{lag}");
    assert!(micros(&run, "pacing", "p50") < lag / 10.0);
    let kinds: Vec<_> = run["health"]["problems"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|problem| problem["kind"].as_str().expect("a name"))
        .collect();
    assert!(kinds.contains(&"waited_for_connection"), "{kinds:?}");
}

/// The load has 10,000 calls in 10 s with a freeze of one second. 1,000 of them wait, from 1,005 ms
/// down to 5 ms in steps of 1 ms. The slowest percent are 100 of them, so p99 is 905 ms; the slowest
/// 5 % are 500, so p95 is 505 ms.
#[test]
fn one_second_freeze_shows_in_percentiles() {
    let _alone = lock_tests();
    let frozen = FreezeScenario {
        rate: 1000,
        seconds: 10,
        delay: 5 * MS,
        freeze_after: 3000 * MS,
        freeze: 1000 * MS,
        streams: None,
        server: TestedServer::Score,
    };
    let run = frozen.run();
    assert_at_least(&run, &[("p95", 505.0), ("p99", 905.0), ("max", 1005.0)]);
}

/// A server that answers a fixed time after a request was read from the socket, or at the end of
/// its freeze if that is later. Everything that is due leaves in one write, so that the server adds
/// as little delay as possible.
struct ExactServer {
    port: u16,
}

/// State shared by the two threads of a connection: one reads, the other answers.
struct ConnectionState {
    connection: CannedConnection,
    stream: TcpStream,
    out: Vec<u8>,
}

impl ConnectionState {
    fn flush(&mut self) -> Option<()> {
        self.stream.write_all(&self.out).ok()?;
        self.out.clear();
        Some(())
    }
}

#[expect(clippy::disallowed_methods, reason = "a test measures in real time")]
impl ExactServer {
    /// Times in nanoseconds; those of `freeze` since the first request.
    fn start(delay: u64, freeze: Range<u64>, streams: Option<u32>) -> ExactServer {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let options = CannedOptions {
            answered_by_caller: true,
            max_concurrent_streams: streams,
            ..CannedOptions::default()
        };
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let options = options.clone();
                let (due, ready) = mpsc::channel();
                let answering = ConnectionState {
                    connection: CannedServer::new(options).new_connection(),
                    stream: stream.try_clone().expect("a descriptor"),
                    out: Vec::new(),
                };
                let answering = Arc::new(Mutex::new(answering));
                let shared = Arc::clone(&answering);
                thread::spawn(move || ExactServer::answer(&ready, &shared));
                let leaves = {
                    let freeze = freeze.clone();
                    move |arrived: Duration| {
                        let ready = arrived.as_nanos() as u64 + delay;
                        Duration::from_nanos(if freeze.contains(&ready) {
                            freeze.end
                        } else {
                            ready
                        })
                    }
                };
                thread::spawn(move || ExactServer::read(stream, &answering, leaves, &due));
            }
        });
        ExactServer { port }
    }

    /// Reads until the client closes.
    fn read(
        mut stream: TcpStream,
        answering: &Mutex<ConnectionState>,
        leaves: impl Fn(Duration) -> Duration,
        due: &mpsc::Sender<(Instant, u32)>,
    ) -> Option<()> {
        stream.set_nodelay(true).ok()?;
        let mut held = Vec::new();
        let mut buffer = vec![0; 64 << 10];
        let mut first = None;
        {
            let mut answering = answering.lock().ok()?;
            let ConnectionState {
                connection, out, ..
            } = &mut *answering;
            connection.send_preface(out);
            answering.flush()?;
        }
        loop {
            let n = stream.read(&mut buffer).ok().filter(|n| *n > 0)?;
            let now = Instant::now();
            let mut answering = answering.lock().ok()?;
            let ConnectionState {
                connection, out, ..
            } = &mut *answering;
            connection.receive(&buffer[..n], out, &mut held).ok()?;
            answering.flush()?;
            drop(answering);
            if held.is_empty() {
                continue;
            }
            let begin = *first.get_or_insert(now);
            let at = now - begin;
            let ready = begin + leaves(at);
            for stream in held.drain(..) {
                due.send((ready, stream)).ok()?;
            }
        }
    }

    /// One delay for all, so requests become due in the order of arrival.
    fn answer(
        due: &mpsc::Receiver<(Instant, u32)>,
        answering: &Mutex<ConnectionState>,
    ) -> Option<()> {
        let mut next = None;
        loop {
            let (ready, stream) = match next.take() {
                Some(next) => next,
                None => due.recv().ok()?,
            };
            thread::sleep(ready.saturating_duration_since(Instant::now()));
            let mut answering = answering.lock().ok()?;
            let ConnectionState {
                connection, out, ..
            } = &mut *answering;
            connection.answer_held_request(stream, out);
            let now = Instant::now();
            while let Ok((ready, stream)) = due.try_recv() {
                if ready > now {
                    next = Some((ready, stream));
                    break;
                }
                connection.answer_held_request(stream, out);
            }
            answering.flush()?;
        }
    }
}

/// The last arrival stands for the time until the next one would be due: dividing by a shorter time
/// would inflate the rate.
#[test]
fn rate_covers_last_arrival_interval() {
    let _alone = lock_tests();
    let server = ExactServer::start(MS, 0..0, None);
    let place = Place::new();
    let url = format!("grpc://127.0.0.1:{}", server.port);
    for (name, length, calls, rate) in [
        ("time", ["--rate", "1/s", "--duration", "2s"], 2, 1.0),
        ("calls", ["--rate", "10/s", "--calls", "3"], 3, 10.0),
        ("less", ["--rate", "0.5/s", "--duration", "1s"], 1, 1.0),
    ] {
        let mut arguments = vec!["grpc", &url, "--out", name, "--json", "-q"];
        arguments.extend(length);
        arguments.extend(SCORE);
        let run = place.expect_run(0, &arguments);
        assert_eq!(run["total"]["ok"], calls, "{name}: {run}");
        let achieved = run["total"]["achieved_per_s"].as_f64().unwrap_or(0.0);
        assert!(
            // A busy machine may end the last call late, and never early.
            (rate * 0.5..rate * 1.001).contains(&achieved),
            "{name}: {achieved}/s, not {rate}/s"
        );
    }
}

/// A generator that was stopped sends late: it must report that, count the delay as part of its
/// calls' times, and judge objectives by both ends of the resulting interval.
#[test]
fn stopped_generator_widens_judged_intervals() {
    let _alone = lock_tests();
    let server = ExactServer::start(MS, 0..0, None);
    let place = Place::new();
    let url = format!("grpc://127.0.0.1:{}", server.port);
    let mut command = place.command(&["grpc", &url, "--rate", "500/s", "--duration", "8s"]);
    command
        .args(SCORE)
        .args(["--objective", "p99 < 1m", "--objective", "errors < 1%"])
        .args(["--out", "run", "-q"])
        .stdout(Stdio::piped());
    let mut child = command.spawn().expect("plimsoll starts");
    let log = place.path("run/log.txt");
    let started = || fs::read_to_string(&log).is_ok_and(|text| text.contains("started"));
    let looks = (0..4000).take_while(|_| {
        thread::sleep(Duration::from_millis(5));
        !started()
    });
    assert!(looks.count() < 4000, "no load");
    thread::sleep(Duration::from_millis(300));
    signal(&child, rustix::process::Signal::STOP);
    thread::sleep(Duration::from_millis(400));
    signal(&child, rustix::process::Signal::CONT);
    let mut table = String::new();
    let mut stdout = child.stdout.take().expect("a pipe");
    stdout.read_to_string(&mut table).expect("text");
    assert_eq!(support::wait(&mut child), 0, "{table}");
    // The text may be wrapped anywhere.
    let answer = table.split_whitespace().collect::<Vec<_>>().join(" ");
    let answer = answer.split(". ").next().unwrap_or_default();
    assert!(answer.contains("the generator was up to"), "{table}");
    assert_eq!(table.matches(": met").count(), 2, "{table}");
    let run = place.run_json("run");
    assert_eq!(run["state"], "complete", "{run}");
    let kinds = run["health"]["problems"].as_array().expect("a list");
    assert!(kinds.iter().any(|p| p["kind"] == "pacing_late"), "{run}");
    // The interval includes the server's time and the delay that the generator added.
    let ends = &run["total"]["response"]["instrument"]["p99_us"];
    let [low, high] = [0, 1].map(|end| ends[end].as_f64().expect("a number"));
    assert!(low < 300e3 && high >= 300e3, "{ends}");
    // 200 of 4,000 calls were due while it was stopped, the first of them for 400 ms.
    let total = &run["total"];
    assert_eq!(total["due"], 4000, "{total}");
    for times in ["pacing", "lag", "response"] {
        assert!(micros(&run, times, "max") >= 390e3, "{times}: {total}");
    }
    let mean = |times| micros(&run, times, "mean");
    assert!(mean("response") - mean("service") >= 7e3, "{total}");
}

/// An answer that arrives after the deadline is late even if it is read before the timers are
/// checked.
#[test]
fn no_call_succeeds_after_deadline() {
    let _alone = lock_tests();
    let server = ExactServer::start(5 * MS, 0..0, None);
    let place = Place::new();
    let url = format!("grpc://127.0.0.1:{}", server.port);
    let mut arguments = vec!["grpc", &url, "--out", "run", "--json", "-q"];
    arguments.extend([
        "--rate",
        "400/s",
        "--duration",
        "1s",
        "--deadline",
        "5060us",
    ]);
    arguments.extend(SCORE);
    // On a busy machine this may fail all calls.
    let code = place.run(&arguments).status.code();
    assert!(matches!(code, Some(0 | 1)), "{code:?}");
    let run = place.run_json("run");
    let total = &run["total"];
    let longest = total["service"]["max_us"].as_f64().unwrap_or(0.0);
    // The histogram has a precision of three digits.
    assert!(longest <= 5065.0, "{total}");
    let late = total["late"].as_u64().unwrap_or(0);
    let exceeded = total["errors"].as_u64().unwrap_or(0);
    assert!(late <= exceeded && total["due"] == 400, "{total}");
}

/// Calls that are in flight when the warm-up ends count as work of the measured time.
#[test]
fn slow_responses_keep_rate_after_warmup() {
    let _alone = lock_tests();
    let server = ExactServer::start(500 * MS, 0..0, None);
    let place = Place::new();
    let url = format!("grpc://127.0.0.1:{}", server.port);
    let mut arguments = vec!["grpc", &url, "--out", "run", "--json", "-q"];
    arguments.extend(["--rate", "100/s", "--warmup", "1s", "--duration", "1s"]);
    arguments.extend(SCORE);
    let run = place.expect_run(0, &arguments);
    let total = &run["total"];
    assert_eq!((&total["due"], &total["ok"]), (&100.into(), &100.into()));
    let achieved = total["achieved_per_s"].as_f64().unwrap_or(0.0);
    // Counted by their start they would be 50/s.
    assert!((55.0..=100.0).contains(&achieved), "{total}");
}
