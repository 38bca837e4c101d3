//! What a machine's core can do of TLS in memory, without a network: the wall that a link can
//! come near and never pass. The engine measures it; reports divide by it. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Crypto speeds of one core, of the TLS library that this program uses. CPU time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// By cipher suite (RFC 8446 B.4): bytes a second opened in full-size records.
    pub open_bytes_per_s: BTreeMap<String, f64>,
    /// By key-exchange group: the client's share of one exchange, µs.
    pub client_exchange_us: BTreeMap<String, f64>,
    /// And the server's.
    pub server_exchange_us: BTreeMap<String, f64>,
    /// One ECDSA P-256 signature, µs.
    pub sign_us: f64,
    /// Checking one, µs.
    pub verify_us: f64,
}

/// What one fetch asks of crypto.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work<'a> {
    pub suite: &'a str,
    /// `None`: no key exchange.
    pub group: Option<&'a str>,
    /// Connections that a fetch needs: 1, or less where they are kept.
    pub connections: f64,
    /// Of these, with a full handshake.
    pub full: f64,
    /// Signatures that a client checks in a full handshake.
    pub verified: f64,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floors_add_what_the_connection_needs_and_are_unknown_where_speeds_are() {
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
}
