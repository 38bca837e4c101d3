//! Client addresses as HAProxy and nginx report them in PROXY headers of either version, to the
//! gateway, the simulator's API and sidecars. Clients use 127.0.0.2 to differ from the balancer.

#![allow(clippy::disallowed_methods, reason = "tests wait in real time")]

use crate::support;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Instant;

use serde_json::Value;
use socket2::{Domain, Socket, Type};
use support::haproxy::Haproxy;
use support::nginx::Nginx;
use support::ports::free_port;
use support::{CLIENT_MTLS, MAX_WAIT, ORDER, Place, Server};

/// Sends `sent` from an address of this machine; returns the complete answer and the local port.
fn request_from(from: [u8; 4], to: &str, sent: &str) -> (String, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let from = SocketAddr::from((from, 0));
    socket.bind(&from.into()).expect("an address of loopback");
    let to: SocketAddr = to.parse().expect("an address");
    socket.connect(&to.into()).expect("a server listens");
    socket.set_read_timeout(Some(MAX_WAIT)).expect("a socket");
    let here = socket.local_addr().expect("an address");
    (&socket).write_all(sent.as_bytes()).expect("a connection");
    let mut answer = Vec::new();
    // A refused connection may be reset.
    let _ = (&socket).read_to_end(&mut answer);
    let here = here.as_socket().expect("an address");
    (support::text(&answer), here)
}

