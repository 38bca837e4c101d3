//! Sessions end to end over the simulated network: the engine's script worker, the
//! session driver, and a stack whose sockets are killed again and again.
//!
//! A seed makes the weather, the load and the kills. What holds for each: every query that
//! was due is counted once, a success has seen its tokens 1..n once and in order, and
//! where only sockets are killed every query is a success. `SIMULATION_SEED=n` replays one.
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_engine::network::simulated::{Action, Peer, Server, SimulatedNetwork, Weather};
use plimsoll_engine::script::worker::ScriptWorker;
use plimsoll_engine::worker::{Control, Share, StopLevel, WorkerInterval};
use plimsoll_model::measure::Count;
use plimsoll_model::plan::{Arrivals, Goodput, Load, QueryText, Reuse, Spacing, Stage};
use plimsoll_model::record::{Interval, StageRecord};
use plimsoll_model::schedule::Schedule;
use plimsoll_model::spec::parse_target;
use plimsoll_model::{Outcome, Time};
use plimsoll_protocols::session::{SessionOptions, Sessions};
use plimsoll_wire::websocket::{Message, Opcode, Reader, Role, accept_key, put_frame};

const SEEDS: u64 = 200;
const TOKENS: u64 = 18;
const LOOK_EVERY: Duration = Duration::from_millis(3);

/// A number in a range, from a seed and a name: the same for ever.
fn choose(seed: u64, name: u64, from: u64, to: u64) -> u64 {
    let mut z = seed
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(name << 32 | name);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    from + (z ^ (z >> 31)) % (to - from + 1)
}

/// A session's log is a function of when its runs began: frame `n` is there once its
/// time has come, whoever is connected.
#[derive(Default)]
struct Log {
    runs: Vec<Time>,
}

impl Log {
    fn due(&self, seq: u64, pace: Duration) -> Option<Time> {
        let run = (seq - 1) / (TOKENS + 1);
        let began = *self.runs.get(usize::try_from(run).unwrap())?;
        Some(began + pace * u32::try_from((seq - 1) % (TOKENS + 1) + 1).unwrap())
    }

    fn frame(seq: u64) -> String {
        let run = (seq - 1) / (TOKENS + 1) * (TOKENS + 1) + 1;
        if seq.is_multiple_of(TOKENS + 1) {
            return format!(
                r#"{{"type":"done","content":"","seq":{seq},"run":{run},"epoch":5,"tokens":{TOKENS},"finish":"stop"}}"#
            );
        }
        format!(r#"{{"type":"token","content":"w ","seq":{seq},"run":{run},"epoch":5}}"#)
    }
}

/// What a connection turned out to be.
enum Kind {
    Unknown(Vec<u8>),
    Socket {
        session: String,
        last: u64,
        reader: Reader,
    },
}

/// What is wrong with the gateway's sockets.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Nothing,
    /// The API closes each connection as soon as it is up.
    Leaves,
    /// The API answers as HTTP/1.0 did: an answer ends with its connection.
    Unframed,
    /// The upgrade is answered with 503.
    Refused,
    /// Opened, and closed at once with 1012.
    Restarts,
    /// A frame that is no JSON, and then silence.
    Garbage,
    Binary,
    /// Pings that nobody reads the answers of, for [`FLOOD_LASTS`].
    Flood,
}

const PINGS: usize = 1 << 20;
const FLOOD_LASTS: Duration = Duration::from_secs(2);

/// API, gateway and killer in one.
struct Stack {
    fault: Fault,
    /// Bytes that clients took off sockets while those were not read.
    taken_unread: usize,
    unread: BTreeSet<Peer>,
    pongs: usize,
    seed: u64,
    pace: Duration,
    /// Out of a million frames, before how many the socket is killed.
    kill: u64,
    sessions: BTreeMap<String, Log>,
    connections: BTreeMap<Peer, Kind>,
    decided: u64,
    kills: u64,
}

impl Stack {
    fn chance(&mut self, of_a_million: u64) -> bool {
        self.decided += 1;
        choose(self.seed, 1_000 + self.decided, 0, 999_999) < of_a_million
    }

