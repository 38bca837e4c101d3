//! The server side of TLS: certificates and keys from files.
//!
//! All files are read and checked once, when the server is bound; connections share the parsed result.

use std::path::PathBuf;
use std::sync::Arc;

use plimsoll_engine::tls::file_rotation::RotatingVerifier;
use plimsoll_engine::tls::files::NamedFile;
use plimsoll_model::plan::{KeyExchangeGroup, TlsSuite, TlsVersion};
use rustls::ServerConfig;
use rustls::server::NoServerSessionStorage;

use crate::tls_server::renewal::CertificateRenewal;
use crate::tls_server::session_expiry;
use crate::tls_server::tickets::SharedTicketer;
use crate::{ServeError, TicketSeed};

/// The server side of TLS, loaded from its files.
pub struct LoadedTls {
    /// The settings of all connections.
    pub config: Arc<ServerConfig>,
    /// The verifier of client certificates; `None` if none are requested.
    pub clients: Option<Arc<RotatingVerifier>>,
    /// Reloads the certificate while the server runs.
    pub renewal: CertificateRenewal,
}

/// How a server secures its connections: paths of files, and parameters to negotiate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTlsOptions {
    /// The server's certificate chain (PEM or DER), leaf first.
    pub cert: PathBuf,
    /// The private key of the certificate (PEM or DER).
    pub key: PathBuf,
    /// The CA (PEM) of client certificates. If set, clients without a certificate from it are refused: mutual TLS.
    pub client_ca: Option<PathBuf>,
    /// Certificate revocation lists (CRL), one for every issuer in the clients' chains.
    pub client_crl: Option<PathBuf>,
    /// The TLS versions to accept, at least one.
    pub versions: Vec<TlsVersion>,
    /// Whether certificates are compressed for clients that support it, and accepted in compressed form (RFC 8879).
    pub compressed: bool,
    /// Cipher suites to offer; if empty, rustls's defaults.
    pub suites: Vec<TlsSuite>,
    /// Key-exchange groups to offer; if empty, rustls's defaults.
    pub groups: Vec<KeyExchangeGroup>,
}

impl ServerTlsOptions {
    /// Loads the files into a configuration that offers only `h2` by ALPN (RFC 9113 §3.2).
    pub fn load(&self, tickets: Option<&TicketSeed>) -> Result<LoadedTls, ServeError> {
        let provider = Arc::new(plimsoll_engine::tls::crypto_provider(
            &self.suites,
            &self.groups,
        ));
        // Initialises the TLS library's random generator, which takes tens of milliseconds, before the first client has
        // to wait for it.
        let _ = provider.secure_random.fill(&mut [0u8; 32]);

        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&plimsoll_engine::tls::to_rustls_versions(&self.versions))
            .map_err(|e| ServeError::Tls(e.to_string()))?;
        let clients = match &self.client_ca {
            None => None,
            Some(path) => {
                let file = NamedFile("client CA", path);
                let lists = self.client_crl.as_deref();
                let lists = lists.map(|path| NamedFile("list of revoked certificates", path));
                let check =
                    RotatingVerifier::read(file, lists, Arc::clone(&provider), Arc::default())?;
                Some(Arc::new(check))
            }
        };
        let builder = match &clients {
            None => builder.with_no_client_auth(),
            Some(check) => builder.with_client_cert_verifier(Arc::clone(check) as _),
        };
        let renewal = CertificateRenewal::read(&self.cert, &self.key, provider, clients.clone())?;
        let mut config = builder.with_cert_resolver(renewal.resolver());
        config.alpn_protocols = vec![b"h2".to_vec()];
        if !self.compressed {
            config.cert_compressors = Vec::new();
            config.cert_decompressors = Vec::new();
        }
        if let Some(seed) = tickets {
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.ticketer = Arc::new(SharedTicketer::new(seed));
        }
        config.ticketer = session_expiry::wrap_ticketer(config.ticketer, clients.as_ref());
        config.session_storage =
            session_expiry::wrap_session_store(config.session_storage, clients.as_ref());
        Ok(LoadedTls {
            config: Arc::new(config),
            clients,
            renewal,
        })
    }
}
