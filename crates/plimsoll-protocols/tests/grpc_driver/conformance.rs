//! A scripted server violates each rule whose violation a client can detect; the driver must respond with the
//! error code that RFC 9113 names.
//!
//! This file is long because each rule of RFC 9113 that a server can break has a case of its own.

use plimsoll_model::Outcome;
use plimsoll_wire::http2::{ErrorCode, flags, kind, write};

use super::*;

#[derive(Debug)]
enum ExpectedReaction {
    /// A connection error.
    Goaway(ErrorCode),
    /// A stream error on stream 1, and the outcome of its call.
    Reset(ErrorCode, Outcome),
    /// No effect: valid responses are still accepted.
    Ignored,
}
use ExpectedReaction::{Goaway, Ignored, Reset};

struct Case {
    rule: &'static str,
    what: &'static str,
    bytes: Vec<u8>,
    expect: ExpectedReaction,
}

fn case(rule: &'static str, what: &'static str, bytes: Vec<u8>, expect: ExpectedReaction) -> Case {
    Case {
        rule,
        what,
        bytes,
        expect,
    }
}

fn setting(id: u16, value: u32) -> Vec<u8> {
    let mut out = Vec::new();
    write::settings(&mut out, &[(id, value)]);
    out
}

fn window_update(stream: u32, increment: u32) -> Vec<u8> {
    frame(kind::WINDOW_UPDATE, 0, stream, &increment.to_be_bytes())
}

fn priority(stream: u32, length: usize) -> Vec<u8> {
    frame(kind::PRIORITY, 0, stream, &vec![0; length])
}

fn goaway(last_stream: u32) -> Vec<u8> {
    let mut out = Vec::new();
    write::goaway(&mut out, last_stream, ErrorCode::NO_ERROR, b"");
    out
}

/// Returns HEADERS without END_HEADERS on stream 1, with the start of a valid block.
fn open_block() -> Vec<u8> {
    frame(kind::HEADERS, 0, 1, &[0x88])
}

fn many_continuations(frames: usize, length: usize) -> Vec<u8> {
    let mut bytes = open_block();
    for _ in 0..frames {
        bytes.extend(frame(kind::CONTINUATION, 0, 1, &vec![0x88; length]));
    }
    bytes
}

