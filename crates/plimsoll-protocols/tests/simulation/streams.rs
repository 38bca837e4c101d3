//! Simulation of endless event streams over both versions of HTTP: they end with the load.

use std::collections::BTreeMap;
use std::time::Duration;

use plimsoll_engine::transport::network::simulated::{
    NetworkConditions, ServerAction, SimulatedPeerId, SimulatedServer,
};
use plimsoll_model::metrics::measure::Count;
use plimsoll_model::plan::{ArrivalModel, ArrivalSpacing, ConnectionReuse, LoadPlan};
use plimsoll_model::records::record::StageRecord;
use plimsoll_model::{Outcome, Time};
use plimsoll_protocols::http::{
    EventFormat, EventStream, Http1Protocol, Http2Protocol, HttpCall, HttpRequest, HttpScheme,
};
use plimsoll_wire::http2::{DEFAULT_MAX_FRAME_BYTES, Http2Frame, PREFACE, split_frame, write};

use super::{load, run_under};

const CLIENTS: u32 = 5;
const EVENT_INTERVAL: Duration = Duration::from_millis(100);
const EVENT: &[u8] = b"data: tick\n\n";

/// A server whose streams have an event every [`EVENT_INTERVAL`].
#[derive(Default)]
struct TickServer {
    /// Whether it speaks HTTP/2 (prior knowledge).
    multiplexes: bool,
    /// The first stream ends by itself after this many events.
    first_ends_after: Option<u32>,
    /// Whether streams start but have no events.
    silent: bool,
    received: BTreeMap<SimulatedPeerId, Vec<u8>>,
    /// The number of events sent on each open stream, by its id; 0 for HTTP/1.1.
    open: BTreeMap<(SimulatedPeerId, u32), u32>,
    streams: u32,
    first: Option<(SimulatedPeerId, u32)>,
}

impl TickServer {
    fn begin(&mut self, peer: SimulatedPeerId, stream: u32, actions: &mut Vec<ServerAction>) {
        self.streams += 1;
        self.first.get_or_insert((peer, stream));
        self.open.insert((peer, stream), 0);
        let head = if self.multiplexes {
            let mut out = Vec::new();
            // `:status: 200` of the static table (RFC 7541 appendix A).
            write::header_block(&mut out, stream, &[0x88], write::EndStream(false));
            out
        } else {
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".to_vec()
        };
        actions.push(ServerAction::Send(head));
        actions.push(ServerAction::Timer {
            after: EVENT_INTERVAL,
            tag: u64::from(stream),
        });
    }
}

impl SimulatedServer for TickServer {
    fn on_open(&mut self, peer: SimulatedPeerId, _now: Time, actions: &mut Vec<ServerAction>) {
        self.received.insert(peer, Vec::new());
        if self.multiplexes {
            let mut out = Vec::new();
            write::settings(&mut out, &[]);
            actions.push(ServerAction::Send(out));
        }
    }

    fn on_receive(
        &mut self,
        peer: SimulatedPeerId,
        bytes: &[u8],
        _now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        let mut received = self.received.remove(&peer).unwrap_or_default();
        received.extend_from_slice(bytes);
        if !self.multiplexes {
            if received.ends_with(b"\r\n\r\n") {
                received.clear();
                self.begin(peer, 0, actions);
            }
            self.received.insert(peer, received);
            return;
        }
        let is_part = received.len() < PREFACE.len() && PREFACE.starts_with(&received);
        let mut rest = received.strip_prefix(&PREFACE[..]).unwrap_or(&received);
        while !is_part
            && let Some((head, payload)) = split_frame(&mut rest, DEFAULT_MAX_FRAME_BYTES).unwrap()
        {
            match Http2Frame::parse(head, payload).unwrap() {
                Http2Frame::Headers { .. } => self.begin(peer, head.stream(), actions),
                Http2Frame::ResetStream { .. } => {
                    self.open.remove(&(peer, head.stream()));
                }
                _ => {}
            }
        }
        let rest = rest.to_vec();
        self.received.insert(peer, rest);
    }

    fn on_timer(
        &mut self,
        peer: SimulatedPeerId,
        tag: u64,
        _now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        let stream = tag as u32;
        let Some(events) = self.open.get_mut(&(peer, stream)) else {
            return;
        };
        if self.silent {
            return;
        }
        *events += 1;
        let is_over = self.first == Some((peer, stream))
            && self.first_ends_after.is_some_and(|n| *events > n);
        if is_over {
            // Over HTTP/1.1 the next stream has the same id.
            self.first_ends_after = None;
            self.open.remove(&(peer, stream));
        }
        let mut out = Vec::new();
        if self.multiplexes {
            write::data(&mut out, stream, EVENT, write::EndStream(is_over));
        } else {
            out.extend_from_slice(format!("{:x}\r\n", EVENT.len()).as_bytes());
            out.extend_from_slice(EVENT);
            out.extend_from_slice(if is_over { b"\r\n0\r\n\r\n" } else { b"\r\n" });
        }
        actions.push(ServerAction::Send(out));
        actions.push(ServerAction::Timer {
            after: EVENT_INTERVAL,
            tag,
        });
    }

