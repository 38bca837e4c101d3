//! The canned server against arbitrary client bytes in arbitrary pieces: it must not panic and must
//! send complete frames only.
//!
//! The first byte of the input chooses the options and the second the size of the pieces; the rest
//! is what the client sends after its preface and SETTINGS.

#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_protocols::grpc::canned::{CannedOptions, CannedServer};
use plimsoll_wire::http2::{self, ErrorCode, Http2Frame};

fuzz_target!(|data: &[u8]| {
    let Some(([choices, step], bytes)) = data.split_first_chunk::<2>() else {
        return;
    };
    let bit = |n: u8| choices >> n & 1 == 1;
    let options = CannedOptions {
        message: vec![1; if bit(0) { 70_000 } else { 9 }],
        status: if bit(1) { 5 } else { 0 },
        max_concurrent_streams: bit(2).then_some(2),
        stream_window: if bit(3) { 10 } else { http2::MAX_WINDOW_BYTES },
        reset_every: bit(4).then_some((3, ErrorCode::CANCEL)),
        goaway_after: bit(5).then_some(4),
        answered_by_caller: bit(6),
        check_requests: bit(7),
        ..CannedOptions::default()
    };
    let mut connection = CannedServer::new(options).new_connection();
    let (mut out, mut held) = (Vec::new(), Vec::new());
    connection.send_preface(&mut out);
    let mut greeting = http2::PREFACE.to_vec();
    http2::write::settings(&mut greeting, &[]);
    connection
        .receive(&greeting, &mut out, &mut held)
        .expect("the greeting is good");
    for piece in bytes.chunks(usize::from(*step).max(1)) {
        if connection.receive(piece, &mut out, &mut held).is_err() {
            break;
        }
        for stream in held.drain(..) {
            connection.answer_held_request(stream, &mut out);
        }
    }
    let mut sent = &out[..];
    while let Some((head, payload)) =
        http2::split_frame(&mut sent, 16_384).expect("frames within limits")
    {
        Http2Frame::parse(head, payload).expect("only good frames are sent");
    }
    assert!(sent.is_empty(), "only whole frames are sent");
});
