//! HTTP/2 calls that make an upstream close its connection, beside a client that behaves well and
//! gets every answer. PROXY headers give the clients' addresses.

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use plimsoll_relays::sidecar::Sidecar;
use plimsoll_wire::http2::{ErrorCode, write};

use super::http2_peer::{Http2Event, Http2Peer};
use super::malformed::{ECHO, ValidClient, client, make};
use super::shapes::{block, request};
use super::{eventually, route, sidecar};

const BEHIND_PROXY: &str = "proxy_protocol = [\"127.0.0.1\"]";
const ANSWER: [(&str, &str); 2] = [(":status", "200"), ("grpc-status", "0")];

/// Calls that an upstream receives after poison of the kind `late`, before it closes the connection.
const LATE_CALLS: usize = 24;

/// An upstream that closes its connection on a call with `x-poison` and answers all others, those
/// with `x-hold` together with the next one.
fn fragile_upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let peer = Http2Peer::new(stream.unwrap(), false, &[]);
            thread::spawn(move || serve_connection(peer));
        }
    });
    address
}

fn serve_connection(mut peer: Http2Peer) {
    let (mut held, mut whole) = (Vec::new(), Vec::new());
    loop {
        let came = peer.next();
        let code = match came.field("x-poison") {
            None => None,
            Some("silent") => return,
            // The upstream claims not to have processed this stream.
            Some("unseen") => Some((came.stream().saturating_sub(2), ErrorCode::PROTOCOL_ERROR)),
            // None of the later calls is processed.
            Some("late") => {
                let headers = (0..).map(|_| matches!(peer.next(), Http2Event::Headers { .. }));
                let _ = headers.filter(|is| *is).nth(LATE_CALLS - 1);
                Some((came.stream(), ErrorCode::ENHANCE_YOUR_CALM))
            }
            Some(_) => Some((came.stream(), ErrorCode::ENHANCE_YOUR_CALM)),
        };
        if let Some((last, code)) = code {
            peer.send_frames(|out| write::goaway(out, last, code, b""));
            return;
        }
        if came.field("x-hold").is_some() {
            held.push(came.stream());
        }
        match came {
            Http2Event::Data {
                stream, end: true, ..
            } => whole.push(stream),
            Http2Event::End => return,
            _ => {}
        }
        if whole.iter().any(|stream| !held.contains(stream)) {
            held.clear();
            for stream in whole.drain(..) {
                peer.headers(stream, &ANSWER, true);
            }
        }
    }
}

/// Opens a connection whose client has this address according to a PROXY header.
fn client_from(ip: &str, outside: SocketAddr) -> Http2Peer {
    let mut stream = TcpStream::connect(outside).unwrap();
    let line = format!("PROXY TCP4 {ip} 192.0.2.9 5555 80\r\n");
    stream.write_all(line.as_bytes()).unwrap();
    Http2Peer::new(stream, true, &[])
}

fn poison(kind: &str) -> Vec<u8> {
    let mut poison = request(ECHO);
    poison.push((b"x-poison".to_vec(), kind.as_bytes().to_vec()));
    block(&poison)
}

/// Does something that makes an upstream close a connection, and waits until the sidecar has
/// noticed.
fn wait_for_suspicion(relay: &Sidecar, act: impl FnOnce()) {
    let suspected = || relay.counter_value("r", "clients_suspected_total").unwrap();
    let before = suspected();
    act();
    eventually("a client is suspected", || suspected() > before);
}

#[test]
fn poison_calls_get_own_connection() {
    let (relay, outside) = sidecar(&route("grpc", fragile_upstream(), ""));
    let (mut good, mut bad) = (ValidClient::new(outside, ECHO), client(outside));
    let poison = poison("1");
    for round in 0..20u32 {
        bad.send_frames(|out| make(&poison, 2 * round + 1, out));
        assert_eq!(bad.next().field("grpc-status"), Some("14"));
        good.call("poison");
    }
    // The first poison call was on the shared connection, the others were on reserved ones.
    let connects = || relay.counter_value("r", "upstream_connects_total");
    eventually("connections of their own", || connects() >= Some(20));
    relay.stop();
}

