//! Session tickets of one worker's connections, for resumption (RFC 8446 §4.6.1).
//!
//! A ticket is used once, the newest first. The TLS library's own store keeps eight a
//! server, so that all but eight of the connections in flight would have to do a full
//! handshake; this one keeps as many as connections can be in flight. Resuming checks no
//! certificate, so a ticket is as good as what its session's certificates were, and no longer.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
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
    kept: Mutex<VecDeque<Dated>>,
    /// Of TLS 1.2, in which a session may be resumed again and again (RFC 5077).
    lasting: Mutex<Option<(Tls12ClientSessionValue, u64)>>,
    /// Full handshakes that are still to be made, where a share of them is.
    owed: Mutex<f64>,
    /// The connection that is begun makes one.
    withheld: AtomicBool,
    learned: Arc<Learned>,
}

/// A ticket, and the last second, since 1970, in which it may be used.
type Dated = (Tls13ClientSessionValue, u64);

impl Tickets {
    /// More than connections come up short of: a ticket costs a key derivation, so beyond
    /// this a connection keeps one, as it used one, and not all that a server sends.
    const PLENTY: usize = 256;

    /// Before a connection is begun, where `share` of them are to make a full handshake: those that do are handed
    /// nothing out. One that has no ticket makes one anyway, and counts, so that over a run the share is what was
    /// asked for.
    pub(crate) fn begin(&self, share: f64) {
        let has_none = self.with(|kept| kept.is_empty()) && self.lasting().is_none();
        let mut owed = self.owed.lock().unwrap_or_else(PoisonError::into_inner);
        *owed += share;
        let is_full = *owed >= 0.5;
        if is_full || has_none {
            *owed -= 1.0;
        }
        self.withheld.store(is_full, Ordering::Relaxed);
    }

    fn are_withheld(&self) -> bool {
        self.withheld.load(Ordering::Relaxed)
    }

    /// For sessions whose certificates `learned` knows of.
    pub(crate) fn new(learned: Arc<Learned>) -> Tickets {
        Tickets {
            kept: Mutex::default(),
            lasting: Mutex::default(),
            owed: Mutex::default(),
            withheld: AtomicBool::new(false),
            learned,
        }
    }

    pub(crate) fn are_plenty(&self) -> bool {
        self.with(|kept| kept.len() >= Tickets::PLENTY)
    }

    fn lasting(&self) -> MutexGuard<'_, Option<(Tls12ClientSessionValue, u64)>> {
        self.lasting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, act: impl FnOnce(&mut VecDeque<Dated>) -> T) -> T {
        // What is kept is whole between any two statements.
        act(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ClientSessionStore for Tickets {
    fn set_kx_hint(&self, _server: ServerName<'static>, _group: NamedGroup) {}

    fn kx_hint(&self, _server: &ServerName<'_>) -> Option<NamedGroup> {
        None
    }

    fn set_tls12_session(&self, _server: ServerName<'static>, session: Tls12ClientSessionValue) {
        *self.lasting() = Some((session, self.learned.until()));
    }

    fn tls12_session(&self, _server: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        let lasting = self.lasting();
        let usable = |(_, until): &&(_, u64)| !self.are_withheld() && now() <= *until;
        let usable = lasting.as_ref().filter(usable);
        usable.map(|(session, _)| session.clone())
    }

    fn remove_tls12_session(&self, _server: &ServerName<'static>) {
        *self.lasting() = None;
    }

    fn insert_tls13_ticket(&self, _server: ServerName<'static>, ticket: Tls13ClientSessionValue) {
        self.with(|kept| {
            if kept.len() >= MAX_TICKETS {
                kept.pop_front();
            }
            kept.push_back((ticket, self.learned.until()));
        });
    }

    fn take_tls13_ticket(&self, _server: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        if self.are_withheld() {
            return None;
        }
        let now = now();
        self.with(|kept| {
            let usable = |(_, until): &Dated| now <= *until;
            while let Some(last) = kept.pop_back() {
                if usable(&last) {
                    return Some(last.0);
                }
            }
            None
        })
    }
}

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Tickets are secret.
        write!(f, "{} tickets", self.with(|kept| kept.len()))
    }
}
