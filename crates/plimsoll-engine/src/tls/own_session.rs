//! TLS sessions with our own record layer: the TLS library (rustls) performs the handshake and then provides its
//! secrets.
//!
//! This costs less than the library's own connection in bulk transfers, where records are decrypted in the read buffer,
//! and for idle connections, which have no buffers. Later keys are derived either by the library's connection, which is
//! retained and processes tickets, or from secrets that its key log records. In the second case, an idle session can
//! rest: it keeps only its secrets and the numbers of its next records, some 120 bytes, and no part of the library's
//! connection, no certificate of the peer and no cipher context. Waking the session costs a few microseconds for
//! deriving keys. Key updates and close_notify work after resting; tickets are ignored. If a server supports only TLS
//! 1.2, the library's record layer is used ([`super::tls12`]) and the session does not rest.
//!
//! [`super::session`] calls this.

use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::kernel::KernelConnection;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ConnectionTrafficSecrets};

use super::buffered_session::SessionError;
use super::handshake::{CompletedHandshake, Handshake, HandshakeResult, TlsEnd, traffic_key};
use super::record::{
    KeySchedule, MAX_PLAINTEXT_BYTES, MAX_RECORD_BYTES, ReceiveError, RecordError, RestingRecords,
    TlsRecords, TrafficKey,
};
use super::tickets::TicketStore;
use super::tls12::Tls12Records;
use super::traffic_secrets::{InitialSecrets, KeyLogSecrets, LocalEnd, TrafficSecrets};

/// The configured source of keys after the handshake.
pub(super) enum ConfiguredKeySource {
    /// The library's connection, which also processes tickets. With `None`, sessions are not resumed, and tickets are
    /// dropped to save their key derivation.
    Library(Option<Arc<TicketStore>>),
    /// Secrets that the connection's key log records.
    KeyLog(Arc<KeyLogSecrets>, LocalEnd),
}

/// The source of an open connection's keys.
enum SessionKeySource<E: TlsEnd> {
    Library(Box<RetainedConnection<E>>),
    Secrets(TrafficSecrets),
}

/// The library's connection, retained after the handshake.
struct RetainedConnection<E: TlsEnd> {
    library: KernelConnection<E::Data>,
    tickets: Option<Arc<TicketStore>>,
    /// Whether this connection has stored a ticket.
    has_ticket: bool,
}

impl<E: TlsEnd> KeySchedule for SessionKeySource<E> {
    fn next_sending_key(&mut self) -> Result<TrafficKey, RecordError> {
        match self {
            SessionKeySource::Secrets(secrets) => secrets.next_sending_key(),
            SessionKeySource::Library(kept) => {
                key_from_updated_secret(kept.library.update_tx_secret())
            }
        }
    }

    fn next_receiving_key(&mut self) -> Result<TrafficKey, RecordError> {
        match self {
            SessionKeySource::Secrets(secrets) => secrets.next_receiving_key(),
            SessionKeySource::Library(kept) => {
                key_from_updated_secret(kept.library.update_rx_secret())
            }
        }
    }

    fn process_ticket(&mut self, payload: &[u8]) -> Result<(), RecordError> {
        let kept = match self {
            SessionKeySource::Secrets(secrets) => return secrets.process_ticket(payload),
            SessionKeySource::Library(kept) => kept,
        };
        let is_wanted = |tickets: &TicketStore| !kept.has_ticket || !tickets.is_above_high_water();
        if !kept.tickets.as_deref().is_some_and(is_wanted) {
            return Ok(());
        }
        kept.has_ticket = true;
        E::process_ticket(&mut kept.library, payload).map_err(|e| library_error(&e))
    }
}

/// Converts the library's updated secret to a key.
fn key_from_updated_secret(
    secret: Result<(u64, ConnectionTrafficSecrets), rustls::Error>,
) -> Result<TrafficKey, RecordError> {
    let (sequence, secrets) = secret.map_err(|e| library_error(&e))?;
    traffic_key(&secrets, sequence)
}

fn library_error(e: &rustls::Error) -> RecordError {
    RecordError::Library(e.to_string())
}

struct PendingHandshake<E> {
    handshake: Handshake<E>,
    source: ConfiguredKeySource,
    initial_secrets: Option<InitialSecrets>,
}

struct EstablishedSession<E: TlsEnd> {
    records: TlsRecords<SessionKeySource<E>>,
    /// Bytes received after the end of the handshake that have not been decrypted.
    trailing: Vec<u8>,
    /// The negotiated parameters; `None` after the session has rested.
    negotiated: Option<HandshakeResult>,
}

impl<E: TlsEnd> EstablishedSession<E> {
    /// Returns whether the session can rest when nothing is in progress.
    fn supports_resting(&self) -> bool {
        matches!(self.records.key_schedule(), SessionKeySource::Secrets(_))
    }
}

