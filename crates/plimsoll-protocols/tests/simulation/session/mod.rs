//! Simulates sessions end to end: the engine's script worker, the session driver, and a stack whose sockets are killed
//! repeatedly, on the simulated network.
//!
//! A seed determines the network conditions, the load and the kills. For every seed, each query that was due is counted
//! once, a successful query has received its tokens 1..n once and in order, and every query succeeds if only sockets
//! are killed. `SIMULATION_SEED=n` replays one seed.
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_engine::script::worker::ScriptWorker;
use plimsoll_engine::transport::network::simulated::{
    NetworkConditions, ServerAction, SimulatedNetwork, SimulatedPeerId, SimulatedServer,
};
use plimsoll_engine::worker::WorkerShare;
use plimsoll_model::metrics::measure::{Count, TimeMeasure};
use plimsoll_model::plan::{
    ArrivalModel, ArrivalSpacing, GoodputBounds, LoadPlan, LoadStage, RequestFields, Shard,
};
use plimsoll_model::records::record::{RecordedInterval, StageRecord};
use plimsoll_model::spec::parse_target;
use plimsoll_model::{Outcome, Time};
use plimsoll_protocols::session::{QueryText, SessionCall, SessionOptions, SessionScripts};
use plimsoll_wire::websocket::{
    Opcode, ReaderRole, WebSocketMessage, WebSocketReader, append_frame, derive_accept_key,
};

mod journey;
mod stack;

use crate::alone;

use alone::*;
use stack::*;

const SEEDS: u64 = 200;
const TOKENS: u64 = 18;
const POLL_INTERVAL: Duration = Duration::from_millis(3);

struct SimulationResult {
    record: StageRecord,
    sessions: u64,
    queries: u64,
    kills: u64,
    taken_unread: usize,
    pongs: usize,
    /// The start times of the sessions' queries, in order.
    runs: Vec<Time>,
}

/// Simulates one run. `stormy`: the network itself also loses connections, including the API's.
fn simulate(seed: u64, stormy: bool) -> SimulationResult {
    simulate_with(seed, stormy, StackFault::Nothing)
}

fn simulate_with(seed: u64, stormy: bool, fault: StackFault) -> SimulationResult {
    simulate_load(seed, stormy, fault, |_, _| {})
}

/// Simulates one run with a changed load or stack.
fn simulate_load(
    seed: u64,
    stormy: bool,
    fault: StackFault,
    adjust: impl FnOnce(&mut LoadPlan, &mut Stack),
) -> SimulationResult {
    let number = |name, from, to| choose(seed, name, from, to);
    let sessions = number(1, 1, 5);
    let queries = number(2, 1, 4);
    let open = number(3, 0, 1) == 1;
    let weather = NetworkConditions {
        latency_us: 20..=number(4, 20, 3_000),
        piece: 1..=usize::try_from(number(5, 1, 300)).unwrap(),
        stall_ppm: number(6, 0, 20_000) as u32,
        stall_ms: 1..=number(7, 1, 200),
        reset_ppm: if stormy {
            number(8, 1, 3_000) as u32
        } else {
            0
        },
        refuse_ppm: if stormy { 50_000 } else { 0 },
        ..NetworkConditions::faultless(seed)
    };
    let weather = match fault {
        StackFault::Nothing => weather,
        // The connection's end arrives in the same poll as its establishment.
        StackFault::ApiCloses => NetworkConditions {
            latency_us: 0..=0,
            ..NetworkConditions::faultless(seed)
        },
        _ => NetworkConditions {
            send_buffer: 1 << 16,
            ..NetworkConditions::faultless(seed)
        },
    };
    let mut stack = Stack::new(seed, fault);
    let mut load = LoadPlan {
        arrivals: if open {
            ArrivalModel::Open(ArrivalSpacing::Constant)
        } else {
            ArrivalModel::Closed {
                clients: sessions as u32,
                think: Duration::from_millis(number(13, 0, 30)),
            }
        },
        stages: vec![LoadStage {
            name: "steady".to_owned(),
            warmup: false,
            duration: open.then_some(Duration::from_secs(1)),
            rate_from: if open { sessions as f64 } else { 0.0 },
            rate_to: if open { sessions as f64 } else { 0.0 },
        }],
        connections: 2,
        calls: (!open).then_some(sessions * queries),
        deadline: Some(Duration::from_secs(60)),
        connect_timeout: Duration::from_secs(5),
        workers: Some(1),
        spin: Duration::ZERO,
        ..LoadPlan::default()
    };
    adjust(&mut load, &mut stack);
    plimsoll_protocols::registry::register_protocols();
    let options = SessionOptions {
        api: parse_target("session://127.0.0.1:1").unwrap().0,
        api_tls: None,
        socket_tls: None,
        api_host: "api".to_owned(),
        socket_host: "sockets".to_owned(),
        call: SessionCall {
            socket: parse_target("session://127.0.0.1:2").unwrap().0,
            api_secured: false,
            socket_secured: false,
            agent: "agent".to_owned(),
            queries: queries as u32,
            query: QueryText::constant("?"),
            expect_tokens: None,
            think: Duration::from_millis(number(11, 0, 20)),
            reconnects: 20,
            reconnect_pause: Duration::from_millis(number(12, 1, 300)),
            max_reconnect_pause: Duration::from_secs(1),
            compression: false,
            headers: RequestFields::default(),
            goodput: GoodputBounds::default(),
        },
        deadline: load.deadline,
        seed,
    };
    let share = WorkerShare::new(Shard::WHOLE_RUN, Arc::new(load), seed);
    let mut control = SoleWorkerControl {
        start: Some(Time(1_100_000_000)),
        total: RecordedInterval::default(),
    };
    let network = SimulatedNetwork::new(&mut stack, weather);
    let mut worker = ScriptWorker::new(share, network, Arc::new(SessionScripts::new(options)));
    worker.run(Time(1_100_000_000), &mut control).unwrap();
    drop(worker);
    let mut record = StageRecord::default();
    for (_, stage) in control.total.recorded_stages() {
        record.merge(stage);
    }
    let mut runs: Vec<Time> = (stack.sessions.values())
        .flat_map(|log| log.runs.iter().copied())
        .collect();
    runs.sort_unstable();
    SimulationResult {
        runs,
        record,
        sessions,
        queries,
        kills: stack.kills,
        taken_unread: stack.taken_unread,
        pongs: stack.pongs,
    }
}

