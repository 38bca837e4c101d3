//! A server's certificate, which can be read again while it serves: when its files change, within
//! a second, and when it is asked to.
//!
//! Connections that are open keep what they were opened with. Files that can't be used change
//! nothing.

use std::path::Path;
use std::sync::Arc;

use plimsoll_engine::tls::files::Named;
use plimsoll_engine::tls::rotation::Rotating;
use rustls::crypto::CryptoProvider;
use rustls::server::ResolvesServerCert;

use super::ServeError;

/// A server's certificate and key.
#[derive(Clone, Debug)]
pub struct Renewal(Arc<Rotating>);

impl Renewal {
    pub(crate) fn read(
        cert: &Path,
        key: &Path,
        provider: Arc<CryptoProvider>,
    ) -> Result<Renewal, ServeError> {
        let cert = Named("server certificate", cert);
        let shown = Rotating::read(cert, Named("server key", key), provider)?;
        Ok(Renewal(Arc::new(shown)))
    }

    pub(crate) fn resolver(&self) -> Arc<dyn ResolvesServerCert> {
        Arc::clone(&self.0) as _
    }

    /// Shows what the files hold now to clients that connect from here on.
    ///
    /// # Errors
    /// When they can't be used; what was shown before stays.
    pub fn renew(&self) -> Result<(), ServeError> {
        Ok(self.0.renew()?)
    }

    /// How often the files were read again.
    pub fn renewed(&self) -> u64 {
        self.0.renewed()
    }

    /// The last second, since 1970, in which the chain is valid.
    pub fn ends(&self) -> Option<u64> {
        self.0.ends()
    }
}
