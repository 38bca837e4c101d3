//! Tests of the canned server with clients that violate RFC 9113, and with clients that use what it allows.

use plimsoll_protocols::grpc::canned::{CannedConnection, CannedOptions, CannedServer};
use plimsoll_wire::http2::kind;

use super::*;

/// A connection to the server, and what the server has sent.
struct CannedPeer {
    server: CannedConnection,
    out: Vec<u8>,
    held: Vec<u32>,
}

impl CannedPeer {
    /// Creates a connection whose preface was exchanged.
    fn new(options: CannedOptions) -> CannedPeer {
        let mut peer = CannedPeer::without_settings(options);
        let mut greeting = http2::PREFACE.to_vec();
        write::settings(&mut greeting, &[]);
        write::settings_ack(&mut greeting);
        peer.send(&greeting).unwrap();
        peer.sent();
        peer
    }

    fn without_settings(options: CannedOptions) -> CannedPeer {
        let mut server = CannedServer::new(options).new_connection();
        let mut out = Vec::new();
        server.send_preface(&mut out);
        CannedPeer {
            server,
            out,
            held: Vec::new(),
        }
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        let received = self.server.receive(bytes, &mut self.out, &mut self.held);
        received.map_err(|error| error.to_string())
    }

    fn sent(&mut self) -> Vec<SentFrame> {
        let out = std::mem::take(&mut self.out);
        let (mut input, mut frames) = (&out[..], Vec::new());
        while let Some((head, payload)) = http2::split_frame(&mut input, 16_384).unwrap() {
            frames.push((head, payload.to_vec()));
        }
        frames
    }

    /// Returns the codes of GOAWAY and of resets that `bytes` cause.
    fn send_for_codes(&mut self, bytes: &[u8]) -> (Option<ErrorCode>, Vec<(u32, ErrorCode)>) {
        let received = self.send(bytes);
        let sent = self.sent();
        let goaway = goaway_code(&sent);
        assert_eq!(goaway.is_some(), received.is_err(), "{received:?}");
        (goaway, resets(&sent))
    }
}

/// Returns the options of the fast server.
fn lenient() -> CannedOptions {
    CannedOptions {
        check_requests: false,
        ..CannedOptions::default()
    }
}

fn strict() -> CannedOptions {
    CannedOptions::default()
}

fn held_answers() -> CannedOptions {
    CannedOptions {
        answered_by_caller: true,
        ..lenient()
    }
}

fn request_head(stream: u32, end_stream: bool) -> Vec<u8> {
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/a.B/C"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    ];
    headers(stream, &fields, end_stream)
}

fn request(stream: u32) -> Vec<u8> {
    [request_head(stream, false), data(stream, MESSAGE, true)].concat()
}

fn goaway_only(code: ErrorCode) -> (Option<ErrorCode>, Vec<(u32, ErrorCode)>) {
    (Some(code), Vec::new())
}

/// RFC 9113, 3.4
#[test]
fn client_without_settings_is_rejected() {
    for options in [lenient(), strict()] {
        let mut peer = CannedPeer::without_settings(options);
        let bytes = [&http2::PREFACE[..], &request(1)].concat();
        assert_eq!(
            peer.send_for_codes(&bytes),
            goaway_only(ErrorCode::PROTOCOL_ERROR)
        );
        assert_eq!(peer.server.request_count(), 0);
    }
}

/// RFC 9113, 5.1
#[test]
fn frames_on_idle_streams_close_connection() {
    for id in [2, 4, 3] {
        for bytes in [
            data(id, b"", false),
            frame(kind::RST_STREAM, 0, id, &[0; 4]),
            frame(kind::WINDOW_UPDATE, 0, id, &[0, 0, 0, 1]),
        ] {
            let mut peer = CannedPeer::new(held_answers());
            peer.send(&request(1)).unwrap();
            assert_eq!(
                peer.send_for_codes(&bytes),
                goaway_only(ErrorCode::PROTOCOL_ERROR)
            );
        }
    }
    let mut peer = CannedPeer::new(held_answers());
    let even = request_head(2, false);
    assert_eq!(
        peer.send_for_codes(&even),
        goaway_only(ErrorCode::PROTOCOL_ERROR)
    );
}

