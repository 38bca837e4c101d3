//! PINGs on upstream connections: gRPC servers close a connection with more PINGs than they allow,
//! which loses the calls that have just arrived on it.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use plimsoll_wire::http2::{ErrorCode, write};

use super::http2_peer::{Http2Event, Http2Peer};
use super::malformed::{GoServer, SCORE, ValidClient, client};
use super::{eventually, route, sidecar};

/// Most PINGs without an answer in between that gRPC servers allow, before or during a call: the
/// first is never counted, and two violations are forgiven.
const MAX_PINGS: usize = 3;

/// An upstream that enforces this limit as grpc-go does; returns the number of its PINGs. A call
/// with `x-silent` is not answered.
fn ping_limiting_upstream() -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let pings = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&pings);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut peer = Http2Peer::new(stream.unwrap(), false, &[]);
            let mut since_answer = 0;
            loop {
                let came = peer.next();
                match came {
                    Http2Event::Ping => {
                        since_answer += 1;
                        counter.fetch_add(1, Ordering::SeqCst);
                        if since_answer > MAX_PINGS {
                            let code = ErrorCode::ENHANCE_YOUR_CALM;
                            peer.send_frames(|out| {
                                write::goaway(out, 1 << 20, code, b"too_many_pings")
                            });
                        }
                    }
                    Http2Event::Headers { stream, .. } if came.field("x-silent").is_none() => {
                        peer.headers(stream, &[(":status", "200"), ("grpc-status", "0")], true);
                        since_answer = 0;
                    }
                    Http2Event::End => break,
                    _ => {}
                }
            }
        }
    });
    (address, pings)
}

#[test]
fn silent_upstream_gets_few_pings() {
    let (upstream, pings) = ping_limiting_upstream();
    let (relay, outside) = sidecar(&route("grpc", upstream, "heartbeat = \"1ms\""));
    let mut client = client(outside);
    let pinged = |before: usize| {
        eventually("a dead connection is noticed", || {
            pings.load(Ordering::SeqCst) > before
        });
        // Time for several more PINGs.
        thread::sleep(Duration::from_millis(600));
        pings.load(Ordering::SeqCst)
    };
    let mut so_far = 0;
    for stream in [1, 5] {
        client.call(stream, &[], true);
        assert_eq!(client.next().field("grpc-status"), Some("0"));
        so_far = pinged(so_far);
        // One PING is reserved for the next call.
        client.call(stream + 2, &[("x-silent", "1")], true);
        so_far = pinged(so_far);
        client.send_frames(|out| write::reset_stream(out, stream + 2, ErrorCode::CANCEL));
    }
    assert_eq!(relay.counter_value("r", "upstream_connects_total"), Some(1));
    relay.stop();
}

#[test]
fn grpc_go_keeps_idle_connection() {
    let go = GoServer::start();
    let (relay, outside) = sidecar(&route("grpc", go.address, "heartbeat = \"1ms\""));
    let mut good = ValidClient::new(outside, SCORE);
    for _ in 0..2 {
        good.call("silence");
        // Time for a PING every tick, of which grpc-go forgives three.
        thread::sleep(Duration::from_millis(1000));
    }
    good.call("silence");
    assert_eq!(relay.counter_value("r", "upstream_connects_total"), Some(1));
    relay.stop();
}