fn seeds() -> Vec<u64> {
    match std::env::var("SIMULATION_SEED") {
        Ok(seed) => vec![seed.parse().expect("SIMULATION_SEED is a number")],
        Err(_) => (0..SEEDS).collect(),
    }
}

fn of(record: &StageRecord, count: Count) -> u64 {
    record.measures.counter(count)
}

#[test]
fn random_socket_kills_lose_no_tokens() {
    let (mut kills, mut reconnects) = (0, 0);
    for seed in seeds() {
        let seen = simulate(seed, false);
        let (record, all) = (&seen.record, seen.sessions * seen.queries);
        let context = || format!("SIMULATION_SEED={seed}: {:?}", record.outcomes);
        assert_eq!((record.due, record.ok_calls()), (all, all), "{}", context());
        assert_eq!(
            of(record, Count::TokensReceived),
            all * TOKENS,
            "{}",
            context()
        );
        for none in [
            Count::TokensMissing,
            Count::TokensDuplicated,
            Count::TokensOutOfOrder,
            Count::TokensStray,
            Count::HistoryGone,
            Count::keyed("sessions_failed"),
        ] {
            assert_eq!(of(record, none), 0, "{}: {}", context(), none.key());
        }
        assert_eq!(
            of(record, Count::keyed("sessions_ok")),
            seen.sessions,
            "{}",
            context()
        );
        assert!(of(record, Count::Reconnects) <= seen.kills, "{}", context());
        kills += seen.kills;
        reconnects += of(record, Count::Reconnects);
    }
    if std::env::var_os("SIMULATION_SEED").is_none() {
        assert!(kills > 300 && reconnects > 300, "{kills} {reconnects}");
    }
}

#[test]
fn success_implies_all_tokens_despite_faults() {
    let mut failed = 0;
    for seed in seeds() {
        let seen = simulate(seed, true);
        let (record, all) = (&seen.record, seen.sessions * seen.queries);
        let context = || format!("SIMULATION_SEED={seed}: {:?}", record.outcomes);
        assert_eq!(record.due, all, "{}", context());
        assert_eq!(
            record.due,
            record.ended_calls() + record.not_started,
            "{}",
            context()
        );
        // The stack never loses, repeats or reorders tokens, so none of these may be reported.
        assert_eq!(record.outcomes.get(Outcome::TokensLost), 0, "{}", context());
        assert_eq!(of(record, Count::TokensMissing), 0, "{}", context());
        assert_eq!(of(record, Count::TokensDuplicated), 0, "{}", context());
        assert_eq!(of(record, Count::TokensOutOfOrder), 0, "{}", context());
        assert!(
            of(record, Count::TokensReceived) >= record.ok_calls() * TOKENS,
            "{}",
            context()
        );
        // Token gaps of failed queries are not recorded.
        let gaps = record.measures.times(TimeMeasure::TokenGap).len();
        assert_eq!(gaps, record.ok_calls() * (TOKENS - 1), "{}", context());
        failed += record.errors();
    }
    if std::env::var_os("SIMULATION_SEED").is_none() {
        assert!(failed > 0, "the weather was meant to hurt");
    }
}

