//! gRPC through sidecars, with peers that behave well and badly.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use plimsoll_protocols::grpc::client::{GrpcConnection, ServerEndpoint};
use plimsoll_protocols::grpc::echo_check::{ECHO_METHODS, EchoCheck, run};
use plimsoll_protocols::grpc::target::echo::EchoOptions;
use plimsoll_serving::build_runtime;
use plimsoll_serving::reference::default_flags;
use plimsoll_wire::http2::{ErrorCode, kind, setting, write};

use super::http2_peer::{Http2Event, Http2Peer};
use super::{certificates, eventually, files, route, sidecar, start_server};

const ANSWER: [(&str, &str); 2] = [(":status", "200"), ("content-type", "application/grpc")];

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn client(address: SocketAddr) -> Http2Peer {
    Http2Peer::new(TcpStream::connect(address).unwrap(), true, &[])
}

fn upstream(listener: &TcpListener, settings: &[(u16, u32)]) -> Http2Peer {
    Http2Peer::new(listener.accept().unwrap().0, false, settings)
}

/// The service grpc.examples.echo.Echo.
fn echo_server() -> SocketAddr {
    start_server(default_flags::<EchoOptions>)
}

#[test]
fn call_types_pass_one_or_two_sidecars() {
    let folder = certificates();
    let tls = |key, who| files(key, folder.path(), who);
    let upstream = echo_server();
    let (one, plain) = sidecar(&route("grpc", upstream, ""));
    let (server, middle) = sidecar(&route("grpc", upstream, &tls("listen_tls", "server")));
    let (outer, pair) = sidecar(&route("grpc", middle, &tls("upstream_tls", "client")));
    let check = |messages: usize, length: usize| EchoCheck {
        message: "x".repeat(length),
        messages: 10,
        sent: messages,
        deadline: Duration::from_secs(20),
    };
    for address in [plain, pair] {
        build_runtime(Some(1)).unwrap().block_on(async {
            let server = ServerEndpoint {
                addresses: [address.into()].into(),
                tls: None,
                authority: "localhost".to_owned(),
                metadata: Vec::new(),
                tunnel: None,
                connect_timeout: Duration::from_secs(10),
            };
            // Two connections share one upstream connection.
            for _ in 0..2 {
                let connection = GrpcConnection::open(&server).await.unwrap();
                for case in ECHO_METHODS {
                    for check in [check(10, 20), check(40, 60_000)] {
                        let result = run(&connection, case, &check).await;
                        assert_eq!(result.problems, [""; 0], "{case} at {address}");
                        assert_eq!(result.status, "OK");
                    }
                }
            }
        });
    }
    let counted = |name| outer.counter_value("r", name).unwrap();
    assert_eq!(counted("connections_accepted_total"), 2);
    assert_eq!(counted("upstream_connects_total"), 1);
    assert_eq!(
        (counted("requests_total"), counted("answers_total")),
        (16, 16)
    );
    assert_eq!(counted("malformed_total"), 0);
    for sidecar in [one, outer, server] {
        sidecar.stop();
    }
}

