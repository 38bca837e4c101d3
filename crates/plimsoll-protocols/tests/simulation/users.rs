//! Simulation of conversations over both versions of HTTP with a stateless model: it answers with the number
//! of messages that it received, and checks that users repeat what it told them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_engine::driver::Protocol;
use plimsoll_engine::script::user::UserScripts;
use plimsoll_engine::script::worker::ScriptWorker;
use plimsoll_engine::transport::network::simulated::{
    NetworkConditions, ServerAction, SimulatedNetwork, SimulatedPeerId, SimulatedServer,
};
use plimsoll_engine::worker::WorkerShare;
use plimsoll_model::metrics::measure::{Count, TimeMeasure};
use plimsoll_model::plan::{ArrivalModel, ConnectionReuse, LoadPlan, Shard, Target};
use plimsoll_model::records::record::RecordedInterval;
use plimsoll_model::rows::template::{RowOrder, Template, VariationSettings};
use plimsoll_model::{Outcome, Time};
use plimsoll_protocols::http::{
    AcceptsBodies, ConversationPlan, ConversationScenario, EventFormat, EventMatch, EventStream,
    Http1Protocol, Http2Protocol, HttpCall, HttpRequest, HttpScheme, ModelResponseRules,
    VaryingBody, VaryingRequest,
};
use plimsoll_wire::http2::{
    DEFAULT_MAX_FRAME_BYTES, ErrorCode, Http2Frame, PREFACE, split_frame, write,
};
use serde_json::Value;

use super::{START, SoleWorkerControl, load, run_all_seeds, weather};

const TURNS: u32 = 4;
const USERS: u32 = 10;

/// `:status: 200` of the static table (RFC 7541 appendix A).
const STATUS_200: [u8; 1] = [0x88];

/// A model that handles one request at a time over all connections.
#[derive(Default)]
struct ChatModel {
    /// Whether it speaks HTTP/2 (prior knowledge).
    multiplexes: bool,
    takes: Duration,
    free_at: Time,
    /// HTTP/2: sends GOAWAY after this many requests of a connection, without processing later ones.
    goes_away_after: Option<usize>,
    /// HTTP/2: refuses every request once.
    refuses: bool,
    /// The requests of each connection, and the refused ones.
    requests_of: BTreeMap<SimulatedPeerId, usize>,
    not_taken: u64,
    /// Received bytes that are not yet a complete request or frame.
    received: BTreeMap<SimulatedPeerId, Vec<u8>>,
    /// Incomplete request bodies, by stream.
    bodies: BTreeMap<(SimulatedPeerId, u32), Vec<u8>>,
    /// Responses by stream; 0 for HTTP/1.1.
    answers: BTreeMap<(SimulatedPeerId, u32), Vec<u8>>,
    broken: Vec<String>,
}

/// Returns the body of a complete HTTP/1.1 request.
fn body_of(request: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(request).unwrap();
    let (head, body) = text.split_once("\r\n\r\n")?;
    let mut lines = head.lines();
    let length = lines.find_map(|line| line.strip_prefix("content-length: "));
    (body.len() >= length.unwrap().parse().unwrap()).then(|| body.as_bytes().to_vec())
}

impl ChatModel {
    /// Returns the bodies of the requests that `peer` has completed, by stream, and bytes to send at once.
    fn requests(&mut self, peer: SimulatedPeerId) -> (Vec<(u32, Vec<u8>)>, Vec<u8>) {
        let received = self.received.remove(&peer).unwrap_or_default();
        let (mut whole, mut out) = (Vec::new(), Vec::new());
        let left = match self.multiplexes {
            false => match body_of(&received) {
                Some(body) => {
                    whole.push((0, body));
                    Vec::new()
                }
                None => received,
            },
            true if received.len() < PREFACE.len() && PREFACE.starts_with(&received) => received,
            true => {
                let mut rest = received.strip_prefix(&PREFACE[..]).unwrap_or(&received);
                while let Some((head, payload)) =
                    split_frame(&mut rest, DEFAULT_MAX_FRAME_BYTES).unwrap()
                {
                    let stream = head.stream();
                    match Http2Frame::parse(head, payload).unwrap() {
                        Http2Frame::Settings(_) => write::settings_ack(&mut out),
                        Http2Frame::Data { data, end_stream } => {
                            let body = self.bodies.entry((peer, stream)).or_default();
                            body.extend_from_slice(data);
                            if end_stream {
                                whole.push((stream, std::mem::take(body)));
                            }
                        }
                        Http2Frame::ResetStream { .. } => {
                            self.bodies.remove(&(peer, stream));
                            self.answers.remove(&(peer, stream));
                        }
                        _ => {}
                    }
                }
                rest.to_vec()
            }
        };
        self.received.insert(peer, left);
        (whole, out)
    }

