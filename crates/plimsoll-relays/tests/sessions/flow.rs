//! The normal flow of a session, and how the gateway treats misbehaving clients.

use std::time::Duration;

use plimsoll_relays::gateway::GatewayOptions;
use plimsoll_relays::llm::LlmOptions;
use plimsoll_wire::websocket::{Opcode, append_masked_frame};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::client::{LIMIT, SocketClient, SocketEvent, http, numbers, post};
use crate::stack::{Stack, quick};

#[tokio::test]
async fn frame_numbers_continue_across_queries() {
    let stack = Stack::start(quick(), GatewayOptions::default());
    let (session, token) = stack.session().await;
    let mut client = SocketClient::open(stack.gateway.address, &session, &token, "")
        .await
        .ok()
        .unwrap();
    let mut seen = Vec::new();
    for query in 0..3u64 {
        let (status, run) = post(stack.api, &format!("/session/{session}/run")).await;
        assert_eq!((status, run["tokens"].as_u64()), (200, Some(18)));
        let frames = client.until_done().await;
        assert_eq!(frames.len(), 19);
        assert_eq!(frames[0]["type"], "token");
        assert_eq!(frames[0]["run"], run["run"]);
        assert_eq!(run["run"].as_u64(), Some(query * 19 + 1));
        let done = &frames[18];
        assert_eq!(
            (done["tokens"].as_u64(), done["finish"].as_str()),
            (Some(18), Some("stop"))
        );
        seen.extend(numbers(&frames));
    }
    assert_eq!(seen, (1..=57).collect::<Vec<u64>>());
    let (status, _) = post(stack.api, &format!("/session/{session}/close")).await;
    assert_eq!(status, 200);
    assert_eq!(
        stack.run(&session).await,
        404,
        "a closed session runs no more"
    );
    client.send(Opcode::Close, &1000u16.to_be_bytes()).await;
    assert_eq!(client.next().await, SocketEvent::Close(1000));
    assert_eq!(client.next().await, SocketEvent::End);
}

