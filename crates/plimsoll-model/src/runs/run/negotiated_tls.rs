//! The parameters that the TLS handshakes of a run negotiated.

use serde::{Deserialize, Serialize};

use crate::formats::named_enum::named;
use crate::records::record::is_zero;

/// The parameters that the TLS handshakes of a run negotiated, by their names in the TLS registries. The cost of a
/// handshake depends heavily on them, so runs that differ in them are not comparable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NegotiatedTls {
    /// The TLS version; this and the next two fields are those of the first connection.
    pub version: String,
    /// The cipher suite.
    pub suite: String,
    /// The key-exchange group; `None`: a resumed session took its keys from the ticket alone.
    pub group: Option<String>,
    /// Remarks on how the server's certificate was accepted; left out where it was verified as usual.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub certificate: Vec<CertificateAcceptance>,
    /// How often the client's certificate was reloaded during the run, because it was replaced on disk.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub renewed: u64,
    /// All connections, including the warm-up's, grouped by negotiated parameters; the most frequent first. Left out
    /// where not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub handshakes: Vec<NegotiatedHandshakes>,
}

impl NegotiatedTls {
    /// Merges the handshakes of another worker or process.
    #[must_use]
    pub fn merge(mut self, other: NegotiatedTls) -> NegotiatedTls {
        for how in other.certificate {
            if !self.certificate.contains(&how) {
                self.certificate.push(how);
            }
        }
        // All workers and processes read the same certificate files, so reloads are not added up.
        self.renewed = self.renewed.max(other.renewed);
        for theirs in other.handshakes {
            match self
                .handshakes
                .iter_mut()
                .find(|ours| ours.has_same_parameters(&theirs))
            {
                Some(ours) => ours.count = ours.count.saturating_add(theirs.count),
                None => self.handshakes.push(theirs),
            }
        }
        // Sort, so that the order does not depend on which worker ended first.
        self.handshakes.sort_by(|a, b| {
            b.count
                .cmp(&a.count)
                .then_with(|| a.describe().cmp(&b.describe()))
        });
        self
    }
}

/// The handshakes with the same negotiated parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NegotiatedHandshakes {
    /// The number of handshakes.
    pub count: u64,
    /// The version of TLS.
    pub version: String,
    /// The cipher suite.
    pub suite: String,
    /// The key-exchange group; `None`: a resumed session took its keys from the ticket alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The signature algorithm of the server's CertificateVerify (RFC 8446 §4.4.3). `None` in resumed sessions, which
    /// involve no certificate; the same applies to the next three fields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
    /// The type of the server certificate's key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// The number of certificates that the server sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain: Option<u32>,
    /// The total size of these certificates (DER), in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chain_bytes: Option<u64>,
    /// Whether the sessions were resumed from tickets.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub resumed: bool,
    /// Whether the handshakes included a HelloRetryRequest (RFC 8446 §4.1.4).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retried: bool,
    /// Whether the server accepted early data (0-RTT).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub early_data: bool,
    /// The HTTP version that the server chose by ALPN, where it had a choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen: Option<String>,
}

/// Formats a TLS version for reports: `TLSv1_3` becomes `TLS 1.3`.
pub fn format_version(recorded: &str) -> String {
    recorded.replace("TLSv", "TLS ").replace('_', ".")
}

impl NegotiatedHandshakes {
    fn has_same_parameters(&self, other: &NegotiatedHandshakes) -> bool {
        let same = |h: &NegotiatedHandshakes| NegotiatedHandshakes {
            count: 0,
            ..h.clone()
        };
        same(self) == same(other)
    }

    /// Describes the negotiated parameters.
    pub fn describe(&self) -> String {
        let version = format_version(&self.version);
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
        let life = self.describe_resumption();
        parts.push(&life);
        parts.join(", ")
    }

    /// Describes whether the handshakes were full or resumed, and with which certificates or early data.
    pub fn describe_resumption(&self) -> String {
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
    /// Why a certificate was accepted although it is not an ordinary one (X.509 version 3, signed by a trusted CA, and
    /// issued for one of its subject alternative names). The text completes a sentence that begins with "the server's
    /// certificate".
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum CertificateAcceptance by sentence {
        /// The certificate is itself in the CA file.
        InCaFile "is in the CA file itself: that it has not expired was checked, its name and CA flag were not",
        /// The certificate has a pinned fingerprint.
        Pinned "has a pinned fingerprint: that it has not expired was checked, its name and issuer were not",
        /// The certificate was not checked.
        Unchecked "was not checked",
        /// The certificate is of version 1, and signed by a certificate of the CA file.
        #[serde(rename = "version_1")]
        Version1 "is of X.509 version 1, which most clients refuse; a certificate of the CA file signed it",
        /// The certificate has no subject alternative name, and its common name is the server's.
        CommonName "has no subject alternative name, so its common name was used as its name; most clients refuse that",
    }
}
