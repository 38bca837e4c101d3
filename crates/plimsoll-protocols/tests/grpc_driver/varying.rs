//! Tests of messages that vary from call to call, with windows of every size.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_model::rows::template::{
    MessageRenderer, MetadataField, RenderContext, RowOrder, Template, VariationSettings,
    VaryingMessages, VaryingMetadata,
};
use plimsoll_protocols::grpc::{MethodKind, StreamPace, StreamPlan};
use plimsoll_wire::hpack::Decoder;
use plimsoll_wire::http2::{kind, setting};

use super::*;

/// A renderer of the call's and the message's number and the time, followed by this many bytes.
#[derive(Debug)]
struct NumberRenderer {
    filling: usize,
}

impl MessageRenderer for NumberRenderer {
    fn render(&self, moment: &RenderContext<'_>, out: &mut Vec<u8>) {
        let text = format!("{}/{}@{};", moment.number, moment.message, moment.unix_ns);
        out.extend_from_slice(text.as_bytes());
        out.resize(out.len() + self.filling + moment.number as usize, 7);
    }
    fn max_bytes(&self) -> usize {
        100 + self.filling
    }
}

fn call(filling: usize) -> GrpcCall {
    GrpcCall {
        method: "a.S/M".to_owned(),
        message: vec![1],
        varying: Some(VaryingMessages {
            variation: VariationSettings::new(1, 1, 1, RowOrder::RoundRobin),
            messages: vec![Arc::new(NumberRenderer { filling })],
        }),
        max_message: 1000,
        ..GrpcCall::default()
    }
}

fn expected(number: u64, message: u32, unix_ns: u64, filling: usize) -> Vec<u8> {
    let mut body = format!("{number}/{message}@{unix_ns};").into_bytes();
    body.resize(body.len() + filling + number as usize, 7);
    let mut framed = vec![0];
    framed.extend_from_slice(&(body.len() as u32).to_be_bytes());
    framed.extend_from_slice(&body);
    framed
}

/// Returns the DATA sent on a stream, and the number of frames with END_STREAM.
fn received(frames: &[SentFrame], stream: u32) -> (Vec<u8>, usize) {
    let (mut bytes, mut ends) = (Vec::new(), 0);
    for (head, payload) in frames {
        if head.kind() == kind::DATA && head.stream() == stream {
            bytes.extend_from_slice(payload);
            ends += usize::from(head.has_flag(http2::flags::END_STREAM));
        }
    }
    (bytes, ends)
}

#[test]
fn each_call_has_own_message() {
    for filling in [0, 100, 40_000] {
        let protocol = prepare(&call(filling));
        protocol.set_clock_origin(500);
        let mut client = Client::of(&protocol);
        client.greet(&[(setting::INITIAL_WINDOW_SIZE, 1 << 20)]);
        let mut opened = Vec::new();
        write::window_update(&mut opened, 0, 1 << 24);
        client.receive(&opened).unwrap();
        for _ in 0..4 {
            client.start();
        }
        let frames = client.sent();
        for number in 0..4 {
            let stream = number as u32 * 2 + 1;
            let sent = received(&frames, stream);
            assert_eq!(sent, (expected(number, 0, 501, filling), 1), "{number}");
            client.receive(&good_answer(stream)).unwrap();
        }
        let sizes: Vec<usize> = client
            .events
            .iter()
            .filter_map(|event| match event {
                Event::Done(done) if done.outcome.is_ok() => Some(done.bytes_sent as usize),
                _ => None,
            })
            .collect();
        let wanted: Vec<usize> = (0..4).map(|n| expected(n, 0, 501, filling).len()).collect();
        assert_eq!(sizes, wanted);
    }
}

#[test]
fn window_blocked_messages_stay_unchanged() {
    let mut client = Client::of(&prepare(&call(60)));
    client.greet(&[(setting::INITIAL_WINDOW_SIZE, 20)]);
    for _ in 0..3 {
        client.start();
    }
    // The second call is cancelled while it waits.
    client.driver.cancel(CallId(1), Time(3), &mut client.out);
    let mut frames = client.sent();
    for _ in 0..10 {
        let mut opened = Vec::new();
        for stream in [1, 5] {
            write::window_update(&mut opened, stream, 9);
        }
        client.receive(&opened).unwrap();
        frames.extend(client.sent());
    }
    assert_eq!(received(&frames, 1), (expected(0, 0, 1, 60), 1));
    assert_eq!(received(&frames, 3).1, 0);
    assert_eq!(received(&frames, 5), (expected(2, 0, 1, 60), 1));
    assert!(
        client.driver.heap_bytes() < 2_000,
        "{}",
        client.driver.heap_bytes()
    );
}

/// Returns metadata that varies from call to call, with values of at least `size` bytes.
fn varying_metadata(size: usize) -> Option<VaryingMetadata> {
    let typed = format!("{}{{{{seq}}}}", "m".repeat(size));
    Some(VaryingMetadata {
        variation: VariationSettings::new(1, 1, 1, RowOrder::RoundRobin),
        fields: vec![MetadataField {
            name: "x-own".to_owned(),
            template: Template::parse(&typed, &mut 0, None).unwrap(),
            typed,
        }],
    })
}

