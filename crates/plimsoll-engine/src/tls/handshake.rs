//! A handshake through the TLS library's interface without buffers of its own, for either
//! end of a connection.
//!
//! Invariant: the library is given one record at a time, so that it never takes one that
//! came behind the handshake's end: from there on the records are ours. A message that
//! spans several records stays in our buffer until it is whole, and the library goes on
//! where it left off. [`super::own`] calls this.

use std::ops::{Deref, DerefMut};

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::kernel::KernelConnection;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, InsufficientSizeError, UnbufferedStatus};
use rustls::{
    ClientConnection, CommonState, ConnectionCommon, ConnectionTrafficSecrets, ExtractedSecrets,
    HandshakeKind, ProtocolVersion, ServerConnection, SignatureScheme,
};

use super::agreed::{Agreement, noted_signature};
use super::record::{Cipher, HEADER_LENGTH, Key, RecordError};

/// Bytes that may wait for the rest of a message. The library takes messages of up to 64 KiB;
/// small records make more of them.
pub(super) const MAX_HANDSHAKE: usize = 256 * 1024;
const FIRST_OUTPUT: usize = 1024;

/// One end's connection as the library has it, without buffers.
pub trait End: Sized + Deref<Target: Deref<Target = CommonState>> {
    /// What is kept of either end.
    type Data;
    /// The same end's connection with buffers.
    type Whole: DerefMut<Target = ConnectionCommon<Self::Data>>;

    /// Lets the library take records.
    fn process<'c, 'i>(&'c mut self, bytes: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;

    /// The handshake is over.
    ///
    /// # Errors
    /// When it is not, or the library keeps its secrets.
    fn into_kernel(self)
    -> Result<(ExtractedSecrets, KernelConnection<Self::Data>), rustls::Error>;

    /// A ticket for it has come, without the message's header.
    ///
    /// # Errors
    /// Where none may come.
    fn ticket(
        library: &mut KernelConnection<Self::Data>,
        payload: &[u8],
    ) -> Result<(), rustls::Error>;

    /// The server took what went out with the `ClientHello`.
    fn early_data(whole: &Self::Whole) -> bool;
}

impl End for UnbufferedClientConnection {
    type Data = ClientConnectionData;
    type Whole = ClientConnection;

    fn process<'c, 'i>(&'c mut self, bytes: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(bytes)
    }

    fn into_kernel(
        self,
    ) -> Result<(ExtractedSecrets, KernelConnection<Self::Data>), rustls::Error> {
        self.dangerous_into_kernel_connection()
    }

    fn ticket(
        library: &mut KernelConnection<Self::Data>,
        payload: &[u8],
    ) -> Result<(), rustls::Error> {
        library.handle_new_session_ticket(payload)
    }

    fn early_data(whole: &ClientConnection) -> bool {
        whole.is_early_data_accepted()
    }
}

impl End for UnbufferedServerConnection {
    type Data = ServerConnectionData;
    type Whole = ServerConnection;

    fn process<'c, 'i>(&'c mut self, bytes: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(bytes)
    }

    fn into_kernel(
        self,
    ) -> Result<(ExtractedSecrets, KernelConnection<Self::Data>), rustls::Error> {
        self.dangerous_into_kernel_connection()
    }

    fn ticket(_: &mut KernelConnection<Self::Data>, _: &[u8]) -> Result<(), rustls::Error> {
        Err(general("a client sent a ticket"))
    }