#[test]
fn streams_renumbered_and_frames_forwarded_immediately() {
    let (listener, address) = listener();
    let (relay, outside) = sidecar(&route("grpc", address, ""));
    let (mut a, mut b) = (client(outside), client(outside));
    a.call(1, &[("x-who", "a"), ("grpc-timeout", "5S")], false);
    let mut service = upstream(&listener, &[]);
    let first = service.next();
    assert_eq!((first.stream(), first.field("x-who")), (1, Some("a")));
    assert_eq!(first.field("grpc-timeout"), Some("5S"));
    b.call(1, &[("x-who", "b")], false);
    let second = service.next();
    assert_eq!((second.stream(), second.field("x-who")), (3, Some("b")));
    // Messages alternate: each is sent after the previous one has arrived.
    for round in 0..3u8 {
        b.data(1, &[round; 3], round == 2);
        assert_eq!(
            service.next(),
            Http2Event::Data {
                stream: 3,
                data: vec![round; 3],
                end: round == 2
            }
        );
        if round == 0 {
            service.headers(3, &[ANSWER[0], ANSWER[1], ("timestamp", "now")], false);
            assert_eq!(b.next().field("timestamp"), Some("now"));
        }
        service.data(3, &[round; 5], false);
        assert_eq!(
            b.next(),
            Http2Event::Data {
                stream: 1,
                data: vec![round; 5],
                end: false
            }
        );
    }
    service.headers(3, &[("grpc-status", "0"), ("timestamp", "then")], true);
    let trailers = b.next();
    assert_eq!(trailers.field("timestamp"), Some("then"));
    assert!(matches!(trailers, Http2Event::Headers { end: true, .. }));
    // Resets are passed on in both directions.
    a.send_frames(|out| write::reset_stream(out, 1, ErrorCode::CANCEL));
    assert_eq!(service.next(), Http2Event::Reset { stream: 1, code: 8 });
    a.call(3, &[], false);
    assert_eq!(service.next().stream(), 5);
    service.send_frames(|out| write::reset_stream(out, 5, ErrorCode::ENHANCE_YOUR_CALM));
    assert_eq!(
        a.next(),
        Http2Event::Reset {
            stream: 3,
            code: 11
        }
    );
    // The answer ends before the request does.
    a.call(5, &[], false);
    assert_eq!(service.next().stream(), 7);
    service.headers(7, &[ANSWER[0], ANSWER[1], ("grpc-status", "5")], true);
    assert_eq!(a.next().field("grpc-status"), Some("5"));
    assert_eq!(a.next(), Http2Event::Reset { stream: 5, code: 0 });
    assert_eq!(service.next(), Http2Event::Reset { stream: 7, code: 8 });
    let counted = |name| relay.counter_value("r", name).unwrap();
    assert_eq!(counted("cancelled_by_client_total"), 1);
    assert_eq!(counted("reset_by_upstream_total"), 1);
    relay.stop();
}

#[test]
fn slow_reader_delays_only_own_call() {
    let (listener, address) = listener();
    let (relay, outside) = sidecar(&route("grpc", address, ""));
    // Each stream has a receive window of its own, which stays closed.
    let stream = TcpStream::connect(outside).unwrap();
    let mut slow = Http2Peer::new(stream, true, &[(setting::INITIAL_WINDOW_SIZE, 10)]);
    slow.call(1, &[], true);
    let mut service = upstream(&listener, &[]);
    assert_eq!(service.next().stream(), 1);
    service.headers(1, &ANSWER, false);
    let chunk = vec![7; 10_000];
    for _ in 0..6 {
        service.data(1, &chunk, false);
    }
    let mut quick = client(outside);
    quick.call(1, &[], true);
    assert_eq!(service.next().stream(), 3);
    service.headers(3, &ANSWER, false);
    service.data(3, b"at once", false);
    service.headers(3, &[("grpc-status", "0")], true);
    assert_eq!(quick.next().field(":status"), Some("200"));
    assert!(matches!(quick.next(), Http2Event::Data { data, .. } if data == b"at once"));
    assert_eq!(quick.next().field("grpc-status"), Some("0"));
    // The slow client reads now: all data arrives in order, the trailers last.
    service.headers(1, &[("grpc-status", "0")], true);
    assert_eq!(slow.next().field(":status"), Some("200"));
    assert!(matches!(slow.next(), Http2Event::Data { data, .. } if data.len() == 10));
    slow.send_frames(|out| {
        write::window_update(out, 1, 1 << 20);
        write::window_update(out, 0, 1 << 20);
    });
    let mut received = 10;
    loop {
        match slow.next() {
            Http2Event::Data { data, .. } => received += data.len(),
            came => {
                assert_eq!(came.field("grpc-status"), Some("0"));
                break;
            }
        }
    }
    assert_eq!(received, 60_000);
    relay.stop();
}

