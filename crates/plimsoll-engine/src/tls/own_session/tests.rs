use std::io::{Read, Write};

use rustls::crypto::aws_lc_rs::{self, Ticketer, cipher_suite};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, UnbufferedServerConnection, WebPkiClientVerifier};
use rustls::{
    ClientConnection, HandshakeKind, RootCertStore, ServerConfig, ServerConnection,
    SupportedCipherSuite,
};

use super::*;
use crate::tls::session::{ServerSession, ServerSessionFactory, SessionLayer};

const SUITES: [SupportedCipherSuite; 3] = [
    cipher_suite::TLS13_AES_128_GCM_SHA256,
    cipher_suite::TLS13_AES_256_GCM_SHA384,
    cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
];

/// Settings of both ends, with one certificate.
struct Settings {
    client: ClientConfig,
    server: ServerConfig,
}

fn settings(suite: SupportedCipherSuite, mutual: bool) -> Settings {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let chain = vec![CertificateDer::from(made.cert.der().to_vec())];
    let key = || PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(chain[0].clone()).unwrap();
    let roots = Arc::new(roots);
    let mut provider = aws_lc_rs::default_provider();
    provider.cipher_suites = vec![suite];
    let provider = Arc::new(provider);
    let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(Arc::clone(&roots));
    let mut client = if mutual {
        client.with_client_auth_cert(chain.clone(), key()).unwrap()
    } else {
        client.with_no_client_auth()
    };
    client.enable_secret_extraction = true;
    let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap();
    let server = if mutual {
        server.with_client_cert_verifier(
            WebPkiClientVerifier::builder_with_provider(roots, provider)
                .build()
                .unwrap(),
        )
    } else {
        server.with_no_client_auth()
    };
    let mut server = server.with_single_cert(chain, key()).unwrap();
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.ticketer = Ticketer::new().unwrap();
    Settings { client, server }
}

fn name() -> ServerName<'static> {
    ServerName::try_from("localhost").unwrap()
}

type Client = OwnSession<UnbufferedClientConnection>;

/// A client session with our record layer and a key log of its own.
fn client(config: &ClientConfig) -> Client {
    let heard = Arc::new(KeyLogSecrets::default());
    let mut config = config.clone();
    config.key_log = Arc::clone(&heard) as _;
    config.resumption = rustls::client::Resumption::disabled();
    OwnSession::new_client(
        Arc::new(config),
        name(),
        ConfiguredKeySource::KeyLog(heard, LocalEnd::Client),
    )
    .unwrap()
}

/// The other end of a connection.
trait Peer {
    /// Decrypts received bytes and returns the text, and whether the peer has closed its side.
    fn take(&mut self, bytes: &[u8]) -> (Vec<u8>, bool);
    fn give(&mut self) -> Vec<u8>;
    fn write(&mut self, text: &[u8]);
}

impl Peer for Client {
    fn take(&mut self, bytes: &[u8]) -> (Vec<u8>, bool) {
        let mut bytes = bytes.to_vec();
        let mut rest = &mut bytes[..];
        if self.is_handshaking() {
            if let Err(SessionError::Handshake(e)) = self.handshake(rest) {
                panic!("{e}");
            }
            rest = &mut [];
        }
        let mut text = Vec::new();
        let closed = self
            .receive::<()>(rest, &mut |plain| {
                text.extend_from_slice(plain);
                Ok(())
            })
            .unwrap();
        (text, closed)
    }
    fn give(&mut self) -> Vec<u8> {
        let bytes = self.pending_output().to_vec();
        self.mark_sent(bytes.len());
        bytes
    }
    fn write(&mut self, text: &[u8]) {
        self.seal(text);
    }
}

impl Peer for ServerSession {
    fn take(&mut self, bytes: &[u8]) -> (Vec<u8>, bool) {
        let mut text = Vec::new();
        let closed = self
            .receive(&mut bytes.to_vec(), &mut |plain| {
                text.extend_from_slice(plain)
            })
            .unwrap();
        (text, closed)
    }
    fn give(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.flush(&mut bytes).unwrap();
        bytes
    }
    fn write(&mut self, text: &[u8]) {
        self.seal(text);
    }
}

