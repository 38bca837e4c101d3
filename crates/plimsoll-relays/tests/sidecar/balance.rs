//! Balancing of calls over several upstreams, and upstreams that are slow.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use plimsoll_protocols::bolt::frame::DEFAULT_MAX_CONTENT_BYTES;
use plimsoll_protocols::bolt::{BoltFrame, BoltFrameKind, FrameLayout, Status};

use super::http2_peer::{Http2Event, Http2Peer};
use super::{BoltClient, echo_server, eventually, request, route, sidecar};

/// Answers every request with its content as soon as it may read.
struct BoltService {
    address: SocketAddr,
    answered: Arc<AtomicU64>,
    read: mpsc::Sender<()>,
}

fn bolt_service() -> BoltService {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (read, may_read) = mpsc::channel();
    let answered = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&answered);
    thread::spawn(move || {
        let _ = may_read.recv();
        for stream in listener.incoming() {
            let (mut stream, counter) = (stream.unwrap(), Arc::clone(&counter));
            thread::spawn(move || {
                let (mut bytes, mut buffer) = (Vec::new(), vec![0; 65_536]);
                while let Ok(read @ 1..) = stream.read(&mut buffer) {
                    bytes.extend_from_slice(&buffer[..read]);
                    let (mut at, mut answers) = (0, Vec::new());
                    while let Some((frame, length)) =
                        BoltFrame::parse(&bytes[at..], DEFAULT_MAX_CONTENT_BYTES).unwrap()
                    {
                        let status = Status::Success.number();
                        BoltFrame {
                            kind: BoltFrameKind::Response { status },
                            ..frame
                        }
                        .write(&mut answers);
                        counter.fetch_add(1, Ordering::Relaxed);
                        at += length;
                    }
                    bytes.drain(..at);
                    if stream.write_all(&answers).is_err() {
                        return;
                    }
                }
            });
        }
    });
    BoltService {
        address,
        answered,
        read,
    }
}

fn two_upstreams(protocol: &str, first: SocketAddr, second: SocketAddr) -> String {
    format!(
        "[[route]]\nname = \"r\"\nprotocol = \"{protocol}\"\nlisten = \"127.0.0.1:0\"\n\
         upstream = [\"{first}\", \"{second}\"]\n"
    )
}

#[test]
fn calls_are_balanced_across_upstreams() {
    let services = [bolt_service(), bolt_service()];
    for service in &services {
        service.read.send(()).unwrap();
    }
    let (relay, outside) = sidecar(&two_upstreams(
        "bolt",
        services[0].address,
        services[1].address,
    ));
    // One client on one connection: calls are balanced, not connections.
    let mut client = BoltClient::connect(outside);
    for id in 0..400 {
        client.send(request(FrameLayout::V1, id, b"\x01x"));
        assert_eq!(client.next_answer().2, 0);
    }
    let shares = services.map(|service| service.answered.load(Ordering::Relaxed));
    // A fair choice gives fewer than 120 of 400 once in 10¹⁵ runs.
    assert!(shares.iter().all(|share| *share > 120), "{shares:?}");
    assert_eq!(shares.iter().sum::<u64>(), 400);
    relay.stop();
}

#[test]
fn calls_avoid_dead_upstream() {
    let good = bolt_service();
    good.read.send(()).unwrap();
    for _ in 0..8 {
        let dead = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = dead.local_addr().unwrap();
        drop(dead);
        let (relay, outside) = sidecar(&two_upstreams("bolt", address, good.address));
        let mut client = BoltClient::connect(outside);
        for id in 0..20 {
            client.send(request(FrameLayout::V1, id, b"\x01x"));
            assert_eq!(client.next_answer().2, 0, "call {id}");
        }
        relay.stop();
    }
}

#[test]
fn stalled_upstream_delays_without_failing() {
    const CALLERS: u32 = 100;
    let content = vec![b'x'; 64 << 10];
    let service = bolt_service();
    let (relay, outside) = sidecar(&route("bolt", service.address, ""));
    let callers: Vec<_> = (0..CALLERS)
        .map(|id| {
            let content = content.clone();
            thread::spawn(move || {
                let mut client = BoltClient::connect(outside);
                client.send(request(FrameLayout::V1, id, &content));
                let (_, answered, status, echoed) = client.next_answer();
                (answered == id && echoed == content, status)
            })
        })
        .collect();
    // More than a megabyte waits in the sidecar, the rest at the callers.
    eventually("the sidecar has read as much as its limits allow", || {
        relay.counter_value("r", "requests_total") >= Some(16)
    });
    service.read.send(()).unwrap();
    for caller in callers {
        assert_eq!(caller.join().unwrap(), (true, 0));
    }
    assert_eq!(relay.counter_value("r", "answered_busy_total"), Some(0));
    relay.stop();
}

