//! Conversations over HTTP/1.1 with a model that remembers nothing: it answers with the number of
//! messages that it was sent, and holds users to what it told them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_engine::network::simulated::{Action, Peer, Server, SimulatedNetwork, Weather};
use plimsoll_engine::script::user::Users;
use plimsoll_engine::script::worker::ScriptWorker;
use plimsoll_engine::worker::Share;
use plimsoll_model::measure::{Count, TimeMeasure};
use plimsoll_model::plan::{
    Arrivals, Conversation, EventFormat, EventMatch, EventStream, Goodput, HttpCall, Load, Reuse,
    VaryingBody, VaryingHttp,
};
use plimsoll_model::record::Interval;
use plimsoll_model::schedule::Schedule;
use plimsoll_model::spec::parse_target;
use plimsoll_model::template::{Order, Template, Variation};
use plimsoll_model::{Outcome, Time};
use plimsoll_protocols::http::{Conversations, Http1Protocol, HttpRequest};
use serde_json::Value;

use super::{Alone, START, all_seeds, load, weather};

const TURNS: u32 = 4;

/// One request at a time, whatever connection it comes from.
#[derive(Default)]
struct Model {
    takes: Duration,
    free_at: Time,
    requests: BTreeMap<Peer, Vec<u8>>,
    answers: BTreeMap<Peer, String>,
    broken: Vec<String>,
}

impl Model {
    /// The answer to a whole request.
    fn answer(&mut self, request: &[u8]) -> Option<String> {
        let text = std::str::from_utf8(request).unwrap();
        let (head, body) = text.split_once("\r\n\r\n")?;
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        if body.len() < length.unwrap().parse().unwrap() {
            return None;
        }
        let asked: Value = serde_json::from_str(body).unwrap();
        let messages = asked["messages"].as_array().unwrap();
        let mut expected = vec![("system", "Count.".to_owned())];
        for turn in 0..messages.len() / 2 {
            if turn > 0 {
                expected.push(("assistant", format!("\"{}\" {turn}\n", 2 * turn)));
            }
            expected.push(("user", format!("turn {turn}")));
        }
        let sent: Vec<(&str, String)> = messages
            .iter()
            .map(|m| {
                let content = m["content"].as_str().unwrap();
                // The numbers of a user's calls are in a row.
                let content = match content.strip_prefix("call ") {
                    Some(number) => {
                        format!("turn {}", number.parse::<u32>().unwrap() % TURNS)
                    }
                    None => content.to_owned(),
                };
                (m["role"].as_str().unwrap(), content)
            })
            .collect();
        if sent != expected || asked["model"] != "m" {
            self.broken
                .push(format!("{sent:?} instead of {expected:?}"));
        }
        let turn = messages.len() / 2;
        let pieces = [format!("\"{}\"", messages.len()), format!(" {turn}\n")];
        let mut body = String::new();
        for piece in pieces {
            let event = serde_json::json!({ "choices": [{ "delta": { "content": piece } }] });
            body.push_str(&format!("data: {event}\n\n"));
        }
        body.push_str("data: [DONE]\n\n");
        let length = body.len();
        Some(format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}"
        ))
    }
}

impl Server for Model {
    fn opened(&mut self, peer: Peer, _now: Time, _actions: &mut Vec<Action>) {
        self.requests.insert(peer, Vec::new());
    }

    fn receive(&mut self, peer: Peer, bytes: &[u8], now: Time, actions: &mut Vec<Action>) {
        let mut request = self.requests.remove(&peer).unwrap_or_default();
        request.extend_from_slice(bytes);
        let answer = self.answer(&request);
        if let Some(answer) = answer {
            request.clear();
            self.answers.insert(peer, answer);
            self.free_at = self.free_at.max(now) + self.takes;
            actions.push(Action::Timer {
                after: self.free_at.duration_since(now),
                tag: 0,
            });
        }
        self.requests.insert(peer, request);
    }

    fn timer(&mut self, peer: Peer, _tag: u64, _now: Time, actions: &mut Vec<Action>) {
        if let Some(answer) = self.answers.remove(&peer) {
            actions.push(Action::Send(answer.into_bytes()));
        }
    }

    fn closed(&mut self, peer: Peer, _now: Time) {
        self.requests.remove(&peer);
    }
}

fn varying(typed: &str) -> VaryingBody {
    let template = Template::parse(typed, &mut 0, None).unwrap();
    VaryingBody {
        quoted: vec![false; template.parts().len()],
        template,
        typed: typed.to_owned(),
    }
}

