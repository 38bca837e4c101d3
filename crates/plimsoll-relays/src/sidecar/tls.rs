//! TLS 1.3 and 1.2 from certificate files, which are read again when they change.
//!
//! An unusable change (a half-written file, a key of another certificate) leaves the old certificates in use and is
//! retried. Open connections keep the certificates with which they began. The expiry of the sidecar's own certificate
//! is logged once.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use plimsoll_engine::tls::certificate_expiry;
use plimsoll_engine::tls::files::{self, FileError, NamedFile};
use plimsoll_engine::tls::trust::{
    CertificateObservations, ClientVerifier, ServerVerifier, TrustAnchors,
};
use plimsoll_engine::tls::{self, TlsSetupError};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::ServerName;
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};

use super::SidecarError;
use super::config::{TlsFiles, UpstreamTls, versions};

/// Modification time and size of each file; a difference in either counts as a change.
type FileStamps = [Option<(SystemTime, u64)>; 3];

/// The TLS settings of one side of a route.
#[derive(Clone)]
pub(super) enum TlsSide {
    /// Towards clients, which must present a certificate of the CA.
    Listen(TlsFiles),
    Upstream(UpstreamTls),
}

impl TlsSide {
    fn read_file_stamps(&self) -> FileStamps {
        let files = match self {
            TlsSide::Listen(tls) => [Some(&tls.ca), Some(&tls.cert), Some(&tls.key)],
            TlsSide::Upstream(tls) => [tls.ca.as_ref(), tls.cert.as_ref(), tls.key.as_ref()],
        };
        files.map(|path| {
            let found = fs::metadata(path?).ok()?;
            Some((found.modified().ok()?, found.len()))
        })
    }

    /// Returns the file of the certificate to present.
    fn certificate_path(&self) -> Option<&Path> {
        match self {
            TlsSide::Listen(tls) => Some(&tls.cert),
            TlsSide::Upstream(tls) => tls.cert.as_deref(),
        }
    }

    fn load_config(&self, alpn: Alpn) -> Result<LoadedConfig, TlsSetupError> {
        match self {
            TlsSide::Listen(tls) => server_config(tls, alpn),
            TlsSide::Upstream(tls) => client_config(tls, alpn),
        }
    }
}

struct LoadedConfig {
    config: RustlsConfig,
    /// The last second in which all certificates of the presented chain are valid, as Unix time.
    not_after: Option<u64>,
    /// Details of the peers' certificates, for error messages.
    observations: Arc<CertificateObservations>,
}

enum RustlsConfig {
    Server(Arc<ServerConfig>),
    Client(Arc<ClientConfig>),
}

/// The certificates in use on one side.
pub(super) struct TlsIdentity {
    route: String,
    alpn: Alpn,
    settings: TlsSide,
    stamp: FileStamps,
    loaded: LoadedConfig,
    expiry_reported: bool,
}

impl TlsIdentity {
    /// Loads the certificates of `settings`.
    ///
    /// # Errors
    /// When a file is unusable.
    pub(super) fn new(
        route: &str,
        settings: TlsSide,
        alpn: Alpn,
    ) -> Result<TlsIdentity, SidecarError> {
        // The stamp is taken before the files are read, so that a change in between is noticed at the next check.
        let stamp = settings.read_file_stamps();
        Ok(TlsIdentity {
            route: route.to_owned(),
            loaded: (settings.load_config(alpn))
                .map_err(|e| SidecarError::new(format!("route {route}"), e))?,
            settings,
            alpn,
            stamp,
            expiry_reported: false,
        })
    }

    /// Reads the files again if they have changed. `Some(false)` means that they are unusable.
    pub(super) fn reload(&mut self) -> Option<bool> {
        let seen = self.settings.read_file_stamps();
        if seen == self.stamp {
            return None;
        }
        match self.settings.load_config(self.alpn) {
            Ok(made) => {
                self.loaded = made;
                self.stamp = seen;
                self.expiry_reported = false;
                tracing::info!(route = self.route, "certificates reloaded");
                Some(true)
            }
            Err(bad) => {
                let route = &self.route;
                tracing::warn!("route {route}: {bad}; the previous certificates stay in use");
                Some(false)
            }
        }
    }

    /// Logs once that the certificate in use has expired, because otherwise only peers would
    /// notice.
    pub(super) fn report_expiry(&mut self) {
        if !self.expiry_reported
            && let Some(last) = self.loaded.not_after
            && last < certificate_expiry::unix_now()
            && let Some(cert) = self.settings.certificate_path()
        {
            self.expiry_reported = true;
            tracing::warn!(
                "route {}: the certificate {} expired at {}: new connections will be refused until the file is replaced",
                self.route,
                cert.display(),
                certificate_expiry::format_utc(last)
            );
        }
    }