    /// Returns the bytes that refuse a request, if it is to be refused.
    fn refusal(&mut self, peer: SimulatedPeerId, stream: u32) -> Option<Vec<u8>> {
        if !self.multiplexes {
            return None;
        }
        let requests = self.requests_of.entry(peer).or_default();
        *requests += 1;
        let mut out = Vec::new();
        if self.goes_away_after.is_some_and(|most| *requests > most) {
            write::goaway(&mut out, stream.saturating_sub(2), ErrorCode::NO_ERROR, b"");
        } else if self.refuses && *requests % 2 == 1 {
            write::reset_stream(&mut out, stream, ErrorCode::REFUSED_STREAM);
        } else {
            return None;
        }
        self.not_taken += 1;
        Some(out)
    }

    /// Returns the response to a request's body.
    fn answer(&mut self, body: &[u8], stream: u32) -> Vec<u8> {
        let asked: Value = serde_json::from_slice(body).unwrap();
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
                // A user's calls are numbered consecutively.
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
        if self.multiplexes {
            let mut out = Vec::new();
            write::header_block(&mut out, stream, &STATUS_200, write::EndStream(false));
            write::data(&mut out, stream, body.as_bytes(), write::EndStream(true));
            return out;
        }
        let length = body.len();
        format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}").into_bytes()
    }
}