#[tokio::test]
async fn cancel_ends_run_or_reports_error() {
    let slow = LlmOptions {
        token_delay: Duration::from_millis(200),
        ..LlmOptions::default()
    };
    let stack = Stack::start(slow, GatewayOptions::default());
    let (session, token) = stack.session().await;
    let mut client = SocketClient::open(stack.gateway.address, &session, &token, "")
        .await
        .ok()
        .unwrap();
    client.send(Opcode::Text, br#"{"type":"cancel"}"#).await;
    assert_eq!(client.frame().await["code"], "nobody_listens");
    client.send(Opcode::Text, b"{").await;
    assert_eq!(client.frame().await["code"], "not_json");
    assert_eq!(stack.run(&session).await, 200);
    assert_eq!(stack.run(&session).await, 409, "one run at a time");
    client.send(Opcode::Text, br#"{"type":"cancel"}"#).await;
    let frames = client.until_done().await;
    let done = frames.last().unwrap();
    assert_eq!(done["finish"], "cancelled");
    assert_eq!(done["tokens"].as_u64(), Some(frames.len() as u64 - 1));
    assert!(frames.len() < 5);
}

#[tokio::test]
async fn new_socket_receives_after_takeover() {
    let stack = Stack::start(quick(), GatewayOptions::default());
    let (session, token) = stack.session().await;
    let gateway = stack.gateway.address;
    let mut old = SocketClient::open(gateway, &session, &token, "")
        .await
        .ok()
        .unwrap();
    let mut new = SocketClient::open(gateway, &session, &token, "")
        .await
        .ok()
        .unwrap();
    assert_eq!(old.close_code().await, 4001);
    drop(old);
    stack.run(&session).await;
    assert_eq!(
        numbers(&new.until_done().await),
        (1..=19).collect::<Vec<u64>>()
    );
}

#[tokio::test]
async fn only_unresponsive_clients_are_closed() {
    let options = GatewayOptions {
        ping_interval: Duration::from_millis(500),
        ping_timeout: Duration::from_secs(5),
        ..GatewayOptions::default()
    };
    let stack = Stack::start(quick(), options);
    let (session, token) = stack.session().await;
    let (other, others_token) = stack.session().await;
    let mut silent = SocketClient::open(stack.gateway.address, &session, &token, "")
        .await
        .ok()
        .unwrap();
    silent.answer_pings = false;
    // The client is connected for longer than a silent one is tolerated.
    let mut living = SocketClient::open(stack.gateway.address, &other, &others_token, "")
        .await
        .ok()
        .unwrap();
    tokio::select! {
        code = silent.close_code() => assert_eq!(code, 4408),
        ended = living.next() => panic!("{ended:?}"),
    }
    let ended = tokio::time::timeout(Duration::from_secs(1), living.next()).await;
    assert!(ended.is_err(), "{ended:?}");
}

/// Waits until all sockets are closed and counted.
async fn wait_until_no_clients(stack: &Stack) {
    let limit = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        let (_, _, health) = http(stack.gateway.address, "GET /health HTTP/1.1\r\n\r\n").await;
        if health == r#"{"status":"healthy","sessions":0}"# {
            return;
        }
        assert!(tokio::time::Instant::now() < limit, "{health}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn non_reading_client_is_closed() {
    let options = GatewayOptions {
        ping_interval: Duration::from_millis(100),
        ping_timeout: Duration::from_millis(800),
        max_queue: 4096,
        ..GatewayOptions::default()
    };
    let flood = LlmOptions {
        token_delay: Duration::from_micros(1),
        text: "x".repeat(2000),
        tokens: Some(6000),
        ..LlmOptions::default()
    };
    let stack = Stack::start(flood, options);
    let (session, token) = stack.session().await;
    let client = SocketClient::open(stack.gateway.address, &session, &token, "")
        .await
        .ok()
        .unwrap();
    assert_eq!(stack.run(&session).await, 200);
    // 12 MB are sent; the sockets hold a part of it, the gateway at most its queue.
    wait_until_no_clients(&stack).await;
    drop(client);
    let metrics = stack.gateway.stop().await;
    assert_eq!(metrics.close_counter(4408).get(), 1);
    assert!(metrics.slow.get() > 0);
}

#[tokio::test]
async fn slow_reader_catches_up_from_log() {
    let options = GatewayOptions {
        max_queue: 4096,
        ..GatewayOptions::default()
    };
    let flood = LlmOptions {
        token_delay: Duration::from_micros(1),
        text: "x".repeat(1000),
        tokens: Some(12_000),
        ..LlmOptions::default()
    };
    let stack = Stack::start(flood, options);
    let (session, token) = stack.session().await;
    let mut client = SocketClient::open(stack.gateway.address, &session, &token, "")
        .await
        .ok()
        .unwrap();
    assert_eq!(stack.run(&session).await, 200);
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(
        numbers(&client.until_done().await),
        (1..=12_001).collect::<Vec<u64>>()
    );
    let metrics = stack.gateway.stop().await;
    assert!(metrics.slow.get() > 0, "the queue was full at least once");
}

#[tokio::test]
async fn shutdown_closes_clients_with_1012() {
    let stack = Stack::start(quick(), GatewayOptions::default());
    let mut clients = Vec::new();
    for _ in 0..20 {
        let (session, token) = stack.session().await;
        clients.push(
            SocketClient::open(stack.gateway.address, &session, &token, "")
                .await
                .ok()
                .unwrap(),
        );
    }
    let stopped = tokio::spawn(stack.gateway.stop());
    for client in &mut clients {
        assert_eq!(client.close_code().await, 1012);
        client.stream.shutdown().await.unwrap();
    }
    let metrics = stopped.await.unwrap();
    assert_eq!(metrics.close_counter(1012).get(), 20);
}

#[tokio::test]
async fn metrics_contain_no_session_ids() {
    let stack = Stack::start(quick(), GatewayOptions::default());
    let (session, token) = stack.session().await;
    let mut client = SocketClient::open(stack.gateway.address, &session, &token, "")
        .await
        .ok()
        .unwrap();
    stack.run(&session).await;
    client.until_done().await;
    let (status, _, text) = http(stack.gateway.address, "GET /metrics HTTP/1.1\r\n\r\n").await;
    assert_eq!(status, 200);
    assert!(
        text.contains("plimsoll_gateway_sessions_open 1\n"),
        "{text}"
    );
    assert!(
        text.contains("plimsoll_gateway_frames_total 19\n"),
        "{text}"
    );
    assert!(!text.contains(&session) && !text.contains(&token));
    assert!(text.ends_with("# EOF\n"), "{text}");
    let request = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let (status, head, text) = http(stack.api, request).await;
    assert_eq!(status, 200);
    assert!(head.contains("application/openmetrics-text"), "{head}");
    for line in [
        "plimsoll_llm_sessions_total 1",
        "plimsoll_llm_runs_total 1",
        "plimsoll_llm_tokens_total 18",
        "plimsoll_llm_bus_up 1",
        r#"plimsoll_llm_requests_total{kind="run",status="200"} 1"#,
        r#"plimsoll_llm_request_seconds_count{kind="create"} 1"#,
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    assert!(!text.contains(&session) && !text.contains(&token));
}

#[tokio::test]
async fn unknown_session_returns_404() {
    let stack = Stack::start(quick(), GatewayOptions::default());
    assert_eq!(post(stack.api, "/session/none/run").await.0, 404);
    assert_eq!(post(stack.api, "/session/a:b/run").await.0, 404);
    assert_eq!(post(stack.api, "/session/none/close").await.0, 404);
    let request = "GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let (status, _, body) = http(stack.api, request).await;
    assert_eq!(
        (status, body),
        (200, json!({ "runs": 0, "status": "healthy" }).to_string())
    );
}

/// Sends pings until the socket accepts no more; returns the number of bytes sent.
async fn flood(client: &mut SocketClient, ping: &[u8]) -> usize {
    /// More than the kernels buffer for a connection in both directions.
    const FLOOD: usize = 128 << 20;
    let chunk = ping.repeat(16 * 1024);
    let mut sent = 0;
    while sent < FLOOD {
        let write = client.stream.write(&chunk[sent % chunk.len()..]);
        match tokio::time::timeout(Duration::from_secs(2), write).await {
            Ok(Ok(written)) => sent += written,
            _ => break,
        }
    }
    assert!(sent < FLOOD, "the gateway took {sent} bytes of pings");
    sent
}

#[tokio::test]
async fn non_reading_pinger_is_closed() {
    let options = GatewayOptions {
        ping_interval: Duration::from_millis(100),
        ping_timeout: Duration::from_secs(4),
        ..GatewayOptions::default()
    };
    let stack = Stack::start(quick(), options);
    let (session, token) = stack.session().await;
    let mut client = SocketClient::open(stack.gateway.address, &session, &token, "")
        .await
        .ok()
        .unwrap();
    let mut ping = Vec::new();
    append_masked_frame(&mut ping, Opcode::Ping, [1, 2, 3, 4], b"");
    flood(&mut client, &ping).await;
    wait_until_no_clients(&stack).await;
    let metrics = stack.gateway.stop().await;
    assert_eq!(metrics.close_counter(1008).get(), 1);
    assert_eq!(metrics.sessions.get(), 1, "no other one was closed");
    assert_eq!(metrics.unread.get(), 1);
}

#[tokio::test]
async fn reading_pauses_while_pongs_pile_up() {
    let patient = GatewayOptions {
        ping_interval: Duration::from_secs(600),
        ping_timeout: Duration::from_secs(600),
        ..GatewayOptions::default()
    };
    let stack = Stack::start(quick(), patient);
    let (session, token) = stack.session().await;
    let mut client = SocketClient::open(stack.gateway.address, &session, &token, "")
        .await
        .ok()
        .unwrap();
    let mut ping = Vec::new();
    append_masked_frame(&mut ping, Opcode::Ping, [1, 2, 3, 4], b"");
    let sent = flood(&mut client, &ping).await;
    // The pongs for the complete pings, of two bytes each.
    let owed = sent / ping.len() * 2;
    let (mut came, mut buffer) = (0, vec![0; 64 << 10]);
    while came < owed {
        let most = buffer.len().min(owed - came);
        let read = client.stream.read(&mut buffer[..most]);
        came += tokio::time::timeout(LIMIT, read)
            .await
            .expect("pongs")
            .unwrap();
    }
    let rest = ping.len() - sent % ping.len();
    if rest < ping.len() {
        client
            .stream
            .write_all(&ping[ping.len() - rest..])
            .await
            .unwrap();
        client.stream.read_exact(&mut buffer[..2]).await.unwrap();
    }
    let (status, _) = post(stack.api, &format!("/session/{session}/run")).await;
    assert_eq!(status, 200);
    assert_eq!(client.until_done().await.len(), 19);
}
