//! The worker loop over the simulated network, with the smallest protocol there is:
//! a request is a call's id in four bytes, and so is its answer; a ping is answered by a pong.
//!
//! What holds for every seed: each call that was due is counted exactly once, whatever
//! the network does; and the same seed gives the same record.
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use plimsoll_engine::network::simulated::{Action, Peer, Server, SimulatedNetwork, Weather};
use plimsoll_engine::worker::{Control, Share, StopLevel, Worker, WorkerInterval};
use plimsoll_engine::{CallId, Done, Driver, Event, Protocol, ProtocolError};
use plimsoll_model::objective::{Measured, Part, Standing, Verdict, judge};
use plimsoll_model::plan::{
    Arrivals, Load, Metric, Objective, Reuse, Spacing, Stage, Statistic, Timed,
};
use plimsoll_model::record::{AddressCounts, Interval, StageRecord};
use plimsoll_model::schedule::Schedule;
use plimsoll_model::{Outcome, Time};
use proptest::prelude::*;

#[derive(Default)]
struct Ids {
    waited: Waited,
    numbers: Numbers,
}

/// The numbers of the calls that were started, in order.
type Numbers = Arc<Mutex<Vec<u64>>>;

/// How long calls had waited that were started as such, in order.
type Waited = Arc<Mutex<Vec<Duration>>>;

struct IdsDriver {
    waited: Waited,
    numbers: Numbers,
    ready: bool,
    partial: Vec<u8>,
    in_flight: Vec<(CallId, bool)>,
}

const GREETING: [u8; 4] = *b"helo";
const PING: [u8; 4] = *b"ping";
const PONG: [u8; 4] = *b"pong";

impl Protocol for Ids {
    type Driver = IdsDriver;
    fn alpn(&self) -> Option<&'static [u8]> {
        None
    }
    fn driver(&self) -> IdsDriver {
        IdsDriver {
            waited: Arc::clone(&self.waited),
            numbers: Arc::clone(&self.numbers),
            ready: false,
            partial: Vec::new(),
            in_flight: Vec::new(),
        }
    }
}

impl Driver for IdsDriver {
    fn open(&mut self, _now: Time, out: &mut Vec<u8>) {
        out.extend_from_slice(&GREETING);
    }
    fn is_ready(&self) -> bool {
        self.ready
    }
    fn capacity(&self) -> usize {
        if self.ready {
            8usize.saturating_sub(self.in_flight.len())
        } else {
            0
        }
    }
    fn is_draining(&self) -> bool {
        false
    }
    fn start(&mut self, call: CallId, number: u64, _now: Time, out: &mut Vec<u8>) {
        assert!(self.capacity() > 0, "started without capacity");
        self.numbers.lock().unwrap().push(number);
        self.in_flight.push((call, true));
        out.extend_from_slice(&call.0.to_be_bytes());
    }
    fn start_waited(
        &mut self,
        call: CallId,
        number: u64,
        waited: Duration,
        now: Time,
        out: &mut Vec<u8>,
    ) {
        self.waited.lock().unwrap().push(waited);
        self.start(call, number, now, out);
    }
    fn cancel(&mut self, call: CallId, _now: Time, _out: &mut Vec<u8>) {
        let found = self
            .in_flight
            .iter_mut()
            .find(|(id, live)| *id == call && *live);
        found.expect("cancelled call is in flight").1 = false;
    }
    fn receive(
        &mut self,
        bytes: &[u8],
        now: Time,
        out: &mut Vec<u8>,
        events: &mut Vec<Event>,
    ) -> Result<(), ProtocolError> {
        let mut gathered = std::mem::take(&mut self.partial);
        gathered.extend_from_slice(bytes);
        let (words, rest) = gathered.as_chunks::<4>();
        self.partial = rest.to_vec();
        for &word in words {
            if word == PING {
                out.extend_from_slice(&PONG);
                continue;
            }
            if word == GREETING {
                self.ready = true;
                continue;
            }
            let call = CallId(u32::from_be_bytes(word));
            let at = self.in_flight.iter().position(|(id, _)| *id == call);
            let Some(at) = at else {
                return Err(ProtocolError {
                    outcome: Outcome::ProtocolError,
                    detail: "answer to nothing".to_owned(),
                });
            };
            match self.in_flight.remove(at) {
                (_, false) => events.push(Event::Late),
                (_, true) => events.push(Event::Done(Done {
                    call,
                    outcome: Outcome::Ok,
                    first_byte: now,
                    bytes_sent: 4,
                    bytes_received: 4,
                })),
            }
        }
        Ok(())
    }
    fn receive_end(&mut self, _now: Time, _events: &mut Vec<Event>) -> Result<(), ProtocolError> {
        Ok(())
    }
    fn abort(&mut self, outcome: Outcome, _now: Time, events: &mut Vec<Event>) {
        for (call, live) in self.in_flight.drain(..) {
            if live {
                events.push(Event::Done(Done {
                    call,
                    outcome,
                    first_byte: Time::NEVER,
                    bytes_sent: 4,
                    bytes_received: 0,
                }));
            }
        }
    }
    fn finish(&mut self, _out: &mut Vec<u8>) {}
}

/// Echoes after a delay; stands still for a while once, if asked.
struct Echo {
    delay: Duration,
    freeze: Option<(Time, Time)>,
    held: Vec<Vec<u8>>,
}

impl Server for Echo {
    fn opened(&mut self, _peer: Peer, _now: Time, _actions: &mut Vec<Action>) {}
    fn receive(&mut self, _peer: Peer, bytes: &[u8], now: Time, actions: &mut Vec<Action>) {
        let mut after = self.delay;
        if let Some((from, to)) = self.freeze {
            let answer = now + after;
            if answer >= from && answer < to {
                after += to.duration_since(answer);
            }
        }
        actions.push(Action::Timer {
            after,
            tag: self.held.len() as u64,
        });
        self.held.push(bytes.to_vec());
    }
    fn timer(&mut self, _peer: Peer, tag: u64, _now: Time, actions: &mut Vec<Action>) {
        actions.push(Action::Send(std::mem::take(&mut self.held[tag as usize])));
    }
}

