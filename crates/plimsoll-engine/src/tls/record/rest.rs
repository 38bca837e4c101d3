//! A connection's records while nothing happens: no keys, no buffers, only what the keys
//! are made of again when they are needed, and the numbers of the next records.

use super::{Idle, Key, KeySchedule, RecordError, Records};

/// A schedule that can make the keys in use again.
pub trait Rekey: KeySchedule {
    /// The key in use for sending, at record `sequence`.
    ///
    /// # Errors
    /// When it can't be made.
    fn sending(&self, sequence: u64) -> Result<Key, RecordError>;

    /// The key in use for receiving, at record `sequence`.
    ///
    /// # Errors
    /// When it can't be made.
    fn receiving(&self, sequence: u64) -> Result<Key, RecordError>;
}

/// See the module's text.
#[derive(Debug)]
pub struct AtRest<K> {
    schedule: K,
    receiving: u64,
    sending: u64,
    update_asked: bool,
    idle: Idle,
    warnings: u8,
}

impl<K: Rekey> Records<K> {
    /// Whether there is nothing but the keys to keep.
    pub fn can_rest(&self) -> bool {
        self.partial.is_empty()
            && self.handshake.is_empty()
            && self.out.is_empty()
            && !self.closed
            && self.failed.is_none()
    }

    /// Give the keys up. What is not written, or arrived in part, is lost: ask
    /// [`Records::can_rest`] before.
    pub fn rest(self) -> AtRest<K> {
        AtRest {
            schedule: self.schedule,
            receiving: self.receiving.sequence,
            sending: self.sending.sequence,
            update_asked: self.update_asked,
            idle: self.idle,
            warnings: self.warnings,
        }
    }
}

impl<K: Rekey> AtRest<K> {
    /// A connection whose next records have these numbers.
    pub fn new(schedule: K, receiving: u64, sending: u64) -> AtRest<K> {
        AtRest {
            schedule,
            receiving,
            sending,
            update_asked: false,
            idle: Idle::default(),
            warnings: 0,
        }
    }

    /// As if so many records had gone each way meanwhile: what hours of use leave behind.
    #[cfg(test)]
    pub(in crate::tls) fn age(&mut self, receiving: u64, sending: u64) {
        self.receiving += receiving;
        self.sending += sending;
    }

    /// Go on where [`Records::rest`] left off.
    ///
    /// # Errors
    /// When a key can't be made.
    pub fn wake(self) -> Result<Records<K>, RecordError> {
        let receiving = self.schedule.receiving(self.receiving)?;
        let sending = self.schedule.sending(self.sending)?;
        let mut records = Records::new(self.schedule, receiving, sending);
        records.update_asked = self.update_asked;
        records.idle = self.idle;
        records.warnings = self.warnings;
        Ok(records)
    }
}
