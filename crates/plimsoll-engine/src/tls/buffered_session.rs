//! One end of a TLS connection that uses the buffered connection of the TLS library (rustls), either because the plan
//! requests the library's record layer, or because the end is a server that supports TLS 1.2. [`super::session`] calls
//! this.

use std::io::{BufRead, Write};

use rustls::SignatureScheme;

use super::handshake::{TlsEnd, had_retry_request};
use super::negotiation::{NegotiatedParameters, take_signature_scheme};
use super::record::RecordError;

/// The errors of a TLS session.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SessionError {
    /// The handshake failed.
    #[error("tls handshake: {0}")]
    Handshake(rustls::Error),
    /// A handshake message exceeds the library's buffer.
    #[error("tls handshake: a message longer than the 64 KiB that the TLS library buffers")]
    TooLong,
    /// An error after the handshake, in the library's record layer.
    #[error("tls: {0}")]
    Library(rustls::Error),
    /// An error after the handshake, in our own record layer.
    #[error("tls: {0}")]
    Record(#[from] RecordError),
}

pub(super) struct BufferedSession<E: TlsEnd> {
    pub(super) connection: E::Buffered,
    /// Whether there was a HelloRetryRequest.
    retried: bool,
    /// The signature scheme by which the peer proved its identity.
    signature: Option<SignatureScheme>,
}

impl<E: TlsEnd> BufferedSession<E> {
    pub(super) fn new(mut connection: E::Buffered) -> BufferedSession<E> {
        // Without a limit on the buffer, all frames that are written together form one record.
        connection.set_buffer_limit(None);
        BufferedSession {
            connection,
            retried: false,
            signature: None,
        }
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// Returns the negotiated parameters; `None` until the handshake is complete.
    pub(super) fn negotiated_parameters(&self) -> Option<NegotiatedParameters> {
        (!self.is_handshaking()).then(|| NegotiatedParameters {
            retried: self.retried,
            signature: self.signature,
            early_data: E::has_accepted_early_data(&self.connection),
            ..NegotiatedParameters::from_connection(&self.connection)
        })
    }

    /// Continues the handshake, and returns the number of consumed `bytes`.
    pub(super) fn handshake(&mut self, bytes: &[u8]) -> Result<usize, SessionError> {
        let mut rest = bytes;
        while self.is_handshaking() && !rest.is_empty() {
            self.pass_to_library(&mut rest)?;
            let state = self.connection.process_new_packets();
            self.retried |= had_retry_request(self.connection.handshake_kind());
            self.signature = take_signature_scheme().or(self.signature);
            match state {
                Ok(state) if state.peer_has_closed() => break,
                // `open` reports errors after the end of the handshake.
                Err(e) if self.is_handshaking() => return Err(SessionError::Handshake(e)),
                _ => {}
            }
        }
        Ok(bytes.len() - rest.len())
    }

    /// Decrypts received bytes and passes valid content to `take`. Returns true if the peer sent close_notify.
    pub(super) fn open<T>(
        &mut self,
        mut bytes: &[u8],
        take: &mut impl FnMut(&[u8]) -> Result<(), T>,
        fault: impl Fn(SessionError) -> T,
    ) -> Result<bool, T> {
        loop {
            if !bytes.is_empty() {
                self.pass_to_library(&mut bytes).map_err(&fault)?;
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

    /// Passes bytes to the library. Plaintext is always read from the library at once, so a full buffer means an
    /// oversized message.
    fn pass_to_library(&mut self, bytes: &mut &[u8]) -> Result<(), SessionError> {
        let read = self.connection.read_tls(bytes);
        read.map(drop).map_err(|_| SessionError::TooLong)
    }

    pub(super) fn seal(&mut self, plaintext: &[u8]) {
        // This writes to memory without a limit and cannot fail.
        let _ = self.connection.writer().write_all(plaintext);
    }
}
