//! Handshakes of every shape: two ends talk over a [`path`] that cuts what they send into
//! records and reads of any size. TLS lets a peer cut its messages so (RFC 8446 §5.1), and
//! none of ours does.
//!
//! One end is ours and one the library's; what ours makes of a shape is held to what the
//! library's own connection makes of the same. The property test of
//! [`super::handshake`] and the fuzz target call this.

use std::sync::Arc;

use rustls::client::Resumption;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{self, cipher_suite, kx_group};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{
    ClientConfig, ClientConnection, DistinguishedName, RootCertStore, ServerConfig,
    ServerConnection,
};

use super::TlsClient;
use super::failures::Shown;
use super::handshake::End;
use super::record::Cipher;
use super::session::{Layer, ServerSessions, Session};
use super::whole::{SessionError, WholeSession};

mod path;

use path::{Path, Tap};

pub use path::Choices;

/// What both ends are set to.
#[derive(Clone)]
pub struct Setup {
    /// The settings of either form of the client.
    pub client: ClientConfig,
    /// The settings of either form of the server.
    pub server: ServerConfig,
    cipher: Cipher,
    name: ServerName<'static>,
}

/// Whose code the end under test is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The TLS library's.
    Library,
    /// Ours, with the library behind it.
    Own,
    /// The form that rests (of servers there is no other).
    Lean,
}

/// The shapes of what the client says and of what the server says.
pub type Shape<'a> = [Choices<'a>; 2];

/// What one end of a conversation came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Came {
    /// The client's outcome, or the error of the server's library.
    pub error: Option<String>,
    /// The plaintext that it received.
    pub heard: Vec<u8>,
    /// The peer has closed its side.
    pub closed: bool,
    /// It says that the session was resumed.
    pub resumed: bool,
    /// It says that there was a HelloRetryRequest.
    pub retried: bool,
}

/// A conversation of two ends.
#[derive(Debug, PartialEq, Eq)]
pub struct Conversation {
    /// What the client came to.
    pub client: Came,
    /// What the server came to.
    pub server: Came,
    /// The path left everything as it was, but for where it was cut.
    pub legal: bool,
}

/// Returns what the client sends once its handshake is over.
pub fn client_text() -> Vec<u8> {
    b"GET / HTTP/1.1\r\n\r\n".repeat(20)
}

/// Returns what the server sends once its handshake is over: more than one record.
pub fn server_text() -> Vec<u8> {
    (0..17_000u32).map(|n| (n % 251) as u8).collect()
}

/// Where a client's conversations begin: with what earlier ones left behind.
pub struct Client(TlsClient);

impl Client {
    /// What a session that failed is counted as.
    pub(super) fn outcome(&self, fault: &SessionError) -> &'static str {
        self.0.explained(fault).0.code()
    }
}

#[cfg(test)]
impl Client {
    /// The next connection's, with its `ClientHello` to be written.
    pub(super) fn session(&self) -> super::TlsSession {
        self.0.session().expect("the settings make sense")
    }
}

/// What a handshake is made longer with.
#[derive(Clone, Copy, Default)]
pub struct Long {
    /// Certificates behind the server's own.
    pub chain: usize,
    /// Names of authorities in the request for the client's, of a hundred bytes each.
    pub authorities: usize,
}

/// What the server asks for.
#[derive(Clone, Copy)]
pub struct Asks {
    /// The client's certificate.
    pub mutual: bool,
    /// A group that the client does not guess.
    pub retried: bool,
}

