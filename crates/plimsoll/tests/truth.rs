//! The honesty test: targets whose behaviour is known by arithmetic, and what is reported.
//!
//! A target that freezes once makes calls wait whose times are in the past by then. Whoever
//! stamps a call when it is sent, and not when it was due, loses just those. What every
//! call must have taken follows from the schedule alone ([`Frozen::by_arithmetic`]).
//!
//! A busy machine makes calls slower and never faster, so the lower bounds hold on any
//! machine and are what a tool that omits fails. The upper bounds are strict on a quiet
//! machine; on a busy one they are wider, and the tests say so ([`Quiet`]).

mod support;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_protocols::grpc::canned::{Canned, CannedConnection, CannedOptions};
use serde_json::Value;
use support::{Place, SCORE, aloud, signal};

/// One at a time: tests that measure time would disturb each other.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(|failed| failed.into_inner())
}

const MS: u64 = 1_000_000;

/// A constant rate against a server that takes `delay` for an answer and freezes once.
/// All in nanoseconds.
struct Frozen {
    rate: u64,
    seconds: u64,
    delay: u64,
    freeze_after: u64,
    freeze: u64,
    /// Calls that may be in flight at once.
    streams: Option<u32>,
    server: Server,
}

/// Who answers.
enum Server {
    /// [`Exact`]: nothing but the delay and the freeze, to some microseconds.
    Exact,
    /// `plimsoll serve score`, which needs a while for the answers that the freeze held up.
    Score,
}

/// What every call takes, sorted.
struct Expected {
    response: Vec<u64>,
    service: Vec<u64>,
}

impl Frozen {
    fn calls(&self) -> u64 {
        self.rate * self.seconds
    }

    /// Call k is due at k / rate. It is sent then, or when a stream is free for it; calls
    /// are sent in their order. Its answer leaves `delay` later, or, where that falls into
    /// the freeze, at the freeze's end. No machine is as fast as this one.
    fn by_arithmetic(&self) -> Expected {
        let (begin, end) = (self.freeze_after, self.freeze_after + self.freeze);
        let mut busy: BinaryHeap<Reverse<u64>> = BinaryHeap::new();
        let (mut response, mut service) = (Vec::new(), Vec::new());
        for k in 0..self.calls() {
            let due = k * 1_000_000_000 / self.rate;
            while busy.peek().is_some_and(|Reverse(free)| *free <= due) {
                busy.pop();
            }
            let sent = match self.streams {
                Some(streams) if busy.len() >= streams as usize => {
                    let Reverse(free) = busy.pop().expect("there is at least one stream");
                    free.max(due)
                }
                _ => due,
            };
            let ready = sent + self.delay;
            let done = if (begin..end).contains(&ready) {
                end
            } else {
                ready
            };
            busy.push(Reverse(done));
            response.push(done - due);
            service.push(done - sent);
        }
        response.sort_unstable();
        service.sort_unstable();
        Expected { response, service }
    }

