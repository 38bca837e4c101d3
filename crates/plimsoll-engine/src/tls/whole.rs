//! A server's TLS session in the library's own form, for what is not ours to open: records of TLS 1.2.
//! [`super::own::ServerSession`] has one in place of its own.

use std::io::{BufRead, Write};
use std::sync::Arc;

use rustls::{ServerConfig, ServerConnection, SignatureScheme};

use super::agreed::{Agreement, noted_signature};
use super::handshake::is_retried;
use super::record::RecordError;

/// What is wrong with a connection.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SessionError {
    /// Before the handshake was over.
    #[error("tls handshake: {0}")]
    Handshake(rustls::Error),
    /// After it, where the records are the library's.
    #[error("tls: {0}")]
    Library(rustls::Error),
    /// After it, where they are our own.
    #[error("tls: {0}")]
    Record(#[from] RecordError),
}

pub(super) struct WholeSession {
    connection: ServerConnection,
    /// Sealed bytes that have not been written.
    outgoing: Vec<u8>,
    retried: bool,
    signature: Option<SignatureScheme>,
}

impl WholeSession {
    pub(super) fn new(config: Arc<ServerConfig>) -> Result<WholeSession, SessionError> {
        let mut connection = ServerConnection::new(config).map_err(SessionError::Handshake)?;
        // What is sealed is taken at once.
        connection.set_buffer_limit(None);
        Ok(WholeSession {
            connection,
            outgoing: Vec::new(),
            retried: false,
            signature: None,
        })
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// `None` until the handshake is over.
    pub(super) fn agreement(&self) -> Option<Agreement> {
        (!self.is_handshaking()).then(|| Agreement {
            retried: self.retried,
            signature: self.signature,
            ..Agreement::of(&self.connection)
        })
    }

    /// Takes what arrived and hands on what it holds. `Ok(true)`: the peer said goodbye.
    pub(super) fn receive(
        &mut self,
        mut bytes: &[u8],
        take: &mut impl FnMut(&[u8]),
    ) -> Result<bool, SessionError> {
        while !bytes.is_empty() {
            let handshaking = self.connection.is_handshaking();
            let fault = match handshaking {
                true => SessionError::Handshake,
                false => SessionError::Library,
            };
            // All plaintext is taken after every turn, so it is the other buffer that is full.
            let read = self.connection.read_tls(&mut bytes);
            read.map_err(|e| fault(rustls::Error::General(e.to_string())))?;
            let state = self.connection.process_new_packets();
            if handshaking {
                self.retried |= is_retried(self.connection.handshake_kind());
                self.signature = noted_signature().or(self.signature);
            }
            self.collect();
            let state = state.map_err(fault)?;
            let mut reader = self.connection.reader();
            while let Ok(plain) = reader.fill_buf() {
                let length = plain.len();
                if length == 0 {
                    break;
                }
                take(plain);
                reader.consume(length);
            }
            if state.peer_has_closed() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(super) fn seal(&mut self, plaintext: &[u8]) {
        // Into memory, without a limit: can't fail.
        let _ = self.connection.writer().write_all(plaintext);
        self.collect();
    }

    pub(super) fn close_notify(&mut self) {
        self.connection.send_close_notify();
        self.collect();
    }

    pub(super) fn outgoing(&self) -> &[u8] {
        &self.outgoing
    }

    pub(super) fn sent(&mut self, bytes: usize) {
        self.outgoing.drain(..bytes.min(self.outgoing.len()));
    }

    pub(super) fn rest(&mut self) {
        if self.outgoing.is_empty() {
            self.outgoing = Vec::new();
        }
    }

    fn collect(&mut self) {
        while self.connection.wants_write() {
            // Into memory: can't fail.
            if self.connection.write_tls(&mut self.outgoing).is_err() {
                break;
            }
        }
    }
}