fn run(weather: Weather, think: Duration, load: Load, model: &mut Model) -> Interval {
    let body = r#"{"messages":[{"role":"system","content":"Count."},{"role":"user","content":"call {{seq}}"}],"model":"m"}"#;
    let call = HttpCall {
        method: "POST".into(),
        path: "/v1/chat/completions".into(),
        expect: vec![(200, 200)],
        varying: Some(VaryingHttp {
            variation: Variation::new(1, 1, 0, Order::default()).in_a_row(TURNS),
            path: None,
            headers: Vec::new(),
            body: Some(varying(body)),
        }),
        stream: Some(EventStream {
            format: EventFormat::Sse,
            until: Some(EventMatch::Data("[DONE]".into())),
            error: None,
            tokens: Some(Goodput::default()),
        }),
        conversation: Some(Box::new(Conversation {
            turns: TURNS,
            think,
            follow_ups: Vec::new(),
        })),
        max_body: 10_000,
        ..HttpCall::default()
    };
    let protocol = Http1Protocol::new(&HttpRequest {
        call: &call,
        authority: "h:1",
        closes: false,
    });
    let course = Conversations::new(&call, protocol).unwrap();
    let target = parse_target("http://127.0.0.1:1").unwrap().0;
    let users = Users::new(course, &target, None, load.deadline);
    let clients = match load.arrivals {
        Arrivals::Open(_) => 0,
        Arrivals::Closed { clients, .. } => clients,
    };
    let share = Share {
        index: 0,
        of: 1,
        connections: load.connections,
        clients,
        calls: load.calls,
        schedule: Schedule::new(&load, weather.seed),
        load: Arc::new(load),
        keep_requests: false,
        trace: false,
    };
    let mut control = Alone {
        start: Some(START),
        total: Interval::default(),
    };
    let network = SimulatedNetwork::new(model, weather);
    let mut worker = ScriptWorker::new(share, network, Arc::new(users));
    worker.run(START, &mut control).unwrap();
    drop(worker);
    control.total
}

#[test]
fn the_first_token_of_each_turn_counts_from_when_its_user_had_thought() {
    const USERS: u32 = 10;
    // All begin at once. The model takes them in turn, so each waits for all others, and a user thinks
    // for as long as three of them take: seven are before him when he is back.
    let mut model = Model {
        takes: Duration::from_millis(100),
        ..Model::default()
    };
    let think = Duration::from_millis(300);
    let mut load = Load {
        arrivals: Arrivals::Closed {
            clients: USERS,
            think: Duration::ZERO,
        },
        reuse: Reuse::Always,
        calls: Some(u64::from(USERS * TURNS)),
        deadline: None,
        drain: Duration::from_secs(60),
        ..load(1)
    };
    load.stages[0].duration = None;
    let mut total = run(Weather::calm(1), think, load, &mut model);
    assert_eq!(model.broken, [] as [String; 0]);
    let record = total.stage_mut(0).clone();
    let all = u64::from(USERS * TURNS);
    assert_eq!((record.due, record.ok()), (all, all));
    let measures = record.measures.as_deref().unwrap();
    assert_eq!(measures.of(Count::UsersOk), u64::from(USERS));
    assert_eq!(measures.of(Count::TokensReceived), 2 * all);
    let first = measures.times(TimeMeasure::TimeToFirstToken);
    assert_eq!(first.len(), all);
    // The first turns take 100, 200, … 1,000 ms, the others 700 ms each.
    let (users, later) = (f64::from(USERS), f64::from(TURNS - 1));
    let expected = (550.0 * users + 700.0 * users * later) / (users * (later + 1.0));
    let mean = first.histogram().unwrap().mean() / 1e6;
    let off = (mean / expected - 1.0).abs();
    assert!(off < 0.01, "{mean} ms instead of {expected} ms");
}

#[test]
fn every_turn_is_counted_once_in_any_weather() {
    all_seeds(
        |seed| {
            let mut model = Model {
                takes: Duration::from_millis(seed % 7),
                ..Model::default()
            };
            let mut load = Load {
                reuse: Reuse::Always,
                ..load(seed)
            };
            load.calls = load.calls.map(|calls| calls * u64::from(TURNS));
            let think = Duration::from_millis(seed % 5 * 10);
            let total = run(weather(seed), think, load, &mut model);
            (total, model.broken)
        },
        &[
            Outcome::Ok,
            Outcome::SessionBroken,
            Outcome::DeadlineExceeded,
            Outcome::Reset,
        ],
    );
}