#[test]
fn stalled_grpc_upstream_delays_without_failing() {
    const CALLERS: usize = 100;
    const LENGTH: usize = 60_000;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (relay, outside) = sidecar(&route("grpc", listener.local_addr().unwrap(), ""));
    let mut callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let stream = TcpStream::connect(outside).unwrap();
            let mut client = Http2Peer::new(stream, true, &[]);
            client.call(1, &[], false);
            let data = vec![b'x'; LENGTH];
            let mut pieces = data.chunks(16_000).peekable();
            while let Some(piece) = pieces.next() {
                client.data(1, piece, pieces.peek().is_none());
            }
            client
        })
        .collect();
    eventually("all calls are there", || {
        relay.counter_value("r", "requests_total") == Some(CALLERS as u64)
    });
    let window = (plimsoll_wire::http2::setting::INITIAL_WINDOW_SIZE, 1 << 20);
    let mut service = Http2Peer::new(listener.accept().unwrap().0, false, &[window]);
    service.send_frames(|out| plimsoll_wire::http2::write::window_update(out, 0, 1 << 30));
    let (mut bytes, mut ended) = (0, 0);
    while ended < CALLERS {
        if let Http2Event::Data { stream, data, end } = service.next() {
            bytes += data.len();
            if end {
                let fields = [(":status", "200"), ("grpc-status", "0")];
                service.headers(stream, &fields, true);
                ended += 1;
            }
        }
    }
    assert_eq!(bytes, CALLERS * LENGTH);
    for client in &mut callers {
        assert_eq!(client.next().field("grpc-status"), Some("0"));
    }
    relay.stop();
}

#[test]
fn half_closed_client_gets_responses() {
    let service = bolt_service();
    let (relay, outside) = sidecar(&route("bolt", service.address, ""));
    let mut client = BoltClient::connect(outside);
    for id in 0..3 {
        client.send(request(FrameLayout::V1, id, b"\x01x"));
    }
    client.stream.shutdown(Shutdown::Write).unwrap();
    eventually("the requests are passed on", || {
        relay.counter_value("r", "requests_total") == Some(3)
    });
    service.read.send(()).unwrap();
    let mut answered: Vec<u32> = (0..3).map(|_| client.next_answer().1).collect();
    answered.sort_unstable();
    assert_eq!(answered, [0, 1, 2]);
    assert_eq!(client.stream.read(&mut [0; 8]).unwrap(), 0);
    eventually("the connection is gone", || {
        relay.counter_value("r", "connections_open") == Some(0)
    });
    relay.stop();
}

#[test]
fn half_closed_client_closes_after_error() {
    let dead = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = dead.local_addr().unwrap();
    drop(dead);
    let (relay, outside) = sidecar(&route("bolt", address, ""));
    let mut client = BoltClient::connect(outside);
    client.send(request(FrameLayout::V1, 1, b"\x01x"));
    client.stream.shutdown(Shutdown::Write).unwrap();
    // The request waits for a connection that cannot be made, and nothing else follows.
    assert_eq!(client.next_answer().2, Status::NoProcessor.number());
    assert_eq!(client.stream.read(&mut [0; 8]).unwrap(), 0);
    eventually("the connection is gone", || {
        relay.counter_value("r", "connections_open") == Some(0)
    });
    relay.stop();
}

#[test]
fn connection_goes_to_reachable_upstream() {
    let folder = tempfile::tempdir().unwrap();
    let nobody = folder.path().join("nobody");
    let (relay, outside) = sidecar(&format!(
        "[[route]]\nname = \"r\"\nprotocol = \"tcp\"\nlisten = \"127.0.0.1:0\"\n\
         upstream = [\"unix:{}\", \"{}\"]\n",
        nobody.display(),
        echo_server()
    ));
    for _ in 0..4 {
        let mut client = BoltClient::connect(outside);
        client.send(request(FrameLayout::V1, 1, b"\x01x"));
        assert_eq!(client.next_answer().2, 0);
    }
    assert_eq!(
        relay.counter_value("r", "answered_no_upstream_total"),
        Some(0)
    );
    relay.stop();
}
