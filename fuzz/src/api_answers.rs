//! Arbitrary bytes as the answers of a session's API and of its upgrade: no panic, nothing over the
//! limits, and the same result for every split.
#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_protocols::session::http::{ApiResponse, ApiResponseReader};
use plimsoll_wire::http1::Http1Error;
use plimsoll_wire::websocket::{UpgradeOffer, UpgradeResponse};

const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";

fn read_first(bytes: &[u8], step: usize) -> Result<Option<ApiResponse>, Http1Error> {
    let mut reader = ApiResponseReader::default();
    for piece in bytes.chunks(step) {
        if let Some(answer) = reader.read(piece)? {
            assert!(answer.body.len() <= 1 << 20);
            return Ok(Some(answer));
        }
    }
    reader.finish()
}

fuzz_target!(|input: &[u8]| {
    let Some((step, bytes)) = input.split_first() else {
        return;
    };
    let whole = read_first(bytes, bytes.len().max(1));
    let split = read_first(bytes, usize::from(*step).max(1));
    assert_eq!(whole.is_ok(), split.is_ok());
    if let Ok(whole) = whole {
        assert_eq!(split, Ok(whole));
    }
    if let Ok(Some(answer)) = UpgradeResponse::parse(bytes, KEY, UpgradeOffer::COMPRESSION_ONLY) {
        assert!(answer.size <= bytes.len());
        assert!(answer.problem.is_some() || answer.status == 101);
        // The message is incomplete with one byte less.
        let less = UpgradeResponse::parse(
            &bytes[..answer.size - 1],
            KEY,
            UpgradeOffer::COMPRESSION_ONLY,
        );
        assert!(!matches!(less, Ok(Some(_))));
    }
});
