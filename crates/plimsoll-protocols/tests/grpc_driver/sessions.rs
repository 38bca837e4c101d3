//! Tests of complete connections with a conforming server.
//!
//! This file is long because each way in which a conversation can go has a test of its own.

use plimsoll_protocols::grpc::canned::{CannedOptions, CannedServer};
use plimsoll_wire::http2::{flags, kind, setting};

use super::*;

/// Passes bytes between client and server until neither has any left.
fn converse(
    client: &mut Client,
    server: &mut plimsoll_protocols::grpc::canned::CannedConnection,
    to_client: &mut Vec<u8>,
) {
    let mut held = Vec::new();
    loop {
        let to_server = std::mem::take(&mut client.out);
        server.receive(&to_server, to_client, &mut held).unwrap();
        if to_client.is_empty() && client.out.is_empty() {
            return;
        }
        client.receive(&std::mem::take(to_client)).unwrap();
    }
}

#[test]
fn client_preface_announces_our_settings() {
    let mut client = Client::new(4);
    assert!(client.out.starts_with(http2::PREFACE));
    assert!(!client.driver.is_ready());
    assert_eq!(client.driver.capacity(), 0);
    let sent = client.sent();
    let Ok(Http2Frame::Settings(settings)) = Http2Frame::parse(sent[0].0, &sent[0].1) else {
        panic!("no SETTINGS first");
    };
    let settings: Vec<_> = settings.iter().collect();
    assert!(settings.contains(&(setting::ENABLE_PUSH, 0)));
    assert!(settings.contains(&(setting::INITIAL_WINDOW_SIZE, 0x7fff_ffff)));
    let Ok(Http2Frame::WindowUpdate { increment }) = Http2Frame::parse(sent[1].0, &sent[1].1)
    else {
        panic!("no WINDOW_UPDATE second");
    };
    assert_eq!(increment, 0x7fff_ffff - 65_535);
    client.receive(&frame(kind::SETTINGS, 0, 0, &[])).unwrap();
    assert!(client.driver.is_ready());
    assert!(client.driver.capacity() > 1_000_000);
    assert_eq!(client.sent()[0].0.flags(), flags::ACK);
}

#[test]
fn calls_succeed_sequentially_and_concurrently() {
    let canned = CannedServer::new(CannedOptions::default());
    let mut server = canned.new_connection();
    let mut client = Client::new(100);
    let mut to_client = Vec::new();
    server.send_preface(&mut to_client);
    converse(&mut client, &mut server, &mut to_client);
    for batch in [1, 1, 1, 100, 1, 500] {
        for _ in 0..batch {
            client.start();
        }
        converse(&mut client, &mut server, &mut to_client);
        assert_eq!(client.ended().len(), client.calls as usize);
    }
    assert!(client.ended().iter().all(|(_, outcome)| outcome.is_ok()));
    let Event::Done(done) = &client.events[0] else {
        panic!("no Done")
    };
    assert_eq!((done.bytes_sent, done.bytes_received), (105, 14));
    assert_eq!(done.first_byte, Time(2));
    assert_eq!(server.answer_count(), u64::from(client.calls));
}

#[test]
fn requests_repeat_as_indices() {
    let mut client = Client::with_calls(4, &[], 0);
    client.sent();
    client.start();
    client.start();
    let sent = client.sent();
    let lengths: Vec<_> = sent
        .iter()
        .map(|(head, _)| (head.kind(), head.length()))
        .collect();
    assert_eq!(lengths.len(), 4);
    assert!(lengths[0].1 > 60, "the first names its fields: {lengths:?}");
    assert!(lengths[2].1 < 12, "the second is indices: {lengths:?}");
    assert_eq!((lengths[1], lengths[3]), ((kind::DATA, 9), (kind::DATA, 9)));
}

#[test]
fn requests_respect_server_table_size() {
    for size in [0, 64, 256, 1 << 20] {
        let options = CannedOptions {
            header_table_size: size,
            ..CannedOptions::default()
        };
        let mut server = CannedServer::new(options).new_connection();
        let mut client = Client::new(4);
        let mut to_client = Vec::new();
        server.send_preface(&mut to_client);
        converse(&mut client, &mut server, &mut to_client);
        for _ in 0..3 {
            client.start();
            converse(&mut client, &mut server, &mut to_client);
        }
        assert_eq!(client.ended().len(), 3, "table of {size}");
    }
}

