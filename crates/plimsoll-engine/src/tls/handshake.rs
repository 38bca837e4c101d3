//! A TLS handshake with the unbuffered interface of the TLS library (rustls), for either end of a connection.
//!
//! Invariant: the library is given one record at a time, so that it never consumes a record after the end of the
//! handshake; those records belong to our own layer. A message that spans several records remains in our buffer until
//! it is complete. [`super::own_session`] calls this.

use std::ops::{Deref, DerefMut};

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::kernel::KernelConnection;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, InsufficientSizeError, UnbufferedStatus};
use rustls::{
    ClientConnection, CommonState, ConnectionCommon, ConnectionTrafficSecrets, ExtractedSecrets,
    HandshakeKind, ProtocolVersion, ServerConnection, SignatureScheme,
};

use super::negotiation::{NegotiatedParameters, take_signature_scheme};
use super::record::{Cipher, HEADER_BYTES, RecordError, TrafficKey};

/// Maximum number of bytes buffered for an incomplete message. The library accepts messages of up to 64 KiB; small
/// records add overhead.
pub(super) const MAX_HANDSHAKE_BYTES: usize = 256 * 1024;
const INITIAL_OUTPUT_BYTES: usize = 1024;

/// The library's unbuffered connection for one end, either client or server.
pub trait TlsEnd: Sized + Deref<Target: Deref<Target = CommonState>> {
    /// The library's data type for this end.
    type Data;
    /// The library's buffered connection for the same end.
    type Buffered: DerefMut<Target = ConnectionCommon<Self::Data>>;

    /// Makes the library process records.
    fn process<'c, 'i>(&'c mut self, bytes: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;

    /// Ends the handshake and returns the traffic secrets.
    ///
    /// # Errors
    /// Returns an error if the handshake is not complete, or the library does not release its secrets.
    fn into_kernel_connection(
        self,
    ) -> Result<(ExtractedSecrets, KernelConnection<Self::Data>), rustls::Error>;

    /// Processes a session ticket, without the message's header.
    ///
    /// # Errors
    /// Returns an error if this end must not receive a ticket.
    fn process_ticket(
        library: &mut KernelConnection<Self::Data>,
        payload: &[u8],
    ) -> Result<(), rustls::Error>;

    /// Returns whether the server accepted the early data.
    fn has_accepted_early_data(whole: &Self::Buffered) -> bool;
}

impl TlsEnd for UnbufferedClientConnection {
    type Data = ClientConnectionData;
    type Buffered = ClientConnection;

    fn process<'c, 'i>(&'c mut self, bytes: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(bytes)
    }

    fn into_kernel_connection(
        self,
    ) -> Result<(ExtractedSecrets, KernelConnection<Self::Data>), rustls::Error> {
        self.dangerous_into_kernel_connection()
    }

    fn process_ticket(
        library: &mut KernelConnection<Self::Data>,
        payload: &[u8],
    ) -> Result<(), rustls::Error> {
        library.handle_new_session_ticket(payload)
    }

    fn has_accepted_early_data(whole: &ClientConnection) -> bool {
        whole.is_early_data_accepted()
    }
}

impl TlsEnd for UnbufferedServerConnection {
    type Data = ServerConnectionData;
    type Buffered = ServerConnection;

    fn process<'c, 'i>(&'c mut self, bytes: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(bytes)
    }

    fn into_kernel_connection(
        self,
    ) -> Result<(ExtractedSecrets, KernelConnection<Self::Data>), rustls::Error> {
        self.dangerous_into_kernel_connection()
    }

    fn process_ticket(_: &mut KernelConnection<Self::Data>, _: &[u8]) -> Result<(), rustls::Error> {
        Err(general_error("a client sent a ticket"))
    }

