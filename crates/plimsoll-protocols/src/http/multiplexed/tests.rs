//! Tests of the HTTP/2 driver, which is given bytes and times.
//!
//! This file is long because every way in which a stream can end is covered.

use plimsoll_engine::driver::{CallId, Driver};
use plimsoll_model::rows::template::{MetadataField, RowOrder, Template, VariationSettings};
use plimsoll_wire::hpack::Encoder;
use plimsoll_wire::http2::{EndStream, Http2Frame, PREFACE, split_frame};

use super::*;
use crate::http::driver::DRAIN_TIMEOUT;
use crate::http::{EventFormat, EventMatch, EventStream};

fn call() -> HttpCall {
    HttpCall {
        method: "GET".into(),
        path: "/a".into(),
        expect: vec![(200, 299)],
        max_body: 1_000,
        ..HttpCall::default()
    }
}

/// Makes a connection that is ready, with this many calls in flight on streams 1, 3, …
fn driver(call: &HttpCall, calls: u32) -> (Http2Driver, Vec<u8>) {
    let request = HttpRequest {
        call,
        authority: "h:1",
        closes: false,
    };
    let mut driver = Http2Protocol::new(&request, HttpScheme::Http).new_driver();
    let (mut out, mut events) = (Vec::new(), Vec::new());
    driver.open(Time::ZERO, &mut out);
    let mut settings = Vec::new();
    write::settings(&mut settings, &[]);
    driver
        .receive(&settings, Time::ZERO, &mut out, &mut events)
        .unwrap();
    for number in 0..calls {
        driver.start(CallId(number), number.into(), Time::ZERO, &mut out);
    }
    (driver, out)
}

fn head(id: u32, fields: &[(&str, &str)], end: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    let block = Encoder::encode_plain(fields.iter().copied());
    write::header_block(&mut bytes, id, &block, EndStream(end));
    bytes
}

fn data(id: u32, data: &[u8], end: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    write::data(&mut bytes, id, data, EndStream(end));
    bytes
}

const OK: &[(&str, &str)] = &[(":status", "200")];

/// Returns the events of `bytes`, after checking that they are the same however the bytes are split.
fn received(call: &HttpCall, calls: u32, bytes: &[u8]) -> Vec<Event> {
    let run = |step: usize| {
        let (mut driver, _) = driver(call, calls);
        let (mut out, mut events) = (Vec::new(), Vec::new());
        for piece in bytes.chunks(step) {
            driver
                .receive(piece, Time(9), &mut out, &mut events)
                .unwrap();
        }
        (events, out)
    };
    let whole = run(bytes.len().max(1));
    for step in 1..bytes.len() {
        assert_eq!(run(step), whole, "in pieces of {step}");
    }
    whole.0
}

fn ends(events: &[Event]) -> Vec<(u32, Outcome, u32)> {
    let done = events.iter().filter_map(Event::ended_call);
    done.map(|done| (done.call.0, done.outcome, done.bytes_received))
        .collect()
}

fn details(events: &[Event]) -> Vec<&str> {
    let details = events.iter().filter_map(|event| match event {
        Event::Detail { text, .. } => Some(text.as_str()),
        _ => None,
    });
    details.collect()
}

/// Parses the requests that a client sent: the fields and the body of each stream.
fn requests(sent: &[u8]) -> Vec<(u32, Vec<String>, String)> {
    let mut rest = sent.strip_prefix(PREFACE).unwrap();
    let mut decoder = Decoder::new(4_096, 1 << 20);
    let mut found: Vec<(u32, Vec<String>, String)> = Vec::new();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    while let Some((frame, payload)) = split_frame(&mut rest, 16_384).unwrap() {
        match Http2Frame::parse(frame, payload).unwrap() {
            Http2Frame::Headers { fragment, .. } => {
                let mut fields = Vec::new();
                let line = |f: plimsoll_wire::hpack::HeaderField<'_>| {
                    fields.push(format!("{}: {}", text(f.name), text(f.value)));
                };
                decoder.decode(fragment, line).unwrap();
                found.push((frame.stream(), fields, String::new()));
            }
            Http2Frame::Data { data, .. } => {
                let of = found.iter_mut().find(|(id, ..)| *id == frame.stream());
                of.unwrap().2.push_str(&text(data));
            }
            _ => {}
        }
    }
    assert!(rest.is_empty());
    found
}

