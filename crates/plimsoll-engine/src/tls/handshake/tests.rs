use std::io::Write as _;
use std::sync::Arc;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use rustls::client::Resumption;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::*;
use crate::tls::handshake_fuzz::{
    ChoiceSource, Conversation, EndState, HandshakeAdditions, HandshakeSetup, Implementation,
    PathSegmentation, ServerDemands, client_text, server_text,
};
use crate::tls::record::MAX_PLAINTEXT_BYTES;

/// Makes a setup in which both ends use the same certificate.
fn setup(cipher: Cipher, mutual: bool, retried: bool, long: HandshakeAdditions) -> HandshakeSetup {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let certificate = CertificateDer::from(params.self_signed(&key).unwrap().der().to_vec());
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    HandshakeSetup::new(
        &certificate,
        &key,
        cipher,
        ServerDemands { mutual, retried },
        long,
    )
    .unwrap()
}

fn shape(seed: u64) -> PathSegmentation<'static> {
    [0, 1].map(|direction| {
        let mut random = ChaCha8Rng::seed_from_u64(2 * seed + direction);
        ChoiceSource::new(move || (random.next_u32() >> 16) as u16)
    })
}

/// A shape with fixed sizes of records and reads, in bytes.
fn fixed(record: usize, read: usize) -> PathSegmentation<'static> {
    [
        ChoiceSource::with_fixed_sizes(record, read),
        ChoiceSource::with_fixed_sizes(record, read),
    ]
}

/// The shape that changes nothing.
fn unchanged() -> PathSegmentation<'static> {
    fixed(MAX_PLAINTEXT_BYTES, 1 << 20)
}

fn came(heard: Vec<u8>, closed: bool, resumed: bool, retried: bool) -> EndState {
    EndState {
        error: None,
        received: heard,
        closed,
        resumed,
        retried,
    }
}

fn assert_complete(what: &Conversation, resumed: bool, retried: bool, seed: u64) {
    let client = came(server_text(), true, resumed, retried);
    let server = came(client_text(), false, resumed, retried);
    assert_eq!(what.client.error, None, "seed {seed}");
    assert_eq!(what.server.error, None, "seed {seed}");
    assert!(what.client == client, "seed {seed}: the client");
    assert!(what.server == server, "seed {seed}: the server");
}

/// All kinds of handshakes.
fn kinds() -> Vec<(HandshakeSetup, bool, bool)> {
    let mut kinds = Vec::new();
    for (n, (mutual, retried, resumed)) in [
        (false, false, false),
        (true, false, false),
        (false, true, false),
        (true, true, false),
        (false, false, true),
        (true, false, true),
    ]
    .into_iter()
    .enumerate()
    {
        let ciphers = [
            Cipher::Aes128Gcm,
            Cipher::Aes256Gcm,
            Cipher::Chacha20Poly1305,
        ];
        let long = HandshakeAdditions::default();
        kinds.push((
            setup(ciphers[n % 3], mutual, retried, long),
            resumed,
            retried,
        ));
    }
    kinds
}

#[test]
fn fuzzed_client_handshakes_match_library() {
    let seeds = 0..60;
    for (kind, (setup, resumed, retried)) in kinds().into_iter().enumerate() {
        for seed in seeds.clone() {
            let seed = 1_000 * kind as u64 + seed;
            let [library, own, lean] = [
                Implementation::Library,
                Implementation::Own,
                Implementation::OwnFromSecrets,
            ]
            .map(|implementation| {
                // The resting implementation stores no tickets.
                let resumed = resumed && implementation != Implementation::OwnFromSecrets;
                let client = if resumed {
                    setup.resuming_client(implementation)
                } else {
                    setup.client(implementation)
                };
                if resumed {
                    let first = setup.run_client_under_test(&client, unchanged()).unwrap();
                    assert_complete(&first, false, retried, seed);
                }
                let came = setup.run_client_under_test(&client, shape(seed)).unwrap();
                if came.is_untampered {
                    assert_complete(&came, resumed, retried, seed);
                }
                came
            });
            assert_eq!(own.is_untampered, library.is_untampered, "seed {seed}");
            assert_eq!(own.client.error, library.client.error, "seed {seed}");
            assert!(
                own.client.received == library.client.received,
                "seed {seed}"
            );
            if !resumed {
                assert_eq!(lean.client.error, library.client.error, "seed {seed}");
                assert!(
                    lean.client.received == library.client.received,
                    "seed {seed}"
                );
            }
        }
    }
}

