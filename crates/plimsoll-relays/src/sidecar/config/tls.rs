//! TLS on either side of a route: `listen_tls` and `upstream_tls`.

use std::path::PathBuf;

use plimsoll_model::plan::{TlsVersion, Trust};
use plimsoll_model::spec::{self, TlsSpec};
use serde::Deserialize;
use serde::de::{self, Deserializer};

/// What those who connect are shown, and held to: files that are looked at again every two
/// seconds.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsFiles {
    /// What the clients' certificates must be signed by.
    pub ca: PathBuf,
    /// What they are shown: the certificate, and those between it and the CA.
    pub cert: PathBuf,
    /// Of `cert`.
    pub key: PathBuf,
    /// Versions of TLS that are taken. Default 1.3 and 1.2.
    pub versions: Option<Vec<Version>>,
    /// Known to be refused with a reason: clients' names are not checked.
    pub(super) server_name: Option<String>,
}

/// A version of TLS, by its name in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version(pub TlsVersion);

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Version, D::Error> {
        let text = String::deserialize(deserializer)?;
        let known = TlsVersion::ALL.into_iter().find(|v| v.name() == text);
        known.map(Version).ok_or_else(|| {
            de::Error::custom(format!(
                "`{text}` is no version of TLS that is known: use \"1.3\" or \"1.2\""
            ))
        })
    }
}

/// Both where none is named.
pub(in super::super) fn versions(given: Option<&[Version]>) -> Vec<TlsVersion> {
    match given {
        Some(given) => given.iter().map(|version| version.0).collect(),
        None => TlsVersion::ALL.to_vec(),
    }
}

/// What the upstream is held to, and shown: the choices of a load's `[tls]`. Files are looked
/// at again every two seconds.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpstreamTls {
    /// Certificates that one must sign the upstream's, or be it. Default: the system's.
    pub ca: Option<PathBuf>,
    /// In place of `ca`: fingerprints of certificates, `sha256:…`.
    pub pin: Option<Vec<String>>,
    /// In place of both: any certificate will do.
    pub insecure: Option<bool>,
    /// What is shown to an upstream that asks. Default: nothing.
    pub cert: Option<PathBuf>,
    /// Of `cert`.
    pub key: Option<PathBuf>,
    /// Versions of TLS that are offered. Default 1.3 and 1.2.
    pub versions: Option<Vec<Version>>,
    /// The name its certificate must be for. Default: the upstream's name, or IP address.
    pub server_name: Option<String>,
}

impl UpstreamTls {
    /// # Errors
    /// The key at fault, and the reason.
    pub(in super::super) fn trust(&self) -> Result<Trust, (String, String)> {
        let spec = TlsSpec {
            ca: self.ca.clone(),
            pin: self.pin.clone(),
            insecure: self.insecure,
            ..TlsSpec::default()
        };
        spec::trust(&spec).map_err(|problems| {
            let first = problems.into_iter().next();
            let (key, message) = first.map_or_else(Default::default, |p| (p.key, p.message));
            (key.replace("tls.", "upstream_tls."), message)
        })
    }
}
