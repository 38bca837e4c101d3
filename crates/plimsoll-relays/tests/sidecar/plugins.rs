//! Tests of sidecars whose protocol is implemented by a plugin: in C, in Rust, and one that returns
//! nonsense.

#![allow(clippy::unwrap_used, reason = "tests")]

use crate::built;
use crate::support;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::Duration;

use plimsoll_plugin::{
    Codec, DEFAULT_MAX_FRAME_BYTES, DecodeResult, FrameKind, NewFrameKind, SenderRole,
};
use plimsoll_relays::sidecar::{Sidecar, SidecarConfig};

use support::{certificates, eventually, files, route, sidecar};

/// Statuses of the protocol x_example.
const BUSY: u32 = 2;
const UNREACHABLE: u32 = 3;
const TIMEOUT: u32 = 4;
const CLOSED: u32 = 5;

/// One end of a connection that speaks x_example.
struct PluginPeer {
    codec: Codec,
    stream: TcpStream,
    bytes: Vec<u8>,
}

impl PluginPeer {
    fn new(codec: &Codec, stream: TcpStream) -> PluginPeer {
        stream
            .set_read_timeout(Some(Duration::from_secs(120)))
            .unwrap();
        stream.set_nodelay(true).unwrap();
        PluginPeer {
            codec: codec.clone(),
            stream,
            bytes: Vec::new(),
        }
    }

    fn connect(codec: &Codec, address: SocketAddr) -> PluginPeer {
        PluginPeer::new(codec, TcpStream::connect(address).unwrap())
    }

    fn make_frame(&self, what: NewFrameKind, id: u64, payload: &[u8]) -> Vec<u8> {
        let mut wire = Vec::new();
        assert!(
            self.codec
                .make_frame(what, id, 0, payload, &mut wire)
                .unwrap()
        );
        wire
    }

    fn send(&mut self, what: NewFrameKind, id: u64, payload: &[u8]) {
        let wire = self.make_frame(what, id, payload);
        self.stream.write_all(&wire).unwrap();
    }

    /// Returns the next frame as kind, id and payload; `None` if the peer has closed.
    fn next(&mut self, from: SenderRole) -> Option<(FrameKind, u64, Vec<u8>)> {
        loop {
            let decoded = self
                .codec
                .decode(&self.bytes, from, DEFAULT_MAX_FRAME_BYTES)
                .unwrap();
            if let DecodeResult::Frame(frame) = decoded {
                let payload = self.bytes[frame.payload].to_vec();
                self.bytes.drain(..frame.length);
                return Some((frame.kind, frame.id, payload));
            }
            let mut buffer = [0; 4096];
            let read = self.stream.read(&mut buffer).unwrap_or(0);
            if read == 0 {
                return None;
            }
            self.bytes.extend_from_slice(&buffer[..read]);
        }
    }

    /// Returns status, id and payload of the next answer.
    #[track_caller]
    fn next_answer(&mut self) -> (u32, u64, Vec<u8>) {
        match self.next(SenderRole::Server) {
            Some((FrameKind::Response { status }, id, payload)) => (status, id, payload),
            other => panic!("{other:?}"),
        }
    }

    fn is_closed(&mut self) -> bool {
        is_closed(&mut self.stream)
    }
}

/// Returns whether the peer has closed the connection, rather than being silent.
fn is_closed(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0; 64]) {
        Ok(read) => read == 0,
        Err(e) => e.kind() == ErrorKind::ConnectionReset,
    }
}

/// Starts a server that answers with the payload it received: `drip` in single bytes, `hold` never.
/// It lives as long as the process.
fn echo_server(codec: &Codec) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let codec = codec.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut peer = PluginPeer::new(&codec, stream.unwrap());
            peer.stream.set_read_timeout(None).unwrap();
            thread::spawn(move || {
                while let Some((kind, id, payload)) = peer.next(SenderRole::Client) {
                    match (kind, &payload[..]) {
                        (FrameKind::Heartbeat, _) => peer.send(NewFrameKind::HeartbeatAck, id, b""),
                        (_, b"hold") => {}
                        (_, b"drip") => {
                            for byte in peer.make_frame(NewFrameKind::Response, id, &payload) {
                                peer.stream.write_all(&[byte]).unwrap();
                                thread::sleep(Duration::from_millis(1));
                            }
                        }
                        _ => peer.send(NewFrameKind::Response, id, &payload),
                    }
                }
            });
        }
    });
    address
}

