//! TLS on either side of a route: `listen_tls` and `upstream_tls`.

use std::path::PathBuf;

use plimsoll_model::plan::{ServerTrust, TlsVersion};
use plimsoll_model::spec::{self, TlsSpec};
use serde::Deserialize;
use serde::de::{self, Deserializer};

/// TLS towards clients. The files are checked for changes every two seconds.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsFiles {
    /// The CA that must have signed the clients' certificates.
    pub ca: PathBuf,
    /// The certificate to present, with its intermediate certificates.
    pub cert: PathBuf,
    /// The private key of `cert`.
    pub key: PathBuf,
    /// Accepted versions of TLS. Default 1.3 and 1.2.
    pub versions: Option<Vec<TlsVersionSpec>>,
    /// Only parsed so that it can be rejected with a reason: clients' names are not checked.
    pub(super) server_name: Option<String>,
}

/// A version of TLS, parsed from its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlsVersionSpec(pub TlsVersion);

impl<'de> Deserialize<'de> for TlsVersionSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<TlsVersionSpec, D::Error> {
        let text = String::deserialize(deserializer)?;
        let known = TlsVersion::ALL.into_iter().find(|v| v.name() == text);
        known.map(TlsVersionSpec).ok_or_else(|| {
            de::Error::custom(format!(
                "`{text}` is not a supported TLS version: use \"1.3\" or \"1.2\""
            ))
        })
    }
}

/// Returns the configured versions, or both if none is given.
pub(in super::super) fn versions(given: Option<&[TlsVersionSpec]>) -> Vec<TlsVersion> {
    match given {
        Some(given) => given.iter().map(|version| version.0).collect(),
        None => TlsVersion::ALL.to_vec(),
    }
}

/// TLS towards the upstream, with the options of a load's `[tls]`. The files are checked for
/// changes every two seconds.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpstreamTls {
    /// File of trusted certificates: the upstream's must be one of them, or signed by one. Default: the system's.
    pub ca: Option<PathBuf>,
    /// Fingerprints of accepted certificates, `sha256:…`, instead of `ca`.
    pub pin: Option<Vec<String>>,
    /// Accept any certificate, instead of `ca` and `pin`.
    pub insecure: Option<bool>,
    /// The client certificate for an upstream that asks for one. Default: none.
    pub cert: Option<PathBuf>,
    /// The private key of `cert`.
    pub key: Option<PathBuf>,
    /// Offered versions of TLS. Default 1.3 and 1.2.
    pub versions: Option<Vec<TlsVersionSpec>>,
    /// The name that the upstream's certificate must be for. Default: the upstream's host or IP
    /// address.
    pub server_name: Option<String>,
}

impl UpstreamTls {
    /// Returns which certificates of the upstream are trusted.
    ///
    /// # Errors
    /// Returns the key at fault and the reason.
    pub(in super::super) fn server_trust(&self) -> Result<ServerTrust, (String, String)> {
        let spec = TlsSpec {
            ca: self.ca.clone(),
            pin: self.pin.clone(),
            insecure: self.insecure,
            ..TlsSpec::default()
        };
        spec::resolve_trust(&spec).map_err(|problems| {
            let first = problems.into_iter().next();
            let (key, message) = first.map_or_else(Default::default, |p| (p.key, p.message));
            (key.replace("tls.", "upstream_tls."), message)
        })
    }
}
