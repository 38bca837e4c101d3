//! TLS sessions on our own record layer: the library does the handshake and hands its secrets over.
//!
//! That costs less than the library's own connection in bulk, where records are opened where they were read, and at rest,
//! where there are no buffers. Later keys follow from the library's connection, which stays behind and takes tickets, or
//! from secrets that were heard. With these a session can rest: once it has nothing to do it keeps its secrets and the
//! numbers of its next records, some 120 bytes, and no part of the library's connection, no certificate of the peer and no
//! cipher context. A turn on a resting connection costs a few microseconds more, for the keys. Key updates and the goodbye
//! work all the same, and a client that rests has no use for tickets. Where a server has only TLS 1.2, the records are
//! the library's ([`super::version_1_2`]), and nothing rests.
//!
//! [`super::session`] calls this.

use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::kernel::KernelConnection;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ConnectionTrafficSecrets};

use super::handshake::{Agreed, End, Handshake, Over, key};
use super::record::{
    AtRest, Failure, Key, KeySchedule, MAX_PLAINTEXT, MAX_RECORD, RecordError, Records,
};
use super::secrets::{First, Heard, Ours, TrafficSecrets};
use super::tickets::Tickets;
use super::version_1_2::OldRecords;
use super::whole::SessionError;

/// What the keys after the handshake will follow from.
pub(super) enum Source {
    /// The library's connection. Tickets go there; `None`: nothing is resumed, so none is worth the key derivation that
    /// keeping it costs.
    Library(Option<Arc<Tickets>>),
    /// Secrets, which the key log of the connection's configuration hears.
    Heard(Arc<Heard>, Ours),
}

/// What the keys of an open connection follow from.
enum Keys<E: End> {
    Library(Box<Kept<E>>),
    Secrets(TrafficSecrets),
}

/// The library's connection, which stays behind.
struct Kept<E: End> {
    library: KernelConnection<E::Data>,
    tickets: Option<Arc<Tickets>>,
    /// This connection has kept one.
    has_ticket: bool,
}

impl<E: End> KeySchedule for Keys<E> {
    fn next_sending(&mut self) -> Result<Key, RecordError> {
        match self {
            Keys::Secrets(secrets) => secrets.next_sending(),
            Keys::Library(kept) => updated(kept.library.update_tx_secret()),
        }
    }

    fn next_receiving(&mut self) -> Result<Key, RecordError> {
        match self {
            Keys::Secrets(secrets) => secrets.next_receiving(),
            Keys::Library(kept) => updated(kept.library.update_rx_secret()),
        }
    }

    fn ticket(&mut self, payload: &[u8]) -> Result<(), RecordError> {
        let kept = match self {
            Keys::Secrets(secrets) => return secrets.ticket(payload),
            Keys::Library(kept) => kept,
        };
        let is_wanted = |tickets: &Tickets| !kept.has_ticket || !tickets.are_plenty();
        if !kept.tickets.as_deref().is_some_and(is_wanted) {
            return Ok(());
        }
        kept.has_ticket = true;
        E::ticket(&mut kept.library, payload).map_err(|e| library(&e))
    }
}

/// The key that the library has updated its secret to.
fn updated(
    secret: Result<(u64, ConnectionTrafficSecrets), rustls::Error>,
) -> Result<Key, RecordError> {
    let (sequence, secrets) = secret.map_err(|e| library(&e))?;
    key(&secrets, sequence)
}

fn library(e: &rustls::Error) -> RecordError {
    RecordError::Library(e.to_string())
}

struct Handshaking<E> {
    handshake: Handshake<E>,
    source: Source,
    first: Option<First>,
}

struct Open<E: End> {
    records: Records<Keys<E>>,
    /// What came behind the end of the handshake and has not been opened.
    early: Vec<u8>,
    /// `None` once it has rested.
    agreed: Option<Agreed>,
}

impl<E: End> Open<E> {
    /// It will, once nothing is under way.
    fn rests(&self) -> bool {
        matches!(self.records.schedule(), Keys::Secrets(_))
    }
}

