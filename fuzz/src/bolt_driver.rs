//! The Bolt driver against arbitrary server bytes in arbitrary pieces: it must not panic or lose a
//! call, must send complete frames only, and must end in the same state for every split.
//!
//! The first bytes of the input choose: 0 the number of calls; 1 the layout of frames, and whether
//! calls are oneway; 2 the maximum number in flight; 3 the size of the pieces; 4 the call that is
//! cancelled. The rest is what the server sends.

#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use plimsoll_engine::driver::{CallId, Direction, Driver, Event, Protocol, ProtocolError, Tracer};
use plimsoll_model::{Outcome, Time};
use plimsoll_protocols::bolt::{BoltCall, BoltFrame, BoltFrameTracer, BoltProtocol, FrameLayout};

/// The limit of a response's content.
const MAX_CONTENT_BYTES: usize = 4096;

fuzz_target!(|data: &[u8]| {
    let Some((choices, bytes)) = data.split_first_chunk::<5>() else {
        return;
    };
    let step = usize::from(choices[3]).max(1);
    let whole = play(choices, bytes, usize::MAX);
    assert_eq!(
        whole,
        play(choices, bytes, step),
        "a split changed what happened"
    );
    let (mut tracer, mut lines) = (BoltFrameTracer::default(), Vec::new());
    for piece in bytes.chunks(step) {
        tracer.trace_bytes(Direction::Received, piece, &mut lines);
    }
});

/// The events, the counted contents, and how the connection ended.
type Ending = (Vec<Event>, u64, Result<(), Outcome>);

fn play(choices: &[u8; 5], bytes: &[u8], step: usize) -> Ending {
    let [calls, manner, in_flight, _, cancelled] = choices.map(u32::from);
    let call = BoltCall {
        layout: [FrameLayout::V1, FrameLayout::V2, FrameLayout::V2_CRC][manner as usize % 3],
        class: b"a.B".to_vec(),
        content: b"hello".to_vec(),
        oneway: manner >= 128,
        in_flight: Some(in_flight.max(1)),
        heartbeat: Some(Duration::from_secs(1)),
        max_content: MAX_CONTENT_BYTES,
        ..BoltCall::default()
    };
    let protocol = BoltProtocol::new(&call).expect("a good call");
    let mut driver = protocol.new_driver();
    let (mut out, mut events) = (Vec::new(), Vec::new());
    driver.open(Time(0), &mut out);
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
    // A heartbeat is due, and calls may start on a connection that still works.
    driver.on_timer(Time(3_000_000_000), &mut out, &mut events);
    while started < 20 && driver.capacity() > 0 {
        driver.start(CallId(started), 0, Time(3_000_000_001), &mut out);
        started += 1;
    }
    let result = result.and_then(|()| driver.receive_end(Time(3_000_000_002), &mut events));
    let outcome = result.map_err(|error| error.outcome);
    driver.abort(Outcome::Reset, Time(3_000_000_003), &mut events);
    assert_eq!(driver.capacity(), 0);

    let mut ended = vec![false; started as usize];
    for event in &events {
        if let Some(done) = event.ended_call() {
            let before = std::mem::replace(&mut ended[done.call.0 as usize], true);
            assert!(!before, "call {} ended twice", done.call.0);
        }
    }
    let count = ended.iter().filter(|ended| **ended).count();
    assert_eq!(count + was_cancelled, started as usize, "a call was lost");

    let mut sent = &out[..];
    while !sent.is_empty() {
        let parsed = BoltFrame::parse(sent, MAX_CONTENT_BYTES).expect("only good frames are sent");
        let (_, length) = parsed.expect("only whole frames are sent");
        sent = &sent[length..];
    }
    // Contents are counted once per read.
    let mut contents = 0;
    events.retain(|event| match event {
        Event::Count { n, .. } => {
            contents += n;
            false
        }
        _ => true,
    });
    (events, contents, outcome)
}
