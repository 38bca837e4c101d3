//! Whatever a server sends, in whatever pieces, the driver neither panics nor loses a
//! call, sends whole frames only, and comes to the same end for every split.
//!
//! The first bytes of the input choose: 0 the number of calls; 1 the layout of frames, and
//! whether calls are oneway; 2 how many may be under way; 3 the size of the pieces; 4 which
//! call is cancelled. The rest is what the server sends.

#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use plimsoll_engine::driver::{CallId, Direction, Driver, Event, Protocol, ProtocolError, Tracer};
use plimsoll_model::{Outcome, Time};
use plimsoll_protocols::bolt::{BoltCall, BoltProtocol, Form, Frame, FrameTracer};

/// The longest content that an answer may have. Bytes.
const LIMIT: usize = 4096;

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
    let (mut tracer, mut lines) = (FrameTracer::default(), Vec::new());
    for piece in bytes.chunks(step) {
        tracer.bytes(Direction::Received, piece, &mut lines);
    }
});

/// The events, the contents that were counted, and how the connection ended.
type Ending = (Vec<Event>, u64, Result<(), Outcome>);

fn play(choices: &[u8; 5], bytes: &[u8], step: usize) -> Ending {
    let [calls, manner, in_flight, _, cancelled] = choices.map(u32::from);
    let call = BoltCall {
        form: [Form::V1, Form::V2, Form::V2_CRC][manner as usize % 3],
        class: b"a.B".to_vec(),
        content: b"hello".to_vec(),
        oneway: manner >= 128,
        in_flight: Some(in_flight.max(1)),
        heartbeat: Some(Duration::from_secs(1)),
        max_content: LIMIT,
        ..BoltCall::default()
    };
    let protocol = BoltProtocol::new(&call).expect("a good call");
    let mut driver = protocol.driver();
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
    // A heartbeat is due, and calls may start on a connection that is still good.
    driver.expire(Time(3_000_000_000), &mut out, &mut events);
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
        if let Some(done) = event.ended() {
            let before = std::mem::replace(&mut ended[done.call.0 as usize], true);
            assert!(!before, "call {} ended twice", done.call.0);
        }
    }
    let count = ended.iter().filter(|ended| **ended).count();
    assert_eq!(count + was_cancelled, started as usize, "a call was lost");

    let mut sent = &out[..];
    while !sent.is_empty() {
        let parsed = Frame::parse(sent, LIMIT).expect("only good frames are sent");
        let (_, length) = parsed.expect("only whole frames are sent");
        sent = &sent[length..];
    }
    // They are counted once a read.
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