impl Setup {
    /// Both ends show `certificate`, for localhost and of a kind whose signatures are always as
    /// long: the same choices then are the same shape.
    ///
    /// # Errors
    /// When the settings make no sense.
    pub fn new(
        certificate: &CertificateDer<'static>,
        key: &PrivateKeyDer<'static>,
        cipher: Cipher,
        Asks { mutual, retried }: Asks,
        long: Long,
    ) -> Result<Setup, rustls::Error> {
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone())?;
        let roots = Arc::new(roots);
        let suite = match cipher {
            Cipher::Aes128Gcm => cipher_suite::TLS13_AES_128_GCM_SHA256,
            Cipher::Aes256Gcm => cipher_suite::TLS13_AES_256_GCM_SHA384,
            Cipher::Chacha20Poly1305 => cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        };
        let provider = |kx_groups| {
            Arc::new(CryptoProvider {
                cipher_suites: vec![suite],
                kx_groups,
                ..aws_lc_rs::default_provider()
            })
        };
        let versions = [&rustls::version::TLS13];
        let groups = vec![kx_group::X25519, kx_group::SECP384R1];
        let client = ClientConfig::builder_with_provider(provider(groups))
            .with_protocol_versions(&versions)?
            .with_root_certificates(Arc::clone(&roots));
        let client = if mutual {
            client.with_client_auth_cert(vec![certificate.clone()], key.clone_key())?
        } else {
            client.with_no_client_auth()
        };
        let groups = if retried {
            vec![kx_group::SECP384R1]
        } else {
            vec![kx_group::X25519]
        };
        let server = ServerConfig::builder_with_provider(provider(groups.clone()))
            .with_protocol_versions(&versions)?;
        let server = if mutual {
            let names = (0..long.authorities).map(|n| {
                // A sequence of that many bytes, as far as anybody looks.
                let mut name = vec![0x30, 98];
                name.resize(100, (n % 251) as u8);
                DistinguishedName::from(name)
            });
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider(groups))
                .add_root_hint_subjects(names)
                .build()
                .map_err(|e| rustls::Error::General(e.to_string()))?;
            server.with_client_cert_verifier(verifier)
        } else {
            server.with_no_client_auth()
        };
        let chain = vec![certificate.clone(); 1 + long.chain];
        let mut server = server.with_single_cert(chain, key.clone_key())?;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.ticketer = aws_lc_rs::Ticketer::new()?;
        Ok(Setup {
            client,
            server,
            cipher,
            name: ServerName::try_from("localhost")
                .map_err(|e| rustls::Error::General(e.to_string()))?,
        })
    }

    /// A client that no conversation has taught anything.
    pub fn client(&self, whose: Whose) -> Client {
        self.client_with(whose, false)
    }

    /// One that keeps tickets.
    pub fn resuming_client(&self, whose: Whose) -> Client {
        self.client_with(whose, true)
    }

    fn client_with(&self, whose: Whose, resume: bool) -> Client {
        let mut config = self.client.clone();
        config.resumption = Resumption::disabled();
        config.enable_secret_extraction = whose != Whose::Library;
        let client = TlsClient {
            config: Arc::new(config),
            server_name: self.name.clone(),
            shown: Shown::of(self.client.client_auth_cert_resolver.has_certs()),
            resume,
            full: None,
            identity: None,
            logs_keys: false,
            tickets: None,
            own_records: whose != Whose::Library,
            heard: (whose == Whose::Lean).then(Arc::default),
            learned: Arc::default(),
        };
        Client(client.for_worker())
    }

    /// A client of `client`'s kind talks to the library's server.
    ///
    /// # Errors
    /// When the settings make no sense.
    pub fn converse(
        &self,
        client: &Client,
        shape: Shape<'_>,
    ) -> Result<Conversation, rustls::Error> {
        let tap = Arc::new(Tap::default());
        let mut config = self.server.clone();
        config.key_log = Arc::clone(&tap) as _;
        let server = Speaker::of_library(ServerConnection::new(Arc::new(config))?);
        let ours = Speaker::new(client.0.session()?, Some(client));
        Ok(Path::new(self.cipher, &tap, shape).carry(ours, server))
    }

    /// The library's client talks to a server that is ours or the library's. `config` is that of
    /// the client, with what it remembers.
    ///
    /// # Errors
    /// When the settings make no sense.
    pub fn serve(
        &self,
        whose: Whose,
        config: &ClientConfig,
        shape: Shape<'_>,
    ) -> Result<Conversation, rustls::Error> {
        let tap = Arc::new(Tap::default());
        let mut config = config.clone();
        config.key_log = Arc::clone(&tap) as _;
        let client = ClientConnection::new(Arc::new(config), self.name.clone())?;
        let server = match whose {
            Whose::Library => {
                Speaker::of_library(ServerConnection::new(Arc::new(self.server.clone()))?)
            }
            Whose::Own | Whose::Lean => {
                let session = ServerSessions::new(&self.server).session();
                let session = session.map_err(|e| rustls::Error::General(e.to_string()))?;
                Speaker::new(session, None)
            }
        };
        let path = Path::new(self.cipher, &tap, shape);
        Ok(path.carry(Speaker::of_library(client), server))
    }
}

/// One end of a conversation, served as a worker or a server serves it.
struct Speaker<'a, E: End> {
    session: Session<E>,
    /// It reports by outcomes.
    client: Option<&'a Client>,
    came: Came,
}

impl<'a, E: End> Speaker<'a, E> {
    fn new(session: Session<E>, client: Option<&'a Client>) -> Speaker<'a, E> {
        Speaker {
            session,
            client,
            came: Came::default(),
        }
    }

    fn of_library(connection: E::Whole) -> Speaker<'a, E> {
        let whole = WholeSession::new(connection);
        Speaker::new(Session(Layer::Library(Box::new(whole))), None)
    }

    fn listens(&self) -> bool {
        self.came.error.is_none() && !self.came.closed
    }

    fn take(&mut self, bytes: &mut [u8]) {
        let heard = &mut self.came.heard;
        match (self.session).receive(bytes, &mut |plain| heard.extend_from_slice(plain)) {
            Ok(closed) => self.came.closed = closed,
            Err(fault) => {
                let known = self.client.map(|client| client.outcome(&fault).to_owned());
                self.came.error = Some(known.unwrap_or_else(|| match fault {
                    SessionError::Handshake(e) | SessionError::Library(e) => e.to_string(),
                    SessionError::Record(e) => e.to_string(),
                    full @ SessionError::TooLong => full.to_string(),
                }));
            }
        }
    }

    fn give(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // A vector takes everything.
        let _ = self.session.flush(&mut bytes);
        bytes
    }

    /// The handshake is over: says `text`.
    fn speak(&mut self, text: &[u8]) {
        let agreed = self.session.agreement().unwrap_or_default();
        (self.came.resumed, self.came.retried) = (agreed.resumed, agreed.retried);
        self.session.seal(text);
    }
}
