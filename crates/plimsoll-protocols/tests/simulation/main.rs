//! Simulates protocols end to end: the engine's worker, a driver, and a server that checks what it receives, on a
//! simulated network with all kinds of faults.
//!
//! A seed determines the network conditions, the load and the server's faults. For every seed, each call that was due
//! is counted once, the client never violates the protocol, and nothing hangs. `SIMULATION_SEED=n` replays one seed.
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod alone;
mod bolt;
mod fetch;
mod grpc;
mod hold;
mod honesty;
mod http;
mod journeys;
mod loops;
mod replay_times;
mod session;
mod shards;
mod sockets;
mod streams;
mod users;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_engine::driver::Protocol;
use plimsoll_engine::tls::TlsClient;
use plimsoll_engine::transport::network::simulated::{
    NetworkConditions, SimulatedNetwork, SimulatedServer,
};
use plimsoll_engine::worker::{Worker, WorkerShare};
use plimsoll_model::plan::{
    ArrivalModel, ArrivalSpacing, ConnectionReuse, LoadPlan, LoadStage, Shard,
};
use plimsoll_model::records::record::{RecordedInterval, StageRecord};
use plimsoll_model::{Outcome, Time};

use alone::SoleWorkerControl;

const SEEDS: u64 = 600;

/// When the load begins.
const START: Time = Time(3_000_000_000);

/// Draws a number in a range from a seed and a name, always the same.
fn draw(seed: u64, name: u64, from: u64, to: u64) -> u64 {
    let mut z = seed
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(name << 32 | name);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    from + (z ^ (z >> 31)) % (to - from + 1)
}

fn weather(seed: u64) -> NetworkConditions {
    let pick = |name, from, to| draw(seed, name, from, to);
    let rough = pick(18, 1, 2) == 1;
    let chance = |name, to| if rough { pick(name, 0, to) as u32 } else { 0 };
    NetworkConditions {
        seed,
        latency_us: 10..=pick(19, 10, 5_000),
        // Small pieces split frames at every byte.
        piece: 1..=pick(20, 1, 40) as usize,
        reset_ppm: chance(21, 3_000),
        stall_ppm: chance(22, 3_000),
        stall_ms: 1..=500,
        refuse_ppm: chance(23, 300_000),
        ignore_ppm: chance(24, 50_000),
        send_buffer: pick(25, 1, 4_000) as usize,
        ..NetworkConditions::faultless(seed)
    }
}

fn load(seed: u64) -> LoadPlan {
    let pick = |name, from, to| draw(seed, name, from, to);
    let chance = |name, one_in: u64| pick(name, 1, one_in) == 1;
    let arrivals = match pick(26, 0, 3) {
        0 | 1 => ArrivalModel::Open(ArrivalSpacing::Constant),
        2 => ArrivalModel::Open(ArrivalSpacing::Poisson),
        _ => ArrivalModel::Closed {
            clients: pick(27, 1, 20) as u32,
            think: Duration::from_millis(pick(28, 0, 4)),
        },
    };
    let rate = pick(29, 20, 400) as f64;
    LoadPlan {
        arrivals,
        stages: vec![LoadStage::constant_rate(
            "steady",
            Duration::from_secs(1),
            rate,
        )],
        connections: pick(30, 1, 4) as u32,
        reuse: if chance(31, 4) {
            ConnectionReuse::Never
        } else {
            ConnectionReuse::Always
        },
        calls: chance(32, 3).then(|| pick(33, 1, 300)),
        deadline: chance(34, 2).then(|| Duration::from_millis(pick(35, 5, 300))),
        connect_timeout: Duration::from_millis(500),
        drain: Some(Duration::from_millis(800)),
        spin: Duration::ZERO,
        tick: if chance(60, 4) {
            Duration::from_millis(pick(61, 1, 20))
        } else {
            Duration::ZERO
        },
        ..LoadPlan::default()
    }
}

/// Runs `load` against `server` under the network conditions of the seed, and returns the worker's record.
fn run<P: Protocol, S: SimulatedServer>(
    seed: u64,
    load: LoadPlan,
    server: &mut S,
    protocol: P,
) -> RecordedInterval {
    run_under(weather(seed), load, server, protocol, None)
}

/// Does the same under the given network conditions, with or without TLS.
fn run_under<P: Protocol, S: SimulatedServer>(
    weather: NetworkConditions,
    load: LoadPlan,
    server: &mut S,
    protocol: P,
    tls: Option<TlsClient>,
) -> RecordedInterval {
    let share = WorkerShare::new(Shard::WHOLE_RUN, Arc::new(load), weather.seed);
    let network = SimulatedNetwork::new(server, weather);
    let mut worker = Worker::new(share, network, Arc::new(protocol), tls);
    let mut control = SoleWorkerControl {
        start: None,
        total: RecordedInterval::default(),
    };
    worker.establish_connections(&mut control).unwrap();
    control.start = Some(START);
    worker.run(START, &mut control).unwrap();
    drop(worker);
    control.total
}

/// Checks what must hold for every seed; `broken` lists the violations that the server found.
fn check(seed: u64, mut total: RecordedInterval, broken: &[String]) -> Result<StageRecord, String> {
    let record = total.stage_mut(0).clone();
    if let Some(what) = broken.first() {
        return Err(format!("seed {seed}: {what}"));
    }
    if record.due != record.ended_calls() + record.not_started {
        return Err(format!(
            "seed {seed}: {} calls were due, {} ended and {} were not started",
            record.due,
            record.ended_calls(),
            record.not_started
        ));
    }
    if record.late > record.outcomes.get(Outcome::DeadlineExceeded) {
        return Err(format!(
            "seed {seed}: more late answers than deadlines passed"
        ));
    }
    if record.outcomes.get(Outcome::ProtocolError) > 0 {
        let said: Vec<_> = total
            .details
            .iter()
            .filter(|detail| detail.code == Outcome::ProtocolError)
            .collect();
        return Err(format!(
            "seed {seed}: a server that keeps to the protocol was found guilty: {said:?}"
        ));
    }
    Ok(record)
}

/// Runs all seeds, or the one from the environment; together they must produce the outcomes `expected`.
fn check_every_seed(
    simulate: impl Fn(u64) -> (RecordedInterval, Vec<String>),
    expected: &[Outcome],
) {
    let Some((late, not_started)) = run_all_seeds(simulate, expected) else {
        return;
    };
    assert!(
        late > 0 && not_started > 0,
        "late {late}, not started {not_started}"
    );
}

/// Does the same; returns how many calls were answered late, and how many were not started. `None`: only one
/// seed was run.
fn run_all_seeds(
    simulate: impl Fn(u64) -> (RecordedInterval, Vec<String>),
    expected: &[Outcome],
) -> Option<(u64, u64)> {
    let check = |seed| {
        let (total, broken) = simulate(seed);
        check(seed, total, &broken)
    };
    if let Ok(seed) = std::env::var("SIMULATION_SEED") {
        let record = check(seed.parse().unwrap()).unwrap();
        eprintln!("{record:#?}");
        return None;
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
    // The seeds must cover these outcomes.
    for outcome in expected {
        assert!(
            seen.get(outcome).is_some_and(|n| *n > 0),
            "{outcome:?} never happened: {seen:?}"
        );
    }
    Some((late, not_started))
}