#[test]
fn header_table_resizes_between_calls() {
    let mut client = Client::with_calls(4, &[], 2);
    let mut decoder = plimsoll_wire::hpack::Decoder::new(4096, 1 << 16);
    let mut paths = |client: &mut Client| {
        let mut paths = 0;
        for (head, payload) in client.sent() {
            if let Ok(Http2Frame::Headers { fragment, .. }) = Http2Frame::parse(head, &payload) {
                let decoded = decoder.decode(fragment, |field| {
                    paths += usize::from(
                        field.name == b":path" && field.value == b"/score.ScoreService/GetScore",
                    );
                });
                decoded.unwrap();
            }
        }
        paths
    };
    assert_eq!(paths(&mut client), 2);
    for size in [100, 4096, 0, 65_536, 300, 4096, 4096] {
        let mut settings = Vec::new();
        write::settings(&mut settings, &[(setting::HEADER_TABLE_SIZE, size)]);
        client.receive(&settings).unwrap();
        client.start();
        client.start();
        assert_eq!(
            paths(&mut client),
            2,
            "after SETTINGS_HEADER_TABLE_SIZE of {size}"
        );
    }
}

/// A deadline counts from when the call was due: the remaining time is sent, whatever the server's table size
/// is, and later calls are not affected.
#[test]
fn delayed_call_sends_remaining_deadline() {
    let call = GrpcCall {
        method: "score.ScoreService/GetScore".to_owned(),
        message: vec![7; 10],
        max_message: 1000,
        ..GrpcCall::default()
    };
    let deadline = Some(std::time::Duration::from_secs(1));
    let request = GrpcRequest {
        call: &call,
        authority: "localhost",
        secure: false,
        deadline,
    };
    let mut client = Client::of(&GrpcProtocol::new(&request).unwrap());
    client.greet(&[]);
    let mut decoder = plimsoll_wire::hpack::Decoder::new(4096, 1 << 16);
    let mut timeouts = |waited_ms: &[u64], settings: &[(u16, u32)]| {
        let mut bytes = Vec::new();
        write::settings(&mut bytes, settings);
        client.receive(&bytes).unwrap();
        for (n, &ms) in waited_ms.iter().enumerate() {
            let id = CallId(client.calls + n as u32);
            let waited = std::time::Duration::from_millis(ms);
            match ms {
                0 => client.driver.start(id, 0, Time(1), &mut client.out),
                _ => {
                    let out = &mut client.out;
                    client.driver.start_delayed(id, 0, waited, Time(1), out);
                }
            }
        }
        client.calls += waited_ms.len() as u32;
        let (mut timeouts, mut paths, mut bodies) = (Vec::new(), 0, 0);
        for (head, payload) in client.sent() {
            match Http2Frame::parse(head, &payload) {
                Ok(Http2Frame::Headers { fragment, .. }) => {
                    let decoded = decoder.decode(fragment, |field| {
                        paths += usize::from(field.name == b":path");
                        if field.name == b"grpc-timeout" {
                            timeouts.push(String::from_utf8(field.value.to_vec()).unwrap());
                        }
                    });
                    decoded.unwrap();
                }
                _ => bodies += usize::from(head.kind() == kind::DATA),
            }
        }
        assert_eq!((paths, bodies), (waited_ms.len(), waited_ms.len()));
        timeouts
    };
    assert_eq!(
        timeouts(&[300, 0, 250, 0], &[]),
        ["700m", "1S", "750m", "1S"]
    );
    // With no time left, the smallest possible deadline is sent.
    assert_eq!(timeouts(&[2_000], &[]), ["1n"]);
    let smaller = [(setting::HEADER_TABLE_SIZE, 100)];
    assert_eq!(timeouts(&[400, 0, 400], &smaller), ["600m", "1S", "600m"]);
    let again = [(setting::HEADER_TABLE_SIZE, 4096)];
    assert_eq!(timeouts(&[500, 0, 0], &again), ["500m", "1S", "1S"]);
}

