//! Tests of the fast server: the same response to every call, over plaintext and TLS.

use std::time::Duration;

use plimsoll_model::formats::units::Period;
use plimsoll_protocols::grpc::target::fast::FastOptions;
use plimsoll_protocols::grpc::target::generated::score::JsonVector;
use plimsoll_serving::reference::default_flags;
use plimsoll_stack::certificates::CertificateOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::links::{mutual, tls};
use super::peer::{
    LONGEST, certificates, count, listen, plaintext, scores, secure, serve, serve_on,
};

fn options(workers: usize) -> FastOptions {
    FastOptions {
        // field 1, fixed64: 0.25
        message: [&[9][..], &0.25f64.to_le_bytes()].concat(),
        // One worker sleeps at once, several poll first: both modes are tested.
        busy_poll: Period(Duration::from_millis(workers as u64 - 1)),
        ..default_flags()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_succeed_over_every_link() {
    let (_dir, set) = certificates(&CertificateOptions::default());
    for (listen, client) in [
        (listen(), plaintext()),
        (tls(&set), secure(&set.ca_cert, None)),
        (mutual(&set), secure(&set.ca_cert, Some(&set))),
    ] {
        let server = serve_on(2, &listen, options(2));
        let mut calls = JoinSet::new();
        for _ in 0..7 {
            let client = scores(server.address, client.clone()).await;
            for n in 0..100usize {
                let mut client = client.clone();
                // Requests of zero to many frames.
                let json = "9".repeat(if n < 98 { n } else { 100_000 });
                calls.spawn(async move { client.get_score(JsonVector { json }).await });
            }
        }
        for answer in calls.join_all().await {
            assert_eq!(answer.unwrap().into_inner().score, 0.25);
        }
        let stats = server.stop().await;
        assert_eq!(count(&stats, "answered"), 700);
        assert_eq!(stats.connections.accepted, 7);
        assert_eq!(stats.connections.broken, 0, "{stats:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejected_clients_are_counted() {
    let (_dir, set) = certificates(&CertificateOptions::default());
    let server = serve_on(1, &mutual(&set), options(1));
    let anonymous = secure(&set.ca_cert, None);
    let mut stream = anonymous.connect_tls(server.address).await.unwrap();
    let _ = stream.write_all(b"PRI").await;
    let error = stream.read(&mut [0; 8]).await.unwrap_err().to_string();
    assert!(error.contains("CertificateRequired"), "{error}");
    let stats = server.stop().await;
    assert_eq!(
        (
            count(&stats, "answered"),
            stats.connections.handshakes_failed
        ),
        (0, 1),
        "{stats:?}"
    );

    let server = serve_on(1, &listen(), options(1));
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .await
        .unwrap();
    let mut answer = Vec::new();
    let closed = stream.read_to_end(&mut answer);
    let _ = tokio::time::timeout(LONGEST, closed).await.expect("closed");
    let stats = server.stop().await;
    assert_eq!(
        (count(&stats, "answered"), stats.connections.broken),
        (0, 1),
        "{stats:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn non_reading_client_is_not_read() {
    let server = serve(
        &listen(),
        FastOptions {
            message: vec![0; 4096],
            ..default_flags()
        },
    );
    let mut greedy = TcpStream::connect(server.address).await.unwrap();
    greedy
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\x06\x04\0\0\0\0\0\0\x04\x7f\xff\xff\xff\0\0\x04\x08\0\0\0\0\0\x7f\xff\0\0")
        .await
        .unwrap();
    // Requests are sent endlessly and no response is read: soon the server must stop reading.
    let mut id = 1u32;
    let flood = async {
        loop {
            let mut frames = Vec::new();
            for _ in 0..1000 {
                // HEADERS, END_HEADERS; then an empty message, END_STREAM.
                frames.extend([0, 0, 3, 1, 4]);
                frames.extend(id.to_be_bytes());
                frames.extend([0x83, 0x86, 0x84]);
                frames.extend([0, 0, 5, 0, 1]);
                frames.extend(id.to_be_bytes());
                frames.extend([0; 5]);
                id += 2;
            }
            greedy.write_all(&frames).await.unwrap();
        }
    };
    assert!(
        tokio::time::timeout(Duration::from_secs(2), flood)
            .await
            .is_err()
    );
    // Other clients are still served.
    let mut client = scores(server.address, plaintext()).await;
    let answer = tokio::time::timeout(
        LONGEST,
        client.get_score(JsonVector {
            json: String::new(),
        }),
    );
    // 4096 zeros are not a valid ScoreResponse, but a response.
    let _ = answer.await.expect("an answer in time");
    drop((client, greedy));
    let stats = server.stop().await;
    assert!(count(&stats, "answered") > 1000, "{stats:?}");
    // Sockets hold a few megabytes, which is less than ten thousand such answers.
    assert!(count(&stats, "answered") < 20_000, "{stats:?}");
}
