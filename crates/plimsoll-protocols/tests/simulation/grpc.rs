//! Simulation of the gRPC driver with a server that checks its requests.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_engine::transport::network::simulated::{
    ServerAction, SimulatedPeerId, SimulatedServer,
};
use plimsoll_model::records::record::RecordedInterval;
use plimsoll_model::rows::template::{
    MessageRenderer, RenderContext, RowOrder, VariationSettings, VaryingMessages,
};
use plimsoll_model::{Outcome, Time};
use plimsoll_protocols::grpc::canned::{CannedConnection, CannedOptions, CannedServer};
use plimsoll_protocols::grpc::{
    GrpcCall, GrpcProtocol, GrpcRequest, MessageCompression, MethodKind, StreamPace, StreamPlan,
};
use plimsoll_wire::http2::ErrorCode;

use super::{START, check_every_seed, draw, load, run};

/// The canned server with delays, pauses and random misbehaviour.
pub(super) struct FaultyGrpcServer {
    pub(super) canned: CannedServer,
    pub(super) connections: BTreeMap<SimulatedPeerId, CannedConnection>,
    pub(super) delay: Duration,
    /// The interval in which no response is sent.
    pub(super) stall: Option<(Time, Time)>,
    /// When a graceful GOAWAY is sent to all open connections.
    pub(super) goaway_at: Option<Time>,
    pub(super) broken: Vec<String>,
}

impl FaultyGrpcServer {
    fn send(peer_out: Vec<u8>, actions: &mut Vec<ServerAction>) {
        if !peer_out.is_empty() {
            actions.push(ServerAction::Send(peer_out));
        }
    }
}

impl SimulatedServer for FaultyGrpcServer {
    fn on_open(&mut self, peer: SimulatedPeerId, now: Time, actions: &mut Vec<ServerAction>) {
        let mut connection = self.canned.new_connection();
        let mut out = Vec::new();
        connection.send_preface(&mut out);
        Self::send(out, actions);
        self.connections.insert(peer, connection);
        if let Some(at) = self.goaway_at
            && at > now
        {
            actions.push(ServerAction::Timer {
                after: at.duration_since(now),
                tag: 0,
            });
        }
    }

    fn on_receive(
        &mut self,
        peer: SimulatedPeerId,
        bytes: &[u8],
        now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        let Some(connection) = self.connections.get_mut(&peer) else {
            return;
        };
        let (mut out, mut held) = (Vec::new(), Vec::new());
        if let Err(e) = connection.receive(bytes, &mut out, &mut held) {
            self.broken.push(e.to_string());
            actions.push(ServerAction::Close);
        }
        let mut after = self.delay;
        if let Some((from, to)) = self.stall
            && now + after >= from
            && now + after < to
        {
            after = to.duration_since(now);
        }
        for stream in held {
            actions.push(ServerAction::Timer {
                after,
                tag: u64::from(stream),
            });
        }
        Self::send(out, actions);
    }

    fn on_timer(
        &mut self,
        peer: SimulatedPeerId,
        tag: u64,
        _now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        let Some(connection) = self.connections.get_mut(&peer) else {
            return;
        };
        let mut out = Vec::new();
        match u32::try_from(tag) {
            Ok(0) => {
                connection.announce_goaway(&mut out);
                connection.send_goaway(ErrorCode::NO_ERROR, &mut out);
            }
            Ok(stream) => connection.answer_held_request(stream, &mut out),
            Err(_) => {}
        }
        Self::send(out, actions);
        if connection.is_finished() {
            actions.push(ServerAction::Close);
        }
    }

    fn on_close(&mut self, peer: SimulatedPeerId, _now: Time) {
        self.connections.remove(&peer);
    }
}

/// A renderer of the call's and the message's number, whose messages grow.
#[derive(Debug)]
struct NumberRenderer;

impl MessageRenderer for NumberRenderer {
    fn render(&self, moment: &RenderContext<'_>, out: &mut Vec<u8>) {
        let text = format!("{}/{}", moment.number, moment.message);
        out.extend_from_slice(text.as_bytes());
    }
    fn max_bytes(&self) -> usize {
        50
    }
}

/// Draws a call from the seed: of any kind, paced or not, compressed or not, with constant or varying
/// messages.
fn draw_call(seed: u64, answers: u32) -> GrpcCall {
    let pick = |name, from, to| draw(seed, name, from, to);
    let chance = |name, one_in: u64| pick(name, 1, one_in) == 1;
    let kind = method_kind(seed);
    let message = |name| vec![7; pick(name, 0, 200) as usize];
    let varying = chance(43, 3).then(|| VaryingMessages {
        variation: VariationSettings::new(seed, 1, 1, RowOrder::RoundRobin),
        messages: vec![Arc::new(NumberRenderer)],
    });
    let stream = (kind != MethodKind::Unary).then(|| StreamPlan {
        kind,
        messages: vec![message(36), message(44)],
        count: match kind.is_client_streaming() {
            // More would only take time, since the simulated network delivers a few bytes at once.
            true => pick(45, 0, 8) as u32,
            false => 1,
        },
        pace: match pick(46, 0, 3) {
            0 if kind == MethodKind::Bidirectional => StreamPace::Answers,
            1 => StreamPace::Every(Duration::from_micros(pick(47, 1, 20_000))),
            _ => StreamPace::None,
        },
        expect: (kind.is_server_streaming() && chance(48, 2))
            .then(|| answers + pick(49, 0, 2) as u32 - 1),
        cancel_after: chance(50, 5).then(|| pick(51, 0, 4) as u32),
        duration: None,
    });
    GrpcCall {
        message: message(36),
        stream,
        varying,
        compression: chance(52, 3).then_some(MessageCompression::Gzip),
        ..unary(seed)
    }
}

