//! Arbitrary bytes as a compressed WebSocket message (RFC 7692): no panic, no message over the
//! limit, and the same result for every fragmentation. Compressed bytes decompress to the original
//! for every window.
#![no_main]

use std::ops::ControlFlow;

use libfuzzer_sys::fuzz_target;
use plimsoll_wire::websocket::{
    DeflateParameters, Opcode, ReaderRole, Violation, WebSocketMessage, WebSocketReader,
    append_frame,
};

const MAX_MESSAGE_BYTES: usize = 64 * 1024;

fn read_message(frames: &[u8], max_bytes: usize) -> Result<Option<Vec<u8>>, Violation> {
    let mut message = None;
    let mut reader = WebSocketReader::new(ReaderRole::Client, max_bytes).with_deflate(true);
    reader.read(frames, |read| {
        let WebSocketMessage::Binary(bytes) = read else {
            panic!("{read:?}")
        };
        assert!(bytes.len() <= max_bytes);
        message = Some(bytes.to_vec());
        ControlFlow::Continue(())
    })?;
    Ok(message)
}

/// A compressed message of `payload`, in fragments of `step` bytes.
fn compressed_message(payload: &[u8], step: usize) -> Vec<u8> {
    const FIN: u8 = 0x80;
    const RSV1: u8 = 0x40;
    let mut frames = Vec::new();
    let mut rest = payload;
    loop {
        let (piece, after) = rest.split_at(rest.len().min(step));
        let head = frames.len();
        let is_first = head == 0;
        let opcode = if is_first {
            Opcode::Binary
        } else {
            Opcode::Continuation
        };
        append_frame(&mut frames, opcode, piece);
        if is_first {
            frames[head] |= RSV1;
        }
        if after.is_empty() {
            return frames;
        }
        frames[head] &= !FIN;
        rest = after;
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((&choice, payload)) = input.split_first() else {
        return;
    };
    let whole = read_message(
        &compressed_message(payload, payload.len().max(1)),
        MAX_MESSAGE_BYTES,
    );
    let split = read_message(
        &compressed_message(payload, usize::from(choice).max(1)),
        MAX_MESSAGE_BYTES,
    );
    assert_eq!(whole, split);
    if let Err(violation) = whole {
        assert!(matches!(violation.code, 1007 | 1009));
    }

    let offer = format!(
        "permessage-deflate; server_max_window_bits={}",
        8 + choice % 8
    );
    let deflate = DeflateParameters::from_offers([&*offer]).expect("a good offer");
    let mut sent = Vec::new();
    deflate.append_message(&mut sent, Opcode::Binary, payload);
    assert_eq!(
        read_message(&sent, payload.len()),
        Ok(Some(payload.to_vec()))
    );
});