    /// Runs it. What the tool reports of it, and how busy the machine was.
    fn run(&self) -> (Value, Quiet) {
        let place = Place::new();
        let (url, _server) = match self.server {
            Server::Exact => {
                let freeze = self.freeze_after..self.freeze_after + self.freeze;
                let exact = Exact::start(self.delay, freeze, self.streams);
                (format!("grpc://127.0.0.1:{}", exact.port), None)
            }
            Server::Score => {
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
        let (run, quiet) = Quiet::during(|| place.expect_json(0, &arguments));
        let total = &run["total"];
        assert_eq!(total["due"], self.calls(), "{total}");
        assert_eq!(total["ok"], self.calls(), "{total}");
        assert_eq!(run["count_check"]["matches"], true, "{run}");
        (run, quiet)
    }
}

/// The value of which a share `p` of all are not above: nearest rank.
fn percentile(sorted: &[u64], p: f64) -> u64 {
    let rank = (p * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

fn micros(run: &Value, times: &str, what: &str) -> f64 {
    run["total"][times][format!("{what}_us")]
        .as_f64()
        .unwrap_or_else(|| panic!("{times} has no {what}: {}", run["total"]))
}

/// How much others used the machine while something was measured.
#[derive(Debug)]
struct Quiet {
    /// The longest that a thread which wanted to run had to wait.
    longest_pause: Duration,
    /// Of the time, in which some thread waited for a core; `None`: the kernel doesn't tell.
    pressure: Option<f64>,
}

#[expect(clippy::disallowed_methods, reason = "a test measures in real time")]
impl Quiet {
    fn during<T>(measured: impl FnOnce() -> T) -> (T, Quiet) {
        let over = Arc::new(AtomicBool::new(false));
        let probe = thread::spawn({
            let over = Arc::clone(&over);
            move || {
                let nap = Duration::from_millis(1);
                let mut longest = Duration::ZERO;
                while !over.load(Ordering::Relaxed) {
                    let begin = Instant::now();
                    thread::sleep(nap);
                    longest = longest.max(begin.elapsed().saturating_sub(nap));
                }
                longest
            }
        });
        let (begin, before) = (Instant::now(), waited());
        let result = measured();
        let elapsed = begin.elapsed();
        over.store(true, Ordering::Relaxed);
        let quiet = Quiet {
            longest_pause: probe.join().expect("the probe ends"),
            pressure: waited()
                .zip(before)
                .map(|(after, before)| (after - before).as_secs_f64() / elapsed.as_secs_f64()),
        };
        (result, quiet)
    }
}

impl Quiet {
    /// Generator, target and probe alone stay below this.
    fn is_quiet(&self) -> bool {
        self.longest_pause < Duration::from_millis(2) && self.pressure.is_none_or(|p| p < 0.25)
    }

    /// Judges a strict bound: it holds, or the machine was busy. Then that is said aloud,
    /// and the looser bound has to hold.
    #[track_caller]
    fn judge(&self, what: &str, value: f64, strict: f64, loose: f64) {
        if value <= strict {
            return;
        }
        assert!(
            !self.is_quiet(),
            "{what}: {value}, and it must not be above {strict} ({self:?})"
        );
        aloud(format_args!(
            "STRICT BOUND MISSED ON A BUSY MACHINE: {what}: {value}, above {strict} ({self:?}); \
             run this test with nothing beside it"
        ));
        assert!(
            value <= loose,
            "{what}: {value}, above {loose} even for a busy machine ({self:?})"
        );
    }
}

/// How long in all some thread of this machine has waited for a core, if the kernel tells
/// (its pressure stall information).
fn waited() -> Option<Duration> {
    let text = std::fs::read_to_string("/proc/pressure/cpu").ok()?;
    let some = text.lines().find(|line| line.starts_with("some"))?;
    let total = some.split("total=").nth(1)?.trim().parse().ok()?;
    Some(Duration::from_micros(total))
}

/// Each percentile must be what the arithmetic says. `answer`: the CPU, in µs, that an answer
/// costs the server at most; those that the freeze held up leave one after the other, and the
/// call that waited longest is the first.
#[track_caller]
fn check(run: &Value, quiet: &Quiet, expected: &[u64], percentiles: &[(&str, f64)], answer: f64) {
    for (name, p) in percentiles {
        let before = (1.0 - p) * expected.len() as f64;
        let expected = percentile(expected, *p) as f64 / 1e3;
        let seen = micros(run, "response", name);
        aloud(format_args!(
            "response {name}: {:.1} ms; by arithmetic {:.1} ms",
            seen / 1e3,
            expected / 1e3
        ));
        // Half a percent: three significant digits of the histogram, a call more or less.
        assert!(
            seen >= expected * 0.995,
            "response {name} {seen} µs, and it can't be below {expected} µs"
        );
        // 1 % or 100 µs, where nothing else runs.
        let strict = expected + (expected * 0.01).max(100.0) + before * answer;
        let pause = quiet.longest_pause.as_secs_f64() * 1e6;
        let loose = strict + expected * 0.25 + 4.0 * pause;
        quiet.judge(&format!("response {name}, µs"), seen, strict, loose);
    }
}

/// 40,000 calls in 20 s, answered in 5 ms, but for a freeze of 500 ms. The 1,000 calls that
/// were due in the freeze (or in the 5 ms before it) waited for its end, from 505 ms down to
/// 5 ms, 0.5 ms less each. The slowest hundredth of all are the 400 that waited longest, so
/// p99 is the 400th of them: 505 − 400 × 0.5 = 305 ms. One in a thousand: 485 ms.
#[test]
fn a_freeze_of_half_a_second_is_in_the_percentiles() {
    let _alone = alone();
    let frozen = Frozen {
        rate: 2000,
        seconds: 20,
        delay: 5 * MS,
        freeze_after: 5000 * MS,
        freeze: 500 * MS,
        streams: None,
        server: Server::Exact,
    };
    let expected = frozen.by_arithmetic().response;
    assert_eq!(percentile(&expected, 0.5), 5 * MS);
    assert_eq!(percentile(&expected, 0.99) / MS, 305);
    assert_eq!(percentile(&expected, 0.999) / MS, 485);
    assert_eq!(percentile(&expected, 1.0) / MS, 505);
    let (run, quiet) = frozen.run();
    check(
        &run,
        &quiet,
        &expected,
        &[("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)],
        0.0,
    );
    // The median has nothing to do with the freeze, and server and network take their part.
    assert!(micros(&run, "response", "p50") >= 5000.0);
}

/// The same freeze where the server allows 100 calls at once. 10 are in flight when it
/// begins, 90 more are sent, and then no more can be: of 20,000 calls 100 are slow from
/// their send, half a hundredth, so service time's p99 knows nothing of the freeze. That is
/// what tools report that stamp at the send. 910 calls more were due in it.
#[test]
fn what_waits_for_a_stream_waits_in_the_response_time_only() {
    let _alone = alone();
    let frozen = Frozen {
        rate: 2000,
        seconds: 10,
        delay: 5 * MS,
        freeze_after: 3000 * MS,
        freeze: 500 * MS,
        streams: Some(100),
        server: Server::Exact,
    };
    let expected = frozen.by_arithmetic();
    assert_eq!(percentile(&expected.service, 0.99), 5 * MS);
    let p99 = percentile(&expected.response, 0.99);
    // The 200th longest wait: 100 in flight, then the 100th of those that waited for a
    // stream: due 95 ms into the freeze, sent at its end, 5 ms more.
    assert!((405..=415).contains(&(p99 / MS)), "{p99}");
    let (run, quiet) = frozen.run();
    check(
        &run,
        &quiet,
        &expected.response,
        &[("p99", 0.99), ("max", 1.0)],
        0.0,
    );
    let service = micros(&run, "service", "p99");
    aloud(format_args!("service p99: {:.1} ms", service / 1e3));
    assert!(
        service < p99 as f64 / 1e3 / 2.0,
        "service p99 {service} µs counts the wait for a stream, which is not service"
    );
    // The wait is lag, and lag that is the target's doing: the generator noticed in time.
    assert!(micros(&run, "lag", "p99") > 300_000.0);
    assert!(micros(&run, "pacing", "p50") < 1000.0);
    let kinds: Vec<_> = run["health"]["problems"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|problem| problem["kind"].as_str().expect("a name"))
        .collect();
    assert!(kinds.contains(&"waited_for_connection"), "{kinds:?}");
}

/// 10,000 calls in 10 s with a freeze of a whole second: 1,000 of them waited, from 1,005 ms
/// down to 5 ms by 1 ms each. The slowest hundredth are 100 of them: p99 is 905 ms; of the
/// slowest twentieth, 500, the last waited 505 ms.
#[test]
fn a_freeze_of_a_second_is_in_the_percentiles() {
    let _alone = alone();
    let frozen = Frozen {
        rate: 1000,
        seconds: 10,
        delay: 5 * MS,
        freeze_after: 3000 * MS,
        freeze: 1000 * MS,
        streams: None,
        server: Server::Score,
    };
    let expected = frozen.by_arithmetic().response;
    assert_eq!(percentile(&expected, 0.99) / MS, 905);
    assert_eq!(percentile(&expected, 0.95) / MS, 505);
    let (run, quiet) = frozen.run();
    check(
        &run,
        &quiet,
        &expected,
        &[("p95", 0.95), ("p99", 0.99), ("max", 1.0)],
        10.0,
    );
}

/// A server that remembers when each request came out of the socket. It answers a set time
/// later, or, where that falls into its freeze, at the freeze's end: all that is due in one
/// write, so that it adds as little of its own as a server can.
struct Exact {
    port: u16,
    arrivals: Arc<Mutex<Vec<Duration>>>,
}

/// What the two threads of a connection share: one reads, the other answers.
struct Answering {
    connection: CannedConnection,
    stream: TcpStream,
    out: Vec<u8>,
}

impl Answering {
    fn flush(&mut self) -> Option<()> {
        self.stream.write_all(&self.out).ok()?;
        self.out.clear();
        Some(())
    }
}

#[expect(clippy::disallowed_methods, reason = "a test measures in real time")]
impl Exact {
    /// Times in nanoseconds, those of `freeze` since the first request.
    fn start(delay: u64, freeze: Range<u64>, streams: Option<u32>) -> Exact {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let arrivals = Arc::default();
        let kept = Arc::clone(&arrivals);
        let options = CannedOptions {
            hold: true,
            max_concurrent_streams: streams,
            ..CannedOptions::default()
        };
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (kept, options) = (Arc::clone(&kept), options.clone());
                let (due, ready) = mpsc::channel();
                let answering = Answering {
                    connection: Canned::new(options).connection(),
                    stream: stream.try_clone().expect("a descriptor"),
                    out: Vec::new(),
                };
                let answering = Arc::new(Mutex::new(answering));
                let shared = Arc::clone(&answering);
                thread::spawn(move || Exact::answer(&ready, &shared));
                let leaves = {
                    let freeze = freeze.clone();
                    move |arrived: Duration| {
                        let ready = arrived.as_nanos() as u64 + delay;
                        Duration::from_nanos(match freeze.contains(&ready) {
                            true => freeze.end,
                            false => ready,
                        })
                    }
                };
                thread::spawn(move || Exact::read(stream, &answering, &kept, leaves, &due));
            }
        });
        Exact { port, arrivals }
    }

    /// Until the client closes.
    fn read(
        mut stream: TcpStream,
        answering: &Mutex<Answering>,
        arrivals: &Mutex<Vec<Duration>>,
        leaves: impl Fn(Duration) -> Duration,
        due: &mpsc::Sender<(Instant, u32)>,
    ) -> Option<()> {
        stream.set_nodelay(true).ok()?;
        let mut held = Vec::new();
        let mut buffer = vec![0; 64 << 10];
        let mut first = None;
        {
            let mut answering = answering.lock().ok()?;
            let Answering {
                connection, out, ..
            } = &mut *answering;
            connection.open(out);
            answering.flush()?;
        }
        loop {
            let n = stream.read(&mut buffer).ok().filter(|n| *n > 0)?;
            let now = Instant::now();
            let mut answering = answering.lock().ok()?;
            let Answering {
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
            arrivals.lock().ok()?.extend(held.iter().map(|_| at));
            let ready = begin + leaves(at);
            for stream in held.drain(..) {
                due.send((ready, stream)).ok()?;
            }
        }
    }

    /// One delay for all, so what came first is due first.
    fn answer(due: &mpsc::Receiver<(Instant, u32)>, answering: &Mutex<Answering>) -> Option<()> {
        let mut next = None;
        loop {
            let (ready, stream) = match next.take() {
                Some(next) => next,
                None => due.recv().ok()?,
            };
            thread::sleep(ready.saturating_duration_since(Instant::now()));
            let mut answering = answering.lock().ok()?;
            let Answering {
                connection, out, ..
            } = &mut *answering;
            connection.complete(stream, out);
            let now = Instant::now();
            while let Ok((ready, stream)) = due.try_recv() {
                if ready > now {
                    next = Some((ready, stream));
                    break;
                }
                connection.complete(stream, out);
            }
            answering.flush()?;
        }
    }
}

/// Variance over mean of arrivals a millisecond: 0 for an even stream, 1 for Poisson's.
fn unevenness(arrivals: &[Duration], from: Duration, milliseconds: usize) -> f64 {
    let mut counts = vec![0f64; milliseconds];
    for at in arrivals {
        if let Some(since) = at.checked_sub(from)
            && let Some(count) = counts.get_mut(since.as_millis() as usize)
        {
            *count += 1.0;
        }
    }
    let mean = counts.iter().sum::<f64>() / milliseconds as f64;
    let variance = counts.iter().map(|n| (n - mean).powi(2)).sum::<f64>() / milliseconds as f64;
    variance / mean
}

/// Bursts queue at the server, so a generator that sends them measures its own doing.
/// Tools that pace by timers of 10 ms come to 16 here, by threads in step to 70.
#[test]
fn arrivals_are_even() {
    let _alone = alone();
    let recorder = Exact::start(0, 0..0, None);
    let place = Place::new();
    let url = format!("grpc://127.0.0.1:{}", recorder.port);
    let mut arguments = vec![
        "grpc",
        &url,
        "--rate",
        "2000/s",
        "--duration",
        "5s",
        "--out",
        "run",
        "--json",
        "-q",
    ];
    arguments.extend(SCORE);
    let (run, quiet) = Quiet::during(|| place.expect_json(0, &arguments));
    assert_eq!(run["total"]["ok"], 10_000, "{run}");
    let arrivals = recorder.arrivals.lock().expect("nothing panics with it");
    assert_eq!(arrivals.len(), 10_000);

    // The first and last half second are left out: beginning and end.
    let from = arrivals[0] + Duration::from_millis(500);
    let whole = unevenness(&arrivals, from, 4000);
    // Others disturb some stretches of a tenth of a second; bursts of ours would be in all.
    let mut stretches: Vec<f64> = (0..40)
        .map(|i| unevenness(&arrivals, from + Duration::from_millis(100 * i), 100))
        .collect();
    stretches.sort_by(f64::total_cmp);
    let (median, pacing) = (stretches[20], micros(&run, "pacing", "p50"));
    aloud(format_args!(
        "variance/mean of arrivals a ms at 2000/s: {whole:.3}; median of stretches of 100 ms: {median:.3}; \
         the generator noticed arrivals {pacing:.1} µs late (p50), {:.1} µs (p99); {quiet:?}",
        micros(&run, "pacing", "p99")
    ));
    assert!(pacing < 1000.0, "arrivals noticed {pacing} µs late (p50)");
    assert!(
        median < 1.0,
        "no stretch of arrivals is even: {stretches:?}"
    );
    quiet.judge(
        "variance/mean of arrivals a millisecond",
        whole,
        0.2,
        f64::MAX,
    );
}

/// The last arrival stands for the time up to the next, which would be due then: a rate
/// over a shorter time flatters.
#[test]
fn a_rate_is_of_the_time_that_its_arrivals_stand_for() {
    let _alone = alone();
    let server = Exact::start(MS, 0..0, None);
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
        let run = place.expect_json(0, &arguments);
        assert_eq!(run["total"]["ok"], calls, "{name}: {run}");
        let achieved = run["total"]["achieved_per_s"].as_f64().unwrap_or(0.0);
        assert!(
            (rate * 0.9..rate * 1.001).contains(&achieved),
            "{name}: {achieved}/s, not {rate}/s"
        );
    }
}

/// A generator that stands still sends late: it says so, counts the wait as its calls' own, and
/// judges no objective by it.
#[test]
fn a_generator_that_stood_still_condemns_its_own_run() {
    let _alone = alone();
    let server = Exact::start(MS, 0..0, None);
    let place = Place::new();
    let url = format!("grpc://127.0.0.1:{}", server.port);
    let mut command = place.command(&["grpc", &url, "--rate", "500/s", "--duration", "2s"]);
    command
        .args(SCORE)
        .args(["--objective", "p99 < 1m", "--out", "run", "-q"])
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
    assert_eq!(support::wait(&mut child), 90, "{table}");
    assert!(table.starts_with("INVALID: generator-limited"), "{table}");
    let run = place.run_json("run");
    assert_eq!(run["state"], "invalid", "{run}");
    let kinds = run["health"]["problems"].as_array().expect("a list");
    assert!(kinds.iter().any(|p| p["kind"] == "pacing_late"), "{run}");
    // 200 of 1,000 calls were due while it stood still, the first of them for 400 ms.
    let total = &run["total"];
    assert_eq!(total["due"], 1000, "{total}");
    let p90_us = |times: &str| total[times]["p90_us"].as_f64().unwrap_or(0.0);
    for times in ["pacing", "lag", "response"] {
        assert!((190e3..600e3).contains(&p90_us(times)), "{times}: {total}");
    }
    assert!(p90_us("service") < 190e3, "{total}");
}

/// An answer that is read before the loop looks at its timers is late all the same.
#[test]
fn no_call_is_ok_after_its_deadline() {
    let _alone = alone();
    let server = Exact::start(5 * MS, 0..0, None);
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
    // However many calls that costs: on a busy machine all of them.
    let code = place.run(&arguments).status.code();
    assert!(matches!(code, Some(0 | 1)), "{code:?}");
    let run = place.run_json("run");
    let total = &run["total"];
    let longest = total["service"]["max_us"].as_f64().unwrap_or(0.0);
    // The histogram tells it to three digits.
    assert!(longest <= 5065.0, "{total}");
    let late = total["late"].as_u64().unwrap_or(0);
    let exceeded = total["errors"].as_u64().unwrap_or(0);
    assert!(late <= exceeded && total["due"] == 400, "{total}");
}

/// Calls that are under way when the warm-up ends are work of the time that is measured.
#[test]
fn slow_answers_do_not_lower_the_rate_after_a_warm_up() {
    let _alone = alone();
    let server = Exact::start(200 * MS, 0..0, None);
    let place = Place::new();
    let url = format!("grpc://127.0.0.1:{}", server.port);
    let mut arguments = vec!["grpc", &url, "--out", "run", "--json", "-q"];
    arguments.extend(["--rate", "100/s", "--warmup", "1s", "--duration", "1s"]);
    arguments.extend(SCORE);
    let run = place.expect_json(0, &arguments);
    let total = &run["total"];
    assert_eq!((&total["due"], &total["ok"]), (&100.into(), &100.into()));
    let achieved = total["achieved_per_s"].as_f64().unwrap_or(0.0);
    assert!((97.0..=100.0).contains(&achieved), "{total}");
}
