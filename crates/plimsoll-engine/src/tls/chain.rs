//! A cache that verifies a server's certificate chain once for all connections that present it.
//!
//! The result depends only on the chain's bytes, the name and the time. With many handshakes per second, verification
//! is a third of a client's work. The handshake signature, which proves possession of the key, is still verified every
//! time. Only plans with `tls.chain = "once"` use this.

use std::sync::{Mutex, PoisonError};

use rustls::Error;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};

use super::certificate_expiry::not_after;

/// Maximum age of a cached result in seconds.
const MAX_VERDICT_AGE_S: u64 = 60;

/// A verified chain with the time of its verification.
#[derive(Debug)]
struct ChainVerdict {
    chain: Vec<CertificateDer<'static>>,
    name: ServerName<'static>,
    verified_at: u64,
    /// The second from which the result is no longer valid, since certificates may expire.
    valid_until: u64,
}

/// A cache of the last verified chain.
#[derive(Debug, Default)]
pub(super) struct ChainCache(Mutex<Option<ChainVerdict>>);

impl ChainCache {
    /// Returns the cached result for a chain, or verifies it with `check`.
    pub(super) fn check(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: UnixTime,
        check: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        // A panic of another thread leaves the cache consistent.
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let seconds = now.as_secs();
        let is_it = |known: &ChainVerdict| known.matches(end_entity, intermediates, name, seconds);
        if last.as_ref().is_some_and(is_it) {
            return Ok(());
        }
        check()?;
        let chain = std::iter::once(end_entity).chain(intermediates);
        let ends = chain.clone().filter_map(|c| not_after(c)).min();
        let until = ends.map_or(seconds, |last| (last + 1).min(seconds + MAX_VERDICT_AGE_S));
        *last = Some(ChainVerdict {
            chain: chain.map(|c| c.clone().into_owned()).collect(),
            name: name.to_owned(),
            verified_at: seconds,
            valid_until: until,
        });
        Ok(())
    }
}

impl ChainVerdict {
    fn matches(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        now: u64,
    ) -> bool {
        let chain = std::iter::once(end_entity).chain(intermediates);
        (self.verified_at..self.valid_until).contains(&now)
            && self.name == *name
            && self.chain.len() == 1 + intermediates.len()
            && self
                .chain
                .iter()
                .zip(chain)
                .all(|(a, b)| a.as_ref() == b.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_chain_verdict_matches_and_expires() {
        let der = |byte: u8| CertificateDer::from(vec![byte; 3]);
        let name = |text: &'static str| ServerName::try_from(text).unwrap();
        let known = ChainVerdict {
            chain: vec![der(1), der(2)],
            name: name("a.test"),
            verified_at: 1000,
            valid_until: 1060,
        };
        let is =
            |leaf, above: &[CertificateDer<'_>], host, now| known.matches(&leaf, above, &host, now);
        assert!(is(der(1), &[der(2)], name("a.test"), 1000));
        assert!(is(der(1), &[der(2)], name("a.test"), 1059));
        assert!(!is(der(1), &[der(2)], name("a.test"), 1060));
        assert!(!is(der(1), &[der(2)], name("a.test"), 999));
        assert!(!is(der(1), &[der(2)], name("b.test"), 1000));
        assert!(!is(der(3), &[der(2)], name("a.test"), 1000));
        assert!(!is(der(1), &[der(3)], name("a.test"), 1000));
        assert!(!is(der(1), &[], name("a.test"), 1000));
        assert!(!is(der(1), &[der(2), der(2)], name("a.test"), 1000));
    }
}
