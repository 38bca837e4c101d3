//! Calls that an upstream has not processed are sent again on another connection, unchanged (RFC
//! 9113, 8.7).

use std::net::{SocketAddr, TcpListener, TcpStream};

use plimsoll_wire::http2::{ErrorCode, write};

use super::http2_peer::{Http2Event, Http2Peer};
use super::malformed::client;
use super::{route, sidecar};

const ANSWER: [(&str, &str); 2] = [(":status", "200"), ("grpc-status", "0")];
/// Most bytes of a request that are retained.
const MAX_RETAINED_BYTES: usize = 16 << 10;

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn upstream(listener: &TcpListener) -> Http2Peer {
    let stream: TcpStream = listener.accept().unwrap().0;
    Http2Peer::new(stream, false, &[])
}

/// Collects what arrives of a call: its custom fields, data and trailers.
fn receive_call(service: &mut Http2Peer, expected: u32) -> (String, Vec<u8>, bool) {
    let (mut name, mut all, mut has_trailers) = (String::new(), Vec::new(), false);
    loop {
        let came = service.next();
        assert_eq!(came.stream(), expected, "{came:?}");
        let is_end = match came {
            Http2Event::Data { data, end, .. } => {
                all.extend_from_slice(&data);
                end
            }
            Http2Event::Headers {
                ref fields, end, ..
            } => {
                has_trailers |= fields.iter().any(|(name, _)| name == "x-end");
                name.push_str(came.field("x-name").unwrap_or_default());
                end
            }
            other => panic!("{other:?}"),
        };
        if is_end {
            return (name, all, has_trailers);
        }
    }
}

#[test]
fn calls_after_goaway_are_sent_again_whole() {
    let (listener, address) = listener();
    let (relay, outside) = sidecar(&route("grpc", address, ""));
    let mut client = client(outside);
    // One call is processed, the others are not: header fields alone, data in two parts with
    // trailers, and one whose rest arrives only after it has moved.
    client.call(1, &[], true);
    client.call(3, &[("x-name", "bare")], true);
    client.call(5, &[("x-name", "parts")], false);
    client.data(5, b"one ", false);
    client.data(5, &[b'x'; MAX_RETAINED_BYTES - 4], false);
    client.headers(5, &[("x-end", "1")], true);
    client.call(7, &[("x-name", "open")], false);
    client.data(7, b"first ", false);
    let mut first = upstream(&listener);
    assert_eq!(first.next().stream(), 1);
    assert_eq!(receive_call(&mut first, 3).0, "bare");
    let parts = receive_call(&mut first, 5);
    assert_eq!(
        (&parts.0[..], parts.1.len(), parts.2),
        ("parts", MAX_RETAINED_BYTES, true)
    );
    assert_eq!(first.next().stream(), 7);
    assert!(matches!(first.next(), Http2Event::Data { stream: 7, .. }));
    first.send_frames(|out| write::goaway(out, 1, ErrorCode::NO_ERROR, b""));
    let mut second = upstream(&listener);
    assert_eq!(receive_call(&mut second, 1).0, "bare");
    assert!(receive_call(&mut second, 3) == parts, "byte for byte");
    client.data(7, b"second", true);
    assert_eq!(receive_call(&mut second, 5).1, b"first second");
    // Each call gets its own answer.
    first.headers(1, &ANSWER, true);
    assert_eq!(client.next().stream(), 1);
    for (there, here) in [(5, 7), (1, 3), (3, 5)] {
        second.headers(there, &ANSWER, true);
        let answer = client.next();
        assert_eq!(
            (answer.stream(), answer.field("grpc-status")),
            (here, Some("0"))
        );
    }
    let counted = |name| relay.counter_value("r", name).unwrap();
    assert_eq!(
        (counted("requests_total"), counted("requests_resent_total")),
        (4, 3)
    );
    assert_eq!(counted("reset_by_upstream_total"), 0);
    relay.stop();
}

#[test]
fn refused_call_is_sent_again_while_short() {
    let (listener, address) = listener();
    let (relay, outside) = sidecar(&route("grpc", address, ""));
    let mut client = client(outside);
    let refused = ErrorCode::REFUSED_STREAM;
    client.call(1, &[("x-name", "short")], false);
    client.data(1, b"x", true);
    let mut service = upstream(&listener);
    for stream in [1, 3] {
        assert_eq!(receive_call(&mut service, stream).0, "short");
        service.send_frames(|out| write::reset_stream(out, stream, refused));
    }
    // The call is accepted at the third attempt.
    assert_eq!(receive_call(&mut service, 5).1, b"x");
    service.headers(5, &ANSWER, true);
    assert_eq!(client.next().field("grpc-status"), Some("0"));
    // Attempts are limited, and a request that is too long to be retained is not sent again.
    let expect_refused = |came: Http2Event, stream: u32| {
        let code = refused.0;
        assert_eq!(came, Http2Event::Reset { stream, code });
    };
    client.call(3, &[], true);
    for stream in [7, 9, 11] {
        assert_eq!(service.next().stream(), stream);
        service.send_frames(|out| write::reset_stream(out, stream, refused));
    }
    expect_refused(client.next(), 3);
    client.call(5, &[], false);
    let half = [0; MAX_RETAINED_BYTES / 2 + 1];
    client.data(5, &half, false);
    client.data(5, &half, true);
    assert_eq!(receive_call(&mut service, 13).1.len(), 2 * half.len());
    service.send_frames(|out| write::reset_stream(out, 13, refused));
    expect_refused(client.next(), 5);
    // A reset with another code is passed on.
    client.call(7, &[], true);
    assert_eq!(service.next().stream(), 15);
    service.send_frames(|out| write::reset_stream(out, 15, ErrorCode::CANCEL));
    assert_eq!(
        client.next(),
        Http2Event::Reset {
            stream: 7,
            code: ErrorCode::CANCEL.0
        }
    );
    assert_eq!(relay.counter_value("r", "requests_resent_total"), Some(4));
    relay.stop();
}
