//! The HTTP/2 driver against arbitrary server bytes in arbitrary pieces: it must not panic or lose
//! a call, must send complete frames only, and must end in the same state for every split.
//!
//! The first bytes of the input choose: 0 the number of calls; 1 whether the server's preface is
//! generated (even) or part of the input (odd); 2 the expectations and the requests; 3 the size of
//! the pieces; 4 the call that is cancelled. The rest is what the server sends.

#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_engine::driver::{CallId, Driver, Event, Protocol, ProtocolError};
use plimsoll_model::{Outcome, Time};
use plimsoll_protocols::http::{
    EventFormat, EventMatch, EventStream, Http2Protocol, HttpCall, HttpRequest, HttpScheme,
    ModelResponseRules,
};
use plimsoll_wire::http2::{self, Http2Frame, write};

fuzz_target!(|data: &[u8]| {
    let Some((choices, bytes)) = data.split_first_chunk::<5>() else {
        return;
    };
    let whole = play(choices, bytes, usize::MAX);
    let pieces = play(choices, bytes, usize::from(choices[3]).max(1));
    // Requests that wait for windows are sent between two pieces, so the split may legitimately change the result.
    if choices[2] & 16 == 0 {
        assert_eq!(whole, pieces, "a split changed what happened");
    }
});

/// The events, and how the connection ended.
type Ending = (Vec<Event>, Result<(), Outcome>);

fn play(choices: &[u8; 5], bytes: &[u8], step: usize) -> Ending {
    let [calls, greeting, choice, _, cancelled] = choices.map(u32::from);
    let call = HttpCall {
        method: if choice & 1 == 0 { "GET" } else { "HEAD" }.into(),
        path: "/".into(),
        body: vec![b'x'; if choice & 16 == 0 { 0 } else { 100_000 }],
        expect: vec![(200, 299)],
        expect_body: (choice & 2 != 0).then(|| "ok".into()),
        compressed: choice & 64 != 0,
        stream: (choice & 4 != 0).then(|| EventStream {
            format: match choice & (8 | 128) {
                0 => EventFormat::Sse,
                8 => EventFormat::NdJson,
                128 => EventFormat::Web,
                _ => EventFormat::Connect,
            },
            until: Some(EventMatch::Contains("done".into())),
            error: None,
            tokens: (choice & 32 != 0).then(ModelResponseRules::default),
        }),
        max_body: 1_000,
        ..HttpCall::default()
    };
    let request = HttpRequest {
        call: &call,
        authority: "a:1",
        closes: false,
    };
    let mut driver = Http2Protocol::new(&request, HttpScheme::Http).new_driver();
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
    if result.is_ok()
        && let Some(when) = driver.next_timer()
    {
        driver.on_timer(when, &mut out, &mut events);
        assert_eq!(driver.next_timer(), None);
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
