//! The boundaries of a run's intervals, and the time that the loop spent waiting in each.

use plimsoll_model::Time;
use plimsoll_model::records::record::RecordedInterval;

use super::worker_control::WorkerInterval;

/// Length of an interval: one second, in nanoseconds.
pub const INTERVAL_NS: u64 = 1_000_000_000;

/// A worker's position in the run's intervals.
pub(crate) struct IntervalClock {
    start: Time,
    index: u32,
    end: Time,
    began: Time,
    waited_ns: u64,
    /// Calls in flight according to the intervals that were sent: due calls minus those that ended or were not started.
    unsettled: i64,
}

impl IntervalClock {
    /// Begins the first interval at `start`, which may be [`Time::NEVER`].
    pub(crate) fn starting_at(start: Time) -> IntervalClock {
        IntervalClock {
            start,
            index: 0,
            end: start.plus_nanos(INTERVAL_NS),
            began: start,
            waited_ns: 0,
            unsettled: 0,
        }
    }

    /// Counts a wait of `ns` nanoseconds after which `found` sockets were ready.
    #[inline]
    pub(crate) fn add_wait(&mut self, ns: u64, found: usize) {
        /// Minimum duration in nanoseconds of a wait that counts as sleep. If sockets are found sooner, they were ready
        /// before, so the poll counts as work.
        const MIN_SLEEP_NS: u64 = 4_000;
        if found == 0 || ns > MIN_SLEEP_NS {
            self.waited_ns += ns;
        }
    }

    #[inline]
    pub(crate) fn end(&self) -> Time {
        self.end
    }

    /// Ends the current interval of worker `worker`, whose records are `recorded`, and begins the next one. The number
    /// of calls in flight is derived from the records alone, so that it is right even after a panic.
    pub(crate) fn finish_interval(
        &mut self,
        worker: u32,
        recorded: RecordedInterval,
        now: Time,
    ) -> WorkerInterval {
        for (_, record) in recorded.recorded_stages() {
            self.unsettled += record.due as i64;
            self.unsettled -= (record.ended_calls() + record.not_started) as i64;
        }
        let length_ns = now.since(self.began);
        let over = WorkerInterval {
            worker,
            index: self.index,
            is_last: false,
            negotiated: None,
            end_ns: now.since(self.start),
            length_ns,
            recorded,
            in_flight: u64::try_from(self.unsettled).unwrap_or(0),
            backlog: 0,
            connections: 0,
            users: None,
            busy_ns: length_ns.saturating_sub(self.waited_ns),
        };
        self.waited_ns = 0;
        self.began = now;
        // An interval that was prolonged by a stall covers several seconds, so the next one does not simply have the
        // next number.
        let index = over.end_ns / INTERVAL_NS;
        self.index = u32::try_from(index).unwrap_or(u32::MAX).max(self.index + 1);
        self.end = self
            .start
            .plus_nanos((u64::from(self.index) + 1) * INTERVAL_NS);
        over
    }
}
