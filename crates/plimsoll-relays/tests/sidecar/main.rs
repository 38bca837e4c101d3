//! Sidecars on real sockets: one, two with mutual TLS between them, and upstreams that misbehave.

#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../../../plimsoll-plugin/tests/built/mod.rs"]
mod built;
#[path = "../support/mod.rs"]
mod support;

mod balance;
mod by_itself;
mod descriptors;
mod fairness;
mod faults;
mod http2;
mod http2_peer;
mod keepalive;
mod malformed;
mod malformed_bolt;
mod plugins;
mod poison;
mod ports;
mod reload;
mod resending;
mod shapes;
mod upstreams;
mod versions;

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::Duration;

use plimsoll_protocols::bolt::frame::DEFAULT_MAX_CONTENT_BYTES;
use plimsoll_protocols::bolt::target::BoltOptions;
use plimsoll_protocols::bolt::{BoltCommand, BoltFrame, BoltFrameKind, FrameLayout, Status};
use plimsoll_serving::reference::{ReferenceServer, ServeContext, default_flags};
use plimsoll_serving::{ListenOptions, build_runtime};

use support::{admin_page, certificates, eventually, files, route, sidecar};

/// Starts an echo server for Bolt.
fn echo_server() -> SocketAddr {
    start_server(default_flags::<BoltOptions>)
}

/// Starts a server that lives as long as the process; returns its address.
fn start_server<R: ReferenceServer + 'static>(options: fn() -> R) -> SocketAddr {
    let listen = ListenOptions {
        address: ([127, 0, 0, 1], 0).into(),
        ..ListenOptions::default()
    };
    let bound = listen.bind().unwrap();
    let address = bound.address().tcp_address().unwrap();
    thread::spawn(move || {
        let place = ServeContext {
            bound,
            workers: None,
            stopped: Box::pin(std::future::pending()),
        };
        let serving = async { options().start(place)?.await };
        build_runtime(Some(1)).unwrap().block_on(serving).unwrap();
    });
    address
}

struct BoltClient {
    stream: TcpStream,
    bytes: Vec<u8>,
}

impl BoltClient {
    fn connect(address: SocketAddr) -> BoltClient {
        let stream = TcpStream::connect(address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(120)))
            .unwrap();
        BoltClient {
            stream,
            bytes: Vec::new(),
        }
    }

    fn send(&mut self, frame: BoltFrame<'_>) {
        let mut wire = Vec::new();
        frame.write(&mut wire);
        self.stream.write_all(&wire).unwrap();
    }

    /// Returns layout, id, status and content of the next answer.
    fn next_answer(&mut self) -> (FrameLayout, u32, u16, Vec<u8>) {
        let (form, kind, id, content) = self.next_frame();
        let BoltFrameKind::Response { status } = kind else {
            panic!("{kind:?}");
        };
        (form, id, status, content)
    }

    /// Returns layout, kind, id and content of the next frame.
    fn next_frame(&mut self) -> (FrameLayout, BoltFrameKind, u32, Vec<u8>) {
        loop {
            if let Some((frame, length)) =
                BoltFrame::parse(&self.bytes, DEFAULT_MAX_CONTENT_BYTES).unwrap()
            {
                let seen = (frame.layout, frame.kind, frame.id, frame.content.to_vec());
                self.bytes.drain(..length);
                return seen;
            }
            let mut buffer = [0; 4096];
            let read = self.stream.read(&mut buffer).unwrap();
            assert!(read > 0, "closed");
            self.bytes.extend_from_slice(&buffer[..read]);
        }
    }
}

fn request(form: FrameLayout, id: u32, content: &[u8]) -> BoltFrame<'_> {
    BoltFrame {
        layout: form,
        command: BoltCommand::RpcRequest,
        class: b"java.lang.String",
        content,
        ..BoltFrame::heartbeat(form, id)
    }
}