/// Sends poison while a call of `good` is in flight, which must succeed.
fn poison_during_call(
    good: &mut ValidClient,
    kind: &str,
    send: impl FnOnce(&[u8]),
    relay: &Sidecar,
) {
    let sent = || relay.counter_value("r", "requests_total").unwrap();
    let before = sent();
    good.begin_call("x-hold");
    eventually("the call is in flight", || sent() > before);
    wait_for_suspicion(relay, || send(&poison(kind)));
    good.begin_call("x-good");
    good.end_call(kind);
    good.end_call(kind);
}

#[test]
fn first_poison_of_unknown_address_harms_nobody() {
    let (relay, outside) = sidecar(&route("grpc", fragile_upstream(), BEHIND_PROXY));
    let mut good = ValidClient::by(client_from("192.0.2.1", outside), ECHO);
    good.call("nothing");
    let kinds = ["calm", "silent", "unseen"];
    for (n, kind) in (0..9).zip(kinds.into_iter().cycle()) {
        let mut bad = client_from(&format!("198.51.100.{n}"), outside);
        let send = |poison: &[u8]| bad.send_frames(|out| make(poison, 1, out));
        poison_during_call(&mut good, kind, send, &relay);
    }
    relay.stop();
}

#[test]
fn client_that_leaves_after_poison_is_blamed() {
    for kind in ["calm", "silent", "unseen"] {
        let (relay, outside) = sidecar(&route("grpc", fragile_upstream(), BEHIND_PROXY));
        let mut good = ValidClient::by(client_from("192.0.2.1", outside), ECHO);
        let bad = || client_from("198.51.100.7", outside);
        // The address is trusted, so its first poison call uses the shared connection.
        let mut known = ValidClient::by(bad(), ECHO);
        (0..10).for_each(|_| known.call("nothing"));
        good.call("nothing");
        let mut gone = bad();
        wait_for_suspicion(&relay, || {
            gone.send_frames(|out| make(&poison(kind), 1, out));
            gone.leave();
        });
        for _ in 0..5 {
            let mut next = bad();
            let send = |poison: &[u8]| next.send_frames(|out| make(poison, 1, out));
            poison_during_call(&mut good, kind, send, &relay);
        }
        relay.stop();
    }
}

#[test]
fn trusted_poison_costs_no_unprocessed_call() {
    let (relay, outside) = sidecar(&route("grpc", fragile_upstream(), BEHIND_PROXY));
    // More clients than are suspected for one closed connection.
    let mut clients: Vec<_> = (0..LATE_CALLS)
        .map(|_| ValidClient::by(client_from("192.0.2.1", outside), ECHO))
        .collect();
    clients.iter_mut().for_each(|client| client.call("nothing"));
    let bad = || client_from("198.51.100.7", outside);
    // The address behaves well until it is trusted, so its poison uses the shared connection.
    let mut known = ValidClient::by(bad(), ECHO);
    (0..10).for_each(|_| known.call("nothing"));
    let sent = || relay.counter_value("r", "requests_total").unwrap();
    let before = sent();
    let mut bad = bad();
    bad.send_frames(|out| make(&poison("late"), 1, out));
    eventually("the poison is forwarded", || sent() > before);
    for client in &mut clients {
        client.begin_call("x-good");
    }
    for client in &mut clients {
        client.end_call("poison of a trusted address");
    }
    relay.stop();
}

#[test]
fn excess_isolated_clients_share_connections() {
    let (relay, outside) = sidecar(&route("grpc", fragile_upstream(), BEHIND_PROXY));
    ValidClient::by(client_from("192.0.2.1", outside), ECHO).call("nothing");
    // More clients of one address than may have reserved connections upstream.
    let ip = "198.51.100.7";
    let mut bad = client_from(ip, outside);
    bad.send_frames(|out| make(&poison("calm"), 1, out));
    assert_eq!(bad.next().field("grpc-status"), Some("14"));
    let mut clients: Vec<_> = (0..300)
        .map(|_| ValidClient::by(client_from(ip, outside), ECHO))
        .collect();
    clients
        .iter_mut()
        .for_each(|client| client.begin_call("x-good"));
    clients
        .iter_mut()
        .for_each(|client| client.end_call("others"));
    // A client that disconnects does not affect the others.
    for mut client in clients.into_iter().take(40) {
        client.call("others");
    }
    assert_eq!(relay.counter_value("r", "answered_busy_total"), Some(0));
    relay.stop();
}
