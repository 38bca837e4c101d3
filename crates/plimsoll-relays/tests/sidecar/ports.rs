//! Relays that run out of local ports report that and do not blame their upstreams.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use plimsoll_engine::Address;
use plimsoll_protocols::bolt::{FrameLayout, Status};
use plimsoll_serving::build_runtime;

use super::by_itself::{in_own_network, is_run_by_itself};
use super::descriptors::wait_for_bus_error;
use super::http2_peer::Http2Peer;
use super::upstreams::sidecar_with_two_servers;
use super::{BoltClient, admin_page, eventually, request};

const PORT_RANGE_FILE: &str = "/proc/sys/net/ipv4/ip_local_port_range";

/// Connects from another address of this machine, which has separate ports.
fn connect_from(source: &str, to: SocketAddr) -> TcpStream {
    let stream = Address::Tcp(to)
        .start_connect(Some(source.parse().unwrap()))
        .unwrap();
    stream.set_nonblocking(false).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(120)))
        .unwrap();
    stream
}

#[test]
fn port_exhaustion_is_reported_local() {
    let test = "ports::port_exhaustion_is_reported_local";
    if is_run_by_itself(test, in_own_network()) {
        return;
    }
    let (relay, bolt, grpc) = sidecar_with_two_servers();
    let at = |place: usize| relay.listen_addresses()[place].1.tcp_address().unwrap();
    let mut client = BoltClient::connect(at(0));
    let mut streams = Http2Peer::new(TcpStream::connect(at(1)).unwrap(), true, &[]);
    let counted = |route, name| relay.counter_value(route, name).unwrap();
    eventually("the sidecar has both clients", || {
        ["bolt", "grpc"].map(|route| counted(route, "connections_open")) == [1, 1]
    });
    let usual = fs::read_to_string(PORT_RANGE_FILE).unwrap();
    // The only port left for connections is one that a socket listens on.
    let taken = bolt.port();
    fs::write(PORT_RANGE_FILE, format!("{taken} {taken}")).unwrap();

    let lack = "this machine ran out of ports for the address pair";
    let mut admin = connect_from("127.0.0.2", relay.admin().unwrap());
    write!(admin, "GET /ready HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut page = String::new();
    admin.read_to_string(&mut page).unwrap();
    assert!(
        page.contains(&format!("\r\n\r\nroute bolt: {lack}")),
        "{page}"
    );
    let mut piped = connect_from("127.0.0.3", at(2));
    assert!(matches!(piped.read(&mut [0]), Ok(0) | Err(_)));
    client.send(request(FrameLayout::V1, 1, b"\x01x"));
    let (_, id, status, content) = client.next_answer();
    let text = String::from_utf8_lossy(&content);
    assert_eq!((id, status), (1, Status::ServerThreadpoolBusy as u16));
    assert!(text.contains(lack), "{text}");
    streams.call(1, &[], true);
    let answer = streams.next();
    assert_eq!(answer.field("grpc-status"), Some("14"));
    let message = answer.field("grpc-message").unwrap();
    assert!(message.contains(lack), "{message}");
    let runtime = build_runtime(Some(1)).unwrap();
    runtime.block_on(wait_for_bus_error("redis://127.0.0.1:1", lack));

    fs::write(PORT_RANGE_FILE, usual.trim()).unwrap();
    let page = admin_page(&relay, "/metrics");
    for (route, upstream) in [("bolt", bolt), ("grpc", grpc), ("tcp", bolt)] {
        let labels = format!("{{route=\"{route}\",upstream=\"{upstream}\"}} 0\n");
        for name in ["upstream_down", "upstream_connections_failed_total"] {
            let line = format!("plimsoll_sidecar_{name}{labels}");
            assert!(page.contains(&line), "{line}{page}");
        }
        assert_eq!(counted(route, "answered_own_lack_total"), 1, "{route}");
        assert_eq!(counted(route, "answered_no_upstream_total"), 0, "{route}");
    }
    eventually("calls are carried again", || {
        client.send(request(FrameLayout::V1, 2, b"\x01x"));
        client.next_answer().2 == 0
    });
    relay.stop();
}
