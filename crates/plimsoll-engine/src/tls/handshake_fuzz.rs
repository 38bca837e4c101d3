//! Handshake fuzzing: two ends communicate over a [`path`] that splits their bytes into records and reads of any size.
//! TLS allows this (RFC 8446 §5.1), but none of our peers does it.
//!
//! One end is our implementation, and the other is that of the TLS library (rustls). The conversation is repeated with
//! the library at both ends and the same segmentation, and the results are compared. The property test of
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
use super::buffered_session::{BufferedSession, SessionError};
use super::failures::PresentedIdentity;
use super::handshake::TlsEnd;
use super::record::Cipher;
use super::session::{ServerSessionFactory, SessionLayer, TlsConnection};

mod tampering_path;

use tampering_path::{KeyLogTap, TamperingPath};

pub use tampering_path::ChoiceSource;

/// The settings of both ends.
#[derive(Clone)]
pub struct HandshakeSetup {
    /// The client's settings, which are the same for each implementation.
    pub client: ClientConfig,
    /// The server's settings, which are the same for each implementation.
    pub server: ServerConfig,
    cipher: Cipher,
    name: ServerName<'static>,
}

/// The implementation of the end under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Implementation {
    /// The TLS library's own connection.
    Library,
    /// Our record layer, with keys from the library's connection.
    Own,
    /// Our record layer, with keys from logged secrets, so that idle sessions can release their memory. A server of
    /// ours always uses logged secrets, so for servers [`Implementation::Own`] means the same.
    OwnFromSecrets,
}

/// The segmentation of both directions: client to server, and server to client.
pub type PathSegmentation<'a> = [ChoiceSource<'a>; 2];

/// The final state of one end of a conversation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndState {
    /// The client's outcome code, or the error of the library's server.
    pub error: Option<String>,
    /// The plaintext that this end received.
    pub received: Vec<u8>,
    /// Whether the peer has closed its side.
    pub closed: bool,
    /// Whether this end reports a resumed session.
    pub resumed: bool,
    /// Whether this end reports a HelloRetryRequest.
    pub retried: bool,
}

/// The result of a conversation between two ends.
#[derive(Debug, PartialEq, Eq)]
pub struct Conversation {
    /// The client's final state.
    pub client: EndState,
    /// The server's final state.
    pub server: EndState,
    /// Whether the path only changed the segmentation and did not tamper with records.
    pub is_untampered: bool,
}

/// Returns the bytes that the client sends after its handshake.
pub fn client_text() -> Vec<u8> {
    b"GET / HTTP/1.1\r\n\r\n".repeat(20)
}

/// Returns the bytes that the server sends after its handshake, which need more than one record.
pub fn server_text() -> Vec<u8> {
    (0..17_000u32).map(|n| (n % 251) as u8).collect()
}

/// A client with the tickets from its earlier conversations.
pub struct FuzzClient(TlsClient);

impl FuzzClient {
    /// Returns the outcome code of a failed session.
    pub(super) fn outcome(&self, fault: &SessionError) -> &'static str {
        self.0.classify_session_error(fault).0.code()
    }
}

#[cfg(test)]
impl FuzzClient {
    /// Makes a session for the next connection, with its `ClientHello` pending.
    pub(super) fn session(&self) -> super::TlsSession {
        self.0.new_session().expect("the settings make sense")
    }
}

/// Additions that make a handshake longer.
#[derive(Clone, Copy, Default)]
pub struct HandshakeAdditions {
    /// Number of certificates after the server's own.
    pub chain: usize,
    /// Number of CA names, of a hundred bytes each, in the certificate request.
    pub authorities: usize,
}

/// The server's demands on the client.
#[derive(Clone, Copy)]
pub struct ServerDemands {
    /// Whether the server demands a client certificate.
    pub mutual: bool,
    /// Whether the server demands a key exchange group for which the client's first ClientHello has no key share.
    pub retried: bool,
}

impl HandshakeSetup {
    /// Creates settings in which both ends present `certificate`, which is valid for localhost. Signatures have a fixed
    /// length, so that the same choices produce the same segmentation.
    ///
    /// # Errors
    /// Returns an error if the settings are invalid.
    pub fn new(
        certificate: &CertificateDer<'static>,
        key: &PrivateKeyDer<'static>,
        cipher: Cipher,
        ServerDemands { mutual, retried }: ServerDemands,
        long: HandshakeAdditions,
    ) -> Result<HandshakeSetup, rustls::Error> {
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
                // A DER sequence of 100 bytes with arbitrary contents.
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
        Ok(HandshakeSetup {
            client,
            server,
            cipher,
            name: ServerName::try_from("localhost")
                .map_err(|e| rustls::Error::General(e.to_string()))?,
        })
    }

    /// Creates a client that neither has nor stores tickets.
    pub fn client(&self, implementation: Implementation) -> FuzzClient {
        self.create_client(implementation, false)
    }

