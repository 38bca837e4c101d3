//! Tests of the HTTP/1.1 driver, which is given bytes and times.
//!
//! This file is long because every way in which an answer can end is covered.

use plimsoll_engine::driver::TokenUsage;
use plimsoll_model::plan::TokenCounter;

use super::*;
use crate::http::{EventFormat, EventMatch, EventStream, HttpCall, ModelResponseRules};

fn call() -> HttpCall {
    HttpCall {
        method: "GET".into(),
        path: "/a".into(),
        expect: vec![(200, 299)],
        max_body: 1_000,
        ..HttpCall::default()
    }
}

/// Makes a call whose answer is a stream of tokens.
fn tokens() -> HttpCall {
    let mut streamed = call();
    streamed.stream = Some(EventStream {
        format: EventFormat::Sse,
        until: Some(EventMatch::Data("[DONE]".into())),
        error: None,
        tokens: Some(ModelResponseRules::default()),
    });
    streamed
}

fn driver(call: &HttpCall) -> Http1Driver {
    let request = HttpRequest {
        call,
        authority: "h:1",
        closes: false,
    };
    let mut driver = Http1Protocol::new(&request).new_driver();
    driver.open(Time::ZERO, &mut Vec::new());
    driver
}

/// Makes one call on `driver`, feeds the answer in pieces of `step` bytes, and returns the result.
fn answered(
    driver: &mut Http1Driver,
    answer: &[u8],
    step: usize,
) -> Result<Vec<Event>, ProtocolError> {
    let (mut out, mut events) = (Vec::new(), Vec::new());
    assert_eq!(driver.capacity(), 1);
    driver.start(CallId(7), 0, Time::ZERO, &mut out);
    for piece in answer.chunks(step) {
        driver.receive(piece, Time(9), &mut out, &mut events)?;
    }
    Ok(events)
}

fn outcome(events: &[Event]) -> (Outcome, u32) {
    let done: Vec<&CompletedCall> = events
        .iter()
        .filter_map(|event| match event {
            Event::Done(done) => Some(done),
            _ => None,
        })
        .collect();
    assert_eq!(done.len(), 1, "{events:?}");
    (done[0].outcome, done[0].bytes_received)
}

fn details(events: &[Event]) -> Vec<&str> {
    events
        .iter()
        .filter_map(|event| match event {
            Event::Detail { text, .. } => Some(text.as_str()),
            _ => None,
        })
        .collect()
}