#[test]
fn upstream_failure_or_overload_returns_unavailable() {
    let (listener, address) = listener();
    let (relay, outside) = sidecar(&route("grpc", address, "max_in_flight = 2"));
    let mut client = client(outside);
    for stream in [1, 3, 5] {
        client.call(stream, &[], true);
    }
    let refused = client.next();
    assert_eq!(
        (refused.stream(), refused.field("grpc-status")),
        (5, Some("14"))
    );
    assert!(refused.field("grpc-message").unwrap().contains("too many"));
    let mut service = upstream(&listener, &[]);
    assert_eq!((service.next().stream(), service.next().stream()), (1, 3));
    // One call has begun its answer, the other has not.
    service.headers(1, &ANSWER, false);
    service.data(1, b"half", false);
    assert_eq!(client.next().field(":status"), Some("200"));
    assert!(matches!(client.next(), Http2Event::Data { .. }));
    drop(service);
    let mut ends: Vec<Http2Event> = (0..2).map(|_| client.next()).collect();
    ends.sort_by_key(Http2Event::stream);
    for (end, (stream, status)) in ends.iter().zip([(1, None), (3, Some("200"))]) {
        assert_eq!((end.stream(), end.field(":status")), (stream, status));
        assert_eq!(end.field("grpc-status"), Some("14"));
        assert!(matches!(end, Http2Event::Headers { end: true, .. }));
    }
    // The upstream comes back, and then goes away for good.
    client.call(7, &[], true);
    drop(upstream(&listener, &[]));
    assert_eq!(client.next().field("grpc-status"), Some("14"));
    drop(listener);
    for stream in [9, 11] {
        client.call(stream, &[], true);
        assert_eq!(client.next().field("grpc-status"), Some("14"));
    }
    // A call that is not gRPC gets an HTTP status.
    client.headers(
        13,
        &[(":method", "GET"), (":scheme", "http"), (":path", "/")],
        true,
    );
    let answer = client.next();
    assert_eq!(
        (answer.field(":status"), answer.field("grpc-status")),
        (Some("503"), None)
    );
    let counted = |name| relay.counter_value("r", name).unwrap();
    assert_eq!(counted("answered_busy_total"), 1);
    assert!(counted("answered_connection_closed_total") >= 2);
    assert_eq!(
        (counted("requests_total"), counted("answers_total")),
        (7, 7)
    );
    relay.stop();
}

#[test]
fn stream_limit_queues_and_goaway_moves_calls() {
    let (listener, address) = listener();
    let (relay, outside) = sidecar(&route("grpc", address, ""));
    let mut client = client(outside);
    for stream in [1, 3, 5] {
        client.call(stream, &[], true);
    }
    // The upstream accepts one call at a time.
    let mut service = upstream(&listener, &[(setting::MAX_CONCURRENT_STREAMS, 1)]);
    assert_eq!(service.next().stream(), 1);
    service.headers(1, &[ANSWER[0], ("grpc-status", "0")], true);
    assert_eq!(service.next().stream(), 3);
    assert_eq!(client.next().stream(), 1);
    // The upstream sends GOAWAY without having processed the second call: that one, and the third,
    // which it never got, move to the next connection.
    service.send_frames(|out| write::goaway(out, 1, ErrorCode::NO_ERROR, b""));
    let mut next = upstream(&listener, &[]);
    for (there, here) in [(1, 3), (3, 5)] {
        assert_eq!(next.next().stream(), there);
        next.headers(there, &[ANSWER[0], ("grpc-status", "0")], true);
        assert_eq!(client.next().stream(), here);
    }
    assert_eq!(
        service.next(),
        Http2Event::End,
        "a connection without calls"
    );
    // Calls in flight finish on their connection; new ones use another.
    client.call(7, &[], true);
    assert_eq!(next.next().stream(), 5);
    next.send_frames(|out| {
        write::goaway(out, (1 << 31) - 1, ErrorCode::NO_ERROR, b"");
        // The answer comes once the previous frame was processed.
        write::frame_header(out, 8, kind::PING, 0, 0);
        out.extend_from_slice(b"goneaway");
    });
    assert_eq!(next.next(), Http2Event::PingAck);
    client.call(9, &[], true);
    let mut third = upstream(&listener, &[]);
    assert_eq!(third.next().stream(), 1);
    next.headers(5, &[ANSWER[0], ("grpc-status", "0")], true);
    assert_eq!(client.next().stream(), 7);
    third.headers(1, &[ANSWER[0], ("grpc-status", "0")], true);
    assert_eq!(client.next().stream(), 9);
    relay.stop();
}

