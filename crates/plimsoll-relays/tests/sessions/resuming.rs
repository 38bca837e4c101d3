//! Clients whose connections are cut repeatedly receive 1..n exactly once and in order.

use std::time::Duration;

use plimsoll_relays::gateway::GatewayOptions;
use plimsoll_relays::llm::LlmOptions;

use crate::client::{SocketClient, SocketEvent, numbers};
use crate::stack::{GatewayProcess, Stack, quick};

#[tokio::test]
async fn client_resumes_after_last_frame() {
    let stack = Stack::start(quick(), GatewayOptions::default());
    let (session, token) = stack.session().await;
    stack.run(&session).await;
    let gateway = stack.gateway.address;
    // No client was connected during the run, so one that resumes at 0 gets all of it.
    let mut client = SocketClient::open(gateway, &session, &token, "?after=0")
        .await
        .ok()
        .unwrap();
    let resumed = client.frame().await;
    assert_eq!(
        (resumed["type"].as_str(), resumed["resumed"].as_bool()),
        (Some("resumed"), Some(true))
    );
    let epoch = resumed["epoch"]
        .as_u64()
        .or(client.frame().await["epoch"].as_u64())
        .unwrap();
    client.until_done().await;
    let query = format!("?after=15&epoch={epoch}");
    let mut client = SocketClient::open(gateway, &session, &token, &query)
        .await
        .ok()
        .unwrap();
    assert_eq!(client.frame().await["resumed"], true);
    assert_eq!(numbers(&client.until_done().await), [16, 17, 18, 19]);
    // For another epoch or a number that never existed the client gets a notice, then the log from
    // its beginning.
    for query in [
        format!("?after=15&epoch={}", epoch + 1),
        "?after=99".to_owned(),
    ] {
        let mut client = SocketClient::open(gateway, &session, &token, &query)
            .await
            .ok()
            .unwrap();
        let answer = client.frame().await;
        assert_eq!(
            (answer["resumed"].as_bool(), answer["epoch"].as_u64()),
            (Some(false), Some(epoch))
        );
        assert_eq!(
            numbers(&client.until_done().await),
            (1..=19).collect::<Vec<u64>>()
        );
    }
    // A client that names no position continues where the last socket stopped.
    let mut client = SocketClient::open(gateway, &session, &token, "")
        .await
        .ok()
        .unwrap();
    stack.run(&session).await;
    assert_eq!(
        numbers(&client.until_done().await),
        (20..=38).collect::<Vec<u64>>()
    );
}

#[tokio::test]
async fn gateway_shutdown_staggers_session_closes() {
    let stack = Stack::start(quick(), GatewayOptions::default());
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let (session, token) = stack.session().await;
        let opened = SocketClient::open(stack.gateway.address, &session, &token, "").await;
        let mut client = opened.ok().unwrap();
        clients.spawn(async move {
            assert_eq!(client.close_code().await, 1012);
            tokio::time::Instant::now()
        });
    }
    stack.gateway.stop().await;
    let mut closed = clients.join_all().await;
    closed.sort_unstable();
    // Closes are spread over half of the drain time, here 500 ms: 12.5 ms each. A late reader
    // notices a close late, so the gaps are checked against the total.
    let whole = closed[19] - closed[0];
    let gaps = closed.windows(2).map(|pair| pair[1] - pair[0]);
    assert!(whole >= Duration::from_millis(100), "{whole:?}");
    assert!(gaps.max() < Some(whole * 3 / 4), "{closed:?}");
}

/// Reads a session of `last` frames and cuts the connection every few frames.
async fn read_with_cuts(
    gateways: Vec<std::net::SocketAddr>,
    session: String,
    token: String,
    last: u64,
    mut seed: u64,
) -> u64 {
    let (mut seen, mut cuts) = (0u64, 0u64);
    loop {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let gateway = gateways[(seed >> 60) as usize % gateways.len()];
        let query = format!("?after={seen}");
        let Ok(mut client) = SocketClient::open(gateway, &session, &token, &query).await else {
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        };
        let cut_after = (seed >> 33) % 9;
        for _ in 0..=cut_after {
            match client.next().await {
                SocketEvent::Frame(frame) if frame["type"] == "resumed" => {
                    assert_eq!(frame["resumed"], true, "{frame}");
                }
                SocketEvent::Frame(frame) => {
                    seen += 1;
                    assert_eq!(
                        frame["seq"].as_u64(),
                        Some(seen),
                        "in order, once, none missing"
                    );
                    if seen == last {
                        return cuts;
                    }
                }
                SocketEvent::Close(_) | SocketEvent::End => break,
            }
        }
        cuts += 1;
    }
}

#[tokio::test]
async fn disconnects_lose_and_duplicate_nothing() {
    let llm = LlmOptions {
        token_delay: Duration::from_millis(3),
        tokens: Some(99),
        ..LlmOptions::default()
    };
    let stack = Stack::start(llm, GatewayOptions::default());
    let steady = GatewayProcess::start(&stack.bus, GatewayOptions::default());
    let mut readers = tokio::task::JoinSet::new();
    let addresses = vec![stack.gateway.address, steady.address];
    for seed in 0..30 {
        let (session, token) = stack.session().await;
        assert_eq!(stack.run(&session).await, 200);
        readers.spawn(read_with_cuts(addresses.clone(), session, token, 100, seed));
    }
    // All readers may be at the other gateway when this one stops.
    let (session, token) = stack.session().await;
    let opened = SocketClient::open(stack.gateway.address, &session, &token, "").await;
    let mut client = opened.ok().unwrap();
    let waiting = tokio::spawn(async move { client.close_code().await });
    // The gateway's side: one of the two closes all its sessions in the middle of a stream and
    // exits.
    stack.gateway.until("frames_total", 300).await;
    let metrics = stack.gateway.stop().await;
    assert_eq!(waiting.await.unwrap(), 1012);
    let closed = metrics.close_counter(1012).get();
    let mut cuts = closed;
    while let Some(reader) = readers.join_next().await {
        cuts += reader.unwrap();
    }
    assert!(cuts > 300, "only {cuts} cuts");
    assert!(closed > 0);
}