/// The library's own connection as an independent peer.
impl<C, D> Peer for C
where
    C: std::ops::DerefMut<Target = rustls::ConnectionCommon<D>>,
    D: rustls::SideData,
{
    fn take(&mut self, mut bytes: &[u8]) -> (Vec<u8>, bool) {
        let (mut text, mut closed) = (Vec::new(), false);
        while !bytes.is_empty() {
            self.read_tls(&mut bytes).unwrap();
            closed |= self.process_new_packets().unwrap().peer_has_closed();
            let mut room = [0; 256];
            while let Ok(n @ 1..) = self.reader().read(&mut room) {
                text.extend_from_slice(&room[..n]);
            }
        }
        (text, closed)
    }
    fn give(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while self.wants_write() {
            self.write_tls(&mut bytes).unwrap();
        }
        bytes
    }
    fn write(&mut self, text: &[u8]) {
        self.writer().write_all(text).unwrap();
    }
}

/// Exchanges the pending bytes of both ends in pieces of `step` until both are silent; returns the text that
/// each received.
fn exchange(a: &mut impl Peer, b: &mut impl Peer, step: usize) -> (Vec<u8>, Vec<u8>) {
    let (mut heard_a, mut heard_b) = (Vec::new(), Vec::new());
    loop {
        let (from_a, from_b) = (a.give(), b.give());
        if from_a.is_empty() && from_b.is_empty() {
            return (heard_a, heard_b);
        }
        for piece in from_a.chunks(step) {
            heard_b.extend(b.take(piece).0);
        }
        for piece in from_b.chunks(step) {
            heard_a.extend(a.take(piece).0);
        }
    }
}

/// Checks that text of each end reaches the other.
fn talk(a: &mut impl Peer, b: &mut impl Peer, text: &[u8]) {
    a.write(text);
    assert_eq!(exchange(a, b, 7), (Vec::new(), text.to_vec()));
    b.write(text);
    assert_eq!(exchange(a, b, 1_000), (text.to_vec(), Vec::new()));
}

fn pair(settings: &Settings) -> (Client, ServerSession) {
    let (mut a, mut b) = (
        client(&settings.client),
        ServerSessionFactory::new(&settings.server)
            .new_session()
            .unwrap(),
    );
    exchange(&mut a, &mut b, usize::MAX);
    assert!(!a.is_handshaking() && !b.is_handshaking());
    (a, b)
}

/// Returns the inner session of a server, which must have our record layer.
fn own_session(session: &mut ServerSession) -> &mut OwnSession<UnbufferedServerConnection> {
    match &mut session.0 {
        SessionLayer::Own(session) => session,
        SessionLayer::Library(_) => panic!("the records are the library's"),
    }
}

fn is_at_rest<E: TlsEnd>(session: &OwnSession<E>) -> bool {
    matches!(session.stage, SessionStage::Resting(_)) && session.handshake_result().is_none()
}

#[test]
fn every_suite_continues_after_rest() {
    for suite in SUITES {
        for mutual in [false, true] {
            let (mut a, mut b) = pair(&settings(suite, mutual));
            assert_eq!(
                b.negotiated_parameters().map(|agreed| agreed.resumed),
                Some(false)
            );
            for text in [b"one".as_slice(), b"two", &[7; 40_000]] {
                a.start_resting();
                b.start_resting();
                assert!(is_at_rest(&a) && is_at_rest(own_session(&mut b)));
                assert!(a.pending_output().is_empty() && !b.wants_write());
                talk(&mut a, &mut b, text);
            }
            a.start_resting();
            b.start_resting();
            a.queue_close_notify();
            assert_eq!(b.take(&a.give()), (Vec::new(), true));
            b.queue_close_notify();
            assert_eq!(a.take(&b.give()), (Vec::new(), true));
        }
    }
}

