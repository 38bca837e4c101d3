//! Relays that run out of file descriptors report that and do not blame their upstreams.

use std::fs::File;
use std::io::Read;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::Duration;

use plimsoll_protocols::bolt::{FrameLayout, Status};
use plimsoll_relays::bus::{Bus, RedisOptions};
use plimsoll_relays::sidecar::SidecarConfig;
use plimsoll_serving::build_runtime;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::by_itself::{is_run_by_itself, unchanged};
use super::http2_peer::Http2Peer;
use super::support::try_admin_page;
use super::upstreams::sidecar_with_two_servers;
use super::{BoltClient, admin_page, echo_server, eventually, request, sidecar};

/// Standard input, output and error: with this limit nothing else can be opened.
const STANDARD_STREAMS: u64 = 3;

/// Limits this process to descriptors below `limit`; open ones stay open.
fn limit_descriptors(limit: u64) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let current = Some(limit);
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
}

/// Allows `more` descriptors than are open now, besides those that other threads close later.
fn allow_more_descriptors(more: usize) {
    let files: Vec<_> = (0..more)
        .map(|_| File::open("/dev/null").unwrap())
        .collect();
    let last = files.last().unwrap().as_raw_fd();
    limit_descriptors(u64::try_from(last).unwrap() + 1);
}

/// Waits until a bus whose Redis cannot be reached reports `lack` as the reason.
pub(crate) async fn wait_for_bus_error(redis: &str, lack: &str) {
    let bus = Bus::redis(redis.parse().unwrap(), RedisOptions::default());
    let mut said = String::new();
    for _ in 0..60 {
        said = bus
            .wait_until_ready(Duration::from_secs(1))
            .await
            .unwrap_err()
            .to_string();
        if said.contains(lack) {
            return;
        }
    }
    panic!("{said}");
}

#[test]
fn descriptor_exhaustion_is_reported_local() {
    let test = "descriptors::descriptor_exhaustion_is_reported_local";
    if is_run_by_itself(test, unchanged()) {
        return;
    }
    let (relay, bolt, grpc) = sidecar_with_two_servers();
    let at = |place: usize| relay.listen_addresses()[place].1.tcp_address().unwrap();
    // The descriptors that the servers need themselves are open before they answer.
    let mut direct = BoltClient::connect(bolt);
    direct.send(request(FrameLayout::V1, 1, b"\x01x"));
    direct.next_answer();
    let mut client = BoltClient::connect(at(0));
    let mut streams = Http2Peer::new(TcpStream::connect(at(1)).unwrap(), true, &[]);
    let counted = |route, name| relay.counter_value(route, name).unwrap();
    eventually("the sidecar has both clients", || {
        ["bolt", "grpc"].map(|route| counted(route, "connections_open")) == [1, 1]
    });
    let runtime = build_runtime(Some(1)).unwrap();
    let usual = getrlimit(Resource::Nofile).current.unwrap();
    let lack = "\r\n\r\nroute bolt: this process ran out of file descriptors (limit: ";
    let mut left = 3;
    eventually("the page names the lack", || {
        // Leaves as many descriptors as the request and its answer need, and none for the probe.
        // With fewer the request would wait until it times out, so one more is allowed if another
        // thread took one.
        left = 5 - left;
        limit_descriptors(usual);
        allow_more_descriptors(left);
        try_admin_page(&relay, "/ready").is_ok_and(|page| page.contains(lack))
    });
    eventually("a connection lacks a descriptor for its upstream", || {
        limit_descriptors(usual);
        allow_more_descriptors(2);
        let Ok(mut piped) = TcpStream::connect(at(2)) else {
            return false;
        };
        // If another thread closed one in the meantime, the bytes are relayed and nothing comes
        // back.
        piped
            .set_read_timeout(Some(Duration::from_secs(1)))
            .unwrap();
        let ended = matches!(piped.read(&mut [0]), Ok(0) | Err(_));
        ended && counted("tcp", "answered_own_lack_total") > 0
    });
    limit_descriptors(STANDARD_STREAMS);

    client.send(request(FrameLayout::V1, 1, b"\x01x"));
    let (_, id, status, content) = client.next_answer();
    let text = String::from_utf8_lossy(&content);
    assert_eq!((id, status), (1, Status::ServerThreadpoolBusy as u16));
    assert!(text.contains("ran out of file descriptors"), "{text}");
    streams.call(1, &[], true);
    let answer = streams.next();
    assert_eq!(answer.field("grpc-status"), Some("14"));
    let message = answer.field("grpc-message").unwrap();
    assert!(message.contains("ran out of file descriptors"), "{message}");
    for host in ["127.0.0.1", "localhost"] {
        let redis = format!("redis://{host}:1");
        let lack = "this process ran out of file descriptors";
        runtime.block_on(wait_for_bus_error(&redis, lack));
    }

    limit_descriptors(usual);
    let page = admin_page(&relay, "/metrics");
    for (route, upstream) in [("bolt", bolt), ("grpc", grpc), ("tcp", bolt)] {
        let labels = format!("{{route=\"{route}\",upstream=\"{upstream}\"}} 0\n");
        for name in ["upstream_down", "upstream_connections_failed_total"] {
            let line = format!("plimsoll_sidecar_{name}{labels}");
            assert!(page.contains(&line), "{line}{page}");
        }
        let lacked = counted(route, "answered_own_lack_total");
        // The upstream of a connection that was accepted late may be missing, too.
        assert!(
            lacked == 1 || route == "tcp" && lacked > 1,
            "{route} {lacked}"
        );
        assert_eq!(counted(route, "answered_no_upstream_total"), 0, "{route}");
    }
    eventually("calls are carried again", || {
        client.send(request(FrameLayout::V1, 2, b"\x01x"));
        client.next_answer().2 == 0
    });
    relay.stop();
}

