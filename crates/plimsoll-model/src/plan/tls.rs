//! The TLS settings of a plan, resolved.

use std::path::PathBuf;

use super::Target;
use crate::formats::fingerprint::Fingerprint;
use crate::formats::named_enum::named;

/// The TLS settings of a plan. Files are given by their paths; their contents are not included.
#[derive(Clone, Debug, PartialEq)]
pub struct TlsPlan {
    /// How the server's certificate is checked.
    pub trust: ServerTrust,
    /// The file of certificate revocation lists (CRL), with one list for every issuer in the server's chain.
    pub crl: Option<PathBuf>,
    /// The client's certificate chain and key (PEM), for mutual TLS.
    pub identity: Option<ClientIdentity>,
    /// The name that the certificate is checked against; `None`: the target's host, which a Unix socket does not have.
    pub server_name: Option<String>,
    /// The versions that are offered; the handshake uses the highest one that the server supports.
    pub versions: Vec<TlsVersion>,
    /// The cipher suites that are offered, of all versions above.
    pub suites: Vec<TlsSuite>,
    /// The key-exchange groups that are offered, the preferred one first.
    pub groups: Vec<KeyExchangeGroup>,
    /// Whether compressed certificates are accepted, and the client's is compressed (RFC 8879).
    pub compress_certificates: bool,
    /// The file that TLS secrets are written to (NSS key log format), for decrypting packet captures.
    pub key_log: Option<PathBuf>,
    /// Whether sessions are resumed from tickets.
    pub resume: bool,
    /// Where sessions are resumed, the share of new connections that still make a full handshake (0–1).
    pub full_share: Option<f64>,
    /// Whether requests are sent with the first bytes of a resumed session (0-RTT, RFC 8446 §2.3).
    pub early_data: bool,
    /// The code that encrypts and decrypts TLS records.
    pub record_layer: RecordLayer,
    /// How often a certificate chain is checked.
    pub chain_check: ChainCheck,
}

impl TlsPlan {
    /// Returns whether no name is known to check the certificate of this target against: a Unix socket has no host
    /// name.
    pub fn lacks_server_name(&self, target: &Target) -> bool {
        let is_checked = matches!(self.trust, ServerTrust::System | ServerTrust::Ca(_));
        is_checked && target.socket.is_some() && self.server_name.is_none()
    }
}

/// How the server's certificate is verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerTrust {
    /// The system's trust store.
    System,
    /// The certificates in a file: one of them must have signed the server's certificate, or be the server's
    /// certificate.
    Ca(PathBuf),
    /// The fingerprints of the accepted certificates; name and issuer are not checked.
    Pinned(Vec<Fingerprint>),
    /// Any certificate is accepted.
    Unchecked,
}

named! {
    /// How often a server's certificate chain is verified.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum ChainCheck by name {
        /// The chain is verified in every full handshake, as ordinary clients do.
        Each "each",
        /// A chain is verified once a minute, for all connections that receive the same one.
        Once "once",
    }
}

named! {
    /// The code that encrypts and decrypts TLS records after the handshake.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum RecordLayer by name {
        /// This program's own code, which works in place.
        Own "own",
        /// The TLS library, which works in its own buffers.
        Library "library",
    }
}

/// The client's certificate files, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientIdentity {
    /// The chain, the client's own certificate first.
    pub cert: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

named! {
    /// Versions of TLS.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum TlsVersion by name {
        /// TLS 1.3 (RFC 8446).
        V1_3 "1.3",
        /// TLS 1.2 (RFC 5246).
        V1_2 "1.2",
    }
}

