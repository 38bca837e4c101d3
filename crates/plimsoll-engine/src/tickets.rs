//! Session tickets of one worker's connections, for resumption (RFC 8446 §4.6.1).
//!
//! A ticket is used once, the newest first. The TLS library's own store keeps eight a
//! server, so that all but eight of the connections in flight would have to do a full
//! handshake; this one keeps as many as connections can be in flight.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use rustls::NamedGroup;
use rustls::client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::ServerName;

/// A server may send several tickets a connection, so the oldest have to go.
const MOST_TICKETS: usize = 32_768;

/// Tickets for one server: all connections of a run go to the same.
#[derive(Default)]
pub(crate) struct Tickets(Mutex<VecDeque<Tls13ClientSessionValue>>);

impl Tickets {
    /// More than connections come up short of: a ticket costs a key derivation, so beyond
    /// this a connection keeps one, as it used one, and not all that a server sends.
    const PLENTY: usize = 256;

    pub(crate) fn are_plenty(&self) -> bool {
        self.with(|kept| kept.len() >= Tickets::PLENTY)
    }

    fn with<T>(&self, act: impl FnOnce(&mut VecDeque<Tls13ClientSessionValue>) -> T) -> T {
        // What is kept is whole between any two statements.
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ClientSessionStore for Tickets {
    fn set_kx_hint(&self, _server: ServerName<'static>, _group: NamedGroup) {}

    fn kx_hint(&self, _server: &ServerName<'_>) -> Option<NamedGroup> {
        None
    }

    fn set_tls12_session(&self, _server: ServerName<'static>, _: Tls12ClientSessionValue) {}

    fn tls12_session(&self, _server: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        None
    }

    fn remove_tls12_session(&self, _server: &ServerName<'static>) {}

    fn insert_tls13_ticket(&self, _server: ServerName<'static>, ticket: Tls13ClientSessionValue) {
        self.with(|kept| {
            if kept.len() >= MOST_TICKETS {
                kept.pop_front();
            }
            kept.push_back(ticket);
        });
    }

    fn take_tls13_ticket(&self, _server: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.with(|kept| kept.pop_back())
    }
}

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Tickets are secret.
        write!(f, "{} tickets", self.with(|kept| kept.len()))
    }
}
