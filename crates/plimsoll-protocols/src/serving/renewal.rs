//! A server's certificate, which can be read again while it serves.
//!
//! Connections that are open keep what they were opened with. Files that can't be used change
//! nothing.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use plimsoll_engine::tls::files::{self, Named};
use rustls::crypto::CryptoProvider;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::ServeError;

/// Reads a server's certificate and key, and reads them again.
#[derive(Clone, Debug)]
pub struct Renewal {
    cert: PathBuf,
    key: PathBuf,
    provider: Arc<CryptoProvider>,
    shown: Arc<Shown>,
}

/// What is shown to clients that connect now.
#[derive(Debug)]
struct Shown(RwLock<Arc<CertifiedKey>>);

impl Renewal {
    pub(crate) fn read(
        cert: &Path,
        key: &Path,
        provider: Arc<CryptoProvider>,
    ) -> Result<Renewal, ServeError> {
        let shown = identity(cert, key, &provider)?;
        Ok(Renewal {
            cert: cert.to_owned(),
            key: key.to_owned(),
            provider,
            shown: Arc::new(Shown(RwLock::new(shown))),
        })
    }

    pub(crate) fn resolver(&self) -> Arc<dyn ResolvesServerCert> {
        Arc::clone(&self.shown) as _
    }

    /// Shows what the files hold now to clients that connect from here on.
    ///
    /// # Errors
    /// When they can't be used; what was shown before stays.
    pub fn renew(&self) -> Result<(), ServeError> {
        let renewed = identity(&self.cert, &self.key, &self.provider)?;
        *self.shown.0.write().unwrap_or_else(PoisonError::into_inner) = renewed;
        Ok(())
    }
}

fn identity(
    cert: &Path,
    key: &Path,
    provider: &CryptoProvider,
) -> Result<Arc<CertifiedKey>, ServeError> {
    let cert = Named("server certificate", cert);
    Ok(files::identity(cert, Named("server key", key), provider)?)
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let shown = self.0.read().unwrap_or_else(PoisonError::into_inner);
        Some(Arc::clone(&shown))
    }
}
