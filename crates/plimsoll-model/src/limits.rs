//! What a machine's core can do of TLS in memory, without a network: the wall that a link can
//! come near and never pass. The engine measures it; reports divide by it. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Crypto speeds of one core, of the TLS library that this program uses. CPU time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes a second opened in full-size records, by cipher suite (RFC 8446 B.4).
    pub open_bytes_per_s: BTreeMap<String, f64>,
    /// The client's share of one exchange, µs, by key-exchange group.
    pub client_exchange_us: BTreeMap<String, f64>,
    /// The server's share of one exchange, µs, by key-exchange group.
    pub server_exchange_us: BTreeMap<String, f64>,
    /// One ECDSA P-256 signature, µs.
    pub sign_us: f64,
    /// The check of one ECDSA P-256 signature, µs.
    pub verify_us: f64,
}

/// What one fetch asks of crypto.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work<'a> {
    /// The cipher suite's name in the IANA registry.
    pub suite: &'a str,
    /// The key-exchange group; `None`: no key exchange.
    pub group: Option<&'a str>,
    /// Connections that a fetch needs: 1, or less where they are kept.
    pub connections: f64,
    /// Connections among these with a full handshake.
    pub full: f64,
    /// Signatures that a client checks in a full handshake.
    pub verified: f64,
    /// Bytes that a fetch receives.
    pub bytes: f64,
}

impl Limits {
    /// The least CPU that a fetch can cost its client, µs: key exchange, signatures and the
    /// bytes' opening. Hashing, key schedule, system calls and TCP are what comes on top.
    /// `None`: not measured for this suite or group.
    pub fn client_floor_us(&self, work: &Work<'_>) -> Option<f64> {
        let exchange = exchange(&self.client_exchange_us, work)?;
        Some(exchange + work.full * work.verified * self.verify_us + self.bulk_us(work)?)
    }

    /// The same for the server: key exchange, one signature, and the bytes' sealing, which
    /// takes as long as opening.
    pub fn server_floor_us(&self, work: &Work<'_>) -> Option<f64> {
        let exchange = exchange(&self.server_exchange_us, work)?;
        Some(exchange + work.full * self.sign_us + self.bulk_us(work)?)
    }

    fn bulk_us(&self, work: &Work<'_>) -> Option<f64> {
        let speed = self.open_bytes_per_s.get(work.suite)?;
        Some(work.bytes / speed * 1e6)
    }
}

fn exchange(measured: &BTreeMap<String, f64>, work: &Work<'_>) -> Option<f64> {
    work.group.map_or(Some(0.0), |group| {
        Some(work.connections * measured.get(group)?)
    })
}

/// What the cryptography of handshakes costs a core in memory, µs of CPU each.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Primitives {
    /// The client's share of one exchange, key generation included, by key-exchange group.
    pub client_exchange_us: BTreeMap<String, f64>,
    /// The server's share of one exchange, by key-exchange group.
    pub server_exchange_us: BTreeMap<String, f64>,
    /// One signature, by kind of certificate.
    pub sign_us: BTreeMap<String, f64>,
    /// The check of one signature, by kind of certificate.
    pub verify_us: BTreeMap<String, f64>,
}

/// What a new connection asks of them, in TLS 1.3.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handshake {
    /// The key-exchange group's name in the IANA registry.
    pub group: String,
    /// The kind of both ends' certificates.
    pub certificate: String,
    /// The client shows one as well.
    pub mutual: bool,
    /// The session is resumed from a ticket: a key exchange and no certificate.
    pub resumed: bool,
}

impl Handshake {
    /// Signatures that an end checks of a peer whose certificate a CA signed directly: the CA's, and
    /// the proof that the peer holds the key.
    const SIGNATURES_CHECKED: f64 = 2.0;
}

impl Primitives {
    /// What they take of the client's CPU for a connection, µs. `None`: not measured for these.
    pub fn of_client(&self, handshake: &Handshake) -> Option<f64> {
        let exchange = self.client_exchange_us.get(&handshake.group)?;
        let signs = handshake.mutual;
        Some(exchange + self.signatures(handshake, signs, true)?)
    }

    /// The same of the server's.
    pub fn of_server(&self, handshake: &Handshake) -> Option<f64> {
        let exchange = self.server_exchange_us.get(&handshake.group)?;
        let checks = handshake.mutual;
        Some(exchange + self.signatures(handshake, true, checks)?)
    }

    fn signatures(&self, handshake: &Handshake, signs: bool, checks: bool) -> Option<f64> {
        if handshake.resumed {
            return Some(0.0);
        }
        let sign = self.sign_us.get(&handshake.certificate)?;
        let verify = self.verify_us.get(&handshake.certificate)?;
        let signing = if signs { *sign } else { 0.0 };
        let checking = if checks {
            Handshake::SIGNATURES_CHECKED * verify
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
        let limits = Limits {
            open_bytes_per_s: BTreeMap::from([("A".to_owned(), 1e9)]),
            client_exchange_us: BTreeMap::from([("X".to_owned(), 50.0)]),
            server_exchange_us: BTreeMap::from([("X".to_owned(), 40.0)]),
            sign_us: 15.0,
            verify_us: 55.0,
        };
        let work = Work {
            suite: "A",
            group: Some("X"),
            connections: 1.0,
            full: 1.0,
            verified: 2.0,
            bytes: 1e6,
        };
        assert_eq!(limits.client_floor_us(&work), Some(50.0 + 110.0 + 1000.0));
        assert_eq!(limits.server_floor_us(&work), Some(40.0 + 15.0 + 1000.0));
        let resumed = Work { full: 0.0, ..work };
        assert_eq!(limits.client_floor_us(&resumed), Some(1050.0));
        let kept = Work {
            connections: 0.5,
            ..resumed
        };
        assert_eq!(limits.client_floor_us(&kept), Some(1025.0));
        let unknown = Work { suite: "B", ..work };
        assert_eq!(limits.client_floor_us(&unknown), None);
        let unknown = Work {
            group: Some("Y"),
            ..work
        };
        assert_eq!(limits.server_floor_us(&unknown), None);
    }

    #[test]
    fn handshake_cost_is_split_between_ends() {
        let one = |name: &str, us: f64| BTreeMap::from([(name.to_owned(), us)]);
        let primitives = Primitives {
            client_exchange_us: one("X", 50.0),
            server_exchange_us: one("X", 40.0),
            sign_us: one("K", 7.0),
            verify_us: one("K", 3.0),
        };
        let handshake = |mutual, resumed| Handshake {
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
            assert_eq!(primitives.of_client(&handshake), Some(client));
            assert_eq!(primitives.of_server(&handshake), Some(server));
        }
        let other = Handshake {
            certificate: "L".to_owned(),
            ..handshake(false, false)
        };
        assert_eq!(primitives.of_client(&other), None);
    }
}
