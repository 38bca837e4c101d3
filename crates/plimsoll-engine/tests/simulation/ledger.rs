//! Everything that a run does and records, in many shapes of load and weather, held to
//! `ledger/*.txt`: each request by its times, each interval, and what reached the server when.
//!
//! The other tests name what has to hold; this one notices whatever else changes. Where the change
//! was meant, `make golden` writes the file anew, and its diff says which runs it touches.

use std::fmt::Write as _;

use plimsoll_model::plan::Turns;
use plimsoll_model::record::{RequestRecord, Times};
use snapbox::{assert_data_eq, file};

use super::*;

/// FNV-1a, 64 bits: the same on every machine.
#[derive(Clone, Copy)]
struct Digest(u64);

impl Digest {
    const EMPTY: Digest = Digest(0xcbf2_9ce4_8422_2325);

    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn all<const N: usize>(&mut self, numbers: [u64; N]) {
        for number in numbers {
            self.add(&number.to_le_bytes());
        }
    }
}

/// What a server sees, and hands on.
struct Seen {
    then: Box<dyn Server>,
    opened: u64,
    closed: u64,
    reads: u64,
    bytes: usize,
    digest: Digest,
}

impl Server for Seen {
    fn opened(&mut self, peer: Peer, now: Time, actions: &mut Vec<Action>) {
        self.opened += 1;
        self.digest.all([1, peer.0, now.0]);
        self.then.opened(peer, now, actions);
    }
    fn receive(&mut self, peer: Peer, bytes: &[u8], now: Time, actions: &mut Vec<Action>) {
        self.reads += 1;
        self.bytes += bytes.len();
        self.digest.all([2, peer.0, now.0]);
        self.digest.add(bytes);
        self.then.receive(peer, bytes, now, actions);
    }
    fn timer(&mut self, peer: Peer, tag: u64, now: Time, actions: &mut Vec<Action>) {
        self.then.timer(peer, tag, now, actions);
    }
    fn taken(&mut self, peer: Peer, bytes: usize) {
        self.digest.all([3, peer.0, bytes as u64]);
        self.then.taken(peer, bytes);
    }
    fn closed(&mut self, peer: Peer, now: Time) {
        self.closed += 1;
        self.digest.all([4, peer.0, now.0]);
        self.then.closed(peer, now);
    }
}

/// Writes down what a worker reports.
struct Book {
    start: Option<Time>,
    stop_after: Option<(u32, StopLevel)>,
    level: StopLevel,
    connections: std::cell::Cell<i64>,
    total: Interval,
    intervals: String,
}

impl Control for Book {
    fn stop_level(&self) -> StopLevel {
        self.level
    }
    fn start(&self) -> Option<Time> {
        self.start
    }
    fn connections(&self, change: i64) {
        self.connections.set(self.connections.get() + change);
    }
    fn interval(&mut self, interval: WorkerInterval) -> Option<Interval> {
        self.total.merge(&interval.recorded);
        let ended: u64 = interval.recorded.recorded().map(|(_, s)| s.ended()).sum();
        write!(
            self.intervals,
            " {}@{}:{ended}+{}+{}/{}",
            interval.index,
            interval.end_ns,
            interval.in_flight,
            interval.backlog,
            interval.connections
        )
        .unwrap();
        if let Some((after, level)) = self.stop_after
            && interval.index >= after
        {
            self.level = level;
        }
        let mut spare = interval.recorded;
        spare.clear();
        Some(spare)
    }
}

/// A run to write down.
struct Run {
    name: &'static str,
    load: Load,
    weather: Weather,
    server: Box<dyn Server>,
    pauses: Vec<(Time, Duration)>,
    stop_after: Option<(u32, StopLevel)>,
    addresses: usize,
    held_for: Duration,
    of: u32,
    trace: bool,
}

