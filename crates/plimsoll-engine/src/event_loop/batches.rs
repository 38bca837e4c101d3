//! Alternating batches of a closed loop: its clients send calls for a fixed time while the other loads of the ladder
//! (the other compared variants) are paused.

use std::time::Duration;

use plimsoll_model::Time;
use plimsoll_model::plan::batch_start_window;
use plimsoll_model::records::record::BatchTotals;
use plimsoll_model::records::recorder::Recorder;
use plimsoll_model::schedule::{Arrival, ArrivalIter};

use super::worker_share::WorkerShare;
use crate::host::resources::BatchMeter;

/// The batches of a closed loop; no call is started between them.
pub(crate) struct ClosedLoopBatches {
    beginnings: ArrivalIter,
    /// The next batch; `None` after the last.
    next: Option<Arrival>,
    slot: Duration,
    /// End of the current batch: no call is started after it.
    pub(super) batch_end: Time,
    /// The time at which all calls of the last batch had ended; `None` while calls may be in flight.
    ended_at: Option<Time>,
    /// The number of the batch that began last.
    number: u64,
    meter: BatchMeter,
}

impl ClosedLoopBatches {
    pub(super) fn from_share(share: &WorkerShare) -> Option<Box<ClosedLoopBatches>> {
        let slot = share.load.batches?.slot?;
        // All workers take part in every batch, so the schedule of batches is not divided among them.
        let mut beginnings = share.schedule.share(0, 1);
        Some(Box::new(ClosedLoopBatches {
            next: beginnings.next(),
            beginnings,
            slot,
            batch_end: Time::ZERO,
            ended_at: Some(Time::ZERO),
            number: 0,
            meter: BatchMeter::default(),
        }))
    }

    pub(crate) fn set_meter(&mut self, meter: BatchMeter) {
        self.meter = meter;
    }

    /// Returns when the next batch begins, in a load that began at `start`.
    pub(super) fn next_batch_start(&self, start: Time) -> Time {
        (self.next).map_or(Time::NEVER, |next| start.plus_nanos(next.at))
    }

    /// Records that all calls of the current batch have ended, at `now` or earlier.
    pub(super) fn record_calls_ended(&mut self, now: Time) {
        self.ended_at.get_or_insert(now);
    }

    /// Begins the next batch if it is due. A batch that was missed entirely is skipped.
    pub(super) fn begin_next_batch(
        &mut self,
        start: Time,
        now: Time,
        recorder: &mut Recorder,
    ) -> bool {
        while let Some(next) = self.next
            && let at = self.next_batch_start(start)
            && at <= now
        {
            self.next = self.beginnings.next();
            self.batch_end = at + batch_start_window(self.slot);
            if now < self.batch_end {
                self.record_batch(next.number, now, recorder);
                (self.number, self.ended_at) = (next.number, None);
                return true;
            }
        }
        false
    }

    /// Records the result of the last batch at the end of the load.
    pub(super) fn record_last_batch(&self, now: Time, recorder: &mut Recorder) {
        self.record_batch(self.number + 1, now, recorder);
    }

    fn record_batch(&self, number: u64, now: Time, recorder: &mut Recorder) {
        let (ok, bytes_received) = recorder.running_totals();
        let done = BatchTotals {
            ok,
            bytes_received,
            began_ns: now.0,
            ended_ns: self.ended_at.unwrap_or(now).0,
        };
        recorder.record_batch_start(self.meter.read(number, Some(done)));
    }
}
