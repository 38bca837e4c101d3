//! The client's end of a TLS connection: plaintext in, records out, and the reverse, whosever records they are.

use std::io::{self, BufRead, Write};
use std::sync::Arc;

use plimsoll_model::Outcome;
use rustls::client::UnbufferedClientConnection;
use rustls::{ClientConnection, SignatureScheme};

use super::agreed::{Agreement, noted_signature};
use super::failures::{Shown, classify_record, explained};
use super::handshake::{Agreed, is_retried};
use super::own::OwnSession;
use super::record;
use super::trust::Learned;
use super::whole::SessionError;

/// The client's end of one TLS connection. Owns no socket.
pub(crate) struct TlsSession {
    pub(super) layer: Layer,
    /// There was a HelloRetryRequest, where it is the library that knows.
    pub(super) retried: bool,
    /// By which the server proved its identity, likewise.
    pub(super) signature: Option<SignatureScheme>,
    pub(super) shown: Shown,
    pub(super) learned: Arc<Learned>,
}

/// The record layer ([`super::RecordLayer`]): whose it is.
pub(super) enum Layer {
    Library(Box<ClientConnection>),
    Own(OwnSession<UnbufferedClientConnection>),
}

impl Layer {
    /// What the handshake agreed on, where it is not the library that keeps it.
    fn agreed(&self) -> Option<&Agreed> {
        match self {
            Layer::Library(_) => None,
            Layer::Own(session) => session.agreed(),
        }
    }
}

impl TlsSession {
    pub(crate) fn is_handshaking(&self) -> bool {
        match &self.layer {
            Layer::Library(connection) => connection.is_handshaking(),
            Layer::Own(session) => session.is_handshaking(),
        }
    }

    /// What the handshake agreed on; meaningful once it is over.
    pub(crate) fn agreement(&self) -> Agreement {
        match &self.layer {
            Layer::Library(connection) => Agreement {
                retried: self.retried,
                signature: self.signature,
                early_data: connection.is_early_data_accepted(),
                ..Agreement::of(connection)
            },
            own => own.agreed().map(|agreed| agreed.on).unwrap_or_default(),
        }
    }

    /// Bytes that may go out with the `ClientHello` (0-RTT, RFC 8446 §2.3): what the plan wants
    /// and the ticket allows.
    pub(crate) fn early_room(&mut self) -> usize {
        match &mut self.layer {
            Layer::Library(connection) => connection.early_data().map_or(0, |e| e.bytes_left()),
            Layer::Own(_) => 0,
        }
    }

    /// Seals plaintext for that, as far as there is room; returns how much.
    pub(crate) fn seal_early(&mut self, plaintext: &[u8]) -> usize {
        match &mut self.layer {
            Layer::Library(connection) => connection
                .early_data()
                .and_then(|mut early| early.write(plaintext).ok())
                .unwrap_or(0),
            Layer::Own(_) => 0,
        }
    }

    /// Whether the server took it; meaningful once the handshake is over.
    pub(crate) fn early_accepted(&self) -> bool {
        match &self.layer {
            Layer::Library(connection) => connection.is_early_data_accepted(),
            Layer::Own(_) => false,
        }
    }

    /// The server asked for a client certificate, and there was none to show.
    pub(crate) fn lacks_certificate(&self) -> bool {
        self.shown == Shown::Nothing && self.learned.asked()
    }

    /// Since this was asked last, of any connection, a certificate was met that no earlier one had.
    pub(crate) fn took_replacement(&self) -> bool {
        self.learned.took_replacement()
    }

    /// Whether the server took up the protocol asked for.
    pub(crate) fn alpn(&self) -> Option<&[u8]> {
        match &self.layer {
            Layer::Library(connection) => connection.alpn_protocol(),
            own => own.agreed()?.alpn.as_deref(),
        }
    }

    /// Go on with the handshake, where the records are our own. `false`: they are the
    /// library's, and [`TlsSession::read`] takes everything.
    ///
    /// # Errors
    /// The problem with it, as an outcome and as a sentence.
    pub(crate) fn handshake(&mut self, bytes: &[u8]) -> Result<bool, (Outcome, String)> {
        let done = match &mut self.layer {
            Layer::Library(_) => return Ok(false),
            Layer::Own(session) => session.handshake(bytes),
        };
        match done {
            Ok(()) => Ok(true),
            Err(SessionError::Handshake(e) | SessionError::Library(e)) => {
                Err(explained(&e, self.shown, &self.learned))
            }
            Err(SessionError::Record(e)) => Err(classify_record(&e, self.shown)),
        }
    }

