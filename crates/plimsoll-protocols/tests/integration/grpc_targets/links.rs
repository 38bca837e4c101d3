//! Tests of secure links: accepted and rejected peers, and errors in files and addresses.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use plimsoll_model::plan::{KeyExchangeGroup, TlsSuite, TlsVersion};
use plimsoll_protocols::grpc::target::generated::orders::Order;
use plimsoll_protocols::grpc::target::generated::score::JsonVector;
use plimsoll_protocols::grpc::target::generated::score::score_service_client::ScoreServiceClient;
use plimsoll_protocols::grpc::target::orders::OrdersOptions;
use plimsoll_protocols::grpc::target::score::ScoreOptions;
use plimsoll_serving::reference::default_flags;
use plimsoll_serving::{ListenOptions, ResponseDelay, ServerTlsOptions};
use plimsoll_stack::certificates::{CertificateOptions, CertificatePaths, KeyAlgorithm, Validity};
use rustls::{CipherSuite, NamedGroup};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::peer::{
    ClientSecurity, certificates, channel, count, listen, orders_client, plaintext, scores, secure,
    serve,
};

pub(crate) fn tls(set: &CertificatePaths) -> ListenOptions {
    ListenOptions {
        tls: Some(ServerTlsOptions {
            cert: set.server_cert.clone(),
            key: set.server_key.clone(),
            client_ca: None,
            client_crl: None,
            suites: Vec::new(),
            groups: Vec::new(),
            versions: vec![TlsVersion::V1_3],
            compressed: false,
        }),
        ..listen()
    }
}

pub(crate) fn mutual(set: &CertificatePaths) -> ListenOptions {
    let mut listen = tls(set);
    listen.tls.as_mut().unwrap().client_ca = Some(set.ca_cert.clone());
    listen
}

fn vector() -> JsonVector {
    JsonVector {
        json: "[1]".to_owned(),
    }
}

fn without_delay() -> ScoreOptions {
    ScoreOptions {
        delay: ResponseDelay::Constant(Duration::ZERO),
        ..default_flags()
    }
}