fn of(name: &'static str, load: Load, change: impl FnOnce(&mut Run)) -> Run {
    let mut run = Run {
        name,
        load,
        weather: Weather::calm(7),
        server: Box::new(echo(5)),
        pauses: Vec::new(),
        stop_after: None,
        addresses: 1,
        held_for: Duration::ZERO,
        of: 1,
        trace: false,
    };
    change(&mut run);
    run
}

fn times(digest: &mut Digest, times: &Times) {
    let Some(h) = times.histogram() else { return };
    for bucket in h.iter_recorded() {
        digest.all([bucket.value_iterated_to(), bucket.count_at_value()]);
    }
}

fn counted(counts: &plimsoll_model::record::Counts) -> String {
    let texts = counts
        .iter()
        .map(|(outcome, n)| format!(" {}={n}", outcome.code()));
    texts.collect()
}

fn stage(page: &mut String, index: u8, record: &StageRecord) {
    let r = record;
    writeln!(
        page,
        "  stage {index}: due={} not_started={} expired_unsent={} late={} waited={}+{}{}",
        r.due,
        r.not_started,
        r.expired_unsent,
        r.late,
        r.waited_for_stream,
        r.waited_for_connection,
        counted(&r.outcomes)
    )
    .unwrap();
    writeln!(
        page,
        "  connections: full={} lost={} unused={} failed:{}",
        r.connections_full,
        r.connections_lost,
        r.connections_unused,
        counted(&r.connect_failures),
    )
    .unwrap();
    for (address, c) in &r.addresses {
        writeln!(
            page,
            "  at {address}: {} {} {} {}",
            c.connections, c.calls, c.errors, c.connect_failures
        )
        .unwrap();
    }
    if let Some(h) = r.response.histogram() {
        let quantiles = [0.0, 0.5, 0.99, 1.0].map(|q| h.value_at_quantile(q).to_string());
        writeln!(page, "  response: {} ns", quantiles.join(" ")).unwrap();
    }
    let mut digest = Digest::EMPTY;
    digest.all([r.bytes_sent, r.bytes_received]);
    for of in [&r.response, &r.service, &r.first_byte, &r.failed] {
        times(&mut digest, of);
    }
    for of in [&r.lag, &r.pacing, &r.delayed, &r.cut_off] {
        times(&mut digest, of);
    }
    if let Some(p) = &r.phases {
        for of in [&p.connect, &p.ready, &p.total, &p.cold_total] {
            times(&mut digest, of);
        }
    }
    writeln!(page, "  bytes, times: {:016x}", digest.0).unwrap();
}

fn request(digest: &mut Digest, request: &RequestRecord) {
    let s = &request.sample;
    let phases = request.phases.map_or(0, |p| p.total_ns());
    digest.all([s.number, s.arrival.0, s.sent.0, s.first_byte.0, s.done.0]);
    digest.all([s.outcome.index() as u64, s.stage.into(), phases]);
}

