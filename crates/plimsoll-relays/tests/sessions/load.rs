//! The load generator against the stack, and against servers that lose, duplicate and reorder
//! tokens or send nothing: it must not count any of that as success.
//!
//! This file is long because each way of losing a token has a server of its own.

use std::net::SocketAddr;
use std::time::Duration;

use plimsoll_engine::{Observation, RunRole, StopFlag};
use plimsoll_model::Outcome;
use plimsoll_model::metrics::measure::{Count, TimeMeasure};
use plimsoll_model::plan::{
    ArrivalModel, ArrivalSpacing, CallPlan, GoodputBounds, LoadPlan, LoadStage, Plan,
    RequestFields, Target, WatchedProcess,
};
use plimsoll_model::records::record::StageRecord;
use plimsoll_model::spec::parse_target;
use plimsoll_protocols::session::{QueryText, SessionCall, SessionOptions, SessionScripts};
use plimsoll_relays::gateway::GatewayOptions;
use plimsoll_relays::llm::LlmOptions;
use plimsoll_wire::websocket::{Opcode, append_frame, derive_accept_key};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::stack::{GatewayProcess, Stack, quick};

fn target(address: SocketAddr) -> Target {
    plimsoll_protocols::registry::register_protocols();
    parse_target(&format!("session://{address}")).unwrap().0
}

pub(crate) struct SessionLoad {
    clients: u32,
    queries: u32,
    deadline: Duration,
    reconnect_pause: Duration,
    /// Open loop: sessions per second, for one second.
    rate: Option<f64>,
    think: Duration,
    expect_tokens: Option<u64>,
}

impl SessionLoad {
    pub(crate) fn closed(clients: u32, queries: u32) -> SessionLoad {
        SessionLoad {
            clients,
            queries,
            deadline: Duration::from_secs(10),
            reconnect_pause: Duration::from_millis(20),
            rate: None,
            think: Duration::ZERO,
            expect_tokens: None,
        }
    }

    pub(crate) fn within(self, deadline: Duration) -> SessionLoad {
        SessionLoad { deadline, ..self }
    }

    /// Runs the load and merges what was recorded.
    pub(crate) async fn carry_out(self, api: SocketAddr, socket: SocketAddr) -> StageRecord {
        let calls = u64::from(self.clients) * u64::from(self.queries);
        let call = SessionCall {
            socket: target(socket),
            agent: "agent".to_owned(),
            queries: self.queries,
            query: QueryText::constant("?"),
            expect_tokens: self.expect_tokens,
            think: self.think,
            reconnects: 5,
            reconnect_pause: self.reconnect_pause,
            max_reconnect_pause: Duration::from_secs(1),
            compression: false,
            headers: RequestFields::default(),
            api_secured: false,
            socket_secured: false,
            goodput: GoodputBounds::default(),
        };
        let plan = Plan {
            name: "test".to_owned(),
            target: target(api),
            tls: None,
            call: CallPlan::new(call.clone()),
            load: LoadPlan {
                arrivals: match self.rate {
                    None => ArrivalModel::Closed {
                        clients: self.clients,
                        think: Duration::ZERO,
                    },
                    Some(_) => ArrivalModel::Open(ArrivalSpacing::Constant),
                },
                stages: vec![LoadStage {
                    name: "steady".to_owned(),
                    warmup: false,
                    duration: self.rate.map(|_| Duration::from_secs(1)),
                    rate_from: self.rate.unwrap_or(0.0),
                    rate_to: self.rate.unwrap_or(0.0),
                }],
                connections: 2,
                calls: self.rate.is_none().then_some(calls),
                deadline: Some(self.deadline),
                connect_timeout: Duration::from_secs(5),
                workers: Some(1),
                spin: Duration::ZERO,
                ..LoadPlan::default()
            },
            objectives: Vec::new(),
            watch: WatchedProcess::Nothing,
            profile: None,
            server_metrics: None,
            seed: 7,
            labels: plimsoll_model::formats::labels::Labels::new(),
            keep_requests: false,
            span_sample: 0,
        };
        let sessions = SessionScripts::new(SessionOptions {
            api: target(api),
            api_host: api.to_string(),
            socket_host: socket.to_string(),
            api_tls: None,
            socket_tls: None,
            call,
            deadline: Some(self.deadline),
            seed: 7,
        });
        tokio::task::spawn_blocking(move || {
            let mut total = StageRecord::default();
            let finished = plimsoll_engine::run_scripts(
                &plan,
                sessions,
                RunRole::Standalone,
                &StopFlag::new(),
                &mut |seen| {
                    if let Observation::Interval(interval, _) = seen {
                        for (_, stage) in &interval.stages {
                            total.merge(stage);
                        }
                    }
                },
            );
            finished.unwrap();
            // Every query is counted once.
            assert_eq!(total.due, total.ended_calls() + total.not_started);
            total
        })
        .await
        .unwrap()
    }
}

