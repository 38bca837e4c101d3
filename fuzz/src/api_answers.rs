//! Any bytes as the answers of a session's API and of its upgrade: no panic, nothing over
//! the limits, and the same answer whatever the split.
#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_protocols::session::http::{Answer, AnswerReader, NotAnAnswer, answer_to_upgrade};

fn first(bytes: &[u8], step: usize) -> Result<Option<Answer>, NotAnAnswer> {
    let mut reader = AnswerReader::default();
    for piece in bytes.chunks(step) {
        if let Some(answer) = reader.read(piece)? {
            assert!(answer.body.len() <= 1 << 20);
            return Ok(Some(answer));
        }
    }
    Ok(None)
}

fuzz_target!(|input: &[u8]| {
    let Some((step, bytes)) = input.split_first() else {
        return;
    };
    let whole = first(bytes, bytes.len().max(1));
    let split = first(bytes, usize::from(*step).max(1));
    // What is wrong may be seen before the rest has come, and the rest may be wrong too.
    match (&whole, &split) {
        (Ok(Some(whole)), _) => assert_eq!(split.as_ref(), Ok(&Some(whole.clone()))),
        (_, Ok(Some(split))) => panic!("{split:?} in pieces only"),
        _ => {}
    }
    if let Ok(Some((size, problem))) = answer_to_upgrade(bytes, "dGhlIHNhbXBsZSBub25jZQ==") {
        assert!(size <= bytes.len());
        assert!(problem.is_some() || bytes.starts_with(b"HTTP/1."));
    }
});
