//! Tests of messages compressed with gzip, and of encodings that were not offered.

use std::io::Write;

use flate2::write::{GzDecoder, GzEncoder};
use plimsoll_protocols::grpc::MessageCompression;
use plimsoll_wire::http2::kind;

use super::*;

fn gzip(message: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(message).unwrap();
    encoder.finish().unwrap()
}

fn framed(flag: u8, message: &[u8]) -> Vec<u8> {
    let mut framed = vec![flag];
    framed.extend_from_slice(&(message.len() as u32).to_be_bytes());
    framed.extend_from_slice(message);
    framed
}

/// Creates a client with one call in flight.
fn client(compression: Option<MessageCompression>) -> Client {
    let mut client = Client::of(&prepare(&GrpcCall {
        method: "a.S/M".to_owned(),
        message: vec![5; 500],
        compression,
        max_message: 1000,
        ..GrpcCall::default()
    }));
    client.greet(&[]);
    client.start();
    client
}

fn compressed_head(stream: u32, encoding: &str) -> Vec<u8> {
    let fields = [
        (":status", "200"),
        ("content-type", "application/grpc"),
        ("grpc-encoding", encoding),
    ];
    headers(stream, &fields, false)
}

/// Returns how a call ends whose response has these bytes, in frames of `chunk` bytes.
fn outcome(
    compression: Option<MessageCompression>,
    encoding: &str,
    body: &[u8],
    chunk: usize,
) -> (Outcome, String) {
    let mut client = client(compression);
    let mut bytes = compressed_head(1, encoding);
    for part in body.chunks(chunk) {
        bytes.extend_from_slice(&data(1, part, false));
    }
    bytes.extend_from_slice(&trailers(1, "0"));
    client.receive(&bytes).unwrap();
    let ended = client.ended();
    assert_eq!(ended.len(), 1, "{ended:?}");
    (ended[0].1, client.details().join("; "))
}

#[test]
fn compressed_request_declares_its_encoding() {
    let mut client = client(Some(MessageCompression::Gzip));
    let frames = client.sent();
    let (_, block) = frames
        .iter()
        .find(|(head, _)| head.kind() == kind::HEADERS)
        .unwrap();
    let mut fields = Vec::new();
    plimsoll_wire::hpack::Decoder::new(4096, 1 << 16)
        .decode(block, |field| {
            fields.push((field.name.to_vec(), field.value.to_vec()));
        })
        .unwrap();
    for (name, value) in [
        ("grpc-encoding", "gzip"),
        ("grpc-accept-encoding", "identity,gzip"),
    ] {
        assert!(fields.contains(&(name.into(), value.into())), "{name}");
    }
    let (_, body) = frames
        .iter()
        .find(|(head, _)| head.kind() == kind::DATA)
        .unwrap();
    assert_eq!(body[0], 1);
    assert!(body.len() < 100, "{}", body.len());
    let mut plain = GzDecoder::new(Vec::new());
    plain.write_all(&body[5..]).unwrap();
    assert_eq!(plain.finish().unwrap(), [5; 500]);
}

#[test]
fn responses_decompress_up_to_limit() {
    let some = Some(MessageCompression::Gzip);
    for chunk in [1, 3, 50, 4096] {
        let good = framed(1, &gzip(&[9; 1000]));
        assert_eq!(
            outcome(some, "gzip", &good, chunk).0,
            Outcome::Ok,
            "{chunk}"
        );
        // A server may send a message uncompressed.
        assert_eq!(outcome(some, "gzip", MESSAGE, chunk).0, Outcome::Ok);
        let bomb = framed(1, &gzip(&[9; 1001]));
        let (code, said) = outcome(some, "gzip", &bomb, chunk);
        assert_eq!(code, Outcome::MessageTooLarge, "{said}");
        assert!(
            said.contains("decompresses to more than the limit of 1000 bytes"),
            "{said}"
        );
        let mut broken = gzip(&[9; 1000]);
        broken.truncate(broken.len() - 1);
        let (code, said) = outcome(some, "gzip", &framed(1, &broken), chunk);
        assert_eq!(code, Outcome::BadAnswer);
        assert!(said.contains("declared as gzip but is not"), "{said}");
    }
}

#[test]
fn error_names_unoffered_encoding() {
    let packed = framed(1, &gzip(&[9; 10]));
    for (compression, encoding) in [
        (None, "gzip"),
        (None, "snappy"),
        (Some(MessageCompression::Gzip), "zstd"),
    ] {
        let (code, said) = outcome(compression, encoding, &packed, 100);
        assert_eq!(code, Outcome::CompressionUnsupported);
        assert!(
            said.contains(&format!("compressed with `{encoding}`")),
            "{said}"
        );
        // An unknown encoding without a compressed message is accepted.
        assert_eq!(outcome(compression, encoding, MESSAGE, 100).0, Outcome::Ok);
    }
    // A compressed message in a response without `grpc-encoding`.
    for compression in [None, Some(MessageCompression::Gzip)] {
        let (code, _) = outcome(compression, "identity", &packed, 100);
        assert_eq!(code, Outcome::CompressionUnsupported);
    }
}

#[test]
fn interleaved_compressed_calls_survive_cancel() {
    let mut client = client(Some(MessageCompression::Gzip));
    client.start();
    client.start();
    let body = framed(1, &gzip(&[9; 900]));
    let (first, second) = body.split_at(12);
    for stream in [1, 3, 5] {
        client.receive(&compressed_head(stream, "gzip")).unwrap();
        client.receive(&data(stream, first, false)).unwrap();
    }
    client.driver.cancel(CallId(1), Time(3), &mut client.out);
    for stream in [5, 1] {
        client.receive(&data(stream, second, false)).unwrap();
        client.receive(&trailers(stream, "0")).unwrap();
    }
    assert_eq!(client.ended(), [(2, Outcome::Ok), (0, Outcome::Ok)]);
}
