//! One end of a TLS connection, with the TLS library's record layer or our own.
//!
//! [`super::TlsClient`] creates client ends, [`ServerSessionFactory`] creates server ends.

use std::convert::identity;
use std::io::{self, Write};
use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::{ServerConfig, ServerConnection};

use super::buffered_session::{BufferedSession, SessionError};
use super::handshake::TlsEnd;
use super::negotiation::NegotiatedParameters;
use super::own_session::{ConfiguredKeySource, OwnSession};
use super::record::{MAX_RECORD_BYTES, ReceiveError};
use super::traffic_secrets::{KeyLogSecrets, LocalEnd};

/// One end of one TLS connection, without its socket.
pub struct TlsConnection<E: TlsEnd>(pub(super) SessionLayer<E>);

/// The client end of a connection that the engine establishes.
pub(crate) type TlsSession = TlsConnection<UnbufferedClientConnection>;

/// The server end of a connection.
pub type ServerSession = TlsConnection<UnbufferedServerConnection>;

/// The implementation of the record layer ([`super::RecordLayer`]).
pub(super) enum SessionLayer<E: TlsEnd> {
    Library(Box<BufferedSession<E>>),
    Own(OwnSession<E>),
}

impl<E: TlsEnd> TlsConnection<E> {
    /// Returns whether the handshake is in progress, so that nothing can be sealed yet.
    pub fn is_handshaking(&self) -> bool {
        match &self.0 {
            SessionLayer::Library(session) => session.is_handshaking(),
            SessionLayer::Own(session) => session.is_handshaking(),
        }
    }

    /// Returns the parameters that the handshake negotiated; `None` until it is complete, and after
    /// [`TlsConnection::start_resting`].
    pub fn negotiated_parameters(&self) -> Option<NegotiatedParameters> {
        match &self.0 {
            SessionLayer::Library(session) => session.negotiated_parameters(),
            SessionLayer::Own(session) => session.handshake_result().map(|agreed| agreed.agreement),
        }
    }

    /// Decrypts received bytes in place and passes their content to `take`. Returns true if the peer sent close_notify
    /// (RFC 8446 §6.1).
    ///
    /// # Errors
    /// Returns an error if the handshake or a record is invalid. The alert for the peer is then pending.
    pub fn receive(
        &mut self,
        bytes: &mut [u8],
        take: &mut impl FnMut(&[u8]),
    ) -> Result<bool, SessionError> {
        let rest = self.handshake(bytes)?;
        let mut take = |plain: &[u8]| {
            take(plain);
            Ok(())
        };
        self.open(rest, &mut take, identity)
    }

    /// Continues the handshake if it is in progress; returns the rest of `bytes`, which must be passed to
    /// [`TlsConnection::open`].
    pub(crate) fn handshake<'b>(
        &mut self,
        bytes: &'b mut [u8],
    ) -> Result<&'b mut [u8], SessionError> {
        let taken = match &mut self.0 {
            SessionLayer::Library(session) => session.handshake(bytes)?,
            SessionLayer::Own(session) if session.is_handshaking() => {
                session.handshake(bytes)?;
                bytes.len()
            }
            SessionLayer::Own(_) => 0,
        };
        Ok(&mut bytes[taken..])
    }

    /// Decrypts records (in place, with our own layer) and passes their content to `take`. Returns the same as
    /// [`TlsConnection::receive`].
    ///
    /// # Errors
    /// Returns the error of `take`, or that of a record, converted by `fault`.
    #[inline]
    pub(crate) fn open<T>(
        &mut self,
        bytes: &mut [u8],
        take: &mut impl FnMut(&[u8]) -> Result<(), T>,
        fault: impl Fn(SessionError) -> T,
    ) -> Result<bool, T> {
        match &mut self.0 {
            SessionLayer::Library(session) => session.open(bytes, take, fault),
            SessionLayer::Own(session) => session.receive(bytes, take).map_err(|e| match e {
                ReceiveError::Consumer(e) => e,
                ReceiveError::Record(e) => fault(SessionError::Record(e)),
            }),
        }
    }

    /// Encrypts plaintext into records, which are pending in the session until they are sent.
    pub fn seal(&mut self, plaintext: &[u8]) {
        match &mut self.0 {
            SessionLayer::Library(session) => session.seal(plaintext),
            SessionLayer::Own(session) => session.seal(plaintext),
        }
    }

    /// Adds close_notify (RFC 8446 §6.1) to the pending records.
    pub fn queue_close_notify(&mut self) {
        match &mut self.0 {
            SessionLayer::Library(session) => session.connection.send_close_notify(),
            SessionLayer::Own(session) => session.queue_close_notify(),
        }
    }

    pub(crate) fn wants_write(&self) -> bool {
        match &self.0 {
            SessionLayer::Library(session) => session.connection.wants_write(),
            SessionLayer::Own(session) => !session.pending_output().is_empty(),
        }
    }

    /// Writes pending records to `socket` until it accepts no more.
    ///
    /// # Errors
    /// Returns the socket's errors, including `WouldBlock`.
    pub fn flush(&mut self, socket: &mut impl Write) -> io::Result<()> {
        while self.wants_write() {
            let wrote = match &mut self.0 {
                SessionLayer::Library(session) => session.connection.write_tls(socket)?,
                SessionLayer::Own(session) => {
                    let wrote = socket.write(session.pending_output())?;
                    session.mark_sent(wrote);
                    wrote
                }
            };
            if wrote == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }

    /// Releases all state that can be rebuilt, if nothing is in progress.
    pub fn start_resting(&mut self) {
        match &mut self.0 {
            SessionLayer::Library(_) => {}
            SessionLayer::Own(session) => session.start_resting(),
        }
    }
}