/// Sends pings without end to see how many pongs the client keeps for it, and reads nothing
/// for a while.
struct Flood {
    pings: usize,
    reads_after: Option<Duration>,
    /// Pings that the client has read, while the server read nothing and in all.
    taken: usize,
    taken_unread: usize,
    reads: bool,
    pongs: usize,
    rest: Vec<u8>,
}

impl Server for Flood {
    fn opened(&mut self, _peer: Peer, _now: Time, actions: &mut Vec<Action>) {
        let mut bytes = GREETING.to_vec();
        bytes.extend(PING.repeat(self.pings));
        actions.push(Action::StopReading);
        actions.push(Action::Send(bytes));
        if let Some(after) = self.reads_after {
            actions.push(Action::Timer { after, tag: 0 });
        }
    }
    fn receive(&mut self, _peer: Peer, bytes: &[u8], _now: Time, actions: &mut Vec<Action>) {
        self.rest.extend_from_slice(bytes);
        let gathered = std::mem::take(&mut self.rest);
        let (words, rest) = gathered.as_chunks::<4>();
        self.rest = rest.to_vec();
        for word in words {
            match *word {
                PONG => self.pongs += 1,
                GREETING => {}
                call => actions.push(Action::Send(call.to_vec())),
            }
        }
    }
    fn timer(&mut self, _peer: Peer, _tag: u64, _now: Time, actions: &mut Vec<Action>) {
        self.reads = true;
        actions.push(Action::Read);
    }
    fn taken(&mut self, _peer: Peer, bytes: usize) {
        self.taken += bytes;
        if !self.reads {
            self.taken_unread = self.taken;
        }
    }
}

/// How a server ends a connection that it took.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Ending {
    AtOnce,
    AnsweringNothing,
    WithTheFirstCall,
    AfterTheFirstAnswer,
}

/// Takes connections, greets, and ends them.
struct Ends {
    how: Ending,
    opened: u64,
}

impl Server for Ends {
    fn opened(&mut self, _peer: Peer, _now: Time, actions: &mut Vec<Action>) {
        self.opened += 1;
        actions.push(Action::Send(GREETING.to_vec()));
        match self.how {
            Ending::AtOnce => actions.push(Action::Close),
            // Once the connection is up.
            Ending::AnsweringNothing => actions.push(Action::Timer {
                after: Duration::from_millis(1),
                tag: 0,
            }),
            Ending::WithTheFirstCall | Ending::AfterTheFirstAnswer => {}
        }
    }
    fn receive(&mut self, _peer: Peer, bytes: &[u8], _now: Time, actions: &mut Vec<Action>) {
        let call = bytes.strip_prefix(&GREETING).unwrap_or(bytes);
        if call.is_empty() {
            return;
        }
        match self.how {
            Ending::WithTheFirstCall => actions.push(Action::Close),
            Ending::AfterTheFirstAnswer => {
                actions.push(Action::Send(call.to_vec()));
                actions.push(Action::Close);
            }
            Ending::AtOnce | Ending::AnsweringNothing => {}
        }
    }
    fn timer(&mut self, _peer: Peer, _tag: u64, _now: Time, actions: &mut Vec<Action>) {
        actions.push(Action::Send(vec![0, 0, 9, 9]));
    }
}

struct Alone {
    start: Option<Time>,
    total: Interval,
    lasts: usize,
    /// The run is stopped gracefully with the end of this interval.
    stop_after: Option<u32>,
    level: StopLevel,
    /// When the last interval ended, from the load's start. Nanoseconds.
    ended_ns: u64,
}

impl Control for Alone {
    fn stop_level(&self) -> StopLevel {
        self.level
    }
    fn start(&self) -> Option<Time> {
        self.start
    }
    fn connections(&self, _change: i64) {}
    fn interval(&mut self, interval: WorkerInterval) -> Option<Interval> {
        self.total.merge(&interval.recorded);
        self.lasts += usize::from(interval.last);
        self.ended_ns = interval.end_ns;
        if self.stop_after.is_some_and(|after| interval.index >= after) {
            self.level = StopLevel::Graceful;
        }
        let mut spare = interval.recorded;
        spare.clear();
        Some(spare)
    }
}

fn load(arrivals: Arrivals, rate: f64, connections: u32) -> Load {
    Load {
        arrivals,
        stages: vec![Stage {
            name: "steady".to_owned(),
            warmup: false,
            duration: Some(Duration::from_secs(2)),
            rate_from: rate,
            rate_to: rate,
        }],
        connections,
        reuse: Reuse::Always,
        calls: None,
        deadline: Some(Duration::from_millis(500)),
        connect_timeout: Duration::from_secs(1),
        connect_rate: None,
        connection_lifetime: None,
        calls_per_connection: None,
        resolve_interval: Duration::from_secs(30),
        drain: Duration::from_secs(1),
        processes: None,
        workers: None,
        precision: None,
        spin: Duration::ZERO,
        tick: Duration::ZERO,
        read_buffer: 128 << 10,
        source_addresses: Vec::new(),
        turns: None,
        count_bytes: false,
        last_core: false,
    }
}

fn simulate(load: Load, weather: Weather, server: impl Server) -> StageRecord {
    simulate_stopped(load, weather, server, Vec::new())
}

/// The worker is stopped at these moments for so long.
fn simulate_stopped(
    load: Load,
    weather: Weather,
    server: impl Server,
    pauses: Vec<(Time, Duration)>,
) -> StageRecord {
    carry_out(load, weather, server, pauses, None).0
}

/// The record, and how long the run lasted. `stop_after`: the interval with whose end it is
/// interrupted.
fn carry_out(
    load: Load,
    weather: Weather,
    server: impl Server,
    pauses: Vec<(Time, Duration)>,
    stop_after: Option<u32>,
) -> (StageRecord, Duration) {
    let network = SimulatedNetwork::new(server, weather).stopping_the_worker(pauses);
    carry_out_on(load, network, stop_after)
}

