use super::super::{DEFAULT_MAX_FRAME_BYTES, setting, split_frame};
use super::*;

fn parsed(bytes: &[u8]) -> Vec<(FrameHeader, String)> {
    let mut input = bytes;
    let mut frames = Vec::new();
    while let Some((head, payload)) = split_frame(&mut input, DEFAULT_MAX_FRAME_BYTES).unwrap() {
        frames.push((
            head,
            format!("{:?}", Http2Frame::parse(head, payload).unwrap()),
        ));
    }
    assert_eq!(input, b"");
    frames
}

#[test]
fn written_frames_parse_back() {
    let mut out = Vec::new();
    write::settings(
        &mut out,
        &[(setting::ENABLE_PUSH, 0), (setting::MAX_FRAME_SIZE, 16384)],
    );
    write::settings_ack(&mut out);
    write::ping_ack(&mut out, *b"pingpong");
    write::window_update(&mut out, 3, 77);
    write::reset_stream(&mut out, 5, ErrorCode::CANCEL);
    write::goaway(&mut out, 9, ErrorCode::NO_ERROR, b"bye");
    write::data(&mut out, 7, b"hello", write::EndStream(true));
    write::header_block(&mut out, 11, &[0x82; 40_000], write::EndStream(true));
    let frames = parsed(&out);
    let names: Vec<_> = frames
        .iter()
        .map(|(head, _)| kind::name(head.kind()).unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "SETTINGS",
            "SETTINGS",
            "PING",
            "WINDOW_UPDATE",
            "RST_STREAM",
            "GOAWAY",
            "DATA",
            "HEADERS",
            "CONTINUATION",
            "CONTINUATION"
        ]
    );
    assert_eq!(frames[3].1, "WindowUpdate { increment: 77 }");
    assert!(frames[5].1.contains("last_stream: 9"));
    assert_eq!(frames[7].0.flags(), flags::END_STREAM);
    assert_eq!(frames[8].0.flags(), 0);
    assert_eq!(frames[9].0.flags(), flags::END_HEADERS);
    assert_eq!(frames[9].0.length(), 40_000 - 2 * 16_384);
}

#[test]
fn padding_and_priority_are_stripped() {
    let payload = [2, 0, 0, 0, 0, 9, 0x82, 0, 0];
    let mut bytes = Vec::new();
    let bits = flags::PADDED | flags::PRIORITY | flags::END_HEADERS;
    write::frame_header(&mut bytes, payload.len(), kind::HEADERS, bits, 1);
    let head = FrameHeader::parse(bytes.first_chunk().unwrap());
    let Ok(Http2Frame::Headers {
        fragment,
        end_stream,
        end_headers,
    }) = Http2Frame::parse(head, &payload)
    else {
        panic!("not HEADERS");
    };
    assert_eq!(
        (fragment, end_stream, end_headers),
        (&[0x82][..], false, true)
    );
}

/// RFC 9113 §4.1: the highest bit of a stream id is reserved and ignored.
#[test]
fn reserved_stream_bit_is_ignored() {
    let payload = [0xff, 0xff, 0xff, 0xfe, 0x82];
    let mut bytes = Vec::new();
    write::frame_header(
        &mut bytes,
        payload.len(),
        kind::PUSH_PROMISE,
        flags::END_HEADERS,
        1,
    );
    let head = FrameHeader::parse(bytes.first_chunk().unwrap());
    let Ok(Http2Frame::PushPromise {
        promised, fragment, ..
    }) = Http2Frame::parse(head, &payload)
    else {
        panic!("not PUSH_PROMISE");
    };
    assert_eq!((promised, fragment), (0x7fff_fffe, &[0x82][..]));
}