fn method_kind(seed: u64) -> MethodKind {
    [
        MethodKind::Unary,
        MethodKind::ServerStreaming,
        MethodKind::ClientStreaming,
        MethodKind::Bidirectional,
    ][draw(seed, 41, 0, 3) as usize]
}

pub(super) fn unary(seed: u64) -> GrpcCall {
    GrpcCall {
        method: "score.ScoreService/GetScore".to_owned(),
        message: vec![7; draw(seed, 36, 0, 700) as usize],
        metadata: vec![("x-run".to_owned(), "simulated".to_owned())],
        max_message: 4 << 20,
        ..GrpcCall::default()
    }
}

/// Simulates calls of every kind, and checks that their message counts are consistent.
fn simulate_any(seed: u64) -> (RecordedInterval, Vec<String>) {
    let answers = if method_kind(seed).is_server_streaming() {
        draw(seed, 42, 1, 6) as u32
    } else {
        1
    };
    let options = CannedOptions {
        messages: answers,
        streams: true,
        ..CannedOptions::default()
    };
    let length = options.message.len() as u64 + 5;
    let (mut total, mut broken) = simulate_call(seed, &draw_call(seed, answers), options);
    let record = total.stage_mut(0);
    if let Some(messages) = &record.messages {
        let most = u64::from(answers) * record.ended_calls();
        let (sent, received) = (record.bytes_sent, record.bytes_received);
        for (wrong, what) in [
            (messages.received > most, "more messages than were sent"),
            (
                received < messages.received * length,
                "messages without bytes",
            ),
            (received > most * length, "more bytes than were sent"),
            (sent < messages.sent * 5, "messages sent without bytes"),
        ] {
            if wrong {
                broken.push(format!("{what}: {messages:?}, {sent} B, {received} B"));
            }
        }
    }
    (total, broken)
}

fn simulate(seed: u64) -> (RecordedInterval, Vec<String>) {
    simulate_call(seed, &unary(seed), CannedOptions::default())
}

fn simulate_call(
    seed: u64,
    call: &GrpcCall,
    answer: CannedOptions,
) -> (RecordedInterval, Vec<String>) {
    let pick = |name, from, to| draw(seed, name, from, to);
    let chance = |name, one_in: u64| pick(name, 1, one_in) == 1;
    let goaway_after = chance(5, 4).then(|| pick(6, 1, 60));
    let options = CannedOptions {
        answered_by_caller: true,
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
        ..answer
    };
    let mut server = FaultyGrpcServer {
        canned: CannedServer::new(options),
        connections: BTreeMap::new(),
        delay: Duration::from_micros(pick(12, 0, 30_000)),
        stall: chance(13, 3).then(|| {
            let from = START.plus_nanos(pick(14, 0, 600_000_000));
            (from, from.plus_nanos(pick(15, 1_000_000, 700_000_000)))
        }),
        // A server that has sent GOAWAY does not announce it afterwards.
        goaway_at: (chance(16, 4) && goaway_after.is_none())
            .then(|| START.plus_nanos(pick(17, 0, 800_000_000))),
        broken: Vec::new(),
    };
    let load = load(seed);
    let protocol = GrpcProtocol::new(&GrpcRequest {
        call,
        authority: "localhost:1",
        secure: false,
        deadline: load.deadline,
    })
    .unwrap();
    let total = run(seed, load, &mut server, protocol);
    (total, server.broken)
}

#[test]
fn calls_counted_once_despite_faults() {
    let expected = [
        Outcome::Ok,
        Outcome::DeadlineExceeded,
        Outcome::Unavailable,
        Outcome::Goaway,
        Outcome::Reset,
        Outcome::StreamRefused,
        Outcome::ConnectRefused,
        Outcome::ConnectTimeout,
    ];
    check_every_seed(simulate, &expected);
}

#[test]
fn all_call_types_counted_despite_faults() {
    let expected = [
        Outcome::Ok,
        Outcome::DeadlineExceeded,
        Outcome::Goaway,
        Outcome::StreamRefused,
        Outcome::StreamShort,
        Outcome::StreamLong,
    ];
    check_every_seed(simulate_any, &expected);
}

#[test]
fn same_seed_reproduces_run() {
    for seed in [3, 17, 400] {
        assert_eq!(simulate_any(seed), simulate_any(seed));
        assert_eq!(simulate(seed), simulate(seed));
    }
}