fn simulate_on(load: Load, network: SimulatedNetwork<Echo>) -> StageRecord {
    carry_out_on(load, network, None).0
}

fn carry_out_on(
    load: Load,
    network: SimulatedNetwork<impl Server>,
    stop_after: Option<u32>,
) -> (StageRecord, Duration) {
    run_alone(worker(load, network, 1, Ids::default()), stop_after)
}

fn run_alone(
    mut worker: Worker<Ids, SimulatedNetwork<impl Server>>,
    stop_after: Option<u32>,
) -> (StageRecord, Duration) {
    let mut control = alone(stop_after);
    worker.establish(&mut control).unwrap();
    let start = Time(5_000_000_000);
    control.start = Some(start);
    worker.run(start, &mut control).unwrap();
    assert_eq!(control.lasts, 1);
    let lasted = Duration::from_nanos(control.ended_ns);
    (control.total.stage_mut(0).clone(), lasted)
}

/// The first of so many workers.
fn worker<S: Server>(
    load: Load,
    network: SimulatedNetwork<S>,
    of: u32,
    protocol: Ids,
) -> Worker<Ids, SimulatedNetwork<S>> {
    let schedule = Schedule::new(&load, 1);
    let clients = match load.arrivals {
        Arrivals::Closed { clients, .. } => clients,
        Arrivals::Open(_) => 0,
    };
    let share = Share {
        index: 0,
        of,
        connections: load.connections,
        clients,
        calls: load.calls,
        load: Arc::new(load),
        schedule,
        keep_requests: false,
        trace: false,
    };
    Worker::new(share, network, Arc::new(protocol), None)
}

fn alone(stop_after: Option<u32>) -> Alone {
    Alone {
        start: None,
        total: Interval::default(),
        lasts: 0,
        stop_after,
        level: StopLevel::Run,
        ended_ns: 0,
    }
}

fn echo(delay_ms: u64) -> Echo {
    Echo {
        delay: Duration::from_millis(delay_ms),
        freeze: None,
        held: Vec::new(),
    }
}

fn accounted(record: &StageRecord) {
    assert_eq!(
        record.due,
        record.ended() + record.not_started,
        "every call that was due is counted once: {record:?}"
    );
}

fn micros(times: &plimsoll_model::record::Times, quantile: f64) -> f64 {
    times.histogram().unwrap().value_at_quantile(quantile) as f64 / 1e3
}

/// Three addresses of one name.
fn three() -> [SocketAddr; 3] {
    [1, 2, 3].map(|last| ([10, 0, 0, last], 1).into())
}

fn at_three(seed: u64) -> SimulatedNetwork<Echo> {
    SimulatedNetwork::new(echo(1), Weather::calm(seed)).at(&three())
}

fn counts(record: &StageRecord, address: usize) -> AddressCounts {
    let name = three()[address].to_string();
    record.addresses.get(&name).copied().unwrap_or_default()
}

#[test]
fn connections_are_spread_over_the_addresses_of_a_name_and_calls_counted_at_each() {
    let load = load(Arrivals::Open(Spacing::Constant), 600.0, 6);
    let record = simulate_on(load, at_three(1));
    accounted(&record);
    for address in 0..3 {
        let counts = counts(&record, address);
        assert_eq!((counts.connections, counts.calls), (2, 400), "{address}");
        assert_eq!((counts.errors, counts.connect_failures), (0, 0));
    }
}

#[test]
fn an_address_that_refuses_is_left_out_and_costs_no_call() {
    let load = load(Arrivals::Open(Spacing::Constant), 600.0, 6);
    let record = simulate_on(load, at_three(1).refusing_at(three()[1]));
    accounted(&record);
    assert_eq!((record.ok(), record.errors()), (1200, 0));
    assert_eq!(
        record.connect_failures.total(),
        0,
        "each connection came up"
    );
    // All six began before the first refusal was known.
    assert_eq!(counts(&record, 1).connect_failures, 2);
    assert_eq!(counts(&record, 1).connections, 0);
    assert_eq!(
        counts(&record, 0).connections + counts(&record, 2).connections,
        6
    );
}

#[test]
fn an_address_that_is_silent_is_raced_after_a_quarter_of_a_second() {
    let load = load(Arrivals::Open(Spacing::Constant), 600.0, 3);
    let record = simulate_on(load, at_three(1).silent_at(three()[0]));
    accounted(&record);
    assert_eq!((record.ok(), record.errors()), (1200, 0));
    let connect = record.phases.as_ref().unwrap().connect.histogram().unwrap();
    assert!(
        (250_000_000..251_000_000).contains(&connect.max()),
        "{}",
        connect.max()
    );
    assert!(connect.min() < 1_000_000);
    assert_eq!(counts(&record, 0).connect_failures, 1);
    assert_eq!(
        counts(&record, 1).connections,
        2,
        "the next in turn took its place"
    );
}

#[test]
fn cold_calls_take_addresses_in_turn_and_go_round_one_that_is_silent() {
    let mut load = load(Arrivals::Open(Spacing::Constant), 300.0, 0);
    load.reuse = Reuse::Never;
    let record = simulate_on(load.clone(), at_three(1));
    accounted(&record);
    for address in 0..3 {
        let counts = counts(&record, address);
        assert_eq!((counts.connections, counts.calls), (200, 200));
    }
    let record = simulate_on(load, at_three(1).silent_at(three()[2]));
    accounted(&record);
    assert_eq!((record.ok(), record.errors()), (600, 0));
    let silent = counts(&record, 2);
    assert_eq!(silent.connections, 0);
    // Those that began within the first quarter of a second, and one or more a second later.
    assert!((20..60).contains(&silent.connect_failures), "{silent:?}");
}

