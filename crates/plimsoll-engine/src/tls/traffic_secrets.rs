//! The traffic secrets of a connection, from which all its keys after the handshake are derived (RFC 8446 §7.2, §7.3):
//! about a hundred bytes that replace a connection object of the TLS library (rustls).
//!
//! The library passes these secrets only to a key log, which [`KeyLogSecrets`] implements. Invariant: secrets are used
//! only if the keys derived from them equal the keys that the library derived for the connection.
//! [`super::own_session`] calls this.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use aws_lc_rs::hkdf::{self, HKDF_SHA256, HKDF_SHA384, KeyType, Prk};
use rustls::{ConnectionTrafficSecrets, ExtractedSecrets, KeyLog};

use super::handshake::key_material;
use super::record::{Cipher, KeyRebuilder, KeySchedule, RecordError, TrafficKey};

/// Labels of the first application traffic secrets in the key log (RFC 9850).
const CLIENT_LABEL: &str = "CLIENT_TRAFFIC_SECRET_0";
const SERVER_LABEL: &str = "SERVER_TRAFFIC_SECRET_0";

/// Length in bytes of the longest hash of a TLS 1.3 suite (SHA-384).
const MAX_SECRET_BYTES: usize = 48;
const MAX_KEY_BYTES: usize = 32;

type PaddedSecret = [u8; MAX_SECRET_BYTES];

/// The end of the connection that belongs to this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LocalEnd {
    Client,
    Server,
}

/// The first application traffic secrets of both directions.
#[derive(Default)]
pub(super) struct InitialSecrets {
    client: Option<PaddedSecret>,
    server: Option<PaddedSecret>,
}

/// A key log that captures the secrets of the handshake in progress, for one thread's connections.
#[derive(Default)]
pub(super) struct KeyLogSecrets(Mutex<InitialSecrets>);

impl KeyLogSecrets {
    /// Takes the secrets logged since the last call; `None` unless both directions were logged.
    pub(super) fn take(&self) -> Option<InitialSecrets> {
        let first = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        (first.client.is_some() && first.server.is_some()).then_some(first)
    }
}

impl KeyLog for KeyLogSecrets {
    fn log(&self, label: &str, _client_random: &[u8], secret: &[u8]) {
        let mut padded = [0; MAX_SECRET_BYTES];
        let Some(room) = padded.get_mut(..secret.len()) else {
            return;
        };
        room.copy_from_slice(secret);
        let mut first = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match label {
            CLIENT_LABEL => first.client = Some(padded),
            SERVER_LABEL => first.server = Some(padded),
            _ => {}
        }
    }

    fn will_log(&self, label: &str) -> bool {
        matches!(label, CLIENT_LABEL | SERVER_LABEL)
    }
}

impl fmt::Debug for KeyLogSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyLogSecrets")
    }
}

/// The current traffic secrets of both directions, with their cipher.
pub(super) struct TrafficSecrets {
    cipher: Cipher,
    ours: LocalEnd,
    sending: PaddedSecret,
    receiving: PaddedSecret,
}

impl TrafficSecrets {
    /// Creates the secrets from the logged ones, if the connection's `extracted` keys are derived from them.
    ///
    /// # Errors
    /// Returns an error if an extracted key is not derived from the logged secrets.
    pub(super) fn new(
        ours: LocalEnd,
        first: InitialSecrets,
        extracted: &ExtractedSecrets,
    ) -> Result<TrafficSecrets, RecordError> {
        let strangers =
            || RecordError::Library("its key log differs from the keys that it uses".to_owned());
        let (sending, receiving) = match ours {
            LocalEnd::Client => (first.client, first.server),
            LocalEnd::Server => (first.server, first.client),
        };
        let (sending, receiving) = sending.zip(receiving).ok_or_else(strangers)?;
        let (cipher, ..) = key_material(&extracted.tx.1)?;
        let secrets = TrafficSecrets {
            cipher,
            ours,
            sending,
            receiving,
        };
        let fits = secrets.matches_key(&secrets.sending, &extracted.tx.1)?
            && secrets.matches_key(&secrets.receiving, &extracted.rx.1)?;
        if fits { Ok(secrets) } else { Err(strangers()) }
    }

    /// Creates secrets in which both directions have the same secret.
    #[cfg(any(test, fuzzing))]
    pub(super) fn with_single_secret(cipher: Cipher, secret: &[u8]) -> TrafficSecrets {
        let mut padded = [0; MAX_SECRET_BYTES];
        padded[..secret.len()].copy_from_slice(secret);
        TrafficSecrets {
            cipher,
            ours: LocalEnd::Client,
            sending: padded,
            receiving: padded,
        }
    }