    fn answer(&mut self, head: &str, now: Time) -> String {
        let path = head.split(' ').nth(1).unwrap();
        let body = match path.split('/').collect::<Vec<_>>()[..] {
            ["", "session", "create"] => {
                let id = format!("s{}", self.sessions.len());
                self.sessions.insert(id.clone(), Log::default());
                format!(r#"{{"session_id":"{id}","token":"t-{id}"}}"#)
            }
            ["", "session", id, "run"] => {
                let log = self.sessions.get_mut(id).expect("a session of ours");
                log.runs.push(now);
                let run = (log.runs.len() as u64 - 1) * (TOKENS + 1) + 1;
                format!(r#"{{"run":{run},"tokens":{TOKENS},"epoch":5}}"#)
            }
            ["", "session", _, "close"] => r#"{"closed":true}"#.to_owned(),
            _ => panic!("a request for {path}"),
        };
        match self.fault {
            Fault::Unframed => format!("HTTP/1.0 200 OK\r\n\r\n{body}"),
            _ => format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            ),
        }
    }

    /// Sends a socket what is due, and kills it by chance.
    fn push(&mut self, peer: Peer, now: Time, actions: &mut Vec<Action>) {
        let mut out = Vec::new();
        loop {
            let Some(Kind::Socket { session, last, .. }) = self.connections.get_mut(&peer) else {
                return;
            };
            let (next, session) = (*last + 1, session.clone());
            let due = self.sessions[&session].due(next, self.pace);
            if due.is_none_or(|due| due > now) {
                break;
            }
            put_frame(&mut out, Opcode::Text, Log::frame(next).as_bytes());
            if let Some(Kind::Socket { last, .. }) = self.connections.get_mut(&peer) {
                *last = next;
            }
            if self.chance(self.kill) {
                // In the middle of a frame, at its end, or with a farewell.
                self.kills += 1;
                match self.decided % 3 {
                    0 => out.truncate(out.len() - 7),
                    1 => {}
                    _ => {
                        let payload = 1012u16.to_be_bytes();
                        put_frame(&mut out, Opcode::Close, &payload);
                    }
                }
                actions.push(Action::Send(out));
                actions.push(if self.decided.is_multiple_of(2) {
                    Action::Close
                } else {
                    Action::Reset
                });
                self.connections.remove(&peer);
                return;
            }
        }
        if !out.is_empty() {
            actions.push(Action::Send(out));
        }
    }
}

impl Server for Stack {
    fn opened(&mut self, peer: Peer, _now: Time, actions: &mut Vec<Action>) {
        self.connections.insert(peer, Kind::Unknown(Vec::new()));
        if self.fault == Fault::Leaves {
            actions.push(Action::Close);
        }
    }

