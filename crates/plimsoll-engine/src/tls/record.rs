//! The TLS 1.3 record layer (RFC 8446 §5) after the handshake. Records are decrypted in the worker's read buffer, so a
//! connection stores only its keys and at most one incomplete record.
//!
//! Invariant: no content of a record is used before its tag has been checked, and after the first error no further
//! record is decrypted. The TLS library performs the handshake and provides keys and tickets ([`KeySchedule`]).
//!
//! This file is long because opening and sealing share the record format.

mod error;
mod resting_records;

use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};

pub use error::{ReceiveError, RecordError};
pub use resting_records::{KeyRebuilder, RestingRecords};

/// Length of a record's header in bytes: type, version, length (RFC 8446 §5.1).
pub(super) const HEADER_BYTES: usize = 5;
/// Maximum size of a record's plaintext in bytes (§5.1).
pub const MAX_PLAINTEXT_BYTES: usize = 1 << 14;
/// Maximum size of a record's ciphertext in bytes, including padding, type and tag (§5.2).
const MAX_CIPHERTEXT_BYTES: usize = MAX_PLAINTEXT_BYTES + 256;
/// Maximum size of a record in bytes, including its header.
pub(super) const MAX_RECORD_BYTES: usize = HEADER_BYTES + MAX_CIPHERTEXT_BYTES;
const TAG_BYTES: usize = 16;
/// Maximum size in bytes of a handshake message after the handshake, the same as in the TLS library.
const MAX_HANDSHAKE_BYTES: usize = 0xffff;
/// Maximum number of consecutive records without content. This limit and the next two are those of the TLS library.
const MAX_EMPTY_RECORDS: u8 = 32;
/// Maximum number of consecutive key updates without data between them.
const MAX_KEY_UPDATES: u8 = 32;
/// Maximum number of `user_canceled` alerts without the close_notify that must follow.
const MAX_USER_CANCELED_ALERTS: u8 = 4;
/// Maximum number of records per AES-GCM key: up to 2^24.5 full-size records keep the safety margin (§5.5).
const MAX_AES_RECORDS: u64 = 1 << 24;

pub(super) const CHANGE_CIPHER_SPEC: u8 = 20;
pub(super) const ALERT: u8 = 21;
pub(super) const HANDSHAKE: u8 = 22;
pub(super) const APPLICATION_DATA: u8 = 23;

pub(super) const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;

const CLOSE_NOTIFY: u8 = 0;
const USER_CANCELED: u8 = 90;

/// The holder of the traffic secrets and of the ticket store.
pub trait KeySchedule {
    /// Returns the next key for sending (RFC 8446 §7.2).
    ///
    /// # Errors
    /// Returns an error if the key cannot be derived.
    fn next_sending_key(&mut self) -> Result<TrafficKey, RecordError>;
    /// Returns the next key for receiving.
    ///
    /// # Errors
    /// Returns an error if the key cannot be derived.
    fn next_receiving_key(&mut self) -> Result<TrafficKey, RecordError>;
    /// Processes a `NewSessionTicket` (§4.6.1), without the message's header.
    ///
    /// # Errors
    /// Returns an error if the ticket is invalid, or if this end must not receive one.
    fn process_ticket(&mut self, payload: &[u8]) -> Result<(), RecordError>;
}

/// The supported ciphers of TLS 1.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    /// AES with 128-bit keys in GCM, used with SHA-256.
    Aes128Gcm,
    /// AES with 256-bit keys in GCM, used with SHA-384.
    Aes256Gcm,
    /// ChaCha20 with Poly1305, used with SHA-256.
    Chacha20Poly1305,
}

impl Cipher {
    /// Returns the length of the cipher's keys in bytes.
    pub fn key_length(self) -> usize {
        match self {
            Cipher::Aes128Gcm => 16,
            Cipher::Aes256Gcm | Cipher::Chacha20Poly1305 => 32,
        }
    }
}

/// A traffic key with its IV and the number of the next record (§5.3).
pub struct TrafficKey {
    aead: LessSafeKey,
    iv: [u8; 12],
    sequence: u64,
    max_records: u64,
}

impl std::fmt::Debug for TrafficKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "key at record {}", self.sequence)
    }
}

impl TrafficKey {
    /// Creates a key; returns `None` if its length does not fit the cipher.
    pub fn new(cipher: Cipher, key: &[u8], iv: [u8; 12], sequence: u64) -> Option<TrafficKey> {
        let (algorithm, most) = match cipher {
            Cipher::Aes128Gcm => (&aead::AES_128_GCM, MAX_AES_RECORDS),
            Cipher::Aes256Gcm => (&aead::AES_256_GCM, MAX_AES_RECORDS),
            Cipher::Chacha20Poly1305 => (&aead::CHACHA20_POLY1305, u64::MAX),
        };
        Some(TrafficKey {
            aead: LessSafeKey::new(UnboundKey::new(algorithm, key).ok()?),
            iv,
            sequence,
            max_records: most,
        })
    }

