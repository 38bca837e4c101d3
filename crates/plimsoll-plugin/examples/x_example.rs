//! A codec plugin in Rust: x_example, a small protocol with length-prefixed frames.
//!
//! ```text
//! request    'x' | type | 0 | id: 4 | length: 4 | payload
//! response   'x' | type | 1 | id: 4 | status: 2 | length: 4 | payload
//! ```
//!
//! Types: 0 heartbeat, 1 message, 2 goaway. Numbers are big-endian. Statuses: 0 success,
//! 1 error, 2 busy, 3 unreachable, 4 timeout, 5 closed.
//!
//! With `--verbose` every frame is logged. If the variable `X_EXAMPLE_PANIC` is set, a request with that
//! payload makes the plugin panic, to show how the host handles it.
//!
//!     cargo build -p plimsoll-plugin --no-default-features --example x_example

use std::env;
use std::ffi::CStr;
use std::sync::LazyLock;

use plimsoll_plugin::abi::Frame;
use plimsoll_plugin::debug;
use plimsoll_plugin::guest::{
    Decoded, FrameOutput, MatchResult, Plugin, new_frame_kind, parse_frame_kind, sender,
};

const MAGIC: u8 = b'x';
const HEARTBEAT: u8 = 0;
const MESSAGE: u8 = 1;
const GOAWAY: u8 = 2;
const REQUEST_HEAD: usize = 11;
const RESPONSE_HEAD: usize = 13;

static PANIC_AT: LazyLock<Option<String>> = LazyLock::new(|| env::var("X_EXAMPLE_PANIC").ok());

pub(crate) struct XExample;

plimsoll_plugin::export!(XExample);

impl Plugin for XExample {
    const NAME: &'static CStr = c"x_example";

    fn matches(bytes: &[u8], _: u32) -> MatchResult {
        match bytes.first() {
            None => MatchResult::More,
            Some(&MAGIC) => MatchResult::Yes,
            Some(_) => MatchResult::No,
        }
    }

    fn decode(bytes: &[u8], from: u32) -> Decoded {
        let [magic, downcast_ref, direction, ..] = *bytes else {
            return Decoded::More(0);
        };
        // Both sides send heartbeats; a server announces its end in a request.
        let (head, name) = match (direction, from, downcast_ref) {
            (0, _, _) => (REQUEST_HEAD, "Request"),
            (1, sender::SERVER, _) | (1, _, HEARTBEAT) => (RESPONSE_HEAD, "Response"),
            _ => return Decoded::Malformed,
        };
        if magic != MAGIC || downcast_ref > GOAWAY {
            return Decoded::Malformed;
        }
        if bytes.len() < head {
            return Decoded::More(head as u64);
        }
        debug!("[in decode{name}]");
        let payload_length = be32(bytes, head - 4);
        let length = head as u64 + u64::from(payload_length);
        let frame = Frame {
            length,
            id: be32(bytes, 3).into(),
            note: 0,
            payload_at: head as u64,
            payload_length: payload_length.into(),
            kind: match (downcast_ref, direction) {
                (GOAWAY, _) => parse_frame_kind::GOAWAY,
                (_, 0) => parse_frame_kind::REQUEST,
                _ => parse_frame_kind::RESPONSE,
            },
            heartbeat: u32::from(downcast_ref == HEARTBEAT),
            timeout_ms: 0,
            status: match direction {
                0 => 0,
                _ => u32::from(bytes[7]) << 8 | u32::from(bytes[8]),
            },
        };
        if (bytes.len() as u64) < length {
            // The id is known, so that a frame over the size limit can be answered.
            return Decoded::Head(frame);
        }
        let payload = &bytes[head..length as usize];
        debug!("[out decode{name}] payload: {}", text(payload));
        if direction == 0
            && PANIC_AT
                .as_deref()
                .is_some_and(|at| at.as_bytes() == payload)
        {
            panic!("asked to panic by X_EXAMPLE_PANIC");
        }
        Decoded::Frame(frame)
    }

    fn encode(frame: &[u8], _note: u64, id: u64, out: &mut FrameOutput<'_>) -> bool {
        let Ok(id) = u32::try_from(id) else {
            return false;
        };
        if frame.len() < REQUEST_HEAD {
            return false;
        }
        let (head, name) = match frame[2] {
            0 => (REQUEST_HEAD, "Request"),
            _ => (RESPONSE_HEAD.min(frame.len()), "Response"),
        };
        debug!(
            "[in encode{name}] {}: {}",
            name.to_lowercase(),
            text(&frame[head..])
        );
        out.put(&frame[..3]);
        out.put(&id.to_be_bytes());
        out.put(&frame[7..]);
        debug!("[out encode{name}]");
        true
    }

    fn make_frame(
        what: u32,
        id: u64,
        _note: u64,
        payload: &[u8],
        out: &mut FrameOutput<'_>,
    ) -> bool {
        let (Ok(id), Ok(length)) = (u32::try_from(id), u32::try_from(payload.len())) else {
            return false;
        };
        // Type, direction, status.
        let (downcast_ref, status) = match what {
            new_frame_kind::REQUEST => (MESSAGE, None),
            new_frame_kind::HEARTBEAT => (HEARTBEAT, None),
            new_frame_kind::RESPONSE => (MESSAGE, Some(0)),
            new_frame_kind::HEARTBEAT_ACK => (HEARTBEAT, Some(0)),
            new_frame_kind::BUSY => (MESSAGE, Some(2u16)),
            new_frame_kind::UNREACHABLE => (MESSAGE, Some(3)),
            new_frame_kind::TIMEOUT => (MESSAGE, Some(4)),
            new_frame_kind::CLOSED => (MESSAGE, Some(5)),
            _ => return false,
        };
        out.put(&[MAGIC, downcast_ref, u8::from(status.is_some())]);
        out.put(&id.to_be_bytes());
        if let Some(status) = status {
            out.put(&status.to_be_bytes());
        }
        out.put(&length.to_be_bytes());
        out.put(payload);
        true
    }
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4]
        .iter()
        .fold(0, |number, byte| number << 8 | u32::from(*byte))
}

/// Returns the beginning of a payload as text.
fn text(payload: &[u8]) -> String {
    let shown = &payload[..payload.len().min(100)];
    String::from_utf8_lossy(shown).into_owned()
}