    fn early_data(_: &ServerConnection) -> bool {
        false
    }
}

/// What a handshake agreed on.
#[derive(Clone, Debug)]
pub(super) struct Agreed {
    pub(super) on: Agreement,
    pub(super) alpn: Option<Box<[u8]>>,
}

/// What is left of a handshake that is over.
pub(super) struct Over<E: End> {
    pub(super) agreed: Agreed,
    pub(super) secrets: ExtractedSecrets,
    pub(super) kernel: KernelConnection<E::Data>,
    /// What came behind its end.
    pub(super) early: Vec<u8>,
    /// What has to be written before any record of ours.
    pub(super) unsent: Vec<u8>,
}

pub(super) struct Handshake<E> {
    connection: E,
    /// Bytes that have arrived and are not done with.
    input: Vec<u8>,
    /// So much of it has been given to the library, all in whole records. What it has been
    /// given and not discarded are the beginnings of a message.
    given: usize,
    retried: bool,
    /// The scheme by which the peer proved its identity.
    signature: Option<SignatureScheme>,
    output: Vec<u8>,
    written: usize,
}

impl<E: End> Handshake<E> {
    pub(super) fn new(connection: E) -> Handshake<E> {
        Handshake {
            connection,
            input: Vec::new(),
            given: 0,
            retried: false,
            signature: None,
            output: Vec::new(),
            written: 0,
        }
    }

    /// Go on with `bytes`; true: the handshake is over.
    ///
    /// # Errors
    /// Those of the library. The alert for the peer is in the outgoing bytes.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<bool, rustls::Error> {
        self.input.extend_from_slice(bytes);
        let over = self.advance()?;
        if !over && self.input.len() > MAX_HANDSHAKE {
            return Err(general("the peer's handshake is too long"));
        }
        Ok(over)
    }

    /// Whether the records that follow are those of TLS 1.2.
    pub(super) fn is_of_version_1_2(&self) -> bool {
        let common: &CommonState = &self.connection;
        common.protocol_version() == Some(ProtocolVersion::TLSv1_2)
    }

    /// The handshake is over, and the library goes on with the records: its connection, what was agreed on, what came
    /// behind the end, and what has to be sent first.
    pub(super) fn finish_in_library(self) -> (E, Agreed, Vec<u8>, Vec<u8>) {
        let agreed = self.agreed();
        let mut unsent = self.output;
        unsent.drain(..self.written);
        (self.connection, agreed, self.input, unsent)
    }

    fn agreed(&self) -> Agreed {
        let common: &CommonState = &self.connection;
        Agreed {
            on: Agreement {
                retried: self.retried,
                signature: self.signature,
                ..Agreement::of(common)
            },
            alpn: common.alpn_protocol().map(Box::from),
        }
    }

    /// The handshake is over.
    ///
    /// # Errors
    /// When it is not, or the library keeps its secrets.
    pub(super) fn finish(self) -> Result<Over<E>, rustls::Error> {
        let agreed = self.agreed();
        let (secrets, kernel) = self.connection.into_kernel()?;
        let mut unsent = self.output;
        unsent.drain(..self.written);
        Ok(Over {
            agreed,
            secrets,
            kernel,
            early: self.input,
            unsent,
        })
    }

    pub(super) fn outgoing(&self) -> &[u8] {
        &self.output[self.written..]
    }

    pub(super) fn sent(&mut self, bytes: usize) {
        self.written += bytes;
        if self.written == self.output.len() {
            self.output.clear();
            self.written = 0;
        }
    }

    /// Let the library take what has arrived; true: the handshake is over.
    fn advance(&mut self) -> Result<bool, rustls::Error> {
        let mut taken = 0;
        let over = loop {
            // Part of a record is shown, too: its header may be wrong already.
            let (there, whole) = first_record(&self.input[self.given..]);
            let end = self.given + there;
            let over = self.process(&mut taken, end)?;
            if whole {
                self.given = end;
            }
            if over || !whole || end == self.input.len() {
                break over;
            }
        };
        self.input.drain(..taken);
        self.given -= taken;
        Ok(over)
    }