/// Waits for a line of the file that contains all `parts`.
#[track_caller]
fn wait_for_line(place: &Place, file: &str, parts: &[&str]) -> String {
    let end = Instant::now() + MAX_WAIT;
    loop {
        let text = place.read(file);
        let mut lines = text.lines();
        if let Some(line) = lines.find(|line| parts.iter().all(|part| line.contains(part))) {
            return line.to_owned();
        }
        assert!(Instant::now() < end, "no line with {parts:?} in {text}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Balancers in front of one server: HAProxy with header version 1 or 2, and nginx with version 1.
struct Balancers {
    _haproxy: Haproxy,
    _nginx: Nginx,
    addresses: [String; 3],
}

fn start_balancers(place: &Place, server: &str) -> Balancers {
    let ports = [free_port(), free_port()];
    let sections = ["send-proxy", "send-proxy-v2"].iter().zip(ports);
    let sections = sections.map(|(send, port)| {
        format!(
            "listen {send}\n bind 127.0.0.1:{port}\n \
             server s {server} {send} check check-send-proxy inter 200ms\n"
        )
    });
    let config: String = sections.collect();
    let haproxy = Haproxy::start(place, "tcp", &config, ports[1]);
    let nginx = Nginx::forwarding_tcp(place, server);
    let ports = [ports[0], ports[1], nginx.port];
    Balancers {
        _haproxy: haproxy,
        _nginx: nginx,
        addresses: ports.map(|port| format!("127.0.0.1:{port}")),
    }
}

const CLIENT: [u8; 4] = [127, 0, 0, 2];
const PROXY: [u8; 4] = [127, 0, 0, 1];

#[test]
fn api_and_gateway_log_original_client_addresses() {
    let place = Place::new();
    let log = File::create(place.path("log")).expect("a file");
    let mut command = place.command(&["--log-format", "json", "serve", "llm"]);
    command
        .args(["--listen", "127.0.0.1:0", "--with-gateway", "127.0.0.1:0"])
        .args(["--trusted-proxy", "127.0.0.1", "--proxy-protocol"])
        .stderr(Stdio::from(log));
    let mut server = Server::start(&mut command);
    let (api, gateway) = (server.address(), server.next_address());
    let post = |path: &str, body: &str| {
        let length = body.len();
        format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        )
    };
    let upgrade = |path: &str| {
        format!(
            "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
    };
    let create = post("/session/create", "");
    // Each has another reason, because the first of a class is logged at once.
    let cases = [
        (
            &api,
            [
                (post("/session/a/run", ""), "404", "unknown_session"),
                (post("/session/a/run", "x"), "422", "body"),
                (post("/health", ""), "405", "method"),
            ],
        ),
        (
            &gateway,
            [
                (upgrade("/a/ws/b"), "401", "no_token"),
                (upgrade("/a/b"), "404", "path"),
                (upgrade("/a/ws/b").replace("13", "8"), "426", "version"),
            ],
        ),
    ];
    for (server, cases) in cases {
        let balancers = start_balancers(&place, server);
        for (address, (request, status, reason)) in balancers.addresses.iter().zip(cases) {
            let (answer, client) = request_from(CLIENT, address, &request);
            assert!(
                answer.starts_with(&format!("HTTP/1.1 {status} ")),
                "{answer}"
            );
            let reason = format!("\"reason\":\"{reason}\"");
            let line = wait_for_line(&place, "log", &[&reason]);
            assert!(line.contains(&format!("\"{client}\"")), "{client}: {line}");
        }
    }
    // An untrusted client is served, but rejected if it sends a PROXY header.
    let (answer, _) = request_from(CLIENT, &api, &create);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let lying = format!("PROXY TCP4 203.0.113.7 127.0.0.1 5 80\r\n{create}");
    for server in [&api, &gateway] {
        let (answer, _) = request_from(CLIENT, server, &lying);
        assert_eq!(answer, "");
    }
    wait_for_line(
        &place,
        "log",
        &["\"reason\":\"proxy_not_trusted\"", "127.0.0.2"],
    );
    // A trusted proxy that sends no header is rejected.
    let (answer, _) = request_from(PROXY, &api, &create);
    assert_eq!(answer, "");
    wait_for_line(&place, "log", &["\"reason\":\"proxy_header_missing\""]);
    assert!(!place.read("log").contains("203.0.113.7"));
    assert_eq!(server.stop().0, 0);
}

#[test]
fn sidecar_gets_client_address_from_proxy_protocol() {
    let place = Place::new();
    place.certificates();
    let (http, orders) = (place.serve(&["http"]), place.serve(&["orders"]));
    let tls = "listen_tls = { ca = \"certs/ca.crt\", cert = \"certs/server.crt\", key = \"certs/server.key\" }";
    let sidecar = |name: &str, protocol: &str, upstream: &Server, more: &str| {
        let text = format!(
            "access_log = \"{name}.log\"\n[[route]]\nname = \"{name}\"\nprotocol = \"{protocol}\"\n\
             listen = \"127.0.0.1:0\"\nupstream = [\"{}\"]\nproxy_protocol = [\"127.0.0.1\"]\n{more}\n",
            upstream.address()
        );
        fs::write(place.path(name), text).expect("a file");
        let log = File::create(place.path(&format!("{name}.err"))).expect("a file");
        let mut command = place.command(&["relay", "sidecar", name]);
        Server::start(command.stderr(Stdio::from(log)))
    };
    let plain = sidecar("plain", "tcp", &http, "");
    let get = "GET /bytes/10 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let balancers = start_balancers(&place, &plain.address());
    for address in &balancers.addresses {
        let (answer, client) = request_from(CLIENT, address, get);
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        wait_for_line(&place, "plain.log", &[&format!("\"client\":\"{client}\"")]);
    }
    drop(balancers);
    let lying = format!("PROXY TCP4 203.0.113.7 127.0.0.1 5 80\r\n{get}");
    assert_eq!(request_from(CLIENT, &plain.address(), &lying).0, "");
    wait_for_line(
        &place,
        "plain.err",
        &["refused the client 127.0.0.2", "not trusted"],
    );
    let (answer, client) = request_from(CLIENT, &plain.address(), get);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    wait_for_line(&place, "plain.log", &[&format!("\"client\":\"{client}\"")]);
    assert_eq!(plain.stop().0, 0);
    // The header precedes TLS and the first frame of HTTP/2.
    let secured = sidecar("secured", "grpc", &orders, tls);
    let balancers = start_balancers(&place, &secured.address());
    for (out, address) in ["one", "two", "three"].iter().zip(&balancers.addresses) {
        let (_, port) = address.split_once(':').expect("a port");
        let url = format!("grpcs://localhost:{port}");
        let flags = ["grpc", &url, "-q", "--json", "--out", out, "--cold"];
        let load = ["--rate", "100/s", "--calls", "50"];
        let run: Value = place.expect_run(0, &[&flags[..], &CLIENT_MTLS, &ORDER, &load].concat());
        assert_eq!(run["total"]["ok"], 50, "{run}");
    }
    assert_eq!(secured.stop().0, 0);
}
