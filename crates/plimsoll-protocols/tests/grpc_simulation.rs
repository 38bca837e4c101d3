//! gRPC end to end over the simulated network: the engine's worker, the driver, and a
//! server that checks what it is sent, in weather of every kind.
//!
//! A seed makes the weather, the load and the server's moods. What holds for each: every
//! call that was due is counted once, the client never breaks the protocol, and nothing
//! hangs. `SIMULATION_SEED=n` replays one seed.
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_engine::network::simulated::{Action, Peer, Server, SimulatedNetwork, Weather};
use plimsoll_engine::worker::{Control, Share, StopLevel, Worker, WorkerInterval};
use plimsoll_model::plan::{Arrivals, GrpcCall, Load, Reuse, Spacing, Stage};
use plimsoll_model::record::{Interval, StageRecord};
use plimsoll_model::schedule::Schedule;
use plimsoll_model::{Outcome, Time};
use plimsoll_protocols::grpc::canned::{Canned, CannedConnection, CannedOptions};
use plimsoll_protocols::grpc::h2::ErrorCode;
use plimsoll_protocols::grpc::{GrpcProtocol, GrpcRequest};

const SEEDS: u64 = 2_000;

/// The canned server with delays, pauses and moods.
struct Moody {
    canned: Canned,
    connections: BTreeMap<Peer, CannedConnection>,
    delay: Duration,
    /// From one moment to another, no answer leaves.
    stall: Option<(Time, Time)>,
    /// A graceful GOAWAY to every connection that lives at this moment.
    goaway_at: Option<Time>,
    broken: Vec<String>,
}

impl Moody {
    fn send(peer_out: Vec<u8>, actions: &mut Vec<Action>) {
        if !peer_out.is_empty() {
            actions.push(Action::Send(peer_out));
        }
    }
}

impl Server for Moody {
    fn opened(&mut self, peer: Peer, now: Time, actions: &mut Vec<Action>) {
        let mut connection = self.canned.connection();
        let mut out = Vec::new();
        connection.open(&mut out);
        Self::send(out, actions);
        self.connections.insert(peer, connection);
        if let Some(at) = self.goaway_at
            && at > now
        {
            actions.push(Action::Timer {
                after: at.duration_since(now),
                tag: 0,
            });
        }
    }

    fn receive(&mut self, peer: Peer, bytes: &[u8], now: Time, actions: &mut Vec<Action>) {
        let Some(connection) = self.connections.get_mut(&peer) else {
            return;
        };
        let (mut out, mut held) = (Vec::new(), Vec::new());
        if let Err(e) = connection.receive(bytes, &mut out, &mut held) {
            self.broken.push(e.to_string());
            actions.push(Action::Close);
        }
        let mut after = self.delay;
        if let Some((from, to)) = self.stall
            && now + after >= from
            && now + after < to
        {
            after = to.duration_since(now);
        }
        for stream in held {
            actions.push(Action::Timer {
                after,
                tag: u64::from(stream),
            });
        }
        Self::send(out, actions);
    }

    fn timer(&mut self, peer: Peer, tag: u64, _now: Time, actions: &mut Vec<Action>) {
        let Some(connection) = self.connections.get_mut(&peer) else {
            return;
        };
        let mut out = Vec::new();
        match u32::try_from(tag) {
            Ok(0) => {
                connection.announce_goaway(&mut out);
                connection.goaway(ErrorCode::NO_ERROR, &mut out);
            }
            Ok(stream) => connection.complete(stream, &mut out),
            Err(_) => {}
        }
        Self::send(out, actions);
        if connection.is_finished() {
            actions.push(Action::Close);
        }
    }

    fn closed(&mut self, peer: Peer, _now: Time) {
        self.connections.remove(&peer);
    }
}

struct Alone {
    start: Option<Time>,
    total: Interval,
}