#[test]
fn fuzzed_server_handshakes_match_library() {
    for (kind, (setup, resumed, retried)) in kinds().into_iter().enumerate() {
        for seed in 0..60 {
            let seed = 1_000 * kind as u64 + seed;
            let [library, own] =
                [Implementation::Library, Implementation::OwnFromSecrets].map(|implementation| {
                    let mut client = setup.client.clone();
                    client.resumption = if resumed {
                        Resumption::in_memory_sessions(8)
                    } else {
                        Resumption::disabled()
                    };
                    if resumed {
                        let first = setup
                            .run_server_under_test(implementation, &client, unchanged())
                            .unwrap();
                        assert_complete(&first, false, retried, seed);
                    }
                    let came = setup
                        .run_server_under_test(implementation, &client, shape(seed))
                        .unwrap();
                    if came.is_untampered {
                        assert_complete(&came, resumed, retried, seed);
                    }
                    came
                });
            assert_eq!(own.is_untampered, library.is_untampered, "seed {seed}");
            assert_eq!(own.server.error, library.server.error, "seed {seed}");
            assert!(
                own.server.received == library.server.received,
                "seed {seed}"
            );
        }
    }
}

/// Passes the complete first flight of each end to the other in every split.
#[test]
fn handshake_flight_survives_any_split() {
    let kinds = kinds().into_iter().filter(|(_, resumed, _)| !resumed);
    for (kind, (setup, _, retried)) in kinds.enumerate() {
        for implementation in [Implementation::Own, Implementation::OwnFromSecrets] {
            let client = setup.client(implementation);
            // Single bytes, and with as much trailing data as possible.
            for (record, read) in [(1, 1), (100, 1), (MAX_PLAINTEXT_BYTES, 1), (1, 1 << 20)] {
                let came = setup
                    .run_client_under_test(&client, fixed(record, read))
                    .unwrap();
                assert_complete(&came, false, retried, record as u64);
            }
            // Every split position occurs in one of the kinds.
            for cut in (1 + kind..1_200).step_by(4) {
                let came = setup.run_client_under_test(
                    &client,
                    [unchanged(), fixed(90, cut)].map(|[_, down]| down),
                );
                assert_complete(&came.unwrap(), false, retried, cut as u64);
            }
        }
    }
}

#[test]
fn small_records_carry_long_chains() {
    let long = HandshakeAdditions {
        chain: 60,
        authorities: 300,
    };
    let setup = setup(Cipher::Aes128Gcm, true, false, long);
    for (record, read) in [
        (MAX_PLAINTEXT_BYTES, 1 << 20),
        (512, 16_406),
        (512, 4_096),
        (100, 1_000),
        (100, 16_406),
    ] {
        for implementation in [Implementation::Own, Implementation::OwnFromSecrets] {
            let client = setup.client(implementation);
            let came = setup
                .run_client_under_test(&client, fixed(record, read))
                .unwrap();
            assert_complete(&came, false, false, record as u64);
        }
    }
}

