//! Simulation of HTTP/1.1 with a server whose response times can be computed: it handles one request at a
//! time, for 100 ms.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use plimsoll_engine::transport::network::simulated::{
    NetworkConditions, ServerAction, SimulatedPeerId, SimulatedServer,
};
use plimsoll_model::metrics::measure::{Count, TimeMeasure};
use plimsoll_model::plan::{
    ArrivalModel, ArrivalSpacing, ConnectionReuse, GoodputBounds, LoadPlan,
};
use plimsoll_model::records::record::{StageRecord, TimeHistogram};
use plimsoll_model::{Outcome, Time};
use plimsoll_protocols::http::{
    EventFormat, EventMatch, EventStream, Http1Protocol, HttpCall, HttpRequest, ModelResponseRules,
};

use super::{check, load, run, run_under};

const SERVICE_TIME: Duration = Duration::from_millis(100);
/// The interval between arrivals: half of the server's time.
const GAP_MS: f64 = 50.0;
const CALLS: u64 = 200;

/// A server that handles one request at a time over all connections.
#[derive(Default)]
struct SerialServer {
    free_at: Time,
    heads: BTreeMap<SimulatedPeerId, Vec<u8>>,
    /// Whether responses are token streams.
    has_tokens: bool,
    /// The time from the last event to the end of the body; `None`: the body ends with the event.
    rest_after: Option<Duration>,
    /// Connections whose response's body is unfinished, and the number of those closed meanwhile.
    open_bodies: BTreeSet<SimulatedPeerId>,
    cut_off: u32,
}

/// Timer tags: a response is due, or the end of its body.
const RESPONSE_DUE: u64 = 0;
const BODY_END_DUE: u64 = 1;

/// The last chunk of a body.
const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

const EVENT_RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
    12\r\ndata: 1\n\ndata: 2\n\n\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";

impl SimulatedServer for SerialServer {
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
            self.free_at = self.free_at.max(now) + SERVICE_TIME;
            actions.push(ServerAction::Timer {
                after: self.free_at.duration_since(now),
                tag: RESPONSE_DUE,
            });
        }
    }

    fn on_timer(
        &mut self,
        peer: SimulatedPeerId,
        tag: u64,
        _now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        if tag == BODY_END_DUE {
            self.open_bodies.remove(&peer);
            return actions.push(ServerAction::Send(LAST_CHUNK.to_vec()));
        }
        let answer = if self.has_tokens {
            TOKENS
        } else {
            EVENT_RESPONSE
        };
        let Some(after) = self.rest_after else {
            return actions.push(ServerAction::Send(answer.to_vec()));
        };
        let open = answer.strip_suffix(LAST_CHUNK).unwrap();
        self.open_bodies.insert(peer);
        actions.push(ServerAction::Send(open.to_vec()));
        actions.push(ServerAction::Timer {
            after,
            tag: BODY_END_DUE,
        });
    }

    fn on_close(&mut self, peer: SimulatedPeerId, _now: Time) {
        self.heads.remove(&peer);
        self.cut_off += u32::from(self.open_bodies.remove(&peer));
    }
}