#[test]
fn clients_share_connections_through_mtls_sidecars() {
    let folder = certificates();
    let tls = |key, who| files(key, folder.path(), who);
    let (server, middle) = sidecar(&route("bolt", echo_server(), &tls("listen_tls", "server")));
    let (client, outside) = sidecar(&route("bolt", middle, &tls("upstream_tls", "client")));
    let threads: Vec<_> = (0..12u32)
        .map(|n| {
            thread::spawn(move || {
                let form = [FrameLayout::V1, FrameLayout::V2, FrameLayout::V2_CRC][n as usize % 3];
                let mut client = BoltClient::connect(outside);
                let texts: Vec<Vec<u8>> = (0..50u32)
                    .map(|i| {
                        let text = format!("{n:02}-{i:02}");
                        [&[text.len() as u8], text.as_bytes()].concat()
                    })
                    .collect();
                // Every client uses the same ids and sends all requests at once.
                for (i, text) in texts.iter().enumerate() {
                    client.send(BoltFrame {
                        layout: form,
                        ..request(form, i as u32, text)
                    });
                }
                client.send(BoltFrame::heartbeat(form, 777));
                let mut seen = vec![false; texts.len()];
                for _ in 0..=texts.len() {
                    let (answered, id, status, content) = client.next_answer();
                    assert_eq!(status, 0);
                    if id == 777 {
                        continue;
                    }
                    assert_eq!((answered, &content), (form, &texts[id as usize]));
                    assert!(!std::mem::replace(&mut seen[id as usize], true));
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let counted = |name| client.counter_value("r", name).unwrap();
    assert_eq!(counted("connections_accepted_total"), 12);
    assert_eq!(counted("upstream_connects_total"), 3, "one a layout");
    assert_eq!(
        (counted("requests_total"), counted("answers_total")),
        (600, 600)
    );
    assert_eq!(server.counter_value("r", "requests_total"), Some(600));
    client.stop();
    server.stop();
}

#[test]
fn malformed_requests_close_only_own_connection() {
    let (relay, outside) = sidecar(&route("bolt", echo_server(), ""));
    let mut good = BoltClient::connect(outside);
    let long = vec![b'a'; 40_000];
    let bad = |class: &'static [u8], header: &[u8]| {
        let mut wire = Vec::new();
        let frame = BoltFrame {
            class,
            header,
            ..request(FrameLayout::V1, 1, b"\x01x")
        };
        frame.write(&mut wire);
        let mut client = BoltClient::connect(outside);
        client.stream.write_all(&wire).unwrap();
        let mut rest = Vec::new();
        client.stream.read_to_end(&mut rest).unwrap();
        assert_eq!(
            rest,
            b"",
            "{}",
            header[..4.min(header.len())].escape_ascii()
        );
    };
    for (id, header) in [
        &b"\0\0\0\x01a"[..],
        b"\0\0\0\x01a\0\0\0\x09b",
        b"\0\0",
        b"\xff\xff\xff\xfea",
        b"\x7f\xff\xff\xffa",
        &long,
    ]
    .into_iter()
    .enumerate()
    {
        bad(b"java.lang.String", header);
        good.send(request(FrameLayout::V1, id as u32, b"\x01x"));
        assert_eq!(good.next_answer().2, 0);
    }
    bad(long.leak(), b"");
    assert_eq!(relay.counter_value("r", "malformed_total"), Some(7));
    assert_eq!(relay.counter_value("r", "upstream_connects_total"), Some(1));
    relay.stop();
}

#[test]
fn upstream_failures_answered_and_counted() {
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = upstream.local_addr().unwrap();
    let (relay, outside) = sidecar(&route("bolt", address, "max_in_flight = 2"));
    let mut client = BoltClient::connect(outside);
    let with_timeout = |id, timeout| BoltFrame {
        kind: BoltFrameKind::Request { timeout },
        ..request(FrameLayout::V1, id, b"\x01x")
    };
    // The first call times out; calls beyond two in flight are refused.
    client.send(with_timeout(1, 300));
    client.send(with_timeout(2, 60_000));
    client.send(with_timeout(3, 60_000));
    let mut held = upstream.accept().unwrap().0;
    let number = |status: Status| status.number();
    let (_, id, status, _) = client.next_answer();
    assert_eq!((id, status), (3, number(Status::ServerThreadpoolBusy)));
    let (_, id, status, _) = client.next_answer();
    assert_eq!((id, status), (1, number(Status::Timeout)));
    // A late answer, an answer to no call, and then the upstream dies.
    let mut got = [0u8; 40];
    held.read_exact(&mut got).unwrap();
    let mut wire = Vec::new();
    let late = BoltFrame::parse(&got, DEFAULT_MAX_CONTENT_BYTES)
        .unwrap()
        .unwrap()
        .0
        .id;
    for id in [late, 12345] {
        BoltFrame::status_response(FrameLayout::V1, id, 1, Status::Success).write(&mut wire);
    }
    held.write_all(&wire).unwrap();
    eventually("stray answers are counted", || {
        relay.counter_value("r", "stray_answers_total") == Some(2)
    });
    drop(held);
    let (_, id, status, _) = client.next_answer();
    assert_eq!((id, status), (2, number(Status::ConnectionClosed)));
    let cut = relay.counter_value("r", "answered_connection_closed_total");
    assert_eq!(cut, Some(1));
    // Nothing listens any more, so every call is refused at once.
    drop(upstream);
    for id in 10..13 {
        client.send(with_timeout(id, 60_000));
        let (_, answered, status, _) = client.next_answer();
        assert_eq!((answered, status), (id, number(Status::NoProcessor)));
    }
    relay.stop();
}

#[test]
fn malformed_frames_close_only_own_connection() {
    let (relay, outside) = sidecar(&route("bolt", echo_server(), ""));
    let mut good = BoltClient::connect(outside);
    let negative = b"\x01\x01\0\x01\x01\0\0\0\x01\x01\0\0\x0b\xb8\0\x10\0\0\xff\xff\xff\xff";
    let mut wrong_crc = Vec::new();
    request(FrameLayout::V2_CRC, 1, b"\x01x").write(&mut wrong_crc);
    *wrong_crc.last_mut().unwrap() ^= 1;
    for wire in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"\x02\x09",
        negative,
        &wrong_crc[..],
    ] {
        let mut bad = TcpStream::connect(outside).unwrap();
        bad.set_read_timeout(Some(Duration::from_secs(120)))
            .unwrap();
        bad.write_all(wire).unwrap();
        assert!(!matches!(bad.read(&mut [0; 8]), Ok(1..)), "{wire:?}");
    }
    good.send(request(FrameLayout::V1, 1, b"\x01x"));
    assert_eq!(good.next_answer().3, b"\x01x");
    assert_eq!(relay.counter_value("r", "malformed_total"), Some(4));
    relay.stop();
}

#[test]
fn slow_bytes_and_duplicate_ids_answered() {
    let (relay, outside) = sidecar(&route("bolt", echo_server(), ""));
    let mut client = BoltClient::connect(outside);
    client.stream.set_nodelay(true).unwrap();
    let mut wire = Vec::new();
    request(FrameLayout::V2_CRC, 7, b"\x01x").write(&mut wire);
    for byte in &wire {
        client.stream.write_all(&[*byte]).unwrap();
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(
        client.next_answer(),
        (FrameLayout::V2_CRC, 7, 0, b"\x01x".to_vec())
    );
    // The same id is in flight three times: each is a separate call upstream.
    for text in [b"\x01a", b"\x01b", b"\x01c"] {
        client.send(request(FrameLayout::V1, 9, text));
    }
    let mut answers: Vec<_> = (0..3).map(|_| client.next_answer()).collect();
    answers.sort_by(|a, b| a.3.cmp(&b.3));
    let texts: Vec<_> = answers.iter().map(|a| (a.1, a.2, a.3[1])).collect();
    assert_eq!(texts, [(9, 0, b'a'), (9, 0, b'b'), (9, 0, b'c')]);
    relay.stop();
}

#[test]
fn tcp_route_forwards_half_close() {
    let folder = certificates();
    let tls = |key, who| files(key, folder.path(), who);
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = upstream.local_addr().unwrap();
    // Reads to the end, with a delay, and only then answers with what it read.
    thread::spawn(move || {
        for stream in upstream.incoming() {
            let mut stream = stream.unwrap();
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(200));
                let mut all = Vec::new();
                stream.read_to_end(&mut all).unwrap();
                stream.write_all(&all).unwrap();
            });
        }
    });
    let (server, middle) = sidecar(&route("tcp", address, &tls("listen_tls", "server")));
    let (client, outside) = sidecar(&route("tcp", middle, &tls("upstream_tls", "client")));
    let sent: Vec<u8> = (0..6_000_000u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let mut stream = TcpStream::connect(outside).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let mut writer = stream.try_clone().unwrap();
    let bytes = sent.clone();
    let writing = thread::spawn(move || {
        writer.write_all(&bytes).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut received = Vec::new();
    stream.read_to_end(&mut received).unwrap();
    writing.join().unwrap();
    assert!(
        received == sent,
        "{} of {} bytes",
        received.len(),
        sent.len()
    );
    eventually("closed connections are let go", || {
        client.counter_value("r", "connections_open") == Some(0)
    });
    client.stop();
    server.stop();
}

#[test]
fn certificates_reload_unless_partially_written() {
    let (old, new) = (certificates(), certificates());
    let listen = files("listen_tls", old.path(), "server");
    let (server, middle) = sidecar(&route("bolt", echo_server(), &listen));
    let call = |folder: &Path| {
        let upstream = files("upstream_tls", folder, "client");
        let (relay, outside) = sidecar(&route("bolt", middle, &upstream));
        let mut client = BoltClient::connect(outside);
        client.send(request(FrameLayout::V1, 1, b"\x01x"));
        let status = client.next_answer().2;
        relay.stop();
        status
    };
    assert_eq!(call(old.path()), 0);
    // A client with a certificate of another CA is rejected.
    assert_ne!(call(new.path()), 0);
    let certificate = old.path().join("server.crt");
    let good = fs::read(&certificate).unwrap();
    fs::write(&certificate, &good[..good.len() / 2]).unwrap();
    eventually("the half-written file is noticed", || {
        server.counter_value("r", "certificate_reload_failures_total") >= Some(1)
    });
    fs::write(&certificate, &good).unwrap();
    assert_eq!(call(old.path()), 0);
    // The whole folder is replaced, file by file.
    for name in ["ca.crt", "server.crt", "server.key"] {
        fs::remove_file(old.path().join(name)).unwrap();
        fs::copy(new.path().join(name), old.path().join(name)).unwrap();
    }
    eventually("the new certificates are in use", || call(new.path()) == 0);
    server.stop();
}

#[test]
fn admin_request_may_be_split() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let text = format!("admin = \"127.0.0.1:0\"\n{}", route("bolt", at, ""));
    let (relay, _) = sidecar(&text);
    let mut admin = TcpStream::connect(relay.admin().unwrap()).unwrap();
    admin.set_nodelay(true).unwrap();
    for piece in ["GET ", "/ready HT", "TP/1.1\r\nhost: x\r\n", "\r\n"] {
        admin.write_all(piece.as_bytes()).unwrap();
        thread::sleep(Duration::from_millis(20));
    }
    let mut answer = String::new();
    admin.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    relay.stop();
}

#[test]
fn admin_address_serves_metrics() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let text = format!("admin = \"127.0.0.1:0\"\n{}", route("bolt", at, ""));
    let (relay, outside) = sidecar(&text);
    let mut client = BoltClient::connect(outside);
    for id in 1..=3 {
        client.send(request(FrameLayout::V1, id, b"\x01x"));
    }
    let mut held = BoltClient {
        stream: listener.accept().unwrap().0,
        bytes: Vec::new(),
    };
    let mut wire = [0; 120];
    held.stream.read_exact(&mut wire).unwrap();
    for (number, status) in [(0, Status::Success), (1, Status::Timeout)] {
        let (frame, _) = BoltFrame::parse(&wire[number * 40..], DEFAULT_MAX_CONTENT_BYTES)
            .unwrap()
            .unwrap();
        let mut wire = Vec::new();
        BoltFrame::status_response(FrameLayout::V1, frame.id, 1, status).write(&mut wire);
        held.stream.write_all(&wire).unwrap();
        client.next_answer();
    }
    let page = admin_page(&relay, "/metrics");
    assert!(page.starts_with("HTTP/1.1 200 OK\r\ncontent-type: application/openmetrics-text"));
    let upstream = format!("route=\"r\",upstream=\"{at}\"");
    for line in [
        "answers_total{route=\"r\"} 2".to_owned(),
        "calls_in_flight{route=\"r\"} 1".to_owned(),
        "call_duration_seconds_count{route=\"r\"} 2".to_owned(),
        "call_duration_seconds_bucket{le=\"+Inf\",route=\"r\"} 2".to_owned(),
        "upstream_answers_total{route=\"r\",status=\"SUCCESS\"} 1".to_owned(),
        "upstream_answers_total{route=\"r\",status=\"TIMEOUT\"} 1".to_owned(),
        format!("upstream_calls_total{{{upstream}}} 3"),
        format!("upstream_connections_open{{{upstream}}} 1"),
        format!("upstream_down{{{upstream}}} 0"),
    ] {
        let line = format!("\nplimsoll_sidecar_{line}\n");
        assert!(page.contains(&line), "{line}: {page}");
    }
    // The upstream goes away with a call in flight.
    drop((held, listener));
    client.next_answer();
    eventually("connections cannot be made any more", || {
        assert_call_fails(outside);
        let page = admin_page(&relay, "/metrics");
        page.contains(&format!("upstream_down{{{upstream}}} 1\n"))
    });
    let page = admin_page(&relay, "/metrics");
    for line in [
        "calls_in_flight{route=\"r\"} 0".to_owned(),
        format!("upstream_connections_open{{{upstream}}} 0"),
        format!("upstream_calls_failed_total{{{upstream}}} 1"),
    ] {
        let line = format!("\nplimsoll_sidecar_{line}\n");
        assert!(page.contains(&line), "{line}: {page}");
    }
    relay.stop();
}

/// Sends a call that no upstream can take.
fn assert_call_fails(outside: SocketAddr) {
    let mut client = BoltClient::connect(outside);
    client.send(request(FrameLayout::V1, 1, b"\x01x"));
    assert_ne!(client.next_answer().2, 0);
}