    #[inline]
    fn nonce(&mut self) -> Result<Nonce, RecordError> {
        let mut nonce = self.iv;
        for (byte, number) in nonce[4..].iter_mut().zip(self.sequence.to_be_bytes()) {
            *byte ^= number;
        }
        // A sequence number must never be reused, so the last one is never used.
        self.sequence = self.sequence.checked_add(1).ok_or(RecordError::Sequence)?;
        Ok(Nonce::assume_unique_for_key(nonce))
    }

    /// Decrypts a complete record in place; returns its content, type and padding.
    #[inline]
    pub(super) fn open<'a>(&mut self, record: &'a mut [u8]) -> Result<&'a [u8], RecordError> {
        let (header, body) = record.split_at_mut(HEADER_BYTES);
        let nonce = self.nonce()?;
        let inner = self
            .aead
            .open_in_place(nonce, Aad::from(&*header), body)
            .map_err(|_| RecordError::BadTag)?;
        Ok(inner)
    }

    /// Encrypts `content`, followed by `kind` (its type and padding), as a record at the end of `out`.
    #[inline]
    pub(super) fn seal(
        &mut self,
        content: &[u8],
        kind: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), RecordError> {
        let nonce = self.nonce()?;
        let length = content.len() + kind.len() + TAG_BYTES;
        let header = [
            APPLICATION_DATA,
            3,
            3,
            (length >> 8) as u8,
            (length & 0xff) as u8,
        ];
        out.reserve(HEADER_BYTES + length);
        out.extend_from_slice(&header);
        let start = out.len();
        out.extend_from_slice(content);
        out.extend_from_slice(kind);
        let tag = self
            .aead
            .seal_in_place_separate_tag(nonce, Aad::from(&header), &mut out[start..])
            .map_err(|_| RecordError::Sequence)?;
        out.extend_from_slice(tag.as_ref());
        Ok(())
    }
}

/// Counts of received records that carry no data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct DatalessRecordCounts {
    /// Consecutive records without content.
    empty: u8,
    /// Key updates since the last data.
    key_updates: u8,
}

/// The records of one connection in both directions.
#[derive(Debug)]
pub struct TlsRecords<K> {
    schedule: K,
    receiving: TrafficKey,
    sending: TrafficKey,
    /// An incomplete record.
    partial: Vec<u8>,
    /// An incomplete handshake message, which continues in a later record.
    handshake: Vec<u8>,
    out: Vec<u8>,
    written: usize,
    /// Whether the peer has requested that we update our sending key.
    update_requested: bool,
    idle: DatalessRecordCounts,
    warnings: u8,
    peer_closed: bool,
    failed: Option<RecordError>,
}

impl<K: KeySchedule> TlsRecords<K> {
    /// Creates a record layer; the sequence number of each key is that of its next record.
    pub fn new(schedule: K, receiving: TrafficKey, sending: TrafficKey) -> TlsRecords<K> {
        TlsRecords {
            schedule,
            receiving,
            sending,
            partial: Vec::new(),
            handshake: Vec::new(),
            out: Vec::new(),
            written: 0,
            update_requested: false,
            idle: DatalessRecordCounts::default(),
            warnings: 0,
            peer_closed: false,
            failed: None,
        }
    }

    /// Returns the key schedule.
    pub fn key_schedule(&self) -> &K {
        &self.schedule
    }