impl TlsSession {
    /// Returns how many bytes may be sent as early data (0-RTT, RFC 8446 §2.3): 0 if the plan or the ticket
    /// does not allow any.
    pub(crate) fn early_data_capacity(&mut self) -> usize {
        match &mut self.0 {
            SessionLayer::Library(session) => {
                let early = session.connection.early_data();
                early.map_or(0, |early| early.bytes_left())
            }
            SessionLayer::Own(_) => 0,
        }
    }

    /// Encrypts as much of the plaintext as is allowed as early data; returns the number of bytes.
    pub(crate) fn seal_early_data(&mut self, plaintext: &[u8]) -> usize {
        match &mut self.0 {
            SessionLayer::Library(session) => {
                let early = session.connection.early_data();
                early.map_or(0, |mut early| early.write(plaintext).unwrap_or(0))
            }
            SessionLayer::Own(_) => 0,
        }
    }

    /// Returns the protocol that the server chose by ALPN.
    pub(crate) fn alpn(&self) -> Option<&[u8]> {
        match &self.0 {
            SessionLayer::Library(session) => session.connection.alpn_protocol(),
            SessionLayer::Own(session) => session.handshake_result()?.alpn.as_deref(),
        }
    }

    /// Returns the minimum number of bytes that must still arrive before `plaintext` bytes can be decrypted.
    pub(crate) fn min_incoming_bytes(&self, plaintext: u64) -> u64 {
        match &self.0 {
            // The library does not report how much of a record it has buffered: assume a complete record.
            SessionLayer::Library(_) => plaintext.saturating_sub(MAX_RECORD_BYTES as u64),
            SessionLayer::Own(session) => session.min_incoming_bytes(plaintext),
        }
    }

    /// Returns whether more may be sealed before pending records are written.
    pub(crate) fn has_room(&self) -> bool {
        match &self.0 {
            SessionLayer::Library(session) => !session.connection.wants_write(),
            SessionLayer::Own(session) => session.has_room(),
        }
    }

    /// Returns the size of pending records in bytes; 0 with the library's record layer.
    pub(crate) fn unsent_bytes(&self) -> usize {
        match &self.0 {
            SessionLayer::Library(_) => 0,
            SessionLayer::Own(session) => session.pending_output().len(),
        }
    }
}

/// A factory of server sessions for one thread's connections.
#[derive(Clone, Debug)]
pub struct ServerSessionFactory {
    config: Arc<ServerConfig>,
    /// The key log for our own record layer; `None` with the library's record layer.
    key_log_secrets: Option<Arc<KeyLogSecrets>>,
}

impl ServerSessionFactory {
    /// Creates a factory of sessions with `config` that use our own record layer for TLS 1.3. Each thread needs its own
    /// factory.
    pub fn new(config: &ServerConfig) -> ServerSessionFactory {
        let heard = Arc::new(KeyLogSecrets::default());
        let mut sessions = ServerSessionFactory::with_library_records(config);
        let config = Arc::make_mut(&mut sessions.config);
        config.enable_secret_extraction = true;
        config.key_log = Arc::clone(&heard) as _;
        sessions.key_log_secrets = Some(heard);
        sessions
    }

    /// Creates a factory of sessions with the library's record layer, which also supports TLS 1.2. These sessions do
    /// not release memory while idle.
    pub fn with_library_records(config: &ServerConfig) -> ServerSessionFactory {
        let mut config = config.clone();
        // Early data is not supported.
        config.max_early_data_size = 0;
        ServerSessionFactory {
            config: Arc::new(config),
            key_log_secrets: None,
        }
    }

    /// Creates a session for an accepted connection.
    ///
    /// # Errors
    /// Returns the library's errors for an invalid configuration.
    pub fn new_session(&self) -> Result<ServerSession, SessionError> {
        let config = Arc::clone(&self.config);
        let layer = match &self.key_log_secrets {
            Some(heard) => {
                let connection = UnbufferedServerConnection::new(config);
                let connection = connection.map_err(SessionError::Handshake)?;
                let source = ConfiguredKeySource::KeyLog(Arc::clone(heard), LocalEnd::Server);
                SessionLayer::Own(OwnSession::new(connection, source))
            }
            None => {
                let connection = ServerConnection::new(config).map_err(SessionError::Handshake)?;
                SessionLayer::Library(Box::new(BufferedSession::new(connection)))
            }
        };
        Ok(TlsConnection(layer))
    }
}