    fn on_close(&mut self, peer: SimulatedPeerId, _now: Time) {
        self.received.remove(&peer);
        self.open.retain(|(of, _), _| *of != peer);
    }
}

/// Returns a load of clients that hold streams for three seconds.
fn clients(deadline: Duration) -> LoadPlan {
    let mut load = LoadPlan {
        arrivals: ArrivalModel::Closed {
            clients: CLIENTS,
            think: Duration::ZERO,
        },
        connections: CLIENTS,
        reuse: ConnectionReuse::Always,
        calls: None,
        deadline: Some(deadline),
        drain: Some(Duration::from_secs(60)),
        ..load(1)
    };
    load.stages[0].duration = Some(Duration::from_secs(3));
    load
}

fn run_streams(load: &LoadPlan, expect_body: Option<&str>, server: &mut TickServer) -> StageRecord {
    let call = HttpCall {
        method: "GET".into(),
        path: "/".into(),
        expect: vec![(200, 200)],
        expect_body: expect_body.map(str::to_owned),
        stream: Some(EventStream {
            format: EventFormat::Sse,
            until: None,
            error: None,
            tokens: None,
        }),
        ends_with_load: true,
        max_body: 1_000_000,
        ..HttpCall::default()
    };
    let request = HttpRequest {
        call: &call,
        authority: "h:1",
        closes: false,
    };
    let (weather, load) = (NetworkConditions::faultless(1), load.clone());
    let mut total = if server.multiplexes {
        let protocol = Http2Protocol::new(&request, HttpScheme::Http);
        run_under(weather, load, server, protocol, None)
    } else {
        run_under(weather, load, server, Http1Protocol::new(&request), None)
    };
    total.stage_mut(0).clone()
}

/// Returns the counts of scheduled calls, successes, streams that ended with the load, and exceeded
/// deadlines.
fn counts(record: &StageRecord) -> [u64; 4] {
    [
        record.due,
        record.ok_calls(),
        record.measures.counter(Count::StreamsEndedWithLoad),
        record.outcomes.get(Outcome::DeadlineExceeded),
    ]
}

#[test]
fn endless_streams_end_with_load() {
    for multiplexes in [false, true] {
        for arrivals in [
            clients(Duration::from_secs(3)).arrivals,
            ArrivalModel::Open(ArrivalSpacing::Constant),
        ] {
            let mut server = TickServer {
                multiplexes,
                ..TickServer::default()
            };
            let is_open = matches!(arrivals, ArrivalModel::Open(_));
            // These deadlines expire exactly at the load's end, for streams that started with it.
            let mut load = LoadPlan {
                arrivals,
                ..clients(Duration::from_secs(3))
            };
            (load.stages[0].rate_from, load.stages[0].rate_to) = (5.0 / 3.0, 5.0 / 3.0);
            let record = run_streams(&load, Some("tick"), &mut server);
            assert_eq!(counts(&record), [5, 5, 5, 0], "{multiplexes} {is_open}");
            assert_eq!(server.streams, 5);
            assert_eq!(record.connections_unused, 0);
            let messages = record.messages.unwrap().received;
            let expected = if is_open { 60..=90 } else { 140..=150 };
            assert!(expected.contains(&messages), "{messages}");
        }
    }
}

#[test]
fn slow_streams_do_not_end_with_load() {
    for multiplexes in [false, true] {
        let server = || TickServer {
            multiplexes,
            ..TickServer::default()
        };
        // One stream ended by itself and its client started another; the others exceed their deadlines.
        let mut ends = TickServer {
            first_ends_after: Some(10),
            ..server()
        };
        let record = run_streams(&clients(Duration::from_secs(4)), None, &mut ends);
        assert_eq!(counts(&record), [6, 1, 0, 5], "{multiplexes}");
        // Deadlines that expire before the load's end take effect.
        let record = run_streams(&clients(Duration::from_secs(2)), None, &mut server());
        assert_eq!(counts(&record), [10, 5, 5, 5], "{multiplexes}");
        // Nothing has arrived, or not what the plan expects.
        let mut silent = TickServer {
            silent: true,
            ..server()
        };
        let deadline = clients(Duration::from_secs(4));
        let record = run_streams(&deadline, None, &mut silent);
        assert_eq!(counts(&record), [5, 0, 0, 5], "{multiplexes}");
        let record = run_streams(&deadline, Some("tock"), &mut server());
        assert_eq!(counts(&record), [5, 0, 0, 5], "{multiplexes}");
        // A load of a number of calls has no end in time.
        let mut number = deadline.clone();
        number.calls = Some(5);
        let record = run_streams(&number, None, &mut server());
        assert_eq!(counts(&record), [5, 0, 0, 5], "{multiplexes}");
    }
}