#[test]
fn descriptor_exhaustion_is_no_lookup_failure() {
    let test = "descriptors::descriptor_exhaustion_is_no_lookup_failure";
    if is_run_by_itself(test, unchanged()) {
        return;
    }
    let upstream = echo_server();
    let text = |host: &str| {
        let upstream = format!("{host}:{}", upstream.port());
        format!(
            "admin = \"127.0.0.1:0\"\nlookup = \"100ms\"\n[[route]]\nname = \"r\"\nprotocol = \"bolt\"\n\
             listen = \"127.0.0.1:0\"\nupstream = [\"{upstream}\"]\n"
        )
    };
    let (relay, outside) = sidecar(&text("127.0.0.1"));
    let mut client = BoltClient::connect(outside);
    eventually("the sidecar has the client", || {
        relay.counter_value("r", "connections_open") == Some(1)
    });
    let usual = getrlimit(Resource::Nofile).current.unwrap();
    limit_descriptors(STANDARD_STREAMS);
    relay
        .reload(&SidecarConfig::parse(&text("localhost")).unwrap())
        .unwrap();
    eventually("a call is answered after the reload", || {
        client.send(request(FrameLayout::V1, 1, b"\x01x"));
        let (_, _, status, content) = client.next_answer();
        let text = String::from_utf8_lossy(&content);
        assert_eq!(status, Status::ServerThreadpoolBusy as u16, "{text}");
        assert!(text.contains("ran out of file descriptors"), "{text}");
        relay.counter_value("r", "upstream_lookup_failures_total") > Some(1)
    });
    limit_descriptors(usual);
    assert_eq!(
        relay.counter_value("r", "answered_no_upstream_total"),
        Some(0)
    );
    eventually("the name is found, and calls are carried", || {
        client.send(request(FrameLayout::V1, 2, b"\x01x"));
        client.next_answer().2 == 0
    });
    relay.stop();
}