#[test]
fn fragmented_handshake_accepts_trailing_data() {
    for step in [1, 3, 100, usize::MAX] {
        for tickets in [0, 2] {
            let mut settings = settings(SUITES[0], true);
            settings.server.send_tls13_tickets = tickets;
            let mut a = client(&settings.client);
            let mut b = ServerSessionFactory::new(&settings.server)
                .new_session()
                .unwrap();
            for piece in a.give().chunks(step) {
                b.take(piece);
            }
            for piece in b.give().chunks(step) {
                a.take(piece);
            }
            // The client's Finished and its first data arrive together.
            a.write(b"at its heels");
            let mut heard = Vec::new();
            for piece in a.give().chunks(step) {
                heard.extend(b.take(piece).0);
            }
            assert_eq!(heard, b"at its heels", "{step} {tickets}");
            talk(&mut a, &mut b, b"and on");
        }
    }
}

#[test]
fn key_updates_reach_resting_session() {
    for suite in SUITES {
        let settings = settings(suite, false);
        let mut ours = client(&settings.client);
        let mut theirs = ServerConnection::new(Arc::new(settings.server.clone())).unwrap();
        exchange(&mut ours, &mut theirs, usize::MAX);
        for text in [b"one".as_slice(), b"two", b"three"] {
            ours.start_resting();
            assert!(is_at_rest(&ours));
            // The peer also requests a key update of us, which precedes our next data.
            theirs.refresh_traffic_keys().unwrap();
            theirs.write(b"new keys");
            assert_eq!(exchange(&mut ours, &mut theirs, 7).0, b"new keys");
            ours.start_resting();
            assert!(is_at_rest(&ours), "with an update owed");
            talk(&mut ours, &mut theirs, text);
        }

        let mut ours = ServerSessionFactory::new(&settings.server)
            .new_session()
            .unwrap();
        let mut theirs = ClientConnection::new(Arc::new(settings.client), name()).unwrap();
        exchange(&mut theirs, &mut ours, usize::MAX);
        ours.start_resting();
        theirs.refresh_traffic_keys().unwrap();
        theirs.write(b"new keys");
        assert_eq!(exchange(&mut theirs, &mut ours, 7).1, b"new keys");
        ours.start_resting();
        talk(&mut ours, &mut theirs, b"and on");
        theirs.send_close_notify();
        ours.start_resting();
        assert_eq!(ours.take(&theirs.give()), (Vec::new(), true));
    }
}

#[test]
fn rested_session_survives_millions_of_records() {
    let (mut a, mut b) = pair(&settings(SUITES[0], true));
    talk(&mut a, &mut b, b"young");
    a.start_resting();
    b.start_resting();
    let hours = 1 << 24;
    if let (SessionStage::Resting(a), SessionStage::Resting(b)) =
        (&mut a.stage, &mut own_session(&mut b).stage)
    {
        a.age(hours, hours);
        b.age(hours, hours);
    }
    // More records than one key may encrypt (RFC 8446 §5.5): the next data causes a key update.
    talk(&mut a, &mut b, b"old");
    a.start_resting();
    b.start_resting();
    talk(&mut a, &mut b, b"older");
}

