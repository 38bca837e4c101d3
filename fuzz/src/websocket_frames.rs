//! Arbitrary bytes as WebSocket frames to either end, whole and in pieces: no panic, no message
//! over the limit, and the same messages and result for every split.
#![no_main]

use std::ops::ControlFlow;

use libfuzzer_sys::fuzz_target;

use plimsoll_wire::websocket::{ReaderRole, Violation, WebSocketMessage, WebSocketReader};

const MAX_MESSAGE_BYTES: usize = 512;

fn read_all(role: ReaderRole, bytes: &[u8], step: usize) -> (Vec<String>, Result<(), Violation>) {
    let mut reader = WebSocketReader::new(role, MAX_MESSAGE_BYTES);
    let mut seen = Vec::new();
    for piece in bytes.chunks(step) {
        let read = reader.read(piece, |message| {
            match message {
                WebSocketMessage::Text(text) => assert!(text.len() <= MAX_MESSAGE_BYTES),
                WebSocketMessage::Binary(bytes) => assert!(bytes.len() <= MAX_MESSAGE_BYTES),
                WebSocketMessage::Ping(bytes) | WebSocketMessage::Pong(bytes) => {
                    assert!(bytes.len() <= 125)
                }
                WebSocketMessage::Close { reason, .. } => assert!(reason.len() <= 123),
            }
            seen.push(format!("{message:?}"));
            ControlFlow::Continue(())
        });
        if let Err(violation) = read {
            assert!(matches!(violation.code, 1002 | 1007 | 1009));
            return (seen, Err(violation));
        }
    }
    (seen, Ok(()))
}

fuzz_target!(|input: &[u8]| {
    let Some((step, bytes)) = input.split_first() else {
        return;
    };
    for role in [ReaderRole::Client, ReaderRole::Server] {
        let whole = read_all(role, bytes, bytes.len().max(1));
        assert_eq!(whole, read_all(role, bytes, usize::from(*step).max(1)));
    }
});
