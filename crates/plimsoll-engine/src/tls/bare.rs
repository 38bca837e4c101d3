//! A TLS session that lives on our own record layer: the library does the handshake, hands
//! its secrets over, and stays behind for key updates and tickets.
//!
//! It costs less than the library's own connection in bulk (records are opened where they
//! were read) and at rest (no buffers). [`super::TlsSession`] chooses between the two.

use std::sync::Arc;

use rustls::ClientConfig;
use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::kernel::KernelConnection;
use rustls::pki_types::ServerName;

use super::handshake::{Agreed, Handshake, Over, key};
use super::record::{Failure, Key, KeySchedule, RecordError, Records};
use super::tickets::Tickets;

/// The library behind an open connection, and what becomes of tickets.
struct Schedule {
    library: KernelConnection<ClientConnectionData>,
    /// Where the library puts tickets; `None`: nothing is resumed, so none is worth the
    /// key derivation that keeping it costs.
    tickets: Option<Arc<Tickets>>,
    /// This connection has put one there.
    kept: bool,
}

impl KeySchedule for Schedule {
    fn next_sending(&mut self) -> Result<Key, RecordError> {
        let (sequence, secrets) = self.library.update_tx_secret().map_err(|e| library(&e))?;
        key(&secrets, sequence)
    }

    fn next_receiving(&mut self) -> Result<Key, RecordError> {
        let (sequence, secrets) = self.library.update_rx_secret().map_err(|e| library(&e))?;
        key(&secrets, sequence)
    }

    fn ticket(&mut self, payload: &[u8]) -> Result<(), RecordError> {
        let Some(tickets) = &self.tickets else {
            return Ok(());
        };
        if self.kept && tickets.are_plenty() {
            return Ok(());
        }
        self.kept = true;
        self.library
            .handle_new_session_ticket(payload)
            .map_err(|e| library(&e))
    }
}

fn library(e: &rustls::Error) -> RecordError {
    RecordError::Library(e.to_string())
}

enum Stage {
    Handshake(Box<Handshake<UnbufferedClientConnection>>),
    Open(Box<Records<Schedule>>),
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
    tickets: Option<Arc<Tickets>>,
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
        tickets: Option<Arc<Tickets>>,
    ) -> Result<BareSession, rustls::Error> {
        let connection = UnbufferedClientConnection::new(config, server)?;
        let mut session = BareSession {
            stage: Stage::Handshake(Box::new(Handshake::new(connection))),
            agreed: None,
            tickets,
            early: Vec::new(),
        };
        match session.handshake(&[]) {
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
    pub(crate) fn handshake(&mut self, bytes: &[u8]) -> Result<(), BareError> {
        let Stage::Handshake(mut handshake) = std::mem::replace(
            &mut self.stage,
            Stage::Failed {
                output: Vec::new(),
                written: 0,
            },
        ) else {
            return Ok(());
        };
        match handshake.take(bytes) {
            Ok(false) => {
                self.stage = Stage::Handshake(handshake);
                Ok(())
            }
            Ok(true) => self.open(*handshake),
            Err(e) => {
                self.stage = Stage::Failed {
                    output: handshake.into_outgoing(),
                    written: 0,
                };
                Err(BareError::Handshake(e))
            }
        }
    }

    /// The handshake is over: take the keys.
    fn open(&mut self, handshake: Handshake<UnbufferedClientConnection>) -> Result<(), BareError> {
        let Over {
            agreed,
            secrets,
            kernel,
            early,
            unsent,
        } = handshake.finish().map_err(BareError::Handshake)?;
        self.agreed = Some(agreed);
        let keys = key(&secrets.rx.1, secrets.rx.0)
            .and_then(|receiving| Ok((receiving, key(&secrets.tx.1, secrets.tx.0)?)));
        let (receiving, sending) = keys.map_err(BareError::Record)?;
        let schedule = Schedule {
            library: kernel,
            tickets: self.tickets.take(),
            kept: false,
        };
        let mut records = Records::new(schedule, receiving, sending);
        // The client's Finished goes out before anything else.
        records.queue(&unsent);
        self.early = early;
        self.stage = Stage::Open(Box::new(records));
        Ok(())
    }

    /// Opens the records in `bytes`, in place. `Ok(true)`: the peer has closed its side.
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

    /// See [`Records::fewest_to_come`].
    pub(crate) fn fewest_to_come(&self, plaintext: u64) -> u64 {
        match &self.stage {
            Stage::Open(records) => records.fewest_to_come(plaintext),
            Stage::Handshake(_) | Stage::Failed { .. } => 0,
        }
    }

    pub(crate) fn outgoing(&self) -> &[u8] {
        match &self.stage {
            Stage::Open(records) => records.outgoing(),
            Stage::Handshake(handshake) => handshake.outgoing(),
            Stage::Failed { output, written } => &output[*written..],
        }
    }

    pub(crate) fn sent(&mut self, bytes: usize) {
        match &mut self.stage {
            Stage::Open(records) => records.sent(bytes),
            Stage::Handshake(handshake) => handshake.sent(bytes),
            Stage::Failed { written, .. } => *written += bytes,
        }
    }
}
