//! Clients that open their socket after the run has begun or ended, without naming their position:
//! each gets every frame once.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use plimsoll_relays::bus::{Bus, FramePosition};
use plimsoll_relays::gateway::GatewayOptions;
use plimsoll_relays::llm::LlmOptions;
use plimsoll_relays::token::TokenKeys;
use plimsoll_wire::websocket::Opcode;

use crate::client::{LIMIT, SocketClient, SocketEvent, http, numbers};
use crate::redis::RedisServer;
use crate::stack::{GatewayProcess, SECRET, Stack, quick};

/// Waits until no run is in progress.
async fn wait_until_runs_end(api: SocketAddr) {
    let limit = tokio::time::Instant::now() + 2 * LIMIT;
    let request = "GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    while !http(api, request).await.2.contains("\"runs\":0") {
        assert!(tokio::time::Instant::now() < limit, "a run does not end");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn open(gateway: SocketAddr, session: &str, token: &str) -> SocketClient {
    SocketClient::open(gateway, session, token, "")
        .await
        .ok()
        .unwrap()
}

/// Closes the socket and waits for the gateway's Close.
async fn close(mut client: SocketClient) {
    client.send(Opcode::Close, &1000u16.to_be_bytes()).await;
    assert_eq!(client.close_code().await, 1000);
}

/// Opens and closes a socket when the session is created, then opens one per query after `/run`.
async fn assert_socket_per_query(stack: &Stack, gateways: &[SocketAddr], over: bool) {
    let (session, token) = stack.session().await;
    close(open(gateways[0], &session, &token).await).await;
    for query in 0..4u64 {
        assert_eq!(stack.run(&session).await, 200);
        if over {
            wait_until_runs_end(stack.api).await;
        }
        let gateway = gateways[query as usize % gateways.len()];
        let mut client = open(gateway, &session, &token).await;
        let expected: Vec<u64> = (query * 19 + 1..=query * 19 + 19).collect();
        assert_eq!(
            numbers(&client.until_done().await),
            expected,
            "query {query}"
        );
        close(client).await;
    }
}

#[tokio::test]
async fn late_socket_gets_whole_run() {
    let stack = Stack::start(quick(), GatewayOptions::default());
    let gateway = [stack.gateway.address];
    assert_socket_per_query(&stack, &gateway, false).await;
    assert_socket_per_query(&stack, &gateway, true).await;
    assert_eq!(stack.gateway.stop().await.duplicates.get(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_gateways_share_delivery_position() {
    let server = RedisServer::start();
    let stack = Stack::on(server.bus().await, quick(), GatewayOptions::default());
    let other = GatewayProcess::start(&server.bus().await, GatewayOptions::default());
    let gateways = [stack.gateway.address, other.address];
    assert_socket_per_query(&stack, &gateways, false).await;
    assert_socket_per_query(&stack, &gateways, true).await;
}

#[tokio::test]
async fn new_socket_resumes_at_old_position() {
    let slow = LlmOptions {
        token_delay: Duration::from_millis(5),
        tokens: Some(300),
        ..LlmOptions::default()
    };
    let stack = Stack::start(slow, GatewayOptions::default());
    let (session, token) = stack.session().await;
    assert_eq!(stack.run(&session).await, 200);
    let whole: Vec<u64> = (1..=301).collect();
    let mut seen = Vec::new();
    let mut old = open(stack.gateway.address, &session, &token).await;
    // Each socket is replaced by the next in the middle of a run, which is then read to its end.
    while seen.len() < whole.len() {
        for _ in 0..20.min(whole.len() - seen.len()) {
            seen.push(old.frame().await["seq"].as_u64().unwrap());
        }
        let new = open(stack.gateway.address, &session, &token).await;
        loop {
            match old.next().await {
                SocketEvent::Frame(frame) => seen.push(frame["seq"].as_u64().unwrap()),
                SocketEvent::Close(code) => {
                    assert_eq!(code, 4001);
                    break;
                }
                SocketEvent::End => panic!("no Close"),
            }
        }
        old = new;
    }
    assert_eq!(seen, whole);
}

#[tokio::test]
async fn unlogged_frames_pass_and_gaps_count() {
    let bus = Bus::embedded(Duration::from_secs(60));
    let stack = Stack::on(bus, quick(), GatewayOptions::default());
    // The backend only publishes, so the bus knows nothing of its sessions.
    let token = TokenKeys::new(&[SECRET.to_vec()])
        .unwrap()
        .sign("foreign")
        .unwrap();
    let publish = |text: String| {
        stack
            .bus
            .post("foreign", &Bytes::from(text), FramePosition::Middle)
    };
    let mut client = open(stack.gateway.address, "foreign", &token).await;
    // The numbers start anew with each query.
    for seq in [5, 6, 9, 1, 2] {
        publish(format!(r#"{{"type":"token","content":"x","seq":{seq}}}"#));
    }
    publish(r#"{"type":"done"}"#.to_owned());
    assert_eq!(numbers(&client.until_done().await), [5, 6, 9, 1, 2]);
    close(client).await;
    let (_, _, text) = http(stack.gateway.address, "GET /metrics HTTP/1.1\r\n\r\n").await;
    assert!(
        text.contains("plimsoll_gateway_frames_gone_total 6\n"),
        "{text}"
    );
}
