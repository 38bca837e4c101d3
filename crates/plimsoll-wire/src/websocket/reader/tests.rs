//! Tests with the kinds of cases that conformance suites have: fragments, UTF-8, reserved bits, opcodes, close codes
//! and sizes, each in every split.

use super::*;
use crate::websocket::{append_frame, append_masked_frame};

const MASK: [u8; 4] = [0xa1, 0x02, 0x33, 0xfe];

/// Reads `bytes` in pieces of `piece` bytes; returns the messages and the close code.
fn read(role: ReaderRole, bytes: &[u8], piece: usize) -> (Vec<String>, Option<u16>) {
    let mut reader = WebSocketReader::new(role, 1000);
    let mut seen = Vec::new();
    for part in bytes.chunks(piece) {
        let result = reader.read(part, |message| {
            seen.push(match message {
                WebSocketMessage::Text(text) => format!("text {text}"),
                WebSocketMessage::Binary(bytes) => format!("binary {}", bytes.len()),
                WebSocketMessage::Ping(bytes) => format!("ping {}", String::from_utf8_lossy(bytes)),
                WebSocketMessage::Pong(bytes) => format!("pong {}", String::from_utf8_lossy(bytes)),
                WebSocketMessage::Close { code, reason } => format!("close {code} {reason}"),
            });
            ControlFlow::Continue(())
        });
        if let Err(violation) = result {
            return (seen, Some(violation.code));
        }
    }
    (seen, None)
}

/// Makes a frame with the given first byte.
fn frame_with_first_byte(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    append_frame(&mut out, Opcode::Text, payload);
    out[0] = first;
    out
}