    /// Describes a TLS error, with further details if they are known.
    pub(super) fn describe_error(&self, error: &rustls::Error) -> String {
        let text = certificate_expiry::describe_tls_error(error);
        match self.loaded.observations.explanation_for(error) {
            Some(why) => format!("{text}: {why}"),
            None => text,
        }
    }

    /// Returns the file of the certificate to present, if there is one.
    pub(super) fn certificate_path(&self) -> Option<&Path> {
        self.settings.certificate_path()
    }

    /// Creates the TLS state of a connection. `name` is the name for which the upstream's certificate must be valid,
    /// unless the config sets another.
    pub(super) fn new_connection(&self, name: &str) -> Result<rustls::Connection, rustls::Error> {
        match &self.loaded.config {
            RustlsConfig::Server(config) => {
                ServerConnection::new(Arc::clone(config)).map(Into::into)
            }
            RustlsConfig::Client(config) => {
                let given = match &self.settings {
                    TlsSide::Listen(_) => None,
                    TlsSide::Upstream(tls) => tls.server_name.as_deref(),
                };
                let name = given.unwrap_or(name);
                let name = ServerName::try_from(name.to_owned()).map_err(|_| {
                    rustls::Error::General(format!(
                        "server name {name:?} is neither a DNS name nor an IP address"
                    ))
                })?;
                ClientConnection::new(Arc::clone(config), name).map(Into::into)
            }
        }
    }
}

/// The protocol offered or required in ALPN (RFC 7301), if any.
pub(super) type Alpn = Option<&'static [u8]>;

/// Returns the certificate chain, its key, and the earliest expiry in the chain.
fn load_certificate_chain(
    cert: &Path,
    key: &Path,
    provider: &CryptoProvider,
) -> Result<(Arc<SingleCertAndKey>, Option<u64>), FileError> {
    let cert = NamedFile("certificate", cert);
    let identity = files::read_identity(cert, NamedFile("key", key), provider)?;
    let chain = identity.cert.iter();
    let not_after = chain.filter_map(|c| certificate_expiry::not_after(c)).min();
    Ok((Arc::new(SingleCertAndKey::from(identity)), not_after))
}

fn server_config(files: &TlsFiles, alpn: Alpn) -> Result<LoadedConfig, TlsSetupError> {
    let provider = Arc::new(plimsoll_engine::tls::crypto_provider(&[], &[]));
    let learned = Arc::<CertificateObservations>::default();
    let ca = NamedFile("CA", &files.ca);
    let check = ClientVerifier::new(TrustAnchors::read(ca)?, &provider, Arc::clone(&learned))
        .map_err(|e| ca.error(e))?;
    let (shown, not_after) = load_certificate_chain(&files.cert, &files.key, &provider)?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&tls::to_rustls_versions(&versions(
            files.versions.as_deref(),
        )))?
        .with_client_cert_verifier(Arc::new(check))
        .with_cert_resolver(shown);
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    // Certificates are sent uncompressed: compression (RFC 8879) pays off on slow links only.
    config.cert_compressors = Vec::new();
    config.cert_decompressors = Vec::new();
    Ok(LoadedConfig {
        config: RustlsConfig::Server(Arc::new(config)),
        not_after,
        observations: learned,
    })
}

fn client_config(tls: &UpstreamTls, alpn: Alpn) -> Result<LoadedConfig, TlsSetupError> {
    let provider = Arc::new(plimsoll_engine::tls::crypto_provider(&[], &[]));
    let shown = match (&tls.cert, &tls.key) {
        (Some(cert), Some(key)) => Some(load_certificate_chain(cert, key, &provider)?),
        _ => None,
    };
    let learned = Arc::<CertificateObservations>::default();
    let upstream = NamedFile("trust in", Path::new("the upstream"));
    let trust = (tls.server_trust()).map_err(|(_, problem)| upstream.error(problem))?;
    let check = ServerVerifier::new(
        tls::read_trust_policy(&trust)?,
        &provider,
        Arc::clone(&learned),
    );
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&tls::to_rustls_versions(&versions(tls.versions.as_deref())))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(check));
    let not_after = shown.as_ref().and_then(|(_, not_after)| *not_after);
    let mut config = match shown {
        Some((shown, _)) => builder.with_client_cert_resolver(shown),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    // Certificates are sent uncompressed: compression (RFC 8879) pays off on slow links only.
    config.cert_compressors = Vec::new();
    config.cert_decompressors = Vec::new();
    Ok(LoadedConfig {
        config: RustlsConfig::Client(Arc::new(config)),
        not_after,
        observations: learned,
    })
}
