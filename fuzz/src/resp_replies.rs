//! Any bytes as replies of a Redis server: no panic, and the same replies and the same
//! verdict whatever the split.
#![no_main]

use bytes::BytesMut;
use libfuzzer_sys::fuzz_target;

// The decoder alone: the crate it belongs to would bring servers and a runtime along.
#[path = "../../crates/plimsoll-relays/src/bus/redis/resp.rs"]
#[allow(dead_code, reason = "commands are encoded there, too")]
mod resp;

use resp::{NotResp, Reply, take_reply};

fn all(bytes: &[u8], step: usize) -> (Vec<Reply>, Result<(), NotResp>) {
    let mut input = BytesMut::new();
    let mut replies = Vec::new();
    for piece in bytes.chunks(step) {
        input.extend_from_slice(piece);
        loop {
            match take_reply(&mut input) {
                Ok(Some(reply)) => replies.push(reply),
                Ok(None) => break,
                Err(e) => return (replies, Err(e)),
            }
        }
    }
    (replies, Ok(()))
}

fuzz_target!(|input: &[u8]| {
    let Some((step, bytes)) = input.split_first() else {
        return;
    };
    let whole = all(bytes, bytes.len().max(1));
    assert_eq!(whole, all(bytes, usize::from(*step).max(1)));
});