    /// Creates a client that stores tickets.
    pub fn resuming_client(&self, implementation: Implementation) -> FuzzClient {
        self.create_client(implementation, true)
    }

    fn create_client(&self, implementation: Implementation, resume: bool) -> FuzzClient {
        let mut config = self.client.clone();
        config.resumption = Resumption::disabled();
        config.enable_secret_extraction = implementation != Implementation::Library;
        let client = TlsClient {
            config: Arc::new(config),
            server_name: self.name.clone(),
            presented: PresentedIdentity::new(self.client.client_auth_cert_resolver.has_certs()),
            resumes_sessions: resume,
            full_handshake_share: None,
            identity: None,
            logs_keys: false,
            tickets: None,
            own_records: implementation != Implementation::Library,
            key_log_secrets: (implementation == Implementation::OwnFromSecrets).then(Arc::default),
            observations: Arc::default(),
        };
        FuzzClient(client.for_worker())
    }

    /// Connects `client` to the library's server and returns the result of their conversation.
    ///
    /// # Errors
    /// Returns an error if the settings are invalid.
    pub fn run_client_under_test(
        &self,
        client: &FuzzClient,
        shape: PathSegmentation<'_>,
    ) -> Result<Conversation, rustls::Error> {
        let tap = Arc::new(KeyLogTap::default());
        let mut config = self.server.clone();
        config.key_log = Arc::clone(&tap) as _;
        let server =
            ConversationEnd::with_library_session(ServerConnection::new(Arc::new(config))?);
        let ours = ConversationEnd::new(client.0.new_session()?, Some(client));
        Ok(TamperingPath::new(self.cipher, &tap, shape).run(ours, server))
    }

    /// Connects the library's client to a server of the given implementation and returns the result of their
    /// conversation. `config` is the client's, with its stored tickets.
    ///
    /// # Errors
    /// Returns an error if the settings are invalid.
    pub fn run_server_under_test(
        &self,
        implementation: Implementation,
        config: &ClientConfig,
        shape: PathSegmentation<'_>,
    ) -> Result<Conversation, rustls::Error> {
        let tap = Arc::new(KeyLogTap::default());
        let mut config = config.clone();
        config.key_log = Arc::clone(&tap) as _;
        let client = ClientConnection::new(Arc::new(config), self.name.clone())?;
        let server = match implementation {
            Implementation::Library => ConversationEnd::with_library_session(
                ServerConnection::new(Arc::new(self.server.clone()))?,
            ),
            Implementation::Own | Implementation::OwnFromSecrets => {
                let session = ServerSessionFactory::new(&self.server).new_session();
                let session = session.map_err(|e| rustls::Error::General(e.to_string()))?;
                ConversationEnd::new(session, None)
            }
        };
        let path = TamperingPath::new(self.cipher, &tap, shape);
        Ok(path.run(ConversationEnd::with_library_session(client), server))
    }
}

/// One end of a conversation, used in the same way as by a worker or a server.
struct ConversationEnd<'a, E: TlsEnd> {
    session: TlsConnection<E>,
    /// The client that maps errors to outcomes; `None` for plain library errors.
    client: Option<&'a FuzzClient>,
    state: EndState,
}

impl<'a, E: TlsEnd> ConversationEnd<'a, E> {
    fn new(session: TlsConnection<E>, client: Option<&'a FuzzClient>) -> ConversationEnd<'a, E> {
        ConversationEnd {
            session,
            client,
            state: EndState::default(),
        }
    }

    fn with_library_session(connection: E::Buffered) -> ConversationEnd<'a, E> {
        let whole = BufferedSession::new(connection);
        ConversationEnd::new(TlsConnection(SessionLayer::Library(Box::new(whole))), None)
    }

    fn is_receiving(&self) -> bool {
        self.state.error.is_none() && !self.state.closed
    }

    fn receive(&mut self, bytes: &mut [u8]) {
        let heard = &mut self.state.received;
        match (self.session).receive(bytes, &mut |plain| heard.extend_from_slice(plain)) {
            Ok(closed) => self.state.closed = closed,
            Err(fault) => {
                let known = self.client.map(|client| client.outcome(&fault).to_owned());
                self.state.error = Some(known.unwrap_or_else(|| match fault {
                    SessionError::Handshake(e) | SessionError::Library(e) => e.to_string(),
                    SessionError::Record(e) => e.to_string(),
                    full @ SessionError::TooLong => full.to_string(),
                }));
            }
        }
    }

    fn take_output(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        // Writing to a vector cannot fail.
        let _ = self.session.flush(&mut bytes);
        bytes
    }

    /// Records the negotiated parameters and sends `text` after the handshake.
    fn send_text(&mut self, text: &[u8]) {
        let agreed = self.session.negotiated_parameters().unwrap_or_default();
        (self.state.resumed, self.state.retried) = (agreed.resumed, agreed.retried);
        self.session.seal(text);
    }
}
