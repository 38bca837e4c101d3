//! Configs that are reloaded while calls are in flight.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};

use plimsoll_protocols::bolt::frame::DEFAULT_MAX_CONTENT_BYTES;
use plimsoll_relays::sidecar::{Sidecar, SidecarConfig};
use plimsoll_wire::http2::ErrorCode;

use super::http2_peer::{Http2Event, Http2Peer};
use super::{
    BoltClient, BoltFrame, FrameLayout, Status, admin_page, echo_server, eventually, request,
    sidecar,
};

fn route_config(
    name: &str,
    protocol: &str,
    listen: &str,
    upstream: SocketAddr,
    more: &str,
) -> String {
    format!(
        "[[route]]\nname = \"{name}\"\nprotocol = \"{protocol}\"\nlisten = \"{listen}\"\n\
         upstream = [\"{upstream}\"]\n{more}\n"
    )
}

const ANY_PORT: &str = "127.0.0.1:0";

fn reload(relay: &Sidecar, text: &str) -> Result<(), String> {
    let config = SidecarConfig::parse(text).map_err(|e| e.to_string())?;
    relay.reload(&config).map_err(|e| e.to_string())
}

fn route_address(relay: &Sidecar, route: &str) -> SocketAddr {
    let listening = relay.listen_addresses();
    let found = listening.iter().find(|(name, _)| name == route);
    found.unwrap().1.tcp_address().unwrap()
}

/// Returns the request that an upstream received on the next connection that it accepts.
fn held(listener: &TcpListener) -> (BoltClient, u32) {
    let mut held = BoltClient {
        stream: listener.accept().unwrap().0,
        bytes: Vec::new(),
    };
    let id = next_request_id(&mut held);
    (held, id)
}

fn next_request_id(held: &mut BoltClient) -> u32 {
    let mut wire = [0; 40];
    std::io::Read::read_exact(&mut held.stream, &mut wire).unwrap();
    BoltFrame::parse(&wire, DEFAULT_MAX_CONTENT_BYTES)
        .unwrap()
        .unwrap()
        .0
        .id
}

fn send_answer(held: &mut BoltClient, id: u32) {
    held.send(BoltFrame::status_response(
        FrameLayout::V1,
        id,
        1,
        Status::Success,
    ));
}

fn call_status(client: &mut BoltClient, id: u32) -> u16 {
    client.send(request(FrameLayout::V1, id, b"\x01x"));
    client.next_answer().2
}

#[test]
fn route_changes_drop_no_calls() {
    let upstream = TcpListener::bind(ANY_PORT).unwrap();
    let slow = upstream.local_addr().unwrap();
    let admin = "admin = \"127.0.0.1:0\"\nworkers = 2\n";
    let kept = route_config("kept", "bolt", ANY_PORT, echo_server(), "");
    let goes = route_config("goes", "bolt", ANY_PORT, slow, "");
    let (relay, _) = sidecar(&format!("{admin}{kept}{goes}"));
    let (old, stays) = (route_address(&relay, "goes"), route_address(&relay, "kept"));
    let mut client = BoltClient::connect(old);
    client.send(request(FrameLayout::V1, 7, b"\x01x"));
    let (mut service, id) = held(&upstream);
    let mut other = BoltClient::connect(stays);
    assert_eq!(call_status(&mut other, 1), 0);
    let comes = route_config("comes", "bolt", ANY_PORT, echo_server(), "");
    reload(&relay, &format!("{admin}{kept}{comes}")).unwrap();
    eventually("nothing listens for it any more", || {
        TcpStream::connect(old).is_err()
    });
    assert_eq!(route_address(&relay, "kept"), stays);
    assert_eq!(call_status(&mut other, 2), 0);
    let mut new = BoltClient::connect(route_address(&relay, "comes"));
    assert_eq!(call_status(&mut new, 3), 0);
    let page = admin_page(&relay, "/metrics");
    assert!(!page.contains("route=\"goes\""), "{page}");
    assert!(
        page.contains("_requests_total{route=\"kept\"} 2\n"),
        "{page}"
    );
    // The call is answered all the same, and only then is the client disconnected.
    send_answer(&mut service, id);
    assert_eq!(client.next_answer().1, 7);
    assert!(!matches!(
        std::io::Read::read(&mut client.stream, &mut [0; 8]),
        Ok(1..)
    ));
    // A route of the same name that is added again is a new route.
    reload(&relay, &format!("{admin}{kept}{comes}{goes}")).unwrap();
    let mut again = BoltClient::connect(route_address(&relay, "goes"));
    again.send(request(FrameLayout::V1, 8, b"\x01x"));
    let (mut service, id) = held(&upstream);
    send_answer(&mut service, id);
    assert_eq!(again.next_answer().1, 8);
    relay.stop();
}

#[test]
fn changed_route_keeps_its_clients() {
    let upstream = TcpListener::bind(ANY_PORT).unwrap();
    let before = route_config("r", "bolt", ANY_PORT, upstream.local_addr().unwrap(), "");
    let (relay, outside) = sidecar(&before);
    let mut client = BoltClient::connect(outside);
    client.send(request(FrameLayout::V1, 1, b"\x01x"));
    let (mut service, id) = held(&upstream);
    let after = route_config("r", "bolt", ANY_PORT, echo_server(), "connections = 3");
    reload(&relay, &after).unwrap();
    assert_eq!(route_address(&relay, "r"), outside);
    // New calls on the same connection soon go to the new upstream; the old one still gets its
    // answers through.
    eventually("calls go to the new upstream", || {
        let mut client = BoltClient::connect(outside);
        client
            .stream
            .set_read_timeout(Some(std::time::Duration::from_millis(300)))
            .unwrap();
        client.send(request(FrameLayout::V1, 2, b"\x01x"));
        matches!(
            std::io::Read::read(&mut client.stream, &mut [0; 64]),
            Ok(1..)
        )
    });
    assert_eq!(call_status(&mut client, 3), 0);
    send_answer(&mut service, id);
    assert_eq!(client.next_answer().1, 1);
    // The listening address changes: connected clients stay connected.
    let free = TcpListener::bind(ANY_PORT).unwrap().local_addr().unwrap();
    let moved = route_config("r", "bolt", &free.to_string(), echo_server(), "");
    reload(&relay, &moved).unwrap();
    eventually("it listens elsewhere", || {
        TcpStream::connect(outside).is_err() && TcpStream::connect(free).is_ok()
    });
    assert_eq!(call_status(&mut client, 4), 0);
    relay.stop();
}

