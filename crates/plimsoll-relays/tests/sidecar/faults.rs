//! Settings of a route that affect its calls: injected faults, and the maximum length of frames.

use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use plimsoll_protocols::bolt::hessian::{self, HessianValue};

use super::http2_peer::Http2Peer;
use super::{
    BoltClient, BoltFrame, BoltFrameKind, FrameLayout, Status, echo_server, request, route, sidecar,
};

/// Asserts that `act` takes at least this long.
#[allow(clippy::disallowed_methods, reason = "a lower bound")]
fn assert_takes(least: Duration, act: impl FnOnce()) {
    let begin = Instant::now();
    act();
    let took = begin.elapsed();
    assert!(took >= least, "{took:?}");
}

/// A service over HTTP/2 that answers every call.
fn service() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || super::upstreams::service(listener, true));
    address
}

const DELAY: Duration = Duration::from_millis(150);

#[test]
fn delay_fault_loses_no_calls() {
    let fault = "fault = { delay = \"150ms\" }";
    let (relay, outside) = sidecar(&route("bolt", echo_server(), fault));
    let mut client = BoltClient::connect(outside);
    assert_takes(DELAY, || {
        for id in 1..=20 {
            client.send(request(FrameLayout::V1, id, b"\x01x"));
        }
        let mut ids: Vec<u32> = (0..20).map(|_| client.next_answer().1).collect();
        ids.sort_unstable();
        assert_eq!(ids, Vec::from_iter(1..=20));
    });
    assert_eq!(relay.counter_value("r", "faults_delayed_total"), Some(20));
    relay.stop();

    let (relay, outside) = sidecar(&route("grpc", service(), fault));
    let mut client = Http2Peer::new(TcpStream::connect(outside).unwrap(), true, &[]);
    assert_takes(DELAY, || {
        client.call(1, &[], true);
        client.call(3, &[], false);
        client.data(3, b"more", false);
        client.data(3, b"and more", true);
        for _ in 0..2 {
            assert_eq!(client.next().field("grpc-status"), Some("0"));
        }
    });
    relay.stop();

    let (relay, outside) = sidecar(&route("tcp", echo_server(), fault));
    let mut client = BoltClient::connect(outside);
    assert_takes(DELAY, || {
        client.send(request(FrameLayout::V1, 1, b"\x01x"));
        assert_eq!(client.next_answer().1, 1);
    });
    assert_eq!(relay.counter_value("r", "faults_delayed_total"), Some(1));
    relay.stop();
}

#[test]
fn abort_fault_hits_configured_share() {
    let all = "fault = { abort_share = 1.0 }";
    let half = "fault = { abort_share = 0.5 }";
    let (relay, outside) = sidecar(&route("bolt", echo_server(), half));
    let mut client = BoltClient::connect(outside);
    let failed = (0..400)
        .filter(|id| {
            client.send(request(FrameLayout::V1, *id, b"\x01x"));
            let status = client.next_answer().2;
            assert!(status == 0 || status == Status::ServerException.number());
            status != 0
        })
        .count();
    assert!((100..300).contains(&failed), "{failed}");
    let counted = relay.counter_value("r", "faults_aborted_total");
    assert_eq!(counted, Some(failed as u64));
    relay.stop();

    let (relay, outside) = sidecar(&route("grpc", service(), all));
    let mut client = Http2Peer::new(TcpStream::connect(outside).unwrap(), true, &[]);
    client.call(1, &[], true);
    let answer = client.next();
    assert_eq!(answer.field("grpc-status"), Some("14"));
    assert!(
        answer
            .field("grpc-message")
            .unwrap()
            .contains("abort_share")
    );
    relay.stop();

    let (relay, outside) = sidecar(&route("tcp", echo_server(), all));
    let mut client = TcpStream::connect(outside).unwrap();
    assert!(!matches!(client.read(&mut [0; 8]), Ok(1..)));
    relay.stop();
}