    fn has_accepted_early_data(_: &ServerConnection) -> bool {
        false
    }
}

/// The parameters that a handshake negotiated, and the ALPN protocol that the server chose.
#[derive(Clone, Debug)]
pub(super) struct HandshakeResult {
    pub(super) agreement: NegotiatedParameters,
    pub(super) alpn: Option<Box<[u8]>>,
}

/// The results of a completed handshake.
pub(super) struct CompletedHandshake<E: TlsEnd> {
    pub(super) negotiated: HandshakeResult,
    pub(super) secrets: ExtractedSecrets,
    pub(super) kernel: KernelConnection<E::Data>,
    /// Bytes received after the end of the handshake.
    pub(super) trailing: Vec<u8>,
    /// Bytes that must be sent before any record of our own layer.
    pub(super) unsent: Vec<u8>,
}

pub(super) struct Handshake<E> {
    connection: E,
    /// Received bytes that are not fully processed.
    input: Vec<u8>,
    /// Number of bytes of `input` that were given to the library, all in complete records. Those that it has not
    /// discarded yet are the beginning of an incomplete message.
    passed: usize,
    retried: bool,
    /// The signature scheme by which the peer proved its identity.
    signature: Option<SignatureScheme>,
    output: Vec<u8>,
    written: usize,
}

impl<E: TlsEnd> Handshake<E> {
    pub(super) fn new(connection: E) -> Handshake<E> {
        Handshake {
            connection,
            input: Vec::new(),
            passed: 0,
            retried: false,
            signature: None,
            output: Vec::new(),
            written: 0,
        }
    }

    /// Continues with `bytes`; returns true when the handshake is complete.
    ///
    /// # Errors
    /// Returns the library's error. The alert for the peer is then in the outgoing bytes.
    pub(super) fn receive(&mut self, bytes: &[u8]) -> Result<bool, rustls::Error> {
        self.input.extend_from_slice(bytes);
        let over = self.advance()?;
        if !over && self.input.len() > MAX_HANDSHAKE_BYTES {
            return Err(general_error("the peer's handshake is too long"));
        }
        Ok(over)
    }

    /// Returns whether TLS 1.2 was negotiated.
    pub(super) fn is_tls12(&self) -> bool {
        let common: &CommonState = &self.connection;
        common.protocol_version() == Some(ProtocolVersion::TLSv1_2)
    }

    /// Ends a handshake after which the library continues to process the records. Returns the library's connection, the
    /// negotiated parameters, the bytes received after the end, and the bytes to send first.
    pub(super) fn finish_in_library(self) -> (E, HandshakeResult, Vec<u8>, Vec<u8>) {
        let agreed = self.handshake_result();
        let mut unsent = self.output;
        unsent.drain(..self.written);
        (self.connection, agreed, self.input, unsent)
    }

    fn handshake_result(&self) -> HandshakeResult {
        let common: &CommonState = &self.connection;
        HandshakeResult {
            agreement: NegotiatedParameters {
                retried: self.retried,
                signature: self.signature,
                ..NegotiatedParameters::from_connection(common)
            },
            alpn: common.alpn_protocol().map(Box::from),
        }
    }

    /// Ends the handshake and returns its results.
    ///
    /// # Errors
    /// Returns an error if the handshake is not complete, or the library does not release its secrets.
    pub(super) fn finish(self) -> Result<CompletedHandshake<E>, rustls::Error> {
        let agreed = self.handshake_result();
        let (secrets, kernel) = self.connection.into_kernel_connection()?;
        let mut unsent = self.output;
        unsent.drain(..self.written);
        Ok(CompletedHandshake {
            negotiated: agreed,
            secrets,
            kernel,
            trailing: self.input,
            unsent,
        })
    }

    pub(super) fn pending_output(&self) -> &[u8] {
        &self.output[self.written..]
    }

    pub(super) fn mark_sent(&mut self, bytes: usize) {
        self.written += bytes;
        if self.written == self.output.len() {
            self.output.clear();
            self.written = 0;
        }
    }

    /// Makes the library process the received bytes; returns true when the handshake is complete.
    fn advance(&mut self) -> Result<bool, rustls::Error> {
        let mut taken = 0;
        let over = loop {
            // Incomplete records are passed as well, because their header may already be invalid.
            let (there, whole) = first_record(&self.input[self.passed..]);
            let end = self.passed + there;
            let over = self.process(&mut taken, end)?;
            if whole {
                self.passed = end;
            }
            if over || !whole || end == self.input.len() {
                break over;
            }
        };
        self.input.drain(..taken);
        self.passed -= taken;
        Ok(over)
    }

