//! What may be wrong with records, and the alert that reports it to the peer.

use super::{MAX_EMPTY, MAX_KEY_UPDATES, MAX_WARNINGS};

/// Why what the peer sent is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// `bad_record_mac` (RFC 8446 §5.2).
    #[error("a record's authentication tag does not match: it was changed, or is out of order")]
    BadTag,
    /// `record_overflow` (§5.2).
    #[error("a record of {0} bytes, more than TLS allows")]
    TooLong(usize),
    /// The record has 16 bytes or fewer, or a header of its own kind.
    #[error("a record too short to hold a type and a tag")]
    TooShort,
    /// Only `change_cipher_spec` may come in the open (§5).
    #[error("a record of type {0} outside of the handshake")]
    Unprotected(u8),
    /// It has no type (§5.4).
    #[error("a record that holds nothing but padding")]
    OnlyPadding,
    /// A handshake message (§4.6).
    #[error("a message of type {0} that is not allowed after the handshake")]
    Unexpected(u8),
    /// The message has no bytes, or more than 65,535.
    #[error("an empty or oversized handshake message")]
    Handshake,
    /// §5.1.
    #[error("a handshake message cut in two by another record")]
    Interleaved,
    /// §4.6.3, as for the next two.
    #[error("a key update of {0} bytes, not one")]
    KeyUpdate(usize),
    /// `illegal_parameter`.
    #[error("a key update that asks for {0}, which is neither 0 nor 1")]
    KeyUpdateValue(u8),
    /// What follows would be under the old key (§5.1).
    #[error("a key update that is not the last message of its record")]
    KeyUpdateNotLast,
    /// They cost this end and bring nothing.
    #[error("more than {MAX_KEY_UPDATES} key updates without data between them")]
    KeyUpdates,
    /// They do, too.
    #[error("more than {MAX_EMPTY} empty records in a row")]
    Empty,
    /// `user_canceled` without a close_notify after it (§6.1).
    #[error("more than {MAX_WARNINGS} warnings")]
    Warnings,
    /// The alert does not have two bytes (§6).
    #[error("a malformed alert")]
    Alert,
    /// The peer sent the alert of this number (§6.2).
    #[error("the peer's alert {0}")]
    Alerted(u8),
    /// It would wrap (§5.3), or the cipher takes no more records (§5.5).
    #[error("all of a key's sequence numbers are used up")]
    Sequence,
    /// The message is the library's, about a ticket or a key update, for instance.
    #[error("the TLS library refused what the peer sent: {0}")]
    Library(String),
}

impl RecordError {
    /// The alert for the peer (RFC 8446 §6.2); `None`: it knows.
    pub(super) fn alert(&self) -> Option<u8> {
        Some(match self {
            // What is too short for a tag fails to decrypt (§5.2).
            RecordError::BadTag | RecordError::TooShort => 20,
            RecordError::TooLong(_) => 22,
            // §4.6.3.
            RecordError::KeyUpdateValue(_) => 47,
            RecordError::Alert | RecordError::KeyUpdate(_) | RecordError::Library(_) => 50,
            RecordError::Unprotected(_)
            | RecordError::OnlyPadding
            | RecordError::Unexpected(_)
            | RecordError::Handshake
            | RecordError::Interleaved
            // A message before a change of keys ends with its record (§5.1).
            | RecordError::KeyUpdateNotLast
            | RecordError::KeyUpdates
            | RecordError::Empty
            | RecordError::Warnings => 10,
            RecordError::Alerted(_) => return None,
            RecordError::Sequence => 80,
        })
    }
}

/// An error of the records, or of who takes what they hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure<E> {
    /// The peer broke the rules.
    Record(RecordError),
    /// Who takes the plaintext has an error of its own.
    Taker(E),
}

impl<E> From<RecordError> for Failure<E> {
    fn from(e: RecordError) -> Failure<E> {
        Failure::Record(e)
    }
}