/// RFC 9113, 5.4.2
#[test]
fn stream_error_resets_only_its_stream() {
    let overflow = frame(kind::WINDOW_UPDATE, 0, 1, &[0x7f, 0xff, 0xff, 0xff]);
    for (bytes, code) in [
        (overflow, ErrorCode::FLOW_CONTROL_ERROR),
        (
            frame(kind::WINDOW_UPDATE, 0, 1, &[0; 4]),
            ErrorCode::PROTOCOL_ERROR,
        ),
        (
            frame(kind::PRIORITY, 0, 1, &[0; 4]),
            ErrorCode::FRAME_SIZE_ERROR,
        ),
    ] {
        let mut peer = CannedPeer::new(lenient());
        peer.send(&request_head(1, false)).unwrap();
        assert_eq!(peer.send_for_codes(&bytes), (None, vec![(1, code)]));
        // Frames in transit are ignored, and other requests are answered.
        assert_eq!(peer.send_for_codes(&data(1, MESSAGE, true)), (None, vec![]));
        peer.send(&request(3)).unwrap();
        assert_eq!(peer.server.answer_count(), 1);
    }
}

/// RFC 9113, 5.1
#[test]
fn data_after_end_is_stream_closed() {
    let after = data(1, b"x", false);
    let closed = ErrorCode::STREAM_CLOSED;
    let mut peer = CannedPeer::new(held_answers());
    peer.send(&request(1)).unwrap();
    assert_eq!(peer.send_for_codes(&after), (None, vec![(1, closed)]));
    let mut peer = CannedPeer::new(lenient());
    peer.send(&request(1)).unwrap();
    assert_eq!(
        peer.send_for_codes(&after),
        goaway_only(closed),
        "both sides ended it"
    );
    let mut peer = CannedPeer::new(strict());
    peer.send(&request(1)).unwrap();
    assert_eq!(peer.send_for_codes(&after), goaway_only(closed));
}

/// RFC 9113, 8.1
#[test]
fn request_may_end_with_trailers() {
    let begun = [request_head(1, false), data(1, MESSAGE, false)].concat();
    for options in [lenient(), strict()] {
        let mut peer = CannedPeer::new(options);
        peer.send(&[begun.clone(), headers(1, &[("x-sum", "1")], true)].concat())
            .unwrap();
        assert_eq!(peer.server.answer_count(), 1);
    }
    let mut peer = CannedPeer::new(lenient());
    peer.send(&begun).unwrap();
    let unended = headers(1, &[("x-sum", "1")], false);
    let malformed = vec![(1, ErrorCode::PROTOCOL_ERROR)];
    assert_eq!(peer.send_for_codes(&unended), (None, malformed));
    let mut peer = CannedPeer::new(strict());
    peer.send(&begun).unwrap();
    let pseudo = headers(1, &[(":path", "/")], true);
    assert_eq!(
        peer.send_for_codes(&pseudo),
        goaway_only(ErrorCode::PROTOCOL_ERROR)
    );
}

/// RFC 9113, 6.9.1 and 6.9.2
#[test]
fn lenient_mode_enforces_stream_windows() {
    let options = CannedOptions {
        stream_window: 10,
        ..lenient()
    };
    let mut peer = CannedPeer::new(options.clone());
    peer.send(&request_head(1, false)).unwrap();
    let bytes = [data(1, &[0; 4], false), data(1, &[0; 7], false)].concat();
    let overrun = vec![(1, ErrorCode::FLOW_CONTROL_ERROR)];
    assert_eq!(peer.send_for_codes(&bytes), (None, overrun));
    peer.send(&request(3)).unwrap();
    assert_eq!(peer.server.answer_count(), 1);
    // Before it has acknowledged SETTINGS, a client may assume the default window.
    let mut peer = CannedPeer::without_settings(options);
    let mut greeting = http2::PREFACE.to_vec();
    write::settings(&mut greeting, &[]);
    greeting.extend(request_head(1, false));
    greeting.extend(data(1, &[0; 100], false));
    assert_eq!(peer.send_for_codes(&greeting), (None, vec![]));
    let mut ack = Vec::new();
    write::settings_ack(&mut ack);
    peer.send(&ack).unwrap();
    let updates = [(1, 100u32.to_be_bytes().to_vec())];
    let sent = peer.sent().into_iter();
    let sent = sent.map(|(head, payload)| (head.stream(), payload));
    assert_eq!(sent.collect::<Vec<_>>(), updates, "it could send nothing");
}

#[test]
fn headers_only_request_ends_during_another() {
    let mut peer = CannedPeer::new(lenient());
    peer.send(&[request_head(1, false), request_head(3, true)].concat())
        .unwrap();
    let answered: Vec<u32> = peer.sent().iter().map(|(head, _)| head.stream()).collect();
    assert_eq!(answered, [3, 3, 3]);
    peer.send(&data(1, MESSAGE, true)).unwrap();
    assert_eq!(peer.server.answer_count(), 2);
}
