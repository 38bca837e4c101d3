//! Session tickets of one worker's connections, for resumption (RFC 8446 §4.6.1).
//!
//! A ticket is used once, the newest first. The TLS library's own store keeps eight a
//! server, so that all but eight of the connections in flight would have to do a full
//! handshake; this one keeps as many as connections can be in flight. Resuming checks no
//! certificate, so a ticket is as good as what its session's certificates were, and no longer.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustls::NamedGroup;
use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::ServerName;

use super::trust::Learned;
use super::validity::now;

/// A server may send several tickets a connection, so the oldest have to go.
const MAX_TICKETS: usize = 32_768;

/// Tickets for one server: all connections of a run go to the same.
pub(crate) struct Tickets {
    kept: Mutex<Kept>,
    learned: Arc<Learned>,
}

#[derive(Default)]
struct Kept {
    tickets: VecDeque<Dated>,
    /// The session of TLS 1.2, in which one may be resumed again and again (RFC 5077).
    lasting: Option<(Tls12ClientSessionValue, u64)>,
    /// Full handshakes that are still to be made, where a share of them is.
    owed: f64,
    /// The connection that is begun makes one.
    withheld: bool,
}

/// A ticket, and the last second, since 1970, in which it may be used.
type Dated = (Tls13ClientSessionValue, u64);

impl Tickets {
    /// More than connections come up short of: a ticket costs a key derivation, so beyond
    /// this a connection keeps one, as it used one, and not all that a server sends.
    const HIGH_WATER: usize = 256;

    /// Makes an empty store for sessions whose certificates `learned` knows of.
    pub(crate) fn new(learned: Arc<Learned>) -> Tickets {
        let kept = Mutex::default();
        Tickets { kept, learned }
    }

    /// Before a connection is begun, where `share` of them are to make a full handshake: those that do are handed
    /// nothing out. One that has no ticket makes one anyway, and counts, so that over a run the share is what was
    /// asked for.
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
        self.kept().tickets.len() >= Tickets::HIGH_WATER
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // It is whole between any two statements.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClientSessionStore for Tickets {
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

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Tickets are secret.
        write!(f, "{} tickets", self.kept().tickets.len())
    }
}
