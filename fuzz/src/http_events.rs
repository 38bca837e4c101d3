//! Arbitrary bytes as server-sent events, lines of JSON and length-prefixed messages: no panic, and
//! the same events and result for every split.
#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_protocols::http::events::{
    EventReader, EventStreamError, MAX_EVENT_BYTES, StreamEventKind,
};
use plimsoll_protocols::http::{EventFormat, EventMatch, EventStream};

type Read = (
    Vec<(StreamEventKind, Vec<u8>)>,
    Result<(), EventStreamError>,
);

fn read(stream: &EventStream, bytes: &[u8], step: usize) -> Read {
    let mut reader = EventReader::default();
    let mut found = Vec::new();
    for piece in bytes.chunks(step) {
        let taken = reader.push(stream, piece, |event| {
            assert!(event.data.len() <= MAX_EVENT_BYTES);
            found.push((event.kind, event.data.to_vec()));
            true
        });
        match taken {
            Ok(read) => assert_eq!(read, piece.len()),
            Err(error) => return (found, Err(error)),
        }
    }
    let end = reader.finish(stream, |event| {
        found.push((event.kind, event.data.to_vec()));
        true
    });
    (found, end)
}

fuzz_target!(|input: &[u8]| {
    let Some(([choice, step], bytes)) = input.split_first_chunk::<2>() else {
        return;
    };
    let stream = EventStream {
        format: match choice % 4 {
            0 => EventFormat::Sse,
            1 => EventFormat::NdJson,
            2 => EventFormat::Web,
            _ => EventFormat::Connect,
        },
        until: Some(match choice / 4 % 3 {
            0 => EventMatch::Data("[DONE]".into()),
            1 => EventMatch::Contains("done".into()),
            _ => EventMatch::Named("done".into()),
        }),
        error: None,
        tokens: None,
    };
    let whole = read(&stream, bytes, bytes.len().max(1));
    let pieces = read(&stream, bytes, usize::from(*step).max(1));
    assert_eq!(whole, pieces, "a split changed what was read");
});
