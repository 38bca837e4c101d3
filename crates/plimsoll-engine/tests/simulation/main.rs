//! Tests of the worker loop on the simulated network, with a minimal protocol: a request is a call's id in
//! four bytes, and so is its answer; a ping is answered by a pong.
//!
//! Two properties hold for every seed: each call that was due is counted exactly once, whatever the network
//! does, and the same seed gives the same record.
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::cell::Cell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use plimsoll_engine::driver::{RefusalRetries, RefusedCall};
use plimsoll_engine::transport::network::simulated::{
    NetworkConditions, ServerAction, SimulatedNetwork, SimulatedPeerId, SimulatedServer,
};
use plimsoll_engine::worker::{StopUrgency, Worker, WorkerControl, WorkerInterval, WorkerShare};
use plimsoll_engine::{CallId, CompletedCall, Driver, Event, Protocol, ProtocolError};
use plimsoll_model::objective::{
    MeasuredCalls, ObjectiveInputs, ObjectiveVerdict, RunValidity, judge_objectives,
};
use plimsoll_model::plan::{
    ArrivalModel, ArrivalSpacing, ConnectionReuse, LoadPlan, LoadStage, Metric, Objective, Shard,
    Statistic, TimeMetric,
};
use plimsoll_model::records::record::{AddressCounts, RecordedInterval, StageRecord};
use plimsoll_model::{Outcome, Time, TimeMeasure};
use proptest::prelude::*;

mod calls;
mod connections;
mod instrument;
mod ledger;
mod limits;
mod load_end;
mod protocol;
mod retries;
mod servers;
mod ticks;
mod turns;
mod users;

use protocol::*;
use servers::*;

/// Controls a single worker: merges its intervals, and stops it on request.
struct SoleWorkerControl {
    start: Option<Time>,
    /// How many more times `start` returns `None`.
    unknown_for: Cell<u32>,
    total: RecordedInterval,
    lasts: usize,
    /// The interval at whose end the run is stopped gracefully.
    stop_after: Option<u32>,
    level: StopUrgency,
    /// End of the last interval in nanoseconds from the load's start.
    ended_ns: u64,
    /// At the end of each interval: calls that are due and have not ended, and the number reported.
    under_way: Vec<(u64, u64)>,
    /// The time that users waited for a connection, added up, µs.
    users_waited_us: u64,
}

impl WorkerControl for SoleWorkerControl {
    fn stop_urgency(&self) -> StopUrgency {
        self.level
    }
    fn start_time(&self) -> Option<Time> {
        match self.unknown_for.get() {
            0 => self.start,
            n => {
                self.unknown_for.set(n - 1);
                None
            }
        }
    }
    fn add_connections(&self, _change: i64) {}
    fn send_interval(&mut self, interval: WorkerInterval) -> Option<RecordedInterval> {
        self.total.merge(&interval.recorded);
        self.lasts += usize::from(interval.is_last);
        self.ended_ns = interval.end_ns;
        let so_far = self.total.stage_mut(0);
        let under_way = so_far.due - so_far.ended_calls() - so_far.not_started;
        let reported = interval.in_flight + interval.backlog;
        self.under_way.push((under_way, reported));
        self.users_waited_us += interval.users.map_or(0, |users| users.waiting_us);
        if self.stop_after.is_some_and(|after| interval.index >= after) {
            self.level = StopUrgency::Graceful;
        }
        let mut spare = interval.recorded;
        spare.clear();
        Some(spare)
    }
}

fn load(arrivals: ArrivalModel, rate: f64, connections: u32) -> LoadPlan {
    LoadPlan {
        arrivals,
        stages: vec![LoadStage::constant_rate(
            "steady",
            Duration::from_secs(2),
            rate,
        )],
        connections,
        deadline: Some(Duration::from_millis(500)),
        connect_timeout: Duration::from_secs(1),
        drain: Some(Duration::from_secs(1)),
        spin: Duration::ZERO,
        ..LoadPlan::default()
    }
}

fn simulate(
    load: LoadPlan,
    weather: NetworkConditions,
    server: impl SimulatedServer,
) -> StageRecord {
    simulate_paused(load, weather, server, Vec::new())
}

/// Simulates a run in which the worker is paused at the given times.
fn simulate_paused(
    load: LoadPlan,
    weather: NetworkConditions,
    server: impl SimulatedServer,
    pauses: Vec<(Time, Duration)>,
) -> StageRecord {
    simulate_until(load, weather, server, pauses, None).0
}