/// Returns the server's bytes of a varied, valid connection.
fn varied_session() -> Vec<u8> {
    let mut bytes = Vec::new();
    write::settings(&mut bytes, &[(setting::MAX_CONCURRENT_STREAMS, 100)]);
    write::window_update(&mut bytes, 0, 1_000);
    bytes.extend(good_answer(1));
    bytes.extend(frame(kind::PING, 0, 0, b"pingpong"));
    // A response with padding, in several pieces, with an interim response, and with a block in three frames.
    bytes.extend(headers(3, &[(":status", "103"), ("x-hint", "1")], false));
    bytes.extend(frame(kind::HEADERS, 0, 3, &[0x88]));
    let content_type = Encoder::encode_plain([("content-type", "application/grpc+proto")]);
    bytes.extend(frame(kind::CONTINUATION, 0, 3, &content_type[..4]));
    bytes.extend(frame(
        kind::CONTINUATION,
        flags::END_HEADERS,
        3,
        &content_type[4..],
    ));
    bytes.extend(frame(
        kind::DATA,
        flags::PADDED,
        3,
        &[&[2], &MESSAGE[..6], &[0, 0]].concat(),
    ));
    bytes.extend(data(3, b"", false));
    bytes.extend(data(3, &MESSAGE[6..], false));
    bytes.extend(frame(0xfa, 0, 3, b"grease"));
    bytes.extend(trailers(3, "0"));
    let error = [
        (":status", "200"),
        ("content-type", "application/grpc"),
        ("grpc-status", "9"),
        ("grpc-message", "not%20now"),
    ];
    bytes.extend(headers(5, &error, true));
    write::reset_stream(&mut bytes, 7, ErrorCode::REFUSED_STREAM);
    write::goaway(&mut bytes, 9, ErrorCode::NO_ERROR, b"maintenance");
    bytes.extend(good_answer(9));
    bytes
}

/// The length of the SETTINGS that the session begins with. Bytes.
const GREETING: usize = 15;

fn receive_session(chunks: &[&[u8]]) -> (Vec<Event>, Vec<SentFrame>, bool) {
    let session = varied_session();
    let (greeting, rest) = session.split_at(GREETING);
    let mut client = Client::new(4);
    client.receive(greeting).unwrap();
    for _ in 0..6 {
        client.start();
    }
    assert_eq!(chunks.concat(), rest);
    for chunk in chunks {
        client.receive(chunk).unwrap();
    }
    let frames = client.sent();
    (client.events, frames, client.driver.is_draining())
}

#[test]
fn responses_parse_in_any_split() {
    let session = varied_session();
    let rest = &session[GREETING..];
    let whole = receive_session(&[rest]);
    let outcomes: Vec<_> = whole
        .0
        .iter()
        .filter_map(|event| match event {
            Event::Done(done) | Event::Unprocessed(done) => Some((done.call.0, done.outcome)),
            _ => None,
        })
        .collect();
    assert_eq!(
        outcomes,
        [
            (0, Outcome::Ok),
            (1, Outcome::Ok),
            (2, Outcome::FailedPrecondition),
            (3, Outcome::StreamRefused),
            (5, Outcome::Goaway),
            (4, Outcome::Ok),
        ]
    );
    assert!(whole.2);
    let pong = |(head, payload): &SentFrame| {
        head.kind() == kind::PING && head.flags() == flags::ACK && payload == b"pingpong"
    };
    assert_eq!(whole.1.iter().filter(|frame| pong(frame)).count(), 1);
    let said = |wanted: &str| {
        whole
            .0
            .iter()
            .any(|event| matches!(event, Event::Detail { text, .. } if text.contains(wanted)))
    };
    assert!(said("not now") && said("REFUSED_STREAM") && said("maintenance"));
    for at in 0..=rest.len() {
        assert_eq!(
            receive_session(&[&rest[..at], &rest[at..]]),
            whole,
            "split at {at}"
        );
    }
    let bytes: Vec<&[u8]> = rest.chunks(1).collect();
    assert_eq!(receive_session(&bytes), whole, "byte by byte");
    for first in (0..rest.len()).step_by(7) {
        for second in (first..rest.len()).step_by(11) {
            let pieces = [&rest[..first], &rest[first..second], &rest[second..]];
            assert_eq!(
                receive_session(&pieces),
                whole,
                "split at {first} and {second}"
            );
        }
    }
}

