//! Clients that use more than their share.

use std::net::{SocketAddr, TcpListener, TcpStream};

use plimsoll_wire::hpack::Encoder;
use plimsoll_wire::http2::{ErrorCode, setting, write};

use super::http2_peer::{Http2Event, Http2Peer};
use super::{eventually, route, sidecar};

const ANSWER: [(&str, &str); 2] = [(":status", "200"), ("grpc-status", "0")];

fn client(address: SocketAddr) -> Http2Peer {
    Http2Peer::new(TcpStream::connect(address).unwrap(), true, &[])
}

/// A service that accepts `streams` concurrent calls and answers complete ones.
fn service(streams: u32) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let limit = (setting::MAX_CONCURRENT_STREAMS, streams);
            let mut peer = Http2Peer::new(stream.unwrap(), false, &[limit]);
            std::thread::spawn(move || {
                loop {
                    match peer.next() {
                        Http2Event::Headers {
                            stream, end: true, ..
                        }
                        | Http2Event::Data {
                            stream, end: true, ..
                        } => peer.headers(stream, &ANSWER, true),
                        Http2Event::End => return,
                        _ => {}
                    }
                }
            });
        }
    });
    address
}

#[test]
fn streams_over_limit_are_refused() {
    let (relay, outside) = sidecar(&route("grpc", service(100), "max_streams = 2"));
    let mut client = client(outside);
    for stream in [1, 3, 5] {
        client.call(stream, &[], false);
    }
    let refused = ErrorCode::REFUSED_STREAM.0;
    assert_eq!(
        client.next(),
        Http2Event::Reset {
            stream: 5,
            code: refused
        }
    );
    // The two accepted calls continue.
    for stream in [1, 3] {
        client.data(stream, b"x", true);
        assert_eq!(client.next().field("grpc-status"), Some("0"));
    }
    relay.stop();
}

#[test]
fn headers_only_calls_starve_nobody() {
    let (relay, outside) = sidecar(&route("grpc", service(4), ""));
    let mut greedy = client(outside);
    for stream in (1..600).step_by(2) {
        greedy.call(stream, &[], false);
    }
    eventually("all of them are there", || {
        relay.counter_value("r", "requests_total") == Some(300)
    });
    let mut modest = client(outside);
    for stream in (1..200).step_by(2) {
        let is_bare = stream % 4 == 1;
        modest.call(stream, &[], is_bare);
        if !is_bare {
            modest.data(stream, b"x", true);
        }
        assert_eq!(modest.next().field("grpc-status"), Some("0"), "{stream}");
    }
    // The calls were delayed, not lost.
    for stream in (1..600).step_by(2) {
        greedy.data(stream, b"x", true);
    }
    for _ in 0..300 {
        assert_eq!(greedy.next().field("grpc-status"), Some("0"));
    }
    relay.stop();
}

#[test]
fn headers_only_call_times_out() {
    let settings = "request_timeout = \"150ms\"";
    let (relay, outside) = sidecar(&route("grpc", service(100), settings));
    let mut client = client(outside);
    client.call(1, &[], false);
    client.call(3, &[], false);
    client.data(3, b"x", false);
    let ended = client.next();
    assert_eq!((ended.stream(), ended.field("grpc-status")), (1, Some("4")));
    assert!(
        ended
            .field("grpc-message")
            .unwrap()
            .contains("request_timeout")
    );
    assert!(matches!(client.next(), Http2Event::Reset { stream: 1, .. }));
    // A call that has sent data may take longer.
    client.data(3, b"x", true);
    assert_eq!(client.next().field("grpc-status"), Some("0"));
    relay.stop();
}

#[test]
fn rapid_reset_disconnects_only_offender() {
    let (relay, outside) = sidecar(&route("grpc", service(100), "max_streams = 50"));
    let mut stormy = client(outside);
    let mut calm = client(outside);
    stormy.send_frames(|out| {
        let block = Encoder::encode_plain([
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/a.B/C"),
        ]);
        for stream in (1..120).step_by(2) {
            write::header_block(out, stream, &block, write::EndStream(false));
            write::reset_stream(out, stream, ErrorCode::CANCEL);
        }
    });
    let mut calmed = None;
    loop {
        match stormy.next() {
            Http2Event::GoAway { code, .. } => calmed = Some(code),
            Http2Event::End => break,
            _ => {}
        }
    }
    assert_eq!(calmed, Some(ErrorCode::ENHANCE_YOUR_CALM.0));
    for stream in (1..41).step_by(2) {
        calm.call(stream, &[], true);
        assert_eq!(calm.next().field("grpc-status"), Some("0"));
    }
    relay.stop();
}
