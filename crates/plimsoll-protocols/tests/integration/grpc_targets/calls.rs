//! Tests of calls: responses, rejections, delays, stalls; and the effect of stopping on them.

use std::time::{Duration, SystemTime};

use plimsoll_protocols::grpc::target::generated::orders::Order;
use plimsoll_protocols::grpc::target::generated::score::score_service_client::ScoreServiceClient;
use plimsoll_protocols::grpc::target::generated::score::{JsonVector, ScoreResponse};
use plimsoll_protocols::grpc::target::orders::OrdersOptions;
use plimsoll_protocols::grpc::target::score::ScoreOptions;
use plimsoll_serving::reference::{ReferenceServer, ServeContext, default_flags};
use plimsoll_serving::{ListenOptions, ResponseDelay, ResponseTiming, ServerStall};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

use super::peer::{LONGEST, channel, count, listen, orders_client, plaintext, scores, serve};

const MS: Duration = Duration::from_millis(1);

fn vector(json: &str) -> JsonVector {
    JsonVector { json: json.into() }
}

fn without_delay() -> ScoreOptions {
    ScoreOptions {
        delay: ResponseDelay::Constant(Duration::ZERO),
        ..default_flags()
    }
}

/// Makes a call that the server has begun to handle: a later one on the same connection was answered.
async fn start_call(
    client: &mut ScoreServiceClient<Channel>,
) -> JoinHandle<Result<Response<ScoreResponse>, Status>> {
    let mut first = client.clone();
    let mut call = Box::pin(async move { first.get_score(vector("[1]")).await });
    tokio::select! {
        biased;
        ended = &mut call => panic!("the call ended: {ended:?}"),
        behind = client.get_score(vector("no vector")) => assert!(behind.is_err()),
    }
    tokio::spawn(call)
}