const TOKENS: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
    41\r\ndata: {\"choices\":[{\"delta\":{\"content\":\"Load \"}}]}\n\n\
    data: [DONE]\n\n\r\n0\r\n\r\n";

fn protocol(streams: bool) -> Http1Protocol {
    protocol_for(streams.then_some(None))
}

/// Returns the protocol; `None`: responses are not streams. Streams may hold tokens.
fn protocol_for(stream: Option<Option<GoodputBounds>>) -> Http1Protocol {
    let call = HttpCall {
        method: "GET".into(),
        path: "/".into(),
        expect: vec![(200, 200)],
        stream: stream.map(|tokens| EventStream {
            format: EventFormat::Sse,
            until: Some(EventMatch::Data("[DONE]".into())),
            error: None,
            tokens: tokens.map(|goodput| ModelResponseRules {
                goodput,
                ..ModelResponseRules::default()
            }),
        }),
        max_body: 1_000,
        ..HttpCall::default()
    };
    Http1Protocol::new(&HttpRequest {
        call: &call,
        authority: "h:1",
        closes: false,
    })
}

fn run_load(connections: u32, streams: bool) -> StageRecord {
    run_load_on(connections, SerialServer::default(), protocol(streams))
}

fn run_load_on(connections: u32, mut server: SerialServer, protocol: Http1Protocol) -> StageRecord {
    let mut load = LoadPlan {
        arrivals: ArrivalModel::Open(ArrivalSpacing::Constant),
        connections,
        reuse: ConnectionReuse::Always,
        calls: Some(CALLS),
        deadline: None,
        drain: Some(Duration::from_secs(60)),
        ..load(1)
    };
    load.stages[0].duration = Some(Duration::from_secs(10));
    (load.stages[0].rate_from, load.stages[0].rate_to) = (1_000.0 / GAP_MS, 1_000.0 / GAP_MS);
    let weather = NetworkConditions::faultless(1);
    let mut total = run_under(weather, load, &mut server, protocol, None);
    total.stage_mut(0).clone()
}

fn mean_ms(times: &TimeHistogram) -> f64 {
    times.histogram().unwrap().mean() / 1e6
}

#[test]
fn response_time_starts_at_schedule() {
    // Call k is due at 50 k ms, and answered at 100 (k + 1) ms.
    let expected: f64 = (0..CALLS)
        .map(|k| 100.0 * (k + 1) as f64 - GAP_MS * k as f64)
        .sum();
    let expected = expected / CALLS as f64;
    // A call waits in the generator for the single connection, or at the server.
    for connections in [1, 300] {
        for streams in [false, true] {
            let record = run_load(connections, streams);
            assert_eq!((record.due, record.ok_calls()), (CALLS, CALLS));
            let mean = mean_ms(&record.response);
            let off = (mean / expected - 1.0).abs();
            assert!(
                off < 0.01,
                "{connections}: {mean} ms instead of {expected} ms"
            );
            let events = if streams { 3 * CALLS } else { 0 };
            let received = record.messages.map_or(0, |messages| messages.received);
            assert_eq!(received, events);
            if let (1, true) = (connections, streams) {
                // Measured from the send, like every service time.
                let first = mean_ms(record.measures.times(TimeMeasure::FirstMessage));
                assert!((first / 100.0 - 1.0).abs() < 0.01, "{first} ms");
            }
        }
    }
}

#[test]
fn first_token_time_starts_at_schedule() {
    // As above, call k waits 50 k ms before it is sent, or at the server.
    let expected = 100.0 + (CALLS - 1) as f64 * GAP_MS / 2.0;
    let goodput = GoodputBounds {
        // Only the first 58 calls meet it: 100 + 50 k is at most 2,990.
        first_token: Some(Duration::from_millis(2_990)),
        ..GoodputBounds::default()
    };
    for connections in [1, 300] {
        let server = SerialServer {
            has_tokens: true,
            ..SerialServer::default()
        };
        let record = run_load_on(connections, server, protocol_for(Some(Some(goodput))));
        assert_eq!((record.due, record.ok_calls()), (CALLS, CALLS));
        let measures = &record.measures;
        assert_eq!(measures.counter(Count::TokensReceived), CALLS);
        assert_eq!(measures.counter(Count::UsageMissing), CALLS);
        let mean = mean_ms(measures.times(TimeMeasure::TimeToFirstToken));
        assert!(
            (mean / expected - 1.0).abs() < 0.01,
            "{mean} ms instead of {expected} ms"
        );
        assert_eq!(measures.counter(Count::QueriesGood), 58);
        // The server's own time, with one request at a time.
        let first = mean_ms(measures.times(TimeMeasure::FirstToken));
        assert!(
            connections != 1 || (first / 100.0 - 1.0).abs() < 0.01,
            "{first} ms"
        );
    }
}

#[test]
fn first_token_time_excludes_previous_body() {
    let mut server = SerialServer {
        has_tokens: true,
        rest_after: Some(Duration::from_millis(400)),
        ..SerialServer::default()
    };
    let mut load = LoadPlan {
        arrivals: ArrivalModel::Closed {
            clients: 1,
            think: Duration::ZERO,
        },
        reuse: ConnectionReuse::Always,
        calls: Some(20),
        deadline: None,
        drain: Some(Duration::from_secs(60)),
        ..load(1)
    };
    load.stages[0].duration = None;
    let protocol = protocol_for(Some(Some(GoodputBounds::default())));
    let mut total = run_under(
        NetworkConditions::faultless(1),
        load,
        &mut server,
        protocol,
        None,
    );
    let record = total.stage_mut(0).clone();
    assert_eq!((record.due, record.ok_calls()), (20, 20));
    for measure in [TimeMeasure::TimeToFirstToken, TimeMeasure::FirstToken] {
        let mean = mean_ms(record.measures.times(measure));
        assert!((mean / 100.0 - 1.0).abs() < 0.01, "{measure:?}: {mean} ms");
    }
}

#[test]
fn open_body_does_not_delay_next_call() {
    // A call is due every 250 ms, and its body lasts longer. Beside the plan's connection, one more is read
    // to its end; if bodies last even longer, others are cut off.
    for (rest_ms, bodies_cut_off) in [(300, 0..=1), (900, 5..=20)] {
        let mut server = SerialServer {
            has_tokens: true,
            rest_after: Some(Duration::from_millis(rest_ms)),
            ..SerialServer::default()
        };
        let mut load = LoadPlan {
            arrivals: ArrivalModel::Open(ArrivalSpacing::Constant),
            connections: 1,
            reuse: ConnectionReuse::Always,
            calls: Some(20),
            deadline: None,
            drain: Some(Duration::from_secs(60)),
            ..load(1)
        };
        load.stages[0].duration = Some(Duration::from_secs(5));
        (load.stages[0].rate_from, load.stages[0].rate_to) = (4.0, 4.0);
        let protocol = protocol_for(Some(Some(GoodputBounds::default())));
        let mut total = run_under(
            NetworkConditions::faultless(1),
            load,
            &mut server,
            protocol,
            None,
        );
        let record = total.stage_mut(0).clone();
        assert_eq!((record.due, record.ok_calls()), (20, 20));
        let first = mean_ms(record.measures.times(TimeMeasure::TimeToFirstToken));
        assert!((first / 100.0 - 1.0).abs() < 0.02, "{rest_ms}: {first} ms");
        assert_eq!(record.measures.counter(Count::ConnectionsSetAside), 19);
        assert_eq!(record.connections_unused, 0);
        let cut_off = server.cut_off;
        assert!(bodies_cut_off.contains(&cut_off), "{rest_ms}: {cut_off}");
    }
}

#[test]
fn calls_counted_once_despite_faults() {
    for seed in 0..500 {
        let mut server = SerialServer::default();
        let load = LoadPlan {
            deadline: Some(Duration::from_millis(300)),
            ..load(seed)
        };
        let total = run(seed, load, &mut server, protocol(seed % 2 == 0));
        let record = check(seed, total, &[]).unwrap();
        assert_eq!(record.outcomes.get(Outcome::BadAnswer), 0, "seed {seed}");
    }
}