/// Returns the cases: bytes that follow SETTINGS, with calls on streams 1 and 3.
fn cases() -> Vec<Case> {
    let protocol = || Goaway(ErrorCode::PROTOCOL_ERROR);
    let size = || Goaway(ErrorCode::FRAME_SIZE_ERROR);
    let compression = || Goaway(ErrorCode::COMPRESSION_ERROR);
    let closed = || Goaway(ErrorCode::STREAM_CLOSED);
    let flow = || Goaway(ErrorCode::FLOW_CONTROL_ERROR);
    let calm = || Goaway(ErrorCode::ENHANCE_YOUR_CALM);
    let malformed = || Reset(ErrorCode::PROTOCOL_ERROR, Outcome::ProtocolError);
    let all = flags::END_HEADERS | flags::END_STREAM;
    let ended = |then: Vec<u8>| [good_answer(1), then].concat();
    let block = |bytes: &[u8]| frame(kind::HEADERS, all, 1, bytes);
    let answer = |fields: &[(&str, &str)]| headers(1, fields, false);
    vec![
        // Frames that are invalid by themselves.
        case(
            "4.2",
            "a frame over SETTINGS_MAX_FRAME_SIZE",
            data(1, &[0; 16_385], false),
            size(),
        ),
        case(
            "4.2",
            "an unknown frame over it",
            frame(0xee, 0, 0, &[0; 16_385]),
            size(),
        ),
        case(
            "5.5",
            "a frame of unknown type",
            frame(0xee, 0xff, 7, b"?"),
            Ignored,
        ),
        case(
            "4.1",
            "the reserved bit of a stream id",
            frame(kind::PING, 0, 1 << 31, &[0; 8]),
            Ignored,
        ),
        case("6.1", "DATA on stream 0", data(0, b"x", false), protocol()),
        case(
            "6.1",
            "padding as long as the frame",
            frame(kind::DATA, flags::PADDED, 1, &[3, 0, 0]),
            protocol(),
        ),
        case(
            "6.1",
            "padded DATA without its length",
            frame(kind::DATA, flags::PADDED, 1, &[]),
            size(),
        ),
        case(
            "6.2",
            "HEADERS on stream 0",
            frame(kind::HEADERS, all, 0, &[0x88]),
            protocol(),
        ),
        case(
            "6.2",
            "padding longer than HEADERS",
            frame(kind::HEADERS, flags::PADDED | all, 1, &[9, 0x88]),
            protocol(),
        ),
        case(
            "6.2",
            "padded HEADERS without its length",
            frame(kind::HEADERS, flags::PADDED | all, 1, &[]),
            size(),
        ),
        case(
            "6.2",
            "HEADERS too short for PRIORITY",
            frame(kind::HEADERS, flags::PRIORITY | all, 1, &[0; 4]),
            size(),
        ),
        case("6.3", "PRIORITY on stream 0", priority(0, 5), protocol()),
        case(
            "6.3",
            "PRIORITY of 4 bytes",
            priority(1, 4),
            Reset(ErrorCode::FRAME_SIZE_ERROR, Outcome::ProtocolError),
        ),
        case(
            "6.3",
            "PRIORITY on an idle stream",
            priority(99, 5),
            Ignored,
        ),
        case(
            "6.4",
            "RST_STREAM on stream 0",
            frame(kind::RST_STREAM, 0, 0, &[0; 4]),
            protocol(),
        ),
        case(
            "6.4",
            "RST_STREAM on an idle stream",
            frame(kind::RST_STREAM, 0, 5, &[0; 4]),
            protocol(),
        ),
        case(
            "6.4",
            "RST_STREAM of 3 bytes",
            frame(kind::RST_STREAM, 0, 1, &[0; 3]),
            size(),
        ),
        case(
            "6.4",
            "RST_STREAM of 5 bytes",
            frame(kind::RST_STREAM, 0, 1, &[0; 5]),
            size(),
        ),
        case(
            "6.5",
            "SETTINGS on stream 1",
            frame(kind::SETTINGS, 0, 1, &[]),
            protocol(),
        ),
        case(
            "6.5",
            "SETTINGS of 7 bytes",
            frame(kind::SETTINGS, 0, 0, &[0; 7]),
            size(),
        ),
        case(
            "6.5",
            "acknowledging SETTINGS with a payload",
            frame(kind::SETTINGS, flags::ACK, 0, &[0; 6]),
            size(),
        ),
        case(
            "6.5.2",
            "ENABLE_PUSH of 1 from a server",
            setting(2, 1),
            protocol(),
        ),
        case("6.5.2", "ENABLE_PUSH of 2", setting(2, 2), protocol()),
        case("6.5.2", "ENABLE_PUSH of 0", setting(2, 0), Ignored),
        case(
            "6.5.2",
            "INITIAL_WINDOW_SIZE over 2^31-1",
            setting(4, 1 << 31),
            flow(),
        ),
        case(
            "6.5.2",
            "MAX_FRAME_SIZE under 16384",
            setting(5, 16_383),
            protocol(),
        ),
        case(
            "6.5.2",
            "MAX_FRAME_SIZE over 2^24-1",
            setting(5, 1 << 24),
            protocol(),
        ),
        case("6.5.2", "an unknown setting", setting(0x99, 7), Ignored),
        case(
            "6.7",
            "PING on stream 1",
            frame(kind::PING, 0, 1, &[0; 8]),
            protocol(),
        ),
        case(
            "6.7",
            "PING of 7 bytes",
            frame(kind::PING, 0, 0, &[0; 7]),
            size(),
        ),
        case(
            "6.7",
            "acknowledging a PING never sent",
            frame(kind::PING, flags::ACK, 0, &[0; 8]),
            Ignored,
        ),
        case(
            "6.8",
            "GOAWAY on stream 1",
            frame(kind::GOAWAY, 0, 1, &[0; 8]),
            protocol(),
        ),
        case(
            "6.8",
            "GOAWAY of 7 bytes",
            frame(kind::GOAWAY, 0, 0, &[0; 7]),
            size(),
        ),
        case(
            "6.8",
            "a second GOAWAY with a higher stream",
            [goaway(3), goaway(5)].concat(),
            protocol(),
        ),
        case(
            "6.9",
            "WINDOW_UPDATE of 3 bytes",
            frame(kind::WINDOW_UPDATE, 0, 0, &[0; 3]),
            size(),
        ),
        case(
            "6.9",
            "WINDOW_UPDATE of 0 for the connection",
            window_update(0, 0),
            protocol(),
        ),
        case(
            "6.9",
            "WINDOW_UPDATE of 0 for a stream",
            window_update(1, 0),
            malformed(),
        ),
        case(
            "6.9",
            "WINDOW_UPDATE on an idle stream",
            window_update(5, 1),
            protocol(),
        ),
        case(
            "6.9",
            "WINDOW_UPDATE of 0 on an idle stream",
            window_update(5, 0),
            protocol(),
        ),
        case(
            "6.9",
            "WINDOW_UPDATE after END_STREAM",
            [good_answer(3), window_update(3, 1)].concat(),
            Ignored,
        ),
        case(
            "6.9.1",
            "the connection's window over 2^31-1",
            window_update(0, 0x7fff_ffff),
            flow(),
        ),
        case(
            "6.9.1",
            "a stream's window over 2^31-1",
            window_update(1, 0x7fff_ffff),
            Reset(ErrorCode::FLOW_CONTROL_ERROR, Outcome::ProtocolError),
        ),
        case(
            "6.9.2",
            "a window over 2^31-1 by SETTINGS",
            [window_update(1, 1_000), setting(4, 0x7fff_ffff)].concat(),
            flow(),
        ),
        // Server push.
        case(
            "8.4",
            "PUSH_PROMISE although push is disabled",
            frame(
                kind::PUSH_PROMISE,
                flags::END_HEADERS,
                1,
                &[0, 0, 0, 2, 0x88],
            ),
            protocol(),
        ),
        case(
            "6.6",
            "PUSH_PROMISE on stream 0",
            frame(kind::PUSH_PROMISE, flags::END_HEADERS, 0, &[0, 0, 0, 2]),
            protocol(),
        ),
        case(
            "6.6",
            "PUSH_PROMISE without a stream id",
            frame(kind::PUSH_PROMISE, flags::END_HEADERS, 1, &[0; 3]),
            size(),
        ),
        // Stream states.
        case(
            "5.1",
            "DATA on an idle stream",
            data(5, b"x", false),
            protocol(),
        ),
        case("5.1", "HEADERS on an idle stream", head(5), protocol()),
        case(
            "5.1.1",
            "HEADERS on a stream of the server's",
            head(2),
            protocol(),
        ),
        case(
            "5.1.1",
            "DATA on a stream of the server's",
            data(2, b"x", false),
            protocol(),
        ),
        case(
            "5.1",
            "DATA after END_STREAM",
            ended(data(1, b"x", false)),
            closed(),
        ),
        case("5.1", "HEADERS after END_STREAM", ended(head(1)), closed()),
        case(
            "5.1",
            "RST_STREAM after END_STREAM",
            [good_answer(3), frame(kind::RST_STREAM, 0, 3, &[0; 4])].concat(),
            Ignored,
        ),
        case(
            "5.1",
            "PRIORITY after END_STREAM",
            [good_answer(3), priority(3, 5)].concat(),
            Ignored,
        ),
        // Header blocks.
        case(
            "4.3",
            "another frame inside a header block",
            [open_block(), frame(kind::PING, 0, 0, &[0; 8])].concat(),
            protocol(),
        ),
        case(
            "4.3",
            "DATA inside a header block",
            [open_block(), data(1, b"x", false)].concat(),
            protocol(),
        ),
        case(
            "4.3",
            "an unknown frame inside a header block",
            [open_block(), frame(0xee, 0, 0, b"")].concat(),
            protocol(),
        ),
        case(
            "4.3",
            "HEADERS inside a header block",
            [open_block(), head(3)].concat(),
            protocol(),
        ),
        case(
            "6.10",
            "CONTINUATION of another stream's block",
            [
                open_block(),
                frame(kind::CONTINUATION, flags::END_HEADERS, 3, &[]),
            ]
            .concat(),
            protocol(),
        ),
        case(
            "6.10",
            "CONTINUATION after no HEADERS",
            frame(kind::CONTINUATION, flags::END_HEADERS, 1, &[0x88]),
            protocol(),
        ),
        case(
            "6.10",
            "CONTINUATION after END_HEADERS",
            [
                head(1),
                frame(kind::CONTINUATION, flags::END_HEADERS, 1, &[]),
            ]
            .concat(),
            protocol(),
        ),
        case(
            "6.10",
            "CONTINUATION on stream 0",
            [
                open_block(),
                frame(kind::CONTINUATION, flags::END_HEADERS, 0, &[]),
            ]
            .concat(),
            protocol(),
        ),
        case(
            "10.5.1",
            "a header block of 80 KiB",
            many_continuations(5, 16_384),
            calm(),
        ),
        case(
            "10.5.1",
            "a header block in 300 frames",
            many_continuations(300, 0),
            calm(),
        ),
        case(
            "4.3",
            "an index that is in no table",
            block(&[0xff, 0x20]),
            compression(),
        ),
        case(
            "4.3",
            "a block that ends inside a field",
            block(&[0x40, 0x05, b'a']),
            compression(),
        ),
        case(
            "4.3",
            "a table size update over the limit",
            block(&[0x3f, 0xe2, 0x1f]),
            compression(),
        ),
        case(
            "4.3",
            "a block of a closed stream that can't be decoded",
            ended(block(&[0xff, 0x20])),
            compression(),
        ),
        // Malformed answers.
        case(
            "8.1",
            "DATA before HEADERS",
            data(1, MESSAGE, false),
            malformed(),
        ),
        case(
            "8.1",
            "trailers without END_STREAM",
            [head(1), headers(1, &[("grpc-status", "0")], false)].concat(),
            malformed(),
        ),
        case(
            "8.1",
            "trailers with a pseudo-field",
            [
                head(1),
                headers(1, &[(":status", "200"), ("grpc-status", "0")], true),
            ]
            .concat(),
            malformed(),
        ),
        case(
            "8.1",
            "an interim answer with END_STREAM",
            headers(1, &[(":status", "103")], true),
            malformed(),
        ),
        case(
            "8.6",
            "status 101",
            answer(&[(":status", "101")]),
            malformed(),
        ),
        case(
            "8.1",
            "interim answers before the answer",
            [answer(&[(":status", "100")]), answer(&[(":status", "103")])].concat(),
            Ignored,
        ),
        case(
            "8.1.1",
            "content-length that DATA does not have",
            [
                headers(
                    1,
                    &[
                        (":status", "200"),
                        ("content-type", "application/grpc"),
                        ("content-length", "9"),
                    ],
                    false,
                ),
                data(1, MESSAGE, false),
                trailers(1, "0"),
            ]
            .concat(),
            malformed(),
        ),
        case(
            "8.2.1",
            "a field name in upper case",
            answer(&[(":status", "200"), ("Upper", "1")]),
            malformed(),
        ),
        case(
            "8.2.1",
            "a field value with a line feed",
            answer(&[(":status", "200"), ("x", "a\nb")]),
            malformed(),
        ),
        case(
            "8.2.2",
            "a field of HTTP/1.1 connections",
            answer(&[(":status", "200"), ("connection", "close")]),
            malformed(),
        ),
        case(
            "8.3",
            "a pseudo-field after a regular one",
            answer(&[("x", "1"), (":status", "200")]),
            malformed(),
        ),
        case(
            "8.3",
            ":status twice",
            answer(&[(":status", "200"), (":status", "200")]),
            malformed(),
        ),
        case(
            "8.3.2",
            "a request's pseudo-field",
            answer(&[(":status", "200"), (":path", "/")]),
            malformed(),
        ),
        case(
            "8.3.2",
            "no :status",
            answer(&[("content-type", "application/grpc")]),
            malformed(),
        ),
        case(
            "8.3.2",
            "a :status of four digits",
            answer(&[(":status", "2000")]),
            malformed(),
        ),
    ]
}