    fn receive(&mut self, peer: Peer, bytes: &[u8], now: Time, actions: &mut Vec<Action>) {
        let input = match self.connections.get_mut(&peer) {
            None => return,
            Some(Kind::Unknown(input)) => {
                input.extend_from_slice(bytes);
                input
            }
            Some(Kind::Socket { reader, .. }) => {
                let pongs = &mut self.pongs;
                let read = reader.read(bytes, |message| {
                    assert!(!matches!(message, Message::Text(_) | Message::Binary(_)));
                    *pongs += usize::from(matches!(message, Message::Pong(_)));
                    ControlFlow::Continue(())
                });
                assert_eq!(read, Ok(()), "the client breaks the protocol");
                return;
            }
        };
        let text = String::from_utf8(input.clone()).unwrap();
        // A run's request has a body, and it is a JSON object.
        let whole = match text.split_once("\r\n\r\n") {
            Some((head, body)) => !head.contains("/run ") || body.ends_with('}'),
            None => false,
        };
        if !whole {
            return;
        }
        input.clear();
        if text.starts_with("POST") {
            let answer = self.answer(&text, now);
            actions.push(Action::Send(answer.into_bytes()));
            if self.fault == Fault::Unframed {
                actions.push(Action::Close);
            }
            return;
        }
        if self.fault == Fault::Refused {
            let answer = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";
            return actions.push(Action::Send(answer.to_vec()));
        }
        let path = text.split(' ').nth(1).unwrap();
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let session = path.strip_prefix("/agent/ws/").unwrap().to_owned();
        assert!(text.contains(&format!("Authorization: Bearer t-{session}\r\n")));
        let after = query.split('&').find_map(|p| p.strip_prefix("after="));
        let last: u64 = after.map_or(0, |after| after.parse().unwrap());
        let key = text
            .lines()
            .find_map(|line| line.strip_prefix("Sec-WebSocket-Key: "))
            .unwrap();
        let mut out = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {}\r\n\r\n",
            accept_key(key.as_bytes())
        )
        .into_bytes();
        if after.is_some() {
            put_frame(
                &mut out,
                Opcode::Text,
                br#"{"type":"resumed","resumed":true}"#,
            );
        }
        match self.fault {
            Fault::Nothing | Fault::Unframed | Fault::Refused | Fault::Leaves => {}
            Fault::Garbage => put_frame(&mut out, Opcode::Text, b"nonsense"),
            Fault::Binary => put_frame(&mut out, Opcode::Binary, b"x"),
            Fault::Restarts => put_frame(&mut out, Opcode::Close, &1012u16.to_be_bytes()),
            Fault::Flood => {
                for _ in 0..PINGS {
                    put_frame(&mut out, Opcode::Ping, b"");
                }
                self.unread.insert(peer);
                actions.push(Action::StopReading);
            }
        }
        actions.push(Action::Send(out));
        if self.fault == Fault::Restarts {
            actions.push(Action::Close);
        }
        let kind = Kind::Socket {
            session,
            last,
            reader: Reader::new(Role::Server, 1 << 16),
        };
        self.connections.insert(peer, kind);
        // Looks for what is due every so often: a run may begin at any time.
        let after = match self.fault {
            Fault::Flood => FLOOD_LASTS,
            Fault::Nothing | Fault::Unframed => LOOK_EVERY,
            // Nothing more is sent.
            _ => return,
        };
        actions.push(Action::Timer { after, tag: 0 });
    }

    fn taken(&mut self, peer: Peer, bytes: usize) {
        if self.unread.contains(&peer) {
            self.taken_unread += bytes;
        }
    }

