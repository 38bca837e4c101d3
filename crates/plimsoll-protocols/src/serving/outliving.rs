//! Sessions of clients that showed a certificate are resumed for as long as it is valid.
//!
//! Resuming checks no certificate (RFC 8446 §2.2): the library takes a resumed client by the one
//! that it once showed. So every session, kept here or sealed in a ticket, says until when it is
//! good; after that the client has a full handshake, which checks.

use std::sync::Arc;

use plimsoll_engine::tls::trust::Learned;
use plimsoll_engine::tls::validity::now;
use rustls::server::{ProducesTickets, StoresServerSessions};

/// Tickets or sessions, and what is known of the certificates behind them.
#[derive(Debug)]
struct Until<T: ?Sized> {
    kept: Arc<T>,
    learned: Arc<Learned>,
}

/// `learned`: of the clients' certificates; `None`: they show none.
pub(super) fn tickets(
    kept: Arc<dyn ProducesTickets>,
    learned: Option<&Arc<Learned>>,
) -> Arc<dyn ProducesTickets> {
    match learned.cloned() {
        Some(learned) => Arc::new(Until { kept, learned }),
        None => kept,
    }
}

/// As [`tickets`].
pub(super) fn sessions(
    kept: Arc<dyn StoresServerSessions>,
    learned: Option<&Arc<Learned>>,
) -> Arc<dyn StoresServerSessions> {
    match learned.cloned() {
        Some(learned) => Arc::new(Until { kept, learned }),
        None => kept,
    }
}

impl<T: ?Sized> Until<T> {
    fn dated(&self, session: &[u8]) -> Vec<u8> {
        [&self.learned.until().to_be_bytes()[..], session].concat()
    }
}

/// The session, where it is still good. What follows from it is no better than it is, in whichever
/// process it began.
fn undated(dated: &[u8], learned: &Learned) -> Option<Vec<u8>> {
    let (until, session) = dated.split_first_chunk()?;
    let until = u64::from_be_bytes(*until);
    if until < now() {
        return None;
    }
    learned.rests_until(until);
    Some(session.to_vec())
}

impl ProducesTickets for Until<dyn ProducesTickets> {
    fn enabled(&self) -> bool {
        self.kept.enabled()
    }

    fn lifetime(&self) -> u32 {
        self.kept.lifetime()
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.kept.encrypt(&self.dated(plain))
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        undated(&self.kept.decrypt(ticket)?, &self.learned)
    }
}

impl StoresServerSessions for Until<dyn StoresServerSessions> {
    fn put(&self, key: Vec<u8>, session: Vec<u8>) -> bool {
        let session = self.dated(&session);
        self.kept.put(key, session)
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        undated(&self.kept.get(key)?, &self.learned)
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        undated(&self.kept.take(key)?, &self.learned)
    }

    fn can_cache(&self) -> bool {
        self.kept.can_cache()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_given_back_until_its_moment() {
        let at = |until: u64| [&until.to_be_bytes()[..], b"session"].concat();
        let learned = Learned::default();
        let until = now() + 60;
        assert_eq!(undated(&at(until), &learned), Some(b"session".to_vec()));
        assert_eq!(learned.until(), until);
        assert_eq!(undated(&at(now() - 1), &learned), None);
        assert_eq!(undated(&[0; 7], &learned), None);
    }
}
