//! A TLS session that lives on our own record layer: the library does the handshake, hands
//! its secrets over, and stays behind for key updates and tickets.
//!
//! It costs less than the library's own connection in bulk (records are opened where they
//! were read) and at rest (no buffers). [`super::TlsSession`] chooses between the two.

use std::sync::Arc;

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::kernel::KernelConnection;
use rustls::pki_types::ServerName;
use rustls::unbuffered::{ConnectionState, EncodeError, InsufficientSizeError, UnbufferedStatus};
use rustls::{
    ClientConfig, ConnectionTrafficSecrets, HandshakeKind, NamedGroup, SupportedCipherSuite,
};

use super::record::{Cipher, Failure, Key, KeySchedule, RecordError, Records};

/// A server's whole first flight, with a long chain of certificates.
const MOST_HANDSHAKE: usize = 256 * 1024;
const FIRST_OUTPUT: usize = 1024;

impl KeySchedule for KernelConnection<ClientConnectionData> {
    fn next_sending(&mut self) -> Result<Key, RecordError> {
        let (sequence, secrets) = self.update_tx_secret().map_err(|e| library(&e))?;
        key(&secrets, sequence)
    }

    fn next_receiving(&mut self) -> Result<Key, RecordError> {
        let (sequence, secrets) = self.update_rx_secret().map_err(|e| library(&e))?;
        key(&secrets, sequence)
    }

    fn ticket(&mut self, payload: &[u8]) -> Result<(), RecordError> {
        self.handle_new_session_ticket(payload)
            .map_err(|e| library(&e))
    }
}

fn library(e: &rustls::Error) -> RecordError {
    RecordError::Library(e.to_string())
}

fn key(secrets: &ConnectionTrafficSecrets, sequence: u64) -> Result<Key, RecordError> {
    let (cipher, key, iv) = match secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (Cipher::Aes128Gcm, key, iv),
        ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (Cipher::Aes256Gcm, key, iv),
        ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => {
            (Cipher::Chacha20Poly1305, key, iv)
        }
        _ => return Err(RecordError::Library("an unknown cipher".to_owned())),
    };
    <[u8; 12]>::try_from(iv.as_ref())
        .ok()
        .and_then(|iv| Key::new(cipher, key.as_ref(), iv, sequence))
        .ok_or_else(|| RecordError::Library("a key that does not fit its cipher".to_owned()))
}

/// What the handshake agreed on.
#[derive(Clone, Debug)]
pub(crate) struct Agreed {
    pub(crate) resumed: bool,
    pub(crate) suite: Option<SupportedCipherSuite>,
    pub(crate) group: Option<NamedGroup>,
    pub(crate) alpn: Option<Box<[u8]>>,
}

struct Handshake {
    connection: UnbufferedClientConnection,
    /// Arrived, and not taken by the library yet.
    input: Vec<u8>,
    output: Vec<u8>,
    written: usize,
}

enum Stage {
    Handshake(Box<Handshake>),
    Open(Box<Records<KernelConnection<ClientConnectionData>>>),
    /// Ended by an error; the alert that says which may still have to be written.
    Failed {
        output: Vec<u8>,
        written: usize,
    },
}

/// One connection's client side.
pub(crate) struct BareSession {
    stage: Stage,
    agreed: Option<Agreed>,
    /// What came behind the end of the handshake and has not been opened.
    early: Vec<u8>,
}

/// Why a session is of no more use.
pub(crate) enum BareError {
    Handshake(rustls::Error),
    Record(RecordError),
}

impl BareSession {
    /// The `ClientHello` is in the outgoing bytes afterwards.
    pub(crate) fn new(
        config: Arc<ClientConfig>,
        server: ServerName<'static>,
    ) -> Result<BareSession, rustls::Error> {
        let connection = UnbufferedClientConnection::new(config, server)?;
        let mut session = BareSession {
            stage: Stage::Handshake(Box::new(Handshake {
                connection,
                input: Vec::new(),
                output: Vec::new(),
                written: 0,
            })),
            agreed: None,
            early: Vec::new(),
        };
        match session.shake(&[]) {
            Ok(()) => Ok(session),
            Err(BareError::Handshake(e)) => Err(e),
            Err(BareError::Record(e)) => Err(rustls::Error::General(e.to_string())),
        }
    }

    /// `None` until the handshake is over.
    pub(crate) fn agreed(&self) -> Option<&Agreed> {
        self.agreed.as_ref()
    }

    /// Go on with the handshake. What came behind its end is opened by the next
    /// [`BareSession::receive`].
    pub(crate) fn shake(&mut self, bytes: &[u8]) -> Result<(), BareError> {
        let Stage::Handshake(mut handshake) = std::mem::replace(
            &mut self.stage,
            Stage::Failed {
                output: Vec::new(),
                written: 0,
            },
        ) else {
            return Ok(());
        };
        handshake.input.extend_from_slice(bytes);
        match handshake.advance() {
            Ok(false) if handshake.input.len() > MOST_HANDSHAKE => Err(BareError::Handshake(
                rustls::Error::General("the server's handshake has no end".to_owned()),
            )),
            Ok(false) => {
                self.stage = Stage::Handshake(handshake);
                Ok(())
            }
            Ok(true) => self.open(*handshake),
            Err(e) => {
                self.stage = Stage::Failed {
                    output: handshake.output,
                    written: handshake.written,
                };
                Err(BareError::Handshake(e))
            }
        }
    }