#[test]
fn endless_handshake_fails_at_256_kib() {
    const MAX_HANDSHAKE_BYTES: usize = 256 * 1024;
    let setup = setup(
        Cipher::Aes128Gcm,
        false,
        false,
        HandshakeAdditions::default(),
    );
    // A message that announces 65,531 bytes, in records of one byte each.
    let endless = || {
        let mut bytes = vec![22, 3, 1, 0, 4, 1, 0, 0xff, 0xfb];
        while bytes.len() < MAX_HANDSHAKE_BYTES + 10 {
            bytes.extend_from_slice(&[22, 3, 1, 0, 1, 0]);
        }
        bytes
    };
    for step in [
        1_000,
        MAX_HANDSHAKE_BYTES - 1,
        MAX_HANDSHAKE_BYTES,
        usize::MAX,
    ] {
        let mut config = setup.server.clone();
        config.enable_secret_extraction = true;
        let connection = UnbufferedServerConnection::new(Arc::new(config)).unwrap();
        let mut handshake = Handshake::new(connection);
        let bytes = endless();
        for piece in bytes[..MAX_HANDSHAKE_BYTES].chunks(step) {
            assert_eq!(handshake.receive(piece), Ok(false), "{step}");
        }
        let error = handshake
            .receive(&bytes[MAX_HANDSHAKE_BYTES..=MAX_HANDSHAKE_BYTES])
            .unwrap_err();
        assert_eq!(error, general_error("the peer's handshake is too long"));
    }
}

#[test]
fn library_reports_full_handshake_buffer() {
    let long = HandshakeAdditions {
        chain: 60,
        authorities: 300,
    };
    let setup = setup(Cipher::Aes128Gcm, true, false, long);
    let client = setup.client(Implementation::Library);
    let came = setup
        .run_client_under_test(&client, fixed(10, 1_000))
        .unwrap();
    assert_eq!(came.client.error.as_deref(), Some("TLS_FAILED"));
    // Our buffer is large enough.
    let client = setup.client(Implementation::Own);
    let came = setup
        .run_client_under_test(&client, fixed(10, 1_000))
        .unwrap();
    assert_complete(&came, false, false, 10);
}

/// Accepts three bytes per write.
struct ThreeByteWriter(Vec<u8>);

impl std::io::Write for ThreeByteWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let taken = bytes.len().min(3);
        self.0.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn non_tls_peer_gets_single_alert() {
    let setup = setup(
        Cipher::Aes128Gcm,
        false,
        false,
        HandshakeAdditions::default(),
    );
    for implementation in [
        Implementation::Own,
        Implementation::OwnFromSecrets,
        Implementation::Library,
    ] {
        let client = setup.client(implementation);
        let mut session = client.session();
        let mut hello = ThreeByteWriter(Vec::new());
        session.flush(&mut hello).unwrap();
        assert_eq!(hello.0[..3], [22, 3, 1], "{implementation:?}");
        // The record is invalid by its first bytes, so its rest is not awaited.
        let mut bytes = b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec();
        let error = session.handshake(&mut bytes).unwrap_err();
        assert_eq!(client.outcome(&error), "TLS_NOT_TLS", "{implementation:?}");
        let mut alert = ThreeByteWriter(Vec::new());
        session.flush(&mut alert).unwrap();
        assert_eq!(alert.0, [21, 3, 3, 0, 2, 2, 50], "{implementation:?}");
        assert!(!session.wants_write(), "{implementation:?}");
    }
}

/// A record with a TLS header and invalid content.
#[test]
fn malformed_record_still_counts_as_tls() {
    let setup = setup(
        Cipher::Aes128Gcm,
        false,
        false,
        HandshakeAdditions::default(),
    );
    for implementation in [
        Implementation::Own,
        Implementation::OwnFromSecrets,
        Implementation::Library,
    ] {
        for record in [
            &[22, 3, 3, 0, 0][..],
            &[21, 3, 3, 0, 1, 2],
            &[22, 3, 3, 0x50, 0],
        ] {
            let client = setup.client(implementation);
            let mut bytes = record.to_vec();
            let error = client.session().handshake(&mut bytes).unwrap_err();
            let outcome = client.outcome(&error);
            assert_eq!(outcome, "TLS_FAILED", "{implementation:?}: {record:?}");
        }
    }
}

