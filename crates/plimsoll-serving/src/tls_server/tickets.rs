//! Session tickets under keys that the processes of one server share, so that a session made by one is resumed by
//! another (RFC 8446 §4.6.1).
//!
//! The processes share a seed. Keys are derived from it and from the time, so that all processes rotate them at once
//! without exchanging messages. A single process uses rustls's own tickets, whose keys never leave the process.

use std::fmt;
use std::sync::{PoisonError, RwLock};

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};
use aws_lc_rs::rand;
use rustls::pki_types::UnixTime;
use rustls::server::ProducesTickets;

use crate::ServeError;

/// Time in seconds for which a key encrypts new tickets. For the same time afterwards it still decrypts them.
const KEY_ROTATION_SECONDS: u64 = 6 * 60 * 60;
/// Length in bytes of the number of the rotation period, with which every ticket begins.
const PERIOD_NUMBER_LEN: usize = size_of::<u64>();
const KEY_LEN: usize = 32;

/// The secret that processes share to accept each other's tickets. It is never printed, because it decrypts resumed
/// sessions.
#[derive(Clone, PartialEq, Eq)]
pub struct TicketSeed([u8; TicketSeed::LEN]);

impl TicketSeed {
    /// Length of the seed, in bytes.
    pub const LEN: usize = 32;

    /// Creates a random seed.
    ///
    /// # Errors
    /// When the system has no random bytes.
    pub fn random() -> Result<TicketSeed, ServeError> {
        let mut seed = [0; TicketSeed::LEN];
        rand::fill(&mut seed)
            .map_err(|Unspecified| ServeError::Tls("no random bytes for tickets".to_owned()))?;
        Ok(TicketSeed(seed))
    }

    /// Returns the secret bytes, for another process.
    pub fn as_bytes(&self) -> &[u8; TicketSeed::LEN] {
        &self.0
    }
}

impl From<[u8; TicketSeed::LEN]> for TicketSeed {
    fn from(seed: [u8; TicketSeed::LEN]) -> TicketSeed {
        TicketSeed(seed)
    }
}

impl fmt::Debug for TicketSeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TicketSeed(…)")
    }
}

/// A ticketer: encrypts and decrypts tickets.
pub(super) struct SharedTicketer {
    seed: Prk,
    /// The keys of the current rotation period and of the previous one.
    keys: RwLock<Option<TicketKeys>>,
    now: fn() -> u64,
}

struct TicketKeys {
    period: u64,
    current: RandomizedNonceKey,
    previous: RandomizedNonceKey,
}

impl SharedTicketer {
    pub(super) fn new(seed: &TicketSeed) -> SharedTicketer {
        SharedTicketer {
            seed: Salt::new(HKDF_SHA256, b"plimsoll tickets").extract(&seed.0),
            keys: RwLock::new(None),
            now: || UnixTime::now().as_secs(),
        }
    }

    fn derive_key(&self, period: u64) -> Result<RandomizedNonceKey, Unspecified> {
        struct KeyLength;
        impl KeyType for KeyLength {
            fn len(&self) -> usize {
                KEY_LEN
            }
        }
        let mut key = [0; KEY_LEN];
        let info = period.to_be_bytes();
        self.seed.expand(&[&info], KeyLength)?.fill(&mut key)?;
        RandomizedNonceKey::new(&AES_256_GCM, &key)
    }

    /// Calls `work` with the current keys. Derives them first if a new rotation period has begun.
    fn with_current_keys<T>(&self, work: impl FnOnce(&TicketKeys) -> Option<T>) -> Option<T> {
        let period = (self.now)() / KEY_ROTATION_SECONDS;
        let known = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(keys) = known.as_ref().filter(|keys| keys.period == period) {
            return work(keys);
        }
        drop(known);
        let made = TicketKeys {
            period,
            current: self.derive_key(period).ok()?,
            previous: self.derive_key(period.wrapping_sub(1)).ok()?,
        };
        let mut known = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        work(known.insert(made))
    }
}

