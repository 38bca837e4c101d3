//! The HTTP/1.1 driver against arbitrary server bytes in arbitrary pieces: it must not panic or
//! lose a call, and must end in the same state for every split.
//!
//! The first bytes of the input choose: 0 the expectations; 1 the size of the pieces.
#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_engine::driver::{CallId, Direction, Driver, Event, Protocol};
use plimsoll_model::{Outcome, Time};
use plimsoll_protocols::http::{
    EventFormat, EventMatch, EventStream, Http1Protocol, HttpCall, HttpRequest, LlmApi,
    ModelResponseRules,
};

/// The APIs of language models whose events the driver may expect.
const APIS: [&str; 3] = ["chat", "responses", "messages"];

fn play(choice: u8, bytes: &[u8], step: usize) -> (Vec<Event>, Result<(), Outcome>) {
    let call = HttpCall {
        method: if choice & 1 == 0 { "GET" } else { "HEAD" }.into(),
        path: "/".into(),
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
            tokens: (choice & 32 != 0).then(|| ModelResponseRules {
                api: LlmApi::find(APIS[bytes.len() % APIS.len()]).unwrap(),
                ..ModelResponseRules::default()
            }),
        }),
        max_body: u32::MAX,
        ..HttpCall::default()
    };
    let request = HttpRequest {
        call: &call,
        authority: "a:1",
        closes: false,
    };
    let protocol = Http1Protocol::new(&request);
    let mut driver = protocol.new_driver();
    let (mut out, mut events) = (Vec::new(), Vec::new());
    driver.open(Time(0), &mut out);
    driver.start(CallId(1), 0, Time(0), &mut out);
    let mut tracer = protocol.new_tracer().expect("a tracer");
    let mut lines = Vec::new();
    let mut end = Ok(());
    for piece in bytes.chunks(step) {
        tracer.trace_bytes(Direction::Received, piece, &mut lines);
        if let Err(error) = driver.receive(piece, Time(1), &mut out, &mut events) {
            end = Err(error.outcome);
            break;
        }
    }
    if end.is_ok() {
        end = driver
            .receive_end(Time(2), &mut events)
            .map_err(|error| error.outcome);
    }
    driver.abort(Outcome::Reset, Time(3), &mut events);
    let done = events.iter().filter_map(Event::ended_call);
    assert_eq!(done.count(), 1, "{events:?}");
    // After unrequested bytes, the split determines how much was read before them, so details are not compared.
    events.retain(|event| !matches!(event, Event::Detail { .. }));
    for event in &mut events {
        if let Event::Done(done) | Event::Unprocessed(done) = event {
            (done.bytes_received, done.first_byte) = (0, Time(0));
        }
    }
    (events, end)
}

fuzz_target!(|input: &[u8]| {
    let Some(([choice, step], bytes)) = input.split_first_chunk::<2>() else {
        return;
    };
    let whole = play(*choice, bytes, bytes.len().max(1));
    let pieces = play(*choice, bytes, usize::from(*step).max(1));
    assert_eq!(whole, pieces, "a split changed what happened");
});