/// RFC 8767: what a name resolved to last serves while it can't be resolved; but not a client that has
/// just been started, as every call of a cold load is.
#[test]
fn a_name_that_is_no_longer_resolved_keeps_its_addresses() {
    let mut load = load(Arrivals::Open(Spacing::Constant), 100.0, 2);
    load.connection_lifetime = Some(Duration::from_millis(200));
    load.resolve_interval = Duration::from_millis(300);
    let network = || at_three(5).resolving_until(Time(6_000_000_000));
    let record = simulate_on(load.clone(), network());
    accounted(&record);
    assert_eq!((record.due, record.ok()), (200, 200), "{record:?}");
    let made: u64 = (0..3).map(|at| counts(&record, at).connections).sum();
    assert!(made > 10, "{made}");
    load.reuse = Reuse::Never;
    load.connection_lifetime = None;
    let record = simulate_on(load, network());
    accounted(&record);
    let unresolved = record.outcomes.of(Outcome::ResolveFailed);
    assert!(unresolved >= 90 && record.ok() >= 90, "{record:?}");
}

#[test]
fn a_name_whose_addresses_are_all_silent_is_a_connect_timeout() {
    let load = load(Arrivals::Open(Spacing::Constant), 100.0, 1);
    let network = three().iter().fold(at_three(1), |n, a| n.silent_at(*a));
    let record = simulate_on(load, network);
    accounted(&record);
    assert_eq!(record.ok(), 0);
    assert_eq!(
        record.connect_failures.total(),
        record.connect_failures.of(Outcome::ConnectTimeout)
    );
    for address in 0..3 {
        assert!(counts(&record, address).connect_failures > 0, "{address}");
    }
}

#[test]
fn open_loop_on_a_calm_network_is_exact() {
    let record = simulate(
        load(Arrivals::Open(Spacing::Constant), 1000.0, 1),
        Weather::calm(1),
        echo(5),
    );
    accounted(&record);
    assert_eq!((record.due, record.ok()), (2000, 2000));
    // 5 ms of delay and 50 µs each way.
    for quantile in [0.01, 0.5, 0.999] {
        let response = micros(&record.response, quantile);
        assert!((5_100.0..5_150.0).contains(&response), "{response}");
    }
    assert!(micros(&record.lag, 1.0) < 1.0);
}

#[test]
fn a_stall_shows_in_response_time_and_hides_from_service_time() {
    // The truth by arithmetic: 1,000 calls a second, one freeze of 400 ms from second 5.5 on,
    // at most 8 calls in flight. Calls due in the freeze wait for up to 400 ms; only the
    // 8 that were in flight see it in their service time.
    let freeze = Some((Time(5_500_000_000), Time(5_900_000_000)));
    let server = Echo {
        delay: Duration::from_millis(1),
        freeze,
        held: Vec::new(),
    };
    let mut load = load(Arrivals::Open(Spacing::Constant), 1000.0, 1);
    load.deadline = None;
    let record = simulate(load, Weather::calm(1), server);
    accounted(&record);
    let (response, service) = (micros(&record.response, 0.9), micros(&record.service, 0.9));
    // 2,000 calls: the slowest tenth are 200 of the 400 (and the few after) in the freeze.
    assert!(
        (190_000.0..260_000.0).contains(&response),
        "response p90 {response}"
    );
    assert!(service < 1_500.0, "service p90 {service}");
    // The waiting is the connection's, not the generator's.
    assert!(micros(&record.lag, 0.99) > 300_000.0);
    assert!(micros(&record.pacing, 0.99) < 10.0);
}

/// One call a millisecond, and a tick of 7 ms: those due at 1 to 7 leave at 7, and so on; the last five
/// (1,995 to 1,999 ms) leave at the load's end, which comes before the next tick.
#[test]
fn calls_that_are_due_within_a_tick_leave_together_and_count_from_when_each_was_due() {
    let mut load = load(Arrivals::Open(Spacing::Constant), 1000.0, 1);
    load.tick = Duration::from_millis(7);
    let record = simulate(load, Weather::calm(1), echo(1));
    accounted(&record);
    assert_eq!((record.ok(), record.errors()), (2000, 0));
    let mut waits = [0_u64; 8];
    for bucket in record.pacing.histogram().unwrap().iter_recorded() {
        let waited = bucket.value_iterated_to() as f64 / 1e6;
        assert!(
            (waited - waited.round()).abs() < 0.05,
            "all leave when the tick is over: {waited} ms"
        );
        waits[waited.round() as usize] += bucket.count_at_value();
    }
    // 0, 7, …, 1995 are ticks themselves, of 286 bundles; the last one goes without its last two.
    assert_eq!(waits, [286, 286, 286, 286, 286, 285, 285, 0]);
    // Service times hold nothing of it, response times all.
    assert!(micros(&record.service, 0.99) < 1_200.0);
    assert!((7_000.0..7_300.0).contains(&micros(&record.response, 0.99)));
}

#[test]
fn closed_loop_keeps_every_client_busy_and_stops_at_its_calls() {
    let mut load = load(
        Arrivals::Closed {
            clients: 20,
            think: Duration::ZERO,
        },
        0.0,
        4,
    );
    load.calls = Some(500);
    let record = simulate(load, Weather::calm(1), echo(2));
    accounted(&record);
    assert_eq!((record.due, record.ok()), (500, 500));
}

#[test]
fn a_closed_loops_calls_are_numbered_over_all_workers() {
    let clients = Arrivals::Closed {
        clients: 1,
        think: Duration::ZERO,
    };
    let mut load = load(clients, 0.0, 1);
    load.calls = Some(10);
    let protocol = Ids::default();
    let seen = Arc::clone(&protocol.numbers);
    let network = SimulatedNetwork::new(echo(1), Weather::calm(1));
    // The second worker's are the odd ones.
    run_alone(worker(load, network, 2, protocol), None);
    assert_eq!(*seen.lock().unwrap(), [0, 2, 4, 6, 8, 10, 12, 14, 16, 18]);
}

