//! Simulation of journeys with a WebSocket: users who log in over HTTP, open a socket, send another request while news
//! arrive, read the news, and say something, on a server that refuses, closes and resets some sockets.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_engine::script::user::UserScripts;
use plimsoll_engine::script::worker::ScriptWorker;
use plimsoll_engine::transport::network::simulated::{
    NetworkConditions, ServerAction, SimulatedNetwork, SimulatedPeerId, SimulatedServer,
};
use plimsoll_engine::worker::WorkerShare;
use plimsoll_model::metrics::measure::Count;
use plimsoll_model::plan::Shard;
use plimsoll_model::records::record::{RecordedInterval, StageRecord};
use plimsoll_model::{Outcome, Plan, Time};
use plimsoll_protocols::http::HttpCall;
use plimsoll_protocols::journey::JourneyScenario;
use plimsoll_wire::websocket::{
    Opcode, ReaderRole, WebSocketMessage, WebSocketReader, append_frame, derive_accept_key,
    encode_close_payload,
};

use super::journeys::{plan, step};
use super::{START, SoleWorkerControl, draw};

const NEWS: u64 = 3;

const STEPS: &str = r#"
target = "http://h:1"
[[steps]]
name = "log in"
path = "/login"
take.id = "/id"
[[steps]]
name = "open"
target = "ws://h:2"
path = "/room/{{id}}"
until = "welcome"
take.door = { header = "x-door" }
on_failure = "RULE"
ATTEMPTS
[[steps]]
name = "look"
path = "/look"
pause = "1ms"
[[steps]]
name = "read"
target = "ws://h:2"
until = 3
take.news = { regex = "news ([0-9])" }
on_failure = "continue"
[[steps]]
name = "say"
target = "ws://h:2"
send = ["{{id}} through {{door}}", "over"]
until = "contains:said {{id}}"
pause = "exponential 1ms"
repeat = 2
[[steps]]
name = "close"
target = "ws://h:2"
close = true
"#;

/// A server of requests and sockets.
#[derive(Default)]
struct Rooms {
    seed: u64,
    /// The shares of upgrades that are refused, and of sayings that end in a Close or a reset, in per cent.
    refused: u64,
    closed: u64,
    reset: u64,
    requests: u64,
    received: BTreeMap<SimulatedPeerId, Vec<u8>>,
    sockets: BTreeMap<SimulatedPeerId, WebSocketReader>,
    /// Sockets that were opened, and those that the server has ended.
    opened: u64,
    ended: u64,
    sayings: u64,
    /// Messages that were sent.
    sent: u64,
    /// Closes from clients that the server had not closed.
    closes: u64,
    problems: Vec<String>,
}

impl Rooms {
    fn chance(&mut self, name: u64, per_cent: u64) -> bool {
        self.requests += 1;
        draw(self.seed, self.requests << 8 | name, 0, 99) < per_cent
    }

    fn send(&mut self, text: &str) -> ServerAction {
        self.sent += 1;
        let mut frame = Vec::new();
        append_frame(&mut frame, Opcode::Text, text.as_bytes());
        ServerAction::Send(frame)
    }

    fn upgrade(&mut self, peer: SimulatedPeerId, head: &str, actions: &mut Vec<ServerAction>) {
        if !head.starts_with("GET /room/m-") {
            self.problems.push(head.to_owned());
        }
        if self.chance(1, self.refused) {
            let refusal = b"HTTP/1.1 503 X\r\ncontent-length: 0\r\n\r\n";
            return actions.push(ServerAction::Send(refusal.to_vec()));
        }
        self.opened += 1;
        let key = head.split("sec-websocket-key: ").nth(1).unwrap();
        let accept = derive_accept_key(key.lines().next().unwrap().as_bytes());
        let head = format!(
            "HTTP/1.1 101 X\r\nupgrade: websocket\r\nconnection: upgrade\r\nx-door: d-1\r\n\
             sec-websocket-accept: {accept}\r\n\r\n"
        );
        actions.push(ServerAction::Send(head.into_bytes()));
        actions.push(self.send("welcome"));
        self.sockets
            .insert(peer, WebSocketReader::new(ReaderRole::Server, 1 << 10));
        for tag in 0..NEWS {
            let after = Duration::from_micros(draw(self.seed, self.opened, 0, 2_000) * (tag + 1));
            actions.push(ServerAction::Timer { after, tag });
        }
    }

