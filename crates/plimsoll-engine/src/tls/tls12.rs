//! The records of a TLS 1.2 connection (RFC 5246 §6.2), for servers without TLS 1.3. The unbuffered connection of the
//! TLS library (rustls) decrypts and encrypts them, since our own record layer supports only TLS 1.3. This costs more
//! in bulk transfers, and idle sessions cannot rest (see [`super::own_session`]).
//!
//! Invariant: incomplete records remain in our buffer and are passed to the library again in full.
//! [`super::own_session`] calls this.

use rustls::unbuffered::{ConnectionState, EncryptError, InsufficientSizeError, UnbufferedStatus};

use super::handshake::{HandshakeResult, TlsEnd, append_library_output};
use super::record::{ReceiveError, RecordError};

/// An open TLS 1.2 connection.
pub(super) struct Tls12Records<E> {
    connection: E,
    pub(super) negotiated: HandshakeResult,
    /// Received bytes that have not been processed: an incomplete record, or bytes after the end of the handshake.
    input: Vec<u8>,
    output: Vec<u8>,
    written: usize,
}

impl<E: TlsEnd> Tls12Records<E> {
    /// Continues after a handshake: `input` was received after its end, and `output` must be sent first.
    pub(super) fn new(
        connection: E,
        agreed: HandshakeResult,
        input: Vec<u8>,
        output: Vec<u8>,
    ) -> Self {
        Tls12Records {
            connection,
            negotiated: agreed,
            input,
            output,
            written: 0,
        }
    }

    /// Decrypts received records. Returns true if the peer has closed its side.
    pub(super) fn receive<T>(
        &mut self,
        bytes: &mut [u8],
        take: &mut impl FnMut(&[u8]) -> Result<(), T>,
    ) -> Result<bool, ReceiveError<T>> {
        if self.input.is_empty() {
            let (taken, ended) = self.open(bytes, take);
            self.input.extend_from_slice(&bytes[taken..]);
            return ended;
        }
        let mut input = std::mem::take(&mut self.input);
        input.extend_from_slice(bytes);
        let (taken, ended) = self.open(&mut input, take);
        input.drain(..taken);
        self.input = input;
        ended
    }

    /// Decrypts `bytes`. Returns the number of consumed bytes, and whether the peer has closed its side.
    fn open<T>(
        &mut self,
        bytes: &mut [u8],
        take: &mut impl FnMut(&[u8]) -> Result<(), T>,
    ) -> (usize, Result<bool, ReceiveError<T>>) {
        let mut taken = 0;
        loop {
            let UnbufferedStatus { discard, state, .. } =
                self.connection.process(&mut bytes[taken..]);
            let mut opened = 0;
            let goes_on = match state {
                Ok(ConnectionState::ReadTraffic(mut traffic)) => loop {
                    match traffic.next_record() {
                        None => break Ok(None),
                        Some(Err(e)) => break Err(map_library_error(&e)),
                        Some(Ok(record)) => {
                            opened += record.discard;
                            if let Err(e) = take(record.payload) {
                                break Err(ReceiveError::Consumer(e));
                            }
                        }
                    }
                },
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    let encoded = append_library_output(&mut self.output, |free| data.encode(free));
                    encoded.map(|()| None).map_err(|e| map_library_error(&e))
                }
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    data.done();
                    Ok(None)
                }
                Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Ok(Some(true)),
                Ok(_) => Ok(Some(false)),
                Err(e) => Err(map_library_error(&e)),
            };
            taken += discard + opened;
            match goes_on {
                Ok(None) => {}
                Ok(Some(ended)) => return (taken, Ok(ended)),
                Err(e) => return (taken, Err(e)),
            }
        }
    }

    /// Encrypts plaintext, and appends the records to the pending bytes.
    pub(super) fn seal(&mut self, plaintext: &[u8]) -> Result<(), RecordError> {
        self.write_records(plaintext.len(), |traffic, free| {
            traffic.encrypt(plaintext, free)
        })
    }

    pub(super) fn queue_close_notify(&mut self) -> Result<(), RecordError> {
        self.write_records(0, |traffic, free| traffic.queue_close_notify(free))
    }

    fn write_records(
        &mut self,
        expected: usize,
        write: impl Fn(&mut TrafficWriter<'_, E>, &mut [u8]) -> Result<usize, EncryptError>,
    ) -> Result<(), RecordError> {
        loop {
            let UnbufferedStatus { state, .. } = self.connection.process(&mut []);
            match state {
                Ok(ConnectionState::WriteTraffic(mut traffic)) => {
                    let start = self.output.len();
                    self.output
                        .resize(start + expected + MAX_RECORD_OVERHEAD, 0);
                    let wrote = match write(&mut traffic, &mut self.output[start..]) {
                        Err(EncryptError::InsufficientSize(InsufficientSizeError {
                            required_size,
                        })) => {
                            self.output.resize(start + required_size, 0);
                            write(&mut traffic, &mut self.output[start..])
                        }
                        other => other,
                    };
                    self.output.truncate(start + *wrote.as_ref().unwrap_or(&0));
                    return wrote
                        .map(drop)
                        .map_err(|e| RecordError::Library(e.to_string()));
                }
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    append_library_output(&mut self.output, |free| data.encode(free))
                        .map_err(|e| RecordError::Library(e.to_string()))?;
                }
                Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
                // The connection is already closed for sending.
                Ok(_) => return Ok(()),
                Err(e) => return Err(RecordError::Library(e.to_string())),
            }
        }
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
}

type TrafficWriter<'c, E> = rustls::unbuffered::WriteTraffic<'c, <E as TlsEnd>::Data>;

/// Upper bound of the number of bytes that header, nonce and tag add to a record, or that an alert needs.
const MAX_RECORD_OVERHEAD: usize = 128;

fn map_library_error<T>(e: &rustls::Error) -> ReceiveError<T> {
    match e {
        rustls::Error::AlertReceived(alert) => RecordError::AlertReceived((*alert).into()).into(),
        e => RecordError::Library(e.to_string()).into(),
    }
}