#[test]
fn resting_server_resumes_from_tickets() {
    let mut settings = settings(SUITES[0], false);
    settings.client.resumption = rustls::client::Resumption::in_memory_sessions(8);
    let config = Arc::new(settings.client.clone());
    let sessions = ServerSessionFactory::new(&settings.server);
    for kind in [HandshakeKind::Full, HandshakeKind::Resumed] {
        let mut ours = sessions.new_session().unwrap();
        let mut theirs = ClientConnection::new(Arc::clone(&config), name()).unwrap();
        exchange(&mut theirs, &mut ours, usize::MAX);
        assert_eq!(theirs.handshake_kind(), Some(kind));
        let resumed = ours.negotiated_parameters().map(|agreed| agreed.resumed);
        assert_eq!(resumed, Some(kind == HandshakeKind::Resumed));
        ours.start_resting();
        talk(&mut ours, &mut theirs, b"resumed or not");
    }

    // NewSessionTicket (RFC 8446 §4.6.1): lifetime, age_add, nonce, ticket, no extensions.
    let ticket = [
        &[4, 0, 0, 17][..],
        &[0, 0, 1, 0, 1, 2, 3, 4, 1, 9, 0, 3, 7, 7, 7, 0],
        &[0],
    ];
    let ticket: Vec<u8> = [&ticket.concat()[..], &[22]].concat();
    let (mut a, mut b) = pair(&settings);
    a.start_resting();
    b.start_resting();
    own_session(&mut b)
        .wake()
        .unwrap()
        .unwrap()
        .records
        .seal_inner_plaintext(&ticket[..])
        .unwrap();
    let late = b.give();
    assert_eq!(a.take(&late), (Vec::new(), false));
    talk(&mut a, &mut b, b"and on");
    // A client must not send a ticket.
    a.wake()
        .unwrap()
        .unwrap()
        .records
        .seal_inner_plaintext(&ticket[..])
        .unwrap();
    let error = b.receive(&mut a.give(), &mut |_| {}).unwrap_err();
    assert!(
        matches!(error, SessionError::Record(RecordError::Unexpected(4))),
        "{error}"
    );
}

#[test]
fn pending_data_prevents_rest() {
    let (mut a, mut b) = pair(&settings(SUITES[0], false));
    a.write(b"unsent");
    a.start_resting();
    assert!(!is_at_rest(&a));
    let bytes = a.give();
    let (half, rest) = bytes.split_at(9);
    b.take(half);
    b.start_resting();
    assert!(!is_at_rest(own_session(&mut b)), "half a record is there");
    assert_eq!(b.take(rest).0, b"unsent");
    a.start_resting();
    b.start_resting();
    assert!(is_at_rest(&a) && is_at_rest(own_session(&mut b)));
    // A corrupted record is rejected after resting as before, and the peer gets an alert.
    let mut theirs = {
        b.write(b"changed");
        b.give()
    };
    theirs[8] ^= 1;
    let refused = a.receive::<()>(&mut theirs, &mut |_| Ok(()));
    assert_eq!(refused, Err(ReceiveError::Record(RecordError::BadTag)));
    assert!(!a.pending_output().is_empty());
    a.start_resting();
    assert!(!is_at_rest(&a), "what has failed stays so");
}

#[test]
fn rejected_handshake_sends_alert() {
    let settings = settings(SUITES[0], true);
    let mut anonymous = settings.client.clone();
    anonymous.client_auth_cert_resolver = Arc::new(NoClientCertificate);
    let mut ours = ServerSessionFactory::new(&settings.server)
        .new_session()
        .unwrap();
    let mut theirs = ClientConnection::new(Arc::new(anonymous), name()).unwrap();
    ours.take(&theirs.give());
    theirs.take(&ours.give());
    let error = ours
        .receive(&mut theirs.give(), &mut |_| {})
        .expect_err("it has no certificate");
    assert!(matches!(error, SessionError::Handshake(_)), "{error}");
    assert!(ours.wants_write());
    let error = ours.receive(&mut [], &mut |_| {});
    assert!(matches!(error, Ok(false)), "nothing follows");
    let mut garbage = b"GET / HTTP/1.1\r\n\r\n".to_vec();
    let mut other = ServerSessionFactory::new(&settings.server)
        .new_session()
        .unwrap();
    assert!(other.receive(&mut garbage, &mut |_| {}).is_err());
}

#[derive(Debug)]
struct NoClientCertificate;

impl rustls::client::ResolvesClientCert for NoClientCertificate {
    fn resolve(
        &self,
        _: &[&[u8]],
        _: &[rustls::SignatureScheme],
    ) -> Option<Arc<rustls::sign::CertifiedKey>> {
        None
    }
    fn has_certs(&self) -> bool {
        false
    }
}

#[test]
fn resting_session_size_is_bounded() {
    assert!(size_of::<RestingRecords<TrafficSecrets>>() <= 128);
    assert!(size_of::<ServerSession>() <= 16);
}
