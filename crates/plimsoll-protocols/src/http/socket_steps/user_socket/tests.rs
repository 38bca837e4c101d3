//! Tests of a user's socket, which is given bytes and times as from a server.

mod reopening;

use plimsoll_engine::driver::{AfterConnection, Driver, Protocol, TokenUsage};
use plimsoll_model::Count;
use plimsoll_model::rows::template::{RowOrder, Template, VariationSettings};
use plimsoll_wire::websocket::{append_frame, derive_accept_key};

use super::super::call::SocketStepCall;
use super::super::message_match::MessageMatch;
use super::super::protocol::SocketStepProtocol;
use super::*;
use crate::http::HttpCall;
use crate::http::request::HttpRequest;
use crate::journey::{
    CaptureLevel, ConnectionSecurity, CookieJar, StepContext, StepMoment, StepProtocol,
};

const MOMENT: StepMoment = StepMoment {
    number: 0,
    now: Time::ZERO,
};

fn call(until: AwaitedMessages) -> SocketStepCall {
    SocketStepCall {
        upgrade: HttpCall::default(),
        opens: false,
        subprotocols: Vec::new(),
        compressed: false,
        max_message: 1 << 20,
        reopening: None,
        frames: Vec::new(),
        until,
        error: None,
        expect: None,
        message_type: None,
        closes: false,
    }
}

fn step(step: &SocketStepCall) -> SocketStepProtocol {
    let call = HttpCall {
        path: "/".to_owned(),
        ..HttpCall::default()
    };
    let request = HttpRequest {
        call: &call,
        authority: "h:1",
        closes: false,
    };
    let context = StepContext {
        authority: "h:1",
        security: ConnectionSecurity::Plain,
        deadline: None,
        closes: false,
        capture: CaptureLevel::Whole,
        taken: &[],
    };
    let variation = VariationSettings::new(1, 0, 0, RowOrder::default());
    SocketStepProtocol::new(&request, step, &variation, &context)
}

/// Starts a step at a time, and returns what it reports before anything else arrives.
fn start(driver: &mut SocketStepDriver, made: &SocketStepCall, now: Time) -> Vec<Event> {
    let (mut out, mut events) = (Vec::new(), Vec::new());
    let selected =
        step(made).select_request(driver, MOMENT, &Arc::default(), &CookieJar::default());
    assert_eq!((selected, driver.capacity()), (Ok(()), 1));
    driver.start(CallId(0), 7, now, &mut out);
    driver.on_timer(now, &mut out, &mut events);
    events
}

/// Opens a socket with a step that awaits these messages. `frames` follow the server's response in its last segment.
/// Returns the driver, and what it reported.
fn open(awaited: SocketStepCall, frames: &[(Opcode, &[u8])]) -> (SocketStepDriver, Vec<Event>) {
    let opening = SocketStepCall {
        opens: true,
        ..awaited
    };
    open_by(&opening, frames)
}

fn open_by(opening: &SocketStepCall, frames: &[(Opcode, &[u8])]) -> (SocketStepDriver, Vec<Event>) {
    let mut driver = step(opening).new_driver();
    let selected =
        step(opening).select_request(&mut driver, MOMENT, &Arc::default(), &CookieJar::default());
    assert_eq!(selected, Ok(()));
    let mut out = Vec::new();
    driver.start(CallId(0), 7, Time(1), &mut out);
    let request = String::from_utf8(out).expect("a request");
    assert!(
        request.starts_with("GET / HTTP/1.1\r\nhost: h:1\r\n"),
        "{request}"
    );
    let (events, _) = answer_upgrade_with(&mut driver, &request, frames, Time(2));
    assert!(
        driver
            .response_fields()
            .any(|field| field == (b"X-A", b"b"))
    );
    (driver, events)
}

/// Returns an open socket.
fn opened() -> SocketStepDriver {
    let (driver, events) = open(call(AwaitedMessages::Count(0)), &[]);
    assert_eq!(outcomes(&events), [Outcome::Ok]);
    driver
}

/// Returns an open socket, which this step has opened.
fn opened_by(opening: &SocketStepCall) -> SocketStepDriver {
    let (driver, events) = open_by(opening, &[]);
    assert_eq!(outcomes(&events), [Outcome::Ok]);
    driver
}

