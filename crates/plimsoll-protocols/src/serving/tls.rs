//! The server's side of TLS: certificates and keys from files.
//!
//! Everything is read and checked once, when the server is bound; connections share the
//! parsed result.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_engine::tls::files::{FileError, Named};
use plimsoll_engine::tls::rotation::RotatingCheck;
use plimsoll_model::plan::{Group, Suite, TlsVersion};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::server::{NoServerSessionStorage, ServerSessionMemoryCache};

use super::names::ByName;
use super::outliving;
use super::renewal::Renewal;
use super::tickets::SharedTickets;
use super::{Bound, ServeError, TicketSeed};

/// A server's side of TLS, made of its files.
pub(crate) struct Made {
    pub(crate) config: Arc<ServerConfig>,
    /// What judges the clients' certificates; `None`: they show none.
    pub(crate) clients: Option<Arc<RotatingCheck>>,
    pub(crate) renewal: Renewal,
}

/// How a server secures its links. Paths, not contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tls {
    /// The server's certificate chain (PEM or DER), leaf first.
    pub cert: PathBuf,
    /// Its private key (PEM or DER).
    pub key: PathBuf,
    /// Ask every client for a certificate of this CA (PEM), and refuse those without:
    /// mutual TLS.
    pub client_ca: Option<PathBuf>,
    /// Lists of revoked certificates (CRL): one of every issuer in the clients' chains.
    pub client_crl: Option<PathBuf>,
    /// At least one.
    pub versions: Vec<TlsVersion>,
    /// Send certificates compressed to clients that take them so, and take theirs (RFC 8879).
    pub compressed: bool,
    /// Suites to offer; empty: the library's.
    pub suites: Vec<Suite>,
    /// Key-exchange groups to offer; empty: the library's.
    pub groups: Vec<Group>,
}

impl Tls {
    /// ALPN `h2` only (RFC 9113 §3.2).
    pub(crate) fn server_config(&self, tickets: Option<&TicketSeed>) -> Result<Made, ServeError> {
        let provider = Arc::new(plimsoll_engine::tls::provider(&self.suites, &self.groups));
        // The library's first random bytes take tens of milliseconds, which the first
        // client would otherwise see.
        let _ = provider.secure_random.fill(&mut [0u8; 32]);

        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&plimsoll_engine::tls::versions(&self.versions))
            .map_err(|e| ServeError::Tls(e.to_string()))?;
        let clients = match &self.client_ca {
            None => None,
            Some(path) => {
                let file = Named("client CA", path);
                let lists = self.client_crl.as_deref();
                let lists = lists.map(|path| Named("list of revoked certificates", path));
                let check =
                    RotatingCheck::read(file, lists, Arc::clone(&provider), Arc::default())?;
                Some(Arc::new(check))
            }
        };
        let builder = match &clients {
            None => builder.with_no_client_auth(),
            Some(check) => builder.with_client_cert_verifier(Arc::clone(check) as _),
        };
        let renewal = Renewal::read(&self.cert, &self.key, provider, clients.clone())?;
        let mut config = builder.with_cert_resolver(renewal.resolver());
        config.alpn_protocols = vec![b"h2".to_vec()];
        if !self.compressed {
            config.cert_compressors = Vec::new();
            config.cert_decompressors = Vec::new();
        }
        if let Some(seed) = tickets {
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.ticketer = Arc::new(SharedTickets::new(seed));
        }
        config.ticketer = outliving::tickets(config.ticketer, clients.as_ref());
        config.session_storage = outliving::sessions(config.session_storage, clients.as_ref());
        Ok(Made {
            config: Arc::new(config),
            clients,
            renewal,
        })
    }
}

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
    /// # Errors
    /// When early data is to be sent without tickets.
    pub(crate) fn of(no_tickets: bool, early_data: u32) -> Result<Resumption, ServeError> {
        match (no_tickets, early_data) {
            (true, 0) => Ok(Resumption::Off),
            (false, 0) => Ok(Resumption::On),
            (false, bytes) => Ok(Resumption::Early(bytes)),
            (true, _) => Err(early_data_needs("tickets, and they are switched off")),
        }
    }
}

fn early_data_needs(what: &str) -> ServeError {
    ServeError::Option {
        option: "early data",
        problem: format!("needs {what}"),
    }
}

impl Bound {
    /// The TLS side of a server whose clients may resume sessions, and may ask for one of
    /// several names; `None`: plaintext. `alpn`: what it speaks, where that has a name.
    /// `certificates`: a folder of NAME.crt and NAME.key. Tickets hold the session
    /// themselves, so the server keeps nothing for them; but with early data it does, so that
    /// each is taken once (RFC 8446 §8.1).
    ///
    /// # Errors
    /// When the folder can't be used: the file is named. When early data is asked for without
    /// TLS, or in one of several processes.
    pub(crate) fn presenting(
        &self,
        alpn: &[u8],
        certificates: Option<&Path>,
        resumption: Resumption,
    ) -> Result<Option<ServerConfig>, ServeError> {
        let Some(config) = &self.tls else {
            if let Resumption::Early(_) = resumption {
                return Err(early_data_needs("TLS: give a certificate and its key"));
            }
            return match certificates {
                None => Ok(None),
                Some(_) => Err(ServeError::Option {
                    option: "certificates",
                    problem: "needs TLS: give a certificate and key for all other names".to_owned(),
                }),
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
        Ok(Some(config))
    }
}

impl From<FileError> for ServeError {
    fn from(error: FileError) -> ServeError {
        match error {
            FileError::Read { what, path, source } => ServeError::File {
                what,
                path,
                problem: match source.kind() {
                    io::ErrorKind::NotFound => "no such file".to_owned(),
                    io::ErrorKind::PermissionDenied => "not readable by this user".to_owned(),
                    _ => source.to_string(),
                },
            },
            FileError::Content {
                what,
                path,
                problem,
            } => ServeError::File {
                what,
                path,
                problem,
            },
            FileError::Identity {
                what,
                cert,
                key,
                problem,
            } => ServeError::Identity {
                what,
                cert,
                key,
                problem,
            },
        }
    }
}