#[test]
fn every_response_shape_completes_calls() {
    let length = [(":status", "200"), ("content-length", "5")];
    let bytes = [
        head(3, &length, false),
        head(1, &[(":status", "100")], false),
        data(3, b"he", false),
        head(1, OK, false),
        head(5, &[(":status", "204")], true),
        data(1, b"", false),
        data(3, b"llo", true),
        data(1, b"abc", false),
        head(1, &[("x-checksum", "1")], true),
        head(7, OK, false),
        data(7, b"", true),
    ]
    .concat();
    let ok = |call, size| (call, Outcome::Ok, size);
    let events = received(&call(), 4, &bytes);
    assert_eq!(ends(&events), [ok(2, 0), ok(1, 5), ok(0, 3), ok(3, 0)]);
}

#[test]
fn request_fields_match_http1() {
    let mut post = call();
    post.method = "POST".into();
    post.host = Some("service".into());
    post.headers = vec![("x-tenant".into(), "7".into())];
    post.body = b"hello".to_vec();
    let (_, sent) = driver(&post, 3);
    let fields = [
        ":method: POST",
        ":scheme: http",
        ":authority: service",
        ":path: /a",
        concat!("user-agent: plimsoll/", env!("CARGO_PKG_VERSION")),
        "accept: */*",
        "x-tenant: 7",
        "content-length: 5",
    ];
    let found = requests(&sent);
    assert_eq!(found.len(), 3);
    for (nth, (id, of, body)) in found.iter().enumerate() {
        assert_eq!((*id as usize, body.as_str()), (nth * 2 + 1, "hello"));
        assert_eq!(of, &fields);
    }
}

#[test]
fn varying_parts_render_per_request() {
    let mut slots = 0;
    let mut parse = |text: &str| Template::parse(text, &mut slots, None).unwrap();
    let (path, field) = (parse("/a?n={{seq}}"), parse("v{{seq}}"));
    let template = parse("{\"n\": {{seq}}}");
    for has_body in [false, true] {
        let mut varying = call();
        varying.varying = Some(VaryingRequest {
            variation: VariationSettings::new(1, 1, 0, RowOrder::RoundRobin),
            path: Some(path.clone()),
            headers: vec![MetadataField {
                name: "x-n".into(),
                typed: "v{{seq}}".into(),
                template: field.clone(),
            }],
            body: has_body.then(|| VaryingBody {
                quoted: vec![false; template.parts().len()],
                typed: String::new(),
                template: template.clone(),
            }),
            expectations: None,
        });
        let (_, sent) = driver(&varying, 12);
        let found = requests(&sent);
        assert_eq!(found.len(), 12);
        for (n, (_, fields, body)) in found.iter().enumerate() {
            assert_eq!(fields[3], format!(":path: /a?n={n}"));
            assert!(fields.contains(&format!("x-n: v{n}")), "{fields:?}");
            let text = if has_body {
                format!("{{\"n\": {n}}}")
            } else {
                String::new()
            };
            let length = format!("content-length: {}", text.len());
            assert_eq!(fields.contains(&length), has_body, "{fields:?}");
            assert_eq!(*body, text);
        }
    }
}

#[test]
fn status_errors_have_codes_and_details() {
    for (fields, code, detail) in [
        (
            &[(":status", "503"), ("retry-after", "7")][..],
            Outcome::coded("HTTP_503_RETRY_AFTER"),
            "GET /a: 503, retry-after: 7: no way",
        ),
        (
            &[(":status", "302"), ("location", "/b")],
            Outcome::coded("HTTP_302"),
            "GET /a: 302, location: /b: no way",
        ),
    ] {
        let answer = |id| [head(id, fields, false), data(id, b"no\nway", true)].concat();
        let bytes = [1, 3, 5, 7, 9].map(answer).concat();
        let events = received(&call(), 5, &bytes);
        let all: Vec<_> = (0..5).map(|call| (call, code, 6)).collect();
        assert_eq!(ends(&events), all);
        assert_eq!(details(&events), [detail; 3]);
    }
}

