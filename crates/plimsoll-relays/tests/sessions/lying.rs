//! Malicious Redis servers that send more than was requested: the memory that they can make the
//! gateway use is bounded.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use plimsoll_relays::bus::{Bus, RedisAddress, RedisOptions};
use plimsoll_stack::certificates::{CertificateOptions, make_certificates};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use tempfile::TempDir;

/// More than the sockets in between buffer, and far less than is sent.
const MAX_READ_BYTES: usize = 96 << 20;
/// Applies to every connection.
const SENT_BYTES: usize = 512 << 20;

/// The bytes that a server sends on each connection: once, and then repeatedly.
type MaliciousReply = (&'static str, &'static [u8], &'static [u8]);

const MALICIOUS_REPLIES: [MaliciousReply; 4] = [
    ("a long string", b"$2000000000\r\n", b"x"),
    ("a line without an end", b"+", b"x"),
    ("an error without an end", b"-ERR ", b"x"),
    ("a long list", b"*2000000000\r\n", b"_\r\n"),
];

/// Starts a server that answers greetings with malicious bytes, optionally over TLS. Returns its
/// port, the most bytes that a connection has accepted, and the number of closed connections.
fn liar(
    (_, once, again): MaliciousReply,
    tls: Option<Arc<ServerConfig>>,
) -> (u16, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (taken, ended) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let (most, ends) = (Arc::clone(&taken), Arc::clone(&ended));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (most, ends, tls) = (Arc::clone(&most), Arc::clone(&ends), tls.clone());
            thread::spawn(move || {
                let stream = stream.unwrap();
                let sent = match tls {
                    None => lie(stream, once, again),
                    Some(tls) => {
                        let tls = ServerConnection::new(tls).unwrap();
                        lie(StreamOwned::new(tls, stream), once, again)
                    }
                };
                most.fetch_max(sent, Ordering::SeqCst);
                ends.fetch_add(1, Ordering::SeqCst);
            });
        }
    });
    (port, taken, ended)
}

/// Returns the number of bytes sent before the peer closed the connection.
fn lie(mut stream: impl Read + Write, once: &[u8], again: &[u8]) -> usize {
    if stream.read(&mut [0; 1024]).is_err() || stream.write_all(once).is_err() {
        return 0;
    }
    let more = again.repeat((64 << 10) / again.len());
    let mut sent = 0;
    while sent < SENT_BYTES {
        match stream.write(&more) {
            Ok(part @ 1..) => sent += part,
            _ => break,
        }
    }
    sent
}

/// Returns a certificate for localhost and the CA that signed it.
fn server_certificate() -> (TempDir, Arc<ServerConfig>) {
    let folder = tempfile::tempdir().unwrap();
    make_certificates(folder.path(), &CertificateOptions::default()).unwrap();
    let file = |name: &str| folder.path().join(name);
    let chain = CertificateDer::pem_file_iter(file("server.crt")).unwrap();
    let chain = chain.collect::<Result<Vec<_>, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_file(file("server.key")).unwrap();
    let config = ServerConfig::builder().with_no_client_auth();
    let config = config.with_single_cert(chain, key).unwrap();
    (folder, Arc::new(config))
}

/// Waits until three connections of a bus have ended, and checks how much they accepted.
async fn assert_bounded(
    address: RedisAddress,
    (_, taken, ended): &(u16, Arc<AtomicUsize>, Arc<AtomicUsize>),
    what: &str,
) {
    let before = ended.load(Ordering::SeqCst);
    let bus = Bus::redis(address, RedisOptions::default());
    while ended.load(Ordering::SeqCst) < before + 3 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    drop(bus);
    let most = taken.load(Ordering::SeqCst);
    assert!(most < MAX_READ_BYTES, "{what}: {most} bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn malicious_redis_replies_are_bounded() {
    for lie in MALICIOUS_REPLIES {
        let liar = liar(lie, None);
        for (scheme, master) in [
            ("redis", ""),
            ("redis-cluster", ""),
            ("redis-sentinel", "/main"),
        ] {
            let url = format!("{scheme}://127.0.0.1:{}{master}", liar.0);
            let address = url.parse().unwrap();
            assert_bounded(address, &liar, &format!("{}, {url}", lie.0)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn malicious_redis_replies_over_tls_are_bounded() {
    let (folder, config) = server_certificate();
    let authorities = fs::read(folder.path().join("ca.crt")).unwrap();
    // A line without an end that is actually sent, not only announced.
    let lie = MALICIOUS_REPLIES[1];
    let liar = liar(lie, Some(config));
    for (scheme, master) in [
        ("rediss", ""),
        ("rediss-cluster", ""),
        ("rediss-sentinel", "/main"),
    ] {
        let url = format!("{scheme}://localhost:{}{master}", liar.0);
        let address: RedisAddress = url.parse().unwrap();
        let address = address.with_certificates(Some(authorities.clone()), None);
        assert_bounded(address.unwrap(), &liar, &format!("{}, {url}", lie.0)).await;
    }
}