pub(crate) fn of(record: &StageRecord, count: Count) -> u64 {
    record.measures.counter(count)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_token_arrives_exactly_once() {
    let stack = Stack::start(quick(), GatewayOptions::default());
    let record = SessionLoad::closed(50, 4)
        .carry_out(stack.api, stack.gateway.address)
        .await;
    assert_eq!((record.due, record.ok_calls()), (200, 200));
    assert_eq!(of(&record, Count::keyed("sessions_ok")), 50);
    assert_eq!(of(&record, Count::TokensReceived), 200 * 18);
    for nothing in [
        Count::TokensMissing,
        Count::TokensDuplicated,
        Count::TokensOutOfOrder,
        Count::TokensStray,
        Count::Reconnects,
    ] {
        assert_eq!(of(&record, nothing), 0, "{}", nothing.key());
    }
    let measures = &record.measures;
    assert_eq!(measures.times(TimeMeasure::FirstToken).len(), 200);
    assert_eq!(measures.times(TimeMeasure::TokenGap).len(), 200 * 17);
    assert_eq!(measures.times(TimeMeasure::SocketOpen).len(), 50);
    // 18 tokens at 2 ms each: no query can be faster, and the recorded times must show that.
    assert!(record.response.histogram().unwrap().min() >= 35_000_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_arrive_at_a_rate() {
    let stack = Stack::start(quick(), GatewayOptions::default());
    let mut loading = SessionLoad::closed(0, 2);
    loading.rate = Some(40.0);
    let record = loading.carry_out(stack.api, stack.gateway.address).await;
    assert_eq!((record.due, record.ok_calls()), (80, 80));
    assert_eq!(of(&record, Count::keyed("sessions_ok")), 40);
    assert_eq!(record.measures.counter(Count::TokensReceived), 80 * 18);
    assert!(record.bytes_sent > 80 * 60, "{}", record.bytes_sent);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_sessions_pause_between_queries() {
    let stack = Stack::start(quick(), GatewayOptions::default());
    let mut loading = SessionLoad::closed(0, 3);
    loading.rate = Some(5.0);
    loading.think = Duration::from_millis(600);
    let begun = tokio::time::Instant::now();
    let record = loading.carry_out(stack.api, stack.gateway.address).await;
    assert_eq!((record.due, record.ok_calls()), (15, 15));
    // The last session begins at 0.8 s and pauses twice.
    assert!(begun.elapsed() > Duration::from_millis(1900));
    // A pause is no response time; 10 of the 15 queries follow one.
    let response = record.response.histogram().unwrap();
    assert!(response.value_at_quantile(0.5) < 600_000_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn socket_404_is_not_retried() {
    let stack = Stack::start(quick(), GatewayOptions::default());
    let mut loading = SessionLoad::closed(3, 2);
    loading.reconnect_pause = Duration::from_secs(60);
    let begun = tokio::time::Instant::now();
    // The API has no such path, so it answers 404.
    let record = loading.carry_out(stack.api, stack.api).await;
    assert_eq!((record.due, record.ok_calls()), (6, 0));
    let refused = record.outcomes.get(Outcome::SocketRefused);
    assert_eq!(refused, 3, "{:?}", record.outcomes);
    assert!(begun.elapsed() < Duration::from_secs(60));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gateway_shutdown_loses_no_tokens() {
    let slow = LlmOptions {
        token_delay: Duration::from_millis(50),
        ..LlmOptions::default()
    };
    let stack = Stack::start(slow, GatewayOptions::default());
    let steady = GatewayProcess::start(&stack.bus, GatewayOptions::default());
    // A trivial balancer: uses the first gateway while it is up, then the other.
    let balancer = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let front = balancer.local_addr().unwrap();
    let backends = [stack.gateway.address, steady.address];
    tokio::spawn(async move {
        while let Ok((mut client, _)) = balancer.accept().await {
            tokio::spawn(async move {
                for backend in backends {
                    if let Ok(mut server) = TcpStream::connect(backend).await {
                        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                        return;
                    }
                }
            });
        }
    });
    let loading = SessionLoad::closed(30, 3).carry_out(stack.api, front);
    let killing = async {
        // All sessions are in the middle of their first queries.
        stack.gateway.until("sessions_open", 30).await;
        stack.gateway.until("frames_total", 60).await;
        stack.gateway.stop().await
    };
    let (record, metrics) = tokio::join!(loading, killing);
    assert_eq!(
        (record.due, record.ok_calls()),
        (90, 90),
        "{:?}",
        record.outcomes
    );
    assert_eq!(of(&record, Count::TokensReceived), 90 * 18);
    assert!(of(&record, Count::Reconnects) >= 30);
    assert_eq!(of(&record, Count::keyed("sessions_reconnected")), 30);
    assert_eq!(of(&record, Count::HistoryGone), 0);
    assert_eq!(metrics.close_counter(1012).get(), 30);
}

/// The first event after the begin of a run.
#[derive(Clone, Copy, Debug)]
enum FirstEvent {
    Answer,
    Frames,
}

/// The response to `/close`.
#[derive(Clone, Copy, Debug)]
enum CloseReply {
    Ok,
    Refused,
    Unanswered,
    /// The connection is closed.
    CutOff,
}

async fn serve(
    run: &'static str,
    first: FirstEvent,
    frames: &'static [&'static str],
) -> SocketAddr {
    serve_with(run, first, frames, CloseReply::Ok).await
}

/// Serves the API, answering `/run` with `run`, and sends `frames` on the socket once a run has
/// begun.
async fn serve_with(
    run: &'static str,
    first: FirstEvent,
    frames: &'static [&'static str],
    close: CloseReply,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (begun, _) = tokio::sync::broadcast::channel::<()>(16);
    let (sent, _) = tokio::sync::broadcast::channel::<()>(16);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let server = (run, first, frames, close);
            tokio::spawn(answer_connection(
                stream,
                server,
                begun.clone(),
                sent.clone(),
            ));
        }
    });
    address
}

async fn serve_frames(frames: &'static [&'static str]) -> SocketAddr {
    serve(r#"{"run":1,"tokens":3}"#, FirstEvent::Answer, frames).await
}

async fn answer_connection(
    mut stream: TcpStream,
    (run, first, frames, close): (
        &'static str,
        FirstEvent,
        &'static [&'static str],
        CloseReply,
    ),
    begun: tokio::sync::broadcast::Sender<()>,
    sent: tokio::sync::broadcast::Sender<()>,
) {
    let mut input = Vec::new();
    let mut runs = begun.subscribe();
    loop {
        match stream.read_buf(&mut input).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&input).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head
            .lines()
            .find_map(|l| l.strip_prefix("Content-Length: "));
        if length.is_some_and(|length| body.len() < length.parse().unwrap()) {
            continue;
        }
        if text.starts_with("POST /session/s/run") {
            assert!(
                head.contains("\r\nContent-Type: application/json"),
                "{head}"
            );
            assert_eq!(body, r#"{"query":"?"}"#);
        } else {
            assert_eq!(body, "");
        }
        input.clear();
        if text.starts_with("GET") {
            let key = text
                .lines()
                .find_map(|l| l.strip_prefix("Sec-WebSocket-Key: "))
                .unwrap();
            let head = format!(
                "HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {}\r\n\r\n",
                derive_accept_key(key.as_bytes())
            );
            stream.write_all(head.as_bytes()).await.unwrap();
            while runs.recv().await.is_ok() {
                let mut out = Vec::new();
                for frame in frames {
                    append_frame(&mut out, Opcode::Text, frame.as_bytes());
                }
                if stream.write_all(&out).await.is_err() {
                    return;
                }
                // Where the answer goes first there is no receiver.
                let _ = sent.send(());
            }
            return;
        }
        let mut heard = sent.subscribe();
        if text.contains("/run") && matches!(first, FirstEvent::Frames) {
            begun.send(()).unwrap();
            heard.recv().await.unwrap();
            // The client reads these before those that come only now.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let body = match () {
            () if text.contains("/create") => r#"{"session_id":"s","auth_token":"t"}"#,
            () if text.contains("/run") => run,
            () => "{}",
        };
        let status = match close {
            _ if !text.contains("/close") => "200 OK",
            CloseReply::Ok => "200 OK",
            CloseReply::Refused => "500 Internal Server Error",
            CloseReply::Unanswered => continue,
            CloseReply::CutOff => return,
        };
        let answer = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(answer.as_bytes()).await.unwrap();
        if text.contains("/run") && matches!(first, FirstEvent::Answer) {
            begun.send(()).unwrap();
        }
    }
}

const ONE: &str = r#"{"type":"token","content":"a","seq":1,"run":1}"#;
const TWO: &str = r#"{"type":"token","content":"b","seq":2,"run":1}"#;
const TOKEN_3: &str = r#"{"type":"token","content":"c","seq":3,"run":1}"#;
const BARE_TOKEN: &str = r#"{"type":"token","content":"a"}"#;
const BARE_DONE: &str = r#"{"type":"done","content":""}"#;
const DONE: &str = r#"{"type":"done","content":"","seq":4,"run":1,"tokens":3,"finish":"stop"}"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_tokens_fail_query() {
    type Expected = (Outcome, u64, u64, u64);
    let cases: &[(&'static [&'static str], Expected)] = &[
        (&[ONE, TWO, TOKEN_3, DONE], (Outcome::Ok, 0, 0, 0)),
        (&[ONE, TOKEN_3, DONE], (Outcome::TokensLost, 1, 0, 0)),
        (&[DONE], (Outcome::TokensLost, 3, 0, 0)),
        (
            &[ONE, TWO, TWO, TOKEN_3, DONE],
            (Outcome::TokensLost, 0, 1, 0),
        ),
        (&[ONE, TOKEN_3, TWO, DONE], (Outcome::TokensLost, 0, 0, 1)),
        (&[ONE, TWO, TOKEN_3], (Outcome::DeadlineExceeded, 0, 0, 0)),
        (&[], (Outcome::DeadlineExceeded, 0, 0, 0)),
        (
            &[
                ONE,
                r#"{"type":"done","seq":2,"run":1,"tokens":1,"finish":"error"}"#,
            ],
            (Outcome::RunFailed, 0, 0, 0),
        ),
        // There are no numbers and no count except the API's, which announced three.
        (
            &[BARE_TOKEN, BARE_TOKEN, BARE_TOKEN, BARE_DONE],
            (Outcome::Ok, 0, 0, 0),
        ),
        (&[BARE_TOKEN, BARE_DONE], (Outcome::TokensShort, 2, 0, 0)),
        (&[BARE_DONE], (Outcome::TokensShort, 3, 0, 0)),
        (
            &[BARE_TOKEN, BARE_TOKEN, BARE_TOKEN, BARE_TOKEN, BARE_DONE],
            (Outcome::TokensLost, 0, 0, 0),
        ),
        // Everything that was sent has arrived, but fewer tokens than announced.
        (
            &[
                ONE,
                r#"{"type":"done","seq":2,"run":1,"tokens":1,"finish":"stop"}"#,
            ],
            (Outcome::TokensShort, 2, 0, 0),
        ),
    ];
    for (frames, (outcome, missing, twice, shuffled)) in cases {
        let server = serve_frames(frames).await;
        let mut loading = SessionLoad::closed(1, 1);
        loading.deadline = Duration::from_millis(300);
        let record = loading.carry_out(server, server).await;
        assert_eq!(
            record.outcomes.get(*outcome),
            1,
            "{frames:?}: {:?}",
            record.outcomes
        );
        assert_eq!(of(&record, Count::TokensMissing), *missing, "{frames:?}");
        assert_eq!(of(&record, Count::TokensDuplicated), *twice, "{frames:?}");
        assert_eq!(
            of(&record, Count::TokensOutOfOrder),
            *shuffled,
            "{frames:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expect_tokens_applies_without_announced_count() {
    for (run, expected, outcome, missing) in [
        ("{}", None, Outcome::Ok, 0),
        ("{}", Some(2), Outcome::Ok, 0),
        ("{}", Some(5), Outcome::TokensShort, 3),
        // Frames of a foreign type, which announce no number.
        (
            r#"{"run":"r-1","tokens":["a"]}"#,
            Some(5),
            Outcome::TokensShort,
            3,
        ),
        // The number that the service announces takes precedence over the plan's.
        (r#"{"tokens":2}"#, Some(5), Outcome::Ok, 0),
        (r#"{"tokens":4}"#, Some(1), Outcome::TokensShort, 2),
    ] {
        for first in [FirstEvent::Answer, FirstEvent::Frames] {
            let server = serve(run, first, &[BARE_TOKEN, BARE_TOKEN, BARE_DONE]).await;
            let mut loading = SessionLoad::closed(1, 2);
            loading.expect_tokens = expected;
            let record = loading.carry_out(server, server).await;
            let case = format!("{run} {expected:?} {first:?}: {:?}", record.outcomes);
            assert_eq!(record.outcomes.get(outcome), 2, "{case}");
            assert_eq!(of(&record, Count::TokensReceived), 4, "{case}");
            assert_eq!(of(&record, Count::TokensMissing), 2 * missing, "{case}");
            let failed = of(&record, Count::keyed("sessions_failed"));
            assert_eq!(failed, u64::from(!outcome.is_ok()), "{case}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_close_fails_session() {
    for close in [
        CloseReply::Refused,
        CloseReply::Unanswered,
        CloseReply::CutOff,
    ] {
        let server = serve_with("{}", FirstEvent::Answer, &[BARE_TOKEN, BARE_DONE], close).await;
        let mut loading = SessionLoad::closed(1, 2);
        loading.deadline = Duration::from_secs(2);
        let record = loading.carry_out(server, server).await;
        // Its queries succeeded.
        assert_eq!(
            (record.due, record.ok_calls()),
            (2, 2),
            "{:?}",
            record.outcomes
        );
        let sessions = [
            Count::keyed("sessions_ok"),
            Count::keyed("sessions_failed"),
            Count::ClosesFailed,
        ];
        assert_eq!(sessions.map(|c| of(&record, c)), [0, 1, 1], "{close:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_session_start_fails_all_queries() {
    let stack = Stack::start(quick(), GatewayOptions::default());
    let refusing = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    let record = SessionLoad::closed(3, 4)
        .carry_out(refusing, stack.gateway.address)
        .await;
    assert_eq!(record.outcomes.get(Outcome::ConnectRefused), 3);
    assert_eq!(record.outcomes.get(Outcome::BrokenOff), 9);
    let mut loading = SessionLoad::closed(3, 4);
    loading.reconnect_pause = Duration::from_millis(1);
    let record = loading.carry_out(stack.api, refusing).await;
    assert_eq!(
        record.outcomes.get(Outcome::ConnectRefused),
        3,
        "{:?}",
        record.outcomes
    );
    assert_eq!((record.ok_calls(), record.due), (0, 12));
    // The gateway has another secret: the refusal is final and not retried.
    let foreign = crate::stack::foreign_gateway(&stack.bus);
    let record = SessionLoad::closed(3, 4)
        .carry_out(stack.api, foreign.address)
        .await;
    assert_eq!(
        record.outcomes.get(Outcome::SocketDenied),
        3,
        "{:?}",
        record.outcomes
    );
    let refused = foreign.stop().await.refusal_counter("token_not_genuine");
    assert_eq!(refused.get(), 3);
}