#[test]
fn headers_and_bodies_must_match_expectations() {
    let mut wanted = call();
    wanted.expect_headers = vec![("x-ok".into(), "1".into())];
    wanted.expect_body = Some("\"ok\"".into());
    for (field, body, expected) in [
        (("x-ok", "1"), "{\"is\":\"ok\"}", Outcome::Ok),
        (
            ("x-ok", "2"),
            "{\"is\":\"ok\"}",
            Outcome::coded("HTTP_HEADER"),
        ),
        (
            ("x-ok", "1"),
            "{\"is\":\"no\"}",
            Outcome::coded("HTTP_BODY"),
        ),
    ] {
        let fields = [OK[0], field];
        let (first, second) = body.as_bytes().split_at(7);
        // The text search of one stream does not see the other's text.
        let bytes = [
            head(1, &fields, false),
            head(3, &fields, false),
            data(1, first, false),
            data(3, first, false),
            data(3, second, true),
            data(1, second, true),
        ]
        .concat();
        let events = received(&wanted, 2, &bytes);
        let size = body.len() as u32;
        assert_eq!(ends(&events), [(1, expected, size), (0, expected, size)]);
    }
    let packed = [OK[0], ("x-ok", "1"), ("content-encoding", "magic")];
    let events = received(&wanted, 1, &head(1, &packed, true));
    assert_eq!(ends(&events), [(0, Outcome::CompressionUnsupported, 0)]);
}

fn streamed() -> HttpCall {
    HttpCall {
        stream: Some(EventStream {
            format: EventFormat::Sse,
            until: Some(EventMatch::Data("[DONE]".into())),
            error: None,
            tokens: None,
        }),
        ..call()
    }
}

#[test]
fn interleaved_event_streams_end_independently() {
    let bytes = [
        head(1, OK, false),
        head(3, OK, false),
        data(1, b"data: 1\n\nda", false),
        data(3, b"data: {\"error\": 1}\n\n", false),
        data(1, b"ta: [DONE]\n\n", false),
        head(5, OK, false),
        data(5, b"data: 1\n\n", true),
        // The rest of the first stream belongs to no call.
        data(1, b"data: 3\n\n", false),
        data(1, b"", true),
    ]
    .concat();
    let events = received(&streamed(), 3, &bytes);
    let found: Vec<_> = ends(&events).iter().map(|end| (end.0, end.1)).collect();
    let expected = [
        (1, Outcome::EventError),
        (0, Outcome::Ok),
        (2, Outcome::StreamShort),
    ];
    assert_eq!(found, expected);
    let of = |call: u32| {
        let is_one = |event: &&Event| **event == Event::Message(CallId(call));
        events.iter().filter(is_one).count()
    };
    assert_eq!([of(0), of(1), of(2)], [2, 1, 1]);
    assert_eq!(details(&events).len(), 2);
}

#[test]
fn finished_call_holds_stream_until_closed() {
    let (mut driver, _) = driver(&streamed(), 2);
    let (mut out, mut events) = (Vec::new(), Vec::new());
    let mut bytes = Vec::new();
    write::settings(
        &mut bytes,
        &[(plimsoll_wire::http2::setting::MAX_CONCURRENT_STREAMS, 2)],
    );
    for id in [1, 3] {
        bytes.extend(head(id, OK, false));
        bytes.extend(data(id, b"data: [DONE]\n\n", false));
    }
    driver
        .receive(&bytes, Time(5), &mut out, &mut events)
        .unwrap();
    assert_eq!(ends(&events).len(), 2);
    assert_eq!(driver.capacity(), 0);
    driver
        .receive(&data(1, b"", true), Time(6), &mut out, &mut events)
        .unwrap();
    assert_eq!(driver.capacity(), 1);
    out.clear();
    let until = driver.next_timer().unwrap();
    assert_eq!(until, Time(5) + DRAIN_TIMEOUT);
    driver.on_timer(until, &mut out, &mut events);
    let mut reset = Vec::new();
    write::reset_stream(&mut reset, 3, ErrorCode::CANCEL);
    assert_eq!((out, driver.capacity()), (reset, 2));
    assert_eq!(driver.next_timer(), None);
    // Neither call ends again, and nothing was in flight.
    driver.receive_end(Time(7), &mut events).unwrap();
    driver.abort(Outcome::Reset, Time(7), &mut events);
    assert_eq!(ends(&events).len(), 2);
}