#[test]
fn deadlines_expire_and_idle_upstreams_pinged() {
    let (listener, address) = listener();
    let more = "timeout = \"400ms\"\nheartbeat = \"200ms\"";
    let (relay, outside) = sidecar(&route("grpc", address, more));
    let mut client = client(outside);
    client.call(1, &[("grpc-timeout", "100m")], true);
    client.call(3, &[("grpc-timeout", "1H")], true);
    let mut service = upstream(&listener, &[]);
    assert_eq!((service.next().stream(), service.next().stream()), (1, 3));
    for stream in [1, 3] {
        let answer = client.next();
        assert_eq!(
            (answer.stream(), answer.field("grpc-status")),
            (stream, Some("4"))
        );
        let mut came = service.next();
        while came == Http2Event::Ping {
            came = service.next();
        }
        assert_eq!(came, Http2Event::Reset { stream, code: 8 });
    }
    assert_eq!(relay.counter_value("r", "answered_timeout_total"), Some(2));
    assert_eq!(service.next(), Http2Event::Ping);
    relay.stop();
}

#[test]
fn client_disconnect_resets_upstream_calls() {
    let (listener, address) = listener();
    let (relay, outside) = sidecar(&route("grpc", address, ""));
    let mut one = client(outside);
    one.call(1, &[], false);
    one.call(3, &[], true);
    let mut service = upstream(&listener, &[]);
    assert_eq!((service.next().stream(), service.next().stream()), (1, 3));
    drop(one);
    let mut reset: Vec<u32> = (0..2).map(|_| service.next().stream()).collect();
    reset.sort_unstable();
    assert_eq!(reset, [1, 3]);
    // Invalid bytes end only their own connection, with a reason over HTTP/2.
    let mut bad = client(outside);
    bad.data(1, b"before any headers", true);
    assert_eq!(
        bad.next(),
        Http2Event::GoAway {
            last_stream: 0,
            code: 1
        }
    );
    assert_eq!(bad.next(), Http2Event::End);
    let mut worse = TcpStream::connect(outside).unwrap();
    std::io::Write::write_all(&mut worse, b"GET / HTTP/1.1\r\n\r\n").unwrap();
    eventually("garbage is counted", || {
        relay.counter_value("r", "malformed_total") == Some(2)
    });
    // A request that violates HTTP is refused alone.
    let mut good = client(outside);
    good.headers(1, &[(":path", "/no.method")], true);
    assert_eq!(good.next(), Http2Event::Reset { stream: 1, code: 1 });
    good.call(3, &[], true);
    assert_eq!(service.next().stream(), 5);
    // An answer that violates HTTP fails its call alone.
    service.data(5, b"no headers", true);
    assert_eq!(good.next().field("grpc-status"), Some("13"));
    relay.stop();
}

#[test]
fn sidecar_shutdown_drains_calls() {
    let (listener, address) = listener();
    let (relay, outside) = sidecar(&route("grpc", address, ""));
    let mut client = client(outside);
    client.call(1, &[], true);
    let mut service = upstream(&listener, &[]);
    assert_eq!(service.next().stream(), 1);
    let stopping = thread::spawn(move || relay.stop());
    let announced = client.next();
    let last_stream = (1 << 31) - 1;
    assert_eq!(
        announced,
        Http2Event::GoAway {
            last_stream,
            code: 0
        }
    );
    assert_eq!(
        client.next(),
        Http2Event::GoAway {
            last_stream: 1,
            code: 0
        }
    );
    // The client knows that this stream comes too late and is not served.
    client.call(3, &[], true);
    service.headers(1, &[ANSWER[0], ("grpc-status", "0")], true);
    assert_eq!(client.next().stream(), 1);
    stopping.join().unwrap();
    assert_eq!(client.next(), Http2Event::End);
}
