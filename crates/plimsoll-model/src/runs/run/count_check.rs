//! The check that every run must pass: each call that was due is counted exactly once.

use serde::Serialize;

use crate::records::record::StageRecord;

/// Counts of calls; each call that was due is in exactly one of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CountCheck {
    /// Calls that were due.
    pub due: u64,
    /// Calls that ended ok.
    pub ok: u64,
    /// Calls that ended with an error.
    pub errors: u64,
    /// Calls that were sent, and abandoned because the run ended.
    pub cut_off: u64,
    /// Calls that were due, and abandoned before they were sent.
    pub not_started: u64,
    /// Calls that were sent and had not ended when recording stopped; 0 in a run that ended normally.
    pub in_flight: u64,
    /// Calls that were due and not sent when recording stopped; 0 in a run that ended normally.
    pub backlog: u64,
    /// Whether `due` is the sum of the others.
    pub matches: bool,
}

impl CountCheck {
    /// Adds the calls of a stage.
    pub(super) fn add(&mut self, record: &StageRecord) {
        self.due += record.due;
        self.ok += record.ok_calls();
        self.errors += record.errors();
        self.cut_off += record.cut_off_call_count();
        self.not_started += record.not_started;
    }

    /// Returns the sum of the counts that make up `due`.
    pub(super) fn accounted_calls(&self) -> u64 {
        let ended = self.ok + self.errors + self.cut_off;
        ended + self.not_started + self.in_flight + self.backlog
    }
}
