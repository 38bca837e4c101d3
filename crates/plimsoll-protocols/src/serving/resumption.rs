//! What the clients of a server may do with TLS sessions that they had (RFC 8446 §2.2, §2.3).

use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::server::{NoServerSessionStorage, ServerSessionMemoryCache};

use super::listener::Bound;
use super::names::ByName;
use super::{ServeError, outliving};

/// Sessions that are kept for clients that may send early data; beyond that the oldest are
/// forgotten. A session is some hundred bytes, a kilobyte with a client's certificate.
const SESSIONS: usize = 1 << 16;

/// What clients may do with sessions that they had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resumption {
    /// Nothing: no tickets are sent.
    Off,
    On,
    /// Resume, and send so many bytes before the handshake is over.
    Early(u32),
}

impl Resumption {
    /// With `self`, so many bytes of early data; 0: none.
    ///
    /// # Errors
    /// When they are to be sent without tickets.
    pub(crate) fn with_early_data(self, bytes: u32) -> Result<Resumption, ServeError> {
        match (self, bytes) {
            (resumption, 0) => Ok(resumption),
            (Resumption::Off, _) => Err(early_data_needs("tickets, and they are switched off")),
            _ => Ok(Resumption::Early(bytes)),
        }
    }
}

fn early_data_needs(what: &str) -> ServeError {
    ServeError::option("early data", format!("needs {what}"))
}

impl Bound {
    /// The same port with the TLS side of a server whose clients may resume sessions, and may ask for one of
    /// several names. `alpn`: what it speaks, where that has a name.
    /// `certificates`: a folder of NAME.crt and NAME.key. Tickets hold the session
    /// themselves, so the server keeps nothing for them; but with early data it does, so that
    /// each is taken once (RFC 8446 §8.1).
    ///
    /// # Errors
    /// When the folder can't be used: the file is named. When early data is asked for without
    /// TLS, or in one of several processes.
    pub(crate) fn presenting(
        mut self,
        alpn: &[u8],
        certificates: Option<&Path>,
        resumption: Resumption,
    ) -> Result<Bound, ServeError> {
        let Some(config) = &self.tls else {
            if let Resumption::Early(_) = resumption {
                return Err(early_data_needs("TLS: give a certificate and its key"));
            }
            return match certificates {
                None => Ok(self),
                Some(_) => Err(ServeError::option(
                    "certificates",
                    "needs TLS: give a certificate and key for all other names",
                )),
            };
        };
        let mut config = ServerConfig::clone(config);
        config.alpn_protocols = Some(alpn.to_vec())
            .filter(|name| !name.is_empty())
            .into_iter()
            .collect();
        let shared = config.ticketer.enabled();
        config.session_storage = Arc::new(NoServerSessionStorage {});
        match resumption {
            Resumption::Off => config.send_tls13_tickets = 0,
            Resumption::On if shared => {}
            Resumption::On => {
                let made = Ticketer::new().map_err(|e| ServeError::Tls(e.to_string()))?;
                config.ticketer = outliving::tickets(made, self.clients.as_ref());
            }
            Resumption::Early(_) if shared => {
                return Err(early_data_needs(
                    "one process: another would not know which tickets were taken",
                ));
            }
            Resumption::Early(bytes) => {
                let kept = ServerSessionMemoryCache::new(SESSIONS);
                config.session_storage = outliving::sessions(kept, self.clients.as_ref());
                config.max_early_data_size = bytes;
                // Otherwise the answer would wait for the handshake, and nothing be won.
                config.send_half_rtt_data = true;
            }
        }
        if let Some(folder) = certificates {
            let others = Arc::clone(&config.cert_resolver);
            let by_name = ByName::read(folder, others, config.crypto_provider())?;
            config.cert_resolver = Arc::new(by_name);
        }
        self.tls = Some(Arc::new(config));
        Ok(self)
    }
}