/// Returns the client's error when it can't talk to the server.
async fn refusal_text(address: SocketAddr, secure: ClientSecurity) -> String {
    if secure.config.is_none() {
        return match channel(address, secure).await {
            Err(error) => error.to_string(),
            Ok(channel) => ScoreServiceClient::new(channel)
                .get_score(vector())
                .await
                .expect_err("the call must not work")
                .to_string(),
        };
    }
    let mut stream = match secure.connect_tls(address).await {
        Err(error) => return error.to_string(),
        Ok(stream) => stream,
    };
    // A client completes the TLS 1.3 handshake before the server has verified it: only a response to the
    // HTTP/2 preface shows the result.
    stream
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .await
        .unwrap();
    match stream.read(&mut [0; 64]).await {
        Err(error) => error.to_string(),
        Ok(n) => panic!("{n} bytes of answer"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn targets_serve_plaintext_tls_and_mtls() {
    for algorithm in [KeyAlgorithm::EcdsaP256, KeyAlgorithm::Rsa2048] {
        let (_dir, set) = certificates(&CertificateOptions {
            algorithm,
            ..CertificateOptions::default()
        });
        let anonymous = secure(&set.ca_cert, None);
        let known = secure(&set.ca_cert, Some(&set));
        for (listen, client) in [
            (listen(), plaintext()),
            (tls(&set), anonymous.clone()),
            (tls(&set), known.clone()),
            (mutual(&set), known.clone()),
        ] {
            let server = serve(&listen, without_delay());
            let mut client_ = scores(server.address, client.clone()).await;
            client_.get_score(vector()).await.unwrap();
            drop(client_);
            let stats = server.stop().await;
            assert_eq!(
                (count(&stats, "scored"), stats.connections.handshakes_failed),
                (1, 0)
            );

            let server = serve(&listen, default_flags::<OrdersOptions>());
            let mut client_ = orders_client(server.address, client).await;
            let reply = client_.submit(Order::default()).await.unwrap();
            assert!(reply.into_inner().received);
            drop(client_);
            assert_eq!(count(&server.stop().await, "processed"), 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn untrusted_peers_are_rejected() {
    let (_dir, set) = certificates(&CertificateOptions::default());
    let (_other_dir, other) = certificates(&CertificateOptions::default());
    let day = SignedDuration::from_hours(24);
    let (_old_dir, old) = certificates(&CertificateOptions {
        validity: Validity::Between {
            not_before: Timestamp::now() - day * 30,
            not_after: Timestamp::now() - day,
        },
        ..CertificateOptions::default()
    });
    let server = serve(&mutual(&set), without_delay());
    for (client, said) in [
        (secure(&set.ca_cert, None), "CertificateRequired"),
        (secure(&set.ca_cert, Some(&other)), "UnknownCA"),
        (secure(&other.ca_cert, Some(&set)), "UnknownIssuer"),
        (
            ClientSecurity {
                name: Some("elsewhere.test"),
                ..secure(&set.ca_cert, Some(&set))
            },
            "elsewhere.test",
        ),
    ] {
        let text = refusal_text(server.address, client).await;
        assert!(text.contains(said), "expected {said} in {text}");
    }
    assert!(!refusal_text(server.address, plaintext()).await.is_empty());
    // A valid client is still accepted.
    let mut client = scores(server.address, secure(&set.ca_cert, Some(&set))).await;
    client.get_score(vector()).await.unwrap();
    drop(client);
    let stats = server.stop().await;
    assert_eq!(count(&stats, "scored"), 1);
    // The plaintext client retries.
    assert!(stats.connections.handshakes_failed >= 5, "{stats:?}");
    assert_eq!(
        stats.connections.handshakes_failed,
        stats.connections.accepted - 1
    );

    let server = serve(&mutual(&old), without_delay());
    let text = refusal_text(server.address, secure(&old.ca_cert, Some(&old))).await;
    assert!(
        text.contains("expired") || text.contains("Expired"),
        "{text}"
    );
    server.stop().await;

    // A valid server, and a client of the trusted CA whose certificate has expired.
    let mut listen = tls(&set);
    listen.tls.as_mut().unwrap().client_ca = Some(old.ca_cert.clone());
    let server = serve(&listen, without_delay());
    let text = refusal_text(server.address, secure(&set.ca_cert, Some(&old))).await;
    assert!(text.contains("CertificateExpired"), "{text}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_client_rejects_plaintext_server() {
    let (_dir, set) = certificates(&CertificateOptions::default());
    let server = serve(&listen(), without_delay());
    let text = refusal_text(server.address, secure(&set.ca_cert, None)).await;
    assert!(!text.is_empty());
    let stats = server.stop().await;
    assert_eq!(
        (count(&stats, "scored"), stats.connections.broken),
        (0, 1),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn suites_and_groups_are_pinned() {
    let (_dir, set) = certificates(&CertificateOptions::default());
    let client = secure(&set.ca_cert, None);
    for (suite, group, wanted_suite, wanted_group) in [
        (
            TlsSuite::Aes128GcmSha256,
            KeyExchangeGroup::X25519,
            CipherSuite::TLS13_AES_128_GCM_SHA256,
            NamedGroup::X25519,
        ),
        (
            TlsSuite::Chacha20Poly1305Sha256,
            KeyExchangeGroup::Secp256r1,
            CipherSuite::TLS13_CHACHA20_POLY1305_SHA256,
            NamedGroup::secp256r1,
        ),
        (
            TlsSuite::Aes256GcmSha384,
            KeyExchangeGroup::X25519Mlkem768,
            CipherSuite::TLS13_AES_256_GCM_SHA384,
            NamedGroup::X25519MLKEM768,
        ),
    ] {
        let mut listen = tls(&set);
        let settings = listen.tls.as_mut().unwrap();
        settings.suites = vec![suite];
        settings.groups = vec![group];
        let server = serve(&listen, without_delay());
        let stream = client.connect_tls(server.address).await.unwrap();
        let (_, session) = stream.get_ref();
        assert_eq!(
            session.negotiated_cipher_suite().unwrap().suite(),
            wanted_suite
        );
        assert_eq!(
            session.negotiated_key_exchange_group().unwrap().name(),
            wanted_group
        );
        assert_eq!(session.alpn_protocol(), Some(&b"h2"[..]));
        drop(stream);
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_1_2_is_rejected() {
    let (_dir, set) = certificates(&CertificateOptions::default());
    let server = serve(&tls(&set), without_delay());
    let address = server.address.to_string();
    let run = |version: &'static str| {
        let address = address.clone();
        tokio::task::spawn_blocking(move || {
            Command::new("openssl")
                .args(["s_client", "-connect", &address, "-alpn", "h2", version])
                .stdin(Stdio::null())
                .output()
                .expect("openssl is installed")
        })
    };
    let old = run("-tls1_2").await.unwrap();
    assert!(!old.status.success(), "{old:?}");
    let new = run("-tls1_3").await.unwrap();
    let said = String::from_utf8_lossy(&new.stdout).into_owned();
    assert!(
        said.contains("TLSv1.3") && said.contains("ALPN protocol: h2"),
        "{said}"
    );
    let stats = server.stop().await;
    assert_eq!(stats.connections.handshakes_failed, 1, "{stats:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_handshake_blocks_neither_clients_nor_shutdown() {
    let (_dir, set) = certificates(&CertificateOptions::default());
    let server = serve(&tls(&set), without_delay());
    let mut mute = TcpStream::connect(server.address).await.unwrap();
    mute.write_all(&[0x16, 3, 1]).await.unwrap();
    let mut client = scores(server.address, secure(&set.ca_cert, None)).await;
    client.get_score(vector()).await.unwrap();
    drop(client);
    let stopped = tokio::time::timeout(Duration::from_secs(60), server.stop()).await;
    assert!(stopped.is_ok(), "the stop waits for it");
    let mut rest = Vec::new();
    let _ = mute.read_to_end(&mut rest).await;
}

#[test]
fn tls_file_errors_name_file() {
    let (dir, set) = certificates(&CertificateOptions::default());
    let (_other_dir, other) = certificates(&CertificateOptions::default());
    let file = |name: &str, content: &str| {
        let path = dir.path().join(name);
        fs::write(&path, content).unwrap();
        path
    };
    let empty = file("empty.pem", "");
    let garbage = file(
        "garbage.pem",
        "-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n",
    );
    let missing = dir.path().join("missing.pem");
    let good = tls(&set).tls.unwrap();
    let with = |change: &dyn Fn(&mut ServerTlsOptions)| {
        let mut tls = good.clone();
        change(&mut tls);
        tls
    };
    let mut cases: Vec<(ServerTlsOptions, PathBuf, &str)> = vec![
        (
            with(&|t| t.cert = missing.clone()),
            missing.clone(),
            "no such file",
        ),
        (
            with(&|t| t.key = missing.clone()),
            missing.clone(),
            "no such file",
        ),
        (
            with(&|t| t.client_ca = Some(missing.clone())),
            missing.clone(),
            "no such file",
        ),
        (
            with(&|t| t.cert = empty.clone()),
            empty.clone(),
            "no PEM certificate",
        ),
        (
            with(&|t| t.key = empty.clone()),
            empty.clone(),
            "no PEM private key",
        ),
        (
            with(&|t| t.key = set.server_cert.clone()),
            set.server_cert.clone(),
            "no PEM private key",
        ),
        (
            with(&|t| t.cert = set.server_key.clone()),
            set.server_key.clone(),
            "no PEM certificate",
        ),
        (
            with(&|t| t.client_ca = Some(empty.clone())),
            empty.clone(),
            "no PEM certificate",
        ),
        (with(&|t| t.cert = garbage.clone()), garbage.clone(), "PEM"),
        (
            with(&|t| t.cert = dir.path().to_owned()),
            dir.path().to_owned(),
            "a folder, not a file",
        ),
        (
            with(&|t| t.key = other.server_key.clone()),
            other.server_key.clone(),
            "does not belong",
        ),
    ];
    let locked = file("locked.key", "");
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o000)).unwrap();
    // The superuser can read any file.
    if fs::read(&locked).is_err() {
        cases.push((
            with(&|t| t.key = locked.clone()),
            locked.clone(),
            "not readable",
        ));
    }
    for (tls, path, problem) in cases {
        let listen = ListenOptions {
            tls: Some(tls),
            ..listen()
        };
        let error = listen.bind().unwrap_err().to_string();
        assert!(
            error.contains(path.to_str().unwrap()),
            "{path:?} in {error}"
        );
        assert!(error.contains(problem), "{problem:?} in {error}");
    }
}

#[test]
fn bind_errors_name_address() {
    let taken = listen().bind().unwrap();
    let again = ListenOptions {
        address: taken.address().clone(),
        ..listen()
    };
    let error = again.bind().unwrap_err().to_string();
    assert!(
        error.contains(&taken.address().to_string()) && error.contains("in use"),
        "{error}"
    );

    let elsewhere = ListenOptions {
        address: "192.0.2.1:0".parse().unwrap(),
        ..listen()
    };
    let error = elsewhere.bind().unwrap_err().to_string();
    assert!(
        error.contains("192.0.2.1:0") && error.contains("this machine"),
        "{error}"
    );

    let shared = ListenOptions {
        reuse_port: true,
        ..listen()
    };
    let first = shared.bind().unwrap();
    let second = ListenOptions {
        address: first.address().clone(),
        ..shared
    };
    assert_eq!(second.bind().unwrap().address(), first.address());
}
