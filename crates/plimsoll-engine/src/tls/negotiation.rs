//! The parameters that handshakes negotiated, counted over all connections.
//!
//! A worker keeps a [`HandshakeTally`], a short list, since a run has only a few kinds of handshakes, and converts it
//! to text once, at the end. The TLS library (rustls) does not report the peer's signature scheme: the certificate
//! verifiers store it in a thread-local variable, and the code that passed bytes to the library takes it from there.

use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_model::plan::KeyExchangeGroup;
use plimsoll_model::runs::run::{CertificateAcceptance, NegotiatedHandshakes, NegotiatedTls};
use rustls::pki_types::CertificateDer;
use rustls::{
    CipherSuite, CommonState, HandshakeKind, NamedGroup, ProtocolVersion, SignatureScheme,
};

use super::der::{SEQUENCE, read_tagged, skip_fields};

thread_local! {
    static LAST_SIGNATURE_SCHEME: Cell<Option<SignatureScheme>> = const { Cell::new(None) };
}

/// Stores, for this thread, that a peer proved possession of its key with `scheme`.
pub(super) fn store_signature_scheme(scheme: SignatureScheme) {
    LAST_SIGNATURE_SCHEME.set(Some(scheme));
}

/// Takes the signature scheme of the handshake that was just processed on this thread.
pub(super) fn take_signature_scheme() -> Option<SignatureScheme> {
    LAST_SIGNATURE_SCHEME.take()
}

/// The parameters that one handshake negotiated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NegotiatedParameters {
    /// The TLS version. Like `suite` and `group`, it is `None` until it is negotiated.
    pub version: Option<ProtocolVersion>,
    /// The cipher suite.
    pub suite: Option<CipherSuite>,
    /// The group of the key exchange; also `None` for a resumed session without a key exchange.
    pub group: Option<NamedGroup>,
    /// The scheme with which the peer proved possession of its certificate's key.
    pub signature: Option<SignatureScheme>,
    /// The certificate chain that the peer presented in this handshake.
    pub chain: Option<ChainSummary>,
    /// Whether the session was resumed from a ticket, without certificates (RFC 8446 §2.2).
    pub resumed: bool,
    /// Whether the server sent a HelloRetryRequest (§4.1.4).
    pub retried: bool,
    /// Whether the server accepted early data (§2.3).
    pub early_data: bool,
    /// The protocol that the server chose by ALPN, if it had a choice.
    pub chosen: Option<&'static str>,
}

impl NegotiatedParameters {
    /// Returns the parameters that the library reports after the handshake.
    pub fn from_connection(common: &CommonState) -> NegotiatedParameters {
        let kind = common.handshake_kind();
        let resumed = kind == Some(HandshakeKind::Resumed);
        NegotiatedParameters {
            version: common.protocol_version(),
            suite: common.negotiated_cipher_suite().map(|suite| suite.suite()),
            group: common
                .negotiated_key_exchange_group()
                .map(|group| group.name()),
            signature: None,
            // For a resumed session, the library reports the chain of the original session, since none was sent.
            chain: common
                .peer_certificates()
                .filter(|_| !resumed)
                .and_then(ChainSummary::from_certificates),
            resumed,
            retried: kind == Some(HandshakeKind::FullWithHelloRetryRequest),
            early_data: false,
            chosen: None,
        }
    }
}

/// Properties of a certificate chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainSummary {
    /// The kind of the first certificate's key.
    pub key: KeyKind,
    /// Number of certificates.
    pub certificates: u32,
    /// Total size of all certificates (DER) in bytes.
    pub bytes: u32,
}

impl ChainSummary {
    /// Returns the properties of a chain; `None` if it is empty.
    pub fn from_certificates(certificates: &[CertificateDer<'_>]) -> Option<ChainSummary> {
        let bytes: usize = certificates.iter().map(|c| c.len()).sum();
        Some(ChainSummary {
            key: KeyKind::from_certificate(certificates.first()?),
            certificates: u32::try_from(certificates.len()).unwrap_or(u32::MAX),
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
        })
    }
}

/// The kind of a certificate's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// An RSA key with this modulus length in bits.
    Rsa(u32),
    /// A key of another algorithm, named as in `plimsoll certs --algorithm`; `other` if it has no name there.
    Named(&'static str),
}

impl KeyKind {
    /// Returns the kind of the key of a certificate (DER), from its `SubjectPublicKeyInfo` (RFC 5280 §4.1.2.7).
    pub fn from_certificate(certificate: &[u8]) -> KeyKind {
        KeyKind::parse(certificate).unwrap_or(KeyKind::Named("other"))
    }