    /// Let the library take what lies between `taken` and `end`; true: the handshake is over.
    fn process(&mut self, taken: &mut usize, end: usize) -> Result<bool, rustls::Error> {
        loop {
            let UnbufferedStatus { discard, state, .. } =
                self.connection.process(&mut self.input[*taken..end]);
            let waits = match state {
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    encode(&mut self.output, |free| data.encode(free))?;
                    Ok(false)
                }
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    // It is in our buffer, which goes out in order.
                    data.done();
                    Ok(false)
                }
                // A server may send data before the client has finished; ours does not.
                Ok(ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_)) => {
                    Ok(true)
                }
                Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => {
                    Err(general("the peer sent close_notify in the handshake"))
                }
                Ok(_) => Err(general("the peer sent data before the handshake's end")),
                Err(e) => Err(e),
            };
            *taken += discard;
            self.signature = noted_signature().or(self.signature);
            let common: &CommonState = &self.connection;
            // A resumed handshake shows it only until the server's second answer.
            self.retried |= is_retried(common.handshake_kind());
            match waits {
                Ok(false) => {}
                Ok(true) => return Ok(!common.is_handshaking()),
                Err(e) => {
                    self.alert(*taken, end);
                    return Err(e);
                }
            }
        }
    }

    /// After an error the library has an alert to send that says what was wrong. One call
    /// fetches it; another would take up the bytes that were wrong once more.
    fn alert(&mut self, taken: usize, end: usize) {
        let UnbufferedStatus { state, .. } = self.connection.process(&mut self.input[taken..end]);
        if let Ok(ConnectionState::EncodeTlsData(mut data)) = state {
            let _ = encode(&mut self.output, |free| data.encode(free));
        }
    }
}

/// Whether the server has asked for another `ClientHello`, as far as the handshake has come.
pub(super) fn is_retried(kind: Option<HandshakeKind>) -> bool {
    kind == Some(HandshakeKind::FullWithHelloRetryRequest)
}

/// How much of the first record is there, and whether that is all of it.
fn first_record(bytes: &[u8]) -> (usize, bool) {
    let length = match *bytes {
        [_, _, _, high, low, ..] => HEADER_LENGTH + usize::from(u16::from_be_bytes([high, low])),
        _ => return (bytes.len(), false),
    };
    (length.min(bytes.len()), length <= bytes.len())
}

fn general(what: &str) -> rustls::Error {
    rustls::Error::General(what.to_owned())
}

/// Let the library write behind `output`, with as much room as it asks for.
pub(super) fn encode(
    output: &mut Vec<u8>,
    mut write: impl FnMut(&mut [u8]) -> Result<usize, EncodeError>,
) -> Result<(), rustls::Error> {
    let start = output.len();
    output.resize(start + FIRST_OUTPUT, 0);
    let wrote = match write(&mut output[start..]) {
        Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) => {
            output.resize(start + required_size, 0);
            write(&mut output[start..])
        }
        other => other,
    };
    match wrote {
        Ok(n) => {
            output.truncate(start + n);
            Ok(())
        }
        Err(e) => {
            output.truncate(start);
            Err(rustls::Error::General(e.to_string()))
        }
    }
}

/// The key in the library's form of it.
///
/// # Errors
/// When it is for a cipher that is not one of TLS 1.3's.
pub(super) fn key(secrets: &ConnectionTrafficSecrets, sequence: u64) -> Result<Key, RecordError> {
    let (cipher, key, iv) = parts(secrets)?;
    <[u8; 12]>::try_from(iv)
        .ok()
        .and_then(|iv| Key::new(cipher, key, iv, sequence))
        .ok_or_else(|| RecordError::Library("a key that does not fit its cipher".to_owned()))
}

/// Cipher, key and the nonces' base.
///
/// # Errors
/// See [`key`].
pub(super) fn parts(
    secrets: &ConnectionTrafficSecrets,
) -> Result<(Cipher, &[u8], &[u8]), RecordError> {
    match secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv } => {
            Ok((Cipher::Aes128Gcm, key.as_ref(), iv.as_ref()))
        }
        ConnectionTrafficSecrets::Aes256Gcm { key, iv } => {
            Ok((Cipher::Aes256Gcm, key.as_ref(), iv.as_ref()))
        }
        ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => {
            Ok((Cipher::Chacha20Poly1305, key.as_ref(), iv.as_ref()))
        }
        _ => Err(RecordError::Library("an unknown cipher".to_owned())),
    }
}

#[cfg(test)]
mod tests;