/// A case: frames as (first byte, payload), the expected messages, and the expected close code.
type Case<'a> = (&'a [(u8, &'a [u8])], &'a [&'a str], Option<u16>);

#[test]
fn conformance_cases_pass_every_split() {
    let long = [b'x'; 1001];
    let fits = [b'x'; 1000];
    let control = [b'p'; 126];
    let cases: &[Case<'_>] = &[
        (
            &[(0x81, b"hi"), (0x82, b"\xff\x00")],
            &["text hi", "binary 2"],
            None,
        ),
        (&[(0x81, b"")], &["text "], None),
        // Fragments, with control frames between them.
        (
            &[(0x01, b"a"), (0x89, b"p"), (0x00, b"b"), (0x80, b"c")],
            &["ping p", "text abc"],
            None,
        ),
        (&[(0x02, b"a"), (0x80, b"")], &["binary 1"], None),
        (&[(0x80, b"c")], &[], Some(1002)),
        (&[(0x00, b"c")], &[], Some(1002)),
        (&[(0x01, b"a"), (0x81, b"b")], &[], Some(1002)),
        (&[(0x09, b"a")], &[], Some(1002)),
        (&[(0x08, b"")], &[], Some(1002)),
        // Reserved bits and opcodes.
        (&[(0xc1, b"a")], &[], Some(1002)),
        (&[(0xa1, b"a")], &[], Some(1002)),
        (&[(0x91, b"a")], &[], Some(1002)),
        (&[(0x83, b"a")], &[], Some(1002)),
        (&[(0x87, b"a")], &[], Some(1002)),
        (&[(0x8b, b"a")], &[], Some(1002)),
        (&[(0x8f, b"a")], &[], Some(1002)),
        // Control frames.
        (&[(0x89, &control)], &[], Some(1002)),
        (&[(0x8a, b"unasked")], &["pong unasked"], None),
        // UTF-8: valid, split inside a character, invalid at once, invalid at the end.
        (&[(0x81, "κόσμε".as_bytes())], &["text κόσμε"], None),
        (&[(0x01, b"\xce"), (0x80, b"\xba")], &["text κ"], None),
        (&[(0x81, b"\xce")], &[], Some(1007)),
        (&[(0x01, b"\xce"), (0x00, b"\xce")], &[], Some(1007)),
        (&[(0x01, b"\xce"), (0x80, b"")], &[], Some(1007)),
        (&[(0x81, b"\xed\xa0\x80")], &[], Some(1007)),
        (&[(0x81, b"\xf4\x90\x80\x80")], &[], Some(1007)),
        (&[(0x81, b"\xc0\xaf")], &[], Some(1007)),
        (&[(0x82, b"\xc0\xaf")], &["binary 2"], None),
        // Close codes.
        (&[(0x88, b"")], &["close 1005 "], None),
        (&[(0x88, b"\x03")], &[], Some(1002)),
        (&[(0x88, b"\x03\xe8bye")], &["close 1000 bye"], None),
        (&[(0x88, b"\x03\xe8\xff")], &[], Some(1007)),
        (&[(0x88, b"\x00\x00")], &[], Some(1002)),
        (&[(0x88, b"\x03\xec")], &[], Some(1002)),
        (&[(0x88, b"\x03\xed")], &[], Some(1002)),
        (&[(0x88, b"\x03\xee")], &[], Some(1002)),
        (&[(0x88, b"\x03\xf7")], &[], Some(1002)),
        (&[(0x88, b"\x07\xd0")], &[], Some(1002)),
        (&[(0x88, b"\x0b\xb8")], &["close 3000 "], None),
        (&[(0x88, b"\x13\x88")], &[], Some(1002)),
        (
            &[(0x88, b"\x03\xe8"), (0x81, b"after")],
            &["close 1000 "],
            None,
        ),
        // Sizes.
        (&[(0x82, &fits)], &["binary 1000"], None),
        (&[(0x82, &long)], &[], Some(1009)),
        (&[(0x02, &fits), (0x80, b"x")], &[], Some(1009)),
    ];
    for (frames, seen, code) in cases {
        let server: Vec<u8> = frames
            .iter()
            .flat_map(|(b, p)| frame_with_first_byte(*b, p))
            .collect();
        let mut client = Vec::new();
        for (first, payload) in *frames {
            let begin = client.len();
            append_masked_frame(&mut client, Opcode::Text, MASK, payload);
            client[begin] = *first;
        }
        for piece in 1..=server.len() {
            let expected = (seen.iter().map(|s| (*s).to_owned()).collect(), *code);
            assert_eq!(
                read(ReaderRole::Client, &server, piece),
                expected,
                "{frames:?}"
            );
        }
        for piece in [1, 2, 3, 7, client.len()] {
            let expected = (seen.iter().map(|s| (*s).to_owned()).collect(), *code);
            assert_eq!(
                read(ReaderRole::Server, &client, piece),
                expected,
                "{frames:?}"
            );
        }
    }
}

#[test]
fn each_role_rejects_wrong_masking() {
    let mut masked = Vec::new();
    append_masked_frame(&mut masked, Opcode::Text, MASK, b"x");
    assert_eq!(read(ReaderRole::Client, &masked, 99).1, Some(1002));
    assert_eq!(
        read(ReaderRole::Server, &frame_with_first_byte(0x81, b"x"), 99).1,
        Some(1002)
    );
}

#[test]
fn oversized_length_rejected_before_allocation() {
    let mut reader = WebSocketReader::new(ReaderRole::Client, 1000);
    let huge = [0x82, 127, 0, 0, 0, 1, 0, 0, 0, 0];
    let refused = reader.read(&huge, |_| ControlFlow::Continue(()));
    assert_eq!(refused.unwrap_err().code, 1009);
    let negative = [0x82, 127, 0x80, 0, 0, 0, 0, 0, 0, 0];
    let mut reader = WebSocketReader::new(ReaderRole::Client, 1000);
    let refused = reader.read(&negative, |_| ControlFlow::Continue(()));
    assert_eq!(refused.unwrap_err().code, 1002);
}

proptest::proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(
        string_node in proptest::collection::vec(proptest::num::u8::ANY, 0..300),
        piece in 1usize..40,
    ) {
        for role in [ReaderRole::Client, ReaderRole::Server] {
            proptest::prop_assert_eq!(read(role, &string_node, piece), read(role, &string_node, string_node.len().max(1)));
        }
    }
}

/// RFC 7692 §7.2.3.1: "Hello", compressed.
const HELLO: [u8; 7] = [0xf2, 0x48, 0xcd, 0xc9, 0xc9, 0x07, 0x00];

#[test]
fn compressed_messages_read_in_every_split() {
    let (first, rest) = HELLO.split_at(3);
    let whole = frame_with_first_byte(0xc1, &HELLO);
    let parts = [
        frame_with_first_byte(0x41, first),
        frame_with_first_byte(0x89, b"p"),
        frame_with_first_byte(0x80, rest),
    ]
    .concat();
    let reserved = Some(code::PROTOCOL_ERROR);
    for (bytes, came, ended) in [
        (whole.clone(), &["Hello"][..], None),
        (parts, &["p", "Hello"], None),
        // Messages after a compressed one need not be compressed.
        (
            [
                &whole[..],
                &frame_with_first_byte(0x01, b"a"),
                &frame_with_first_byte(0x80, b"b"),
            ]
            .concat(),
            &["Hello", "ab"],
            None,
        ),
        (
            [
                frame_with_first_byte(0x41, first),
                frame_with_first_byte(0xc0, rest),
            ]
            .concat(),
            &[],
            reserved,
        ),
        (frame_with_first_byte(0xc9, b"p"), &[], reserved),
        (frame_with_first_byte(0xa1, b"p"), &[], reserved),
        (
            frame_with_first_byte(0xc1, &[0xff; 9]),
            &[],
            Some(code::INVALID_PAYLOAD),
        ),
    ] {
        for piece in 1..=bytes.len() {
            let mut reader = WebSocketReader::new(ReaderRole::Client, 1000).with_deflate(true);
            let (mut seen, mut end) = (Vec::new(), None);
            for part in bytes.chunks(piece) {
                let read = reader.read(part, |message| {
                    match message {
                        WebSocketMessage::Text(text) => seen.push(text.to_owned()),
                        WebSocketMessage::Ping(payload) => {
                            seen.push(String::from_utf8_lossy(payload).into_owned());
                        }
                        other => panic!("{other:?}"),
                    }
                    ControlFlow::Continue(())
                });
                if let Err(violation) = read {
                    end = Some(violation.code);
                    break;
                }
            }
            assert_eq!(
                (&seen[..], end),
                (
                    &came.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>()[..],
                    ended
                ),
                "{bytes:x?}"
            );
        }
    }
    assert_eq!(
        read(ReaderRole::Client, &whole, 100),
        (Vec::new(), reserved)
    );
}