#[test]
fn every_protocol_violation_has_its_code() {
    let cases = cases();
    assert!(cases.len() >= 40);
    for Case {
        rule,
        what,
        bytes,
        expect,
    } in cases
    {
        let name = format!("RFC 9113, {rule}: {what}");
        let mut client = Client::with_calls(4, &[], 2);
        client.sent();
        let result = client.receive(&bytes);
        let sent = client.sent();
        match expect {
            Goaway(code) => {
                let error = result.expect_err(&name);
                // Exceeding our own limit is not a protocol error of the server.
                let outcome = match rule {
                    "10.5.1" => Outcome::HeadTooLarge,
                    _ => Outcome::ProtocolError,
                };
                assert_eq!(error.outcome, outcome, "{name}: {error}");
                assert_eq!(goaway_code(&sent), Some(code), "{name}: {error}");
                assert!(error.detail.contains("RFC 9113") || error.detail.contains("RFC 7541"));
                assert!(
                    client.driver.is_draining() && client.driver.capacity() == 0,
                    "{name}"
                );
                assert!(
                    client.receive(&good_answer(3)).is_err(),
                    "{name}: goes on reading"
                );
            }
            Reset(code, outcome) => {
                assert_eq!(result, Ok(()), "{name}");
                assert_eq!(resets(&sent), [(1, code)], "{name}");
                assert_eq!(client.ended(), [(0, outcome)], "{name}");
                assert!(client.details()[0].contains("RFC 9113"), "{name}");
                client.receive(&good_answer(3)).expect(&name);
                assert_eq!(client.ended()[1], (1, Outcome::Ok), "{name}");
            }
            Ignored => {
                assert_eq!(result, Ok(()), "{name}");
                assert_eq!(
                    (goaway_code(&sent), resets(&sent)),
                    (None, vec![]),
                    "{name}"
                );
                client.receive(&good_answer(1)).expect(&name);
                assert!(client.ended().contains(&(0, Outcome::Ok)), "{name}");
            }
        }
    }
}

