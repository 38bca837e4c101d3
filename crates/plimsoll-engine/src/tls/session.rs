//! One end of a TLS connection: plaintext in, records out, and the reverse, whosever records they are.
//!
//! Clients' are made by [`super::TlsClient`], servers' by [`ServerSessions`].

use std::convert::identity;
use std::io::{self, Write};
use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::{ServerConfig, ServerConnection};

use super::agreed::Agreement;
use super::handshake::End;
use super::own::{OwnSession, Source};
use super::record::{Failure, MAX_RECORD};
use super::secrets::{Heard, Ours};
use super::whole::{SessionError, WholeSession};

/// One end of one TLS connection. Owns no socket.
pub struct Session<E: End>(pub(super) Layer<E>);

/// The client's end of one that the engine makes.
pub(crate) type TlsSession = Session<UnbufferedClientConnection>;

/// The server's end.
pub type ServerSession = Session<UnbufferedServerConnection>;

/// The record layer ([`super::RecordLayer`]): whose it is.
pub(super) enum Layer<E: End> {
    Library(Box<WholeSession<E>>),
    Own(OwnSession<E>),
}

impl<E: End> Session<E> {
    /// Nothing can be sealed yet.
    pub fn is_handshaking(&self) -> bool {
        match &self.0 {
            Layer::Library(session) => session.is_handshaking(),
            Layer::Own(session) => session.is_handshaking(),
        }
    }

    /// What the handshake agreed on; `None` until it is over, and at rest.
    pub fn agreement(&self) -> Option<Agreement> {
        match &self.0 {
            Layer::Library(session) => session.agreement(),
            Layer::Own(session) => session.agreed().map(|agreed| agreed.on),
        }
    }

    /// Takes what arrived, in place, and hands on what it holds. `Ok(true)`: the peer said
    /// goodbye (close_notify, RFC 8446 §6.1).
    ///
    /// # Errors
    /// The fault in the handshake or a record. The alert for the peer then waits to be sent.
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

    /// Goes on with the handshake, if it is not over; what it did not take of `bytes` is to be opened.
    pub(crate) fn handshake<'b>(
        &mut self,
        bytes: &'b mut [u8],
    ) -> Result<&'b mut [u8], SessionError> {
        let taken = match &mut self.0 {
            Layer::Library(session) => session.handshake(bytes)?,
            Layer::Own(session) if session.is_handshaking() => {
                session.handshake(bytes)?;
                bytes.len()
            }
            Layer::Own(_) => 0,
        };
        Ok(&mut bytes[taken..])
    }

    /// Opens records, where they are our own in place, and hands on what they hold. `Ok(true)`: as of
    /// [`Session::receive`].
    ///
    /// # Errors
    /// That of `take`, or what `fault` makes of the records' error.
    #[inline]
    pub(crate) fn open<T>(
        &mut self,
        bytes: &mut [u8],
        take: &mut impl FnMut(&[u8]) -> Result<(), T>,
        fault: impl Fn(SessionError) -> T,
    ) -> Result<bool, T> {
        match &mut self.0 {
            Layer::Library(session) => session.open(bytes, take, fault),
            Layer::Own(session) => session.receive(bytes, take).map_err(|e| match e {
                Failure::Taker(e) => e,
                Failure::Record(e) => fault(SessionError::Record(e)),
            }),
        }
    }

    /// Seals plaintext. Records wait in the session until they are sent.
    pub fn seal(&mut self, plaintext: &[u8]) {
        match &mut self.0 {
            Layer::Library(session) => session.seal(plaintext),
            Layer::Own(session) => session.seal(plaintext),
        }
    }

    /// Sends close_notify (RFC 8446 §6.1).
    pub fn close_notify(&mut self) {
        match &mut self.0 {
            Layer::Library(session) => session.connection.send_close_notify(),
            Layer::Own(session) => session.close_notify(),
        }
    }

    pub(crate) fn wants_write(&self) -> bool {
        match &self.0 {
            Layer::Library(session) => session.connection.wants_write(),
            Layer::Own(session) => !session.outgoing().is_empty(),
        }
    }

    /// Writes waiting records to `socket` until it takes no more.
    ///
    /// # Errors
    /// Those of the socket, `WouldBlock` where it takes no more now.
    pub fn flush(&mut self, socket: &mut impl Write) -> io::Result<()> {
        while self.wants_write() {
            let wrote = match &mut self.0 {
                Layer::Library(session) => session.connection.write_tls(socket)?,
                Layer::Own(session) => {
                    let wrote = socket.write(session.outgoing())?;
                    session.sent(wrote);
                    wrote
                }
            };
            if wrote == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }

    /// Gives up everything that can be made again, if nothing is under way.
    pub fn rest(&mut self) {
        match &mut self.0 {
            Layer::Library(_) => {}
            Layer::Own(session) => session.rest(),
        }
    }
}