/// The run, carried out, as text.
fn written(run: Run) -> String {
    let mut seen = Seen {
        then: run.server,
        opened: 0,
        closed: 0,
        reads: 0,
        bytes: 0,
        digest: Digest::EMPTY,
    };
    let addresses: Vec<SocketAddr> = (1..=run.addresses)
        .map(|last| ([10, 0, 0, last as u8], 1).into())
        .collect();
    let mut network = SimulatedNetwork::new(&mut seen, run.weather).stopping_the_worker(run.pauses);
    if run.addresses > 1 {
        network = network.at(&addresses);
    }
    let protocol = Ids {
        held_for: run.held_for,
        ..Ids::default()
    };
    let (numbers, waited) = (Arc::clone(&protocol.numbers), Arc::clone(&protocol.waited));
    let mut worker = worker_that(run.load, network, run.of, protocol, |share| {
        (share.keep_requests, share.trace) = (true, run.trace);
    });
    let mut book = Book {
        start: None,
        stop_after: run.stop_after,
        level: StopLevel::Run,
        connections: std::cell::Cell::new(0),
        total: Interval::default(),
        intervals: String::new(),
    };
    let established = worker.establish(&mut book).unwrap();
    book.start = Some(Time(5_000_000_000));
    worker.run(Time(5_000_000_000), &mut book).unwrap();
    drop(worker);

    let mut page = format!("{}\n", run.name);
    writeln!(
        page,
        "  established: {} open, {} failed; {} at the end",
        established.open,
        established.failed,
        book.connections.get()
    )
    .unwrap();
    writeln!(page, "  seconds:{}", book.intervals).unwrap();
    for (index, record) in book.total.recorded() {
        stage(&mut page, index, record);
    }
    for (outcome, text) in &book.total.details {
        writeln!(page, "  {}: {text}", outcome.code()).unwrap();
    }
    let mut digest = Digest::EMPTY;
    for one in &book.total.requests {
        request(&mut digest, one);
    }
    for number in numbers.lock().unwrap().iter() {
        digest.all([*number]);
    }
    for waited in waited.lock().unwrap().iter() {
        digest.all([waited.as_nanos() as u64]);
    }
    let Digest(requests) = digest;
    let count = book.total.requests.len();
    writeln!(page, "  requests: {count}, {requests:016x}").unwrap();
    let (opened, closed, reads, bytes) = (seen.opened, seen.closed, seen.reads, seen.bytes);
    let Digest(events) = seen.digest;
    writeln!(
        page,
        "  server: {opened} opened, {closed} closed, {reads} reads of {bytes} bytes, {events:016x}"
    )
    .unwrap();
    page
}

fn constant(rate: f64, connections: u32) -> Load {
    load(Arrivals::Open(Spacing::Constant), rate, connections)
}

fn poisson(rate: f64, connections: u32) -> Load {
    load(Arrivals::Open(Spacing::Poisson), rate, connections)
}

fn clients(clients: u32, think_ms: u64, connections: u32) -> Load {
    let think = Duration::from_millis(think_ms);
    load(Arrivals::Closed { clients, think }, 0.0, connections)
}

/// Small pieces, slow ones, resets, refusals, connects without an answer.
fn rough(seed: u64) -> Weather {
    Weather {
        seed,
        latency_us: 20..=4_000,
        piece: 1..=7,
        reset: 2_000,
        stall: 2_000,
        stall_ms: 1..=300,
        refuse: 100_000,
        ignore: 30_000,
        send_buffer: 64,
    }
}

fn stages(load: &mut Load) {
    let stage = |name: &str, warmup, ms, rate_from, rate_to| Stage {
        name: name.to_owned(),
        warmup,
        duration: Some(Duration::from_millis(ms)),
        rate_from,
        rate_to,
    };
    load.stages = vec![
        stage("warm-up", true, 700, 50.0, 50.0),
        stage("ramp", false, 900, 50.0, 400.0),
        stage("steady", false, 1_100, 400.0, 400.0),
        stage("down", false, 300, 400.0, 0.0),
    ];
}