fn new_order(n: i64) -> Order {
    Order {
        instrument_id: n,
        price: 100,
        quantity: 1,
        side: n % 2 == 0,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_vectors_return_invalid_argument() {
    let server = serve(&listen(), without_delay());
    let mut client = scores(server.address, plaintext()).await;
    let mut seen = Vec::new();
    for json in ["[0.1, 0.2]", "[]", " [1e3,-2] "] {
        let score = client
            .get_score(vector(json))
            .await
            .unwrap()
            .into_inner()
            .score;
        assert!((0.0..1.0).contains(&score), "{score}");
        assert!(!seen.contains(&score));
        seen.push(score);
    }
    for json in [
        "",
        "0.1",
        "[0.1,",
        "{\"a\": 1}",
        "[\"0.1\"]",
        "[0.1] x",
        "[null]",
    ] {
        let status = client.get_score(vector(json)).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{json}: {status}");
        assert!(status.message().contains("json"), "{status}");
    }
    drop(client);
    let stats = server.stop().await;
    assert_eq!(
        (
            count(&stats, "scored"),
            count(&stats, "invalid"),
            count(&stats, "abandoned")
        ),
        (3, 7, 0)
    );
    assert_eq!(stats.connections.accepted, 1);
    assert_eq!(stats.connections.broken, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_method_returns_unimplemented() {
    let server = serve(&listen(), without_delay());
    let mut client = orders_client(server.address, plaintext()).await;
    let status = client.submit(new_order(1)).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented, "{status}");
    drop(client);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn response_waits_for_delay() {
    let server = serve(&listen(), default_flags::<ScoreOptions>());
    let mut client = scores(server.address, plaintext()).await;
    let mut took = Vec::new();
    for _ in 0..200 {
        let start = Instant::now();
        client.get_score(vector("[1]")).await.unwrap();
        took.push(start.elapsed());
    }
    took.sort();
    println!(
        "5 ms through tonic: p50 {:?} p99 {:?}",
        took[100], took[198]
    );
    assert!(took[0] >= 5 * MS, "{:?}", took[0]);
    drop(client);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stall_delays_only_responses_within() {
    let stall = ServerStall {
        after: 200 * MS,
        duration: 300 * MS,
    };
    let usual = default_flags::<ScoreOptions>();
    let options = ScoreOptions {
        delay: ResponseDelay::Constant(5 * MS),
        answers: ResponseTiming {
            stall: Some(stall),
            ..usual.answers
        },
        ..usual
    };
    let server = serve(&listen(), options);
    let mut client = scores(server.address, plaintext()).await;
    // The server's clock starts with its first request, which is between these two moments.
    let begin = Instant::now();
    client.get_score(vector("[1]")).await.unwrap();
    let begin_latest = begin.elapsed() - 5 * MS;
    let mut calls = JoinSet::new();
    for i in 1..80u32 {
        let mut client = client.clone();
        calls.spawn(async move {
            tokio::time::sleep_until(begin + i * 10 * MS).await;
            let sent = begin.elapsed();
            client.get_score(vector("[1]")).await.unwrap();
            (sent, begin.elapsed())
        });
    }
    let (mut held, mut late) = (0, 0);
    let end = stall.after + stall.duration;
    for (sent, done) in calls.join_all().await {
        let due = sent + 5 * MS;
        assert!(done >= due, "sent {sent:?} done {done:?}");
        let expected = if due >= stall.after + begin_latest && due < end {
            held += 1;
            assert!(done >= end, "sent {sent:?} done {done:?}");
            end
        } else {
            due
        };
        // A busy machine delays some responses; an incorrect freeze delays most, and by as much as the
        // freeze.
        late += usize::from(done > expected + begin_latest + stall.duration / 2);
    }
    assert!(held >= 20, "{held}");
    assert!(late <= 20, "{late}");
    drop(client);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_finishes_calls_in_flight() {
    let options = ScoreOptions {
        delay: ResponseDelay::Constant(400 * MS),
        ..default_flags()
    };
    let server = serve(&listen(), options);
    let address = server.address;
    let mut client = scores(address, plaintext()).await;
    // A second, idle connection must not delay the stop. A response on it shows that the server has accepted
    // it; `connect` alone shows only that the kernel has.
    let mut idle = scores(address, plaintext()).await;
    assert!(idle.get_score(vector("no vector")).await.is_err());
    let call = start_call(&mut client).await;
    let task = server.stop_later();
    let limit = Instant::now() + LONGEST;
    while channel(address, plaintext()).await.is_ok() {
        assert!(Instant::now() < limit, "still accepting");
    }
    call.await.unwrap().expect("the call in flight ends well");
    let stats = task.await.unwrap().unwrap();
    assert_eq!(
        (count(&stats, "scored"), count(&stats, "abandoned")),
        (1, 0)
    );
    assert_eq!(stats.connections.cut_off, 0);
    assert_eq!(stats.connections.peak_open, 2);
    drop(idle);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drain_timeout_bounds_shutdown() {
    let listen = ListenOptions {
        drain: 200 * MS,
        ..listen()
    };
    let options = ScoreOptions {
        delay: ResponseDelay::Constant(5 * LONGEST),
        ..default_flags()
    };
    let server = serve(&listen, options);
    let mut client = scores(server.address, plaintext()).await;
    let call = start_call(&mut client).await;
    let begin = Instant::now();
    let stats = server.stop().await;
    // The stop takes far less time than the call would have.
    assert!(begin.elapsed() < LONGEST, "{:?}", begin.elapsed());
    assert_eq!(stats.connections.cut_off, 1);
    assert_eq!(
        (count(&stats, "scored"), count(&stats, "abandoned")),
        (0, 1)
    );
    assert!(call.await.unwrap().is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pool_bounds_orders_in_progress() {
    let options = OrdersOptions {
        pool: 3,
        processing: ResponseDelay::Constant(250 * MS),
        ..default_flags()
    };
    let server = serve(&listen(), options);
    let begin = Instant::now();
    let mut calls = JoinSet::new();
    for connection in 0..4 {
        let client = orders_client(server.address, plaintext()).await;
        for n in 0..3 {
            let mut client = client.clone();
            calls.spawn(async move { client.submit(new_order(connection * 3 + n)).await });
        }
    }
    for answer in calls.join_all().await {
        assert!(answer.unwrap().into_inner().received);
    }
    // Twelve orders of 250 ms with three workers take 1 s.
    assert!(begin.elapsed() >= 1000 * MS, "{:?}", begin.elapsed());
    let stats = server.stop().await;
    assert_eq!(
        (
            count(&stats, "received"),
            count(&stats, "processed"),
            count(&stats, "refused")
        ),
        (12, 12, 0)
    );
    assert_eq!(count(&stats, "most in progress"), 3);
    assert!(
        (1..=9).contains(&count(&stats, "most waiting")),
        "{stats:?}"
    );
}

/// Runs on one thread, so that orders are taken in the order of their submission.
#[tokio::test]
async fn full_queue_rejects_until_order_cancelled() {
    let options = OrdersOptions {
        pool: 1,
        queue: 2,
        processing: ResponseDelay::Constant(1000 * MS),
        ..default_flags()
    };
    let server = serve(&listen(), options);
    let client = orders_client(server.address, plaintext()).await;
    let submit = |n| {
        let mut client = client.clone();
        tokio::spawn(async move { client.submit(new_order(n)).await })
    };
    let first: Vec<_> = (0..3).map(submit).collect();
    let status = submit(3).await.unwrap().unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    assert!(status.message().contains("2 orders"), "{status}");

    first[2].abort();
    // Waits until the server has noticed it.
    let limit = Instant::now() + LONGEST;
    let mut refused = 1;
    while submit(4).await.unwrap().is_err() {
        assert!(Instant::now() < limit, "no place became free");
        refused += 1;
    }
    let stats = server.stop().await;
    assert_eq!(
        (
            count(&stats, "received"),
            count(&stats, "processed"),
            count(&stats, "refused"),
            count(&stats, "abandoned")
        ),
        (4 + refused, 3, refused, 1)
    );
    assert_eq!(
        (
            count(&stats, "most in progress"),
            count(&stats, "most waiting")
        ),
        (1, 2)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_limit_is_announced() {
    let listen = ListenOptions {
        max_concurrent_streams: Some(2),
        ..listen()
    };
    let options = ScoreOptions {
        delay: ResponseDelay::Constant(50 * MS),
        ..default_flags()
    };
    let server = serve(&listen, options);
    let mut client = scores(server.address, plaintext()).await;
    // After the first response the client knows the limit, and holds further calls back.
    client.get_score(vector("[1]")).await.unwrap();
    let begin = Instant::now();
    let mut calls = JoinSet::new();
    for _ in 0..6 {
        let mut client = client.clone();
        calls.spawn(async move { client.get_score(vector("[1]")).await });
    }
    assert!(calls.join_all().await.iter().all(Result::is_ok));
    assert!(begin.elapsed() >= 150 * MS, "{:?}", begin.elapsed());
    drop(client);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_handles_500_concurrent_connections() {
    let server = serve(&listen(), default_flags::<OrdersOptions>());
    let begin = SystemTime::now();
    let mut clients = Vec::new();
    for _ in 0..500 {
        clients.push(orders_client(server.address, plaintext()).await);
    }
    let mut calls = JoinSet::new();
    for (n, mut client) in clients.iter().cloned().enumerate() {
        calls.spawn(async move { client.submit(new_order(n as i64)).await });
    }
    assert!(calls.join_all().await.iter().all(Result::is_ok));
    println!("500 connections, a call each: {:?}", begin.elapsed());
    let stats = server.stop().await;
    assert_eq!(stats.connections.peak_open, 500);
    assert_eq!(
        (count(&stats, "processed"), stats.connections.broken),
        (500, 0)
    );
}

#[tokio::test]
async fn invalid_options_are_named() {
    let none = OrdersOptions {
        pool: 0,
        ..default_flags()
    };
    let place = ServeContext {
        bound: listen().bind().unwrap(),
        workers: None,
        stopped: Box::pin(async {}),
    };
    let error = none.start(place).err().unwrap();
    assert!(error.to_string().contains("at least 1"), "{error}");
    let error = plimsoll_serving::build_runtime(Some(0)).unwrap_err();
    assert!(error.to_string().contains("workers"), "{error}");
}