/// Returns the groups of the key shares in a `ClientHello` (RFC 8446 §4.2.8).
fn key_shares(hello: &[u8]) -> Vec<u16> {
    let number = |at: usize| usize::from(u16::from_be_bytes([hello[at], hello[at + 1]]));
    // Skips record, message, version and random, then session id, suites and compression.
    let mut at = 5 + 4 + 2 + 32;
    at += 1 + usize::from(hello[at]);
    at += 2 + number(at);
    at += 1 + usize::from(hello[at]);
    at += 2;
    while number(at) != 51 {
        at += 4 + number(at + 2);
    }
    let end = at + 6 + number(at + 4);
    at += 6;
    let mut groups = Vec::new();
    while at < end {
        groups.push(u16::from_be_bytes([hello[at], hello[at + 1]]));
        at += 4 + number(at + 2);
    }
    groups
}

#[test]
fn resumed_connections_offer_same_key_shares() {
    const X25519: u16 = 0x001d;
    let setup = setup(
        Cipher::Aes128Gcm,
        false,
        true,
        HandshakeAdditions::default(),
    );
    for implementation in [Implementation::Own, Implementation::Library] {
        let client = setup.resuming_client(implementation);
        for resumed in [false, true, true] {
            let came = setup.run_client_under_test(&client, unchanged()).unwrap();
            // The client does not adapt its key shares to what it knows of the server.
            assert_complete(&came, resumed, true, 0);
            let mut hello = Vec::new();
            client.session().flush(&mut hello).unwrap();
            assert_eq!(key_shares(&hello), [X25519], "{implementation:?}");
        }
    }
}

/// The low-water mark of a socket counts 22 bytes per record of up to 16,384 bytes, minus the received part
/// of the first.
#[test]
fn open_session_knows_minimum_bytes_remaining() {
    let setup = setup(
        Cipher::Aes128Gcm,
        false,
        false,
        HandshakeAdditions::default(),
    );
    let mut session = setup.client(Implementation::Own).session();
    let mut server = rustls::ServerConnection::new(Arc::new(setup.server.clone())).unwrap();
    assert_eq!(session.min_incoming_bytes(100_000), 0, "no record yet");
    while server.is_handshaking() {
        let mut hello = Vec::new();
        session.flush(&mut hello).unwrap();
        server.read_tls(&mut &hello[..]).unwrap();
        server.process_new_packets().unwrap();
        let mut answer = Vec::new();
        server.write_tls(&mut answer).unwrap();
        if session.is_handshaking() {
            session.handshake(&mut answer).unwrap();
        }
    }
    assert_eq!(session.min_incoming_bytes(100_000), 100_000 + 7 * 22);
}

/// A server may send data after its own Finished, before it has the client's (RFC 8446 §4.4.4).
#[test]
fn early_server_data_precedes_later_reads() {
    let setup = setup(
        Cipher::Aes128Gcm,
        false,
        false,
        HandshakeAdditions::default(),
    );
    let mut session = setup.client(Implementation::Own).session();
    let mut config = setup.server.clone();
    config.send_half_rtt_data = true;
    let mut server = rustls::ServerConnection::new(Arc::new(config)).unwrap();
    let mut hello = Vec::new();
    session.flush(&mut hello).unwrap();
    server.read_tls(&mut &hello[..]).unwrap();
    server.process_new_packets().unwrap();
    let (mut flight, mut later) = (Vec::new(), Vec::new());
    server.writer().write_all(b"early").unwrap();
    server.write_tls(&mut flight).unwrap();
    session.handshake(&mut flight).unwrap();
    assert!(!session.is_handshaking());
    server.writer().write_all(b" and late").unwrap();
    server.write_tls(&mut later).unwrap();
    let mut read = Vec::new();
    let mut take = |bytes: &[u8]| read.extend_from_slice(bytes);
    assert!(!session.receive(&mut later, &mut take).unwrap());
    assert_eq!(read, b"early and late");
}