/// With every loop and weather: what all of them go through.
fn everywhere() -> Vec<Run> {
    let loops: [(&str, fn() -> Load); 6] = [
        ("constant", || constant(200.0, 3)),
        ("poisson", || poisson(200.0, 3)),
        ("clients", || clients(9, 0, 3)),
        ("clients who think", || clients(9, 7, 3)),
        ("new connections", || Load {
            reuse: Reuse::Never,
            ..constant(200.0, 3)
        }),
        ("clients with new connections", || Load {
            reuse: Reuse::Never,
            ..clients(5, 3, 5)
        }),
    ];
    type Change = fn(&mut Run);
    let changes: [(&str, Change); 14] = [
        ("calm", |_| {}),
        ("rough", |run| run.weather = rough(11)),
        ("rougher", |run| {
            run.weather = Weather {
                reset: 30_000,
                ..rough(12)
            }
        }),
        ("four stages", |run| stages(&mut run.load)),
        ("so many calls", |run| run.load.calls = Some(77)),
        ("second of three workers' share", |run| run.of = 3),
        ("overloaded, deadlines", |run| {
            run.server = Box::new(echo(190));
            run.load.deadline = Some(Duration::from_millis(260));
        }),
        ("no deadlines, a short drain", |run| {
            run.server = Box::new(Slow(echo(900)));
            run.load.deadline = None;
            run.load.drain = Duration::from_millis(400);
        }),
        ("pauses of the worker", |run| {
            run.pauses = vec![
                (Time(5_400_000_000), Duration::from_millis(120)),
                (Time(6_100_000_000), Duration::from_millis(700)),
            ];
        }),
        ("interrupted", |run| {
            run.server = Box::new(Slow(echo(400)));
            run.stop_after = Some((0, StopLevel::Graceful));
        }),
        ("stopped at once", |run| {
            run.server = Box::new(Slow(echo(400)));
            run.stop_after = Some((0, StopLevel::Now));
        }),
        ("a server that dies", |run| {
            run.server = Box::new(Mortal(echo(5)));
        }),
        ("a server that ends each connection", |run| {
            run.server = Box::new(Ends {
                how: Ending::AfterTheFirstAnswer,
                opened: 0,
            });
        }),
        ("a server that resets ten", |run| {
            run.server = Box::new(reluctant(10));
        }),
    ];
    let mut all = Vec::new();
    for (what, load) in loops {
        for (how, change) in changes {
            let name = Box::leak(format!("{what}: {how}").into_boxed_str());
            all.push(of(name, load(), change));
        }
    }
    all
}

