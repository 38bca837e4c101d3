//! The sum that every run is checked by: each call that was due is counted once.

use serde::Serialize;

use crate::record::StageRecord;

/// Every call that was due is in exactly one count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CountCheck {
    /// Arrivals whose time had come.
    pub due: u64,
    /// Calls that ended ok.
    pub ok: u64,
    /// Calls that ended with an error.
    pub errors: u64,
    /// Sent, and given up because the run ended.
    pub cut_off: u64,
    /// Due, and given up before they were sent.
    pub not_started: u64,
    /// Sent and not ended when the record ends; 0 in a run that ended in good order.
    pub in_flight: u64,
    /// Due and not sent when the record ends; 0 in a run that ended in good order.
    pub backlog: u64,
    /// `due` is the sum of the others.
    pub matches: bool,
}

impl CountCheck {
    /// Adds the calls of a stage.
    pub(super) fn add(&mut self, record: &StageRecord) {
        self.due += record.due;
        self.ok += record.ok();
        self.errors += record.errors();
        self.cut_off += record.calls_cut_off();
        self.not_started += record.not_started;
    }

    /// How many calls are in a count.
    pub(super) fn accounted(&self) -> u64 {
        let ended = self.ok + self.errors + self.cut_off;
        ended + self.not_started + self.in_flight + self.backlog
    }
}