impl SimulatedServer for ChatModel {
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
        now: Time,
        actions: &mut Vec<ServerAction>,
    ) {
        let received = self.received.entry(peer).or_default();
        received.extend_from_slice(bytes);
        let (whole, out) = self.requests(peer);
        if !out.is_empty() {
            actions.push(ServerAction::Send(out));
        }
        for (stream, body) in whole {
            if let Some(refusal) = self.refusal(peer, stream) {
                actions.push(ServerAction::Send(refusal));
                continue;
            }
            let answer = self.answer(&body, stream);
            self.answers.insert((peer, stream), answer);
            self.free_at = self.free_at.max(now) + self.takes;
            actions.push(ServerAction::Timer {
                after: self.free_at.duration_since(now),
                tag: u64::from(stream),
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
        if let Some(answer) = self.answers.remove(&(peer, tag as u32)) {
            actions.push(ServerAction::Send(answer));
        }
    }

    fn on_close(&mut self, peer: SimulatedPeerId, _now: Time) {
        self.received.remove(&peer);
        self.bodies.retain(|(of, _), _| *of != peer);
        self.answers.retain(|(of, _), _| *of != peer);
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

fn run(
    weather: NetworkConditions,
    think: Duration,
    load: LoadPlan,
    model: &mut ChatModel,
) -> RecordedInterval {
    let body = r#"{"messages":[{"role":"system","content":"Count."},{"role":"user","content":"call {{seq}}"}],"model":"m"}"#;
    let call = HttpCall {
        method: "POST".into(),
        path: "/v1/chat/completions".into(),
        expect: vec![(200, 200)],
        varying: Some(VaryingRequest {
            variation: VariationSettings::new(1, 1, 0, RowOrder::default())
                .with_calls_per_client(TURNS),
            path: None,
            headers: Vec::new(),
            body: Some(varying(body)),
            expectations: None,
        }),
        stream: Some(EventStream {
            format: EventFormat::Sse,
            until: Some(EventMatch::Data("[DONE]".into())),
            error: None,
            tokens: Some(ModelResponseRules::default()),
        }),
        conversation: Some(Box::new(ConversationPlan {
            turns: TURNS,
            think,
            follow_ups: Vec::new(),
        })),
        max_body: 10_000,
        ..HttpCall::default()
    };
    let request = HttpRequest {
        call: &call,
        authority: "h:1",
        closes: false,
    };
    if model.multiplexes {
        run_users(
            weather,
            &call,
            Http2Protocol::new(&request, HttpScheme::Http),
            load,
            model,
        )
    } else {
        run_users(weather, &call, Http1Protocol::new(&request), load, model)
    }
}

fn run_users<P>(
    weather: NetworkConditions,
    call: &HttpCall,
    protocol: P,
    load: LoadPlan,
    model: &mut ChatModel,
) -> RecordedInterval
where
    P: Protocol,
    P::Driver: AcceptsBodies + Send,
{
    let course = ConversationScenario::new(call, protocol).unwrap();
    let target = Target::new_tcp("http://127.0.0.1:1", "127.0.0.1", 1);
    let users = UserScripts::new(course, &target, None, &load);
    let share = WorkerShare::new(Shard::WHOLE_RUN, Arc::new(load), weather.seed);
    let mut control = SoleWorkerControl {
        start: Some(START),
        total: RecordedInterval::default(),
    };
    let network = SimulatedNetwork::new(model, weather);
    let mut worker = ScriptWorker::new(share, network, Arc::new(users));
    worker.run(START, &mut control).unwrap();
    drop(worker);
    control.total
}

#[test]
fn first_token_time_starts_after_think() {
    for multiplexes in [false, true] {
        assert_first_token_times(multiplexes);
    }
}

fn assert_first_token_times(multiplexes: bool) {
    // All users start at once. The model handles them in order, so each waits for all others. A user thinks
    // for as long as three requests take, so seven are ahead of it afterwards.
    let mut model = ChatModel {
        multiplexes,
        takes: Duration::from_millis(100),
        ..ChatModel::default()
    };
    let think = Duration::from_millis(300);
    let mut total = run(
        NetworkConditions::faultless(1),
        think,
        all_users(),
        &mut model,
    );
    assert_eq!(model.broken, [] as [String; 0]);
    let record = total.stage_mut(0).clone();
    let all = u64::from(USERS * TURNS);
    assert_eq!((record.due, record.ok_calls()), (all, all));
    let measures = &record.measures;
    assert_eq!(measures.counter(Count::UsersOk), u64::from(USERS));
    assert_eq!(measures.counter(Count::TokensReceived), 2 * all);
    let first = measures.times(TimeMeasure::TimeToFirstToken);
    assert_eq!(first.len(), all);
    // The first turns take 100, 200, … 1,000 ms, the others 700 ms each.
    let (users, later) = (f64::from(USERS), f64::from(TURNS - 1));
    let expected = (550.0 * users + 700.0 * users * later) / (users * (later + 1.0));
    let mean = first.histogram().unwrap().mean() / 1e6;
    let off = (mean / expected - 1.0).abs();
    assert!(off < 0.01, "{mean} ms instead of {expected} ms");
}

/// Returns a load of [`USERS`] that all start at once.
fn all_users() -> LoadPlan {
    let mut load = LoadPlan {
        arrivals: ArrivalModel::Closed {
            clients: USERS,
            think: Duration::ZERO,
        },
        reuse: ConnectionReuse::Always,
        calls: Some(u64::from(USERS * TURNS)),
        deadline: None,
        drain: Some(Duration::from_secs(60)),
        ..load(1)
    };
    load.stages[0].duration = None;
    load
}

#[test]
fn unprocessed_turns_are_retried_once() {
    let all = u64::from(USERS * TURNS);
    for (goes_away_after, refuses) in [(Some(3), false), (None, true)] {
        for retry in [true, false] {
            let mut model = ChatModel {
                multiplexes: true,
                goes_away_after,
                refuses,
                takes: Duration::from_millis(10),
                ..ChatModel::default()
            };
            let load = LoadPlan {
                retry,
                ..all_users()
            };
            let mut total = run(
                NetworkConditions::faultless(1),
                Duration::ZERO,
                load,
                &mut model,
            );
            assert_eq!(model.broken, [] as [String; 0]);
            let record = total.stage_mut(0).clone();
            let retried = record.measures.counter(Count::CallsRetried);
            assert_eq!(record.due, all);
            if retry {
                assert_eq!(record.ok_calls(), all, "{record:?}");
                let expected = if refuses { all } else { u64::from(USERS) };
                assert_eq!((retried, model.not_taken), (expected, expected));
                assert_eq!(record.measures.counter(Count::UsersOk), u64::from(USERS));
            } else {
                let code = if refuses {
                    Outcome::StreamRefused
                } else {
                    Outcome::Goaway
                };
                assert_eq!(record.outcomes.get(code), u64::from(USERS), "{record:?}");
                assert_eq!(retried, 0);
                assert_eq!(
                    record.measures.counter(Count::UsersFailed),
                    u64::from(USERS)
                );
            }
        }
    }
}

#[test]
fn turns_refused_twice_fail() {
    let mut model = ChatModel {
        multiplexes: true,
        goes_away_after: Some(0),
        ..ChatModel::default()
    };
    let mut total = run(
        NetworkConditions::faultless(1),
        Duration::ZERO,
        all_users(),
        &mut model,
    );
    let record = total.stage_mut(0).clone();
    let users = u64::from(USERS);
    assert_eq!(record.outcomes.get(Outcome::Goaway), users, "{record:?}");
    assert_eq!(record.measures.counter(Count::CallsRetried), users);
    assert_eq!(model.not_taken, 2 * users);
}

#[test]
fn turns_counted_once_despite_faults() {
    run_all_seeds(
        |seed| {
            let mut model = ChatModel {
                multiplexes: seed % 3 == 0,
                goes_away_after: (seed % 4 == 0).then_some((seed % 5) as usize),
                refuses: seed % 7 == 0,
                takes: Duration::from_millis(seed % 7),
                ..ChatModel::default()
            };
            let mut load = LoadPlan {
                reuse: ConnectionReuse::Always,
                ..load(seed)
            };
            load.calls = load.calls.map(|calls| calls * u64::from(TURNS));
            let think = Duration::from_millis(seed % 5 * 10);
            let total = run(weather(seed), think, load, &mut model);
            (total, model.broken)
        },
        &[
            Outcome::Ok,
            Outcome::BrokenOff,
            Outcome::DeadlineExceeded,
            Outcome::Reset,
        ],
    );
}
