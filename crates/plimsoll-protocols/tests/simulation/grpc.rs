//! gRPC: the driver, and a server that checks what it is sent.

use std::collections::BTreeMap;
use std::time::Duration;

use plimsoll_engine::network::simulated::{Action, Peer, Server};
use plimsoll_model::plan::GrpcCall;
use plimsoll_model::record::Interval;
use plimsoll_model::{Outcome, Time};
use plimsoll_protocols::grpc::canned::{Canned, CannedConnection, CannedOptions};
use plimsoll_protocols::grpc::h2::ErrorCode;
use plimsoll_protocols::grpc::{GrpcProtocol, GrpcRequest};

use super::{START, choose, every_seed, load, run};

/// The canned server with delays, pauses and moods.
struct Moody {
    canned: Canned,
    connections: BTreeMap<Peer, CannedConnection>,
    delay: Duration,
    /// From one moment to another, no answer leaves.
    stall: Option<(Time, Time)>,
    /// A graceful GOAWAY to every connection that lives at this moment.
    goaway_at: Option<Time>,
    broken: Vec<String>,
}

impl Moody {
    fn send(peer_out: Vec<u8>, actions: &mut Vec<Action>) {
        if !peer_out.is_empty() {
            actions.push(Action::Send(peer_out));
        }
    }
}

impl Server for Moody {
    fn opened(&mut self, peer: Peer, now: Time, actions: &mut Vec<Action>) {
        let mut connection = self.canned.connection();
        let mut out = Vec::new();
        connection.open(&mut out);
        Self::send(out, actions);
        self.connections.insert(peer, connection);
        if let Some(at) = self.goaway_at
            && at > now
        {
            actions.push(Action::Timer {
                after: at.duration_since(now),
                tag: 0,
            });
        }
    }

    fn receive(&mut self, peer: Peer, bytes: &[u8], now: Time, actions: &mut Vec<Action>) {
        let Some(connection) = self.connections.get_mut(&peer) else {
            return;
        };
        let (mut out, mut held) = (Vec::new(), Vec::new());
        if let Err(e) = connection.receive(bytes, &mut out, &mut held) {
            self.broken.push(e.to_string());
            actions.push(Action::Close);
        }
        let mut after = self.delay;
        if let Some((from, to)) = self.stall
            && now + after >= from
            && now + after < to
        {
            after = to.duration_since(now);
        }
        for stream in held {
            actions.push(Action::Timer {
                after,
                tag: u64::from(stream),
            });
        }
        Self::send(out, actions);
    }

    fn timer(&mut self, peer: Peer, tag: u64, _now: Time, actions: &mut Vec<Action>) {
        let Some(connection) = self.connections.get_mut(&peer) else {
            return;
        };
        let mut out = Vec::new();
        match u32::try_from(tag) {
            Ok(0) => {
                connection.announce_goaway(&mut out);
                connection.goaway(ErrorCode::NO_ERROR, &mut out);
            }
            Ok(stream) => connection.complete(stream, &mut out),
            Err(_) => {}
        }
        Self::send(out, actions);
        if connection.is_finished() {
            actions.push(Action::Close);
        }
    }

    fn closed(&mut self, peer: Peer, _now: Time) {
        self.connections.remove(&peer);
    }
}

fn simulate(seed: u64) -> (Interval, Vec<String>) {
    let pick = |name, from, to| choose(seed, name, from, to);
    let chance = |name, one_in: u64| pick(name, 1, one_in) == 1;
    let goaway_after = chance(5, 4).then(|| pick(6, 1, 60));
    let options = CannedOptions {
        hold: true,
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
        ..CannedOptions::default()
    };
    let mut server = Moody {
        canned: Canned::new(options),
        connections: BTreeMap::new(),
        delay: Duration::from_micros(pick(12, 0, 30_000)),
        stall: chance(13, 3).then(|| {
            let from = START.plus_nanos(pick(14, 0, 600_000_000));
            (from, from.plus_nanos(pick(15, 1_000_000, 700_000_000)))
        }),
        // A server that has gone away does not announce it afterwards.
        goaway_at: (chance(16, 4) && goaway_after.is_none())
            .then(|| START.plus_nanos(pick(17, 0, 800_000_000))),
        broken: Vec::new(),
    };
    let load = load(seed);
    let call = GrpcCall {
        method: "score.ScoreService/GetScore".to_owned(),
        message: vec![7; pick(36, 0, 700) as usize],
        metadata: vec![("x-run".to_owned(), "simulated".to_owned())],
        max_message: 4 << 20,
        ..GrpcCall::default()
    };
    let protocol = GrpcProtocol::new(&GrpcRequest {
        call: &call,
        authority: "localhost:1",
        secure: false,
        deadline: load.deadline,
    })
    .unwrap();
    let total = run(seed, load, &mut server, protocol);
    (total, server.broken)
}

#[test]
fn two_thousand_seeds() {
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
    every_seed(simulate, &expected);
}

#[test]
fn a_seed_is_a_run() {
    for seed in [3, 17, 400] {
        assert_eq!(simulate(seed), simulate(seed));
    }
}
