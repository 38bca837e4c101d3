//! Bolt clients and upstreams that send malformed frames, or frames that kill their peer, beside a
//! client that behaves well and gets every answer. PROXY headers give the clients' addresses.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;

use plimsoll_protocols::bolt::frame::DEFAULT_MAX_CONTENT_BYTES;
use plimsoll_protocols::bolt::hessian::{self, HessianValue};
use plimsoll_protocols::bolt::{BoltFrame, BoltFrameKind, FrameLayout, Status, header};
use plimsoll_relays::sidecar::Sidecar;

use super::{BoltClient, eventually, request, route, sidecar};

const GOOD_ADDRESS: &str = "192.0.2.1";
const BEHIND_PROXY: &str = "proxy_protocol = [\"127.0.0.1\"]";

/// Opens a connection whose client has this address according to a PROXY header.
fn client_from(ip: &str, outside: SocketAddr) -> BoltClient {
    let mut client = BoltClient::connect(outside);
    let (family, to) = if ip.contains(':') {
        ("TCP6", "::1")
    } else {
        ("TCP4", "192.0.2.9")
    };
    let line = format!("PROXY {family} {ip} {to} 5555 80\r\n");
    client.stream.write_all(line.as_bytes()).unwrap();
    client
}

/// Returns a request with a header map whose length contradicts its contents.
fn malformed_request() -> Vec<u8> {
    let mut wire = Vec::new();
    let frame = BoltFrame {
        header: b"\0\0\0\x01a\0\0\0\x09b",
        ..request(FrameLayout::V1, 1, b"\x01x")
    };
    frame.write(&mut wire);
    wire
}

/// Starts an upstream that answers requests through `answer`; `None` closes the connection. A
/// request for `b"\x04hold"` is answered together with the next one.
fn upstream(answer: fn(BoltFrame<'_>, &mut Vec<u8>) -> Option<()>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || serve_connection(stream.unwrap(), answer));
        }
    });
    address
}