    fn matches_key(
        &self,
        secret: &PaddedSecret,
        theirs: &ConnectionTrafficSecrets,
    ) -> Result<bool, RecordError> {
        let (cipher, key, iv) = key_material(theirs)?;
        let mut ours = [0; MAX_KEY_BYTES];
        let ours = self.derive_key(secret, &mut ours)?;
        Ok(cipher == self.cipher && ours == key && self.derive_iv(secret)? == iv)
    }

    fn hash(&self) -> hkdf::Algorithm {
        match self.cipher {
            Cipher::Aes256Gcm => HKDF_SHA384,
            Cipher::Aes128Gcm | Cipher::Chacha20Poly1305 => HKDF_SHA256,
        }
    }

    fn expand_secret(
        &self,
        secret: &PaddedSecret,
        label: &[u8],
        into: &mut [u8],
    ) -> Result<(), RecordError> {
        let hash = self.hash();
        let secret = &secret[..hash.len().min(MAX_SECRET_BYTES)];
        expand_label(hash, secret, label, into)
            .ok_or_else(|| RecordError::Library("a key could not be derived".to_owned()))
    }

    fn derive_key<'a>(
        &self,
        secret: &PaddedSecret,
        into: &'a mut [u8; MAX_KEY_BYTES],
    ) -> Result<&'a [u8], RecordError> {
        let key = &mut into[..self.cipher.key_length()];
        self.expand_secret(secret, b"key", key)?;
        Ok(key)
    }

    fn derive_iv(&self, secret: &PaddedSecret) -> Result<[u8; 12], RecordError> {
        let mut iv = [0; 12];
        self.expand_secret(secret, b"iv", &mut iv)?;
        Ok(iv)
    }

    /// Derives the key whose next record has the number `sequence` (RFC 8446 §7.3).
    fn derive_traffic_key(
        &self,
        secret: &PaddedSecret,
        sequence: u64,
    ) -> Result<TrafficKey, RecordError> {
        let mut room = [0; MAX_KEY_BYTES];
        let key = self.derive_key(secret, &mut room)?;
        TrafficKey::new(self.cipher, key, self.derive_iv(secret)?, sequence).ok_or_else(|| {
            RecordError::Library("the key's length does not fit its cipher".to_owned())
        })
    }

    /// Derives the secret that follows `secret` (RFC 8446 §7.2).
    fn derive_next_secret(&self, secret: &PaddedSecret) -> Result<PaddedSecret, RecordError> {
        let mut next = [0; MAX_SECRET_BYTES];
        let length = self.hash().len();
        self.expand_secret(secret, b"traffic upd", &mut next[..length])?;
        Ok(next)
    }
}

impl fmt::Debug for TrafficSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "secrets for {:?}", self.cipher)
    }
}

impl KeySchedule for TrafficSecrets {
    fn next_sending_key(&mut self) -> Result<TrafficKey, RecordError> {
        self.sending = self.derive_next_secret(&self.sending)?;
        self.sending_key(0)
    }

    fn next_receiving_key(&mut self) -> Result<TrafficKey, RecordError> {
        self.receiving = self.derive_next_secret(&self.receiving)?;
        self.receiving_key(0)
    }

    fn process_ticket(&mut self, _payload: &[u8]) -> Result<(), RecordError> {
        match self.ours {
            // Tickets are ignored, because clients whose idle sessions release their memory do not resume sessions.
            LocalEnd::Client => Ok(()),
            LocalEnd::Server => Err(RecordError::Unexpected(super::record::NEW_SESSION_TICKET)),
        }
    }
}

impl KeyRebuilder for TrafficSecrets {
    fn sending_key(&self, sequence: u64) -> Result<TrafficKey, RecordError> {
        self.derive_traffic_key(&self.sending, sequence)
    }

    fn receiving_key(&self, sequence: u64) -> Result<TrafficKey, RecordError> {
        self.derive_traffic_key(&self.receiving, sequence)
    }
}

/// The number of bytes to derive, as a key type of the HKDF library.
struct HkdfLength(usize);

impl KeyType for HkdfLength {
    fn len(&self) -> usize {
        self.0
    }
}

