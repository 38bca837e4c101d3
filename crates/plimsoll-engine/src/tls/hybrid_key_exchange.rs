//! The key exchange group SecP384r1MLKEM1024, which the TLS library lacks, composed of its two component groups.
//!
//! A key share is P-384's share followed by ML-KEM's, and the shared secret is composed in the same way
//! (draft-ietf-tls-ecdhe-mlkem §4). [`super::crypto_provider`] offers the group if a plan requires it.

use plimsoll_model::plan::KeyExchangeGroup;
use rustls::crypto::aws_lc_rs::kx_group::{MLKEM1024, SECP384R1};
use rustls::crypto::{ActiveKeyExchange, CompletedKeyExchange, SharedSecret, SupportedKxGroup};
use rustls::ffdhe_groups::FfdheGroup;
use rustls::{Error, NamedGroup, PeerMisbehaved, ProtocolVersion};

/// Length of an uncompressed P-384 point in bytes.
const CLASSICAL_SHARE_BYTES: usize = 97;
/// Lengths of a client's encapsulation key and of a server's ciphertext in bytes (FIPS 203, table 3).
const ENCAPSULATION_KEY_BYTES: usize = 1568;
const CIPHERTEXT_BYTES: usize = 1568;

pub(super) static SECP384R1MLKEM1024: &dyn SupportedKxGroup = &Secp384r1Mlkem1024;

#[derive(Debug)]
struct Secp384r1Mlkem1024;

/// A client's key exchange in progress: both component exchanges and the combined key share.
struct HybridExchange {
    classical: Box<dyn ActiveKeyExchange>,
    post_quantum: Box<dyn ActiveKeyExchange>,
    share: Vec<u8>,
}

fn split_share(share: &[u8], post_quantum: usize) -> Result<(&[u8], &[u8]), Error> {
    if share.len() == CLASSICAL_SHARE_BYTES + post_quantum {
        Ok(share.split_at(CLASSICAL_SHARE_BYTES))
    } else {
        Err(PeerMisbehaved::InvalidKeyShare.into())
    }
}

impl SupportedKxGroup for Secp384r1Mlkem1024 {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        let (classical, post_quantum) = (SECP384R1.start()?, MLKEM1024.start()?);
        let share = [classical.pub_key(), post_quantum.pub_key()].concat();
        Ok(Box::new(HybridExchange {
            classical,
            post_quantum,
            share,
        }))
    }

    fn start_and_complete(&self, share: &[u8]) -> Result<CompletedKeyExchange, Error> {
        let (classical, post_quantum) = split_share(share, ENCAPSULATION_KEY_BYTES)?;
        let classical = SECP384R1.start_and_complete(classical)?;
        let post_quantum = MLKEM1024.start_and_complete(post_quantum)?;
        Ok(CompletedKeyExchange {
            group: self.name(),
            pub_key: [&classical.pub_key[..], &post_quantum.pub_key].concat(),
            secret: join_secrets(&classical.secret, &post_quantum.secret),
        })
    }

    fn ffdhe_group(&self) -> Option<FfdheGroup<'static>> {
        None
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::from(KeyExchangeGroup::Secp384r1Mlkem1024.iana_code())
    }

    fn usable_for_version(&self, version: ProtocolVersion) -> bool {
        version == ProtocolVersion::TLSv1_3
    }
}

fn join_secrets(classical: &SharedSecret, post_quantum: &SharedSecret) -> SharedSecret {
    [classical.secret_bytes(), post_quantum.secret_bytes()]
        .concat()
        .into()
}

impl ActiveKeyExchange for HybridExchange {
    fn complete(self: Box<Self>, share: &[u8]) -> Result<SharedSecret, Error> {
        let (classical, post_quantum) = split_share(share, CIPHERTEXT_BYTES)?;
        let classical = self.classical.complete(classical)?;
        let post_quantum = self.post_quantum.complete(post_quantum)?;
        Ok(join_secrets(&classical, &post_quantum))
    }

    /// Returns P-384's share, which rustls also offers on its own if that group is enabled.
    fn hybrid_component(&self) -> Option<(NamedGroup, &[u8])> {
        Some((self.classical.group(), self.classical.pub_key()))
    }

    fn complete_hybrid_component(self: Box<Self>, share: &[u8]) -> Result<SharedSecret, Error> {
        self.classical.complete(share)
    }

    fn pub_key(&self) -> &[u8] {
        &self.share
    }

    fn ffdhe_group(&self) -> Option<FfdheGroup<'static>> {
        None
    }

    fn group(&self) -> NamedGroup {
        SECP384R1MLKEM1024.name()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hybrid_exchange_yields_same_secret() {
        let client = SECP384R1MLKEM1024.start().unwrap();
        let server = SECP384R1MLKEM1024
            .start_and_complete(client.pub_key())
            .unwrap();
        assert_eq!(
            server.pub_key.len(),
            CLASSICAL_SHARE_BYTES + CIPHERTEXT_BYTES
        );
        let secret = client.complete(&server.pub_key).unwrap();
        assert_eq!(secret.secret_bytes(), server.secret.secret_bytes());
        assert_eq!(secret.secret_bytes().len(), 48 + 32);
    }

    #[test]
    fn wrong_key_share_length_is_rejected() {
        for length in [
            0,
            CLASSICAL_SHARE_BYTES,
            CLASSICAL_SHARE_BYTES + ENCAPSULATION_KEY_BYTES - 1,
            4000,
        ] {
            let share = vec![4; length];
            assert!(SECP384R1MLKEM1024.start_and_complete(&share).is_err());
            let client = SECP384R1MLKEM1024.start().unwrap();
            assert!(client.complete(&share).is_err());
        }
    }
}