/// Checks how a call ends after one response on stream 1; `reset`: whether the driver cancels the stream.
fn assert_call_ends(bytes: Vec<u8>, outcome: Outcome, detail: &str, reset: bool) {
    let mut client = Client::with_calls(4, &[], 1);
    client.sent();
    client.receive(&bytes).unwrap();
    assert_eq!(client.ended(), [(0, outcome)], "{detail}");
    let sent = client.sent();
    let expected: &[_] = if reset {
        &[(1, ErrorCode::CANCEL)]
    } else {
        &[]
    };
    assert_eq!(resets(&sent), expected, "{detail}");
    let details = client.details();
    match detail {
        "" => assert_eq!(details, [""; 0]),
        text => assert!(details[0].contains(text), "{details:?}"),
    }
    // Frames that were in transit when the stream was reset are ignored.
    if reset {
        client
            .receive(&[data(1, b"more", false), trailers(1, "0")].concat())
            .unwrap();
        assert_eq!((client.ended().len(), client.late_answers()), (1, 0));
    }
    client.start();
    client.receive(&good_answer(3)).unwrap();
    assert_eq!(client.ended()[1], (1, Outcome::Ok));
}

#[test]
fn responses_map_to_outcomes() {
    let grpc = ("content-type", "application/grpc");
    let message = |bytes: &[u8]| [head(1), data(1, bytes, false)].concat();
    let with = |mut bytes: Vec<u8>, last: Vec<u8>| {
        bytes.extend(last);
        bytes
    };
    assert_call_ends(good_answer(1), Outcome::Ok, "", false);
    // Status.
    assert_call_ends(
        headers(
            1,
            &[
                (":status", "200"),
                grpc,
                ("grpc-status", "5"),
                ("grpc-message", "no%20such"),
            ],
            true,
        ),
        Outcome::NotFound,
        "no such",
        false,
    );
    assert_call_ends(
        with(message(MESSAGE), trailers(1, "13")),
        Outcome::Internal,
        "",
        false,
    );
    assert_call_ends(
        with(message(MESSAGE), trailers(1, "99")),
        Outcome::Unknown,
        "",
        false,
    );
    assert_call_ends(
        with(message(MESSAGE), headers(1, &[("x", "1")], true)),
        Outcome::MissingStatus,
        "grpc-status",
        false,
    );
    assert_call_ends(
        [head(1), data(1, MESSAGE, true)].concat(),
        Outcome::MissingStatus,
        "grpc-status",
        false,
    );
    assert_call_ends(
        headers(1, &[(":status", "200"), grpc], true),
        Outcome::MissingStatus,
        "grpc-status",
        false,
    );
    // HTTP.
    assert_call_ends(
        headers(
            1,
            &[(":status", "503"), ("content-type", "text/html")],
            false,
        ),
        Outcome::coded("HTTP_STATUS"),
        "503, content-type `text/html`",
        true,
    );
    assert_call_ends(
        headers(1, &[(":status", "404")], true),
        Outcome::coded("HTTP_STATUS"),
        "404",
        false,
    );
    assert_call_ends(
        headers(1, &[(":status", "503"), ("grpc-status", "14")], true),
        Outcome::Unavailable,
        "",
        false,
    );
    assert_call_ends(
        headers(1, &[(":status", "503"), ("grpc-status", "0")], true),
        Outcome::coded("HTTP_STATUS"),
        "503",
        false,
    );
    assert_call_ends(
        headers(
            1,
            &[(":status", "200"), ("content-type", "text/plain")],
            false,
        ),
        Outcome::BadAnswer,
        "text/plain",
        true,
    );
    assert_call_ends(
        headers(1, &[(":status", "200")], false),
        Outcome::BadAnswer,
        "content-type",
        true,
    );
    // Messages.
    assert_call_ends(
        with(head(1), trailers(1, "0")),
        Outcome::BadAnswer,
        "0 messages",
        false,
    );
    assert_call_ends(
        with(message(&[MESSAGE, MESSAGE].concat()), trailers(1, "0")),
        Outcome::BadAnswer,
        "2 messages",
        false,
    );
    assert_call_ends(
        with(message(&MESSAGE[..7]), trailers(1, "0")),
        Outcome::BadAnswer,
        "cut short",
        false,
    );
    assert_call_ends(
        message(&[0, 0, 0, 3, 0xe9]),
        Outcome::MessageTooLarge,
        "1001 bytes",
        true,
    );
    assert_call_ends(
        message(&[1, 0, 0, 0, 1, 0]),
        Outcome::CompressionUnsupported,
        "compress",
        true,
    );
    assert_call_ends(
        message(&[7, 0, 0, 0, 1, 0]),
        Outcome::BadAnswer,
        "flag",
        true,
    );
}

