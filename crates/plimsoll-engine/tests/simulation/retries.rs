//! Tests of retries of unprocessed calls, and of the order in which connections are used.

use std::collections::BTreeMap;

use plimsoll_engine::script::user::UserScripts;
use plimsoll_engine::script::worker::ScriptWorker;
use plimsoll_model::Count;
use plimsoll_model::plan::Target;

use super::users::SingleCall;
use super::*;

/// Answers `limit` calls per connection, then rejects those in flight and all further ones.
struct RejectingServer {
    limit: u64,
    taken: BTreeMap<SimulatedPeerId, u64>,
    /// Received calls, including rejected ones.
    received: u64,
    then: EchoServer,
}

fn rejecting_after(limit: u64) -> RejectingServer {
    RejectingServer {
        limit,
        taken: BTreeMap::new(),
        received: 0,
        then: echo(5),
    }
}

impl SimulatedServer for RejectingServer {
    fn on_open(&mut self, _peer: SimulatedPeerId, _now: Time, actions: &mut Vec<ServerAction>) {
        actions.push(ServerAction::Send(GREETING.to_vec()));
    }
    fn on_receive(
        &mut self,
        peer: SimulatedPeerId,
        bytes: &[u8],
        now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        for word in bytes.as_chunks::<4>().0 {
            if [GREETING, CANCEL].contains(word) {
                continue;
            }
            self.received += 1;
            let taken = self.taken.entry(peer).or_default();
            if *taken == self.limit {
                actions.push(ServerAction::Send(UNPROCESSED.to_vec()))
            } else {
                *taken += 1;
                self.then.on_receive(peer, word, now, actions);
            }
        }
    }
    fn on_timer(
        &mut self,
        peer: SimulatedPeerId,
        tag: u64,
        now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        self.then.on_timer(peer, tag, now, actions);
    }
}

fn arrival_models() -> [ArrivalModel; 3] {
    [
        ArrivalModel::Open(ArrivalSpacing::Constant),
        ArrivalModel::Closed {
            clients: 6,
            think: Duration::from_millis(10),
        },
        ArrivalModel::Closed {
            clients: 6,
            think: Duration::ZERO,
        },
    ]
}

#[test]
fn unprocessed_calls_are_retried_once() {
    for arrivals in arrival_models() {
        let mut server = rejecting_after(20);
        let record = simulate(
            load(arrivals, 600.0, 3),
            NetworkConditions::faultless(1),
            &mut server,
        );
        assert_all_counted(&record);
        let retried = record.measures.counter(Count::CallsRetried);
        assert!(retried > 20, "{arrivals:?}: {retried}");
        assert_eq!(record.ok_calls(), record.due, "{arrivals:?}: {record:?}");
        assert_eq!(server.received, record.due + retried, "{arrivals:?}");

        let mut once = load(arrivals, 600.0, 3);
        once.retry = false;
        let mut server = rejecting_after(20);
        let record = simulate(once, NetworkConditions::faultless(1), &mut server);
        assert_all_counted(&record);
        assert_eq!(record.measures.counter(Count::CallsRetried), 0);
        assert!(record.errors() > 20, "{arrivals:?}: {record:?}");
        assert_eq!(server.received, record.due, "{arrivals:?}");
    }
}

#[test]
fn call_is_sent_at_most_twice() {
    for arrivals in arrival_models() {
        let mut server = rejecting_after(0);
        let record = simulate(
            load(arrivals, 100.0, 2),
            NetworkConditions::faultless(1),
            &mut server,
        );
        assert_all_counted(&record);
        let retried = record.measures.counter(Count::CallsRetried);
        assert_eq!(record.ok_calls(), 0, "{arrivals:?}");
        assert!(
            record.errors() > 0 && retried > 0,
            "{arrivals:?}: {record:?}"
        );
        assert!(server.received <= record.due + retried, "{arrivals:?}");
        assert!(retried <= record.due, "{arrivals:?}");
    }
}

/// Refuses each call that it receives before `busy_until`.
struct BusyServer {
    busy_until: Time,
    received: u64,
    refused: u64,
    then: EchoServer,
}

impl SimulatedServer for BusyServer {
    fn on_open(&mut self, _peer: SimulatedPeerId, _now: Time, actions: &mut Vec<ServerAction>) {
        actions.push(ServerAction::Send(GREETING.to_vec()));
    }
    fn on_receive(
        &mut self,
        peer: SimulatedPeerId,
        bytes: &[u8],
        now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        for word in bytes.as_chunks::<4>().0 {
            if [GREETING, CANCEL].contains(word) {
                continue;
            }
            self.received += 1;
            if now < self.busy_until {
                self.refused += 1;
                let answer = u32::from_be_bytes(*word) | REFUSED;
                actions.push(ServerAction::Send(answer.to_be_bytes().to_vec()));
            } else {
                self.then.on_receive(peer, word, now, actions);
            }
        }
    }
    fn on_timer(
        &mut self,
        peer: SimulatedPeerId,
        tag: u64,
        now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        self.then.on_timer(peer, tag, now, actions);
    }
}