#[test]
fn queries_fail_with_socket_error() {
    for (fault, outcome) in [
        (StackFault::UpgradeRefused, Outcome::SocketRefused),
        (StackFault::SocketCloses, Outcome::SocketClosed),
        (StackFault::Garbage, Outcome::BadAnswer),
        (StackFault::Binary, Outcome::ProtocolError),
    ] {
        for seed in 0..10 {
            let seen = simulate_with(seed, false, fault);
            let (record, context) = (&seen.record, format!("{fault:?}, seed {seed}"));
            let outcomes = &record.outcomes;
            assert_eq!(
                record.due,
                record.ended_calls() + record.not_started,
                "{context}"
            );
            assert_eq!(outcomes.get(Outcome::DeadlineExceeded), 0, "{context}");
            assert!(outcomes.get(outcome) > 0, "{context}: {outcomes:?}");
            assert_eq!(
                outcomes.get(outcome) + outcomes.get(Outcome::BrokenOff),
                record.due,
                "{context}: {outcomes:?}"
            );
        }
    }
}

#[test]
fn api_disconnect_is_not_deadline_exceeded() {
    for seed in 0..10 {
        let record = simulate_with(seed, false, StackFault::ApiCloses).record;
        let outcomes = &record.outcomes;
        assert!(record.due > 0 && record.due == record.ended_calls() + record.not_started);
        assert_eq!(
            outcomes.get(Outcome::ConnectionClosed) + outcomes.get(Outcome::BrokenOff),
            record.due,
            "seed {seed}: {outcomes:?}"
        );
    }
}

#[test]
fn close_delimited_responses_succeed() {
    for seed in 0..10 {
        let seen = simulate_with(seed, false, StackFault::Unframed);
        let outcomes = &seen.record.outcomes;
        assert!(seen.record.due > 0);
        assert_eq!(
            outcomes.get(Outcome::Ok),
            seen.record.due,
            "seed {seed}: {outcomes:?}"
        );
    }
}

#[test]
fn session_survives_ping_flood() {
    for seed in 0..3 {
        let seen = simulate_with(seed, false, StackFault::Flood);
        let all = seen.sessions * seen.queries;
        assert_eq!(
            (seen.record.due, seen.record.ok_calls()),
            (all, all),
            "{seed}"
        );
        // A pong has 6 bytes, a ping 2. The bound is what fits in the socket's buffer, the limit of pending
        // replies, the response's header, and the pongs for one read.
        let most = (64 + 64) * 1024 / 3 + 128 * 1024 + 1024;
        let sessions = usize::try_from(seen.sessions).unwrap();
        assert!(
            seen.taken_unread <= sessions * most,
            "{}",
            seen.taken_unread
        );
        assert!(seen.pongs >= sessions * PINGS, "{}", seen.pongs);
    }
}

/// Changes the load to one session at its start, whose last token arrives 9.5 s later or more.
fn one_slow_session(load: &mut LoadPlan, stack: &mut Stack) {
    load.arrivals = ArrivalModel::Open(ArrivalSpacing::Constant);
    load.stages[0].duration = Some(Duration::from_secs(10));
    (load.stages[0].rate_from, load.stages[0].rate_to) = (0.1, 0.1);
    (load.calls, load.deadline) = (None, None);
    load.drain = Some(Duration::from_secs(1));
    stack.pace = Duration::from_millis(500);
    stack.kill = 0;
}

#[test]
fn drain_starts_at_schedule_end() {
    let mut first_queries = 0;
    for seed in 0..10 {
        let seen = simulate_load(seed, false, StackFault::Nothing, one_slow_session);
        first_queries += seen.record.ok_calls();
    }
    // Each session's first query ends within the load; a second one does not.
    assert_eq!(first_queries, 10);
}