    /// Open records in place, where they are our own, and hand on what they hold; `None`:
    /// they are the library's. `Some(true)`: the peer has closed its side.
    ///
    /// # Errors
    /// That of `take`, or what is wrong with the records.
    pub(crate) fn open<E: From<(Outcome, String)>>(
        &mut self,
        bytes: &mut [u8],
        take: &mut impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<Option<bool>, E> {
        let received = match &mut self.layer {
            Layer::Library(_) => return Ok(None),
            Layer::Own(session) => session.receive(bytes, take),
        };
        match received {
            Ok(closed) => Ok(Some(closed)),
            Err(record::Failure::Taker(e)) => Err(e),
            Err(record::Failure::Record(e)) => Err(classify_record(&e, self.shown).into()),
        }
    }

    /// Take bytes from the socket, as many as the library has room for. What they hold
    /// is then in [`TlsSession::plaintext`], also where a later record is bad.
    ///
    /// `Ok(true)`: the peer has closed its side (close_notify, RFC 8446 §6.1).
    ///
    /// # Errors
    /// What is wrong with the records, as an outcome and as a sentence.
    pub(crate) fn read(&mut self, bytes: &mut &[u8]) -> Result<bool, (Outcome, String)> {
        let Layer::Library(connection) = &mut self.layer else {
            *bytes = &[];
            return Ok(false);
        };
        match connection.read_tls(bytes) {
            Ok(0) => *bytes = &[],
            Ok(_) => {}
            // All plaintext is taken after every call, so it is the other buffer that is full.
            Err(_) => {
                return Err((
                    Outcome::TlsFailed,
                    "tls: the server's handshake is longer than the 64 KiB that the TLS library \
                     buffers; tls.records = \"own\" buffers 256 KiB"
                        .to_owned(),
                ));
            }
        }
        let handshaking = connection.is_handshaking();
        let state = connection.process_new_packets();
        if handshaking {
            self.retried |= is_retried(connection.handshake_kind());
            self.signature = noted_signature().or(self.signature);
        }
        match state {
            Ok(state) => Ok(state.peer_has_closed()),
            Err(e) => Err(explained(&e, self.shown, &self.learned)),
        }
    }

    /// The next piece of plaintext; [`TlsSession::consume`] it before asking again.
    pub(crate) fn plaintext(&mut self) -> Option<&[u8]> {
        let Layer::Library(connection) = &mut self.layer else {
            return None;
        };
        match connection.reader().into_first_chunk() {
            Ok(chunk) if !chunk.is_empty() => Some(chunk),
            _ => None,
        }
    }

    pub(crate) fn consume(&mut self, bytes: usize) {
        if let Layer::Library(connection) = &mut self.layer {
            connection.reader().consume(bytes);
        }
    }

    /// Seal plaintext. Records wait in the session until [`TlsSession::flush`].
    pub(crate) fn seal(&mut self, plaintext: &[u8]) {
        match &mut self.layer {
            // Into memory, without a limit: can't fail.
            Layer::Library(connection) => {
                let _ = connection.writer().write_all(plaintext);
            }
            Layer::Own(session) => session.seal(plaintext),
        }
    }

    /// The fewest bytes that the socket must still give before `plaintext` bytes have come.
    pub(crate) fn fewest_to_come(&self, plaintext: u64) -> u64 {
        match &self.layer {
            // The library doesn't report how much of a record it holds: at most all of one.
            Layer::Library(_) => plaintext.saturating_sub(record::MAX_RECORD as u64),
            Layer::Own(session) => session.fewest_to_come(plaintext),
        }
    }

    /// Whether more may be sealed before what waits has been written.
    pub(crate) fn has_room(&self) -> bool {
        match &self.layer {
            Layer::Library(connection) => !connection.wants_write(),
            Layer::Own(session) => session.has_room(),
        }
    }

    pub(crate) fn wants_write(&self) -> bool {
        match &self.layer {
            Layer::Library(connection) => connection.wants_write(),
            Layer::Own(session) => !session.outgoing().is_empty(),
        }
    }

    /// Bytes of sealed records that wait, where they are our own.
    pub(crate) fn outgoing(&self) -> usize {
        match &self.layer {
            Layer::Library(_) => 0,
            Layer::Own(session) => session.outgoing().len(),
        }
    }

    /// Write waiting records to `socket` until it takes no more.
    pub(crate) fn flush(&mut self, socket: &mut impl io::Write) -> io::Result<()> {
        while self.wants_write() {
            let wrote = match &mut self.layer {
                Layer::Library(connection) => connection.write_tls(socket)?,
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

    pub(crate) fn close_notify(&mut self) {
        match &mut self.layer {
            Layer::Library(connection) => connection.send_close_notify(),
            Layer::Own(session) => session.close_notify(),
        }
    }

    /// Nothing is under way: give up what can be made again.
    pub(crate) fn rest(&mut self) {
        if let Layer::Own(session) = &mut self.layer {
            session.rest();
        }
    }
}