/// Simulates a run; returns its record and its length. `stop_after` is the interval after which it is interrupted.
fn simulate_until(
    load: LoadPlan,
    weather: NetworkConditions,
    server: impl SimulatedServer,
    pauses: Vec<(Time, Duration)>,
    stop_after: Option<u32>,
) -> (StageRecord, Duration) {
    let network = SimulatedNetwork::new(server, NetworkConditions { pauses, ..weather });
    simulate_on(load, network, stop_after)
}

fn simulate_on(
    load: LoadPlan,
    network: SimulatedNetwork<impl SimulatedServer>,
    stop_after: Option<u32>,
) -> (StageRecord, Duration) {
    run_worker(worker(load, network, 1, Ids::default()), stop_after)
}

fn run_worker(
    mut worker: Worker<Ids, SimulatedNetwork<impl SimulatedServer>>,
    stop_after: Option<u32>,
) -> (StageRecord, Duration) {
    let mut control = new_control(stop_after);
    worker.establish_connections(&mut control).unwrap();
    let start = Time(5_000_000_000);
    control.start = Some(start);
    worker.run(start, &mut control).unwrap();
    assert_eq!(control.lasts, 1);
    let lasted = Duration::from_nanos(control.ended_ns);
    (control.total.stage_mut(0).clone(), lasted)
}

/// Creates the first of `of` workers.
fn worker<S: SimulatedServer>(
    load: LoadPlan,
    network: SimulatedNetwork<S>,
    of: u32,
    protocol: Ids,
) -> Worker<Ids, SimulatedNetwork<S>> {
    worker_with(load, network, of, protocol, |_| {})
}

fn worker_with<S: SimulatedServer>(
    load: LoadPlan,
    network: SimulatedNetwork<S>,
    of: u32,
    protocol: Ids,
    change: impl FnOnce(&mut WorkerShare),
) -> Worker<Ids, SimulatedNetwork<S>> {
    let mut share = WorkerShare {
        of,
        ..WorkerShare::new(Shard::WHOLE_RUN, Arc::new(load), 1)
    };
    change(&mut share);
    Worker::new(share, network, Arc::new(protocol), None)
}

fn new_control(stop_after: Option<u32>) -> SoleWorkerControl {
    SoleWorkerControl {
        start: None,
        unknown_for: Cell::new(0),
        total: RecordedInterval::default(),
        lasts: 0,
        stop_after,
        level: StopUrgency::Run,
        ended_ns: 0,
        under_way: Vec::new(),
        users_waited_us: 0,
    }
}

fn assert_all_counted(record: &StageRecord) {
    assert_eq!(
        record.due,
        record.ended_calls() + record.not_started,
        "every call that was due is counted once: {record:?}"
    );
}

fn micros(times: &plimsoll_model::records::record::TimeHistogram, quantile: f64) -> f64 {
    times.histogram().unwrap().value_at_quantile(quantile) as f64 / 1e3
}

const MS: u64 = 1_000_000;

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Under any conditions and for any kind of load, every call is counted once, and the same seed gives the
    /// same record.
    #[test]
    fn faults_never_lose_or_duplicate_calls(
        seed in any::<u64>(),
        connections in 1u32..6,
        mode in 0..4,
        latency in 1u64..20_000,
        piece in 1usize..9,
        (reset, stall, refuse, ignore) in (0u32..20_000, 0u32..20_000, 0u32..400_000, 0u32..100_000),
        delay in 0u64..700,
        send_buffer in 1usize..200,
    ) {
        let arrivals = match mode {
            0 => ArrivalModel::Open(ArrivalSpacing::Constant),
            1 => ArrivalModel::Open(ArrivalSpacing::Poisson),
            2 => ArrivalModel::Closed { clients: 7, think: Duration::from_millis(3) },
            _ => ArrivalModel::Closed { clients: 9, think: Duration::ZERO },
        };
        let mut load = load(arrivals, 300.0, connections);
        if seed % 3 == 0 {
            load.reuse = ConnectionReuse::Never;
        }
        if seed % 5 == 0 {
            load.calls = Some(200);
        }
        let weather = NetworkConditions {
            seed,
            latency_us: latency / 2..=latency,
            piece: 1..=piece,
            reset_ppm: reset,
            stall_ppm: stall,
            stall_ms: 1..=800,
            refuse_ppm: refuse,
            ignore_ppm: ignore,
            send_buffer,
            ..NetworkConditions::faultless(seed)
        };
        let first = simulate(load.clone(), weather.clone(), echo(delay));
        assert_all_counted(&first);
        let second = simulate(load, weather, echo(delay));
        prop_assert_eq!(first, second);
    }
}