#[test]
fn drain_cuts_off_endless_sessions() {
    let never = Duration::from_secs(3_600);
    for seed in 0..10 {
        let seen = simulate_load(seed, false, StackFault::Nothing, |load, stack| {
            one_slow_session(load, stack);
            stack.pace = never;
        });
        assert_eq!(
            seen.record.cut_off_call_count(),
            1,
            "no deadline, seed {seed}"
        );
        // Clients start one session after another, so deadlines do not bound the run.
        let seen = simulate_load(seed, false, StackFault::Nothing, |load, stack| {
            one_slow_session(load, stack);
            load.arrivals = ArrivalModel::Closed {
                clients: 1,
                think: Duration::ZERO,
            };
            load.deadline = Some(Duration::from_secs(60));
            stack.pace = never;
        });
        assert_eq!(
            seen.record.cut_off_call_count(),
            1,
            "closed loop, seed {seed}"
        );
        // An open load waits until each query's deadline.
        let seen = simulate_load(seed, false, StackFault::Nothing, |load, stack| {
            one_slow_session(load, stack);
            load.deadline = Some(Duration::from_secs(60));
            stack.pace = never;
        });
        let late = seen.record.outcomes.get(Outcome::DeadlineExceeded);
        assert_eq!(late, 1, "arrivals, seed {seed}");
        assert_eq!(seen.record.cut_off_call_count(), 0, "arrivals, seed {seed}");
    }
}

#[test]
fn sessions_respect_schedule_and_think_time() {
    let begin = Time(1_100_000_000);
    for seed in 0..20 {
        let mut queries = 0;
        let seen = simulate_load(seed, false, StackFault::Nothing, |load, stack| {
            stack.kill = 0;
            match &mut load.arrivals {
                ArrivalModel::Open(_) => {
                    load.stages[0].duration = Some(Duration::from_secs(5));
                    (load.stages[0].rate_from, load.stages[0].rate_to) = (1.0, 1.0);
                }
                ArrivalModel::Closed { clients, think } => {
                    queries = load.calls.unwrap() / u64::from(*clients);
                    *clients = 1;
                    *think = Duration::from_secs(2);
                }
            }
        });
        let firsts = |n: u64| seen.runs.iter().step_by(usize::try_from(n).unwrap());
        if queries == 0 {
            // The k-th query to start must not be one that is due later.
            let number = u32::try_from(seen.runs.len() as u64 / seen.queries).unwrap();
            assert_eq!(number, 5, "seed {seed}");
            for (k, due) in (0..number).map(|k| (k, begin + Duration::from_secs(1) * k)) {
                let begun = seen.runs.iter().filter(|run| **run < due).count() as u64;
                let most = u64::from(k) * seen.queries;
                assert!(
                    begun <= most,
                    "seed {seed}: {begun} before session {k} was due"
                );
            }
        } else {
            let all: Vec<&Time> = firsts(queries).collect();
            assert_eq!(all.len() as u64, seen.sessions, "seed {seed}");
            for pair in all.windows(2) {
                assert!(*pair[1] >= *pair[0] + Duration::from_secs(2), "seed {seed}");
            }
        }
    }
}

#[test]
fn users_run_sessions_back_to_back() {
    let begin = Time(1_100_000_000);
    let load_for = Duration::from_secs(10);
    for seed in 0..10 {
        let seen = simulate_load(seed, false, StackFault::Nothing, |load, stack| {
            stack.kill = 0;
            load.arrivals = ArrivalModel::Closed {
                clients: 2,
                think: Duration::ZERO,
            };
            load.stages[0].duration = Some(load_for);
            (load.stages[0].rate_from, load.stages[0].rate_to) = (0.0, 0.0);
            (load.calls, load.drain) = (None, Some(Duration::from_secs(100)));
        });
        let (first, last) = (seen.runs[0], seen.runs[seen.runs.len() - 1]);
        assert!(first >= begin, "seed {seed}: {first:?}");
        assert!(last < begin + load_for * 2, "seed {seed}: {last:?}");
        // Users do not pause: one or two sessions are in progress at any time.
        let gap = seen
            .runs
            .windows(2)
            .map(|two| two[1].duration_since(two[0]))
            .max();
        assert!(gap < Some(load_for / 4), "seed {seed}: {gap:?}");
        assert!(last >= begin + load_for / 2, "seed {seed}: {last:?}");
        assert_eq!(seen.record.cut_off_call_count(), 0, "seed {seed}");
    }
}

#[test]
fn same_seed_reproduces_run() {
    for seed in 0..20 {
        let (one, two) = (simulate(seed, true), simulate(seed, true));
        assert_eq!(one.record, two.record, "SIMULATION_SEED={seed}");
        assert_eq!(one.kills, two.kills);
    }
}