/// Returns the values of `name` in the sent header blocks, by stream.
fn field_values(decoder: &mut Decoder, frames: &[SentFrame], name: &str) -> Vec<(u32, String)> {
    let (mut found, mut block) = (Vec::new(), Vec::new());
    for (head, payload) in frames {
        if ![kind::HEADERS, kind::CONTINUATION].contains(&head.kind()) {
            continue;
        }
        block.extend_from_slice(payload);
        if head.has_flag(http2::flags::END_HEADERS) {
            let mut visit = |field: plimsoll_wire::hpack::HeaderField<'_>| {
                if field.name == name.as_bytes() {
                    let value = String::from_utf8(field.value.to_vec()).unwrap();
                    found.push((head.stream(), value));
                }
            };
            decoder.decode(&block, &mut visit).unwrap();
            block.clear();
        }
    }
    found
}

#[test]
fn each_call_has_own_metadata() {
    let same = || GrpcCall {
        varying: None,
        ..call(0)
    };
    let stream = || GrpcCall {
        varying: None,
        ..streaming(1, StreamPace::None)
    };
    for (size, table) in [(3, 4_096), (3, 0), (300, 4_096), (40_000, 4_096)] {
        for call in [same(), call(10), stream(), streaming(1, StreamPace::None)] {
            let metadata = vec![("x-team".to_owned(), "red".to_owned())];
            let call = GrpcCall {
                metadata,
                varying_metadata: varying_metadata(size),
                ..call
            };
            let mut client = Client::of(&prepare(&call));
            client.greet(&[
                (setting::HEADER_TABLE_SIZE, table),
                (setting::INITIAL_WINDOW_SIZE, 1 << 20),
            ]);
            for _ in 0..3 {
                client.start();
            }
            let frames = client.sent();
            let expected = |value: &dyn Fn(u32) -> String| -> Vec<(u32, String)> {
                (0..3).map(|n| (n * 2 + 1, value(n))).collect()
            };
            for (name, wanted) in [
                ("x-own", expected(&|n| format!("{}{n}", "m".repeat(size)))),
                ("x-team", expected(&|_| "red".to_owned())),
            ] {
                let mut decoder = Decoder::new(table, 1 << 20);
                assert_eq!(
                    field_values(&mut decoder, &frames, name),
                    wanted,
                    "{size} {table}"
                );
            }
            for stream in [1, 3, 5] {
                assert_eq!(received(&frames, stream).1, 1);
            }
        }
    }
}

fn streaming(count: u32, pace: StreamPace) -> GrpcCall {
    GrpcCall {
        message: Vec::new(),
        stream: Some(StreamPlan {
            kind: MethodKind::Bidirectional,
            messages: vec![vec![1]],
            count,
            pace,
            expect: None,
            cancel_after: None,
            duration: None,
        }),
        ..call(10)
    }
}

#[test]
fn each_stream_message_is_distinct() {
    for (count, window) in [
        (1, 1 << 20),
        (3, 7),
        (0, 7),
        (2_000, 1 << 20),
        (2_000, 3_000),
    ] {
        let mut client = Client::of(&prepare(&streaming(count, StreamPace::None)));
        client.greet(&[(setting::INITIAL_WINDOW_SIZE, window)]);
        let mut opened = Vec::new();
        write::window_update(&mut opened, 0, 1 << 24);
        client.receive(&opened).unwrap();
        client.start();
        let mut frames = client.sent();
        for _ in 0..200 {
            let mut opened = Vec::new();
            write::window_update(&mut opened, 1, window.min(1_000));
            client.receive(&opened).unwrap();
            frames.extend(client.sent());
        }
        let (bytes, ends) = received(&frames, 1);
        let mut rest = &bytes[..];
        for message in 0..count {
            let text = format!("0/{message}@");
            assert_eq!(&rest[5..5 + text.len()], text.as_bytes());
            let length = u32::from_be_bytes(rest[1..5].try_into().unwrap()) as usize;
            rest = &rest[5 + length..];
        }
        assert_eq!((rest.len(), ends), (0, 1), "{count} {window}");
        assert_eq!(client.driver.call_progress(CallId(0)).messages_sent, count);
    }
}

/// A subscription does not end by itself: that the client ends it counts as a success.
#[test]
fn stream_succeeds_after_its_duration() {
    let mut call = streaming(2, StreamPace::Every(Duration::from_nanos(300)));
    call.stream.as_mut().unwrap().duration = Some(Duration::from_nanos(500));
    let mut client = Client::of(&prepare(&call));
    client.greet(&[]);
    client.start();
    let mut expire = |now, deadline: Option<u64>| {
        assert_eq!(client.driver.next_timer(), Some(Time(now)));
        client
            .driver
            .on_timer(Time(now), &mut client.out, &mut client.events);
        assert_eq!(client.driver.next_timer(), deadline.map(Time));
        (client.ended(), resets(&client.sent()))
    };
    assert_eq!(expire(301, Some(501)), (vec![], vec![]));
    let ended = (vec![(0, Outcome::Ok)], vec![(1, ErrorCode::CANCEL)]);
    assert_eq!(expire(501, None), ended);
}

#[test]
fn paced_messages_carry_send_time() {
    let pace = StreamPace::Every(Duration::from_nanos(100));
    let mut client = Client::of(&prepare(&streaming(3, pace)));
    client.greet(&[]);
    client.start();
    for now in [101, 201] {
        assert_eq!(client.driver.next_timer(), Some(Time(now)));
        client
            .driver
            .on_timer(Time(now), &mut client.out, &mut client.events);
    }
    let times = [1, 101, 201].into_iter().zip(0..);
    let wanted: Vec<u8> = times
        .flat_map(|(time, message)| expected(0, message, time, 10))
        .collect();
    assert_eq!(received(&client.sent(), 1), (wanted, 1));
}