    fn on_frame(&mut self, peer: SimulatedPeerId, text: &str, actions: &mut Vec<ServerAction>) {
        let Some((id, "d-1")) = text.split_once(" through ") else {
            if text != "over" {
                self.problems.push(text.to_owned());
            }
            return;
        };
        self.sayings += 1;
        if self.chance(2, self.closed) {
            let mut frame = Vec::new();
            append_frame(
                &mut frame,
                Opcode::Close,
                &encode_close_payload(1013, "later"),
            );
            actions.push(ServerAction::Send(frame));
            (self.ended, _) = (self.ended + 1, self.sockets.remove(&peer));
        } else if self.chance(3, self.reset) {
            actions.push(ServerAction::Reset);
            (self.ended, _) = (self.ended + 1, self.sockets.remove(&peer));
        } else {
            let said = format!("said {id}");
            actions.push(self.send(&said));
        }
    }
}

impl SimulatedServer for Rooms {
    fn on_open(&mut self, peer: SimulatedPeerId, _: Time, _: &mut Vec<ServerAction>) {
        self.received.insert(peer, Vec::new());
    }

    fn on_receive(
        &mut self,
        peer: SimulatedPeerId,
        bytes: &[u8],
        _: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        if let Some(mut reader) = self.sockets.remove(&peer) {
            let (mut frames, mut close) = (Vec::new(), None);
            let read = reader.read(bytes, |message| {
                match message {
                    WebSocketMessage::Text(text) => frames.push(text.to_owned()),
                    WebSocketMessage::Close { code, .. } => close = Some(code),
                    other => panic!("{other:?}"),
                }
                ControlFlow::Continue(())
            });
            assert!(read.is_ok(), "{read:?}");
            self.sockets.insert(peer, reader);
            for text in frames {
                self.on_frame(peer, &text, actions);
            }
            if let Some(code) = close {
                assert_eq!(code, 1000);
                self.closes += u64::from(self.sockets.remove(&peer).is_some());
                let mut frame = Vec::new();
                append_frame(&mut frame, Opcode::Close, &encode_close_payload(code, ""));
                actions.extend([ServerAction::Send(frame), ServerAction::Close]);
            }
            return;
        }
        let Some(received) = self.received.get_mut(&peer) else {
            return;
        };
        received.extend_from_slice(bytes);
        if !received.ends_with(b"\r\n\r\n") {
            return;
        }
        let head = String::from_utf8(std::mem::take(received)).unwrap();
        if head.contains("upgrade: websocket") {
            self.received.remove(&peer);
            return self.upgrade(peer, &head, actions);
        }
        self.requests += 1;
        let body = format!("{{\"id\":\"m-{}\"}}", self.requests);
        let length = body.len();
        let answer = format!("HTTP/1.1 200 X\r\ncontent-length: {length}\r\n\r\n{body}");
        actions.push(ServerAction::Send(answer.into_bytes()));
    }

    fn on_timer(
        &mut self,
        peer: SimulatedPeerId,
        tag: u64,
        _: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        if self.sockets.contains_key(&peer) {
            let text = format!("news {tag}");
            actions.push(self.send(&text));
        }
    }
}

