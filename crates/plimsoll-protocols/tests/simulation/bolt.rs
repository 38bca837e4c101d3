//! Simulation of the SOFABolt driver with a service that answers late, twice, without a request, or not at
//! all.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use plimsoll_engine::transport::network::simulated::{
    ServerAction, SimulatedPeerId, SimulatedServer,
};
use plimsoll_model::plan::ArrivalModel;
use plimsoll_model::records::record::RecordedInterval;
use plimsoll_model::{Outcome, Time};
use plimsoll_protocols::bolt::frame::DEFAULT_MAX_CONTENT_BYTES;
use plimsoll_protocols::bolt::{
    BoltCall, BoltCommand, BoltFrame, BoltFrameKind, BoltProtocol, FrameLayout, Status,
};

use super::{START, check_every_seed, draw, load, run};

/// Timer tags above those of responses.
const GOAWAY: u64 = 1 << 40;

/// One client's connection.
#[derive(Default)]
struct BoltConnection {
    partial: Vec<u8>,
    /// Ids of requests that are not yet answered.
    in_progress: BTreeSet<u32>,
    taken: u64,
}

/// A service that misbehaves at random.
struct FaultyBoltService {
    seed: u64,
    connections: BTreeMap<SimulatedPeerId, BoltConnection>,
    form: FrameLayout,
    content: Vec<u8>,
    delay: Duration,
    /// The interval in which no response is sent.
    stall: Option<(Time, Time)>,
    /// When GoAway is sent to all open connections.
    goaway_at: Option<Time>,
    /// Every nth request of a connection fails with this status; the following fields say which are answered
    /// twice, never, or after an unrelated response.
    fails: Option<(u64, Status)>,
    twice: Option<u64>,
    never: Option<u64>,
    stray: Option<u64>,
    /// Closes a connection after this many requests.
    closes_after: Option<u64>,
    answers_heartbeats: bool,
    broken: Vec<String>,
}

fn is_nth(every: Option<u64>, number: u64) -> bool {
    every.is_some_and(|every| number.is_multiple_of(every))
}

impl FaultyBoltService {
    /// Handles a frame; returns a complaint if the client must not send it.
    fn take(
        &mut self,
        peer: SimulatedPeerId,
        frame: &BoltFrame<'_>,
        now: Time,
        actions: &mut Vec<ServerAction>,
    ) -> Result<(), String> {
        let Some(connection) = self.connections.get_mut(&peer) else {
            return Ok(());
        };
        // Heartbeats have no checksum, like those of SOFABolt.
        let expected = match frame.command {
            BoltCommand::Heartbeat => self.form.without_checksum(),
            _ => self.form,
        };
        if frame.layout != expected {
            return Err(format!("a frame of layout {:?}", frame.layout));
        }
        let wants_answer = match (frame.kind, frame.command) {
            (BoltFrameKind::Request { .. }, BoltCommand::Heartbeat) => {
                if self.answers_heartbeats {
                    let mut out = Vec::new();
                    BoltFrame::heartbeat_ack(frame.layout, frame.id).write(&mut out);
                    actions.push(ServerAction::Send(out));
                }
                return Ok(());
            }
            (BoltFrameKind::Request { .. }, BoltCommand::RpcRequest) => true,
            (BoltFrameKind::Oneway { .. }, BoltCommand::RpcRequest) => false,
            _ => {
                return Err(format!(
                    "{:?} {:?} from a client",
                    frame.kind, frame.command
                ));
            }
        };
        if frame.content != self.content || frame.class != b"a.B" {
            return Err("a request that was not prepared".to_owned());
        }
        connection.taken += 1;
        let number = connection.taken;
        if self.closes_after == Some(number) {
            actions.push(ServerAction::Close);
            return Ok(());
        }
        if !wants_answer || is_nth(self.never, number) {
            return Ok(());
        }
        if !connection.in_progress.insert(frame.id) {
            return Err(format!("id {} again while it is in progress", frame.id));
        }
        // Responses may overtake each other.
        let mut after = self.delay + Duration::from_micros(draw(self.seed, number, 0, 3_000));
        if let Some((from, to)) = self.stall
            && now + after >= from
            && now + after < to
        {
            after = to.duration_since(now);
        }
        let times = if is_nth(self.twice, number) { 2 } else { 1 };
        for _ in 0..times {
            // The tag carries the request's number modulo 256, on which its outcome depends.
            actions.push(ServerAction::Timer {
                after,
                tag: (number & 0xff) << 32 | u64::from(frame.id),
            });
        }
        Ok(())
    }
}