#[test]
fn reset_codes_map_to_outcomes() {
    for (code, outcome) in [
        (ErrorCode::REFUSED_STREAM, Outcome::StreamRefused),
        (ErrorCode::CANCEL, Outcome::Cancelled),
        (ErrorCode::ENHANCE_YOUR_CALM, Outcome::ResourceExhausted),
        (ErrorCode::INADEQUATE_SECURITY, Outcome::PermissionDenied),
        (ErrorCode::NO_ERROR, Outcome::StreamReset),
        (ErrorCode::INTERNAL_ERROR, Outcome::StreamReset),
        (ErrorCode(0xdead), Outcome::StreamReset),
    ] {
        let mut reset = Vec::new();
        write::reset_stream(&mut reset, 1, code);
        assert_call_ends(reset, outcome, &code.to_string(), false);
    }
    // RFC 9113, 5.1: a conforming server sends nothing after it.
    let mut client = Client::with_calls(4, &[], 1);
    client.sent();
    client
        .receive(&frame(kind::RST_STREAM, 0, 1, &[0, 0, 0, 8]))
        .unwrap();
    client.receive(&trailers(1, "0")).unwrap();
    assert_eq!(resets(&client.sent()), [(1, ErrorCode::STREAM_CLOSED)]);
}

#[test]
fn cancelled_call_counts_late_response() {
    let mut client = Client::with_calls(4, &[], 3);
    client.sent();
    for call in [0, 1] {
        client.driver.cancel(CallId(call), Time(5), &mut client.out);
    }
    assert_eq!(
        resets(&client.sent()),
        [(1, ErrorCode::CANCEL), (3, ErrorCode::CANCEL)]
    );
    // Cancelling twice, or cancelling an unknown call, does nothing.
    client.driver.cancel(CallId(0), Time(5), &mut client.out);
    client.driver.cancel(CallId(77), Time(5), &mut client.out);
    assert_eq!(client.sent(), []);
    client.receive(&good_answer(1)).unwrap();
    assert_eq!((client.late_answers(), client.ended().len()), (1, 0));
    // A reset by the server is not a late response.
    client
        .receive(&frame(kind::RST_STREAM, 0, 3, &[0, 0, 0, 8]))
        .unwrap();
    client.receive(&good_answer(5)).unwrap();
    assert_eq!(
        (client.late_answers(), client.ended()),
        (1, vec![(2, Outcome::Ok)])
    );
}

#[test]
fn late_response_is_counted_much_later() {
    let mut client = Client::with_calls(4, &[], 1);
    client.driver.cancel(CallId(0), Time(5), &mut client.out);
    for stream in (3..40).step_by(2) {
        client.start();
        client.receive(&good_answer(stream)).unwrap();
    }
    client.receive(&good_answer(1)).unwrap();
    assert_eq!((client.late_answers(), client.ended().len()), (1, 19));
}

#[test]
fn abandoned_stream_frames_are_ignored() {
    let mut client = Client::with_calls(4, &[], 1);
    client
        .receive(&headers(1, &[(":status", "503")], false))
        .unwrap();
    assert_eq!(client.ended(), [(0, Outcome::coded("HTTP_STATUS"))]);
    for stream in (3..40).step_by(2) {
        client.start();
        client.receive(&good_answer(stream)).unwrap();
    }
    client.sent();
    // By now stream 1 is known only as reset.
    client
        .receive(&[data(1, b"<html>", false), trailers(1, "0")].concat())
        .unwrap();
    assert_eq!(
        (client.sent(), client.late_answers(), client.ended().len()),
        (vec![], 0, 20)
    );
}

