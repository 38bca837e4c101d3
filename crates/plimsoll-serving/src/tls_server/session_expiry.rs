//! Limits the resumption of sessions to the lifetime of the client's certificate.
//!
//! Resumption does not verify a certificate (RFC 8446 §2.2): rustls trusts the certificate that the client presented in
//! its first handshake. So every session, stored here or encrypted in a ticket, is stamped with its expiry and with a
//! digest of the CA file that verified its client. After that time, or with another CA, the client gets a full
//! handshake, which verifies its certificate again.

use std::sync::Arc;

use plimsoll_engine::tls::certificate_expiry::unix_now;
use plimsoll_engine::tls::file_rotation::{RotatingVerifier, TrustDigest};
use plimsoll_engine::tls::trust::CertificateObservations;
use rustls::server::{ProducesTickets, StoresServerSessions};

/// A ticketer or session store that stamps its sessions.
#[derive(Debug)]
struct ExpiringStore<T: ?Sized> {
    inner: Arc<T>,
    clients: Arc<RotatingVerifier>,
}

/// Wraps a ticketer. `clients` verifies the clients' certificates; `None` if they present none.
pub(crate) fn wrap_ticketer(
    kept: Arc<dyn ProducesTickets>,
    clients: Option<&Arc<RotatingVerifier>>,
) -> Arc<dyn ProducesTickets> {
    match clients.cloned() {
        Some(clients) => Arc::new(ExpiringStore {
            inner: kept,
            clients,
        }),
        None => kept,
    }
}

/// Wraps a session store in the same way as [`wrap_ticketer`].
pub(crate) fn wrap_session_store(
    kept: Arc<dyn StoresServerSessions>,
    clients: Option<&Arc<RotatingVerifier>>,
) -> Arc<dyn StoresServerSessions> {
    match clients.cloned() {
        Some(clients) => Arc::new(ExpiringStore {
            inner: kept,
            clients,
        }),
        None => kept,
    }
}

impl<T: ?Sized> ExpiringStore<T> {
    fn stamp(&self, session: &[u8]) -> Vec<u8> {
        stamp(
            session,
            self.clients.observations(),
            self.clients.trust_digest(),
        )
    }

    fn remove_stamp_if_valid(&self, dated: &[u8]) -> Option<Vec<u8>> {
        remove_stamp_if_valid(
            dated,
            self.clients.observations(),
            self.clients.trust_digest(),
        )
    }
}

fn stamp(session: &[u8], learned: &CertificateObservations, mark: TrustDigest) -> Vec<u8> {
    [&learned.resumable_until().to_be_bytes()[..], &mark, session].concat()
}

/// Returns the session if its stamp is still valid. Sessions that are resumed from this one inherit its expiry, even if
/// another process created it.
fn remove_stamp_if_valid(
    dated: &[u8],
    learned: &CertificateObservations,
    mark: TrustDigest,
) -> Option<Vec<u8>> {
    let (until, session) = dated.split_first_chunk()?;
    let (known, session) = session.split_first_chunk::<{ size_of::<TrustDigest>() }>()?;
    let until = u64::from_be_bytes(*until);
    if until < unix_now() || *known != mark {
        return None;
    }
    learned.record_resumption(until);
    Some(session.to_vec())
}

impl ProducesTickets for ExpiringStore<dyn ProducesTickets> {
    fn enabled(&self) -> bool {
        self.inner.enabled()
    }

    fn lifetime(&self) -> u32 {
        self.inner.lifetime()
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.inner.encrypt(&self.stamp(plain))
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        self.remove_stamp_if_valid(&self.inner.decrypt(ticket)?)
    }
}

impl StoresServerSessions for ExpiringStore<dyn StoresServerSessions> {
    fn put(&self, key: Vec<u8>, session: Vec<u8>) -> bool {
        let session = self.stamp(&session);
        self.inner.put(key, session)
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.remove_stamp_if_valid(&self.inner.get(key)?)
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.remove_stamp_if_valid(&self.inner.take(key)?)
    }

    fn can_cache(&self) -> bool {
        self.inner.can_cache()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_resumes_until_expiry_under_same_ca() {
        let mark = TrustDigest::from([7; 8]);
        let until = unix_now() + 60;
        let begun = CertificateObservations::default();
        begun.record_resumption(until);
        let session = stamp(b"session", &begun, mark);
        let learned = CertificateObservations::default();
        assert_eq!(
            remove_stamp_if_valid(&session, &learned, TrustDigest::default()),
            None
        );
        let back = remove_stamp_if_valid(&session, &learned, mark);
        assert_eq!(back, Some(b"session".to_vec()));
        assert_eq!(learned.resumable_until(), until);
        let over = [&(unix_now() - 1).to_be_bytes()[..], &mark, b"session"].concat();
        assert_eq!(remove_stamp_if_valid(&over, &learned, mark), None);
        assert_eq!(remove_stamp_if_valid(&session[..15], &learned, mark), None);
    }
}
