//! How fast a core performs the cryptography of TLS in memory, without a network: an upper limit for any connection.
//! The engine measures these speeds, and reports compare results with them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Cryptographic speeds of one core with the TLS library of this program, in CPU time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CryptoSpeeds {
    /// Bytes decrypted per second in full-size records, by cipher suite (RFC 8446 B.4).
    pub open_bytes_per_s: BTreeMap<String, f64>,
    /// The client's CPU time for one key exchange, µs, by key-exchange group.
    pub client_exchange_us: BTreeMap<String, f64>,
    /// The server's CPU time for one key exchange, µs, by key-exchange group.
    pub server_exchange_us: BTreeMap<String, f64>,
    /// CPU time of one ECDSA P-256 signature, µs.
    pub sign_us: f64,
    /// CPU time of one ECDSA P-256 verification, µs.
    pub verify_us: f64,
}

/// The cryptographic work of one fetch of a file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CryptoWork<'a> {
    /// The cipher suite's name in the IANA registry.
    pub suite: &'a str,
    /// The key-exchange group; `None`: no key exchange.
    pub group: Option<&'a str>,
    /// Connections for each fetch: 1, or less where they are reused.
    pub connections: f64,
    /// The part of `connections` that makes a full handshake.
    pub full_handshakes: f64,
    /// Signatures that a client verifies in a full handshake.
    pub verified_signatures: f64,
    /// Bytes received in a fetch.
    pub bytes: f64,
}

impl CryptoSpeeds {
    /// Returns a lower bound of the client's CPU time for a fetch, µs: key exchange, signatures and decryption.
    /// Hashing, key schedule, system calls and TCP are not included. `None`: not measured for this suite or group.
    pub fn min_client_cpu_us(&self, work: &CryptoWork<'_>) -> Option<f64> {
        let exchange = key_exchange_us(&self.client_exchange_us, work)?;
        Some(
            exchange
                + work.full_handshakes * work.verified_signatures * self.verify_us
                + self.bulk_encryption_us(work)?,
        )
    }

    /// Returns a lower bound of the server's CPU time for a fetch, µs: key exchange, one signature, and encryption,
    /// which takes as long as decryption.
    pub fn min_server_cpu_us(&self, work: &CryptoWork<'_>) -> Option<f64> {
        let exchange = key_exchange_us(&self.server_exchange_us, work)?;
        Some(exchange + work.full_handshakes * self.sign_us + self.bulk_encryption_us(work)?)
    }

    fn bulk_encryption_us(&self, work: &CryptoWork<'_>) -> Option<f64> {
        let speed = self.open_bytes_per_s.get(work.suite)?;
        Some(work.bytes / speed * 1e6)
    }
}

fn key_exchange_us(measured: &BTreeMap<String, f64>, work: &CryptoWork<'_>) -> Option<f64> {
    work.group.map_or(Some(0.0), |group| {
        Some(work.connections * measured.get(group)?)
    })
}

/// CPU time of cryptographic operations of handshakes on one core, µs each.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PrimitiveCosts {
    /// The client's part of one key exchange, key generation included, by key-exchange group.
    pub client_exchange_us: BTreeMap<String, f64>,
    /// The server's part of one key exchange, by key-exchange group.
    pub server_exchange_us: BTreeMap<String, f64>,
    /// One signature, by type of certificate.
    pub sign_us: BTreeMap<String, f64>,
    /// One verification, by type of certificate.
    pub verify_us: BTreeMap<String, f64>,
}

/// The cryptographic operations of a new TLS 1.3 connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandshakeWork {
    /// The key-exchange group's name in the IANA registry.
    pub group: String,
    /// The type of both ends' certificates.
    pub certificate: String,
    /// Whether the client authenticates with a certificate as well.
    pub mutual: bool,
    /// Whether the session is resumed from a ticket: a key exchange without certificates.
    pub resumed: bool,
}

impl HandshakeWork {
    /// Signatures that an end verifies for a peer whose certificate was signed directly by the CA: the CA's, and the
    /// peer's CertificateVerify.
    const VERIFIED_SIGNATURES_PER_PEER: f64 = 2.0;
}