fn messages(events: &[Event]) -> usize {
    let is_one = |event: &&Event| matches!(event, Event::Message(CallId(7)));
    events.iter().filter(is_one).count()
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
const CHUNKED: &[u8] =
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Made\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x\r\nllo\r\n0\r\nT: x\r\n\r\n";

#[test]
fn every_response_framing_completes_calls() {
    let mut driver = driver(&call());
    let empty: &[u8] = b"HTTP/1.1 204 None\r\n\r\n";
    for (answer, size) in [
        (OK, 5),
        (OK, 5),
        (CHUNKED, 5),
        (OK, 5),
        (empty, 0),
        (CHUNKED, 5),
    ] {
        for step in [1, 3, answer.len()] {
            let events = answered(&mut driver, answer, step).unwrap();
            assert_eq!(outcome(&events), (Outcome::Ok, size));
            assert!(!driver.is_draining());
        }
    }
    let until_close = b"HTTP/1.1 200 OK\r\n\r\nabc";
    let mut events = answered(&mut driver, until_close, 4).unwrap();
    assert_eq!(events, []);
    driver.receive_end(Time(10), &mut events).unwrap();
    assert_eq!(outcome(&events), (Outcome::Ok, 3));
    assert!(driver.is_draining());
}

#[test]
fn status_errors_have_codes_and_details() {
    let mut driver = driver(&call());
    for (head, code, detail) in [
        (
            "503 Busy\r\nRetry-After: 7",
            Outcome::coded("HTTP_503_RETRY_AFTER"),
            "GET /a: 503 Busy, retry-after: 7: no way",
        ),
        (
            "503 Busy",
            Outcome::coded("HTTP_503"),
            "GET /a: 503 Busy: no way",
        ),
        (
            "302 Found\r\nLocation: /b",
            Outcome::coded("HTTP_302"),
            "GET /a: 302 Found, location: /b: no way",
        ),
        (
            "418 I'm a teapot",
            Outcome::coded("HTTP_4XX"),
            "GET /a: 418 I'm a teapot: no way",
        ),
    ] {
        let answer = format!("HTTP/1.1 {head}\r\nContent-Length: 6\r\n\r\nno\nway");
        for time in 0..5 {
            let events = answered(&mut driver, answer.as_bytes(), 1_000).unwrap();
            assert_eq!(outcome(&events), (code, 6));
            let expected: &[&str] = if time < 3 { &[detail] } else { &[] };
            assert_eq!(details(&events), expected, "{head}");
        }
    }
}

#[test]
fn headers_and_bodies_must_match_expectations() {
    let mut wanted = call();
    wanted.expect_headers = vec![("x-ok".into(), "1".into())];
    wanted.expect_body = Some("\"ok\"".into());
    let mut driver = driver(&wanted);
    for (fields, body, expected) in [
        ("X-OK: 1", "{\"is\":\"ok\"}", Outcome::Ok),
        ("X-OK: 2", "{\"is\":\"ok\"}", Outcome::coded("HTTP_HEADER")),
        ("X: 1", "{\"is\":\"ok\"}", Outcome::coded("HTTP_HEADER")),
        ("X-OK: 1", "{\"is\":\"no\"}", Outcome::coded("HTTP_BODY")),
        (
            "X-OK: 1\r\nContent-Encoding: Identity",
            "{\"is\":\"ok\"}",
            Outcome::Ok,
        ),
        (
            "X-OK: 1\r\nContent-Encoding: magic",
            "{\"is\":\"ok\"}",
            Outcome::CompressionUnsupported,
        ),
    ] {
        let length = body.len();
        let answer =
            format!("HTTP/1.1 200 OK\r\n{fields}\r\nContent-Length: {length}\r\n\r\n{body}");
        for step in 1..answer.len() {
            let events = answered(&mut driver, answer.as_bytes(), step).unwrap();
            assert_eq!(
                outcome(&events),
                (expected, length as u32),
                "{fields} {body} {step}"
            );
        }
    }
}

#[test]
fn body_size_is_checked_in_every_framing() {
    let framed = [
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
    ];
    let mut sized = call();
    for (size, body, expected) in [
        (5, None, (Outcome::Ok, 5)),
        (6, None, (Outcome::BodyLength, 5)),
        (5, Some("ll"), (Outcome::Ok, 5)),
        (6, Some("ll"), (Outcome::BodyLength, 5)),
        (6, Some("x"), (Outcome::coded("HTTP_BODY"), 5)),
    ] {
        (sized.expect_size, sized.expect_body) = (Some(size), body.map(str::to_owned));
        for answer in framed {
            let mut driver = driver(&sized);
            let events = answered(&mut driver, answer.as_bytes(), 7).unwrap();
            assert_eq!(outcome(&events), expected, "{size} {body:?}");
            if expected.0 == Outcome::BodyLength {
                let why = "GET /a: a body of 5 bytes instead of 6";
                assert_eq!(details(&events), [why]);
            }
            assert_eq!(driver.capacity(), 1);
        }
    }
    // A failure in the head takes precedence over the body's size.
    let missing = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
    let events = answered(&mut driver(&sized), missing, 99).unwrap();
    assert_eq!(outcome(&events).0, Outcome::coded("HTTP_404"));
}

#[test]
fn stream_ends_at_terminating_event() {
    let mut streamed = call();
    streamed.stream = Some(EventStream {
        format: EventFormat::Sse,
        until: Some(EventMatch::Data("[DONE]".into())),
        error: None,
        tokens: None,
    });
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let chunks = |body: &[&str]| {
        let all = body
            .iter()
            .map(|text| format!("{:x}\r\n{text}\r\n", text.len()));
        all.collect::<String>()
    };
    let good = chunks(&["data: 1\n\ndata: 2", "\n\n", "data: [DONE]\n\n"]);
    let mut driver = driver(&streamed);
    for step in [1, 7, 1_000] {
        let whole = format!("{head}{good}0\r\n\r\n");
        let events = answered(&mut driver, whole.as_bytes(), step).unwrap();
        assert_eq!(
            (outcome(&events).0, messages(&events)),
            (Outcome::Ok, 3),
            "{step}"
        );
        assert!(!driver.is_draining());
    }
    for (body, expected, count) in [
        (chunks(&["data: 1\n\n"]), Outcome::StreamShort, 1),
        (
            chunks(&[
                "data: 1\n\n",
                "event: error\ndata: out of memory\n\n",
                "data: 2\n\n",
            ]),
            Outcome::EventError,
            2,
        ),
    ] {
        let whole = format!("{head}{body}0\r\n\r\n");
        let events = answered(&mut driver, whole.as_bytes(), 1_000).unwrap();
        assert_eq!((outcome(&events).0, messages(&events)), (expected, count));
        assert_eq!(details(&events).len(), 1);
    }
    // The call ends with its last event; the connection is free once the body has ended or is abandoned.
    let events = answered(&mut driver, format!("{head}{good}").as_bytes(), 1_000).unwrap();
    assert_eq!(outcome(&events).0, Outcome::Ok);
    assert_eq!((driver.capacity(), driver.is_draining()), (0, false));
    let until = driver.next_timer().unwrap();
    driver.on_timer(until, &mut Vec::new(), &mut Vec::new());
    assert!(driver.is_draining());
}

#[test]
fn tokens_parse_in_any_split() {
    let streamed = tokens();
    let body = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n\
        data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\r\n\r\n\
        data: {\"choices\":[{\"delta\":{\"content\":\" b\"}}]}\n\n\
        data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":9}}\n\n\
        data: [DONE]\n\n";
    let answer = |body: &str| {
        let length = body.len();
        format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}")
    };
    let mut driver = driver(&streamed);
    let whole = answer(body);
    for step in 1..=whole.len() {
        let events = answered(&mut driver, whole.as_bytes(), step).unwrap();
        let (call, outcome) = (CallId(7), outcome(&events).0);
        assert_eq!(
            (&events[..3], outcome),
            (
                &[
                    Event::Token { call, bytes: 1 },
                    Event::Token { call, bytes: 2 },
                    Event::Usage {
                        call,
                        usage: TokenUsage {
                            prompt: 3,
                            answer: 9,
                            streamed: 9
                        }
                    }
                ][..],
                Outcome::Ok
            ),
            "{step}"
        );
    }
    for (body, expected) in [
        ("data: [DONE]\n\n", Outcome::StreamShort),
        (
            "data: {\"choices\":[{\"text\":\"a\"}]}\n\n",
            Outcome::StreamShort,
        ),
        ("data: hello\n\n", Outcome::BadAnswer),
        ("data: {\"error\":\"no\"}\n\n", Outcome::EventError),
        (
            "data: {\"object\":\"error\",\"error\":{}}\n\n",
            Outcome::EventError,
        ),
    ] {
        let events = answered(&mut driver, answer(body).as_bytes(), 7).unwrap();
        assert_eq!(outcome(&events).0, expected, "{body}");
        assert_eq!(details(&events).len(), 1, "{body}");
    }
}

