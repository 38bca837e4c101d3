//! Arbitrary bytes as Hessian: decoding ends within bounds, and a decoded value is encoded to bytes
//! that decode to the same value.

#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_protocols::bolt::hessian::{HessianDecoder, decode, encode};
use plimsoll_protocols::bolt::{header, sofa};

fuzz_target!(|data: &[u8]| {
    let mut decoder = HessianDecoder::new(data);
    let mut values = 0;
    while decoder.remaining() > 0 && decoder.read_value().is_ok() {
        values += 1;
    }
    assert!(values <= data.len());
    if let Ok(value) = decode(data) {
        // Compares bytes, because NaN does not equal itself.
        let written = encode(&value);
        let again = decode(&written).expect("what was written is read");
        assert_eq!(encode(&again), written);
    }
    // The lookups that answers and requests perform.
    let _ = sofa::failure_text(data);
    let _ = sofa::SofaCall::decode(data);
    let read = header::pairs(data).take_while(Result::is_ok).count();
    assert!(read <= data.len());
});
