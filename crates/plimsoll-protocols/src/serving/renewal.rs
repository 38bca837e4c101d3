//! A server's certificate, and the CA of its clients', which can be read again while it serves: when
//! their files change, within a second, and when it is asked to.
//!
//! Connections that are open keep what they were opened with. Files that can't be used change
//! nothing.

use std::path::Path;
use std::sync::Arc;

use plimsoll_engine::tls::files::Named;
use plimsoll_engine::tls::rotation::{Rotating, RotatingCheck};
use rustls::crypto::CryptoProvider;
use rustls::server::ResolvesServerCert;

use super::ServeError;

/// A server's certificate and key, and what its clients' are held to.
#[derive(Clone, Debug)]
pub struct Renewal {
    shown: Arc<Rotating>,
    clients: Option<Arc<RotatingCheck>>,
}

impl Renewal {
    pub(crate) fn read(
        cert: &Path,
        key: &Path,
        provider: Arc<CryptoProvider>,
        clients: Option<Arc<RotatingCheck>>,
    ) -> Result<Renewal, ServeError> {
        let cert = Named("server certificate", cert);
        let shown = Rotating::read(cert, Named("server key", key), provider)?;
        Ok(Renewal {
            shown: Arc::new(shown),
            clients,
        })
    }

    pub(crate) fn resolver(&self) -> Arc<dyn ResolvesServerCert> {
        Arc::clone(&self.shown) as _
    }

    /// Shows what the files hold now to clients that connect from here on, and holds those to it.
    ///
    /// # Errors
    /// When one of them can't be used: it stays as it was.
    pub fn renew(&self) -> Result<(), ServeError> {
        let clients = self
            .clients
            .as_ref()
            .map_or(Ok(()), |clients| clients.renew());
        self.shown.renew()?;
        Ok(clients?)
    }

    /// How often the files were read again.
    pub fn renewed(&self) -> u64 {
        self.shown.renewed()
    }

    /// The last second, since 1970, in which the chain is valid.
    pub fn ends(&self) -> Option<u64> {
        self.shown.ends()
    }
}
