//! Accumulates the statistics in a run's intervals about the generator and its machine.

use std::borrow::Cow;
use std::time::Duration;

use super::{BUSY_RATIO, INTERVAL_LENGTH};
use crate::metrics::outcome::FailureSource;
use crate::records::record::{StageRecord, TimeHistogram};
use crate::runs::run::header::RunHeader;
use crate::runs::run::interval::IntervalRecord;
use crate::runs::run::machine::{LatenessCause, MachineUse};

/// Statistics of the generator and its machine over the intervals of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GeneratorStats {
    /// Intervals with calls that are not warm-up.
    pub intervals: u64,
    /// Intervals, except for the last one, in which a worker was above [`BUSY_RATIO`].
    busy_intervals: u64,
    /// The largest share of a core that a worker used (0–1).
    pub busiest_ratio: f64,
    /// Intervals at least a quarter longer than planned.
    pub stalled_intervals: u64,
    /// The length of the longest interval; the plan is [`INTERVAL_LENGTH`].
    pub longest_interval: Duration,
    /// Totals of the machine over all intervals.
    pub machine: MachineUse,
    /// Total length of the intervals with data about the machine; zero: there are none.
    pub machine_data_length: Duration,
    /// Intervals in which no call succeeded and connections failed.
    pub gone_intervals: u64,
    /// How late arrivals were noticed, except in intervals in which the target disappeared, was gone or came back.
    pacing: TimeHistogram,
    /// The last interval's data, not yet counted because the target may have disappeared in that interval.
    pending: Option<PendingInterval>,
}

/// Data of an interval, which is discarded if the next interval shows that the target is gone.
#[derive(Clone, Debug, Default, PartialEq)]
struct PendingInterval {
    pacing: TimeHistogram,
    is_busy: bool,
}

impl GeneratorStats {
    /// Adds an interval with calls that are not warm-up, of the run with this header.
    pub fn add(&mut self, header: &RunHeader, interval: &IntervalRecord) {
        self.intervals += 1;
        self.longest_interval = self.longest_interval.max(interval.length);
        if let Some(machine) = &interval.machine {
            self.machine.add(machine);
            self.machine_data_length += interval.length;
        }
        if interval.length > INTERVAL_LENGTH + INTERVAL_LENGTH / 4 {
            self.stalled_intervals += 1;
        }
        let counted = interval.stages.iter();
        let counted = counted.filter(|(stage, _)| !header.is_warmup(*stage));
        let records: Vec<&StageRecord> = counted.map(|(_, record)| record).collect();
        if is_target_gone(&records) {
            self.gone_intervals += 1;
            self.pending = None;
            return;
        }
        let mut now = PendingInterval::default();
        for record in records {
            now.pacing.merge(&record.pacing);
        }
        // The last interval often lasts only a few milliseconds, which is too short for a meaningful share.
        if interval.length >= INTERVAL_LENGTH / 2 {
            self.busiest_ratio = self.busiest_ratio.max(interval.busiest_worker_ratio);
            now.is_busy = interval.busiest_worker_ratio >= BUSY_RATIO;
        }
        match self.pending.take() {
            // This is the first interval, or one in which the target came back.
            None if self.gone_intervals > 0 => self.pending = Some(PendingInterval::default()),
            None => self.pending = Some(now),
            Some(before) => {
                self.pacing.merge(&before.pacing);
                self.busy_intervals += u64::from(before.is_busy);
                self.pending = Some(now);
            }
        }
    }

    /// Returns the number of intervals in which a worker was above [`BUSY_RATIO`] while the target was up.
    pub fn busy_interval_count(&self) -> u64 {
        self.busy_intervals + u64::from(self.pending.as_ref().is_some_and(|last| last.is_busy))
    }

    /// Returns how late arrivals were noticed while the target was up. `record`: the record of the whole run.
    pub(super) fn pacing_while_target_up<'a>(
        &self,
        record: &'a StageRecord,
    ) -> Cow<'a, TimeHistogram> {
        if self.gone_intervals == 0 {
            return Cow::Borrowed(&record.pacing);
        }
        let mut pacing = self.pacing.clone();
        if let Some(last) = &self.pending {
            pacing.merge(&last.pacing);
        }
        Cow::Owned(pacing)
    }

    /// Returns why the load was late, as the end of a sentence; empty where that is not known.
    pub(super) fn describe_lateness_cause(&self) -> String {
        if self.machine_data_length.is_zero() {
            return String::new();
        }
        let seconds = self.machine_data_length.as_secs_f64();
        format!(
            "; {}",
            LatenessCause::determine(&self.machine, seconds, self.busiest_ratio)
        )
    }
}

/// Returns whether the target was gone: no call succeeded and connections failed. Such an interval has no times.
fn is_target_gone(records: &[&StageRecord]) -> bool {
    let is_link = |outcome: crate::Outcome| outcome.failure_source() == Some(FailureSource::Link);
    let failed = |record: &&StageRecord| {
        let mut all = record.outcomes.iter().chain(record.connect_failures.iter());
        all.any(|(outcome, _)| is_link(outcome))
    };
    records.iter().all(|record| record.ok_calls() == 0) && records.iter().any(failed)
}