#[test]
fn frames_pass_up_to_max_frame() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let upstream = listener.local_addr().unwrap();
    // Larger than frames may be by default.
    let content = vec![7; 20_000_000];
    let (relay, outside) = sidecar(&route("bolt", upstream, "max_frame = \"32MiB\""));
    let mut client = BoltClient::connect(outside);
    let sent = content.clone();
    let mut writer = client.stream.try_clone().unwrap();
    let sending = std::thread::spawn(move || {
        let mut wire = Vec::new();
        request(FrameLayout::V1, 9, &sent).write(&mut wire);
        std::io::Write::write_all(&mut writer, &wire).unwrap();
        wire.len()
    });
    let mut held = listener.accept().unwrap().0;
    let mut wire = vec![0; sending.join().unwrap()];
    held.read_exact(&mut wire).unwrap();
    assert!(wire.ends_with(&content));
    let id = u32::from_be_bytes([wire[5], wire[6], wire[7], wire[8]]);
    let mut answer = Vec::new();
    BoltFrame::status_response(FrameLayout::V1, id, 1, Status::Success).write(&mut answer);
    std::io::Write::write_all(&mut held, &answer).unwrap();
    assert_eq!(client.next_answer().1, 9);
    relay.stop();

    let (relay, outside) = sidecar(&route("bolt", echo_server(), "max_frame = \"4KiB\""));
    let mut good = BoltClient::connect(outside);
    good.send(request(FrameLayout::V1, 1, &[7; 4096]));
    assert_eq!(good.next_answer().1, 1);
    relay.stop();
}

#[test]
fn oversized_frame_fails_only_own_call() {
    let codec_exception = Status::CodecException.number();
    let (relay, outside) = sidecar(&route("bolt", echo_server(), "max_frame = \"4KiB\""));
    for form in [FrameLayout::V1, FrameLayout::V2, FrameLayout::V2_CRC] {
        let mut client = BoltClient::connect(outside);
        client.send(request(form, 1, &[7; 100]));
        // Larger than one read, and than what may be queued for a connection.
        client.send(request(form, 2, &[7; 3_000_000]));
        client.send(BoltFrame {
            kind: BoltFrameKind::Oneway { timeout: -1 },
            ..request(form, 3, &[7; 4097])
        });
        client.send(request(form, 4, &[7; 4097]));
        client.send(request(form, 5, &[7; 4096]));
        let mut answers: Vec<_> = (0..4).map(|_| client.next_answer()).collect();
        answers.sort_by_key(|answer| answer.1);
        let statuses: Vec<_> = answers.iter().map(|answer| (answer.1, answer.2)).collect();
        let expected = [(1, 0), (2, codec_exception), (4, codec_exception), (5, 0)];
        assert_eq!(statuses, expected);
        for refused in [&answers[1], &answers[2]] {
            let text = hessian::decode(&refused.3).unwrap();
            let HessianValue::String(text) = text else {
                panic!("{text:?}");
            };
            assert!(text.contains("4096 bytes (max_frame)"), "{text}");
        }
        assert_eq!(answers[3].3, [7; 4096]);
    }
    assert_eq!(relay.counter_value("r", "frames_too_long_total"), Some(9));
    assert_eq!(relay.counter_value("r", "malformed_total"), Some(0));
    relay.stop();

    // An answer that is too long fails only its own call.
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let (relay, outside) = sidecar(&route(
        "bolt",
        upstream.local_addr().unwrap(),
        "max_frame = \"4KiB\"",
    ));
    let mut client = BoltClient::connect(outside);
    client.send(request(FrameLayout::V1, 1, &[7; 10]));
    client.send(request(FrameLayout::V1, 2, &[7; 10]));
    let mut server = BoltClient {
        stream: upstream.accept().unwrap().0,
        bytes: Vec::new(),
    };
    let ids = [server.next_frame().2, server.next_frame().2];
    for (id, length) in ids.into_iter().zip([1_000_000, 10]) {
        server.send(BoltFrame {
            content: &vec![7; length],
            ..BoltFrame::status_response(FrameLayout::V1, id, 1, Status::Success)
        });
    }
    let answers = [client.next_answer(), client.next_answer()];
    let statuses = answers.map(|answer| (answer.1, answer.2));
    assert_eq!(statuses, [(1, codec_exception), (2, 0)]);
    relay.stop();
}