#[test]
fn capacity_follows_server_stream_limit() {
    let limit = |n| {
        let mut bytes = Vec::new();
        write::settings(&mut bytes, &[(setting::MAX_CONCURRENT_STREAMS, n)]);
        bytes
    };
    let mut client = Client::with_calls(4, &[(setting::MAX_CONCURRENT_STREAMS, 3)], 2);
    assert_eq!(client.driver.capacity(), 1);
    client.receive(&limit(1)).unwrap();
    assert_eq!(client.driver.capacity(), 0);
    client.receive(&good_answer(1)).unwrap();
    assert_eq!(client.driver.capacity(), 0);
    client.receive(&limit(5)).unwrap();
    assert_eq!(client.driver.capacity(), 4);
    client.driver.cancel(CallId(1), Time(5), &mut client.out);
    assert_eq!(client.driver.capacity(), 5);
}

#[test]
fn graceful_goaway_lets_calls_finish() {
    let mut client = Client::with_calls(4, &[], 3);
    let mut goaway = Vec::new();
    write::goaway(&mut goaway, http2::MAX_STREAM_ID, ErrorCode::NO_ERROR, b"");
    client.receive(&goaway).unwrap();
    assert!(client.driver.is_draining());
    assert_eq!((client.driver.capacity(), client.ended().len()), (0, 0));
    goaway.clear();
    write::goaway(&mut goaway, 3, ErrorCode::NO_ERROR, b"bye");
    client.receive(&goaway).unwrap();
    assert_eq!(client.ended(), [(2, Outcome::Goaway)]);
    client
        .receive(&[good_answer(1), good_answer(3)].concat())
        .unwrap();
    assert_eq!(client.ended().len(), 3);
    assert_eq!(
        client.driver.receive_end(Time(9), &mut client.events),
        Ok(())
    );
    assert_eq!(client.details(), ["GOAWAY with NO_ERROR, bye"]);
}

#[test]
fn connection_end_fails_only_open_calls() {
    let end = |client: &mut Client| {
        client
            .driver
            .receive_end(Time(9), &mut Vec::new())
            .map_err(|error| error.outcome)
    };
    assert_eq!(end(&mut Client::new(4)), Err(Outcome::ConnectionClosed));
    assert_eq!(end(&mut Client::with_calls(4, &[], 0)), Ok(()));
    let mut client = Client::with_calls(4, &[], 1);
    assert_eq!(end(&mut client), Err(Outcome::ConnectionClosed));
    client
        .driver
        .abort(Outcome::Reset, Time(9), &mut client.events);
    assert_eq!(client.ended(), [(0, Outcome::Reset)]);
    client
        .driver
        .abort(Outcome::Reset, Time(9), &mut client.events);
    assert_eq!(client.ended().len(), 1);
    let mut client = Client::with_calls(4, &[], 0);
    client
        .receive(&frame(kind::PING, 0, 0, &[0; 8])[..11])
        .unwrap();
    assert_eq!(end(&mut client), Err(Outcome::ConnectionClosed));
    let mut client = Client::with_calls(4, &[], 0);
    client.sent();
    client.driver.finish(&mut client.out);
    assert_eq!(goaway_code(&client.sent()), Some(ErrorCode::NO_ERROR));
}

/// Returns the bytes of DATA sent on a stream so far, and whether it ended.
fn take_uploaded(client: &mut Client, stream: u32) -> (usize, bool) {
    let mut bytes = 0;
    let mut ended = false;
    for (head, payload) in client.sent() {
        if head.kind() == kind::DATA && head.stream() == stream {
            assert!(!ended, "DATA after END_STREAM");
            bytes += payload.len();
            ended = head.flags() & flags::END_STREAM != 0;
        }
    }
    (bytes, ended)
}

fn window_update(stream: u32, increment: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    write::window_update(&mut bytes, stream, increment);
    bytes
}

