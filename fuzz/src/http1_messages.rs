//! Arbitrary bytes as HTTP/1.1 responses and requests, whole and in pieces: no panic, nothing over
//! the limits, and the same messages and result for every split.
#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_wire::http1::{
    BodyFraming, BodyReader, FieldStorage, Http1Error, HttpResponse, RequestHead, ResponseReader,
};

const MAX_BODY: u64 = 4096;
const MAX_HEAD: usize = 512;

/// The responses with their bodies.
type Answers = Vec<(HttpResponse, Vec<u8>)>;

fn answers(bytes: &[u8], step: usize) -> (Answers, Result<Option<HttpResponse>, Http1Error>) {
    let mut responses = ResponseReader::new(MAX_BODY);
    let (mut found, mut body) = (Vec::new(), Vec::new());
    for mut piece in bytes.chunks(step) {
        while !piece.is_empty() {
            match responses.consume(piece, |data| body.extend_from_slice(data)) {
                Ok((taken, response)) => {
                    assert!(taken > 0 && taken <= piece.len());
                    assert!(body.len() as u64 <= MAX_BODY);
                    found.extend(response.map(|whole| (whole, std::mem::take(&mut body))));
                    piece = &piece[taken..];
                }
                Err(e) => return (found, Err(e)),
            }
        }
    }
    (found, responses.on_end_of_stream())
}

/// The first request's line and fields, with its body as far as it has arrived.
fn request(bytes: &[u8], step: usize) -> Option<(String, Result<Vec<u8>, Http1Error>)> {
    let mut end = 0;
    loop {
        end = (end + step).min(bytes.len());
        let mut space = FieldStorage::new();
        let head = match RequestHead::parse(&bytes[..end], MAX_HEAD, &mut space) {
            Ok(Some(head)) => head,
            Ok(None) if end < bytes.len() => continue,
            _ => return None,
        };
        assert!(head.size <= MAX_HEAD.min(end) && head.body != BodyFraming::UntilClose);
        let text = format!("{head:?}");
        let body = BodyReader::new(head.body, MAX_BODY).and_then(|mut body| {
            let mut read = Vec::new();
            for piece in bytes[head.size..].chunks(step) {
                body.consume(piece, &mut |data| read.extend_from_slice(data))?;
            }
            body.on_end_of_stream().map(|()| read)
        });
        return Some((text, body));
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((step, bytes)) = input.split_first() else {
        return;
    };
    let (length, step) = (bytes.len().max(1), usize::from(*step).max(1));
    let (whole, split) = (answers(bytes, length), answers(bytes, step));
    assert_eq!(whole.0, split.0);
    assert_eq!(whole.1.is_ok(), split.1.is_ok());

    let (whole, split) = (request(bytes, length), request(bytes, step));
    if let (Some(whole), Some(split)) = (&whole, &split) {
        assert_eq!(whole.0, split.0);
        assert_eq!(whole.1.is_ok(), split.1.is_ok());
    }
    assert_eq!(whole.is_some(), split.is_some());
});
