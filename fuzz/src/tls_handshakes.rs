//! TLS handshakes whose messages come in records and reads of any size, with foreign bytes in between: our client
//! against rustls' server, and rustls' client against our server. Nothing panics; handshakes that are only fragmented
//! succeed and deliver every byte of data; a handshake that fails here must also fail between two ends of rustls.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use plimsoll_engine::tls::handshake_fuzz::{
    ChoiceSource, Conversation, HandshakeAdditions, HandshakeSetup, Implementation,
    PathSegmentation, ServerDemands, client_text, server_text,
};
use plimsoll_engine::tls::record::Cipher;
use rcgen::{CertificateParams, KeyPair, PKCS_ED25519};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// All kinds of handshakes, one of which is chosen.
static SETUPS: LazyLock<Vec<HandshakeSetup>> = LazyLock::new(|| {
    let key = KeyPair::generate_for(&PKCS_ED25519).expect("a key");
    let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    let certificate = params.self_signed(&key).expect("a certificate");
    let certificate = CertificateDer::from(certificate.der().to_vec());
    let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
    // Messages are kept short, because rustls cannot buffer long messages that are cut into records of one byte.
    let long = HandshakeAdditions::default();
    [(false, false), (true, false), (false, true), (true, true)]
        .into_iter()
        .map(|(mutual, retried)| {
            let asks = ServerDemands { mutual, retried };
            HandshakeSetup::new(&certificate, &key, Cipher::Aes128Gcm, asks, long)
                .expect("the settings make sense")
        })
        .collect()
});

fn shape(input: &[u8]) -> PathSegmentation<'_> {
    let (up, down) = input.split_at(input.len() / 2);
    [ChoiceSource::from_bytes(up), ChoiceSource::from_bytes(down)]
}

fn assert_whole(came: &Conversation) {
    assert_eq!((&came.client.error, &came.server.error), (&None, &None));
    assert!(came.client.received == server_text() && came.client.closed);
    assert!(came.server.received == client_text());
}

fuzz_target!(|input: &[u8]| {
    let Some((what, input)) = input.split_first() else {
        return;
    };
    let setup = &SETUPS[usize::from(what & 3)];
    let settings = "the settings make sense";
    let resume = what & 4 != 0;
    let clients = [
        Implementation::Library,
        Implementation::Own,
        Implementation::OwnFromSecrets,
    ]
    .map(|implementation| {
        let client = if resume && implementation != Implementation::OwnFromSecrets {
            setup.resuming_client(implementation)
        } else {
            setup.client(implementation)
        };
        if resume {
            let whole = [
                ChoiceSource::with_fixed_sizes(1 << 14, 1 << 20),
                ChoiceSource::with_fixed_sizes(1 << 14, 1 << 20),
            ];
            assert_whole(&setup.run_client_under_test(&client, whole).expect(settings));
        }
        let came = setup
            .run_client_under_test(&client, shape(input))
            .expect(settings);
        if came.is_untampered {
            assert_whole(&came);
        }
        came
    });
    assert_eq!(clients[0].client.error, clients[1].client.error);
    if !resume {
        assert_eq!(clients[0].client.error, clients[2].client.error);
    }
    let mut config = setup.client.clone();
    config.resumption = rustls::client::Resumption::disabled();
    let [library, ours] =
        [Implementation::Library, Implementation::OwnFromSecrets].map(|implementation| {
            let came = setup
                .run_server_under_test(implementation, &config, shape(input))
                .expect(settings);
            if came.is_untampered {
                assert_whole(&came);
            }
            came
        });
    assert_eq!(library.server.error, ours.server.error);
});