#[test]
fn large_upload_respects_flow_control() {
    let mut client = Client::with_calls(99_995, &[], 1);
    assert_eq!(take_uploaded(&mut client, 1), (65_535, false));
    assert_eq!(
        client.driver.capacity(),
        0,
        "the connection's window is used up"
    );
    client.receive(&window_update(1, 1_000_000)).unwrap();
    assert_eq!(take_uploaded(&mut client, 1), (0, false));
    client.receive(&window_update(0, 10_000)).unwrap();
    assert_eq!(take_uploaded(&mut client, 1), (10_000, false));
    client.receive(&window_update(0, 1_000_000)).unwrap();
    assert_eq!(take_uploaded(&mut client, 1), (24_465, true));
    client.receive(&good_answer(1)).unwrap();
    let Event::Done(done) = &client.events[0] else {
        panic!("no Done")
    };
    assert_eq!((done.outcome, done.bytes_sent), (Outcome::Ok, 100_000));
}

#[test]
fn initial_window_can_make_windows_negative() {
    let mut client = Client::with_calls(99_995, &[], 0);
    client.receive(&window_update(0, 1_000_000)).unwrap();
    client.start();
    assert_eq!(take_uploaded(&mut client, 1), (65_535, false));
    // 65,535 bytes were sent of a window of 1,000: it is 64,535 below zero.
    let mut settings = Vec::new();
    write::settings(&mut settings, &[(setting::INITIAL_WINDOW_SIZE, 1_000)]);
    client.receive(&settings).unwrap();
    client.receive(&window_update(1, 64_535)).unwrap();
    assert_eq!(take_uploaded(&mut client, 1), (0, false));
    client.receive(&window_update(1, 5)).unwrap();
    assert_eq!(take_uploaded(&mut client, 1), (5, false));
    // A new call has the small window.
    client.start();
    assert_eq!(take_uploaded(&mut client, 3), (1_000, false));
    settings.clear();
    write::settings(&mut settings, &[(setting::INITIAL_WINDOW_SIZE, 200_000)]);
    client.receive(&settings).unwrap();
    let (head, _) = client
        .sent()
        .into_iter()
        .rfind(|(head, _)| head.stream() == 3)
        .unwrap();
    assert_eq!(head.flags(), flags::END_STREAM);
}

#[test]
fn early_response_stops_request_upload() {
    let mut client = Client::with_calls(99_995, &[], 1);
    client.sent();
    client
        .receive(&headers(
            1,
            &[(":status", "200"), ("grpc-status", "8")],
            true,
        ))
        .unwrap();
    let Event::Done(done) = &client.events[0] else {
        panic!("no Done")
    };
    assert_eq!(
        (done.outcome, done.bytes_sent),
        (Outcome::ResourceExhausted, 65_535)
    );
    assert_eq!(resets(&client.sent()), [(1, ErrorCode::NO_ERROR)]);
    client.receive(&window_update(0, 1_000_000)).unwrap();
    assert_eq!(take_uploaded(&mut client, 1), (0, false));
}

#[test]
fn receive_window_updates_are_batched() {
    let mut client = Client::with_calls(4, &[], 1);
    client.sent();
    // DATA on closed streams also counts for the connection's window.
    client.driver.cancel(CallId(0), Time(5), &mut client.out);
    client.sent();
    client.receive(&head(1)).unwrap();
    let chunk = data(1, &[0; 16_384], false).repeat(64);
    for _ in 0..512 {
        assert_eq!(client.sent(), []);
        client.receive(&chunk).unwrap();
    }
    let sent = client.sent();
    assert_eq!(sent.len(), 1);
    assert!(matches!(
        Http2Frame::parse(sent[0].0, &sent[0].1),
        Ok(Http2Frame::WindowUpdate {
            increment: 0x2000_0000
        })
    ));
}

#[test]
fn details_are_reported_three_times() {
    let mut client = Client::with_calls(4, &[], 10);
    for stream in (1..20).step_by(2) {
        client
            .receive(&headers(stream, &[(":status", "502")], true))
            .unwrap();
    }
    assert_eq!((client.ended().len(), client.details().len()), (10, 3));
}