#[test]
fn think_time_bounds_the_rate_of_a_closed_loop() {
    let load = load(
        Arrivals::Closed {
            clients: 10,
            think: Duration::from_millis(10),
        },
        0.0,
        2,
    );
    let record = simulate(load, Weather::calm(1), echo(10));
    accounted(&record);
    // A cycle takes 10 ms to answer, 10 ms to think and 0.1 ms on the way: 2 s / 20.1 ms × 10.
    assert!((980..=1000).contains(&record.ok()), "{}", record.ok());
}

#[test]
fn a_new_connection_for_every_call_has_its_phases() {
    let mut load = load(Arrivals::Open(Spacing::Constant), 100.0, 1);
    load.reuse = Reuse::Never;
    let record = simulate(load, Weather::calm(1), echo(1));
    accounted(&record);
    assert_eq!(record.ok(), 200);
    let phases = record.phases.as_ref().unwrap();
    // One round trip to connect; one and the server's delay for the greeting.
    assert!((100.0..110.0).contains(&micros(&phases.connect, 0.5)));
    assert!((1_100.0..1_110.0).contains(&micros(&phases.ready, 0.5)));
    assert!((2_200.0..2_310.0).contains(&micros(&record.response, 0.5)));
}

#[test]
fn a_target_that_refuses_fails_calls_at_once_and_is_tried_again() {
    let mut weather = Weather::calm(1);
    weather.refuse = 1_000_000;
    let record = simulate(
        load(Arrivals::Open(Spacing::Constant), 1000.0, 2),
        weather,
        echo(1),
    );
    accounted(&record);
    assert_eq!(record.outcomes.of(Outcome::ConnectRefused), 2000);
    assert!(record.connect_failures.of(Outcome::ConnectRefused) > 4);
}

/// An outage after one that is over is another one: no call of it waits for the next connection.
#[test]
fn a_target_that_refuses_again_and_again_fails_calls_at_once_each_time() {
    let mut refused = 0;
    for seed in 1..=10 {
        let mut weather = Weather::calm(seed);
        (weather.reset, weather.refuse) = (5_000, 600_000);
        let load = load(Arrivals::Open(Spacing::Constant), 1000.0, 1);
        let record = simulate(load, weather, echo(1));
        accounted(&record);
        refused += record.outcomes.of(Outcome::ConnectRefused);
        let slowest = record.response.histogram().unwrap().max();
        assert!(
            slowest < 10 * MS,
            "seed {seed}: a call waited {slowest} ns for a connection"
        );
    }
    assert!(
        refused > 2_000,
        "{refused} in outages, which are a quarter of the time"
    );
}

#[test]
fn deadlines_end_calls_and_late_answers_are_counted_as_late() {
    let record = simulate(
        load(Arrivals::Open(Spacing::Constant), 20.0, 4),
        Weather::calm(1),
        echo(700),
    );
    accounted(&record);
    assert_eq!(record.outcomes.of(Outcome::DeadlineExceeded), record.due);
    assert!(record.late > 0 && record.late <= record.due);
}

const MS: u64 = 1_000_000;

/// One connection that takes eight calls at once, and a server that answers after 100 ms: 80 a
/// second of the 200 that are due.
fn overloaded(deadline_ms: u64) -> Load {
    let mut load = load(Arrivals::Open(Spacing::Constant), 200.0, 1);
    load.deadline = Some(Duration::from_millis(deadline_ms));
    load.drain = Duration::from_millis(deadline_ms);
    load
}

#[test]
fn a_deadline_counts_from_when_the_call_was_due() {
    let record = simulate(overloaded(200), Weather::calm(1), echo(100));
    accounted(&record);
    assert_eq!(record.due, 400);
    let slowest = record.response.histogram().unwrap().max();
    assert!(slowest < 201 * MS, "ok after {slowest} ns");
    let expired = record.outcomes.of(Outcome::DeadlineExceeded);
    assert_eq!(record.ok() + expired, 400, "{record:?}");
    assert!(record.waited_for_stream > 150, "{record:?}");
    assert_eq!(record.waited_for_connection, 0);
    // Most of them were never sent, and none of them for the generator.
    assert!(record.expired_unsent > 150, "{}", record.expired_unsent);
    assert!(record.expired_unsent <= expired && record.not_started == 0);
    assert_eq!(record.failed.len(), expired);
}

#[test]
fn a_call_that_waited_is_started_with_how_long() {
    let mut load = overloaded(200);
    (load.deadline, load.drain) = (None, Duration::from_secs(60));
    for (delay_ms, waits) in [(100, true), (1, false)] {
        let protocol = Ids::default();
        let seen = Arc::clone(&protocol.waited);
        let network = SimulatedNetwork::new(echo(delay_ms), Weather::calm(1));
        let (record, _) = run_alone(worker(load.clone(), network, 1, protocol), None);
        assert_eq!(record.ok(), 400);
        let lag = record.lag.histogram().unwrap();
        let seen = seen.lock().unwrap();
        assert_eq!(seen.len() as u64, lag.count_between(MS, lag.max()));
        assert_eq!(seen.len() > 300, waits, "{}", seen.len());
        let longest = seen.iter().max().map_or(0, Duration::as_millis);
        // The last one is due after 2 s, and 392 are answered before it is sent.
        let expected = if waits { 2_800..3_000 } else { 0..1 };
        assert!(expected.contains(&longest), "{longest} ms");
    }
}

#[test]
fn a_closed_loops_deadline_counts_from_when_the_client_was_free() {
    let clients = Arrivals::Closed {
        clients: 24,
        think: Duration::ZERO,
    };
    let mut load = load(clients, 0.0, 1);
    load.deadline = Some(Duration::from_millis(250));
    let record = simulate(load, Weather::calm(1), echo(100));
    accounted(&record);
    // Eight at a time: who comes third waits for 200 ms and is answered after 300.
    let slowest = record.response.histogram().unwrap().max();
    assert!(slowest < 251 * MS, "ok after {slowest} ns");
    let expired = record.outcomes.of(Outcome::DeadlineExceeded);
    assert!(expired > 20 && record.ok() >= 16, "{record:?}");
    assert!(record.lag.histogram().unwrap().max() > 90 * MS);
}

