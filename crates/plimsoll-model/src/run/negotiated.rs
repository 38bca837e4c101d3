//! What the TLS handshakes of a run agreed on.

use serde::{Deserialize, Serialize};

use crate::named::named;
use crate::record::is_zero;

/// What the TLS handshakes of a run agreed on, by the names of the TLS registries. A handshake's
/// cost depends on it several times over: runs that differ in it are not of the same link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NegotiatedTls {
    /// This and the next two: of the first connection.
    pub version: String,
    /// The cipher suite.
    pub suite: String,
    /// `None` where a resumed session took its keys from the ticket alone.
    pub group: Option<String>,
    /// What was out of the ordinary about the server's certificate. Left out where nothing was.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub certificate: Vec<CertificateTaken>,
    /// How often the client's certificate was read again in mid-run, since it was replaced on disk.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub renewed: u64,
    /// All connections, the warm-up's too, by what their handshakes agreed on; the most frequent
    /// first. Left out where it is not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub handshakes: Vec<Handshakes>,
}

impl NegotiatedTls {
    /// Adds what another worker or process negotiated.
    #[must_use]
    pub fn with(mut self, other: NegotiatedTls) -> NegotiatedTls {
        for how in other.certificate {
            if !self.certificate.contains(&how) {
                self.certificate.push(how);
            }
        }
        // All of them read the same files.
        self.renewed = self.renewed.max(other.renewed);
        for theirs in other.handshakes {
            match self
                .handshakes
                .iter_mut()
                .find(|ours| ours.is_like(&theirs))
            {
                Some(ours) => ours.count = ours.count.saturating_add(theirs.count),
                None => self.handshakes.push(theirs),
            }
        }
        // A stable order, whichever worker ends first.
        self.handshakes.sort_by(|a, b| {
            b.count
                .cmp(&a.count)
                .then_with(|| a.sentence().cmp(&b.sentence()))
        });
        self
    }
}

/// Handshakes that agreed on the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handshakes {
    /// How many.
    pub count: u64,
    /// The version of TLS.
    pub version: String,
    /// The cipher suite.
    pub suite: String,
    /// `None` where a resumed session took its keys from the ticket alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The algorithm by which the server proved that it holds its certificate's key (RFC 8446 §4.4.3). `None`
    /// in resumed sessions, as the next three: they show no certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
    /// The kind of key in the server's certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// Certificates that the server sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain: Option<u32>,
    /// Their bytes (DER) together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain_bytes: Option<u64>,
    /// The sessions were resumed from tickets.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub resumed: bool,
    /// The handshakes were made after a HelloRetryRequest (RFC 8446 §4.1.4).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retried: bool,
    /// The server took early data (0-RTT).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub early_data: bool,
    /// What the server chose by ALPN, where it had a choice: the version of HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen: Option<String>,
}

/// A version as people write it: `TLSv1_3` is `TLS 1.3`.
pub fn version_name(recorded: &str) -> String {
    recorded.replace("TLSv", "TLS ").replace('_', ".")
}

impl Handshakes {
    fn is_like(&self, other: &Handshakes) -> bool {
        let same = |h: &Handshakes| Handshakes {
            count: 0,
            ..h.clone()
        };
        same(self) == same(other)
    }

    /// What they agreed on, for people.
    pub fn sentence(&self) -> String {
        let version = version_name(&self.version);
        let mut parts = vec![version.as_str(), &self.suite];
        parts.extend(self.group.as_deref());
        let chain = match (&self.certificate, self.chain, self.chain_bytes) {
            (Some(kind), Some(1), Some(bytes)) => format!("{kind} certificate of {bytes} B"),
            (Some(kind), Some(n), Some(bytes)) => {
                format!("{kind} certificate in a chain of {n}, {bytes} B")
            }
            _ => String::new(),
        };
        let signature = match (&self.signature, chain.is_empty()) {
            (Some(scheme), false) => format!("{chain}, signed with {scheme}"),
            _ => chain,
        };
        if !signature.is_empty() {
            parts.push(&signature);
        }
        let chosen = self
            .chosen
            .as_ref()
            .map(|version| format!("HTTP/{version}"));
        parts.extend(chosen.as_deref());
        let life = self.life();
        parts.push(&life);
        parts.join(", ")
    }

    /// Whether they were full ones, and what came with that.
    pub fn life(&self) -> String {
        let mut parts = vec![if self.resumed { "resumed" } else { "full" }];
        if self.retried {
            parts.push("retried");
        }
        if self.early_data {
            parts.push("early data");
        }
        parts.join(", ")
    }
}

named! {
    /// How a certificate was taken that is not of X.509 version 3, signed by a trusted CA and for one
    /// of its subject alternative names; in words that follow "the server's certificate".
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum CertificateTaken by sentence {
        /// It is in the CA file itself.
        InCaFile "is in the CA file itself: that it has not expired was checked, its name and CA flag were not",
        /// It has a fingerprint that was asked for.
        Pinned "has a pinned fingerprint: that it has not expired was checked, its name and issuer were not",
        /// Nothing was checked.
        Unchecked "was not checked",
        /// It is of version 1, and a certificate of the CA file signed it.
        #[serde(rename = "version_1")]
        Version1 "is of X.509 version 1, which most clients refuse; a certificate of the CA file signed it",
        /// It has no subject alternative name, and its common name is the server's.
        CommonName "has no subject alternative name, so that its common name was taken for its name; most clients refuse that",
    }
}