#[test]
fn malformed_responses_fail_only_their_calls() {
    let length = [(":status", "200"), ("content-length", "5")];
    for (bytes, needle) in [
        (data(1, b"x", false), "DATA before HEADERS"),
        (head(1, &[("x", "1")], false), "without :status"),
        (head(1, &[(":status", "101")], false), "status 101"),
        (head(1, &[(":status", "103")], true), "interim"),
        (
            head(1, &[(":status", "200"), ("connection", "close")], true),
            "HTTP/1.1",
        ),
        (
            head(1, &[(":status", "200"), ("content-length", "x")], true),
            "not a number",
        ),
        (
            [head(1, OK, false), head(1, &[("x", "1")], false)].concat(),
            "without END_STREAM",
        ),
        (
            [head(1, OK, false), head(1, OK, true)].concat(),
            "pseudo-field",
        ),
        (
            [head(1, &length, false), data(1, b"four", true)].concat(),
            "content-length",
        ),
        (head(1, &length, true), "content-length"),
    ] {
        let events = received(&call(), 2, &bytes);
        let ended: Vec<_> = ends(&events).iter().map(|end| (end.0, end.1)).collect();
        assert_eq!(ended, [(0, Outcome::ProtocolError)], "{needle}");
        assert!(
            details(&events)[0].contains(needle),
            "{:?}",
            details(&events)
        );
    }
}

#[test]
fn oversized_bodies_fail_their_calls() {
    let large = [(":status", "200"), ("content-length", "1001")];
    let huge = [(":status", "200"), ("content-length", "99999999999")];
    for bytes in [
        head(1, &large, false),
        head(1, &huge, false),
        [
            head(1, OK, false),
            data(1, &[0; 600], false),
            data(1, &[0; 600], true),
        ]
        .concat(),
    ] {
        let events = received(&call(), 2, &bytes);
        let ended: Vec<_> = ends(&events).iter().map(|end| (end.0, end.1)).collect();
        assert_eq!(ended, [(0, Outcome::MessageTooLarge)]);
        assert_eq!(details(&events), ["http: a body of more than 1000 bytes"]);
    }
    let whole = [head(1, OK, false), data(1, &[0; 1_000], true)].concat();
    assert_eq!(
        ends(&received(&call(), 1, &whole)),
        [(0, Outcome::Ok, 1_000)]
    );
}

#[test]
fn head_responses_have_no_body() {
    let mut bodiless = call();
    bodiless.method = "HEAD".into();
    let length = [(":status", "200"), ("content-length", "5000")];
    let events = received(&bodiless, 1, &head(1, &length, true));
    assert_eq!(ends(&events), [(0, Outcome::Ok, 0)]);
    let with_body = [head(1, &length, false), data(1, b"x", true)].concat();
    let events = received(&bodiless, 1, &with_body);
    assert_eq!(ends(&events)[0].1, Outcome::ProtocolError);
}

