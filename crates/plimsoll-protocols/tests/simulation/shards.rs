//! Simulation of a load that is divided among shards. Simulated time is reproducible, so several shards must
//! record the same as one, to the last count of every histogram.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_engine::transport::network::simulated::{
    NetworkConditions, ServerAction, SimulatedNetwork, SimulatedPeerId, SimulatedServer,
};
use plimsoll_engine::worker::{StopUrgency, Worker, WorkerControl, WorkerInterval, WorkerShare};
use plimsoll_model::plan::{ArrivalModel, ArrivalSpacing, ConnectionReuse, LoadPlan, Shard};
use plimsoll_model::records::record::{RecordedInterval, StageRecord};
use plimsoll_model::runs::run::IntervalRecord;
use plimsoll_model::{Outcome, Time};
use plimsoll_protocols::http::{Http1Protocol, HttpCall, HttpRequest};

use super::{START, draw, load, weather};

const SEEDS: u64 = 24;

/// A server whose delay depends only on the millisecond of the request.
struct VaryingServer {
    seed: u64,
    heads: BTreeMap<SimulatedPeerId, Vec<u8>>,
}

impl SimulatedServer for VaryingServer {
    fn on_open(&mut self, peer: SimulatedPeerId, _now: Time, _actions: &mut Vec<ServerAction>) {
        self.heads.insert(peer, Vec::new());
    }

    fn on_receive(
        &mut self,
        peer: SimulatedPeerId,
        bytes: &[u8],
        now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        let Some(head) = self.heads.get_mut(&peer) else {
            return;
        };
        head.extend_from_slice(bytes);
        if head.ends_with(b"\r\n\r\n") {
            head.clear();
            let millisecond = now.since(START) / 1_000_000;
            let after = Duration::from_micros(draw(self.seed, millisecond, 100, 1_900));
            actions.push(ServerAction::Timer { after, tag: 0 });
        }
    }

    fn on_timer(
        &mut self,
        _peer: SimulatedPeerId,
        _tag: u64,
        _now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        actions.push(ServerAction::Send(answer.to_vec()));
    }

    fn on_close(&mut self, peer: SimulatedPeerId, _now: Time) {
        self.heads.remove(&peer);
    }
}

/// The records of a worker, one for each second.
struct SecondsControl {
    start: Option<Time>,
    records: BTreeMap<u64, StageRecord>,
}

impl WorkerControl for SecondsControl {
    fn stop_urgency(&self) -> StopUrgency {
        StopUrgency::Run
    }
    fn start_time(&self) -> Option<Time> {
        self.start
    }
    fn add_connections(&self, _change: i64) {}
    fn send_interval(&mut self, interval: WorkerInterval) -> Option<RecordedInterval> {
        let mut recorded = interval.recorded;
        let second = self.records.entry(u64::from(interval.index)).or_default();
        second.merge(recorded.stage_mut(0));
        recorded.clear();
        Some(recorded)
    }
}

/// Returns the records of the worker at `place` for its part of the load.
fn run_share(
    seed: u64,
    weather: NetworkConditions,
    load: &LoadPlan,
    place: Shard,
) -> Vec<IntervalRecord> {
    let share = WorkerShare::new(place, Arc::new(load.clone()), seed);
    let call = HttpCall {
        method: "GET".into(),
        path: "/".into(),
        expect: vec![(200, 200)],
        max_body: 1_000,
        ..HttpCall::default()
    };
    let protocol = Http1Protocol::new(&HttpRequest {
        call: &call,
        authority: "h:1",
        closes: false,
    });
    let server = VaryingServer {
        seed,
        heads: BTreeMap::new(),
    };
    let network = SimulatedNetwork::new(server, weather);
    let mut worker = Worker::new(share, network, Arc::new(protocol), None);
    let mut control = SecondsControl {
        start: None,
        records: BTreeMap::new(),
    };
    worker.establish_connections(&mut control).unwrap();
    control.start = Some(START);
    worker.run(START, &mut control).unwrap();
    drop(worker);
    let second = |(index, record): (u64, StageRecord)| IntervalRecord {
        index,
        start_offset: Duration::from_secs(index),
        length: Duration::from_secs(1),
        stages: vec![(0, record)],
        ..IntervalRecord::default()
    };
    control.records.into_iter().map(second).collect()
}

