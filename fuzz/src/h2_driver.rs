//! The gRPC driver against arbitrary server bytes in arbitrary pieces: it must not panic or lose a
//! call, must send complete frames only, and must end in the same state for every split.
//!
//! The first bytes of the input choose: 0 the number of calls; 1 whether the server's preface is
//! generated (even) or part of the input (odd), and whether gzip is offered (2 or 3 modulo 4); 2
//! the size of the requests; 3 the size of the pieces; 4 the call that is cancelled. The rest is
//! what the server sends.

#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_engine::driver::{CallId, Direction, Driver, Event, Protocol, ProtocolError, Tracer};
use plimsoll_model::{Outcome, Time};
use plimsoll_protocols::grpc::{
    GrpcCall, GrpcProtocol, GrpcRequest, Http2FrameTracer, MessageCompression,
};
use plimsoll_wire::http2::{self, Http2Frame, write};

fuzz_target!(|data: &[u8]| {
    let Some((choices, bytes)) = data.split_first_chunk::<5>() else {
        return;
    };
    let whole = play(choices, bytes, usize::MAX);
    let pieces = play(choices, bytes, usize::from(choices[3]).max(1));
    // Requests that wait for windows are sent between two pieces, so the split may legitimately change the result.
    if choices[2] != u8::MAX {
        assert_eq!(whole, pieces, "a split changed what happened");
    }
    let mut tracer = Http2FrameTracer::default();
    let mut lines = Vec::new();
    for piece in bytes.chunks(usize::from(choices[3]).max(1)) {
        tracer.trace_bytes(Direction::Received, piece, &mut lines);
    }
});

/// The events, and how the connection ended.
type Ending = (Vec<Event>, Result<(), Outcome>);

fn play(choices: &[u8; 5], bytes: &[u8], step: usize) -> Ending {
    let [calls, greeting, size, _, cancelled] = choices.map(u32::from);
    let call = GrpcCall {
        method: "a.S/M".to_owned(),
        message: vec![0; if size == 255 { 100_000 } else { size as usize }],
        compression: (greeting & 2 != 0).then_some(MessageCompression::Gzip),
        max_message: 100,
        ..GrpcCall::default()
    };
    let request = GrpcRequest {
        call: &call,
        authority: "a:1",
        secure: false,
        deadline: None,
    };
    let protocol = GrpcProtocol::new(&request).expect("a good call");
    let mut driver = protocol.new_driver();
    let (mut out, mut events) = (Vec::new(), Vec::new());
    driver.open(Time(0), &mut out);
    if greeting % 2 == 0 {
        let mut settings = Vec::new();
        write::settings(&mut settings, &[]);
        driver
            .receive(&settings, Time(0), &mut out, &mut events)
            .expect("good SETTINGS");
    }
    let mut started = 0;
    while started < calls % 16 && driver.capacity() > 0 {
        driver.start(CallId(started), 0, Time(1), &mut out);
        started += 1;
    }
    let mut was_cancelled = 0;
    if cancelled < started {
        driver.cancel(CallId(cancelled), Time(1), &mut out);
        was_cancelled = 1;
    }
    let result: Result<(), ProtocolError> = bytes
        .chunks(step.min(bytes.len().max(1)))
        .try_for_each(|piece| driver.receive(piece, Time(2), &mut out, &mut events));
    if result.is_err() {
        assert_eq!(driver.capacity(), 0);
    }
    // Calls may start on a connection that still works.
    while started < 20 && driver.capacity() > 0 {
        driver.start(CallId(started), 0, Time(4), &mut out);
        started += 1;
    }
    let result = result.and_then(|()| driver.receive_end(Time(3), &mut events));
    assert_eq!(driver.capacity(), 0);
    let outcome = result.map_err(|error| error.outcome);
    driver.abort(Outcome::Reset, Time(5), &mut events);

    let mut ended = vec![false; started as usize];
    for event in &events {
        if let Some(done) = event.ended_call() {
            let before = std::mem::replace(&mut ended[done.call.0 as usize], true);
            assert!(!before, "call {} ended twice", done.call.0);
        }
    }
    let count = ended.iter().filter(|ended| **ended).count();
    assert_eq!(count + was_cancelled, started as usize, "a call was lost");

    let mut sent = out
        .strip_prefix(http2::PREFACE)
        .expect("the preface comes first");
    while let Some((head, payload)) =
        http2::split_frame(&mut sent, 16_384).expect("frames within limits")
    {
        Http2Frame::parse(head, payload).expect("only good frames are sent");
    }
    assert!(sent.is_empty(), "only whole frames are sent");
    (events, outcome)
}