enum Stage<E: End> {
    Handshake(Box<Handshaking<E>>),
    Open(Box<Open<E>>),
    Resting(Box<AtRest<TrafficSecrets>>),
    /// Open, with the records of TLS 1.2.
    Old(Box<OldRecords<E>>),
    /// Ended by an error, which an alert of the handshake says.
    Failed(Option<Box<Handshaking<E>>>),
}

/// One end of one connection. At rest its size counts, too: no stage is longer than a pointer.
pub(super) struct OwnSession<E: End> {
    stage: Stage<E>,
}

impl OwnSession<UnbufferedClientConnection> {
    /// The `ClientHello` is in the outgoing bytes afterwards.
    pub(super) fn client(
        config: Arc<ClientConfig>,
        server: ServerName<'static>,
        source: Source,
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

impl<E: End> OwnSession<E> {
    pub(super) fn new(connection: E, source: Source) -> OwnSession<E> {
        OwnSession {
            stage: Stage::Handshake(Box::new(Handshaking {
                handshake: Handshake::new(connection),
                source,
                first: None,
            })),
        }
    }

    pub(super) fn is_handshaking(&self) -> bool {
        !matches!(
            self.stage,
            Stage::Open(_) | Stage::Resting(_) | Stage::Old(_)
        )
    }

    /// `None` until the handshake is over, and at rest.
    pub(super) fn agreed(&self) -> Option<&Agreed> {
        match &self.stage {
            Stage::Open(open) => open.agreed.as_ref(),
            Stage::Old(old) => Some(&old.agreed),
            _ => None,
        }
    }

    /// Go on with the handshake. What came behind its end is opened by the next
    /// [`OwnSession::receive`].
    pub(super) fn handshake(&mut self, bytes: &[u8]) -> Result<(), SessionError> {
        let Stage::Handshake(state) = &mut self.stage else {
            return Ok(());
        };
        let taken = state.handshake.take(bytes);
        // Handshakes of a thread's connections take turns: what was logged is of this one.
        if let Source::Heard(heard, _) = &state.source
            && let Some(first) = heard.take()
        {
            state.first = Some(first);
        }
        if let Ok(false) = taken {
            return Ok(());
        }
        let nothing = Stage::Failed(None);
        let Stage::Handshake(state) = std::mem::replace(&mut self.stage, nothing) else {
            return Ok(());
        };
        if let Err(e) = taken {
            self.stage = Stage::Failed(Some(state));
            return Err(SessionError::Handshake(e));
        }
        self.open(*state)
    }

    /// The handshake is over: take the secrets.
    fn open(&mut self, state: Handshaking<E>) -> Result<(), SessionError> {
        if state.handshake.is_of_version_1_2() {
            let (connection, agreed, early, unsent) = state.handshake.finish_in_library();
            let records = OldRecords::new(connection, agreed, early, unsent);
            self.stage = Stage::Old(Box::new(records));
            return Ok(());
        }
        let Over {
            agreed,
            secrets,
            kernel,
            early,
            unsent,
        } = state.handshake.finish().map_err(SessionError::Handshake)?;
        let keys = match state.source {
            Source::Library(tickets) => Keys::Library(Box::new(Kept {
                library: kernel,
                tickets,
                has_ticket: false,
            })),
            Source::Heard(_, ours) => {
                let first = state.first.unwrap_or_default();
                Keys::Secrets(TrafficSecrets::new(ours, first, &secrets)?)
            }
        };
        let receiving = key(&secrets.rx.1, secrets.rx.0)?;
        let sending = key(&secrets.tx.1, secrets.tx.0)?;
        let mut records = Records::new(keys, receiving, sending);
        // The handshake's end goes out before anything else.
        records.queue(&unsent);
        self.stage = Stage::Open(Box::new(Open {
            records,
            early,
            agreed: Some(agreed),
        }));
        Ok(())
    }

    /// The open connection; `None` where there is none.
    fn awake(&mut self) -> Result<Option<&mut Open<E>>, RecordError> {
        if matches!(self.stage, Stage::Resting(_)) {
            let nothing = Stage::Failed(None);
            if let Stage::Resting(at_rest) = std::mem::replace(&mut self.stage, nothing) {
                let records = at_rest.wake(Keys::Secrets)?;
                self.stage = Stage::Open(Box::new(Open {
                    records,
                    early: Vec::new(),
                    agreed: None,
                }));
            }
        }
        Ok(match &mut self.stage {
            Stage::Open(open) => Some(open),
            _ => None,
        })
    }

    /// Opens the records in `bytes`, in place. `Ok(true)`: the peer has closed its side.
    pub(super) fn receive<T>(
        &mut self,
        bytes: &mut [u8],
        take: &mut impl FnMut(&[u8]) -> Result<(), T>,
    ) -> Result<bool, Failure<T>> {
        if let Stage::Old(old) = &mut self.stage {
            return old.receive(bytes, take);
        }
        let Some(open) = self.awake()? else {
            return Ok(false);
        };
        if !open.early.is_empty() {
            let mut early = std::mem::take(&mut open.early);
            if open.records.receive(&mut early, take)? {
                return Ok(true);
            }
        }
        open.records.receive(bytes, take)
    }

    pub(super) fn seal(&mut self, plaintext: &[u8]) {
        let sealed = match &mut self.stage {
            Stage::Old(old) => old.seal(plaintext),
            _ => self.awake().and_then(|open| match open {
                Some(open) => open.records.seal(plaintext),
                None => Ok(()),
            }),
        };
        // Without a key nothing can be sent; the peer's silence will end the call.
        if let Err(e) = sealed {
            tracing::debug!("encryption failed: {e}");
        }
    }

    pub(super) fn close_notify(&mut self) {
        if let Stage::Old(old) = &mut self.stage {
            let _ = old.close_notify();
        } else if let Ok(Some(open)) = self.awake() {
            let _ = open.records.close_notify();
        }
    }

    /// Give up everything that can be made again, if nothing is under way.
    pub(super) fn rest(&mut self) {
        let can_rest =
            |open: &Open<E>| open.rests() && open.early.is_empty() && open.records.can_rest();
        if !matches!(&self.stage, Stage::Open(open) if can_rest(open)) {
            return;
        }
        let nothing = Stage::Failed(None);
        let secrets = |keys| match keys {
            Keys::Secrets(secrets) => Some(secrets),
            Keys::Library(_) => None,
        };
        if let Stage::Open(open) = std::mem::replace(&mut self.stage, nothing)
            && let Some(at_rest) = open.records.rest(secrets)
        {
            self.stage = Stage::Resting(Box::new(at_rest));
        }
    }

    /// See [`Records::fewest_to_come`].
    pub(super) fn fewest_to_come(&self, plaintext: u64) -> u64 {
        match &self.stage {
            Stage::Open(open) if !open.rests() => open.records.fewest_to_come(plaintext),
            // Part of a record may have come.
            Stage::Old(_) => plaintext.saturating_sub(MAX_RECORD as u64),
            // What rests is held, not hurried: every byte wakes.
            _ => 0,
        }
    }

    /// Whether more may be sealed before what waits has been written. The end of a handshake
    /// and the first request then leave in one write.
    pub(super) fn has_room(&self) -> bool {
        match &self.stage {
            Stage::Open(open) if !open.rests() => open.records.outgoing().len() < MAX_PLAINTEXT,
            Stage::Old(old) => old.outgoing().len() < MAX_PLAINTEXT,
            _ => self.outgoing().is_empty(),
        }
    }

    pub(super) fn outgoing(&self) -> &[u8] {
        match &self.stage {
            Stage::Handshake(state) | Stage::Failed(Some(state)) => state.handshake.outgoing(),
            Stage::Open(open) => open.records.outgoing(),
            Stage::Old(old) => old.outgoing(),
            Stage::Resting(_) | Stage::Failed(None) => &[],
        }
    }

    pub(super) fn sent(&mut self, bytes: usize) {
        match &mut self.stage {
            Stage::Handshake(state) | Stage::Failed(Some(state)) => state.handshake.sent(bytes),
            Stage::Open(open) => open.records.sent(bytes),
            Stage::Old(old) => old.sent(bytes),
            Stage::Resting(_) | Stage::Failed(None) => {}
        }
    }
}

#[cfg(test)]
mod tests;
