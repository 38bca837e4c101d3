//! One end of a TLS connection in the library's own form: where a plan asks for the library's records, and for
//! servers of TLS 1.2, whose records are not ours to open. [`super::session`] calls this.

use std::io::{BufRead, Write};

use rustls::SignatureScheme;

use super::agreed::{Agreement, noted_signature};
use super::handshake::{End, is_retried};
use super::record::RecordError;

/// What is wrong with a connection.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SessionError {
    /// Before the handshake was over.
    #[error("tls handshake: {0}")]
    Handshake(rustls::Error),
    /// A message of it is more than the library has room for.
    #[error("tls handshake: a message longer than the 64 KiB that the TLS library buffers")]
    TooLong,
    /// After it, where the records are the library's.
    #[error("tls: {0}")]
    Library(rustls::Error),
    /// After it, where they are our own.
    #[error("tls: {0}")]
    Record(#[from] RecordError),
}

pub(super) struct WholeSession<E: End> {
    pub(super) connection: E::Whole,
    /// There was a HelloRetryRequest.
    retried: bool,
    /// The scheme by which the peer proved its identity.
    signature: Option<SignatureScheme>,
}

impl<E: End> WholeSession<E> {
    pub(super) fn new(mut connection: E::Whole) -> WholeSession<E> {
        // What is sealed is taken at once, so that a batch of frames is one record.
        connection.set_buffer_limit(None);
        WholeSession {
            connection,
            retried: false,
            signature: None,
        }
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// `None` until the handshake is over.
    pub(super) fn agreement(&self) -> Option<Agreement> {
        (!self.is_handshaking()).then(|| Agreement {
            retried: self.retried,
            signature: self.signature,
            early_data: E::early_data(&self.connection),
            ..Agreement::of(&self.connection)
        })
    }

    /// Goes on with the handshake, and returns how much of `bytes` it took.
    pub(super) fn handshake(&mut self, bytes: &[u8]) -> Result<usize, SessionError> {
        let mut rest = bytes;
        while self.is_handshaking() && !rest.is_empty() {
            self.read(&mut rest)?;
            let state = self.connection.process_new_packets();
            self.retried |= is_retried(self.connection.handshake_kind());
            self.signature = noted_signature().or(self.signature);
            match state {
                Ok(state) if state.peer_has_closed() => break,
                // What came behind the end of it is met again.
                Err(e) if self.is_handshaking() => return Err(SessionError::Handshake(e)),
                _ => {}
            }
        }
        Ok(bytes.len() - rest.len())
    }

    /// Takes what arrived and hands on what it holds, as far as it is good. `Ok(true)`: the peer said goodbye.
    pub(super) fn open<T>(
        &mut self,
        mut bytes: &[u8],
        take: &mut impl FnMut(&[u8]) -> Result<(), T>,
        fault: impl Fn(SessionError) -> T,
    ) -> Result<bool, T> {
        loop {
            if !bytes.is_empty() {
                self.read(&mut bytes).map_err(&fault)?;
            }
            let state = self.connection.process_new_packets();
            let mut reader = self.connection.reader();
            while let Ok(plain @ [_, ..]) = reader.fill_buf() {
                let length = plain.len();
                take(plain)?;
                reader.consume(length);
            }
            let state = state.map_err(|e| fault(SessionError::Library(e)))?;
            if state.peer_has_closed() || bytes.is_empty() {
                return Ok(state.peer_has_closed());
            }
        }
    }

    /// All plaintext is taken after every turn, so what is full is the room for messages.
    fn read(&mut self, bytes: &mut &[u8]) -> Result<(), SessionError> {
        let read = self.connection.read_tls(bytes);
        read.map(drop).map_err(|_| SessionError::TooLong)
    }

    pub(super) fn seal(&mut self, plaintext: &[u8]) {
        // Into memory, without a limit: can't fail.
        let _ = self.connection.writer().write_all(plaintext);
    }
}
