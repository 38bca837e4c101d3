//! Backends and gateways that are shutting down: health checks fail, clients are still served, and
//! accepted runs finish, here or at another backend.

use std::net::SocketAddr;
use std::time::Duration;

use plimsoll_relays::bus::Bus;
use plimsoll_relays::gateway::GatewayOptions;
use plimsoll_relays::llm::LlmOptions;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::client::{SocketClient, http, numbers, post};
use crate::redis::RedisServer;
use crate::stack::{BackendProcess, GatewayProcess, Stack, quick, session};

/// Longer than any wait in these tests.
const LONG_LAME_DUCK: Duration = Duration::from_secs(600);

async fn status(of: SocketAddr, path: &str) -> (u16, String, String) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    http(of, &request).await
}

/// Waits until the health check reports that the process is stopping.
async fn wait_until_stopping(of: SocketAddr) {
    let limit = Instant::now() + Duration::from_secs(60);
    while status(of, "/ready").await.0 != 503 {
        assert!(
            Instant::now() < limit,
            "the health check still reports ready"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn lame_duck_still_serves_clients() {
    let bus = Bus::embedded(Duration::from_secs(60));
    let mut api = BackendProcess::start(
        &bus,
        LlmOptions {
            lame_duck: LONG_LAME_DUCK,
            ..quick()
        },
    );
    let options = GatewayOptions {
        lame_duck: LONG_LAME_DUCK,
        ..GatewayOptions::default()
    };
    let mut gateway = GatewayProcess::start(&bus, options);
    for of in [api.address, gateway.address] {
        for path in ["/ready", "/health"] {
            assert!(status(of, path).await.1.starts_with("HTTP/1.1 200 "));
        }
    }
    // A connection that a balancer keeps open.
    let mut kept = TcpStream::connect(api.address).await.unwrap();
    api.begin_to_stop();
    gateway.begin_to_stop();
    for of in [api.address, gateway.address] {
        wait_until_stopping(of).await;
        let (status, head, body) = status(of, "/health").await;
        assert_eq!(
            (status, &*body),
            (503, r#"{"status":"stopping"}"#),
            "{head}"
        );
    }
    let (session, token) = session(api.address).await;
    let mut client = SocketClient::open(gateway.address, &session, &token, "")
        .await
        .ok()
        .unwrap();
    assert_eq!(
        post(api.address, &format!("/session/{session}/run"))
            .await
            .0,
        200
    );
    assert_eq!(client.until_done().await.len(), 19);
    let request = b"POST /session/create HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n";
    kept.write_all(request).await.unwrap();
    let mut answer = String::new();
    // Reads until the connection is closed.
    kept.read_to_string(&mut answer).await.unwrap();
    assert!(answer.contains("connection: close"), "{answer}");
}

/// Options with tokens for longer than the drain time of these tests, half a second.
fn long_answers() -> LlmOptions {
    LlmOptions {
        token_delay: Duration::from_millis(40),
        tokens: Some(60),
        ..LlmOptions::default()
    }
}

const SESSIONS: usize = 12;

/// Returns clients whose runs have begun at this backend.
async fn start_runs(api: SocketAddr, gateway: SocketAddr) -> Vec<(String, SocketClient)> {
    let mut clients = Vec::new();
    for _ in 0..SESSIONS {
        let (session, token) = session(api).await;
        let client = SocketClient::open(gateway, &session, &token, "").await;
        assert_eq!(post(api, &format!("/session/{session}/run")).await.0, 200);
        let mut client = client.ok().unwrap();
        assert_eq!(client.frame().await["seq"], 1);
        clients.push((session, client));
    }
    clients
}

fn finish_reason(frames: &[Value]) -> &str {
    frames.last().unwrap()["finish"].as_str().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_runs_move_to_another_backend() {
    let server = RedisServer::start();
    let gateway = GatewayProcess::start(&server.bus().await, GatewayOptions::default());
    let first = BackendProcess::start(&server.bus().await, long_answers());
    let second = BackendProcess::start(&server.bus().await, long_answers());
    assert_eq!(status(second.address, "/ready").await.0, 200);
    let clients = start_runs(first.address, gateway.address).await;
    let stats = first.stop().await;
    let counted = [&stats.runs, &stats.handed_over, &stats.unfinished];
    let all = counted.map(|counter| counter.get());
    assert_eq!(all, [SESSIONS as u64, SESSIONS as u64, 0]);
    let begun = stats.tokens.get();
    for (session, mut client) in clients {
        let frames = client.until_done().await;
        assert_eq!(numbers(&frames), (2..=61).collect::<Vec<u64>>());
        assert_eq!(finish_reason(&frames), "stop");
        let lock = server.ask(&format!("EXISTS session:{session}:run"));
        assert_eq!(lock, ":0\r\n");
        // The session continues at the backend that took the run.
        assert_eq!(
            post(second.address, &format!("/session/{session}/run"))
                .await
                .0,
            200
        );
        assert_eq!(client.frame().await["seq"], 62);
    }
    assert!(
        begun < SESSIONS as u64 * 60,
        "no run was unfinished: {begun} tokens"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orphaned_runs_fail_and_release_lock() {
    let server = RedisServer::start();
    let gateway = GatewayProcess::start(&server.bus().await, GatewayOptions::default());
    let only = BackendProcess::start(&server.bus().await, long_answers());
    let clients = start_runs(only.address, gateway.address).await;
    let (one, _) = &clients[0];
    let lasts: u32 = server
        .ask(&format!("TTL session:{one}:run"))
        .trim_start_matches(':')
        .trim()
        .parse()
        .unwrap();
    assert!((1..=60).contains(&lasts), "a lock for {lasts} s");
    let stats = only.stop().await;
    let counted = (stats.handed_over.get(), stats.unfinished.get());
    assert_eq!(counted, (0, SESSIONS as u64));
    for (session, mut client) in clients {
        let frames = client.until_done().await;
        assert_eq!(finish_reason(&frames), "error");
        let lock = server.ask(&format!("EXISTS session:{session}:run"));
        assert_eq!(lock, ":0\r\n");
    }
}

#[tokio::test]
async fn incomplete_requests_time_out() {
    let slow = Duration::from_millis(300);
    let options = GatewayOptions {
        request_timeout: slow,
        ..GatewayOptions::default()
    };
    let stack = Stack::start(
        LlmOptions {
            request_timeout: slow,
            ..quick()
        },
        options,
    );
    let (session, _) = stack.session().await;
    let head = format!("POST /session/{session}/run HTTP/1.1\r\nHost: x\r\n");
    let body = format!("{head}Content-Length: 20\r\n\r\n{{\"query\"");
    let api = stack.api;
    for (what, to, request, answer) in [
        ("no head", api, "", ""),
        ("half a head", api, &*head, ""),
        ("half a body", api, &body, "HTTP/1.1 408 "),
        ("no head", stack.gateway.address, "", ""),
        (
            "half a head",
            stack.gateway.address,
            "GET /health HTTP/1.1\r\n",
            "",
        ),
    ] {
        let (_, got, _) = http(to, request).await;
        assert!(got.starts_with(answer), "{what}: {got}");
        assert_eq!(got.is_empty(), answer.is_empty(), "{what}: {got}");
    }
    // Such requests do not block others.
    assert_eq!(post(api, &format!("/session/{session}/run")).await.0, 200);
}
