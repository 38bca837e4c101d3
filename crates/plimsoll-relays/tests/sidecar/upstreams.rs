//! Upstreams with names, upstreams that fail their calls, and the access log of both.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

use plimsoll_relays::sidecar::Sidecar;
use plimsoll_wire::http2::{ErrorCode, write};

use super::http2_peer::{Http2Event, Http2Peer};
use super::{BoltClient, FrameLayout, admin_page, echo_server, eventually, request, sidecar};

const ANSWER: [(&str, &str); 3] = [
    (":status", "200"),
    ("content-type", "application/grpc"),
    ("grpc-status", "0"),
];

fn client(address: SocketAddr) -> Http2Peer {
    Http2Peer::new(TcpStream::connect(address).unwrap(), true, &[])
}

/// Answers every call once it is complete, or never.
pub(crate) fn service(listener: TcpListener, answers: bool) {
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut peer = Http2Peer::new(stream.unwrap(), false, &[]);
            thread::spawn(move || {
                loop {
                    match peer.next() {
                        Http2Event::Headers {
                            stream, end: true, ..
                        }
                        | Http2Event::Data {
                            stream, end: true, ..
                        } if answers => {
                            peer.headers(stream, &ANSWER, true);
                        }
                        Http2Event::End => return,
                        _ => {}
                    }
                }
            });
        }
    });
}

fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// Starts a sidecar with routes `bolt` and `tcp` to an echo server and `grpc` to a gRPC service;
/// returns it with the addresses of the two servers.
pub(crate) fn sidecar_with_two_servers() -> (Sidecar, SocketAddr, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (bolt, grpc) = (echo_server(), listener.local_addr().unwrap());
    service(listener, true);
    let route = |name: &str, protocol: &str, upstream: SocketAddr| {
        format!(
            "[[route]]\nname = \"{name}\"\nprotocol = \"{protocol}\"\nlisten = \"127.0.0.1:0\"\n\
             upstream = [\"{upstream}\"]\n"
        )
    };
    let (relay, _) = sidecar(&format!(
        "admin = \"127.0.0.1:0\"\n{}{}{}",
        route("bolt", "bolt", bolt),
        route("grpc", "grpc", grpc),
        route("tcp", "tcp", bolt),
    ));
    (relay, bolt, grpc)
}

#[test]
fn hostname_resolves_and_failures_are_counted() {
    let upstream = echo_server();
    let text = |names: &str| {
        format!(
            "[[route]]\nname = \"r\"\nprotocol = \"bolt\"\nlisten = \"127.0.0.1:0\"\nupstream = [{names}]\n"
        )
    };
    let port = upstream.port();
    let (relay, outside) = sidecar(&text(&format!("\"no..name:1\", \"localhost:{port}\"")));
    let mut one = BoltClient::connect(outside);
    // If localhost is also ::1, nothing listens there, and the next address is tried.
    eventually("a call goes to the name's address", || {
        let mut client = BoltClient::connect(outside);
        client.send(request(FrameLayout::V1, 1, b"\x01x"));
        client.next_answer().2 == 0
    });
    one.send(request(FrameLayout::V1, 2, b"\x01y"));
    assert_eq!(one.next_answer().3, b"\x01y");
    assert!(relay.counter_value("r", "upstream_lookup_failures_total") >= Some(1));
    relay.stop();
    // No upstream is left: calls are answered by the sidecar.
    let (relay, outside) = sidecar(&format!("lookup = \"100ms\"\n{}", text("\"no..name:1\"")));
    let mut client = BoltClient::connect(outside);
    client.send(request(FrameLayout::V1, 1, b"\x01x"));
    assert_ne!(client.next_answer().2, 0);
    eventually("the name is looked up again", || {
        relay.counter_value("r", "upstream_lookup_failures_total") >= Some(3)
    });
    relay.stop();
}

#[test]
fn failing_upstream_is_ejected() {
    let ((silent, first), (good, second)) = (listener(), listener());
    service(silent, false);
    service(good, true);
    let (relay, outside) = sidecar(&format!(
        "[[route]]\nname = \"r\"\nprotocol = \"grpc\"\nlisten = \"127.0.0.1:0\"\n\
         upstream = [\"127.0.0.1:{first}\", \"127.0.0.1:{second}\"]\n\
         timeout = \"150ms\"\neject_after = 3\neject_for = \"60s\"\n"
    ));
    let mut client = client(outside);
    // Calls go to both upstreams: those at the first are not answered, until three of them have
    // failed.
    let (mut stream, mut failed) = (1, 0);
    while failed < 3 {
        client.call(stream, &[], true);
        match client.next().field("grpc-status") {
            Some("4") => failed += 1,
            status => assert_eq!(status, Some("0")),
        }
        stream += 2;
    }
    eventually("the ejection is counted", || {
        relay.counter_value("r", "upstream_ejections_total") == Some(1)
    });
    for stream in (stream..stream + 40).step_by(2) {
        client.call(stream, &[], true);
        assert_eq!(client.next().field("grpc-status"), Some("0"), "{stream}");
    }
    relay.stop();
}

#[test]
fn only_upstream_is_never_ejected() {
    let (silent, port) = listener();
    service(silent, false);
    let (relay, outside) = sidecar(&format!(
        "[[route]]\nname = \"r\"\nprotocol = \"grpc\"\nlisten = \"127.0.0.1:0\"\n\
         upstream = [\"127.0.0.1:{port}\"]\ntimeout = \"100ms\"\neject_after = 1\n"
    ));
    let mut client = client(outside);
    for stream in [1, 3, 5] {
        client.call(stream, &[], true);
        // Each call times out; none fails for lack of an upstream.
        assert_eq!(client.next().field("grpc-status"), Some("4"));
    }
    assert_eq!(
        relay.counter_value("r", "upstream_ejections_total"),
        Some(0)
    );
    relay.stop();
}