impl SimulatedServer for FaultyBoltService {
    fn on_open(&mut self, peer: SimulatedPeerId, now: Time, actions: &mut Vec<ServerAction>) {
        self.connections.insert(peer, BoltConnection::default());
        if let Some(at) = self.goaway_at
            && at > now
        {
            actions.push(ServerAction::Timer {
                after: at.duration_since(now),
                tag: GOAWAY,
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
        let mut input = std::mem::take(&mut connection.partial);
        input.extend_from_slice(bytes);
        let mut at = 0;
        loop {
            match BoltFrame::parse(&input[at..], DEFAULT_MAX_CONTENT_BYTES) {
                Ok(Some((frame, length))) => {
                    if let Err(what) = self.take(peer, &frame, now, actions) {
                        self.broken.push(what);
                        actions.push(ServerAction::Close);
                    }
                    at += length;
                }
                Ok(None) => break,
                Err(error) => {
                    self.broken.push(error.to_string());
                    actions.push(ServerAction::Close);
                    return;
                }
            }
        }
        if let Some(connection) = self.connections.get_mut(&peer) {
            connection.partial = input[at..].to_vec();
        }
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
        if tag == GOAWAY {
            BoltFrame {
                command: BoltCommand::GoAway,
                kind: BoltFrameKind::Oneway { timeout: -1 },
                ..BoltFrame::heartbeat(self.form, 0)
            }
            .write(&mut out);
            actions.push(ServerAction::Send(out));
            return;
        }
        let (id, number) = (tag as u32, tag >> 32);
        connection.in_progress.remove(&id);
        if is_nth(self.stray, number) {
            let stray = BoltFrame::status_response(self.form, id ^ 0x8000_0000, 1, Status::Success);
            stray.write(&mut out);
        }
        let status = match self.fails {
            Some((every, status)) if number.is_multiple_of(every) => status,
            _ => Status::Success,
        };
        BoltFrame::status_response(self.form, id, 1, status).write(&mut out);
        actions.push(ServerAction::Send(out));
    }

    fn on_close(&mut self, peer: SimulatedPeerId, _now: Time) {
        self.connections.remove(&peer);
    }
}

fn simulate(seed: u64) -> (RecordedInterval, Vec<String>) {
    let pick = |name, from, to| draw(seed, name, from, to);
    let chance = |name, one_in: u64| pick(name, 1, one_in) == 1;
    let form = [FrameLayout::V1, FrameLayout::V2, FrameLayout::V2_CRC][pick(101, 0, 2) as usize];
    let content = vec![7; pick(102, 0, 700) as usize];
    let mut server = FaultyBoltService {
        seed,
        connections: BTreeMap::new(),
        form,
        content: content.clone(),
        delay: Duration::from_micros(pick(103, 0, 30_000)),
        stall: chance(104, 3).then(|| {
            let from = START.plus_nanos(pick(105, 0, 600_000_000));
            (from, from.plus_nanos(pick(106, 1_000_000, 700_000_000)))
        }),
        goaway_at: chance(107, 4).then(|| START.plus_nanos(pick(108, 0, 800_000_000))),
        fails: chance(109, 3).then(|| {
            let status = [Status::ServerThreadpoolBusy, Status::Timeout];
            (pick(110, 1, 9), status[pick(111, 0, 1) as usize])
        }),
        twice: chance(112, 4).then(|| pick(113, 1, 9)),
        never: chance(114, 4).then(|| pick(115, 2, 20)),
        stray: chance(116, 4).then(|| pick(117, 1, 9)),
        closes_after: chance(118, 4).then(|| pick(119, 1, 60)),
        answers_heartbeats: !chance(120, 4),
        broken: Vec::new(),
    };
    let load = load(seed);
    let protocol = BoltProtocol::new(&BoltCall {
        layout: form,
        class: b"a.B".to_vec(),
        content,
        timeout: load.deadline,
        // In a closed loop, calls that end when they are sent would never wait.
        oneway: chance(121, 8) && matches!(load.arrivals, ArrivalModel::Open(_)),
        in_flight: chance(122, 3).then(|| pick(123, 1, 8) as u32),
        heartbeat: chance(124, 2).then(|| Duration::from_millis(pick(125, 1, 200))),
        ..BoltCall::default()
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
        Outcome::coded("BOLT_SERVER_THREADPOOL_BUSY"),
        Outcome::coded("BOLT_TIMEOUT"),
        Outcome::Reset,
        Outcome::ConnectionClosed,
        Outcome::ConnectRefused,
        Outcome::ConnectTimeout,
    ];
    check_every_seed(simulate, &expected);
}

#[test]
fn same_seed_reproduces_run() {
    for seed in [3, 17, 400] {
        assert_eq!(simulate(seed), simulate(seed));
    }
}