fn with(plugin: &Path, more: &str) -> String {
    format!("plugin = {:?}\n{more}", plugin.display().to_string())
}

#[test]
fn c_and_rust_sidecars_share_connection() {
    let folder = certificates();
    let (c, rust) = (
        built::build_c_example(folder.path()),
        built::built_rust_example(),
    );
    let codec = Codec::load(&c).unwrap();
    let tls = |key, who| files(key, folder.path(), who);
    let (server, middle) = sidecar(&route(
        "plugin",
        echo_server(&codec),
        &with(&rust, &tls("listen_tls", "server")),
    ));
    let (client, outside) = sidecar(&route(
        "plugin",
        middle,
        &with(&c, &tls("upstream_tls", "client")),
    ));
    let threads: Vec<_> = (0..10u64)
        .map(|n| {
            let mut peer = PluginPeer::connect(&codec, outside);
            thread::spawn(move || {
                // All requests leave in one write, and every client uses the same ids.
                let texts: Vec<_> = (0..50).map(|i| format!("{n:02}-{i:02}")).collect();
                let mut wire = peer.make_frame(NewFrameKind::Heartbeat, 777, b"");
                for (i, text) in texts.iter().enumerate() {
                    wire.extend(peer.make_frame(NewFrameKind::Request, i as u64, text.as_bytes()));
                }
                peer.stream.write_all(&wire).unwrap();
                assert_eq!(
                    peer.next(SenderRole::Server),
                    Some((FrameKind::HeartbeatAck, 777, vec![]))
                );
                let mut seen = vec![false; texts.len()];
                for _ in &texts {
                    let (status, id, payload) = peer.next_answer();
                    assert_eq!((status, &payload[..]), (0, texts[id as usize].as_bytes()));
                    assert!(!std::mem::replace(&mut seen[id as usize], true));
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    for relay in [&client, &server] {
        let counted = |name| relay.counter_value("r", name).unwrap();
        assert_eq!(counted("upstream_connects_total"), 1);
        assert_eq!(counted("requests_total"), 500);
        assert_eq!(counted("answers_total"), 500);
        assert_eq!(counted("malformed_total"), 0);
    }
    client.stop();
    server.stop();
}

#[test]
fn frames_pass_in_any_pieces() {
    let folder = tempfile::tempdir().unwrap();
    for plugin in [
        built::build_c_example(folder.path()),
        built::built_rust_example(),
    ] {
        let codec = Codec::load(&plugin).unwrap();
        let (relay, outside) = sidecar(&route("plugin", echo_server(&codec), &with(&plugin, "")));
        let mut peer = PluginPeer::connect(&codec, outside);
        let wire = peer.make_frame(NewFrameKind::Request, 5, b"drip");
        for at in 1..wire.len() {
            let (first, rest) = wire.split_at(at);
            peer.stream.write_all(first).unwrap();
            // The previous piece was most likely read by now; the test also holds if not.
            thread::sleep(Duration::from_millis(2));
            peer.stream.write_all(rest).unwrap();
            assert_eq!(
                peer.next_answer(),
                (0, 5, b"drip".to_vec()),
                "split at {at}"
            );
        }
        let large = vec![b'l'; 3_000_000];
        peer.send(NewFrameKind::Request, 6, &large);
        assert_eq!(peer.next_answer(), (0, 6, large));
        relay.stop();
    }
}

#[test]
fn upstream_failures_use_plugin_statuses() {
    let folder = tempfile::tempdir().unwrap();
    let plugin = built::build_c_example(folder.path());
    let codec = Codec::load(&plugin).unwrap();
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let more = "max_in_flight = 2\ntimeout = \"2s\"";
    let (relay, outside) = sidecar(&route(
        "plugin",
        upstream.local_addr().unwrap(),
        &with(&plugin, more),
    ));
    let mut client = PluginPeer::connect(&codec, outside);
    for id in 1..=3 {
        client.send(NewFrameKind::Request, id, b"x");
    }
    assert_eq!(client.next_answer(), (BUSY, 3, vec![]));
    let mut held = PluginPeer::new(&codec, upstream.accept().unwrap().0);
    let (_, first, _) = held.next(SenderRole::Client).unwrap();
    let (_, second, _) = held.next(SenderRole::Client).unwrap();
    held.send(NewFrameKind::Response, second, b"two");
    assert_eq!(client.next_answer(), (0, 2, b"two".to_vec()));
    assert_eq!(client.next_answer(), (TIMEOUT, 1, vec![]));
    held.send(NewFrameKind::Response, first, b"late");
    eventually("late answers are counted", || {
        relay.counter_value("r", "stray_answers_total") == Some(1)
    });
    client.send(NewFrameKind::Request, 4, b"x");
    held.next(SenderRole::Client).unwrap();
    drop(held);
    assert_eq!(client.next_answer(), (CLOSED, 4, vec![]));
    drop(upstream);
    client.send(NewFrameKind::Request, 5, b"x");
    assert_eq!(client.next_answer(), (UNREACHABLE, 5, vec![]));
    relay.stop();
}

#[test]
fn idle_connections_exchange_heartbeats() {
    let folder = tempfile::tempdir().unwrap();
    let plugin = built::build_c_example(folder.path());
    let codec = Codec::load(&plugin).unwrap();
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let (relay, outside) = sidecar(&route(
        "plugin",
        upstream.local_addr().unwrap(),
        &with(&plugin, "heartbeat = \"100ms\""),
    ));
    let mut client = PluginPeer::connect(&codec, outside);
    client.send(NewFrameKind::Request, 1, b"x");
    let mut held = PluginPeer::new(&codec, upstream.accept().unwrap().0);
    let (_, call, _) = held.next(SenderRole::Client).unwrap();
    held.send(NewFrameKind::Heartbeat, 9, b"");
    let (mut beats, mut acks) = (0, 0);
    while beats < 3 || acks < 1 {
        match held.next(SenderRole::Client).unwrap() {
            (FrameKind::Heartbeat, id, _) => {
                beats += 1;
                held.send(NewFrameKind::HeartbeatAck, id, b"");
            }
            (FrameKind::HeartbeatAck, 9, _) => acks += 1,
            other => panic!("{other:?}"),
        }
    }
    held.send(NewFrameKind::Response, call, b"after all");
    assert_eq!(client.next_answer(), (0, 1, b"after all".to_vec()));
    relay.stop();
}

#[test]
fn malformed_input_closes_only_own_connection() {
    let folder = tempfile::tempdir().unwrap();
    let plugin = built::build_c_example(folder.path());
    let codec = Codec::load(&plugin).unwrap();
    let (relay, outside) = sidecar(&route("plugin", echo_server(&codec), &with(&plugin, "")));
    let mut good = PluginPeer::connect(&codec, outside);
    for wire in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"x\x09\0",
        // An answer that comes from a client.
        b"x\x01\x01\0\0\0\x01\0\0\0\0\0\0",
    ] {
        let mut bad = PluginPeer::connect(&codec, outside);
        bad.stream.write_all(wire).unwrap();
        assert!(bad.is_closed(), "{}", wire.escape_ascii());
    }
    // A frame of slightly over 4 GiB: its call is refused, and its bytes are skipped.
    let mut long = PluginPeer::connect(&codec, outside);
    let wire = b"x\x01\0\0\0\0\x07\xff\xff\xff\xffand more";
    long.stream.write_all(wire).unwrap();
    assert_eq!(long.next_answer(), (UNREACHABLE, 7, Vec::new()));
    good.send(NewFrameKind::Request, 1, b"still here");
    assert_eq!(good.next_answer().2, b"still here");
    assert_eq!(relay.counter_value("r", "malformed_total"), Some(3));
    assert_eq!(relay.counter_value("r", "frames_too_long_total"), Some(1));
    assert_eq!(relay.counter_value("r", "plugin_faults_total"), Some(0));
    relay.stop();

    // The payload dictates what the plugin returns: a result, then the fields of a frame.
    let plugin = built::nonsense(folder.path(), "nonsense.so", &[]);
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let (relay, outside) = sidecar(&route(
        "plugin",
        upstream.local_addr().unwrap(),
        &with(&plugin, ""),
    ));
    let returned = |result: i32, lengths: [u64; 3], kind: u32, heartbeat: u32| {
        let [length, payload_at, payload_length] = lengths;
        let mut wire = result.to_ne_bytes().to_vec();
        for number in [length, 1, 2, payload_at, payload_length] {
            wire.extend(number.to_ne_bytes());
        }
        for number in [kind, heartbeat, 0, 0] {
            wire.extend(number.to_ne_bytes());
        }
        wire
    };
    let all = 60;
    let nonsense = [
        returned(0, [all + 1, 0, 0], 0, 0),
        returned(0, [0, 0, 0], 0, 0),
        returned(0, [u64::MAX, 0, 0], 0, 0),
        returned(0, [-5i64 as u64, 0, 0], 0, 0),
        returned(0, [1 << 31, 0, 0], 0, 0),
        returned(0, [all, u64::MAX, 2], 0, 0),
        returned(0, [all, 0, all + 1], 0, 0),
        returned(0, [all, 0, 0], 4, 0),
        returned(0, [all, 0, 0], 0, 2),
        // Claims to need fewer bytes than there are, then more than are allowed.
        returned(1, [3, 0, 0], 0, 0),
        returned(1, [1 << 40, 0, 0], 0, 0),
        returned(5, [all, 0, 0], 0, 0),
        returned(-1, [all, 0, 0], 0, 0),
        returned(99, [all, 0, 0], 0, 0),
        // The request is valid, but the result or length that `encode` returns is impossible.
        returned(0, [all, 0, 0], 0, 0),
    ];
    for (n, wire) in nonsense.iter().enumerate() {
        assert_eq!(wire.len() as u64, all);
        let mut bad = TcpStream::connect(outside).unwrap();
        bad.set_read_timeout(Some(Duration::from_secs(120)))
            .unwrap();
        // `encode` reads the claimed value from the place of `decode`'s result and length.
        bad.write_all(wire).unwrap();
        let is_kept = n == nonsense.len() - 1;
        if is_kept {
            // A length of 60 in a buffer of 124 bytes is plausible, so it is passed on.
            let mut passed = Vec::new();
            let mut up = upstream.accept().unwrap().0;
            up.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
            passed.resize(60, 1);
            up.read_exact(&mut passed).unwrap();
            assert_eq!(passed, vec![0; 60]);
            // The answer is nonsense and no refusal can be encoded, so the client's connection is
            // closed.
            up.write_all(&nonsense[0]).unwrap();
            assert!(is_closed(&mut up) && is_closed(&mut bad));
        } else {
            assert!(is_closed(&mut bad), "{n}: {wire:?}");
        }
    }
    // The caller is responsible for the frame over the limit, the plugin for the other failures. In
    // the last case it encoded neither an answer nor a refusal.
    eventually("all are counted", || {
        relay.counter_value("r", "plugin_faults_total") == Some(nonsense.len() as u64)
    });
    assert_eq!(relay.counter_value("r", "malformed_total"), Some(1));
    relay.stop();
}

#[test]
fn unusable_plugin_prevents_startup() {
    let folder = tempfile::tempdir().unwrap();
    let path = built::nonsense(folder.path(), "old.so", &["-DABI=0"]);
    let upstream = SocketAddr::from(([127, 0, 0, 1], 1));
    let start = |path: &Path| {
        let text = route("plugin", upstream, &with(path, ""));
        Sidecar::start(&SidecarConfig::parse(&text).unwrap(), |_| ())
            .err()
            .unwrap()
            .to_string()
    };
    let error = start(&path);
    assert!(
        error.starts_with("route r: plugin ") && error.contains("speaks version 0"),
        "{error}"
    );
    let error = start(&folder.path().join("absent.so"));
    assert!(error.contains("absent.so: can't be read"), "{error}");
}
