//! Configures which TLS sessions a server resumes (RFC 8446 §2.2, §2.3).

use std::sync::Arc;

use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::server::{NoServerSessionStorage, ServerSessionMemoryCache};

use crate::ServeError;
use crate::listener::BoundServer;
use crate::reference::ServerIdentity;
use crate::tls_server::named_certificates::CertificatesByName;
use crate::tls_server::session_expiry;

/// The maximum number of sessions stored for clients that may send early data; beyond it the oldest are dropped. A
/// session takes a few hundred bytes, or a kilobyte with a client certificate.
const MAX_CACHED_SESSIONS: usize = 1 << 16;

impl BoundServer {
    /// Configures TLS with session resumption and with certificates chosen by server name (SNI). `protocols` are
    /// offered by ALPN. Tickets contain the session's state, so the server does not store it. `early_data` limits the
    /// bytes that may arrive before the handshake is complete. If it is set, the server does store sessions, so that
    /// it accepts each only once (RFC 8446 §8.1).
    ///
    /// # Errors
    /// When a certificate in the folder can't be used (the message names the certificate), or when early data is
    /// requested without TLS, without tickets, or in one of several processes.
    pub fn with_resumption(
        mut self,
        protocols: &[&[u8]],
        identity: &ServerIdentity,
        early_data: Option<u32>,
    ) -> Result<BoundServer, ServeError> {
        let early_data = early_data.unwrap_or(0);
        let needs = |what: &str| {
            Err(ServeError::invalid_option(
                "early data",
                format!("needs {what}"),
            ))
        };
        if early_data > 0 && identity.no_tickets {
            return needs("tickets, but they are disabled");
        }
        let Some(config) = self.tls_with_alpn(protocols) else {
            return match &identity.tls_certs {
                _ if early_data > 0 => needs("TLS: give a certificate and its key"),
                None => Ok(self),
                Some(_) => Err(ServeError::invalid_option(
                    "certificates",
                    "needs TLS: give a certificate and key for all other names",
                )),
            };
        };
        let mut config = Arc::unwrap_or_clone(config);
        let shared = config.ticketer.enabled();
        config.session_storage = Arc::new(NoServerSessionStorage {});
        if identity.no_tickets {
            config.send_tls13_tickets = 0;
        } else if early_data > 0 {
            if shared {
                return needs("one process: another would not know which tickets have been used");
            }
            let kept = ServerSessionMemoryCache::new(MAX_CACHED_SESSIONS);
            config.session_storage =
                session_expiry::wrap_session_store(kept, self.clients.as_ref());
            config.max_early_data_size = early_data;
            // Otherwise the response would wait for the handshake, and early data would gain nothing.
            config.send_half_rtt_data = true;
        } else if !shared {
            let made = Ticketer::new().map_err(|e| ServeError::Tls(e.to_string()))?;
            config.ticketer = session_expiry::wrap_ticketer(made, self.clients.as_ref());
        }
        if let Some(folder) = &identity.tls_certs {
            let others = Arc::clone(&config.cert_resolver);
            let by_name = CertificatesByName::read(folder, others, config.crypto_provider())?;
            config.cert_resolver = Arc::new(by_name);
        }
        self.tls = Some(Arc::new(config));
        Ok(self)
    }
}