    fn parse(certificate: &[u8]) -> Option<KeyKind> {
        const OBJECT_IDENTIFIER: u8 = 0x06;
        const BIT_STRING: u8 = 0x03;
        const INTEGER: u8 = 0x02;
        // Skips serial number, signature algorithm, issuer, validity and subject.
        let (info, _) = read_tagged(skip_fields(certificate, 5)?, SEQUENCE)?;
        let (algorithm, key) = read_tagged(info, SEQUENCE)?;
        let (name, parameters) = read_tagged(algorithm, OBJECT_IDENTIFIER)?;
        Some(KeyKind::Named(match name {
            [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01] => {
                let (bits, _) = read_tagged(key, BIT_STRING)?;
                let (key, _) = read_tagged(bits.get(1..)?, SEQUENCE)?;
                let (modulus, _) = read_tagged(key, INTEGER)?;
                let first = modulus.iter().position(|byte| *byte != 0)?;
                let whole = u32::try_from(modulus.len() - first).ok()?;
                return Some(KeyKind::Rsa(whole * 8 - modulus[first].leading_zeros()));
            }
            [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01] => {
                match read_tagged(parameters, OBJECT_IDENTIFIER)?.0 {
                    [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07] => "ecdsa-p256",
                    [0x2b, 0x81, 0x04, 0x00, 0x22] => "ecdsa-p384",
                    [0x2b, 0x81, 0x04, 0x00, 0x23] => "ecdsa-p521",
                    _ => return None,
                }
            }
            [0x2b, 0x65, 0x70] => "ed25519",
            // The object identifiers of ML-DSA (RFC 9881).
            [0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x03, 17] => "ml-dsa-44",
            [0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x03, 18] => "ml-dsa-65",
            [0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x03, 19] => "ml-dsa-87",
            _ => return None,
        }))
    }

    fn name(self) -> String {
        match self {
            KeyKind::Rsa(bits) => format!("rsa-{bits}"),
            KeyKind::Named(name) => name.to_owned(),
        }
    }
}

/// Counts of handshakes, by the parameters that they negotiated.
#[derive(Clone, Debug, Default)]
pub struct HandshakeTally(Vec<(NegotiatedParameters, u64)>);

impl HandshakeTally {
    /// Counts a handshake; returns whether it is the first of its kind.
    pub fn add(&mut self, agreement: NegotiatedParameters) -> bool {
        match self.0.iter_mut().find(|(known, _)| *known == agreement) {
            Some((_, count)) => {
                *count += 1;
                false
            }
            None => {
                self.0.push((agreement, 1));
                true
            }
        }
    }

    /// Returns the handshakes counted so far, together with the given certificate exceptions, and resets the tally;
    /// `None` if there was no handshake.
    pub fn take(&mut self, certificate: Vec<CertificateAcceptance>) -> Option<NegotiatedTls> {
        let counted = std::mem::take(&mut self.0);
        let handshakes = counted
            .iter()
            .map(|(one, count)| negotiated_handshakes(one, *count));
        let first = handshakes.clone().next()?;
        let negotiated = NegotiatedTls {
            version: first.version,
            suite: first.suite,
            group: first.group,
            certificate,
            renewed: 0,
            handshakes: handshakes.collect(),
        };
        // Merging also sorts the handshakes.
        Some(negotiated.merge(NegotiatedTls::default()))
    }
}

/// A [`HandshakeTally`] shared by the threads of a server.
#[derive(Clone, Debug, Default)]
pub struct SharedHandshakeTally(Arc<Mutex<HandshakeTally>>);

impl SharedHandshakeTally {
    /// Counts a handshake.
    pub fn add(&self, agreement: NegotiatedParameters) {
        let mut tally = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tally.add(agreement);
    }