    /// Makes the library process the input from `taken` to `end`; returns true when the handshake is complete.
    fn process(&mut self, taken: &mut usize, end: usize) -> Result<bool, rustls::Error> {
        loop {
            let UnbufferedStatus { discard, state, .. } =
                self.connection.process(&mut self.input[*taken..end]);
            let waits = match state {
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    append_library_output(&mut self.output, |free| data.encode(free))?;
                    Ok(false)
                }
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    // The bytes are already in our buffer, whose contents are sent in order.
                    data.done();
                    Ok(false)
                }
                // A server could send data before the client's part of the handshake is complete; ours does not.
                Ok(ConnectionState::BlockedHandshake | ConnectionState::WriteTraffic(_)) => {
                    Ok(true)
                }
                Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => {
                    Err(general_error("the peer sent close_notify in the handshake"))
                }
                Ok(_) => Err(general_error(
                    "the peer sent data before the handshake's end",
                )),
                Err(e) => Err(e),
            };
            *taken += discard;
            self.signature = take_signature_scheme().or(self.signature);
            let common: &CommonState = &self.connection;
            // The library reports a retry only until the second ServerHello of a resumed handshake.
            self.retried |= had_retry_request(common.handshake_kind());
            match waits {
                Ok(false) => {}
                Ok(true) => return Ok(!common.is_handshaking()),
                Err(e) => {
                    self.read_alert(*taken, end);
                    return Err(e);
                }
            }
        }
    }

    /// Obtains the alert that the library wants to send after an error. Must be called only once, since each call
    /// processes the invalid bytes again.
    fn read_alert(&mut self, taken: usize, end: usize) {
        let UnbufferedStatus { state, .. } = self.connection.process(&mut self.input[taken..end]);
        if let Ok(ConnectionState::EncodeTlsData(mut data)) = state {
            let _ = append_library_output(&mut self.output, |free| data.encode(free));
        }
    }
}

/// Returns whether the server has sent a HelloRetryRequest so far.
pub(super) fn had_retry_request(kind: Option<HandshakeKind>) -> bool {
    kind == Some(HandshakeKind::FullWithHelloRetryRequest)
}

/// Returns the number of available bytes of the first record, and whether it is complete.
fn first_record(bytes: &[u8]) -> (usize, bool) {
    let length = match *bytes {
        [_, _, _, high, low, ..] => HEADER_BYTES + usize::from(u16::from_be_bytes([high, low])),
        _ => return (bytes.len(), false),
    };
    (length.min(bytes.len()), length <= bytes.len())
}

fn general_error(what: &str) -> rustls::Error {
    rustls::Error::General(what.to_owned())
}

/// Makes the library append to `output`, which is extended by as many bytes as the library requests.
pub(super) fn append_library_output(
    output: &mut Vec<u8>,
    mut write: impl FnMut(&mut [u8]) -> Result<usize, EncodeError>,
) -> Result<(), rustls::Error> {
    let start = output.len();
    output.resize(start + INITIAL_OUTPUT_BYTES, 0);
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

/// Converts the library's traffic secrets to a key whose next record has the number `sequence`.
///
/// # Errors
/// Returns an error if the cipher is not supported.
pub(super) fn traffic_key(
    secrets: &ConnectionTrafficSecrets,
    sequence: u64,
) -> Result<TrafficKey, RecordError> {
    let (cipher, key, iv) = key_material(secrets)?;
    <[u8; 12]>::try_from(iv)
        .ok()
        .and_then(|iv| TrafficKey::new(cipher, key, iv, sequence))
        .ok_or_else(|| RecordError::Library("the key's length does not fit its cipher".to_owned()))
}

/// Returns the cipher, the key and the IV from the library's traffic secrets.
///
/// # Errors
/// Returns an error if the cipher is not supported.
pub(super) fn key_material(
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
