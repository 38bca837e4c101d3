//! Any bytes as HTTP/1.1 answers, whole and in pieces: no panic, and the same answers
//! whatever the split.
#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_protocols::fetch::http1::{Answer, AnswerError, Answers};

fn all(bytes: &[u8], step: usize) -> (Vec<Answer>, Result<Option<Answer>, AnswerError>) {
    let mut answers = Answers::default();
    let mut found = Vec::new();
    for mut piece in bytes.chunks(step) {
        while !piece.is_empty() {
            match answers.take(piece) {
                Ok((taken, answer)) => {
                    assert!(taken > 0 && taken <= piece.len());
                    found.extend(answer);
                    piece = &piece[taken..];
                }
                Err(e) => return (found, Err(e)),
            }
        }
    }
    (found, answers.end())
}

fuzz_target!(|input: &[u8]| {
    let Some((step, bytes)) = input.split_first() else {
        return;
    };
    let whole = all(bytes, bytes.len().max(1));
    let split = all(bytes, usize::from(*step).max(1));
    assert_eq!(whole.0, split.0);
    assert_eq!(whole.1.is_ok(), split.1.is_ok());
});