impl ProducesTickets for SharedTicketer {
    fn enabled(&self) -> bool {
        true
    }

    /// Returns the lifetime in seconds that clients are told. A ticket may be rejected earlier; its client then gets a
    /// full handshake.
    fn lifetime(&self) -> u32 {
        2 * KEY_ROTATION_SECONDS as u32
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.with_current_keys(|keys| {
            let period = keys.period.to_be_bytes();
            let mut sealed = plain.to_vec();
            let nonce = keys
                .current
                .seal_in_place_append_tag(Aad::from(period), &mut sealed)
                .ok()?;
            Some([&period[..], nonce.as_ref(), &sealed].concat())
        })
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let (period, rest) = ticket.split_first_chunk::<PERIOD_NUMBER_LEN>()?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_LEN>()?;
        self.with_current_keys(|keys| {
            let key = match keys.period.checked_sub(u64::from_be_bytes(*period))? {
                0 => &keys.current,
                1 => &keys.previous,
                _ => return None,
            };
            let mut plain = sealed.to_vec();
            let nonce = Nonce::assume_unique_for_key(*nonce);
            let length = key
                .open_in_place(nonce, Aad::from(*period), &mut plain)
                .ok()?
                .len();
            plain.truncate(length);
            Some(plain)
        })
    }
}

impl fmt::Debug for SharedTicketer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedTickets(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seed: [u8; 32], now: fn() -> u64) -> SharedTicketer {
        SharedTicketer {
            now,
            ..SharedTicketer::new(&TicketSeed(seed))
        }
    }

    #[test]
    fn ticket_decrypts_only_with_same_seed() {
        let (one, other, stranger) = (at([1; 32], || 0), at([1; 32], || 0), at([2; 32], || 0));
        let ticket = one.encrypt(b"a session").unwrap();
        assert_ne!(ticket, one.encrypt(b"a session").unwrap());
        assert_eq!(other.decrypt(&ticket).as_deref(), Some(&b"a session"[..]));
        assert_eq!(stranger.decrypt(&ticket), None);
        for n in 0..ticket.len() {
            assert_eq!(other.decrypt(&ticket[..n]), None, "{n}");
            let mut wrong = ticket.clone();
            wrong[n] ^= 1;
            assert_eq!(other.decrypt(&wrong), None, "{n}");
        }
    }

    #[test]
    fn ticket_key_is_valid_one_extra_period() {
        let ticket = at([1; 32], || 10 * KEY_ROTATION_SECONDS)
            .encrypt(b"x")
            .unwrap();
        let opened = |now| at([1; 32], now).decrypt(&ticket).is_some();
        assert!(opened(|| 11 * KEY_ROTATION_SECONDS - 1));
        assert!(opened(|| 12 * KEY_ROTATION_SECONDS - 1));
        assert!(!opened(|| 12 * KEY_ROTATION_SECONDS));
        assert!(!opened(|| 10 * KEY_ROTATION_SECONDS - 1));
    }

    #[test]
    fn ticket_keys_rotate_while_in_use() {
        use std::sync::atomic::{AtomicU64, Ordering};
        static NOW: AtomicU64 = AtomicU64::new(0);
        let tickets = at([1; 32], || NOW.load(Ordering::Relaxed));
        let ticket = tickets.encrypt(b"x").unwrap();
        for (now, opened) in [
            (KEY_ROTATION_SECONDS, true),
            (2 * KEY_ROTATION_SECONDS, false),
        ] {
            NOW.store(now, Ordering::Relaxed);
            assert_eq!(tickets.decrypt(&ticket).is_some(), opened, "{now}");
        }
    }

    #[test]
    fn debug_output_hides_ticket_seed() {
        let seed = TicketSeed::random().unwrap();
        assert_eq!(format!("{seed:?}"), "TicketSeed(…)");
    }
}