impl PrimitiveCosts {
    /// Returns the client's CPU time for a connection, µs. `None`: not measured for these parameters.
    pub fn client_cpu_us(&self, handshake: &HandshakeWork) -> Option<f64> {
        let exchange = self.client_exchange_us.get(&handshake.group)?;
        let signs = handshake.mutual;
        Some(exchange + self.signatures_us(handshake, signs, true)?)
    }

    /// Returns the server's CPU time for a connection, µs. `None`: not measured for these parameters.
    pub fn server_cpu_us(&self, handshake: &HandshakeWork) -> Option<f64> {
        let exchange = self.server_exchange_us.get(&handshake.group)?;
        let checks = handshake.mutual;
        Some(exchange + self.signatures_us(handshake, true, checks)?)
    }

    fn signatures_us(&self, handshake: &HandshakeWork, signs: bool, checks: bool) -> Option<f64> {
        if handshake.resumed {
            return Some(0.0);
        }
        let sign = self.sign_us.get(&handshake.certificate)?;
        let verify = self.verify_us.get(&handshake.certificate)?;
        let signing = if signs { *sign } else { 0.0 };
        let checking = if checks {
            HandshakeWork::VERIFIED_SIGNATURES_PER_PEER * verify
        } else {
            0.0
        };
        Some(signing + checking)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_floor_sums_known_costs() {
        let limits = CryptoSpeeds {
            open_bytes_per_s: BTreeMap::from([("A".to_owned(), 1e9)]),
            client_exchange_us: BTreeMap::from([("X".to_owned(), 50.0)]),
            server_exchange_us: BTreeMap::from([("X".to_owned(), 40.0)]),
            sign_us: 15.0,
            verify_us: 55.0,
        };
        let work = CryptoWork {
            suite: "A",
            group: Some("X"),
            connections: 1.0,
            full_handshakes: 1.0,
            verified_signatures: 2.0,
            bytes: 1e6,
        };
        assert_eq!(limits.min_client_cpu_us(&work), Some(50.0 + 110.0 + 1000.0));
        assert_eq!(limits.min_server_cpu_us(&work), Some(40.0 + 15.0 + 1000.0));
        let resumed = CryptoWork {
            full_handshakes: 0.0,
            ..work
        };
        assert_eq!(limits.min_client_cpu_us(&resumed), Some(1050.0));
        let kept = CryptoWork {
            connections: 0.5,
            ..resumed
        };
        assert_eq!(limits.min_client_cpu_us(&kept), Some(1025.0));
        let unknown = CryptoWork { suite: "B", ..work };
        assert_eq!(limits.min_client_cpu_us(&unknown), None);
        let unknown = CryptoWork {
            group: Some("Y"),
            ..work
        };
        assert_eq!(limits.min_server_cpu_us(&unknown), None);
    }

    #[test]
    fn handshake_cost_is_split_between_ends() {
        let one = |name: &str, us: f64| BTreeMap::from([(name.to_owned(), us)]);
        let primitives = PrimitiveCosts {
            client_exchange_us: one("X", 50.0),
            server_exchange_us: one("X", 40.0),
            sign_us: one("K", 7.0),
            verify_us: one("K", 3.0),
        };
        let handshake = |mutual, resumed| HandshakeWork {
            group: "X".to_owned(),
            certificate: "K".to_owned(),
            mutual,
            resumed,
        };
        for (mutual, resumed, client, server) in [
            (false, false, 56.0, 47.0),
            (true, false, 63.0, 53.0),
            (true, true, 50.0, 40.0),
        ] {
            let handshake = handshake(mutual, resumed);
            assert_eq!(primitives.client_cpu_us(&handshake), Some(client));
            assert_eq!(primitives.server_cpu_us(&handshake), Some(server));
        }
        let other = HandshakeWork {
            certificate: "L".to_owned(),
            ..handshake(false, false)
        };
        assert_eq!(primitives.client_cpu_us(&other), None);
    }
}