named! {
    /// Cipher suites of TLS 1.3 (RFC 8446 B.4), and those of TLS 1.2 with forward secrecy and authenticated encryption
    /// (RFC 5289, RFC 7905).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum TlsSuite by name {
        /// TLS 1.3, AES-128-GCM.
        Aes128GcmSha256 "TLS_AES_128_GCM_SHA256",
        /// TLS 1.3, AES-256-GCM.
        Aes256GcmSha384 "TLS_AES_256_GCM_SHA384",
        /// TLS 1.3, ChaCha20-Poly1305.
        Chacha20Poly1305Sha256 "TLS_CHACHA20_POLY1305_SHA256",
        /// TLS 1.2, for ECDSA certificates.
        EcdheEcdsaAes128GcmSha256 "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        /// TLS 1.2, for ECDSA certificates.
        EcdheEcdsaAes256GcmSha384 "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
        /// TLS 1.2, for ECDSA certificates.
        EcdheEcdsaChacha20Poly1305Sha256 "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        /// TLS 1.2, for RSA certificates.
        EcdheRsaAes128GcmSha256 "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        /// TLS 1.2, for RSA certificates.
        EcdheRsaAes256GcmSha384 "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        /// TLS 1.2, for RSA certificates.
        EcdheRsaChacha20Poly1305Sha256 "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    }
}

impl TlsSuite {
    /// Returns the only TLS version that has this suite.
    pub const fn version(self) -> TlsVersion {
        match self {
            TlsSuite::Aes128GcmSha256
            | TlsSuite::Aes256GcmSha384
            | TlsSuite::Chacha20Poly1305Sha256 => TlsVersion::V1_3,
            _ => TlsVersion::V1_2,
        }
    }
}

named! {
    /// Key-exchange groups (RFC 8446 §4.2.7; hybrids: draft-ietf-tls-ecdhe-mlkem; ML-KEM alone:
    /// draft-ietf-tls-mlkem).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum KeyExchangeGroup by name {
        /// Hybrid of ML-KEM-768 and X25519.
        X25519Mlkem768 "X25519MLKEM768",
        /// Hybrid of ML-KEM-768 and P-256.
        Secp256r1Mlkem768 "SecP256r1MLKEM768",
        /// Hybrid of ML-KEM-1024 and P-384.
        Secp384r1Mlkem1024 "SecP384r1MLKEM1024",
        /// ML-KEM-768 alone.
        Mlkem768 "MLKEM768",
        /// ML-KEM-1024 alone.
        Mlkem1024 "MLKEM1024",
        /// X25519 (RFC 7748).
        X25519 "X25519",
        /// P-256.
        Secp256r1 "secp256r1",
        /// P-384.
        Secp384r1 "secp384r1",
    }
}

impl KeyExchangeGroup {
    /// The groups that are offered by default, like browsers, OpenSSL 3.5 and Go 1.24: the hybrid first, and a
    /// separate key share of its classical part.
    pub const DEFAULT_GROUPS: [KeyExchangeGroup; 4] = [
        KeyExchangeGroup::X25519Mlkem768,
        KeyExchangeGroup::X25519,
        KeyExchangeGroup::Secp256r1,
        KeyExchangeGroup::Secp384r1,
    ];

    /// Returns whether the group contains ML-KEM, alone or as a hybrid. Only TLS 1.3 has these groups.
    pub const fn is_post_quantum(self) -> bool {
        !matches!(
            self,
            KeyExchangeGroup::X25519 | KeyExchangeGroup::Secp256r1 | KeyExchangeGroup::Secp384r1
        )
    }

    /// Returns the group's number in the IANA registry.
    pub const fn iana_code(self) -> u16 {
        match self {
            KeyExchangeGroup::X25519Mlkem768 => 0x11ec,
            KeyExchangeGroup::Secp256r1Mlkem768 => 0x11eb,
            KeyExchangeGroup::Secp384r1Mlkem1024 => 0x11ed,
            KeyExchangeGroup::Mlkem768 => 0x0201,
            KeyExchangeGroup::Mlkem1024 => 0x0202,
            KeyExchangeGroup::X25519 => 0x001d,
            KeyExchangeGroup::Secp256r1 => 0x0017,
            KeyExchangeGroup::Secp384r1 => 0x0018,
        }
    }
}
