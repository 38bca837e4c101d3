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
pub struct AtRest<R> {
    schedule: R,
    receiving: u64,
    sending: u64,
    update_asked: bool,
    idle: Idle,
    warnings: u8,
}

impl<K> Records<K> {
    /// Whether there is nothing but the keys to keep.
    pub fn can_rest(&self) -> bool {
        self.partial.is_empty()
            && self.handshake.is_empty()
            && self.out.is_empty()
            && !self.closed
            && self.failed.is_none()
    }

    /// Give the keys up, but for what `schedule` keeps of theirs; `None` where that is nothing. What is not written, or
    /// arrived in part, is lost: ask [`Records::can_rest`] before.
    pub fn rest<R>(self, schedule: impl FnOnce(K) -> Option<R>) -> Option<AtRest<R>> {
        Some(AtRest {
            schedule: schedule(self.schedule)?,
            receiving: self.receiving.sequence,
            sending: self.sending.sequence,
            update_asked: self.update_asked,
            idle: self.idle,
            warnings: self.warnings,
        })
    }
}

impl<R: Rekey> AtRest<R> {
    /// As if so many records had gone each way meanwhile: what hours of use leave behind.
    #[cfg(test)]
    pub(in crate::tls) fn age(&mut self, receiving: u64, sending: u64) {
        self.receiving += receiving;
        self.sending += sending;
    }

    /// Go on where [`Records::rest`] left off, with what `schedule` makes of what was kept.
    ///
    /// # Errors
    /// When a key can't be made.
    pub fn wake<K: KeySchedule>(
        self,
        schedule: impl FnOnce(R) -> K,
    ) -> Result<Records<K>, RecordError> {
        let receiving = self.schedule.receiving(self.receiving)?;
        let sending = self.schedule.sending(self.sending)?;
        let mut records = Records::new(schedule(self.schedule), receiving, sending);
        records.update_asked = self.update_asked;
        records.idle = self.idle;
        records.warnings = self.warnings;
        Ok(records)
    }
}