#[test]
fn a_call_whose_own_connection_is_late_is_not_sent_after_its_deadline() {
    let mut weather = Weather::calm(1);
    weather.ignore = 500_000;
    let mut load = load(Arrivals::Open(Spacing::Constant), 100.0, 1);
    load.reuse = Reuse::Never;
    load.deadline = Some(Duration::from_millis(300));
    let record = simulate(load, weather, echo(1));
    accounted(&record);
    let expired = record.outcomes.of(Outcome::DeadlineExceeded);
    assert!(expired > 50 && record.ok() > 50, "{record:?}");
    assert_eq!(record.expired_unsent, expired);
    assert_eq!(record.outcomes.of(Outcome::ConnectTimeout), 0);
}

#[test]
fn calls_that_waited_for_the_generator_are_given_up_and_nobodys_failure() {
    let mut load = load(Arrivals::Open(Spacing::Constant), 1_000.0, 4);
    load.deadline = Some(Duration::from_millis(200));
    let pause = (Time(6_000_000_000), Duration::from_millis(500));
    let record = simulate_stopped(load, Weather::calm(1), echo(5), vec![pause]);
    accounted(&record);
    // What was due in the last 200 ms found eight streams.
    assert!(
        (150..=220).contains(&record.waited_for_stream),
        "{record:?}"
    );
    // Due in the first 300 of 500 ms.
    assert!((299..=302).contains(&record.not_started), "{record:?}");
    assert_eq!(record.expired_unsent, 0);
    assert!(record.cut_off.is_empty());
}

/// Greets at once, and takes its time with calls.
struct Slow(Echo);

impl Server for Slow {
    fn opened(&mut self, _peer: Peer, _now: Time, _actions: &mut Vec<Action>) {}
    fn receive(&mut self, peer: Peer, bytes: &[u8], now: Time, actions: &mut Vec<Action>) {
        match bytes == GREETING {
            true => actions.push(Action::Send(bytes.to_vec())),
            false => self.0.receive(peer, bytes, now, actions),
        }
    }
    fn timer(&mut self, peer: Peer, tag: u64, now: Time, actions: &mut Vec<Action>) {
        self.0.timer(peer, tag, now, actions);
    }
}

/// What is in flight when a run is interrupted has two seconds to end, and what waits is given up.
#[test]
fn an_interrupt_lets_calls_in_flight_end() {
    let mut load = load(Arrivals::Open(Spacing::Constant), 20.0, 1);
    load.stages[0].duration = Some(Duration::from_secs(60));
    load.deadline = None;
    load.drain = Duration::from_secs(30);
    let stopped = |server| carry_out(load.clone(), Weather::calm(1), server, Vec::new(), Some(1));
    // Eight at a time, each for 1.5 s: those in flight at the interrupt, at 2 s, end by 3.5 s.
    let (record, lasted) = stopped(Slow(echo(1_500)));
    accounted(&record);
    assert_eq!(record.outcomes.of(Outcome::Interrupted), 0, "{record:?}");
    assert!(record.ok() >= 16 && record.not_started > 10, "{record:?}");
    assert_eq!(record.cut_off.len(), record.not_started);
    assert!(lasted < Duration::from_millis(3_600), "{lasted:?}");
    // Those that need longer are cut off after the grace, by us.
    let (record, lasted) = stopped(Slow(echo(10_000)));
    accounted(&record);
    assert_eq!(record.outcomes.of(Outcome::Interrupted), 8, "{record:?}");
    assert_eq!(record.given_up(), record.due);
    assert!((3_990..4_300).contains(&lasted.as_millis()), "{lasted:?}");
}

/// The drain time is for calls in flight: without any the run is over.
#[test]
fn a_run_is_over_when_its_last_call_is() {
    let mut load = load(Arrivals::Open(Spacing::Constant), 100.0, 1);
    load.drain = Duration::from_secs(30);
    let (record, lasted) = carry_out(load.clone(), Weather::calm(1), echo(20), Vec::new(), None);
    accounted(&record);
    assert_eq!(record.ok(), 200);
    assert!(lasted < Duration::from_millis(2_150), "{lasted:?}");
    // With one that never ends it waits, and then cuts it off.
    (load.deadline, load.drain) = (None, Duration::from_secs(3));
    let (record, lasted) = carry_out(load, Weather::calm(1), Slow(echo(60_000)), Vec::new(), None);
    accounted(&record);
    assert_eq!(record.outcomes.of(Outcome::CutOff), 8, "{record:?}");
    assert_eq!(record.cut_off.len(), 200);
    assert!((4_990..5_200).contains(&lasted.as_millis()), "{lasted:?}");
}

/// A server that is there when the load begins and gone a second later.
struct Mortal(Echo);

impl Server for Mortal {
    fn opened(&mut self, peer: Peer, now: Time, actions: &mut Vec<Action>) {
        if now >= Time(6_000_000_000) {
            return actions.push(Action::Reset);
        }
        let after = Time(6_000_000_000).duration_since(now);
        let tag = u64::MAX;
        actions.push(Action::Timer { after, tag });
        self.0.opened(peer, now, actions);
    }
    fn receive(&mut self, peer: Peer, bytes: &[u8], now: Time, actions: &mut Vec<Action>) {
        self.0.receive(peer, bytes, now, actions);
    }
    fn timer(&mut self, peer: Peer, tag: u64, now: Time, actions: &mut Vec<Action>) {
        match tag {
            u64::MAX => actions.push(Action::Reset),
            tag => self.0.timer(peer, tag, now, actions),
        }
    }
}