    /// The handshake is over: take the keys.
    fn open(&mut self, handshake: Handshake) -> Result<(), BareError> {
        let Handshake {
            connection,
            input,
            output,
            written,
        } = handshake;
        self.agreed = Some(Agreed {
            resumed: connection.handshake_kind() == Some(HandshakeKind::Resumed),
            suite: connection.negotiated_cipher_suite(),
            group: connection
                .negotiated_key_exchange_group()
                .map(|group| group.name()),
            alpn: connection.alpn_protocol().map(Box::from),
        });
        let (secrets, kernel) = connection
            .dangerous_into_kernel_connection()
            .map_err(BareError::Handshake)?;
        let keys = key(&secrets.rx.1, secrets.rx.0)
            .and_then(|receiving| Ok((receiving, key(&secrets.tx.1, secrets.tx.0)?)));
        let (receiving, sending) = keys.map_err(BareError::Record)?;
        let mut records = Records::new(kernel, receiving, sending);
        // The client's Finished goes out before anything else.
        records.queue(&output[written..]);
        self.early = input;
        self.stage = Stage::Open(Box::new(records));
        Ok(())
    }

    /// Open the records in `bytes`, in place. `Ok(true)`: the peer said goodbye.
    pub(crate) fn receive<E>(
        &mut self,
        bytes: &mut [u8],
        take: &mut impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<bool, Failure<E>> {
        match &mut self.stage {
            Stage::Open(records) => {
                if !self.early.is_empty() {
                    let mut early = std::mem::take(&mut self.early);
                    if records.receive(&mut early, take)? {
                        return Ok(true);
                    }
                }
                records.receive(bytes, take)
            }
            Stage::Handshake(_) | Stage::Failed { .. } => Ok(false),
        }
    }

    pub(crate) fn seal(&mut self, plaintext: &[u8]) {
        if let Stage::Open(records) = &mut self.stage {
            // Without a key nothing can be sent; the peer's silence will end the call.
            if let Err(e) = records.seal(plaintext) {
                tracing::debug!("nothing sealed: {e}");
            }
        }
    }

    pub(crate) fn close_notify(&mut self) {
        if let Stage::Open(records) = &mut self.stage {
            let _ = records.close_notify();
        }
    }

    pub(crate) fn outgoing(&self) -> &[u8] {
        match &self.stage {
            Stage::Open(records) => records.outgoing(),
            Stage::Handshake(handshake) => &handshake.output[handshake.written..],
            Stage::Failed { output, written } => &output[*written..],
        }
    }

    pub(crate) fn sent(&mut self, bytes: usize) {
        match &mut self.stage {
            Stage::Open(records) => records.sent(bytes),
            Stage::Handshake(handshake) => handshake.written += bytes,
            Stage::Failed { written, .. } => *written += bytes,
        }
    }
}

impl Handshake {
    /// Let the library take what has arrived; true: the handshake is over.
    fn advance(&mut self) -> Result<bool, rustls::Error> {
        let mut taken = 0;
        let over = loop {
            // Behind the handshake's end the records are ours.
            let end = if self.connection.is_handshaking() {
                self.input.len()
            } else {
                taken
            };
            let UnbufferedStatus { discard, state, .. } = self
                .connection
                .process_tls_records(&mut self.input[taken..end]);
            let done = match state {
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    encode(&mut self.output, |free| data.encode(free))?;
                    None
                }
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    // It is in our buffer, which goes out in order.
                    data.done();
                    None
                }
                Ok(ConnectionState::BlockedHandshake) => Some(Ok(false)),
                Ok(ConnectionState::WriteTraffic(_)) => Some(Ok(true)),
                Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => Some(Err(
                    rustls::Error::General("the server said goodbye in the handshake".to_owned()),
                )),
                Ok(_) => Some(Err(rustls::Error::General(
                    "the server sent data before anything was asked".to_owned(),
                ))),
                Err(e) => Some(Err(e)),
            };
            taken += discard;
            match done {
                None => {}
                Some(Ok(over)) => break over,
                Some(Err(e)) => {
                    self.alert(taken);
                    return Err(e);
                }
            }
        };
        self.input.drain(..taken);
        Ok(over)
    }

    /// After an error the library has an alert to send that says what was wrong.
    fn alert(&mut self, taken: usize) {
        // It gives what it has at the next calls, and the error again after that.
        for _ in 0..4 {
            let UnbufferedStatus { state, .. } = self
                .connection
                .process_tls_records(&mut self.input[taken..][..0]);
            match state {
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    let _ = encode(&mut self.output, |free| data.encode(free));
                }
                Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
                _ => return,
            }
        }
    }
}

/// Let the library write behind `output`, with as much room as it asks for.
fn encode(
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
