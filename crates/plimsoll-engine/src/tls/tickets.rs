//! Session tickets of one worker's connections, for resumption (RFC 8446 §4.6.1). The TLS library stores and
//! takes them here.
//!
//! A ticket is used once, the newest first. The TLS library's own store keeps eight per server, so all but
//! eight of the connections being made would need a full handshake; this store keeps as many as connections
//! can be made at once. Resumption verifies no certificate, so a ticket expires with the certificates of its
//! session.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::NamedGroup;
use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::ServerName;

use super::trust::CertificateObservations;
use super::validity::now;

/// Maximum number of tickets; a server may send several per connection, so the oldest are dropped.
const MAX_TICKETS: usize = 32_768;

/// Tickets for one server, since all connections of a run use the same target.
pub(crate) struct TicketStore {
    kept: Mutex<StoredTickets>,
    learned: Arc<CertificateObservations>,
}

#[derive(Default)]
struct StoredTickets {
    tickets: VecDeque<DatedTicket>,
    /// The TLS 1.2 session, which may be resumed repeatedly (RFC 5077).
    lasting: Option<(Tls12ClientSessionValue, u64)>,
    /// Number of full handshakes still to be made, where the plan asks for a share of them.
    owed: f64,
    /// Whether the connection being started makes a full handshake.
    withheld: bool,
}

/// A ticket, and the last second since 1970 in which it may be used.
type DatedTicket = (Tls13ClientSessionValue, u64);

impl TicketStore {
    /// Above this number of tickets a connection stores only one, since it used one: each stored ticket costs
    /// a key derivation.
    const HIGH_WATER: usize = 256;

    /// Makes an empty store; `learned` tells until when the sessions' certificates are valid.
    pub(crate) fn new(learned: Arc<CertificateObservations>) -> TicketStore {
        let kept = Mutex::default();
        TicketStore { kept, learned }
    }

    /// Called before a connection is started, where the plan asks that the share `share` of connections make a full
    /// handshake: these get no ticket. A connection that finds no ticket counts as one of them, so that the share is
    /// right over a run.
    pub(crate) fn begin(&self, share: f64) {
        let mut kept = self.kept();
        let has_none = kept.tickets.is_empty() && kept.lasting.is_none();
        kept.owed += share;
        kept.withheld = kept.owed >= 0.5;
        if kept.withheld || has_none {
            kept.owed -= 1.0;
        }
    }

    pub(crate) fn are_plenty(&self) -> bool {
        self.kept().tickets.len() >= TicketStore::HIGH_WATER
    }

    fn kept(&self) -> MutexGuard<'_, StoredTickets> {
        // A panic of another thread leaves the state consistent.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientSessionStore for TicketStore {
    fn set_kx_hint(&self, _server: ServerName<'static>, _group: NamedGroup) {}

    fn kx_hint(&self, _server: &ServerName<'_>) -> Option<NamedGroup> {
        None
    }

    fn set_tls12_session(&self, _server: ServerName<'static>, session: Tls12ClientSessionValue) {
        self.kept().lasting = Some((session, self.learned.until()));
    }

    fn tls12_session(&self, _server: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        let kept = self.kept();
        let lasting = kept.lasting.as_ref().filter(|_| !kept.withheld);
        let usable = lasting.filter(|(_, until)| now() <= *until);
        usable.map(|(session, _)| session.clone())
    }

    fn remove_tls12_session(&self, _server: &ServerName<'static>) {
        self.kept().lasting = None;
    }

    fn insert_tls13_ticket(&self, _server: ServerName<'static>, ticket: Tls13ClientSessionValue) {
        let mut kept = self.kept();
        if kept.tickets.len() >= MAX_TICKETS {
            kept.tickets.pop_front();
        }
        kept.tickets.push_back((ticket, self.learned.until()));
    }

    fn take_tls13_ticket(&self, _server: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        let (now, mut kept) = (now(), self.kept());
        if kept.withheld {
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
        write!(f, "{} tickets", self.kept().tickets.len())
    }
}