    fn timer(&mut self, peer: Peer, tag: u64, now: Time, actions: &mut Vec<Action>) {
        if self.unread.remove(&peer) {
            actions.push(Action::Read);
        }
        self.push(peer, now, actions);
        if self.connections.contains_key(&peer) {
            let after = LOOK_EVERY;
            actions.push(Action::Timer { after, tag });
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

struct Outcomes {
    record: StageRecord,
    sessions: u64,
    queries: u64,
    kills: u64,
    taken_unread: usize,
    pongs: usize,
    /// When the sessions' queries began, in order.
    runs: Vec<Time>,
}

/// One run; `stormy`: the network itself loses connections, the API's too.
fn simulate(seed: u64, stormy: bool) -> Outcomes {
    simulate_with(seed, stormy, Fault::Nothing)
}

fn simulate_with(seed: u64, stormy: bool, fault: Fault) -> Outcomes {
    simulate_load(seed, stormy, fault, |_, _| {})
}

/// The same with another load, or tokens at another pace.
fn simulate_load(
    seed: u64,
    stormy: bool,
    fault: Fault,
    adjust: impl FnOnce(&mut Load, &mut Stack),
) -> Outcomes {
    let number = |name, from, to| choose(seed, name, from, to);
    let sessions = number(1, 1, 5);
    let queries = number(2, 1, 4);
    let open = number(3, 0, 1) == 1;
    let weather = Weather {
        latency_us: 20..=number(4, 20, 3_000),
        piece: 1..=usize::try_from(number(5, 1, 300)).unwrap(),
        stall: number(6, 0, 20_000) as u32,
        stall_ms: 1..=number(7, 1, 200),
        reset: if stormy {
            number(8, 1, 3_000) as u32
        } else {
            0
        },
        refuse: if stormy { 50_000 } else { 0 },
        ..Weather::calm(seed)
    };
    let weather = match fault {
        Fault::Nothing => weather,
        // The end is there in the turn in which the connection comes up.
        Fault::Leaves => Weather {
            latency_us: 0..=0,
            ..Weather::calm(seed)
        },
        _ => Weather {
            send_buffer: 1 << 16,
            ..Weather::calm(seed)
        },
    };
    let mut stack = Stack {
        fault,
        taken_unread: 0,
        unread: BTreeSet::new(),
        pongs: 0,
        seed,
        pace: Duration::from_millis(number(9, 0, 30)),
        kill: if fault == Fault::Nothing {
            number(10, 0, 60_000)
        } else {
            0
        },
        sessions: BTreeMap::new(),
        connections: BTreeMap::new(),
        decided: 0,
        kills: 0,
    };
    let mut load = Load {
        arrivals: if open {
            Arrivals::Open(Spacing::Constant)
        } else {
            Arrivals::Closed {
                clients: sessions as u32,
                think: Duration::from_millis(number(13, 0, 30)),
            }
        },
        stages: vec![Stage {
            name: "steady".to_owned(),
            warmup: false,
            duration: open.then_some(Duration::from_secs(1)),
            rate_from: if open { sessions as f64 } else { 0.0 },
            rate_to: if open { sessions as f64 } else { 0.0 },
        }],
        connections: 2,
        reuse: Reuse::Always,
        calls: (!open).then_some(sessions * queries),
        deadline: Some(Duration::from_secs(60)),
        connect_timeout: Duration::from_secs(5),
        connect_rate: None,
        connection_lifetime: None,
        calls_per_connection: None,
        resolve_interval: Duration::from_secs(30),
        drain: Duration::from_secs(10),
        workers: Some(1),
        precision: None,
        spin: Duration::ZERO,
        read_buffer: 128 << 10,
        source_addresses: Vec::new(),
        turns: None,
        count_bytes: false,
        last_core: false,
        tick: Duration::ZERO,
        processes: None,
    };
    adjust(&mut load, &mut stack);
    let clients = match load.arrivals {
        Arrivals::Open(_) => 0,
        Arrivals::Closed { clients, .. } => clients,
    };
    let options = SessionOptions {
        api: parse_target("session://127.0.0.1:1").unwrap().0,
        socket: parse_target("session://127.0.0.1:2").unwrap().0,
        api_tls: None,
        socket_tls: None,
        api_host: "api".to_owned(),
        socket_host: "sockets".to_owned(),
        agent: "agent".to_owned(),
        queries: queries as u32,
        query: QueryText::constant("?"),
        expect_tokens: None,
        think: Duration::from_millis(number(11, 0, 20)),
        deadline: load.deadline,
        reconnects: 20,
        reconnect_pause: Duration::from_millis(number(12, 1, 300)),
        reconnect_pause_most: Duration::from_secs(1),
        compression: false,
        goodput: Goodput::default(),
        seed,
    };
    let share = Share {
        index: 0,
        of: 1,
        connections: load.connections,
        clients,
        calls: load.calls,
        schedule: Schedule::new(&load, seed),
        load: Arc::new(load),
        keep_requests: false,
        trace: false,
    };
    let mut control = Alone {
        start: Some(Time(1_100_000_000)),
        total: Interval::default(),
    };
    let network = SimulatedNetwork::new(&mut stack, weather);
    let mut worker = ScriptWorker::new(share, network, Arc::new(Sessions::new(options)));
    worker.run(Time(1_100_000_000), &mut control).unwrap();
    drop(worker);
    let mut record = StageRecord::default();
    for (_, stage) in control.total.recorded() {
        record.merge(stage);
    }
    let mut runs: Vec<Time> = (stack.sessions.values())
        .flat_map(|log| log.runs.iter().copied())
        .collect();
    runs.sort_unstable();
    Outcomes {
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
    record.measures.as_ref().map_or(0, |m| m.of(count))
}

#[test]
fn sockets_killed_at_random_cost_no_token() {
    let (mut kills, mut reconnects) = (0, 0);
    for seed in seeds() {
        let seen = simulate(seed, false);
        let (record, all) = (&seen.record, seen.sessions * seen.queries);
        let context = || format!("SIMULATION_SEED={seed}: {:?}", record.outcomes);
        assert_eq!((record.due, record.ok()), (all, all), "{}", context());
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
            Count::SessionsFailed,
        ] {
            assert_eq!(of(record, none), 0, "{}: {}", context(), none.key());
        }
        assert_eq!(
            of(record, Count::SessionsOk),
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
fn in_any_weather_a_success_has_all_its_tokens() {
    let mut failed = 0;
    for seed in seeds() {
        let seen = simulate(seed, true);
        let (record, all) = (&seen.record, seen.sessions * seen.queries);
        let context = || format!("SIMULATION_SEED={seed}: {:?}", record.outcomes);
        assert_eq!(record.due, all, "{}", context());
        assert_eq!(
            record.due,
            record.ended() + record.not_started,
            "{}",
            context()
        );
        // The stack never loses, doubles or shuffles: whoever says so is wrong.
        assert_eq!(record.outcomes.of(Outcome::TokensLost), 0, "{}", context());
        assert_eq!(of(record, Count::TokensMissing), 0, "{}", context());
        assert_eq!(of(record, Count::TokensDuplicated), 0, "{}", context());
        assert_eq!(of(record, Count::TokensOutOfOrder), 0, "{}", context());
        assert!(
            of(record, Count::TokensReceived) >= record.ok() * TOKENS,
            "{}",
            context()
        );
        failed += record.errors();
    }
    if std::env::var_os("SIMULATION_SEED").is_none() {
        assert!(failed > 0, "the weather was meant to hurt");
    }
}

#[test]
fn what_is_wrong_with_a_socket_is_what_its_queries_fail_by() {
    for (fault, outcome) in [
        (Fault::Refused, Outcome::SocketRefused),
        (Fault::Restarts, Outcome::SocketClosed),
        (Fault::Garbage, Outcome::BadAnswer),
        (Fault::Binary, Outcome::ProtocolError),
    ] {
        for seed in 0..10 {
            let seen = simulate_with(seed, false, fault);
            let (record, context) = (&seen.record, format!("{fault:?}, seed {seed}"));
            let outcomes = &record.outcomes;
            assert_eq!(record.due, record.ended() + record.not_started, "{context}");
            assert_eq!(outcomes.of(Outcome::DeadlineExceeded), 0, "{context}");
            assert!(outcomes.of(outcome) > 0, "{context}: {outcomes:?}");
            assert_eq!(
                outcomes.of(outcome) + outcomes.of(Outcome::SessionBroken),
                record.due,
                "{context}: {outcomes:?}"
            );
        }
    }
}

#[test]
fn an_api_that_leaves_as_soon_as_it_is_reached_is_closed_and_not_late() {
    for seed in 0..10 {
        let record = simulate_with(seed, false, Fault::Leaves).record;
        let outcomes = &record.outcomes;
        assert!(record.due > 0 && record.due == record.ended() + record.not_started);
        assert_eq!(
            outcomes.of(Outcome::ConnectionClosed) + outcomes.of(Outcome::SessionBroken),
            record.due,
            "seed {seed}: {outcomes:?}"
        );
    }
}

#[test]
fn answers_that_end_with_their_connection_are_as_good_as_others() {
    for seed in 0..10 {
        let seen = simulate_with(seed, false, Fault::Unframed);
        let outcomes = &seen.record.outcomes;
        assert!(seen.record.due > 0);
        assert_eq!(
            outcomes.of(Outcome::Ok),
            seen.record.due,
            "seed {seed}: {outcomes:?}"
        );
    }
}

#[test]
fn a_socket_that_is_flooded_with_pings_is_owed_little_and_goes_on() {
    for seed in 0..3 {
        let seen = simulate_with(seed, false, Fault::Flood);
        let all = seen.sessions * seen.queries;
        assert_eq!((seen.record.due, seen.record.ok()), (all, all), "{seed}");
        // A pong of 6 bytes for a ping of 2: what fits in the socket's buffer and what may
        // be owed, the answer's head, and what one read took besides.
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

/// One session at the load's beginning, whose last token comes 9.5 s later or more.
fn one_slow_session(load: &mut Load, stack: &mut Stack) {
    load.arrivals = Arrivals::Open(Spacing::Constant);
    load.stages[0].duration = Some(Duration::from_secs(10));
    (load.stages[0].rate_from, load.stages[0].rate_to) = (0.1, 0.1);
    (load.calls, load.deadline) = (None, None);
    load.drain = Duration::from_secs(1);
    stack.pace = Duration::from_millis(500);
    stack.kill = 0;
}

#[test]
fn the_drain_begins_at_the_schedules_end_and_not_with_its_last_session() {
    let mut first_queries = 0;
    for seed in 0..10 {
        let seen = simulate_load(seed, false, Fault::Nothing, one_slow_session);
        first_queries += seen.record.ok();
    }
    // Each session's first query ends within the load; a second one does not.
    assert_eq!(first_queries, 10);
}

#[test]
fn what_has_no_end_is_cut_off_after_the_drain() {
    let never = Duration::from_secs(3_600);
    for seed in 0..10 {
        let seen = simulate_load(seed, false, Fault::Nothing, |load, stack| {
            one_slow_session(load, stack);
            stack.pace = never;
        });
        assert_eq!(seen.record.calls_cut_off(), 1, "no deadline, seed {seed}");
        // Clients begin one session after another, so that their deadlines are no bound.
        let seen = simulate_load(seed, false, Fault::Nothing, |load, stack| {
            one_slow_session(load, stack);
            load.arrivals = Arrivals::Closed {
                clients: 1,
                think: Duration::ZERO,
            };
            load.deadline = Some(Duration::from_secs(60));
            stack.pace = never;
        });
        assert_eq!(seen.record.calls_cut_off(), 1, "closed loop, seed {seed}");
        // A load of sessions that arrive waits for each query's deadline.
        let seen = simulate_load(seed, false, Fault::Nothing, |load, stack| {
            one_slow_session(load, stack);
            load.deadline = Some(Duration::from_secs(60));
            stack.pace = never;
        });
        let late = seen.record.outcomes.of(Outcome::DeadlineExceeded);
        assert_eq!(late, 1, "arrivals, seed {seed}");
        assert_eq!(seen.record.calls_cut_off(), 0, "arrivals, seed {seed}");
    }
}

#[test]
fn sessions_begin_when_they_are_due_and_users_think_between_them() {
    let begin = Time(1_100_000_000);
    for seed in 0..20 {
        let mut queries = 0;
        let seen = simulate_load(seed, false, Fault::Nothing, |load, stack| {
            stack.kill = 0;
            match &mut load.arrivals {
                Arrivals::Open(_) => {
                    load.stages[0].duration = Some(Duration::from_secs(5));
                    (load.stages[0].rate_from, load.stages[0].rate_to) = (1.0, 1.0);
                }
                Arrivals::Closed { clients, think } => {
                    queries = load.calls.unwrap() / u64::from(*clients);
                    *clients = 1;
                    *think = Duration::from_secs(2);
                }
            }
        });
        let firsts = |n: u64| seen.runs.iter().step_by(usize::try_from(n).unwrap());
        if queries == 0 {
            // The k-th to begin cannot be one that is due later.
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
fn the_same_seed_is_the_same_run() {
    for seed in 0..20 {
        let (one, two) = (simulate(seed, true), simulate(seed, true));
        assert_eq!(one.record, two.record, "SIMULATION_SEED={seed}");
        assert_eq!(one.kills, two.kills);
    }
}