/// Runs a plan against the server over a network without faults of its own.
fn run(plan: &Plan, seed: u64, rooms: &mut Rooms) -> StageRecord {
    let call: &HttpCall = plan.call.downcast_ref().unwrap();
    let journey = call.journey.as_ref().unwrap();
    let steps = journey.prepare(&["h:1", "h:2"], &plan.load).unwrap();
    let scenario = JourneyScenario::new(Arc::new((**journey).clone()), steps, plan.seed);
    let second = plan.call.other_targets()[0].0.clone();
    let links = vec![(plan.target.clone(), None), (second, None)];
    let users = UserScripts::with_links(scenario, links, &plan.load);
    let share = WorkerShare::new(Shard::WHOLE_RUN, Arc::new(plan.load.clone()), seed);
    let mut control = SoleWorkerControl {
        start: Some(START),
        total: RecordedInterval::default(),
    };
    let conditions = NetworkConditions {
        piece: 1..=draw(seed, 9, 1, 40) as usize,
        ..NetworkConditions::faultless(seed)
    };
    let network = SimulatedNetwork::new(rooms, conditions);
    let mut worker = ScriptWorker::new(share, network, Arc::new(users));
    worker.run(START, &mut control).unwrap();
    drop(worker);
    let mut total = control.total;
    total.stage_mut(0).clone()
}

#[test]
fn every_socket_step_is_accounted_for() {
    let (mut ok, mut failed, mut retried, mut closed) = (0, 0, 0, 0);
    for seed in 0..1_000 {
        let pick = |name, from, to| draw(seed, name, from, to);
        let (rule, attempts) = match pick(1, 0, 1) {
            0 => ("end", ""),
            _ => ("retry", "attempts = 3\nbackoff = \"1ms\""),
        };
        let users = pick(2, 1, 20);
        let load = if pick(3, 0, 1) == 0 {
            format!("[load]\nclients = {}\ncalls = {users}\n", pick(4, 1, users))
        } else {
            format!("[load]\nrate = \"500/s\"\narrivals = \"poisson\"\ncalls = {users}\n")
        };
        let text = STEPS.replace("RULE", rule).replace("ATTEMPTS", attempts);
        let plan = plan(&format!("seed = {seed}\n{text}{load}"));
        // A third of the servers never fail.
        let share = |name, to| if seed % 3 == 0 { 0 } else { pick(name, 0, to) };
        let mut rooms = Rooms {
            seed,
            refused: share(5, 40),
            closed: share(6, 20),
            reset: share(7, 20),
            ..Rooms::default()
        };
        let record = run(&plan, seed, &mut rooms);
        assert_eq!(rooms.problems, [] as [String; 0], "seed {seed}");
        assert_eq!(record.due, record.ended_calls(), "seed {seed}");
        let of = |name: &str| {
            let step = step(&record, name);
            assert_eq!(step.due, step.outcomes.total(), "seed {seed}: {name}");
            (step.due, step.ok_calls())
        };
        let names = ["log in", "open", "look", "read", "say", "close"];
        let due: u64 = names.iter().map(|name| of(name).0).sum();
        assert_eq!(record.due, due, "seed {seed}");
        let count = |count| record.measures.counter(count);
        let (users_ok, users_failed) = (count(Count::UsersOk), count(Count::UsersFailed));
        assert_eq!(users_ok + users_failed, users, "seed {seed}");
        assert_eq!(of("close").1, users_ok, "seed {seed}");
        assert_eq!(of("open").1, rooms.opened, "seed {seed}");
        assert_eq!(of("say").0, rooms.sayings, "seed {seed}");
        // Whatever happened to their users, sockets that the server has not ended were closed in order.
        assert_eq!(rooms.closes, rooms.opened - rooms.ended, "seed {seed}");
        let lost = record.outcomes.get(Outcome::SocketClosed) + record.outcomes.get(Outcome::Reset);
        assert_eq!(lost, rooms.ended, "seed {seed}");
        let received = record
            .messages
            .as_ref()
            .map_or(0, |messages| messages.received);
        let read = rooms.opened + NEWS * of("read").1 + of("say").1;
        assert_eq!(received, read, "seed {seed}");
        if users_ok == users && rooms.opened == users {
            assert_eq!(received, rooms.sent, "seed {seed}");
        }
        (ok, failed) = (ok + users_ok, failed + users_failed);
        (retried, closed) = (retried + of("open").0 - users, closed + lost);
    }
    assert!(
        ok > 1_000 && failed > 1_000 && retried > 300 && closed > 300,
        "{ok} {failed} {retried} {closed}"
    );
}