#[test]
fn access_log_records_every_call() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("access.jsonl");
    let (good, port) = listener();
    service(good, true);
    let bolt = echo_server();
    let closed = listener().1;
    let route = |name: &str, protocol: &str, upstream: String| {
        format!(
            "[[route]]\nname = \"{name}\"\nprotocol = \"{protocol}\"\n\
             listen = \"127.0.0.1:0\"\nupstream = [\"{upstream}\"]\n"
        )
    };
    let text = format!(
        "access_log = {log:?}\n{}{}{}{}",
        route("grpc", "grpc", format!("127.0.0.1:{port}")),
        route("bolt", "bolt", bolt.to_string()),
        route("tcp", "tcp", bolt.to_string()),
        route("gone", "bolt", format!("127.0.0.1:{closed}")),
    );
    let (relay, _) = sidecar(&text);
    let at: Vec<SocketAddr> = relay
        .listen_addresses()
        .iter()
        .map(|(_, at)| at.tcp_address().unwrap())
        .collect();
    let mut grpc = client(at[0]);
    grpc.call(1, &[], false);
    grpc.data(1, b"hello", true);
    assert_eq!(grpc.next().field("grpc-status"), Some("0"));
    grpc.call(3, &[], false);
    grpc.send_frames(|out| write::reset_stream(out, 3, ErrorCode::CANCEL));
    for (place, id) in [(1, 11), (2, 12), (3, 13)] {
        let mut client = BoltClient::connect(at[place]);
        client.send(request(FrameLayout::V1, id, b"\x01x"));
        client.next_answer();
    }
    eventually("every call has ended", || {
        let counted = |route, name| relay.counter_value(route, name).unwrap();
        counted("grpc", "answers_total") + counted("grpc", "cancelled_by_client_total") == 2
            && counted("tcp", "connections_open") == 0
    });
    relay.stop();
    let lines = fs::read_to_string(&log).unwrap();
    let lines: Vec<serde_json::Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 5, "{lines:?}");
    let of = |route: &str, nth: usize| {
        let mut of_route = lines.iter().filter(|line| line["route"] == route);
        of_route.nth(nth).unwrap()
    };
    let call = of("grpc", 0);
    assert_eq!(
        (&call["call"], &call["status"]),
        (&"/a.B/C".into(), &"OK".into())
    );
    assert_eq!(call["bytes_up"], 5);
    assert_eq!(call["upstream"], format!("127.0.0.1:{port}"));
    let reset = &of("grpc", 1)["status"];
    assert_eq!(reset, "RESET BY CLIENT: CANCEL");
    let call = of("bolt", 0);
    assert_eq!(
        (&call["call"], &call["status"]),
        (&"11".into(), &"SUCCESS".into())
    );
    assert!(call["time"].as_str().unwrap().ends_with('Z'), "{call}");
    assert!(
        call["client"].is_string() && call["by_sidecar"].is_null(),
        "{call}"
    );
    assert!(of("tcp", 0)["bytes_up"].as_u64() > Some(20));
    let call = of("gone", 0);
    assert_eq!(
        (&call["status"], &call["by_sidecar"]),
        (&"NO_PROCESSOR".into(), &true.into())
    );
}

#[test]
fn ready_while_every_route_has_upstream() {
    let ((one, first), (two, second)) = (listener(), listener());
    let text = format!(
        "admin = \"127.0.0.1:0\"\n\
         [[route]]\nname = \"a\"\nprotocol = \"tcp\"\nlisten = \"127.0.0.1:0\"\n\
         upstream = [\"127.0.0.1:{first}\"]\n\
         [[route]]\nname = \"b\"\nprotocol = \"bolt\"\nlisten = \"127.0.0.1:0\"\n\
         upstream = [\"127.0.0.1:{first}\", \"127.0.0.1:{second}\"]\n"
    );
    let (relay, _) = sidecar(&text);
    assert!(admin_page(&relay, "/ready").starts_with("HTTP/1.1 200 "));
    // One of the two upstreams suffices.
    drop(two);
    assert!(admin_page(&relay, "/ready").starts_with("HTTP/1.1 200 "));
    drop(one);
    let page = admin_page(&relay, "/ready");
    assert!(page.starts_with("HTTP/1.1 503 "), "{page}");
    assert!(
        page.ends_with("\r\n\r\nroute a: no upstream can be reached\n"),
        "{page}"
    );
    // The upstream comes back without having had calls in between.
    let _one = TcpListener::bind(("127.0.0.1", first)).unwrap();
    assert!(admin_page(&relay, "/ready").starts_with("HTTP/1.1 200 "));
    relay.stop();
}

#[test]
fn unwritable_access_log_prevents_startup() {
    let text = "access_log = \"/no/such/folder/log\"\n[[route]]\nname = \"r\"\nprotocol = \"tcp\"\n\
                listen = \"127.0.0.1:0\"\nupstream = [\"127.0.0.1:1\"]\n";
    let config = plimsoll_relays::sidecar::SidecarConfig::parse(text).unwrap();
    let error = plimsoll_relays::sidecar::Sidecar::start(&config, |_| ())
        .err()
        .unwrap();
    assert!(
        error
            .to_string()
            .starts_with("access_log /no/such/folder/log: "),
        "{error}"
    );
}
