//! The record state of an idle connection: no keys and no buffers, only the secrets from which keys are rebuilt, and
//! the numbers of the next records.

use super::{DatalessRecordCounts, KeySchedule, RecordError, TlsRecords, TrafficKey};

/// A key schedule that can rebuild the current keys.
pub trait KeyRebuilder: KeySchedule {
    /// Returns the current key for sending, whose next record has the number `sequence`.
    ///
    /// # Errors
    /// Returns an error if the key cannot be derived.
    fn sending_key(&self, sequence: u64) -> Result<TrafficKey, RecordError>;

    /// Returns the current key for receiving, whose next record has the number `sequence`.
    ///
    /// # Errors
    /// Returns an error if the key cannot be derived.
    fn receiving_key(&self, sequence: u64) -> Result<TrafficKey, RecordError>;
}

/// The record state of a resting connection, without keys and buffers.
#[derive(Debug)]
pub struct RestingRecords<R> {
    schedule: R,
    receiving: u64,
    sending: u64,
    update_requested: bool,
    idle: DatalessRecordCounts,
    warnings: u8,
}

impl<K> TlsRecords<K> {
    /// Returns whether the session is open and no data is pending, so that resting loses nothing.
    pub fn can_rest(&self) -> bool {
        self.partial.is_empty()
            && self.handshake.is_empty()
            && self.out.is_empty()
            && !self.peer_closed
            && self.failed.is_none()
    }

    /// Drops the keys, and stores the secrets that `schedule` returns for rebuilding them; `None` if it returns none.
    /// Pending data is lost: check [`TlsRecords::can_rest`] first.
    pub fn into_resting<R>(
        self,
        schedule: impl FnOnce(K) -> Option<R>,
    ) -> Option<RestingRecords<R>> {
        Some(RestingRecords {
            schedule: schedule(self.schedule)?,
            receiving: self.receiving.sequence,
            sending: self.sending.sequence,
            update_requested: self.update_requested,
            idle: self.idle,
            warnings: self.warnings,
        })
    }
}

impl<R: KeyRebuilder> RestingRecords<R> {
    /// Advances the record numbers as if that many records had been exchanged, as after hours of use.
    #[cfg(test)]
    pub(in crate::tls) fn age(&mut self, receiving: u64, sending: u64) {
        self.receiving += receiving;
        self.sending += sending;
    }

    /// Restores the records after [`TlsRecords::into_resting`], with the key schedule that `schedule` creates.
    ///
    /// # Errors
    /// Returns an error if a key cannot be derived.
    pub fn wake<K: KeySchedule>(
        self,
        schedule: impl FnOnce(R) -> K,
    ) -> Result<TlsRecords<K>, RecordError> {
        let receiving = self.schedule.receiving_key(self.receiving)?;
        let sending = self.schedule.sending_key(self.sending)?;
        let mut records = TlsRecords::new(schedule(self.schedule), receiving, sending);
        records.update_requested = self.update_requested;
        records.idle = self.idle;
        records.warnings = self.warnings;
        Ok(records)
    }
}
