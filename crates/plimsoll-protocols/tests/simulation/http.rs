//! HTTP/1.1 against a server whose every answer follows by arithmetic: it takes one request at a
//! time, for 100 ms.

use std::collections::BTreeMap;
use std::time::Duration;

use plimsoll_engine::network::simulated::{Action, Peer, Server, Weather};
use plimsoll_model::plan::{
    Arrivals, EventFormat, EventMatch, EventStream, HttpCall, Load, Reuse, Spacing,
};
use plimsoll_model::record::{StageRecord, Times};
use plimsoll_model::{Outcome, Time};
use plimsoll_protocols::http::{Http1Protocol, HttpRequest};

use super::{check, load, run, run_in};

const TAKES: Duration = Duration::from_millis(100);
/// Arrivals come twice as fast as that.
const GAP_MS: f64 = 50.0;
const CALLS: u64 = 200;

/// One request at a time, whatever connection it comes from.
#[derive(Default)]
struct OneAtATime {
    free_at: Time,
    heads: BTreeMap<Peer, Vec<u8>>,
}

const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
    12\r\ndata: 1\n\ndata: 2\n\n\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";

impl Server for OneAtATime {
    fn opened(&mut self, peer: Peer, _now: Time, _actions: &mut Vec<Action>) {
        self.heads.insert(peer, Vec::new());
    }

    fn receive(&mut self, peer: Peer, bytes: &[u8], now: Time, actions: &mut Vec<Action>) {
        let Some(head) = self.heads.get_mut(&peer) else {
            return;
        };
        head.extend_from_slice(bytes);
        if head.ends_with(b"\r\n\r\n") {
            head.clear();
            self.free_at = self.free_at.max(now) + TAKES;
            actions.push(Action::Timer {
                after: self.free_at.duration_since(now),
                tag: 0,
            });
        }
    }

    fn timer(&mut self, _peer: Peer, _tag: u64, _now: Time, actions: &mut Vec<Action>) {
        actions.push(Action::Send(ANSWER.to_vec()));
    }

    fn closed(&mut self, peer: Peer, _now: Time) {
        self.heads.remove(&peer);
    }
}

fn protocol(streams: bool) -> Http1Protocol {
    let call = HttpCall {
        method: "GET".into(),
        path: "/".into(),
        expect: vec![(200, 200)],
        stream: streams.then(|| EventStream {
            format: EventFormat::Sse,
            until: Some(EventMatch::Data("[DONE]".into())),
            error: None,
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

fn measured(connections: u32, streams: bool) -> StageRecord {
    let mut load = Load {
        arrivals: Arrivals::Open(Spacing::Constant),
        connections,
        reuse: Reuse::Always,
        calls: Some(CALLS),
        deadline: None,
        drain: Duration::from_secs(60),
        ..load(1)
    };
    load.stages[0].duration = Some(Duration::from_secs(10));
    (load.stages[0].rate_from, load.stages[0].rate_to) = (1_000.0 / GAP_MS, 1_000.0 / GAP_MS);
    let mut server = OneAtATime::default();
    let weather = Weather::calm(1);
    let mut total = run_in(weather, load, &mut server, protocol(streams), None);
    total.stage_mut(0).clone()
}

fn mean_ms(times: &Times) -> f64 {
    times.histogram().unwrap().mean() / 1e6
}

#[test]
fn times_count_from_when_a_call_was_due_wherever_it_waits() {
    // Call k is due at 50 k ms, and answered at 100 (k + 1) ms.
    let expected: f64 = (0..CALLS)
        .map(|k| 100.0 * (k + 1) as f64 - GAP_MS * k as f64)
        .sum();
    let expected = expected / CALLS as f64;
    // It waits at the generator for the one connection, or at the server.
    for connections in [1, 300] {
        for streams in [false, true] {
            let record = measured(connections, streams);
            assert_eq!((record.due, record.ok()), (CALLS, CALLS));
            let mean = mean_ms(&record.response);
            let off = (mean / expected - 1.0).abs();
            assert!(
                off < 0.01,
                "{connections}: {mean} ms instead of {expected} ms"
            );
            let events = if streams { 3 * CALLS } else { 0 };
            let messages = record.messages.as_deref();
            assert_eq!(messages.map_or(0, |messages| messages.received), events);
            if let (Some(messages), 1, true) = (messages, connections, streams) {
                // From the send, as every service time.
                let first = mean_ms(&messages.first_message);
                assert!((first / 100.0 - 1.0).abs() < 0.01, "{first} ms");
            }
        }
    }
}

#[test]
fn every_call_is_counted_once_in_any_weather() {
    for seed in 0..500 {
        let mut server = OneAtATime::default();
        let load = Load {
            deadline: Some(Duration::from_millis(300)),
            ..load(seed)
        };
        let total = run(seed, load, &mut server, protocol(seed % 2 == 0));
        let record = check(seed, total, &[]).unwrap();
        assert_eq!(record.outcomes.of(Outcome::BadAnswer), 0, "seed {seed}");
    }
}