#[test]
fn first_frame_must_be_settings() {
    for (what, bytes) in [
        ("PING", frame(kind::PING, 0, 0, &[0; 8])),
        (
            "a SETTINGS acknowledgement",
            frame(kind::SETTINGS, flags::ACK, 0, &[]),
        ),
        ("an unknown frame", frame(0xee, 0, 0, &[])),
        ("HEADERS", head(1)),
    ] {
        let mut client = Client::new(4);
        let error = client.receive(&bytes).expect_err(what);
        assert_eq!(error.outcome, Outcome::ProtocolError, "{what}");
        assert_eq!(
            goaway_code(&client.sent()),
            Some(ErrorCode::PROTOCOL_ERROR),
            "{what}"
        );
        assert!(
            !client.driver.is_ready() || client.driver.capacity() == 0,
            "{what}"
        );
    }
    // A first frame of invalid SETTINGS is still recognised as HTTP/2.
    let mut client = Client::new(4);
    let error = client
        .receive(&[setting(4, 1 << 31), good_answer(1)].concat())
        .unwrap_err();
    assert_eq!(error.outcome, Outcome::ProtocolError);
    assert_eq!(
        goaway_code(&client.sent()),
        Some(ErrorCode::FLOW_CONTROL_ERROR)
    );
}