impl Control for Alone {
    fn stop_level(&self) -> StopLevel {
        StopLevel::Run
    }
    fn start(&self) -> Option<Time> {
        self.start
    }
    fn connections(&self, _change: i64) {}
    fn interval(&mut self, interval: WorkerInterval) -> Option<Interval> {
        self.total.merge(&interval.recorded);
        let mut spare = interval.recorded;
        spare.clear();
        Some(spare)
    }
}

/// A number in a range, from a seed and a name: the same for ever.
fn choose(seed: u64, name: u64, from: u64, to: u64) -> u64 {
    let mut z = seed
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(name << 32 | name);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    from + (z ^ (z >> 31)) % (to - from + 1)
}

fn simulate(seed: u64) -> (Interval, Vec<String>) {
    let pick = |name, from, to| choose(seed, name, from, to);
    let chance = |name, one_in: u64| pick(name, 1, one_in) == 1;
    let goaway_after = chance(5, 4).then(|| pick(6, 1, 60));
    let options = CannedOptions {
        hold: true,
        max_concurrent_streams: chance(1, 3).then(|| pick(2, 1, 8) as u32),
        stream_window: if chance(3, 3) {
            pick(4, 1, 300) as u32
        } else {
            1 << 20
        },
        goaway_after,
        reset_every: chance(7, 4).then(|| (pick(8, 2, 20), ErrorCode::REFUSED_STREAM)),
        ignore_resets: chance(9, 2),
        header_table_size: [0, 64, 4096][pick(10, 0, 2) as usize],
        status: if chance(11, 5) { 14 } else { 0 },
        ..CannedOptions::default()
    };
    let start = Time(3_000_000_000);
    let mut server = Moody {
        canned: Canned::new(options),
        connections: BTreeMap::new(),
        delay: Duration::from_micros(pick(12, 0, 30_000)),
        stall: chance(13, 3).then(|| {
            let from = start.plus_nanos(pick(14, 0, 600_000_000));
            (from, from.plus_nanos(pick(15, 1_000_000, 700_000_000)))
        }),
        // A server that has gone away does not announce it afterwards.
        goaway_at: (chance(16, 4) && goaway_after.is_none())
            .then(|| start.plus_nanos(pick(17, 0, 800_000_000))),
        broken: Vec::new(),
    };
    let rough = chance(18, 2);
    let weather = Weather {
        seed,
        latency_us: 10..=pick(19, 10, 5_000),
        // Small pieces cut frames everywhere, at every byte.
        piece: 1..=pick(20, 1, 40) as usize,
        reset: if rough { pick(21, 0, 3_000) as u32 } else { 0 },
        stall: if rough { pick(22, 0, 3_000) as u32 } else { 0 },
        stall_ms: 1..=500,
        refuse: if rough {
            pick(23, 0, 300_000) as u32
        } else {
            0
        },
        ignore: if rough { pick(24, 0, 50_000) as u32 } else { 0 },
        send_buffer: pick(25, 1, 4_000) as usize,
    };
    let arrivals = match pick(26, 0, 3) {
        0 | 1 => Arrivals::Open(Spacing::Constant),
        2 => Arrivals::Open(Spacing::Poisson),
        _ => Arrivals::Closed {
            clients: pick(27, 1, 20) as u32,
            think: Duration::from_millis(pick(28, 0, 4)),
        },
    };
    let rate = pick(29, 20, 400) as f64;
    let load = Load {
        arrivals,
        stages: vec![Stage {
            name: "steady".to_owned(),
            warmup: false,
            duration: Some(Duration::from_secs(1)),
            rate_from: rate,
            rate_to: rate,
        }],
        connections: pick(30, 1, 4) as u32,
        reuse: if chance(31, 4) {
            Reuse::Never
        } else {
            Reuse::Always
        },
        calls: chance(32, 3).then(|| pick(33, 1, 300)),
        deadline: chance(34, 2).then(|| Duration::from_millis(pick(35, 5, 300))),
        connect_timeout: Duration::from_millis(500),
        connect_rate: None,
        drain: Duration::from_millis(800),
        processes: None,
        workers: None,
        precision: None,
        spin: Duration::ZERO,
        read_buffer: 128 << 10,
        source_addresses: Vec::new(),
    };
    let call = GrpcCall {
        method: "score.ScoreService/GetScore".to_owned(),
        message: vec![7; pick(36, 0, 700) as usize],
        metadata: vec![("x-run".to_owned(), "simulated".to_owned())],
        max_message: 4 << 20,
        ..GrpcCall::default()
    };
    let protocol = GrpcProtocol::new(&GrpcRequest {
        call: &call,
        authority: "localhost:1",
        secure: false,
        deadline: load.deadline,
    })
    .unwrap();
    let share = Share {
        index: 0,
        of: 1,
        connections: load.connections,
        clients: match load.arrivals {
            Arrivals::Closed { clients, .. } => clients,
            Arrivals::Open(_) => 0,
        },
        calls: load.calls,
        schedule: Schedule::new(&load, seed),
        load: Arc::new(load),
        keep_requests: false,
        trace: false,
    };
    let network = SimulatedNetwork::new(&mut server, weather);
    let mut worker = Worker::new(share, network, Arc::new(protocol), None);
    let mut control = Alone {
        start: None,
        total: Interval::default(),
    };
    worker.establish(&mut control).unwrap();
    control.start = Some(start);
    worker.run(start, &mut control).unwrap();
    drop(worker);
    (control.total, server.broken)
}