    /// Decrypts every complete record in `bytes` in place and passes its content to `take`. Returns true if the peer
    /// has closed its side; later bytes are ignored (§6.1).
    ///
    /// # Errors
    /// Returns an error for invalid records, and the same error from then on. An alert for the peer is then pending.
    pub fn receive<E>(
        &mut self,
        bytes: &mut [u8],
        take: &mut impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<bool, ReceiveError<E>> {
        if let Some(e) = &self.failed {
            return Err(ReceiveError::Record(e.clone()));
        }
        let result = self.receive_all(bytes, take);
        if let Err(ReceiveError::Record(e)) = &result {
            self.failed = Some(e.clone());
            self.partial = Vec::new();
            self.handshake = Vec::new();
            if let Some(alert) = e.alert() {
                // The alert is dropped if it cannot be sealed.
                let _ = self.push_record(ALERT, &[2, alert]);
            }
        }
        result
    }

    fn receive_all<E>(
        &mut self,
        bytes: &mut [u8],
        take: &mut impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<bool, ReceiveError<E>> {
        let mut at = 0;
        while at < bytes.len() && !self.peer_closed {
            let rest = &mut bytes[at..];
            if self.partial.is_empty() {
                match record_length(rest)? {
                    Some(length) if length <= rest.len() => {
                        self.open(&mut rest[..length], take)?;
                        at += length;
                    }
                    length => {
                        self.partial.reserve_exact(length.unwrap_or(HEADER_BYTES));
                        self.partial.extend_from_slice(rest);
                        at = bytes.len();
                    }
                }
                continue;
            }
            let whole = record_length(&self.partial)?.unwrap_or(HEADER_BYTES);
            let missing = (whole - self.partial.len()).min(rest.len());
            self.partial.extend_from_slice(&rest[..missing]);
            at += missing;
            // When the header is complete, the length of the record is known.
            if record_length(&self.partial)? == Some(self.partial.len()) {
                let mut record = std::mem::take(&mut self.partial);
                self.open(&mut record, take)?;
            }
        }
        Ok(self.peer_closed)
    }

    /// Decrypts one complete record.
    fn open<E>(
        &mut self,
        record: &mut [u8],
        take: &mut impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), ReceiveError<E>> {
        if record[0] != APPLICATION_DATA {
            return Err(RecordError::Unprotected(record[0]).into());
        }
        let inner = self.receiving.open(record)?;
        // The type is the last non-zero byte; the bytes after it are padding (§5.4).
        let end = inner
            .iter()
            .rposition(|byte| *byte != 0)
            .ok_or(RecordError::OnlyPadding)?;
        let (kind, content) = (inner[end], &inner[..end]);
        if inner.len() > MAX_PLAINTEXT_BYTES + 1 {
            return Err(RecordError::TooLong(inner.len()).into());
        }
        if kind != HANDSHAKE && !self.handshake.is_empty() {
            return Err(RecordError::Interleaved.into());
        }
        match kind {
            APPLICATION_DATA => {
                self.idle.key_updates = 0;
                if content.is_empty() {
                    return Ok(self.count_empty_record()?);
                }
                self.idle.empty = 0;
                take(content).map_err(ReceiveError::Consumer)
            }
            HANDSHAKE => Ok(self.process_handshake_messages(content)?),
            ALERT => Ok(self.process_alert(content)?),
            CHANGE_CIPHER_SPEC => Err(RecordError::Unexpected(CHANGE_CIPHER_SPEC).into()),
            other => Err(RecordError::Unexpected(other).into()),
        }
    }

    /// Counts a record without content.
    #[cold]
    fn count_empty_record(&mut self) -> Result<(), RecordError> {
        if self.idle.empty == MAX_EMPTY_RECORDS {
            return Err(RecordError::Empty);
        }
        self.idle.empty += 1;
        Ok(())
    }

    fn process_alert(&mut self, content: &[u8]) -> Result<(), RecordError> {
        self.idle.empty = 0;
        match *content {
            [_, CLOSE_NOTIFY] => {
                self.peer_closed = true;
                Ok(())
            }
            // The peer must send a close_notify after this alert (§6.1).
            [_, USER_CANCELED] => {
                if self.warnings == MAX_USER_CANCELED_ALERTS {
                    return Err(RecordError::Warnings);
                }
                self.warnings += 1;
                Ok(())
            }
            [_, alert] => Err(RecordError::AlertReceived(alert)),
            _ => Err(RecordError::Alert),
        }
    }

    fn process_handshake_messages(&mut self, content: &[u8]) -> Result<(), RecordError> {
        if content.is_empty() {
            return Err(RecordError::Handshake);
        }
        self.idle.empty = 0;
        let mut all = std::mem::take(&mut self.handshake);
        all.extend_from_slice(content);
        let mut rest = all.as_slice();
        while let [kind, a, b, c, after @ ..] = rest {
            let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
            // Invalid messages are rejected before the rest of the message has arrived.
            match *kind {
                KEY_UPDATE if length != 1 => return Err(RecordError::KeyUpdate(length)),
                NEW_SESSION_TICKET | KEY_UPDATE => {}
                other => return Err(RecordError::Unexpected(other)),
            }
            if length > MAX_HANDSHAKE_BYTES {
                return Err(RecordError::Handshake);
            }
            let Some((payload, next)) = after.split_at_checked(length) else {
                break;
            };
            rest = next;
            match (*kind, payload) {
                (KEY_UPDATE, [asked]) => self.process_key_update(*asked, rest.is_empty())?,
                _ => self.schedule.process_ticket(payload)?,
            }
        }
        let done = all.len() - rest.len();
        if done == all.len() {
            // An idle connection must not keep a buffer, so none is stored.
            return Ok(());
        }
        all.drain(..done);
        self.handshake = all;
        Ok(())
    }

    /// Switches to the peer's next key. The peer's next record uses it, so no message may follow in this record (§5.1).
    fn process_key_update(&mut self, asked: u8, is_last: bool) -> Result<(), RecordError> {
        if !is_last {
            return Err(RecordError::KeyUpdateNotLast);
        }
        if self.idle.key_updates == MAX_KEY_UPDATES {
            return Err(RecordError::KeyUpdates);
        }
        self.idle.key_updates += 1;
        match asked {
            0 => {}
            1 => self.update_requested = true,
            other => return Err(RecordError::KeyUpdateValue(other)),
        }
        self.receiving = self.schedule.next_receiving_key()?;
        Ok(())
    }

    /// Encrypts plaintext, in as many records as necessary.
    ///
    /// # Errors
    /// Returns an error if no further key can be derived.
    pub fn seal(&mut self, plaintext: &[u8]) -> Result<(), RecordError> {
        let update = std::mem::take(&mut self.update_requested);
        if update && !plaintext.is_empty() {
            self.update_sending_key()?;
        }
        for piece in plaintext.chunks(MAX_PLAINTEXT_BYTES) {
            if self.sending.sequence >= self.sending.max_records {
                self.update_sending_key()?;
            }
            self.push_record(APPLICATION_DATA, piece)?;
        }
        Ok(())
    }

    /// Queues bytes of the handshake that must be sent before any record.
    pub fn queue(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// Adds close_notify (§6.1) to the outgoing bytes.
    ///
    /// # Errors
    /// Returns an error if no further key can be derived.
    pub fn queue_close_notify(&mut self) -> Result<(), RecordError> {
        self.push_record(ALERT, &[1, CLOSE_NOTIFY])
    }

    fn update_sending_key(&mut self) -> Result<(), RecordError> {
        // The 0 at the end requests no update in return (§4.6.3).
        self.push_record(HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 0])?;
        self.sending = self.schedule.next_sending_key()?;
        Ok(())
    }

    fn push_record(&mut self, kind: u8, content: &[u8]) -> Result<(), RecordError> {
        self.sending.seal(content, &[kind], &mut self.out)
    }

    /// Encrypts a record for which `inner` contains the content, type and padding, for tests of the receiving side.
    ///
    /// # Errors
    /// Returns an error if no further key can be derived.
    #[doc(hidden)]
    pub fn seal_inner_plaintext(&mut self, inner: &[u8]) -> Result<(), RecordError> {
        self.sending.seal(inner, &[], &mut self.out)
    }

    /// Returns the minimum number of bytes that must still arrive before `plaintext` bytes are available, assuming
    /// records of maximum size.
    pub fn min_incoming_bytes(&self, plaintext: u64) -> u64 {
        let records = plaintext.div_ceil(MAX_PLAINTEXT_BYTES as u64);
        let wire = plaintext + records * (HEADER_BYTES + 1 + TAG_BYTES) as u64;
        wire.saturating_sub(self.partial.len() as u64)
    }

    /// Returns the encrypted bytes that have not been written.
    pub fn pending_output(&self) -> &[u8] {
        &self.out[self.written..]
    }

    /// Removes the first `bytes` bytes of [`TlsRecords::pending_output`], which have been written.
    pub fn mark_sent(&mut self, bytes: usize) {
        self.written += bytes;
        if self.written == self.out.len() {
            // An idle connection must not keep a buffer, so it is freed.
            (self.out, self.written) = (Vec::new(), 0);
        }
    }
}

/// Returns the length of the record at the beginning of `bytes`, including its header; `None` until the header is
/// complete.
fn record_length(bytes: &[u8]) -> Result<Option<usize>, RecordError> {
    let [kind, _, _, high, low, ..] = *bytes else {
        return Ok(None);
    };
    let length = usize::from(u16::from_be_bytes([high, low]));
    if kind != APPLICATION_DATA {
        return Err(RecordError::Unprotected(kind));
    }
    if length > MAX_CIPHERTEXT_BYTES {
        return Err(RecordError::TooLong(length));
    }
    if length < TAG_BYTES + 1 {
        return Err(RecordError::TooShort);
    }
    Ok(Some(HEADER_BYTES + length))
}

#[cfg(test)]
mod tests;