enum SessionStage<E: TlsEnd> {
    Handshake(Box<PendingHandshake<E>>),
    Open(Box<EstablishedSession<E>>),
    Resting(Box<RestingRecords<TrafficSecrets>>),
    /// The handshake has negotiated TLS 1.2, and the library processes the records.
    Tls12(Box<Tls12Records<E>>),
    /// The session has failed. A failed handshake is kept until its alert has been sent.
    Failed(Option<Box<PendingHandshake<E>>>),
}

/// One end of a connection. All stages are boxed to keep resting sessions small.
pub(super) struct OwnSession<E: TlsEnd> {
    stage: SessionStage<E>,
}

impl OwnSession<UnbufferedClientConnection> {
    /// Creates a client session and puts its `ClientHello` into the outgoing bytes.
    pub(super) fn new_client(
        config: Arc<ClientConfig>,
        server: ServerName<'static>,
        source: ConfiguredKeySource,
    ) -> Result<Self, rustls::Error> {
        let connection = UnbufferedClientConnection::new(config, server)?;
        let mut session = OwnSession::new(connection, source);
        match session.handshake(&[]) {
            Ok(()) => Ok(session),
            Err(SessionError::Handshake(e) | SessionError::Library(e)) => Err(e),
            Err(e) => Err(rustls::Error::General(e.to_string())),
        }
    }
}

impl<E: TlsEnd> OwnSession<E> {
    pub(super) fn new(connection: E, source: ConfiguredKeySource) -> OwnSession<E> {
        OwnSession {
            stage: SessionStage::Handshake(Box::new(PendingHandshake {
                handshake: Handshake::new(connection),
                source,
                initial_secrets: None,
            })),
        }
    }

    pub(super) fn is_handshaking(&self) -> bool {
        !matches!(
            self.stage,
            SessionStage::Open(_) | SessionStage::Resting(_) | SessionStage::Tls12(_)
        )
    }

    /// Returns the negotiated parameters; `None` until the handshake is complete, and after the session has rested.
    pub(super) fn handshake_result(&self) -> Option<&HandshakeResult> {
        match &self.stage {
            SessionStage::Open(open) => open.negotiated.as_ref(),
            SessionStage::Tls12(old) => Some(&old.negotiated),
            _ => None,
        }
    }

    /// Continues the handshake. Bytes after its end are decrypted by the next [`OwnSession::receive`].
    pub(super) fn handshake(&mut self, bytes: &[u8]) -> Result<(), SessionError> {
        let SessionStage::Handshake(state) = &mut self.stage else {
            return Ok(());
        };
        let taken = state.handshake.receive(bytes);
        // A thread processes one handshake at a time, so the logged secrets belong to this one.
        if let ConfiguredKeySource::KeyLog(heard, _) = &state.source
            && let Some(first) = heard.take()
        {
            state.initial_secrets = Some(first);
        }
        if let Ok(false) = taken {
            return Ok(());
        }
        let nothing = SessionStage::Failed(None);
        let SessionStage::Handshake(state) = std::mem::replace(&mut self.stage, nothing) else {
            return Ok(());
        };
        if let Err(e) = taken {
            self.stage = SessionStage::Failed(Some(state));
            return Err(SessionError::Handshake(e));
        }
        self.finish_handshake(*state)
    }

    /// Takes the secrets after the handshake and creates the record layer.
    fn finish_handshake(&mut self, state: PendingHandshake<E>) -> Result<(), SessionError> {
        if state.handshake.is_tls12() {
            let (connection, agreed, early, unsent) = state.handshake.finish_in_library();
            let records = Tls12Records::new(connection, agreed, early, unsent);
            self.stage = SessionStage::Tls12(Box::new(records));
            return Ok(());
        }
        let CompletedHandshake {
            negotiated: agreed,
            secrets,
            kernel,
            trailing: early,
            unsent,
        } = state.handshake.finish().map_err(SessionError::Handshake)?;
        let keys = match state.source {
            ConfiguredKeySource::Library(tickets) => {
                SessionKeySource::Library(Box::new(RetainedConnection {
                    library: kernel,
                    tickets,
                    has_ticket: false,
                }))
            }
            ConfiguredKeySource::KeyLog(_, ours) => {
                let first = state.initial_secrets.unwrap_or_default();
                SessionKeySource::Secrets(TrafficSecrets::new(ours, first, &secrets)?)
            }
        };
        let receiving = traffic_key(&secrets.rx.1, secrets.rx.0)?;
        let sending = traffic_key(&secrets.tx.1, secrets.tx.0)?;
        let mut records = TlsRecords::new(keys, receiving, sending);
        // The last bytes of the handshake must be sent before any record.
        records.queue(&unsent);
        self.stage = SessionStage::Open(Box::new(EstablishedSession {
            records,
            trailing: early,
            negotiated: Some(agreed),
        }));
        Ok(())
    }