fn check(seed: u64) -> Result<StageRecord, String> {
    let (mut total, broken) = simulate(seed);
    let record = total.stage_mut(0).clone();
    if let Some(what) = broken.first() {
        return Err(format!("seed {seed}: {what}"));
    }
    if record.due != record.ended() + record.not_started {
        return Err(format!(
            "seed {seed}: {} calls were due, {} ended and {} were not started",
            record.due,
            record.ended(),
            record.not_started
        ));
    }
    if record.late > record.outcomes.of(Outcome::DeadlineExceeded) {
        return Err(format!(
            "seed {seed}: more late answers than deadlines passed"
        ));
    }
    if record.outcomes.of(Outcome::ProtocolError) > 0 {
        let said: Vec<_> = total
            .details
            .iter()
            .filter(|(outcome, _)| *outcome == Outcome::ProtocolError)
            .collect();
        return Err(format!(
            "seed {seed}: a server that keeps to the protocol was found guilty: {said:?}"
        ));
    }
    Ok(record)
}

#[test]
fn two_thousand_seeds() {
    if let Ok(seed) = std::env::var("SIMULATION_SEED") {
        let record = check(seed.parse().unwrap()).unwrap();
        println!("{record:#?}");
        return;
    }
    let mut seen: BTreeMap<Outcome, u64> = BTreeMap::new();
    let (mut failures, mut late, mut not_started) = (Vec::new(), 0, 0);
    for seed in 0..SEEDS {
        match check(seed) {
            Ok(record) => {
                late += record.late;
                not_started += record.not_started;
                for (outcome, n) in record.outcomes.iter() {
                    *seen.entry(outcome).or_default() += n;
                }
            }
            Err(what) => failures.push(what),
        }
    }
    assert!(
        failures.is_empty(),
        "replay with SIMULATION_SEED: {failures:#?}"
    );
    // The seeds reach what they are for.
    for outcome in [
        Outcome::Ok,
        Outcome::DeadlineExceeded,
        Outcome::Unavailable,
        Outcome::Goaway,
        Outcome::Reset,
        Outcome::StreamRefused,
        Outcome::ConnectRefused,
        Outcome::ConnectTimeout,
    ] {
        assert!(
            seen.get(&outcome).is_some_and(|n| *n > 0),
            "{outcome:?} never happened: {seen:?}"
        );
    }
    assert!(
        late > 0 && not_started > 0,
        "late {late}, not started {not_started}"
    );
}

#[test]
fn a_seed_is_a_run() {
    for seed in [3, 17, 400] {
        assert_eq!(simulate(seed), simulate(seed));
    }
}
