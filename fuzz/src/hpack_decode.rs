//! The HPACK decoder on arbitrary header blocks: it must not panic or exceed its limits, and its
//! output must survive encoding and decoding.
//!
//! The first byte of the input is the table's size in units of 32 bytes; then come blocks, each
//! after a byte with its length.

#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_protocols::grpc::HeadReader;
use plimsoll_wire::hpack::{Decoder, Encoder, huffman_decode, huffman_encode};

fuzz_target!(|data: &[u8]| {
    let Some((&size, mut rest)) = data.split_first() else {
        return;
    };
    let mut decoder = Decoder::new(u32::from(size) * 32, 4096);
    // The reader caches blocks; a decoder without a cache must agree with it.
    let mut reader = HeadReader::default();
    let mut fresh = Decoder::new(4096, 1 << 16);
    while let Some((&length, after)) = rest.split_first() {
        let (block, after) = after.split_at(usize::from(length).min(after.len()));
        rest = after;
        roundtrip_huffman(block);

        let mut status = None;
        let plainly = fresh.decode(block, |field| {
            if field.name == b"grpc-status" {
                status = Some(field.value.to_vec());
            }
        });
        let head = reader.read(block);
        assert_eq!(head.is_err(), plainly.is_err());
        let Ok((head, _)) = head else { return };
        if head.malformed.is_none() {
            assert_eq!(head.grpc_status.is_some(), status.is_some());
        }

        let mut fields = Vec::new();
        let mut left = 4096usize;
        let decoded = decoder.decode(block, |field| {
            left = left
                .checked_sub(field.name.len() + field.value.len() + 32)
                .expect("the list stays within its limit");
            fields.push((field.name.to_vec(), field.value.to_vec()));
        });
        if decoded.is_err() {
            return;
        }
        let text: Option<Vec<(&str, &str)>> = fields
            .iter()
            .map(|(name, value)| {
                Some((
                    std::str::from_utf8(name).ok()?,
                    std::str::from_utf8(value).ok()?,
                ))
            })
            .collect();
        if let Some(text) = text {
            let mut encoder = Encoder::default();
            let mut other = Decoder::new(4096, 4096);
            for _ in 0..2 {
                let block = encoder.encode(text.iter().copied());
                let mut again = Vec::new();
                other
                    .decode(&block, |field| {
                        again.push((field.name.to_vec(), field.value.to_vec()))
                    })
                    .expect("an encoded block decodes");
                assert_eq!(again, fields);
            }
        }
    }
});

fn roundtrip_huffman(code: &[u8]) {
    let mut text = Vec::new();
    if huffman_decode(code, &mut text).is_ok() {
        let mut again = Vec::new();
        huffman_encode(&text, &mut again);
        assert_eq!(again, code);
    }
}