#[test]
fn removed_route_sends_goaway_and_drains() {
    let listener = TcpListener::bind(ANY_PORT).unwrap();
    let upstream = listener.local_addr().unwrap();
    let kept = route_config("kept", "tcp", ANY_PORT, upstream, "");
    let goes = route_config("goes", "grpc", ANY_PORT, upstream, "");
    let (relay, _) = sidecar(&format!("{goes}{kept}"));
    let mut client = Http2Peer::new(
        TcpStream::connect(route_address(&relay, "goes")).unwrap(),
        true,
        &[],
    );
    client.call(1, &[], true);
    let mut service = Http2Peer::new(listener.accept().unwrap().0, false, &[]);
    while !matches!(service.next(), Http2Event::Headers { .. }) {}
    reload(&relay, &kept).unwrap();
    for _ in 0..2 {
        let Http2Event::GoAway { code, .. } = client.next() else {
            panic!("no goodbye")
        };
        assert_eq!(code, ErrorCode::NO_ERROR.0);
    }
    service.headers(1, &[(":status", "200"), ("grpc-status", "0")], true);
    assert_eq!(client.next().field("grpc-status"), Some("0"));
    assert_eq!(client.next(), Http2Event::End);
    relay.stop();
}

#[test]
fn invalid_reload_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let head = format!("access_log = {log:?}\n");
    let before = route_config("r", "bolt", ANY_PORT, echo_server(), "");
    let (relay, outside) = sidecar(&format!("{head}{before}"));
    let mut client = BoltClient::connect(outside);
    let taken = TcpListener::bind(ANY_PORT).unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let cert = "listen_tls = { ca = \"/no/ca\", cert = \"/no/cert\", key = \"/no/key\" }";
    let (a, upstream) = (before.as_str(), echo_server());
    for (text, needle) in [
        (format!("{head}{a}{a}"), "used twice"),
        (format!("workers = 2\n{a}"), "workers: can't change"),
        (
            format!("admin = \"127.0.0.1:0\"\n{a}"),
            "admin: can't change",
        ),
        (
            format!("access_log = \"/no/such/log\"\n{a}"),
            "access_log /no/such/log",
        ),
        (
            route_config("r", "bolt", ANY_PORT, upstream, cert),
            "route r: CA /no/ca",
        ),
        (
            route_config("r", "plugin", ANY_PORT, upstream, "plugin = \"/no.so\""),
            "/no.so: can't be read",
        ),
        (
            format!("{a}{}", route_config("b", "tcp", &taken, upstream, "")),
            "route b: listening on",
        ),
    ] {
        let error = reload(&relay, &text).unwrap_err();
        assert!(error.contains(needle), "{needle}: {error}");
        assert_eq!(call_status(&mut client, 1), 0);
        let mut new = BoltClient::connect(outside);
        assert_eq!(call_status(&mut new, 2), 0);
    }
    assert_eq!(relay.listen_addresses().len(), 1);
    relay.stop();
    assert_eq!(fs::read_to_string(&log).unwrap().lines().count(), 14);
}

#[test]
fn reload_reopens_access_log() {
    let folder = tempfile::tempdir().unwrap();
    let (log, old) = (folder.path().join("log"), folder.path().join("log.1"));
    let text = format!(
        "access_log = {log:?}\n{}",
        route_config("r", "bolt", ANY_PORT, echo_server(), "")
    );
    let (relay, outside) = sidecar(&text);
    let mut client = BoltClient::connect(outside);
    assert_eq!(call_status(&mut client, 1), 0);
    // Renames the file as logrotate does.
    fs::rename(&log, &old).unwrap();
    reload(&relay, &text).unwrap();
    let lines = |path| fs::read_to_string(path).unwrap_or_default().lines().count();
    eventually("lines go to the new file", || {
        call_status(&mut BoltClient::connect(outside), 2) == 0 && lines(&log) > 0
    });
    let before = lines(&old);
    assert!(before >= 1);
    let counted = relay.counter_value("r", "answers_total").unwrap() as usize;
    relay.stop();
    assert_eq!(lines(&log) + lines(&old), counted);
}

#[test]
fn failed_reload_adds_no_metrics() {
    let text = format!(
        "admin = \"127.0.0.1:0\"\n{}",
        route_config("r", "bolt", ANY_PORT, echo_server(), "")
    );
    let (relay, _) = sidecar(&text);
    let taken = TcpListener::bind(ANY_PORT).unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let more = route_config("b", "tcp", &taken, echo_server(), "");
    let error = reload(&relay, &format!("{text}{more}")).unwrap_err();
    assert!(error.contains("route b: listening on"), "{error}");
    let page = admin_page(&relay, "/metrics");
    assert!(page.contains("route=\"r\""), "{page}");
    assert!(!page.contains("route=\"b\""), "{page}");
    relay.stop();
}
