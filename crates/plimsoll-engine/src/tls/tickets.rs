//! Session tickets of one worker's connections, for resumption (RFC 8446 §4.6.1). The TLS library stores its tickets
//! here and takes them from here.
//!
//! Each ticket is used once, the newest first. The TLS library's own store keeps eight per server, so all but eight of
//! the connections that are being established would need a full handshake; this store keeps as many as connections can
//! be established at the same time. Resumption does not verify certificates, so a ticket expires together with the
//! certificates of its session.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::NamedGroup;
use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::ServerName;

use super::certificate_expiry::unix_now;
use super::trust::CertificateObservations;

/// Maximum number of tickets; a server may send several per connection, so the oldest are dropped.
const MAX_TICKETS: usize = 32_768;

/// Tickets for one server, since all connections of a run use the same target.
pub(crate) struct TicketStore {
    stored: Mutex<StoredTickets>,
    observations: Arc<CertificateObservations>,
}

#[derive(Default)]
struct StoredTickets {
    tickets: VecDeque<DatedTicket>,
    /// The TLS 1.2 session, which may be resumed repeatedly (RFC 5077).
    tls12_session: Option<(Tls12ClientSessionValue, u64)>,
    /// Number of full handshakes that are due, if the plan requires a share of them.
    full_handshakes_due: f64,
    /// Whether the connection that is being started gets no ticket, so that it makes a full handshake.
    is_withheld: bool,
}

/// A ticket, and the last second (since 1970) in which it may be used.
type DatedTicket = (Tls13ClientSessionValue, u64);

impl TicketStore {
    /// Number of tickets above which a connection stores only one ticket, to replace the one that it used: each stored
    /// ticket costs a key derivation.
    const HIGH_WATER_TICKETS: usize = 256;

    /// Creates an empty store; `observations` tells how long the sessions' certificates are valid.
    pub(crate) fn new(observations: Arc<CertificateObservations>) -> TicketStore {
        let kept = Mutex::default();
        TicketStore {
            stored: kept,
            observations,
        }
    }

    /// Called before a connection is started if the plan requires that the share `share` of connections make a full
    /// handshake; these connections get no ticket. A connection that finds no ticket counts towards the share, so that
    /// the share is right over the whole run.
    pub(crate) fn prepare_connection(&self, share: f64) {
        let mut kept = self.lock_stored();
        let has_none = kept.tickets.is_empty() && kept.tls12_session.is_none();
        kept.full_handshakes_due += share;
        kept.is_withheld = kept.full_handshakes_due >= 0.5;
        if kept.is_withheld || has_none {
            kept.full_handshakes_due -= 1.0;
        }
    }

    pub(crate) fn is_above_high_water(&self) -> bool {
        self.lock_stored().tickets.len() >= TicketStore::HIGH_WATER_TICKETS
    }

    fn lock_stored(&self) -> MutexGuard<'_, StoredTickets> {
        // A panic of another thread leaves the state consistent.
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientSessionStore for TicketStore {
    fn set_kx_hint(&self, _server: ServerName<'static>, _group: NamedGroup) {}

    fn kx_hint(&self, _server: &ServerName<'_>) -> Option<NamedGroup> {
        None
    }

    fn set_tls12_session(&self, _server: ServerName<'static>, session: Tls12ClientSessionValue) {
        self.lock_stored().tls12_session = Some((session, self.observations.resumable_until()));
    }

    fn tls12_session(&self, _server: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        let kept = self.lock_stored();
        let lasting = kept.tls12_session.as_ref().filter(|_| !kept.is_withheld);
        let usable = lasting.filter(|(_, until)| unix_now() <= *until);
        usable.map(|(session, _)| session.clone())
    }

    fn remove_tls12_session(&self, _server: &ServerName<'static>) {
        self.lock_stored().tls12_session = None;
    }

    fn insert_tls13_ticket(&self, _server: ServerName<'static>, ticket: Tls13ClientSessionValue) {
        let mut kept = self.lock_stored();
        if kept.tickets.len() >= MAX_TICKETS {
            kept.tickets.pop_front();
        }
        kept.tickets
            .push_back((ticket, self.observations.resumable_until()));
    }

    fn take_tls13_ticket(&self, _server: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        let (now, mut kept) = (unix_now(), self.lock_stored());
        if kept.is_withheld {
            return None;
        }
        while let Some((ticket, until)) = kept.tickets.pop_back() {
            if now <= until {
                return Some(ticket);
            }
        }
        None
    }
}

impl fmt::Debug for TicketStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Tickets are secrets and must not be printed.
        write!(f, "{} tickets", self.lock_stored().tickets.len())
    }
}