#[test]
fn clients_whose_connection_does_not_come_up_again_have_failed_calls() {
    let clients = Arrivals::Closed {
        clients: 6,
        think: Duration::ZERO,
    };
    let load = load(clients, 0.0, 2);
    let record = simulate_stopped(load, Weather::calm(1), Mortal(echo(10)), Vec::new());
    accounted(&record);
    // Those in flight, and again whenever a connection does not come up: for a second with
    // pauses that grow from 10 ms to a second, some eight times for each client.
    let failed = record.outcomes.of(Outcome::Reset);
    assert!((6 * 5..6 * 16).contains(&failed), "{record:?}");
    assert!(record.connect_failures.of(Outcome::Reset) >= 10);
}

/// Resets the first connections that it takes, and echoes on the others.
struct Reluctant {
    resets: usize,
    opened: Vec<Time>,
    then: Echo,
}

fn reluctant(resets: usize) -> Reluctant {
    Reluctant {
        resets,
        opened: Vec::new(),
        then: echo(10),
    }
}

impl Server for Reluctant {
    fn opened(&mut self, _peer: Peer, now: Time, actions: &mut Vec<Action>) {
        self.opened.push(now);
        if self.opened.len() <= self.resets {
            actions.push(Action::Reset);
        }
    }
    fn receive(&mut self, peer: Peer, bytes: &[u8], now: Time, actions: &mut Vec<Action>) {
        self.then.receive(peer, bytes, now, actions);
    }
    fn timer(&mut self, peer: Peer, tag: u64, now: Time, actions: &mut Vec<Action>) {
        self.then.timer(peer, tag, now, actions);
    }
}

#[test]
fn connections_are_made_at_the_plans_pace_and_counted() {
    let mut load = load(Arrivals::Open(Spacing::Constant), 10.0, 5);
    load.connect_rate = Some(20.0);
    let mut server = reluctant(0);
    let network = SimulatedNetwork::new(&mut server, Weather::calm(1));
    // Ten a second are this worker's.
    let established = worker(load.clone(), network, 2, Ids::default())
        .establish(&mut alone(None))
        .unwrap();
    assert_eq!((established.open, established.failed), (5, 0));
    assert_eq!(established.failure, None);
    for two in server.opened.windows(2) {
        let apart = two[1].duration_since(two[0]);
        assert_eq!(apart, Duration::from_millis(100));
    }
    let mut server = reluctant(3);
    let network = SimulatedNetwork::new(&mut server, Weather::calm(1));
    let established = worker(load, network, 2, Ids::default())
        .establish(&mut alone(None))
        .unwrap();
    assert_eq!((established.open, established.failed), (2, 3));
    assert_eq!(established.failure.unwrap().0, Outcome::Reset);
}

#[test]
fn a_connection_that_fails_is_tried_again_after_pauses_that_double_to_a_second() {
    let mut load = load(Arrivals::Open(Spacing::Constant), 10.0, 1);
    load.stages[0].duration = Some(Duration::from_secs(10));
    let mut server = reluctant(usize::MAX);
    let record = simulate(load, Weather::calm(1), &mut server);
    accounted(&record);
    let pauses: Vec<f64> = server
        .opened
        .windows(2)
        .enumerate()
        .map(|(i, two)| {
            let nominal = (0.01 * 2_f64.powi(i as i32)).min(1.0);
            // A round trip is in it: a hundredth of the shortest.
            two[1].duration_since(two[0]).as_secs_f64() / nominal
        })
        .collect();
    // 1.3 s for the first seven, and some 14 of a second until the load ends, at 15 s.
    assert!((18..=26).contains(&pauses.len()), "{pauses:?}");
    let (least, most) = pauses
        .iter()
        .fold((f64::MAX, 0.0_f64), |(l, m), p| (l.min(*p), m.max(*p)));
    assert!(least > 0.75 && most < 1.28, "{pauses:?}");
    assert!(most - least > 0.2, "spread at random: {pauses:?}");
}

#[test]
fn nothing_is_counted_before_the_load_begins() {
    let clients = Arrivals::Closed {
        clients: 1,
        think: Duration::ZERO,
    };
    // Those that fail, and the one that comes up in their place, come before its start at 5 s.
    let record = simulate(load(clients, 0.0, 1), Weather::calm(1), reluctant(3));
    accounted(&record);
    assert_eq!(record.connect_failures.of(Outcome::Reset), 3);
    assert_eq!(record.errors(), 0, "{record:?}");
    // 10.1 ms a call.
    assert_eq!(record.ok(), 199);
}

#[test]
fn a_connection_made_for_a_call_is_not_unused_when_the_call_fails() {
    let mut server = Ends {
        how: Ending::WithTheFirstCall,
        opened: 0,
    };
    let mut load = load(Arrivals::Open(Spacing::Constant), 100.0, 0);
    load.reuse = Reuse::Never;
    let record = simulate(load, Weather::calm(1), &mut server);
    accounted(&record);
    assert_eq!((record.due, record.ok(), server.opened), (200, 0, 200));
    assert_eq!(record.connections_unused, 0);
}

/// What becomes of "p99.9 < 20ms" in a run of these calls.
fn p99_9_below_20_ms(record: &StageRecord) -> Verdict {
    let objective = Objective {
        metric: Metric::Time(Timed::Response, Statistic::Percentile(99.9)),
        stage: None,
        below: true,
        limit: 20e6,
        text: "p99.9 < 20ms".to_owned(),
    };
    let measured = Measured {
        all: Part {
            record: record.clone(),
            ..Part::default()
        },
        ..Measured::default()
    };
    judge(&[objective], &measured, Standing::Sound)[0].verdict
}