/// One key of the plan at a time.
fn keys() -> Vec<Run> {
    let ms = Duration::from_millis;
    vec![
        of("lifetime", constant(200.0, 4), |run| {
            run.load.connection_lifetime = Some(ms(300));
        }),
        of("lifetime, clients, rough", clients(6, 2, 4), |run| {
            run.load.connection_lifetime = Some(ms(300));
            run.weather = rough(21);
        }),
        of("calls a connection", constant(200.0, 4), |run| {
            run.load.calls_per_connection = Some(9);
        }),
        of(
            "calls a connection, clients, rough",
            clients(6, 0, 4),
            |run| {
                run.load.calls_per_connection = Some(9);
                run.weather = rough(22);
            },
        ),
        of("calls and time a connection", poisson(200.0, 4), |run| {
            run.load.calls_per_connection = Some(30);
            run.load.connection_lifetime = Some(ms(450));
        }),
        of("connect rate", constant(100.0, 6), |run| {
            run.load.connect_rate = Some(10.0);
            run.server = Box::new(reluctant(3));
        }),
        of("connect rate, lives", constant(100.0, 6), |run| {
            run.load.connect_rate = Some(5.0);
            run.load.calls_per_connection = Some(10);
        }),
        of("tick", constant(333.0, 2), |run| run.load.tick = ms(7)),
        of("tick, poisson, rough", poisson(333.0, 2), |run| {
            run.load.tick = ms(3);
            run.weather = rough(23);
        }),
        of("spin", constant(200.0, 2), |run| {
            run.load.spin = Duration::from_micros(100);
        }),
        of("small reads", constant(400.0, 2), |run| {
            run.load.read_buffer = 8;
            run.server = Box::new(echo(40));
        }),
        of("bytes counted", poisson(200.0, 2), |run| {
            run.load.count_bytes = true
        }),
        of("a driver's timer", constant(200.0, 2), |run| {
            run.held_for = ms(3)
        }),
        of("turns", constant(400.0, 2), |run| {
            run.load.turns = Some(turns(0, 1))
        }),
        of("turns, a bigger share", constant(400.0, 2), |run| {
            run.load.turns = Some(turns(1, 2));
        }),
        of("turns, poisson", poisson(400.0, 2), |run| {
            run.load.turns = Some(turns(2, 1));
        }),
        of("three addresses", constant(200.0, 7), |run| {
            run.addresses = 3
        }),
        of(
            "three addresses, new connections",
            constant(200.0, 3),
            |run| {
                run.addresses = 3;
                run.load.reuse = Reuse::Never;
                run.weather = rough(24);
            },
        ),
        of("addresses resolved again", constant(200.0, 6), |run| {
            run.addresses = 3;
            run.load.resolve_interval = ms(250);
            run.load.connection_lifetime = Some(ms(400));
        }),
        of("a server that goes away", constant(200.0, 3), |run| {
            run.server = Box::new(Leaves {
                opened: 0,
                first: None,
                then: echo(5),
            });
        }),
        of(
            "a server that goes away, clients",
            clients(9, 0, 3),
            |run| {
                run.server = Box::new(Leaves {
                    opened: 0,
                    first: None,
                    then: echo(5),
                });
            },
        ),
        of(
            "a server that answers to nothing",
            constant(50.0, 2),
            |run| {
                run.server = Box::new(Ends {
                    how: Ending::AnsweringNothing,
                    opened: 0,
                });
            },
        ),
        of(
            "a server that goes away at once",
            constant(50.0, 2),
            |run| {
                run.server = Box::new(Ends {
                    how: Ending::GoingAway,
                    opened: 0,
                });
            },
        ),
        of(
            "a server that closes at the first call",
            clients(3, 0, 2),
            |run| {
                run.server = Box::new(Ends {
                    how: Ending::WithTheFirstCall,
                    opened: 0,
                });
            },
        ),
        of("a server that is silent", constant(100.0, 2), |run| {
            run.server = Box::new(Silent::default());
        }),
        of("nobody is there", constant(50.0, 2), |run| {
            run.weather.refuse = 1_000_000
        }),
        of("nobody is there, clients", clients(5, 0, 2), |run| {
            run.weather.refuse = 1_000_000;
        }),
        of(
            "nobody is there, new connections",
            clients(5, 0, 5),
            |run| {
                run.weather.refuse = 1_000_000;
                run.load.reuse = Reuse::Never;
            },
        ),
        of("nobody answers", constant(50.0, 2), |run| {
            run.weather.ignore = 1_000_000;
            run.load.connect_timeout = ms(300);
        }),
        of(
            "nobody answers, new connections",
            constant(50.0, 2),
            |run| {
                run.weather.ignore = 1_000_000;
                run.load.connect_timeout = ms(300);
                run.load.reuse = Reuse::Never;
            },
        ),
        of("a peer that does not read", constant(50.0, 1), |run| {
            run.weather.send_buffer = 16;
            run.server = Box::new(Flood {
                pings: 40_000,
                reads_after: Some(Duration::from_millis(4_900)),
                taken: 0,
                taken_unread: 0,
                reads: false,
                pongs: 0,
                rest: Vec::new(),
            });
        }),
        of("traced", constant(20.0, 1), |run| run.trace = true),
        of("more clients than fit", clients(40, 0, 2), |_| {}),
        of("fewer clients than connections", clients(2, 1, 5), |_| {}),
        of(
            "clients and a warm-up of so many calls",
            clients(4, 0, 2),
            |run| {
                stages(&mut run.load);
                run.load.stages.truncate(2);
                run.load.stages[1].duration = None;
                run.load.calls = Some(120);
            },
        ),
    ]
}

fn turns(index: u32, share: u32) -> Turns {
    Turns {
        of: 4,
        index,
        share,
        calls: 10,
        seed: 5,
    }
}

#[test]
fn every_loop_does_and_records_what_it_did_before() {
    let pages: Vec<String> = everywhere().into_iter().map(written).collect();
    assert_data_eq!(pages.join("\n"), file!["ledger/loops.txt"].raw());
}

#[test]
fn every_key_does_what_it_did_before() {
    let pages: Vec<String> = keys().into_iter().map(written).collect();
    assert_data_eq!(pages.join("\n"), file!["ledger/keys.txt"].raw());
}