#[test]
fn resets_and_goaways_end_calls() {
    let mut bytes = Vec::new();
    write::reset_stream(&mut bytes, 1, ErrorCode::REFUSED_STREAM);
    write::reset_stream(&mut bytes, 3, ErrorCode::INTERNAL_ERROR);
    write::goaway(&mut bytes, 5, ErrorCode::NO_ERROR, b"");
    bytes.extend(head(5, OK, true));
    let events = received(&call(), 4, &bytes);
    let ended: Vec<_> = ends(&events).iter().map(|end| (end.0, end.1)).collect();
    let expected = [
        (0, Outcome::StreamRefused),
        (1, Outcome::StreamReset),
        (3, Outcome::Goaway),
        (2, Outcome::Ok),
    ];
    assert_eq!(ended, expected);
    let not_taken = events.iter().filter_map(|event| match event {
        Event::Unprocessed(done) => Some(done.call.0),
        _ => None,
    });
    assert_eq!(not_taken.collect::<Vec<_>>(), [0, 3]);

    let (mut driver, _) = driver(&streamed(), 1);
    let (mut out, mut events) = (Vec::new(), Vec::new());
    driver
        .receive(&head(1, OK, false), Time(1), &mut out, &mut events)
        .unwrap();
    out.clear();
    driver.cancel(CallId(0), Time(2), &mut out);
    let mut reset = Vec::new();
    write::reset_stream(&mut reset, 1, ErrorCode::CANCEL);
    assert_eq!(out, reset);
    driver
        .receive(&data(1, b"x", true), Time(3), &mut out, &mut events)
        .unwrap();
    assert_eq!(events, [Event::Late]);
}

#[test]
fn expected_body_size_is_checked() {
    let mut sized = call();
    let answer = [
        head(1, OK, false),
        data(1, b"hel", false),
        data(1, b"lo", true),
    ]
    .concat();
    for (size, body, expected) in [
        (5, None, Outcome::Ok),
        (6, None, Outcome::BodyLength),
        (5, Some("ll"), Outcome::Ok),
        (6, Some("ll"), Outcome::BodyLength),
        (6, Some("x"), Outcome::coded("HTTP_BODY")),
    ] {
        (sized.expect_size, sized.expect_body) = (Some(size), body.map(str::to_owned));
        let events = received(&sized, 1, &answer);
        assert_eq!(ends(&events), [(0, expected, 5)], "{size} {body:?}");
        if expected == Outcome::BodyLength {
            assert_eq!(details(&events), ["GET /a: a body of 5 bytes instead of 6"]);
        }
    }
    // The same for an answer without a body.
    let empty = received(&sized, 1, &head(1, OK, true));
    assert_eq!(ends(&empty), [(0, Outcome::coded("HTTP_BODY"), 0)]);
    sized.expect_body = None;
    let empty = received(&sized, 1, &head(1, OK, true));
    assert_eq!(ends(&empty), [(0, Outcome::BodyLength, 0)]);
}

#[test]
fn head_limit_is_enforced_and_configurable() {
    for (size, max_head, outcome) in [
        (70_000, 0, Outcome::HeadTooLarge),
        (70_000, 128 << 10, Outcome::Ok),
        // Larger than the limit of a header block, which ends the connection.
        (200_000, 0, Outcome::HeadTooLarge),
        (200_000, 1 << 20, Outcome::Ok),
    ] {
        let call = HttpCall { max_head, ..call() };
        let fields = [(":status", "200"), ("x-long", &*"v".repeat(size))];
        let (mut driver, _) = driver(&call, 1);
        let (mut out, mut events) = (Vec::new(), Vec::new());
        let answer = head(1, &fields, true);
        let received = driver.receive(&answer, Time(9), &mut out, &mut events);
        let ended = match received {
            Err(e) => e.outcome,
            Ok(()) => ends(&events)[0].1,
        };
        assert_eq!(ended, outcome, "{size} of {max_head}");
    }
}

#[test]
fn endless_stream_is_reset_at_duration() {
    let mut call = streamed();
    call.stream_duration = Some(std::time::Duration::from_secs(3));
    if let Some(stream) = &mut call.stream {
        stream.until = None;
    }
    let (mut driver, _) = driver(&call, 2);
    let (mut out, mut events) = (Vec::new(), Vec::new());
    let bytes = [head(1, OK, false), data(1, b"data: x\n\n", false)].concat();
    driver
        .receive(&bytes, Time(2), &mut out, &mut events)
        .unwrap();
    let end = Time(2).plus_nanos(3_000_000_000);
    assert_eq!(driver.next_timer(), Some(end));
    out.clear();
    driver.on_timer(end, &mut out, &mut events);
    assert_eq!(ends(&events), [(0, Outcome::Ok, 9)]);
    let mut reset = Vec::new();
    write::reset_stream(&mut reset, 1, ErrorCode::CANCEL);
    assert_eq!((out, driver.next_timer()), (reset, None));
}