#[test]
fn only_successful_responses_emit_text() {
    let mut streamed = tokens();
    streamed.tokenizer = Some(TokenCounter::new("t.json".as_ref(), |_| None));
    let mut driver = driver(&streamed);
    let token = |text: &str| format!("data: {{\"choices\":[{{\"text\":\"{text}\"}}]}}\n\n");
    let good = token("one ") + &token("two") + "data: [DONE]\n\n";
    let bad = token("one ") + "data: {\"error\": \"no\"}\n\n";
    for (body, written) in [
        (&good, Some("one two")),
        (&bad, None),
        (&good, Some("one two")),
    ] {
        let length = body.len();
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}");
        let events = answered(&mut driver, answer.as_bytes(), 5).unwrap();
        let texts: Vec<&str> = events
            .iter()
            .filter_map(|event| match event {
                Event::TextToCount { text, .. } => Some(text.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(texts, Vec::from_iter(written), "{body}");
        assert!(matches!(events.last(), Some(Event::Done(_))), "{events:?}");
    }
}

#[test]
fn grpc_web_outcome_follows_trailers() {
    let mut web = call();
    (web.method, web.body) = ("POST".into(), b"abc".to_vec());
    web.stream = Some(EventStream {
        format: EventFormat::Web,
        until: None,
        error: None,
        tokens: None,
    });
    let mut sending = driver(&web);
    let mut request = Vec::new();
    sending.start(CallId(7), 0, Time::ZERO, &mut request);
    let request = String::from_utf8(request).unwrap();
    assert!(request.contains("\r\ncontent-length: 8\r\n"), "{request}");
    assert!(request.ends_with("\r\n\r\n\0\0\0\0\x03abc"), "{request}");
    let answer = |fields: &str, body: &[u8]| {
        let length = body.len();
        let head = format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: {length}\r\n\r\n");
        [head.as_bytes(), body].concat()
    };
    // Two messages, one of them empty, and trailers.
    let messages_and = |status: &[u8; 1]| {
        let before = b"\0\0\0\0\x02hi\0\0\0\0\0\x80\0\0\0\x10grpc-status: ";
        [&before[..], status, b"\r\n"].concat()
    };
    let mut driver = driver(&web);
    for (status, expected) in [(b"0", Outcome::Ok), (b"5", Outcome::NotFound)] {
        let whole = answer("", &messages_and(status));
        for step in 1..=whole.len() {
            let events = answered(&mut driver, &whole, step).unwrap();
            assert_eq!(outcome(&events).0, expected, "{step}");
            assert_eq!(messages(&events), 2, "{step}");
        }
    }
    let in_head = "Grpc-Status: 14\r\nGrpc-Message: later\r\n";
    for (fields, body, expected) in [
        ("", &b"\0\0\0\0\x02hi"[..], Outcome::StreamShort),
        ("", b"", Outcome::StreamShort),
        (in_head, b"", Outcome::Unavailable),
        ("Grpc-Status: 0\r\n", b"", Outcome::Ok),
    ] {
        let events = answered(&mut driver, &answer(fields, body), 9).unwrap();
        assert_eq!(outcome(&events).0, expected, "{fields} {body:?}");
        let details = details(&events);
        assert_eq!(details.len(), usize::from(!expected.is_ok()), "{details:?}");
        let quotes = details
            .iter()
            .any(|text| text.contains("grpc-message: later"));
        assert_eq!(quotes, fields == in_head, "{details:?}");
    }
}

#[test]
fn text_after_end_event_is_ignored() {
    let mut streamed = call();
    streamed.expect_body = Some("ok".into());
    streamed.stream = Some(EventStream {
        format: EventFormat::NdJson,
        until: Some(EventMatch::Contains("done".into())),
        error: None,
        tokens: None,
    });
    let mut driver = driver(&streamed);
    for (body, expected) in [
        ("{\"ok\":1}\n{\"done\":1}\n{\"n\":2}\n", Outcome::Ok),
        (
            "{\"n\":1}\n{\"done\":1}\n{\"ok\":2}\n",
            Outcome::coded("HTTP_BODY"),
        ),
    ] {
        let length = body.len();
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}");
        for step in 1..=answer.len() {
            let events = answered(&mut driver, answer.as_bytes(), step).unwrap();
            let found = (outcome(&events).0, messages(&events));
            assert_eq!(found, (expected, 2), "{body} by {step}");
        }
    }
}

#[test]
fn truncated_or_unsolicited_responses_are_errors() {
    let broken = |answer: &[u8], ended: bool| {
        let mut driver = driver(&call());
        match answered(&mut driver, answer, 1_000) {
            Err(error) => error.outcome,
            Ok(mut events) => {
                assert!(ended, "{events:?}");
                driver
                    .receive_end(Time(1), &mut events)
                    .unwrap_err()
                    .outcome
            }
        }
    };
    assert_eq!(broken(&OK[..OK.len() - 1], true), Outcome::BodyLength);
    assert_eq!(
        broken(&CHUNKED[..CHUNKED.len() - 3], true),
        Outcome::BodyLength
    );
    assert_eq!(broken(&OK[..20], true), Outcome::ConnectionClosed);
    assert_eq!(
        broken(b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n", false),
        Outcome::MessageTooLarge
    );
    assert_eq!(broken(b"SSH-2.0-x\r\n", false), Outcome::ProtocolError);
    assert_eq!(
        broken(b"HTTP/1.1 101 Go\r\n\r\n", false),
        Outcome::ProtocolError
    );
    assert_eq!(broken(&[OK, OK].concat(), false), Outcome::ProtocolError);
}

#[test]
fn head_responses_have_no_body() {
    let mut head = call();
    head.method = "HEAD".into();
    let mut driver = driver(&head);
    for answer in [
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\n\r\n",
    ] {
        let events = answered(&mut driver, answer.as_bytes(), 9).unwrap();
        assert_eq!(outcome(&events), (Outcome::Ok, 0));
        assert!(!driver.is_draining());
    }
}

#[test]
fn cancelled_call_drains_connection() {
    let mut driver = driver(&call());
    let mut events = Vec::new();
    driver.start(CallId(0), 0, Time::ZERO, &mut Vec::new());
    driver.cancel(CallId(0), Time(1), &mut Vec::new());
    assert!(driver.is_draining());
    driver
        .receive(OK, Time(2), &mut Vec::new(), &mut events)
        .unwrap();
    assert_eq!(events, []);
}

#[test]
fn idle_timeout_race_is_distinguished_from_failure() {
    const SECOND: u64 = 1_000_000_000;
    let lost = |method: &str, rested: Option<u64>, waited: u64, outcome| {
        let call = HttpCall {
            method: method.to_owned(),
            ..call()
        };
        let mut driver = driver(&call);
        let mut start = Time(9);
        if let Some(rested) = rested {
            answered(&mut driver, OK, OK.len()).unwrap();
            start = Time(9 + rested);
        }
        let (mut out, mut events) = (Vec::new(), Vec::new());
        driver.start(CallId(1), 1, start, &mut out);
        driver.abort(outcome, start.plus_nanos(waited), &mut events);
        let end = events.pop().unwrap();
        assert!(driver.is_draining());
        match end {
            Event::Unprocessed(done) => (done.outcome, true),
            Event::Done(done) => (done.outcome, false),
            other => panic!("{other:?}"),
        }
    };
    for loss in [
        Outcome::ConnectionClosed,
        Outcome::Reset,
        Outcome::Truncated,
    ] {
        // The connection had been idle for seconds, and failed as the request left.
        let race = lost("GET", Some(5 * SECOND), SECOND / 1000, loss);
        assert_eq!(race, (Outcome::IdleClosed, true));
        let race = lost("POST", Some(5 * SECOND), SECOND / 1000, loss);
        assert_eq!(race, (Outcome::IdleClosed, false), "may have been acted on");
        // The connection was new or busy, or the server took long to fail the request.
        assert_eq!(lost("GET", None, SECOND / 1000, loss), (loss, false));
        assert_eq!(lost("GET", Some(1), SECOND / 1000, loss), (loss, false));
        let late = lost("GET", Some(SECOND), 2 * SECOND, loss);
        assert_eq!(late, (loss, false));
    }
    let cut = lost("GET", Some(5 * SECOND), SECOND / 1000, Outcome::CutOff);
    assert_eq!(cut, (Outcome::CutOff, false));
}

#[test]
fn head_limit_is_enforced_and_configurable() {
    let long = format!("x: {}\r\n", "y".repeat(70_000));
    let many = "x: y\r\n".repeat(500);
    for (fields, max_head, outcome) in [
        (&long, 0, Err(Outcome::HeadTooLarge)),
        (&long, 128 << 10, Ok(Outcome::Ok)),
        (&many, 0, Ok(Outcome::Ok)),
    ] {
        let call = HttpCall { max_head, ..call() };
        let answer = format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: 0\r\n\r\n");
        let received = answered(&mut driver(&call), answer.as_bytes(), 9_000);
        if let Err(e) = &received {
            assert!(e.detail.contains("call.http.max_head"), "{e}");
        }
        let ended = received.map(|events| self::outcome(&events).0);
        assert_eq!(ended.map_err(|e| e.outcome), outcome);
    }
}

#[test]
fn endless_stream_succeeds_at_duration() {
    let call = HttpCall {
        stream_duration: Some(Duration::from_secs(3)),
        stream: Some(EventStream {
            format: EventFormat::Sse,
            until: None,
            error: None,
            tokens: None,
        }),
        ..call()
    };
    for (status, ended) in [("200 OK", Some(Outcome::Ok)), ("404 No", None)] {
        let mut driver = driver(&call);
        let (mut out, mut events) = (Vec::new(), Vec::new());
        driver.start(CallId(0), 0, Time(1), &mut out);
        assert_eq!(driver.next_timer(), None, "nothing has come");
        let head = format!("HTTP/1.1 {status}\r\nTransfer-Encoding: chunked\r\n\r\n");
        let event = b"9\r\ndata: x\n\n\r\n";
        let mut receive = |bytes: &[u8], now, events: &mut Vec<Event>| {
            driver.receive(bytes, now, &mut Vec::new(), events).unwrap();
            driver.next_timer()
        };
        let end = Time(2).plus_nanos(3_000_000_000);
        assert_eq!(receive(head.as_bytes(), Time(2), &mut events), Some(end));
        assert_eq!(receive(event, Time(9), &mut events), Some(end));
        driver.on_timer(end, &mut out, &mut events);
        let done = events.iter().find_map(|event| match event {
            Event::Done(done) => Some(done.outcome),
            _ => None,
        });
        // A failed call goes on until the end of its body, or until its deadline.
        assert_eq!((done, driver.is_draining()), (ended, ended.is_some()));
    }
}