#[test]
fn a_pause_of_the_generator_is_distinguished_from_the_target_in_both_loops() {
    let open = load(Arrivals::Open(Spacing::Constant), 2_000.0, 8);
    let closed = load(
        Arrivals::Closed {
            clients: 20,
            think: Duration::ZERO,
        },
        0.0,
        8,
    );
    for (load, name) in [(open, "open"), (closed, "closed")] {
        let run = |server, pauses| simulate_stopped(load.clone(), Weather::calm(1), server, pauses);
        let calm = run(echo(7), Vec::new());
        assert!(calm.delayed.is_empty(), "{name}: {:?}", calm.delayed);
        assert_eq!(p99_9_below_20_ms(&calm), Verdict::Met, "{name}");

        let pause = (Time(6_000_000_000), Duration::from_millis(80));
        let stopped = run(echo(7), vec![pause]);
        accounted(&stopped);
        assert!(micros(&stopped.response, 0.999) > 60_000.0, "{name}");
        assert_eq!(
            p99_9_below_20_ms(&stopped),
            Verdict::CannotBeJudged,
            "{name}: {stopped:?}"
        );
        // What was in flight, and what was due within the pause and as long after it.
        let delayed = stopped.delayed.len();
        assert!(delayed > 150, "{name}: {delayed}");
        let longest = stopped.delayed.histogram().unwrap().max();
        assert!(
            (80..=86).contains(&(longest / 1_000_000)),
            "{name} {longest}"
        );

        // A server that stands still as long is to blame, and so it is when the generator
        // stands still elsewhere, for less.
        let frozen = || Echo {
            freeze: Some((Time(5_500_000_000), Time(5_900_000_000))),
            ..echo(7)
        };
        assert_eq!(
            p99_9_below_20_ms(&run(frozen(), Vec::new())),
            Verdict::Missed
        );
        assert_eq!(
            p99_9_below_20_ms(&run(frozen(), vec![pause])),
            Verdict::Missed
        );
    }
}

#[test]
fn a_peer_that_reads_nothing_is_owed_little_and_read_again_once_it_does() {
    const PINGS: usize = 4 << 20;
    for (reads_after, send_buffer) in [(None, 1 << 16), (Some(5), 1 << 16), (Some(5), 1 << 20)] {
        let mut server = Flood {
            pings: PINGS,
            reads_after: reads_after.map(Duration::from_secs),
            taken: 0,
            taken_unread: 0,
            reads: false,
            pongs: 0,
            rest: Vec::new(),
        };
        let mut load = load(Arrivals::Open(Spacing::Constant), 10.0, 1);
        load.stages[0].duration = Some(Duration::from_secs(10));
        load.drain = Duration::from_secs(20);
        let weather = Weather {
            send_buffer,
            ..Weather::calm(1)
        };
        let record = simulate(load, weather, &mut server);
        accounted(&record);
        // Pongs are as long as pings: what was taken is in the socket, owed, or one read.
        let most = send_buffer + (64 << 10) + (128 << 10);
        assert!(
            server.taken_unread <= most,
            "{} bytes taken from a peer that read nothing; a socket holds {send_buffer}",
            server.taken_unread
        );
        match reads_after {
            None => assert_eq!(record.ok(), 0),
            Some(_) => {
                assert_eq!(server.pongs, PINGS, "each ping is answered in the end");
                // Those due after it began to read are answered, and at once.
                assert!(record.ok() >= 45, "{record:?}");
            }
        }
    }
}

#[test]
fn connections_that_end_without_carrying_a_call_come_after_growing_pauses() {
    let open = Arrivals::Open(Spacing::Constant);
    let closed = Arrivals::Closed {
        clients: 1,
        think: Duration::from_millis(100),
    };
    for how in [
        Ending::AtOnce,
        Ending::AnsweringNothing,
        Ending::WithTheFirstCall,
    ] {
        for arrivals in [open, closed] {
            let mut server = Ends { how, opened: 0 };
            let mut load = load(arrivals, 10.0, 1);
            load.stages[0].duration = Some(Duration::from_secs(10));
            let record = simulate(load, Weather::calm(1), &mut server);
            accounted(&record);
            let what = format!("{how:?}, {arrivals:?}: {} connections", server.opened);
            // Pauses of 20 ms to 640 ms, and then of a second: 6 and some 12 connections,
            // after those before the load began.
            assert!(server.opened <= 30, "{what}");
            // One that greets and ends within the same turn has not come up.
            let useless = record.connections_unused + record.connect_failures.total();
            assert!(useless + 1 >= server.opened, "{what}");
            // Calls fail by what happens to connections, and don't wait for the end.
            assert!(record.due >= 8 && record.ok() == 0, "{what}: {record:?}");
            assert!(record.not_started <= 5, "{what}: {record:?}");
        }
    }
}

#[test]
fn a_connection_that_carried_a_call_is_replaced_at_once() {
    let mut server = Ends {
        how: Ending::AfterTheFirstAnswer,
        opened: 0,
    };
    let load = load(Arrivals::Open(Spacing::Constant), 100.0, 1);
    let record = simulate(load, Weather::calm(1), &mut server);
    accounted(&record);
    assert_eq!((record.due, record.ok()), (200, 200));
    assert_eq!(record.connections_unused, 0);
    assert!((200..=201).contains(&server.opened), "{}", server.opened);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any weather, any loop: every call counted once, and the same seed the same record.
    #[test]
    fn every_call_is_counted_once_in_any_weather(
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
            0 => Arrivals::Open(Spacing::Constant),
            1 => Arrivals::Open(Spacing::Poisson),
            2 => Arrivals::Closed { clients: 7, think: Duration::from_millis(3) },
            _ => Arrivals::Closed { clients: 9, think: Duration::ZERO },
        };
        let mut load = load(arrivals, 300.0, connections);
        if seed % 3 == 0 {
            load.reuse = Reuse::Never;
        }
        if seed % 5 == 0 {
            load.calls = Some(200);
        }
        let weather = Weather {
            seed,
            latency_us: latency / 2..=latency,
            piece: 1..=piece,
            reset,
            stall,
            stall_ms: 1..=800,
            refuse,
            ignore,
            send_buffer,
        };
        let first = simulate(load.clone(), weather.clone(), echo(delay));
        accounted(&first);
        let second = simulate(load, weather, echo(delay));
        prop_assert_eq!(first, second);
    }
}