/// Returns a server that refuses calls until `busy_ms` after the load's start.
fn busy_for(busy_ms: u64) -> BusyServer {
    BusyServer {
        busy_until: Time((5_000 + busy_ms) * MS),
        received: 0,
        refused: 0,
        then: echo(5),
    }
}

/// Returns a protocol whose refused calls are sent again.
fn with_retries(max_retries: u32) -> Ids {
    Ids {
        refusal_retries: RefusalRetries {
            max_retries,
            max_wait: Duration::from_secs(60),
        },
        ..Ids::default()
    }
}

/// Simulates two seconds against a server that refuses calls until `busy_ms` after the load's start.
fn simulate_busy(
    arrivals: ArrivalModel,
    busy_ms: u64,
    max_retries: u32,
) -> (StageRecord, BusyServer) {
    let mut server = busy_for(busy_ms);
    let network = SimulatedNetwork::new(&mut server, NetworkConditions::faultless(1));
    let load = load(arrivals, 200.0, 3);
    let worker = worker(load, network, 1, with_retries(max_retries));
    let (record, _) = run_worker(worker, None);
    assert_all_counted(&record);
    (record, server)
}

#[test]
fn refused_calls_are_sent_again_after_wait() {
    for arrivals in arrival_models() {
        let (record, server) = simulate_busy(arrivals, 150, 3);
        let count = |count| record.measures.counter(count);
        assert_eq!(record.ok_calls(), record.due, "{arrivals:?}: {record:?}");
        assert!(server.refused > 0, "{arrivals:?}");
        assert_eq!(count(Count::RefusalsRetried), server.refused);
        assert_eq!(server.received, record.due + server.refused, "{arrivals:?}");
        let calls = count(Count::CallsRefused);
        assert!((1..=server.refused).contains(&calls), "{calls}");
        // The response time includes the wait.
        let longest = record.response.histogram().unwrap().max();
        assert!(longest > REFUSAL_TIME.as_nanos() as u64, "{longest}");
    }
}

#[test]
fn refused_calls_fail_after_last_retry() {
    for arrivals in arrival_models() {
        let (record, server) = simulate_busy(arrivals, 60_000, 2);
        assert_eq!(record.ok_calls(), 0, "{arrivals:?}: {record:?}");
        assert_eq!(record.outcomes.get(Outcome::Unavailable), record.due);
        let retried = record.measures.counter(Count::RefusalsRetried);
        assert_eq!(retried, 2 * record.due, "{arrivals:?}: {record:?}");
        assert_eq!(server.received, record.due + retried, "{arrivals:?}");
    }
}

/// They have a connection, and wait for the server.
#[test]
fn refused_users_do_not_wait_for_connections() {
    let mut server = busy_for(150);
    let network = SimulatedNetwork::new(&mut server, NetworkConditions::faultless(1));
    let load = load(ArrivalModel::Open(ArrivalSpacing::Constant), 10.0, 1);
    let target = Target::new_tcp("ids://127.0.0.1:1", "127.0.0.1", 1);
    let users = UserScripts::new(SingleCall(with_retries(3)), &target, None, &load);
    let share = WorkerShare::new(Shard::WHOLE_RUN, Arc::new(load), 1);
    let mut worker = ScriptWorker::new(share, network, Arc::new(users));
    let mut control = new_control(None);
    control.start = Some(Time(5_000 * MS));
    worker.run(Time(5_000 * MS), &mut control).unwrap();
    drop(worker);
    let record = control.total.stage_mut(0).clone();
    assert_eq!((record.due, record.ok_calls()), (20, 20), "{record:?}");
    assert!(server.refused > 0);
    let retried = record.measures.counter(Count::RefusalsRetried);
    assert_eq!(retried, server.refused);
    let refused_us = retried * REFUSAL_TIME.as_micros() as u64;
    let waited_us = control.users_waited_us;
    assert!(waited_us < refused_us, "{waited_us} {refused_us}");
}

/// A wait that ends after the call's deadline would only make the failure later.
#[test]
fn refused_calls_fail_before_deadline_passes() {
    for arrivals in arrival_models() {
        let (record, _) = simulate_busy(arrivals, 60_000, 100);
        // Four waits of 100 ms fit into the deadline of 500 ms.
        assert_eq!(record.outcomes.get(Outcome::Unavailable), record.due);
        let retried = record.measures.counter(Count::RefusalsRetried);
        assert_eq!(retried, 4 * record.due, "{arrivals:?}: {record:?}");
        assert_eq!(record.late, 0, "{arrivals:?}");
    }
}

