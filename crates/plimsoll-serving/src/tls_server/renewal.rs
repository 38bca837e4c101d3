//! Reloads a server's certificate, and the CA of its clients, while it serves: within a second after their files
//! change, and on request.
//!
//! Open connections keep the certificate that they were opened with. If a file can't be used, its old content
//! stays in use.

use std::path::Path;
use std::sync::Arc;

use plimsoll_engine::tls::file_rotation::{RotatingIdentity, RotatingVerifier};
use plimsoll_engine::tls::files::NamedFile;
use rustls::crypto::CryptoProvider;
use rustls::server::ResolvesServerCert;

use crate::ServeError;

/// A server's certificate and key, and the verifier of its clients' certificates.
#[derive(Clone, Debug)]
pub struct CertificateRenewal {
    identity: Arc<RotatingIdentity>,
    clients: Option<Arc<RotatingVerifier>>,
}

impl CertificateRenewal {
    /// Reads a certificate and its key. `clients` verifies client certificates and is reloaded with them.
    ///
    /// # Errors
    /// When a file can't be read, or holds no usable certificate or key.
    pub fn read(
        cert: &Path,
        key: &Path,
        provider: Arc<CryptoProvider>,
        clients: Option<Arc<RotatingVerifier>>,
    ) -> Result<CertificateRenewal, ServeError> {
        let cert = NamedFile("server certificate", cert);
        let shown = RotatingIdentity::read(cert, NamedFile("server key", key), provider)?;
        Ok(CertificateRenewal {
            identity: Arc::new(shown),
            clients,
        })
    }

    /// Returns the resolver that gives each handshake the current certificate.
    pub fn resolver(&self) -> Arc<dyn ResolvesServerCert> {
        Arc::clone(&self.identity) as _
    }

    /// Reloads the files. New connections use the new certificate, and their clients are verified with the new CA.
    ///
    /// # Errors
    /// When one of the files can't be used; its old content stays in use.
    pub fn reload_files(&self) -> Result<(), ServeError> {
        let clients = self
            .clients
            .as_ref()
            .map_or(Ok(()), |clients| clients.reload());
        self.identity.reload()?;
        Ok(clients?)
    }

    /// Returns the number of reloads of the files.
    pub fn reload_count(&self) -> u64 {
        self.identity.reload_count()
    }

    /// Returns the last second in which the certificate chain is valid, counted from 1970.
    pub fn chain_expiry(&self) -> Option<u64> {
        self.identity.chain_expiry()
    }
}