impl TlsSession {
    /// Bytes that may go out with the `ClientHello` (0-RTT, RFC 8446 §2.3): what the plan wants
    /// and the ticket allows.
    pub(crate) fn early_room(&mut self) -> usize {
        match &mut self.0 {
            Layer::Library(session) => {
                let early = session.connection.early_data();
                early.map_or(0, |early| early.bytes_left())
            }
            Layer::Own(_) => 0,
        }
    }

    /// Seals plaintext for that, as far as there is room; returns how much.
    pub(crate) fn seal_early(&mut self, plaintext: &[u8]) -> usize {
        match &mut self.0 {
            Layer::Library(session) => {
                let early = session.connection.early_data();
                early.map_or(0, |mut early| early.write(plaintext).unwrap_or(0))
            }
            Layer::Own(_) => 0,
        }
    }

    /// Whether the server took up the protocol asked for.
    pub(crate) fn alpn(&self) -> Option<&[u8]> {
        match &self.0 {
            Layer::Library(session) => session.connection.alpn_protocol(),
            Layer::Own(session) => session.agreed()?.alpn.as_deref(),
        }
    }

    /// The fewest bytes that the socket must still give before `plaintext` bytes have come.
    pub(crate) fn fewest_to_come(&self, plaintext: u64) -> u64 {
        match &self.0 {
            // The library doesn't report how much of a record it holds: at most all of one.
            Layer::Library(_) => plaintext.saturating_sub(MAX_RECORD as u64),
            Layer::Own(session) => session.fewest_to_come(plaintext),
        }
    }

    /// Whether more may be sealed before what waits has been written.
    pub(crate) fn has_room(&self) -> bool {
        match &self.0 {
            Layer::Library(session) => !session.connection.wants_write(),
            Layer::Own(session) => session.has_room(),
        }
    }

    /// Bytes of sealed records that wait, where they are our own.
    pub(crate) fn unsent(&self) -> usize {
        match &self.0 {
            Layer::Library(_) => 0,
            Layer::Own(session) => session.outgoing().len(),
        }
    }
}

/// Where the sessions of one thread's connections come from.
#[derive(Clone, Debug)]
pub struct ServerSessions {
    config: Arc<ServerConfig>,
    /// `None`: the records are the library's.
    heard: Option<Arc<Heard>>,
}

impl ServerSessions {
    /// Sessions as `config` has them, but that the library hands its secrets over: those of TLS 1.3.
    /// Threads need one each.
    pub fn new(config: &ServerConfig) -> ServerSessions {
        let heard = Arc::new(Heard::default());
        let mut sessions = ServerSessions::of_library(config);
        let config = Arc::make_mut(&mut sessions.config);
        config.enable_secret_extraction = true;
        config.key_log = Arc::clone(&heard) as _;
        sessions.heard = Some(heard);
        sessions
    }

    /// Sessions whose records are the library's, of TLS 1.2 too. They rest at their full size.
    pub fn of_library(config: &ServerConfig) -> ServerSessions {
        let mut config = config.clone();
        // Bytes before the handshake's end would have no owner.
        config.max_early_data_size = 0;
        ServerSessions {
            config: Arc::new(config),
            heard: None,
        }
    }

    /// A session for a connection that was accepted.
    ///
    /// # Errors
    /// Those of the library, for a configuration that makes no sense.
    pub fn session(&self) -> Result<ServerSession, SessionError> {
        let config = Arc::clone(&self.config);
        let layer = match &self.heard {
            Some(heard) => {
                let connection = UnbufferedServerConnection::new(config);
                let connection = connection.map_err(SessionError::Handshake)?;
                let source = Source::Heard(Arc::clone(heard), Ours::Server);
                Layer::Own(OwnSession::new(connection, source))
            }
            None => {
                let connection = ServerConnection::new(config).map_err(SessionError::Handshake)?;
                Layer::Library(Box::new(WholeSession::new(connection)))
            }
        };
        Ok(Session(layer))
    }
}