/// Fills `into` with HKDF-Expand-Label without a context (RFC 8446 §7.1); returns `None` if `into` is too long.
fn expand_label(hash: hkdf::Algorithm, secret: &[u8], label: &[u8], into: &mut [u8]) -> Option<()> {
    const LABEL_PREFIX: &[u8] = b"tls13 ";
    let length = u16::try_from(into.len()).ok()?.to_be_bytes();
    let label_length = [u8::try_from(LABEL_PREFIX.len() + label.len()).ok()?];
    let info: [&[u8]; 5] = [&length, &label_length, LABEL_PREFIX, label, &[0]];
    Prk::new_less_safe(hash, secret)
        .expand(&info, HkdfLength(into.len()))
        .ok()?
        .fill(into)
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u8> = hex
            .chars()
            .filter_map(|c| c.to_digit(16).map(|d| d as u8))
            .collect();
        digits
            .chunks(2)
            .map(|pair| pair[0] * 16 + pair[1])
            .collect()
    }

    fn secrets(cipher: Cipher, sending: &str) -> TrafficSecrets {
        TrafficSecrets::with_single_secret(cipher, &bytes(sending))
    }

    #[test]
    fn derived_keys_match_rfc_8448() {
        // RFC 8448 §3: application traffic of client and server.
        for (secret, key, iv) in [
            (
                "9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5",
                "17422dda596ed5d9acd890e3c63f5051",
                "5b78923dee08579033e523d9",
            ),
            (
                "a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643",
                "9f02283b6c9c07efc26bb9f2ac92e356",
                "cf782b88dd83549aadf1e984",
            ),
        ] {
            let secrets = secrets(Cipher::Aes128Gcm, secret);
            let mut room = [0; MAX_KEY_BYTES];
            assert_eq!(
                secrets.derive_key(&secrets.sending, &mut room).unwrap(),
                bytes(key)
            );
            assert_eq!(secrets.derive_iv(&secrets.sending).unwrap()[..], bytes(iv));
        }
    }

    #[test]
    fn debug_output_contains_no_secret() {
        let printed = format!(
            "{:?}",
            secrets(Cipher::Aes128Gcm, &"ab".repeat(MAX_SECRET_BYTES))
        );
        assert!(printed.contains("Aes128Gcm"), "{printed}");
        assert!(
            !printed.contains("171") && !printed.contains("ab"),
            "{printed}"
        );
    }

    #[test]
    fn key_update_changes_one_direction() {
        for cipher in [
            Cipher::Aes128Gcm,
            Cipher::Aes256Gcm,
            Cipher::Chacha20Poly1305,
        ] {
            let mut secrets = secrets(cipher, &"ab".repeat(MAX_SECRET_BYTES));
            let before = secrets.sending;
            secrets.next_sending_key().unwrap();
            let once = secrets.sending;
            secrets.next_sending_key().unwrap();
            assert!(before != once && once != secrets.sending && before != secrets.sending);
            assert_eq!(secrets.receiving, before);
            // The unused end after a shorter hash stays zero.
            let length = secrets.hash().len();
            assert!(secrets.sending[length..].iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn only_complete_secret_pairs_are_captured() {
        let heard = KeyLogSecrets::default();
        assert!(heard.will_log(CLIENT_LABEL) && !heard.will_log("EXPORTER_SECRET"));
        heard.log("CLIENT_HANDSHAKE_TRAFFIC_SECRET", &[], &[1; 32]);
        heard.log(CLIENT_LABEL, &[], &[2; 32]);
        assert!(heard.take().is_none());
        heard.log(CLIENT_LABEL, &[], &[3; 49]);
        heard.log(SERVER_LABEL, &[], &[4; 48]);
        assert!(heard.take().is_none(), "one of them is too long");
        heard.log(CLIENT_LABEL, &[], &[5; 32]);
        heard.log(SERVER_LABEL, &[], &[6; 32]);
        let first = heard.take().expect("both");
        assert_eq!(first.client.unwrap()[..33], [&[5; 32][..], &[0]].concat());
        assert_eq!(format!("{heard:?}"), "KeyLogSecrets");
    }

    #[test]
    fn key_match_covers_cipher_and_iv() {
        use rustls::crypto::cipher::{AeadKey, Iv};
        let secrets = secrets(Cipher::Chacha20Poly1305, &"ab".repeat(32));
        let mut key = [0; MAX_KEY_BYTES];
        secrets.derive_key(&secrets.sending, &mut key).unwrap();
        let iv = secrets.derive_iv(&secrets.sending).unwrap();
        let gives = |cipher: Cipher, key: [u8; MAX_KEY_BYTES], iv: [u8; 12]| {
            let (key, iv) = (AeadKey::from(key), Iv::from(iv));
            let theirs = match cipher {
                Cipher::Aes256Gcm => ConnectionTrafficSecrets::Aes256Gcm { key, iv },
                _ => ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv },
            };
            secrets.matches_key(&secrets.sending, &theirs).unwrap()
        };
        let (mut other_key, mut other_iv) = (key, iv);
        other_key[31] ^= 1;
        other_iv[11] ^= 1;
        assert!(gives(Cipher::Chacha20Poly1305, key, iv));
        assert!(!gives(Cipher::Aes256Gcm, key, iv));
        assert!(!gives(Cipher::Chacha20Poly1305, other_key, iv));
        assert!(!gives(Cipher::Chacha20Poly1305, key, other_iv));
    }
}
