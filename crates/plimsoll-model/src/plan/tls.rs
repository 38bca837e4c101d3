//! How links are secured: what a plan asks of TLS.

use std::path::PathBuf;

use super::Target;
use crate::fingerprint::Fingerprint;
use crate::named::named;

/// How the link is secured. Paths, not contents.
#[derive(Clone, Debug, PartialEq)]
pub struct TlsPlan {
    /// How the server's certificate is checked.
    pub trust: Trust,
    /// Lists of revoked certificates (CRL): one of every issuer in the server's chain.
    pub crl: Option<PathBuf>,
    /// Client certificate chain and key (PEM): present for mutual TLS.
    pub identity: Option<Identity>,
    /// The name to check the certificate against; `None`: the target's host, which a Unix
    /// socket does not have.
    pub server_name: Option<String>,
    /// One or both; the handshake takes the highest that the server has as well.
    pub versions: Vec<TlsVersion>,
    /// Those offered, of all versions above.
    pub suites: Vec<Suite>,
    /// Those offered, the preferred one first.
    pub groups: Vec<Group>,
    /// Accept compressed certificates, and compress the client's (RFC 8879).
    pub compressed: bool,
    /// Where the secrets of all connections are written, for what reads captured packets.
    pub key_log: Option<PathBuf>,
    /// Resume sessions from tickets.
    pub resume: bool,
    /// Where sessions are resumed: this part of the new connections makes a full handshake all the
    /// same (0–1).
    pub full: Option<f64>,
    /// Send requests with the first bytes of a resumed session (0-RTT, RFC 8446 §2.3).
    pub early_data: bool,
    /// Who seals and opens records.
    pub records: RecordLayer,
    /// How often a certificate chain is checked.
    pub chain: ChainCheck,
}

impl TlsPlan {
    /// Nothing says what name the certificate of this target has to be for: a Unix socket has
    /// none of its own.
    pub fn lacks_name(&self, target: &Target) -> bool {
        let is_checked = matches!(self.trust, Trust::System | Trust::Ca(_));
        is_checked && target.socket.is_some() && self.server_name.is_none()
    }
}

/// What a server's certificate is held to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The system's trust store.
    System,
    /// The certificates of a file: one of them signed it, or is it.
    Ca(PathBuf),
    /// It is one of these; neither its name nor who signed it matters.
    Pinned(Vec<Fingerprint>),
    /// Nothing: any will do.
    Unchecked,
}

named! {
    /// How often a server's certificate chain is checked.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum ChainCheck by name {
        /// The chain is checked in every full handshake, as clients do.
        Each "each",
        /// A chain is checked once a minute for connections that are shown the same one.
        Once "once",
    }
}

named! {
    /// Who opens and seals TLS records once the handshake is over.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum RecordLayer by name {
        /// This program, in place.
        Own "own",
        /// The TLS library, in buffers of its own.
        Library "library",
    }
}

/// What the client shows of itself. PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The chain, the client's own certificate first.
    pub cert: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

named! {
    /// Versions of TLS.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum TlsVersion by name {
        /// RFC 8446.
        V1_3 "1.3",
        /// RFC 5246.
        V1_2 "1.2",
    }
}

named! {
    /// Cipher suites of TLS 1.3 (RFC 8446, B.4), and those of TLS 1.2 that keep past connections
    /// secret and authenticate what they encrypt (RFC 5289, RFC 7905).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Suite by name {
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

impl Suite {
    /// The only version that has it.
    pub const fn version(self) -> TlsVersion {
        match self {
            Suite::Aes128GcmSha256 | Suite::Aes256GcmSha384 | Suite::Chacha20Poly1305Sha256 => {
                TlsVersion::V1_3
            }
            _ => TlsVersion::V1_2,
        }
    }
}

named! {
    /// Key-exchange groups (RFC 8446 §4.2.7; hybrids: draft-ietf-tls-ecdhe-mlkem; ML-KEM alone:
    /// draft-ietf-tls-mlkem).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Group by name {
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
        /// RFC 7748.
        X25519 "X25519",
        /// P-256.
        Secp256r1 "secp256r1",
        /// P-384.
        Secp384r1 "secp384r1",
    }
}

impl Group {
    /// What is offered where nothing is asked for, as browsers, OpenSSL 3.5 and Go 1.24 do: the
    /// hybrid first, whose classical part has a key share of its own.
    pub const DEFAULT_OFFER: [Group; 4] = [
        Group::X25519Mlkem768,
        Group::X25519,
        Group::Secp256r1,
        Group::Secp384r1,
    ];

    /// Whether it is one of ML-KEM, alone or with another: TLS 1.3 alone has these.
    pub const fn is_post_quantum(self) -> bool {
        !matches!(self, Group::X25519 | Group::Secp256r1 | Group::Secp384r1)
    }

    /// Its number in the IANA registry.
    pub const fn code(self) -> u16 {
        match self {
            Group::X25519Mlkem768 => 0x11ec,
            Group::Secp256r1Mlkem768 => 0x11eb,
            Group::Secp384r1Mlkem1024 => 0x11ed,
            Group::Mlkem768 => 0x0201,
            Group::Mlkem1024 => 0x0202,
            Group::X25519 => 0x001d,
            Group::Secp256r1 => 0x0017,
            Group::Secp384r1 => 0x0018,
        }
    }
}