    /// Returns the open session, waking it if it is resting; `None` in other stages.
    fn wake(&mut self) -> Result<Option<&mut EstablishedSession<E>>, RecordError> {
        if matches!(self.stage, SessionStage::Resting(_)) {
            let nothing = SessionStage::Failed(None);
            if let SessionStage::Resting(at_rest) = std::mem::replace(&mut self.stage, nothing) {
                let records = at_rest.wake(SessionKeySource::Secrets)?;
                self.stage = SessionStage::Open(Box::new(EstablishedSession {
                    records,
                    trailing: Vec::new(),
                    negotiated: None,
                }));
            }
        }
        Ok(match &mut self.stage {
            SessionStage::Open(open) => Some(open),
            _ => None,
        })
    }

    /// Decrypts the records in `bytes` in place. Returns true if the peer has closed its side.
    pub(super) fn receive<T>(
        &mut self,
        bytes: &mut [u8],
        take: &mut impl FnMut(&[u8]) -> Result<(), T>,
    ) -> Result<bool, ReceiveError<T>> {
        if let SessionStage::Tls12(old) = &mut self.stage {
            return old.receive(bytes, take);
        }
        let Some(open) = self.wake()? else {
            return Ok(false);
        };
        if !open.trailing.is_empty() {
            let mut early = std::mem::take(&mut open.trailing);
            if open.records.receive(&mut early, take)? {
                return Ok(true);
            }
        }
        open.records.receive(bytes, take)
    }

    pub(super) fn seal(&mut self, plaintext: &[u8]) {
        let sealed = match &mut self.stage {
            SessionStage::Tls12(old) => old.seal(plaintext),
            _ => self.wake().and_then(|open| match open {
                Some(open) => open.records.seal(plaintext),
                None => Ok(()),
            }),
        };
        // Without a key, nothing can be sent; the call then ends by its deadline.
        if let Err(e) = sealed {
            tracing::debug!("encryption failed: {e}");
        }
    }

    pub(super) fn queue_close_notify(&mut self) {
        if let SessionStage::Tls12(old) = &mut self.stage {
            let _ = old.queue_close_notify();
        } else if let Ok(Some(open)) = self.wake() {
            let _ = open.records.queue_close_notify();
        }
    }

    /// Releases all state that can be rebuilt, if nothing is in progress.
    pub(super) fn start_resting(&mut self) {
        let can_rest = |open: &EstablishedSession<E>| {
            open.supports_resting() && open.trailing.is_empty() && open.records.can_rest()
        };
        if !matches!(&self.stage, SessionStage::Open(open) if can_rest(open)) {
            return;
        }
        let nothing = SessionStage::Failed(None);
        let secrets = |keys| match keys {
            SessionKeySource::Secrets(secrets) => Some(secrets),
            SessionKeySource::Library(_) => None,
        };
        if let SessionStage::Open(open) = std::mem::replace(&mut self.stage, nothing)
            && let Some(at_rest) = open.records.into_resting(secrets)
        {
            self.stage = SessionStage::Resting(Box::new(at_rest));
        }
    }

    /// Returns the same as [`TlsRecords::min_incoming_bytes`]; 0 if no low-water mark is needed.
    pub(super) fn min_incoming_bytes(&self, plaintext: u64) -> u64 {
        match &self.stage {
            SessionStage::Open(open) if !open.supports_resting() => {
                open.records.min_incoming_bytes(plaintext)
            }
            // Part of a record may have arrived already, so the maximum size of a record is subtracted.
            SessionStage::Tls12(_) => plaintext.saturating_sub(MAX_RECORD_BYTES as u64),
            // Sessions that rest are mostly idle, so a low-water mark gains nothing.
            _ => 0,
        }
    }

    /// Returns whether more may be sealed before pending records are written. This allows the end of a handshake and
    /// the first request to be sent in one write.
    pub(super) fn has_room(&self) -> bool {
        match &self.stage {
            SessionStage::Open(open) if !open.supports_resting() => {
                open.records.pending_output().len() < MAX_PLAINTEXT_BYTES
            }
            SessionStage::Tls12(old) => old.pending_output().len() < MAX_PLAINTEXT_BYTES,
            _ => self.pending_output().is_empty(),
        }
    }

    pub(super) fn pending_output(&self) -> &[u8] {
        match &self.stage {
            SessionStage::Handshake(state) | SessionStage::Failed(Some(state)) => {
                state.handshake.pending_output()
            }
            SessionStage::Open(open) => open.records.pending_output(),
            SessionStage::Tls12(old) => old.pending_output(),
            SessionStage::Resting(_) | SessionStage::Failed(None) => &[],
        }
    }

    pub(super) fn mark_sent(&mut self, bytes: usize) {
        match &mut self.stage {
            SessionStage::Handshake(state) | SessionStage::Failed(Some(state)) => {
                state.handshake.mark_sent(bytes)
            }
            SessionStage::Open(open) => open.records.mark_sent(bytes),
            SessionStage::Tls12(old) => old.mark_sent(bytes),
            SessionStage::Resting(_) | SessionStage::Failed(None) => {}
        }
    }
}

#[cfg(test)]
mod tests;
