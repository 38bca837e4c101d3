//! Relays whose process runs out of file descriptors: they say so, and don't blame their upstreams.

use std::env;
use std::fs::File;
use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::time::Duration;

use plimsoll_protocols::bolt::{Form, Status};
use plimsoll_protocols::serving::runtime;
use plimsoll_relays::bus::{Bus, RedisOptions};

use super::http2_peer::Http2Peer;
use super::support::try_admin_page;
use super::upstreams::service;
use super::{Client, admin_page, echo_server, eventually, request, sidecar};

/// Opens files until no descriptor is left, and other threads have given back none for a while.
fn take_all(files: &mut Vec<File>) {
    let mut quiet = 0;
    eventually("every descriptor is taken", || {
        let before = files.len();
        while let Ok(file) = File::open("/dev/null") {
            files.push(file);
        }
        quiet = if files.len() == before { quiet + 1 } else { 0 };
        quiet == 10
    });
}

/// Runs the test named in a process of its own, for the limit is that of a process; `false`: this is
/// that process.
fn is_run_with_few_descriptors(test: &str) -> bool {
    const HERE: &str = "PLIMSOLL_TEST_FEW_DESCRIPTORS";
    if env::var_os(HERE).is_some() {
        return false;
    }
    let output = Command::new("sh")
        .args([
            "-c",
            "ulimit -n 200; exec \"$0\" --exact \"$1\" --nocapture",
        ])
        .arg(env::current_exe().unwrap())
        .arg(test)
        .env(HERE, "1")
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(printed.contains("test result: ok. 1 passed"), "{output:?}");
    true
}

#[test]
fn a_relay_without_descriptors_names_its_own_lack() {
    if is_run_with_few_descriptors("descriptors::a_relay_without_descriptors_names_its_own_lack") {
        return;
    }
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
    let at = |place: usize| relay.listening()[place].1.tcp().unwrap();
    // What the servers need themselves, they have before they answer.
    let mut direct = Client::connect(bolt);
    direct.send(request(Form::V1, 1, b"\x01x"));
    direct.answer();
    let mut client = Client::connect(at(0));
    let mut streams = Http2Peer::new(TcpStream::connect(at(1)).unwrap(), true, &[]);
    let counted = |route, name| relay.counter(route, name).unwrap();
    eventually("the sidecar has both clients", || {
        ["bolt", "grpc"].map(|route| counted(route, "connections_open")) == [1, 1]
    });
    let runtime = runtime(Some(1)).unwrap();
    let mut files = Vec::new();
    let lack = "\r\n\r\nroute bolt: this process ran out of file descriptors (limit: 200)";
    let mut left = 2;
    eventually("the page names the lack", || {
        // As many are left as it takes to ask, and none to find out. A thread that waits in accept has
        // its descriptor already.
        take_all(&mut files);
        left = 3 - left;
        files.truncate(files.len() - left);
        try_admin_page(&relay, "/ready").is_ok_and(|page| page.contains(lack))
    });
    take_all(&mut files);
    files.truncate(files.len() - 2);
    let mut piped = TcpStream::connect(at(2)).unwrap();
    let patience = Some(Duration::from_secs(60));
    piped.set_read_timeout(patience).unwrap();
    assert!(matches!(piped.read(&mut [0]), Ok(0) | Err(_)));
    assert_eq!(counted("tcp", "answered_no_descriptors_total"), 1);
    drop(piped);
    take_all(&mut files);

    client.send(request(Form::V1, 1, b"\x01x"));
    let (_, id, status, content) = client.answer();
    let text = String::from_utf8_lossy(&content);
    assert_eq!((id, status), (1, Status::ServerThreadpoolBusy as u16));
    assert!(text.contains("has no file descriptor"), "{text}");
    streams.call(1, &[], true);
    let answer = streams.next();
    assert_eq!(answer.field("grpc-status"), Some("14"));
    let message = answer.field("grpc-message").unwrap();
    assert!(message.contains("no file descriptor"), "{message}");
    let redis = runtime.block_on(async {
        let address = "redis://127.0.0.1:1".parse().unwrap();
        let bus = Bus::redis(address, RedisOptions::default());
        let why = bus.ready(Duration::from_secs(1)).await.unwrap_err();
        why.to_string()
    });
    assert!(
        redis.contains("this process ran out of file descriptors"),
        "{redis}"
    );

    drop(files);
    let page = admin_page(&relay, "/metrics");
    for (route, upstream) in [("bolt", bolt), ("grpc", grpc), ("tcp", bolt)] {
        let labels = format!("{{route=\"{route}\",upstream=\"{upstream}\"}} 0\n");
        for name in ["upstream_down", "upstream_connections_failed_total"] {
            let line = format!("plimsoll_sidecar_{name}{labels}");
            assert!(page.contains(&line), "{line}{page}");
        }
        assert_eq!(
            counted(route, "answered_no_descriptors_total"),
            1,
            "{route}"
        );
        assert_eq!(counted(route, "answered_no_upstream_total"), 0, "{route}");
    }
    eventually("calls are carried again", || {
        client.send(request(Form::V1, 2, b"\x01x"));
        client.answer().2 == 0
    });
    relay.stop();
}