fn serve_connection(mut stream: TcpStream, answer: fn(BoltFrame<'_>, &mut Vec<u8>) -> Option<()>) {
    let (mut bytes, mut buffer, mut answers) = (Vec::new(), vec![0; 65_536], Vec::new());
    while let Ok(read @ 1..) = stream.read(&mut buffer) {
        bytes.extend_from_slice(&buffer[..read]);
        let mut at = 0;
        let mut holds = false;
        while let Some((frame, length)) =
            BoltFrame::parse(&bytes[at..], DEFAULT_MAX_CONTENT_BYTES).unwrap()
        {
            at += length;
            if answer(frame, &mut answers).is_none() {
                return;
            }
            holds = frame.content == HOLD;
        }
        bytes.drain(..at);
        if !holds && stream.write_all(&std::mem::take(&mut answers)).is_err() {
            return;
        }
    }
}

fn echo(frame: BoltFrame<'_>, out: &mut Vec<u8>) {
    let status = Status::Success.number();
    let kind = BoltFrameKind::Response { status };
    BoltFrame { kind, ..frame }.write(out);
}

const HOLD: &[u8] = b"\x04hold";
const POISON_CONTENT: &[u8] = b"\x06poison";

/// An upstream that closes its connection on a poison request and answers all others.
fn fragile_upstream() -> SocketAddr {
    upstream(|frame, out| {
        echo(frame, out);
        (frame.content != POISON_CONTENT).then_some(())
    })
}

/// Makes a call, which must succeed.
fn call(client: &mut BoltClient, id: u32) {
    client.send(request(FrameLayout::V1, id, b"\x01x"));
    let (_, answered, status, content) = client.next_answer();
    assert_eq!((answered, status, &content[..]), (id, 0, &b"\x01x"[..]));
}

/// Makes as many calls as must be answered before an address shares connections upstream.
fn gain_trust(ip: &str, outside: SocketAddr) {
    let mut client = client_from(ip, outside);
    (0..10).for_each(|id| call(&mut client, id));
}

fn counter(relay: &Sidecar, name: &str) -> u64 {
    relay.counter_value("r", name).unwrap()
}

#[test]
fn malformed_frames_charged_to_client_address() {
    let (relay, outside) = sidecar(&route("bolt", fragile_upstream(), BEHIND_PROXY));
    let mut good = client_from(GOOD_ADDRESS, outside);
    call(&mut good, 0);
    gain_trust("192.0.2.2", outside);
    for place in 0..2 {
        gain_trust(&format!("2001:db8:1:3::{place}"), outside);
    }
    // IPv6 clients of one network share a record.
    let mut sent = 0;
    for (place, network) in ["198.51.100.7", "2001:db8:1:2"].into_iter().enumerate() {
        let bad = |host: u64| {
            if network.contains(':') {
                format!("{network}::{host:x}")
            } else {
                network.to_owned()
            }
        };
        let made = || counter(&relay, "upstream_connects_total");
        eventually("the address has connections of its own", || {
            // Each frame ends its connection, so there are many connections.
            let clients: Vec<_> = (1..30)
                .map(|host| client_from(&bad(host), outside))
                .collect();
            for client in &clients {
                (&client.stream).write_all(&malformed_request()).unwrap();
            }
            for mut client in clients {
                assert_eq!(client.stream.read(&mut [0; 8]).unwrap_or(0), 0);
                sent += 1;
            }
            call(&mut good, 1);
            let before = made();
            call(&mut client_from(&bad(0xffff), outside), 1);
            made() > before
        });
        // Other clients, also new ones, share connections as before.
        let before = made();
        call(&mut client_from("192.0.2.2", outside), 1);
        call(
            &mut client_from(&format!("2001:db8:1:3::{place}"), outside),
            1,
        );
        call(&mut good, 2);
        assert_eq!(made(), before);
    }
    assert_eq!(counter(&relay, "malformed_total"), sent);
    relay.stop();
}

#[test]
fn excess_isolated_clients_share_connections() {
    let (relay, outside) = sidecar(&route("bolt", fragile_upstream(), BEHIND_PROXY));
    let bad = "198.51.100.7";
    poison(bad, outside, false, &relay);
    let mut clients: Vec<_> = (0..300).map(|_| client_from(bad, outside)).collect();
    for client in &mut clients {
        client.send(request(FrameLayout::V1, 1, b"\x01x"));
    }
    for client in &mut clients {
        assert_eq!(client.next_answer().2, 0);
    }
    assert_eq!(counter(&relay, "answered_busy_total"), 0);
    relay.stop();
}

/// Sends poison and waits until it has reached an upstream.
fn poison(ip: &str, outside: SocketAddr, oneway: bool, relay: &Sidecar) {
    let lost = || counter(relay, "upstream_connections_lost_total");
    let made = || counter(relay, "upstream_connects_total");
    let before = (lost(), made());
    let mut bad = client_from(ip, outside);
    let poison = request(FrameLayout::V1, 1, POISON_CONTENT);
    if oneway {
        // The client's connection is closed before the upstream's.
        bad.send(BoltFrame {
            kind: BoltFrameKind::Oneway { timeout: -1 },
            ..poison
        });
        bad.stream.shutdown(Shutdown::Both).unwrap();
    } else {
        bad.send(poison);
        assert_eq!(bad.next_answer().2, Status::ConnectionClosed.number());
    }
    eventually("a connection upstream is made for it, or is lost", || {
        lost() > before.0 || made() > before.1
    });
}

#[test]
fn poison_requests_get_own_connection() {
    for oneway in [false, true] {
        let (relay, outside) = sidecar(&route("bolt", fragile_upstream(), BEHIND_PROXY));
        let mut good = client_from(GOOD_ADDRESS, outside);
        call(&mut good, 0);
        gain_trust("198.51.100.7", outside);
        // The first poison request still uses the connection that all share.
        poison("198.51.100.7", outside, oneway, &relay);
        let mut next = 1;
        for _ in 0..10 {
            // A call in flight meanwhile, and one of another client that comes later.
            let requests = counter(&relay, "requests_total");
            good.send(request(FrameLayout::V1, next, HOLD));
            eventually("the call is in flight", || {
                counter(&relay, "requests_total") > requests
            });
            poison("198.51.100.7", outside, oneway, &relay);
            good.send(request(FrameLayout::V1, next + 1, b"\x01x"));
            for _ in 0..2 {
                assert_eq!(good.next_answer().2, 0);
            }
            next += 2;
            call(&mut client_from("192.0.2.2", outside), 1);
        }
        relay.stop();
    }
}

#[test]
fn first_poison_of_unknown_address_harms_nobody() {
    let (relay, outside) = sidecar(&route("bolt", fragile_upstream(), BEHIND_PROXY));
    let mut good = client_from(GOOD_ADDRESS, outside);
    for n in 0..5 {
        let requests = counter(&relay, "requests_total");
        good.send(request(FrameLayout::V1, 2 * n, HOLD));
        eventually("the call is in flight", || {
            counter(&relay, "requests_total") > requests
        });
        poison(&format!("198.51.100.{n}"), outside, false, &relay);
        good.send(request(FrameLayout::V1, 2 * n + 1, b"\x01x"));
        for _ in 0..2 {
            assert_eq!(good.next_answer().2, 0);
        }
    }
    relay.stop();
}

/// Answers with an invalid header map, depending on the content.
fn answer_badly(frame: BoltFrame<'_>, out: &mut Vec<u8>) -> Option<()> {
    let status = Status::Success.number();
    let kind = BoltFrameKind::Response { status };
    let long = vec![0; 40_000];
    let bad = match frame.content {
        b"\x041bad" => &b"\0\0\0\x01a"[..],
        b"\x042bad" => b"\0\0\0\x01a\0\0\0\x09b",
        b"\x043bad" => b"\xff\xff\xff\xfea",
        b"\x044bad" => &long,
        _ => {
            echo(frame, out);
            return Some(());
        }
    };
    let header = bad;
    BoltFrame {
        kind,
        header,
        ..frame
    }
    .write(out);
    Some(())
}

#[test]
fn malformed_response_headers_are_not_forwarded() {
    let (relay, outside) = sidecar(&route("bolt", upstream(answer_badly), ""));
    let mut good = BoltClient::connect(outside);
    let mut expected = 0;
    for form in [FrameLayout::V1, FrameLayout::V2, FrameLayout::V2_CRC] {
        let mut client = BoltClient::connect(outside);
        for content in [b"\x041bad", b"\x042bad", b"\x043bad", b"\x044bad"] {
            // Other calls of the same and of another client use the same upstream connection.
            client.send(request(form, 1, b"\x01x"));
            client.send(request(form, 2, content));
            client.send(request(form, 3, b"\x01x"));
            let mut answers: Vec<_> = (0..3).map(|_| client.next_answer()).collect();
            answers.sort_by_key(|answer| answer.1);
            let codec_exception = Status::CodecException.number();
            let statuses: Vec<_> = answers.iter().map(|answer| answer.2).collect();
            assert_eq!(statuses, [0, codec_exception, 0]);
            let text = hessian::decode(&answers[1].3).unwrap();
            let HessianValue::String(text) = text else {
                panic!("{text:?}");
            };
            assert!(text.contains("malformed"), "{text}");
            call(&mut good, 7);
            expected += 1;
        }
    }
    assert_eq!(counter(&relay, "malformed_total"), expected);
    assert_eq!(counter(&relay, "calls_in_flight"), 0);
    assert_eq!(
        counter(&relay, "upstream_connects_total"),
        3,
        "one a layout"
    );
    // A valid map is passed on, whatever it contains.
    let mut map = Vec::new();
    header::write(&mut map, Some(b"a"), None);
    header::write(&mut map, None, Some(b"\xff"));
    good.send(BoltFrame {
        header: &map,
        ..request(FrameLayout::V1, 9, b"\x01x")
    });
    assert_eq!(good.next_answer().2, 0);
    relay.stop();
}