/// The interrupt ends them, not the server: they could have been sent again.
#[test]
fn refused_calls_are_cut_off_by_interrupt() {
    for arrivals in arrival_models() {
        let mut server = busy_for(60_000);
        let network = SimulatedNetwork::new(&mut server, NetworkConditions::faultless(1));
        let mut load = load(arrivals, 20.0, 3);
        load.stages[0].duration = Some(Duration::from_secs(10));
        load.deadline = Some(Duration::from_secs(60));
        let worker = worker(load, network, 1, with_retries(1_000));
        let (record, _) = run_worker(worker, Some(1));
        assert_all_counted(&record);
        assert_eq!(record.outcomes.get(Outcome::Unavailable), 0, "{record:?}");
        let interrupted = record.outcomes.get(Outcome::Interrupted);
        assert!(interrupted > 0, "{arrivals:?}: {record:?}");
    }
}

/// Rejects all calls on every third connection.
struct ThirdConnectionRejecter {
    opened: Vec<SimulatedPeerId>,
    received: u64,
    then: EchoServer,
}

impl SimulatedServer for ThirdConnectionRejecter {
    fn on_open(&mut self, peer: SimulatedPeerId, _now: Time, actions: &mut Vec<ServerAction>) {
        self.opened.push(peer);
        actions.push(ServerAction::Send(GREETING.to_vec()));
    }
    fn on_receive(
        &mut self,
        peer: SimulatedPeerId,
        bytes: &[u8],
        now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        for word in bytes.as_chunks::<4>().0 {
            if [GREETING, CANCEL].contains(word) {
                continue;
            }
            self.received += 1;
            let nth = self.opened.iter().position(|opened| *opened == peer);
            if nth.is_some_and(|nth| nth % 3 == 2) {
                actions.push(ServerAction::Send(UNPROCESSED.to_vec()))
            } else {
                self.then.on_receive(peer, word, now, actions)
            }
        }
    }
    fn on_timer(
        &mut self,
        peer: SimulatedPeerId,
        tag: u64,
        now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        self.then.on_timer(peer, tag, now, actions);
    }
}

#[test]
fn unprocessed_cold_calls_get_new_connection() {
    let one_by_one = ArrivalModel::Closed {
        clients: 1,
        think: Duration::ZERO,
    };
    for (arrivals, retry) in [
        (one_by_one, true),
        (ArrivalModel::Open(ArrivalSpacing::Constant), true),
        (one_by_one, false),
    ] {
        let mut load = load(arrivals, 20.0, 1);
        (load.reuse, load.retry) = (ConnectionReuse::Never, retry);
        let mut server = ThirdConnectionRejecter {
            opened: Vec::new(),
            received: 0,
            then: echo(5),
        };
        let record = simulate(load, NetworkConditions::faultless(1), &mut server);
        assert_all_counted(&record);
        let retried = record.measures.counter(Count::CallsRetried);
        assert_eq!(server.received, record.due + retried, "{arrivals:?}");
        if retry {
            assert!(retried > 5, "{arrivals:?}: {retried}");
            assert_eq!(record.ok_calls(), record.due, "{arrivals:?}: {record:?}");
        } else {
            assert_eq!(retried, 0, "{arrivals:?}");
            assert!(record.errors() > 5, "{arrivals:?}: {record:?}");
        }
    }
}

/// Exclusive connections are those of HTTP/1.1, for example.
#[test]
fn exclusive_connections_are_reused_lifo() {
    for (exclusive, used) in [(true, 1), (false, 5)] {
        let mut server = counting();
        let protocol = Ids {
            exclusive,
            ..Ids::default()
        };
        let network = SimulatedNetwork::new(&mut server, NetworkConditions::faultless(1));
        let load = load(ArrivalModel::Open(ArrivalSpacing::Constant), 20.0, 5);
        let (record, _) = run_worker(worker(load, network, 1, protocol), None);
        assert_all_counted(&record);
        assert_eq!(record.ok_calls(), record.due);
        let carrying = server.calls.iter().filter(|calls| **calls > 0).count();
        assert_eq!(carrying, used, "{:?}", server.calls);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn retried_calls_are_counted_once(
        seed in any::<u64>(),
        connections in 1u32..4,
        mode in 0usize..3,
        limit in 0u64..30,
        (reset, stall, refuse) in (0u32..20_000, 0u32..20_000, 0u32..400_000),
        (stop, is_cold) in any::<(bool, bool)>(),
    ) {
        let weather = NetworkConditions {
            reset_ppm: reset,
            stall_ppm: stall,
            stall_ms: 1..=800,
            refuse_ppm: refuse,
            ..NetworkConditions::faultless(seed)
        };
        let mut load = load(arrival_models()[mode], 300.0, connections);
        if is_cold {
            load.reuse = ConnectionReuse::Never;
        }
        let (record, _) = simulate_until(load, weather, rejecting_after(limit), Vec::new(), stop.then_some(0));
        assert_all_counted(&record);
        prop_assert!(record.measures.counter(Count::CallsRetried) <= record.due);
    }
}
