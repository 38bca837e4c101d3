//! Targets with several addresses: servers that share a port on 127.0.0.1, 127.0.0.2 and ::1; their
//! own counts show where the calls went.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::support;

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use serde_json::Value;
use support::peers::python;
use support::ports::free_port_on;
use support::{Place, SCORE, Server, stderr_of};

const HOSTS: [&str; 3] = ["127.0.0.1", "127.0.0.2", "::1"];

fn socket_address(host: &str, port: u16) -> SocketAddr {
    SocketAddr::new(host.parse::<IpAddr>().unwrap(), port)
}

fn serve(place: &Place, host: &str, port: u16) -> Server {
    let listen = socket_address(host, port).to_string();
    let (before_port, _) = listen.rsplit_once(':').unwrap();
    let mut command = place.command(&["serve", "score", "--listen", &listen]);
    Server::start_at(&format!("{before_port}:"), &mut command)
}

fn resolve(port: u16, hosts: &[&str]) -> String {
    let hosts: Vec<String> = hosts
        .iter()
        .map(|host| host.parse::<IpAddr>().unwrap().to_string())
        .collect();
    format!("api.test:{port}:{}", hosts.join(","))
}

/// Runs a load of 600 calls; returns its printed report.
fn load_arguments<'a>(url: &'a str, resolve: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut arguments = vec!["grpc", url, "--resolve", resolve, "--out", "run"];
    arguments.extend(["--rate", "600/s", "--calls", "600"]);
    arguments.extend(more);
    arguments.extend(SCORE);
    arguments
}

fn count(run: &Value, host: &str, port: u16, key: &str) -> u64 {
    let address = socket_address(host, port).to_string();
    let rows = run["total"]["addresses"].as_array().unwrap();
    let row = rows.iter().find(|row| row["address"] == address.as_str());
    row.map_or(0, |row| row[key].as_u64().unwrap())
}

/// Returns the number of calls that a server counted itself.
fn served(server: Server) -> u64 {
    let (code, said) = server.stop();
    assert_eq!(code, 0, "{said}");
    let calls = said
        .split(", ")
        .find_map(|part| part.strip_prefix("scored "));
    let calls = calls.unwrap_or_else(|| panic!("nothing scored in {said:?}"));
    calls.trim().parse().unwrap()
}

#[test]
fn connections_spread_over_all_resolved_addresses() {
    for processes in ["1", "2"] {
        let place = Place::new();
        let port = free_port_on(&HOSTS);
        let servers = HOSTS.map(|host| serve(&place, host, port));
        let (url, resolve) = (format!("grpc://api.test:{port}"), resolve(port, &HOSTS));
        let more = ["--connections", "6", "--processes", processes];
        let out = place.expect(0, &load_arguments(&url, &resolve, &more));
        assert!(out.contains("failed to connect"), "{out}");
        let run = place.run_json("run");
        for (host, server) in HOSTS.into_iter().zip(servers) {
            assert_eq!(count(&run, host, port, "connections"), 2, "{host}: {run}");
            let calls = count(&run, host, port, "calls");
            assert_eq!(calls, 200, "{host}");
            assert_eq!(served(server), calls, "{host}");
        }
    }
}

#[test]
fn address_refusing_connections_fails_no_calls() {
    let place = Place::new();
    let port = free_port_on(&HOSTS);
    let servers = [HOSTS[0], HOSTS[2]].map(|host| serve(&place, host, port));
    let (url, resolve) = (format!("grpc://api.test:{port}"), resolve(port, &HOSTS));
    place.expect(0, &load_arguments(&url, &resolve, &["--connections", "6"]));
    let run = place.run_json("run");
    assert_eq!(run["total"]["ok"], 600, "{run}");
    assert!(count(&run, HOSTS[1], port, "connect_failures") > 0);
    assert_eq!(count(&run, HOSTS[1], port, "connections"), 0);
    let served: u64 = servers.into_iter().map(served).sum();
    assert_eq!(served, 600);
    // The reflection query before a load uses the same addresses.
    let hosts = [HOSTS[1], HOSTS[0]];
    let server = serve(&place, HOSTS[0], port);
    let resolve = self::resolve(port, &hosts);
    let listed = place.expect(0, &["grpc", "list", &url, "--resolve", &resolve]);
    assert!(listed.contains("score.ScoreService"), "{listed}");
    drop(server);
}

/// Returns a listening socket whose backlog is full, so that it answers no SYN.
fn black_hole(host: &str) -> (TcpListener, Vec<TcpStream>) {
    let listener = TcpListener::bind(socket_address(host, 0)).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let address = listener.local_addr().unwrap();
    let limit = Duration::from_millis(500);
    let mut queue = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, limit) {
        queue.push(stream);
    }
    (listener, queue)
}

#[test]
fn unresponsive_address_is_raced_with_next() {
    let place = Place::new();
    let (hole, _queue) = black_hole("127.0.0.3");
    let port = hole.local_addr().unwrap().port();
    let server = serve(&place, "127.0.0.1", port);
    let url = format!("grpc://api.test:{port}");
    let resolve = resolve(port, &["127.0.0.3", "127.0.0.1"]);
    place.expect(0, &load_arguments(&url, &resolve, &["--connections", "2"]));
    let run = place.run_json("run");
    assert_eq!(run["total"]["ok"], 600, "{run}");
    let connect = &run["total"]["phases"]["connect"];
    assert!(
        connect["max_us"].as_f64().unwrap() >= 250_000.0,
        "{connect}"
    );
    assert_eq!(count(&run, "127.0.0.3", port, "connections"), 0);
    assert!(count(&run, "127.0.0.3", port, "connect_failures") > 0);
    assert_eq!(served(server), 600);
}

#[test]
fn ipv6_grpcio_server_reached_despite_dead_ipv4() {
    let place = Place::new();
    let port = free_port_on(&HOSTS);
    let listen = socket_address("::1", port).to_string();
    let mut command = python(&place, "grpcio_server.py");
    command.args(["--listen", &listen]);
    let _server = Server::start_at("[::1]:", &mut command);
    let (url, resolve) = (
        format!("grpc://api.test:{port}"),
        resolve(port, &["127.0.0.1", "::1"]),
    );
    place.expect(0, &load_arguments(&url, &resolve, &["--connections", "2"]));
    let run = place.run_json("run");
    assert_eq!(run["total"]["ok"], 600, "{run}");
    assert_eq!(count(&run, "::1", port, "calls"), 600);
}

#[test]
fn mismatched_resolve_entries_are_rejected() {
    let place = Place::new();
    for (given, needle) in [
        ("api.test:1", "`api.test:1` has no address"),
        (
            "b.test:1:127.0.0.1",
            "is for b.test:1, and the target is api.test:1",
        ),
    ] {
        let output = place.run(&load_arguments("grpc://api.test:1", given, &[]));
        assert_eq!(output.status.code(), Some(2), "{}", stderr_of(&output));
        assert!(
            stderr_of(&output).contains(needle),
            "{}",
            stderr_of(&output)
        );
    }
}
