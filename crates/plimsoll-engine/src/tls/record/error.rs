//! The errors of records, and the alerts that report them to the peer.

use super::{MAX_EMPTY_RECORDS, MAX_KEY_UPDATES, MAX_USER_CANCELED_ALERTS};

/// The reason why received records are rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// `bad_record_mac` (RFC 8446 §5.2).
    #[error("a record's authentication tag does not match: it was changed, or is out of order")]
    BadTag,
    /// `record_overflow` (§5.2).
    #[error("a record of {0} bytes, more than TLS allows")]
    TooLong(usize),
    /// The record is too short for a type and a tag: 16 bytes or fewer.
    #[error("a record too short to hold a type and a tag")]
    TooShort,
    /// The record is not encrypted (§5).
    #[error("a record of type {0} outside of the handshake")]
    Unprotected(u8),
    /// The record has no type (§5.4).
    #[error("a record that holds nothing but padding")]
    OnlyPadding,
    /// A message or record type that is not allowed after the handshake (§4.6).
    #[error("a message of type {0} that is not allowed after the handshake")]
    Unexpected(u8),
    /// The message is empty, or longer than 65,535 bytes.
    #[error("an empty or oversized handshake message")]
    Handshake,
    /// Another record type interrupts a handshake message (§5.1).
    #[error("a handshake message cut in two by another record")]
    Interleaved,
    /// The key update has a wrong length (§4.6.3).
    #[error("a key update of {0} bytes, not one")]
    KeyUpdate(usize),
    /// The key update has an undefined value: `illegal_parameter` (§4.6.3).
    #[error("a key update that asks for {0}, which is neither 0 nor 1")]
    KeyUpdateValue(u8),
    /// Data follows the key update in its record, under the old key (§5.1).
    #[error("a key update that is not the last message of its record")]
    KeyUpdateNotLast,
    /// Too many key updates, which cost CPU without carrying data.
    #[error("more than {MAX_KEY_UPDATES} key updates without data between them")]
    KeyUpdates,
    /// Too many empty records, which cost CPU without carrying data.
    #[error("more than {MAX_EMPTY_RECORDS} empty records in a row")]
    Empty,
    /// Too many `user_canceled` alerts without a close_notify (§6.1).
    #[error("more than {MAX_USER_CANCELED_ALERTS} warnings")]
    Warnings,
    /// The alert does not have two bytes (§6).
    #[error("a malformed alert")]
    Alert,
    /// The peer sent the alert of this number (§6.2).
    #[error("the peer's alert {0}")]
    AlertReceived(u8),
    /// The sequence number would wrap around (§5.3), or the cipher's limit is reached (§5.5).
    #[error("all of a key's sequence numbers are used up")]
    Sequence,
    /// The library rejected a message, such as a ticket or a key update.
    #[error("the TLS library refused what the peer sent: {0}")]
    Library(String),
}

impl RecordError {
    /// Returns the number of the alert for the peer (RFC 8446 §6.2); `None` if the peer sent an alert itself.
    pub(super) fn alert(&self) -> Option<u8> {
        Some(match self {
            // A record too short for a tag counts as failed decryption (§5.2).
            RecordError::BadTag | RecordError::TooShort => 20,
            RecordError::TooLong(_) => 22,
            // An undefined value is an illegal parameter (§4.6.3).
            RecordError::KeyUpdateValue(_) => 47,
            RecordError::Alert | RecordError::KeyUpdate(_) | RecordError::Library(_) => 50,
            RecordError::Unprotected(_)
            | RecordError::OnlyPadding
            | RecordError::Unexpected(_)
            | RecordError::Handshake
            | RecordError::Interleaved
            // The message before a key change must be the last of its record (§5.1).
            | RecordError::KeyUpdateNotLast
            | RecordError::KeyUpdates
            | RecordError::Empty
            | RecordError::Warnings => 10,
            RecordError::AlertReceived(_) => return None,
            RecordError::Sequence => 80,
        })
    }
}

/// An error of received records, or of the consumer of their content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReceiveError<E> {
    /// The peer violated the protocol.
    Record(RecordError),
    /// The consumer of the plaintext failed.
    Consumer(E),
}

impl<E> From<RecordError> for ReceiveError<E> {
    fn from(e: RecordError) -> ReceiveError<E> {
        ReceiveError::Record(e)
    }
}