/// Returns frames of the server as they follow each other in one segment.
fn segment(frames: &[(Opcode, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (opcode, payload) in frames {
        append_frame(&mut bytes, *opcode, payload);
    }
    bytes
}

/// Accepts an upgrade, and returns what the driver reports and sends.
fn answer_upgrade(
    driver: &mut SocketStepDriver,
    request: &str,
    now: Time,
) -> (Vec<Event>, Vec<u8>) {
    answer_upgrade_with(driver, request, &[], now)
}

/// Accepts an upgrade as [`answer_upgrade`] does; `frames` follow in the last segment of the response.
fn answer_upgrade_with(
    driver: &mut SocketStepDriver,
    request: &str,
    frames: &[(Opcode, &[u8])],
    now: Time,
) -> (Vec<Event>, Vec<u8>) {
    let key = request.split("sec-websocket-key: ").nth(1).expect("a key");
    let accept = derive_accept_key(key.split("\r\n").next().expect("a line").as_bytes());
    let head = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nX-A: b\r\n\
         Sec-WebSocket-Accept: {accept}\r\n\r\n"
    );
    let (mut out, mut events) = (Vec::new(), Vec::new());
    let (first, second) = head.as_bytes().split_at(40);
    for bytes in [first, &[second, &segment(frames)].concat()] {
        assert_eq!(driver.receive(bytes, now, &mut out, &mut events), Ok(()));
    }
    (events, out)
}

fn outcomes(events: &[Event]) -> Vec<Outcome> {
    let ended = events.iter().filter_map(Event::ended_call);
    ended.map(|done| done.outcome).collect()
}

fn receive(
    driver: &mut SocketStepDriver,
    opcode: Opcode,
    payload: &[u8],
    now: Time,
) -> (Vec<Event>, Vec<u8>) {
    let (mut bytes, mut out, mut events) = (Vec::new(), Vec::new(), Vec::new());
    append_frame(&mut bytes, opcode, payload);
    let read = driver.receive(&bytes, now, &mut out, &mut events);
    assert_eq!(read, Ok(()));
    (events, out)
}

fn until(text: &str) -> SocketStepCall {
    let message = MessageMatch::Contains(Template::from_text(text));
    call(AwaitedMessages::Until(message))
}

#[test]
fn messages_between_steps_wait_with_their_times() {
    let mut driver = opened();
    for (text, at) in [("a", 5), ("b", 6), ("c", 9)] {
        let (events, _) = receive(&mut driver, Opcode::Text, text.as_bytes(), Time(at));
        assert_eq!(events, []);
    }
    let earlier = |at| Event::EarlierMessage {
        call: CallId(0),
        at: Time(at),
    };
    let events = start(&mut driver, &until("b"), Time(10));
    assert_eq!(events[..2], [earlier(5), earlier(6)]);
    assert_eq!(outcomes(&events), [Outcome::Ok]);
    assert_eq!(driver.last_message(), Ok(&b"b"[..]));
    // The rest is left to the next step, which goes on with what arrives.
    let events = start(&mut driver, &until("d"), Time(11));
    assert_eq!((events, driver.capacity()), (vec![earlier(9)], 0));
    let (events, _) = receive(&mut driver, Opcode::Text, b"d", Time(12));
    assert_eq!(events[0], Event::Message(CallId(0)));
    assert_eq!(outcomes(&events), [Outcome::Ok]);
}

#[test]
fn message_right_after_start_keeps_its_place() {
    let mut driver = opened();
    receive(&mut driver, Opcode::Text, b"1", Time(5));
    let two = call(AwaitedMessages::Count(2));
    let selected =
        step(&two).select_request(&mut driver, MOMENT, &Arc::default(), &CookieJar::default());
    assert_eq!(selected, Ok(()));
    driver.start(CallId(0), 7, Time(6), &mut Vec::new());
    let (events, _) = receive(&mut driver, Opcode::Text, b"2", Time(6));
    assert_eq!((events, driver.next_timer()), (vec![], Some(Time(6))));
    let mut events = Vec::new();
    driver.on_timer(Time(7), &mut Vec::new(), &mut events);
    assert_eq!(outcomes(&events), [Outcome::Ok]);
    assert_eq!(driver.last_message(), Ok(&b"2"[..]));
}

#[test]
fn closed_socket_gives_its_messages_then_fails() {
    let mut driver = opened();
    receive(&mut driver, Opcode::Text, b"last", Time(5));
    let payload = encode_close_payload(1013, "later");
    let (events, out) = receive(&mut driver, Opcode::Close, &payload, Time(6));
    assert_eq!((events, out[0]), (vec![], 0x88), "the Close is answered");
    assert_eq!(driver.receive_end(Time(7), &mut Vec::new()), Ok(()));
    driver.abort(Outcome::ConnectionClosed, Time(7), &mut Vec::new());
    assert_eq!(driver.after_connection(), AfterConnection::Keep);
    assert!(!driver.is_draining());
    let events = start(&mut driver, &until("last"), Time(8));
    assert_eq!(outcomes(&events), [Outcome::Ok]);
    let sending = SocketStepCall {
        frames: vec![super::super::call::FrameContent {
            constant: b"hi".to_vec(),
            varying: None,
            is_binary: false,
        }],
        ..until("last")
    };
    for made in [until("last"), sending] {
        let events = start(&mut driver, &made, Time(9));
        assert_eq!(outcomes(&events), [Outcome::SocketClosed]);
        let Event::Detail { text, .. } = &events[0] else {
            panic!("{events:?}");
        };
        assert!(text.contains("closed the socket with 1013 later"), "{text}");
    }
}

fn awaiting_tokens(number: Option<&str>) -> SocketStepCall {
    call(AwaitedMessages::Tokens(number.map(Template::from_text)))
}

fn token(seq: u64) -> String {
    format!(r#"{{"type":"token","content":"ab","seq":{seq}}}"#)
}

#[test]
fn token_step_ends_with_done() {
    let mut driver = opened();
    receive(&mut driver, Opcode::Text, token(1).as_bytes(), Time(5));
    let id = CallId(0);
    assert_eq!(
        start(&mut driver, &awaiting_tokens(Some("2")), Time(10)),
        [
            Event::EarlierMessage {
                call: id,
                at: Time(5)
            },
            Event::EarlierToken {
                call: id,
                bytes: 2,
                at: Time(5)
            }
        ]
    );
    let (events, _) = receive(&mut driver, Opcode::Text, token(2).as_bytes(), Time(11));
    let token = Event::Token { call: id, bytes: 2 };
    assert_eq!(events, [Event::Message(id), token]);
    let done = br#"{"type":"done","seq":3,"tokens":2,"finish":"stop"}"#;
    let (events, _) = receive(&mut driver, Opcode::Text, done, Time(12));
    let usage = TokenUsage {
        prompt: 0,
        answer: 2,
        streamed: 2,
    };
    assert_eq!(
        events[..2],
        [Event::Message(id), Event::Usage { call: id, usage }]
    );
    assert_eq!(outcomes(&events), [Outcome::Ok]);
    assert_eq!(driver.last_message(), Ok(&done[..]));
}

#[test]
fn token_steps_fail_by_account() {
    let done = br#"{"type":"done","seq":9,"finish":"stop"}"#.to_vec();
    let failed = br#"{"type":"done","seq":9,"finish":"error"}"#.to_vec();
    let of = |numbers: &[u64], last: &[u8]| -> Vec<Vec<u8>> {
        let tokens = numbers.iter().map(|seq| token(*seq).into_bytes());
        tokens.chain([last.to_vec()]).collect()
    };
    let count = |count: Count, n: u64| Some((count, n));
    for (number, messages, outcome, counted) in [
        (None, of(&[1, 2], &done), Outcome::Ok, None),
        (
            Some("3"),
            of(&[1, 2], &done),
            Outcome::TokensShort,
            count(Count::TokensMissing, 1),
        ),
        (
            None,
            of(&[1, 1], &done),
            Outcome::TokensLost,
            count(Count::TokensDuplicated, 1),
        ),
        (
            None,
            of(&[2, 1], &done),
            Outcome::TokensLost,
            count(Count::TokensOutOfOrder, 1),
        ),
        (None, of(&[], &done), Outcome::TokensLost, None),
        (Some("3"), of(&[1], &failed), Outcome::RunFailed, None),
        (None, of(&[1], b"[]"), Outcome::BadAnswer, None),
        (None, of(&[1], b"\xff"), Outcome::BadAnswer, None),
    ] {
        let mut driver = opened();
        let mut events = start(&mut driver, &awaiting_tokens(number), Time(10));
        for message in &messages {
            let opcode = if message == b"\xff" {
                Opcode::Binary
            } else {
                Opcode::Text
            };
            events.extend(receive(&mut driver, opcode, message, Time(11)).0);
        }
        assert_eq!(outcomes(&events), [outcome], "{messages:?}");
        let counts: Vec<(Count, u64)> = events
            .iter()
            .filter_map(|event| match event {
                Event::Count { count, n, .. } => Some((*count, *n)),
                _ => None,
            })
            .collect();
        assert_eq!(counts, Vec::from_iter(counted), "{messages:?}");
    }
}

#[test]
fn token_number_must_be_number() {
    let mut driver = opened();
    let wrong = step(&awaiting_tokens(Some("x"))).select_request(
        &mut driver,
        MOMENT,
        &Arc::default(),
        &CookieJar::default(),
    );
    assert_eq!(wrong, Err("tokens: not a number: x".to_owned()));
}

#[test]
fn frames_behind_upgrade_wait_for_their_step() {
    let close = encode_close_payload(1013, "later");
    let frames: [(Opcode, &[u8]); 2] = [(Opcode::Text, b"welcome"), (Opcode::Close, &close)];
    let (mut driver, events) = open(call(AwaitedMessages::Count(0)), &frames);
    assert_eq!(outcomes(&events), [Outcome::Ok]);
    assert!(driver.last_message().is_err(), "the step awaits none");
    let events = start(&mut driver, &until("welcome"), Time(3));
    assert_eq!(outcomes(&events), [Outcome::Ok]);
    assert_eq!(driver.last_message(), Ok(&b"welcome"[..]));
    let events = start(&mut driver, &until("more"), Time(4));
    assert_eq!(outcomes(&events), [Outcome::SocketClosed]);

    let (driver, events) = open(until("welcome"), &frames);
    assert_eq!(outcomes(&events), [Outcome::Ok]);
    assert_eq!(driver.last_message(), Ok(&b"welcome"[..]));
    let (_, events) = open(until("more"), &frames);
    assert_eq!(outcomes(&events), [Outcome::SocketClosed]);
}

#[test]
fn later_close_fails_no_step() {
    let close = encode_close_payload(1013, "later");
    let frames = segment(&[(Opcode::Text, b"last"), (Opcode::Close, &close)]);
    for closes in [false, true] {
        let mut driver = opened();
        let made = SocketStepCall {
            closes,
            ..until("last")
        };
        assert_eq!(start(&mut driver, &made, Time(5)), []);
        let (mut out, mut events) = (Vec::new(), Vec::new());
        let read = driver.receive(&frames, Time(6), &mut out, &mut events);
        assert_eq!((read, outcomes(&events)), (Ok(()), vec![Outcome::Ok]));
        assert_eq!((out[0], out.len()), (0x88, 2 + 4 + 2), "one Close");
    }
}

#[test]
fn later_violation_fails_no_step() {
    let mut driver = opened();
    assert_eq!(start(&mut driver, &until("last"), Time(5)), []);
    let mut bytes = segment(&[(Opcode::Text, b"last")]);
    bytes.extend([0xff, 0]);
    let mut events = Vec::new();
    let read = driver.receive(&bytes, Time(6), &mut Vec::new(), &mut events);
    assert_eq!(outcomes(&events), [Outcome::Ok]);
    assert_eq!(read.map_err(|e| e.outcome), Err(Outcome::ProtocolError));
}

#[test]
fn closing_step_awaits_close_of_server() {
    let mut driver = opened();
    let closing = SocketStepCall {
        closes: true,
        ..call(AwaitedMessages::Count(0))
    };
    assert_eq!(start(&mut driver, &closing, Time(5)), []);
    receive(&mut driver, Opcode::Text, b"crossed it", Time(6));
    let payload = encode_close_payload(code::NORMAL_CLOSURE, "");
    let (events, out) = receive(&mut driver, Opcode::Close, &payload, Time(7));
    assert_eq!((outcomes(&events), out.len()), (vec![Outcome::Ok], 0));
    let mut out = Vec::new();
    driver.finish(&mut out);
    assert_eq!(out, b"", "it is closed already");
    let mut open = opened();
    open.finish(&mut out);
    assert_eq!((out[0], out.len()), (0x88, 2 + 4 + 2));
}

#[test]
fn unread_messages_are_limited() {
    let mut driver = opened();
    let large = vec![b'x'; 1 << 20];
    for _ in 0..4 {
        receive(&mut driver, Opcode::Text, &large, Time(5));
    }
    let (mut bytes, mut events) = (Vec::new(), Vec::new());
    append_frame(&mut bytes, Opcode::Text, b"one more");
    let refused = driver.receive(&bytes, Time(6), &mut Vec::new(), &mut events);
    let refused = refused.expect_err("too much waits");
    assert_eq!(refused.outcome, Outcome::MessageTooLarge);
    assert!(refused.detail.contains("4 MiB"), "{}", refused.detail);
}

#[test]
fn socket_is_closed_if_upgrade_is_late() {
    let mut driver = step(&call(AwaitedMessages::Count(0))).new_driver();
    let opening = SocketStepCall {
        opens: true,
        ..until("x")
    };
    assert_eq!(start(&mut driver, &opening, Time(1)), []);
    driver.cancel(CallId(0), Time(2), &mut Vec::new());
    let events = start(&mut driver, &until("x"), Time(3));
    assert_eq!(outcomes(&events), [Outcome::SocketClosed]);
    let mut out = Vec::new();
    driver.finish(&mut out);
    assert_eq!(out, b"", "there is no socket to close");
}