#[test]
fn non_http2_server_is_identified() {
    for (bytes, said) in [
        (
            &b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n"[..],
            "HTTP/1.1 400 Bad Request",
        ),
        (b"HTTP/1.0 505\r\n\r\n", "HTTP/1.0 505"),
        (&[0x15, 3, 3, 0, 2, 2, 22], "TLS"),
        (&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc], "TLS"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "SSH-2.0-OpenSSH_9.2"),
        (b"-ERR unknown command 'PRI'\r\n", "-ERR unknown command"),
        (b"220 ok\r\n", "220 ok"),
    ] {
        // The bytes arrive in one piece and byte by byte, with and without the connection's end.
        for step in [bytes.len(), 1] {
            let mut client = Client::new(4);
            client.sent();
            let error = bytes
                .chunks(step)
                .find_map(|chunk| client.receive(chunk).err())
                .unwrap_or_else(|| panic!("{said}: not seen"));
            assert_eq!(error.outcome, Outcome::coded("NOT_HTTP2"), "{error}");
            assert!(step == 1 || error.detail.contains(said), "{error}");
            assert_eq!(client.sent(), [], "nobody there to understand a GOAWAY");
        }
        let mut client = Client::new(4);
        let error = match client.receive(&bytes[..5]) {
            Err(error) => error,
            Ok(()) => client
                .driver
                .receive_end(Time(3), &mut client.events)
                .unwrap_err(),
        };
        assert_eq!(error.outcome, Outcome::coded("NOT_HTTP2"), "{error}");
    }
}

#[test]
fn close_after_goaway_is_reported_as_goaway() {
    let mut client = Client::new(4);
    let mut bytes = Vec::new();
    write::settings(&mut bytes, &[]);
    bytes.extend(goaway(0));
    client.receive(&bytes).unwrap();
    let error = client
        .driver
        .receive_end(Time(3), &mut client.events)
        .unwrap_err();
    assert_eq!(error.outcome, Outcome::Goaway, "{error}");
}