/// Merges the written records of `shards` with this many workers each: second by second, and in total.
fn merge_shards(
    seed: u64,
    weather: &NetworkConditions,
    load: &LoadPlan,
    shards: u32,
    workers: u32,
) -> (Vec<StageRecord>, StageRecord) {
    let mut seconds: BTreeMap<u64, IntervalRecord> = BTreeMap::new();
    for index in 0..shards {
        for worker in 0..workers {
            let place = Shard { index, of: shards }.sub_shard(worker, workers);
            let weather = NetworkConditions {
                // Every worker has different network conditions, and the same place always has the same.
                seed: weather.seed + 1_000_003 * u64::from(place.index),
                ..weather.clone()
            };
            for record in run_share(seed, weather, load, place) {
                let read = IntervalRecord::from_line(&record.to_line()).unwrap();
                let second = seconds.entry(read.index).or_default();
                second.index = read.index;
                second.merge(&read);
            }
        }
    }
    let mut whole = StageRecord::default();
    let mut each = Vec::new();
    for mut second in seconds.into_values() {
        let record = second.stages.remove(0).1;
        whole.merge(&record);
        each.push(record);
    }
    (each, whole)
}

/// Compares counts and histograms only.
#[track_caller]
fn assert_same_record(seed: u64, one: &StageRecord, several: &StageRecord) {
    let counts = |r: &StageRecord| (r.due, r.not_started, r.late, r.ended_calls());
    assert_eq!(counts(one), counts(several), "seed {seed}");
    let outcomes = |r: &StageRecord| r.outcomes.iter().collect::<Vec<_>>();
    assert_eq!(outcomes(one), outcomes(several), "seed {seed}");
    for (what, a, b) in [
        ("response", &one.response, &several.response),
        ("service", &one.service, &several.service),
        ("lag", &one.lag, &several.lag),
        ("pacing", &one.pacing, &several.pacing),
    ] {
        assert_eq!(a, b, "seed {seed}: {what}");
    }
}

#[test]
fn four_workers_match_across_shards() {
    let mut outcomes: BTreeMap<Outcome, u64> = BTreeMap::new();
    for seed in 0..SEEDS {
        let mut load = load(seed);
        load.connections = draw(seed, 70, 4, 9) as u32;
        load.stages[0].duration = Some(Duration::from_secs(2));
        if let ArrivalModel::Closed { clients, .. } = &mut load.arrivals {
            *clients += 3;
        }
        let weather = weather(seed);
        let (seconds, whole) = merge_shards(seed, &weather, &load, 1, 4);
        for (shards, workers) in [(2, 2), (4, 1)] {
            let (other_seconds, other) = merge_shards(seed, &weather, &load, shards, workers);
            assert_same_record(seed, &whole, &other);
            assert_eq!(seconds.len(), other_seconds.len());
            for (a, b) in seconds.iter().zip(&other_seconds) {
                assert_same_record(seed, a, b);
            }
        }
        for (outcome, n) in whole.outcomes.iter() {
            *outcomes.entry(outcome).or_default() += n;
        }
    }
    // The seeds must cover more than successful calls.
    assert!(outcomes.len() > 2, "{outcomes:?}");
}

#[test]
fn shards_match_one_worker_without_queueing() {
    for seed in 0..SEEDS {
        let mut load = LoadPlan {
            arrivals: ArrivalModel::Open(ArrivalSpacing::Constant),
            connections: 12,
            reuse: ConnectionReuse::Always,
            calls: None,
            deadline: None,
            ..load(seed)
        };
        load.tick = Duration::ZERO;
        // The arrivals are further apart than the longest call.
        let rate = [100.0, 200.0, 400.0][seed as usize % 3];
        (load.stages[0].rate_from, load.stages[0].rate_to) = (rate, rate);
        load.stages[0].duration = Some(Duration::from_secs(3));
        let (_, one) = merge_shards(seed, &NetworkConditions::faultless(seed), &load, 1, 1);
        assert_eq!(
            (one.due, one.ok_calls()),
            (3 * rate as u64, 3 * rate as u64)
        );
        for shards in [2, 3, 4, 12] {
            let (_, several) =
                merge_shards(seed, &NetworkConditions::faultless(seed), &load, shards, 1);
            assert_same_record(seed, &one, &several);
        }
    }
}