    /// Returns the handshakes counted so far, the most frequent first, and resets the tally.
    pub fn take(&self) -> Vec<NegotiatedHandshakes> {
        let mut tally = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = tally.take(Vec::new());
        taken.map_or_else(Vec::new, |negotiated| negotiated.handshakes)
    }
}

/// Returns a suite's name in the IANA TLS registry; the library's names of TLS 1.3 suites differ.
pub(super) fn suite_name(suite: CipherSuite) -> String {
    format!("{suite:?}").replace("TLS13_", "TLS_")
}

fn negotiated_handshakes(agreed: &NegotiatedParameters, count: u64) -> NegotiatedHandshakes {
    let unknown = || "unknown".to_owned();
    NegotiatedHandshakes {
        count,
        version: agreed.version.map_or_else(unknown, |v| format!("{v:?}")),
        suite: agreed.suite.map_or_else(unknown, suite_name),
        group: agreed.group.map(group_name),
        signature: agreed.signature.map(|scheme| match scheme {
            // For these schemes, the names in the IANA TLS registry differ from the library's.
            SignatureScheme::ML_DSA_44 => "mldsa44".to_owned(),
            SignatureScheme::ML_DSA_65 => "mldsa65".to_owned(),
            SignatureScheme::ML_DSA_87 => "mldsa87".to_owned(),
            SignatureScheme::RSA_PSS_SHA256 => "rsa_pss_rsae_sha256".to_owned(),
            SignatureScheme::RSA_PSS_SHA384 => "rsa_pss_rsae_sha384".to_owned(),
            SignatureScheme::RSA_PSS_SHA512 => "rsa_pss_rsae_sha512".to_owned(),
            SignatureScheme::ECDSA_NISTP256_SHA256 => "ecdsa_secp256r1_sha256".to_owned(),
            SignatureScheme::ECDSA_NISTP384_SHA384 => "ecdsa_secp384r1_sha384".to_owned(),
            SignatureScheme::ECDSA_NISTP521_SHA512 => "ecdsa_secp521r1_sha512".to_owned(),
            other => format!("{other:?}").to_ascii_lowercase(),
        }),
        certificate: agreed.chain.map(|chain| chain.key.name()),
        chain: agreed.chain.map(|chain| chain.certificates),
        chain_bytes: agreed.chain.map(|chain| u64::from(chain.bytes)),
        resumed: agreed.resumed,
        retried: agreed.retried,
        early_data: agreed.early_data,
        chosen: agreed.chosen.map(str::to_owned),
    }
}

/// Returns the group's name in the IANA TLS registry, or the library's name for unknown groups.
fn group_name(group: NamedGroup) -> String {
    let code = u16::from(group);
    let known = KeyExchangeGroup::ALL
        .iter()
        .find(|known| known.iana_code() == code);
    known.map_or_else(|| format!("{group:?}"), |known| known.name().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, SignatureAlgorithm};

    fn certificate(algorithm: &'static SignatureAlgorithm) -> CertificateDer<'static> {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let made = CertificateParams::new(["a.test".to_owned()]).unwrap();
        made.self_signed(&key).unwrap().der().clone()
    }

    #[test]
    fn certificate_key_kind_is_identified() {
        for (algorithm, kind) in [
            (&rcgen::PKCS_ECDSA_P256_SHA256, "ecdsa-p256"),
            (&rcgen::PKCS_ECDSA_P384_SHA384, "ecdsa-p384"),
            (&rcgen::PKCS_ECDSA_P521_SHA512, "ecdsa-p521"),
            (&rcgen::PKCS_ED25519, "ed25519"),
            (&rcgen::PKCS_RSA_SHA256, "rsa-2048"),
            (&rcgen::PKCS_ML_DSA_44, "ml-dsa-44"),
            (&rcgen::PKCS_ML_DSA_65, "ml-dsa-65"),
            (&rcgen::PKCS_ML_DSA_87, "ml-dsa-87"),
        ] {
            let der = certificate(algorithm);
            assert_eq!(KeyKind::from_certificate(&der).name(), kind);
            for length in 0..der.len() / 2 {
                assert_eq!(
                    KeyKind::from_certificate(&der[..length]),
                    KeyKind::Named("other")
                );
            }
        }
    }

    #[test]
    fn handshakes_are_tallied_by_negotiated_parameters() {
        let one = NegotiatedParameters {
            version: Some(ProtocolVersion::TLSv1_3),
            suite: Some(CipherSuite::TLS13_AES_128_GCM_SHA256),
            group: Some(NamedGroup::from(0x11ed)),
            ..NegotiatedParameters::default()
        };
        let mut tally = HandshakeTally::default();
        tally.add(one);
        for _ in 0..2 {
            tally.add(NegotiatedParameters {
                resumed: true,
                ..one
            });
        }
        let negotiated = tally.take(Vec::new()).unwrap();
        assert_eq!(negotiated.group.as_deref(), Some("SecP384r1MLKEM1024"));
        let counts = |n: &NegotiatedTls| -> Vec<(u64, bool)> {
            n.handshakes.iter().map(|h| (h.count, h.resumed)).collect()
        };
        assert_eq!(counts(&negotiated), [(2, true), (1, false)]);
        let twice = negotiated.clone().merge(negotiated);
        assert_eq!(counts(&twice), [(4, true), (2, false)]);
        assert!(tally.take(Vec::new()).is_none());
    }
}
