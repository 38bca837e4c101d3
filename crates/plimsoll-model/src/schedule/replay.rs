//! Arrivals at recorded times, for loads that replay a recording.

use crate::plan::LoadPlan;
use crate::rows::recording::{Recording, RecordingCursor};

/// The arrivals of a load that replays a recording.
#[derive(Debug)]
pub(super) struct ReplaySchedule {
    recording: Recording,
    /// One more than the last arrival's number.
    end_number: u64,
    /// The end of the load, in nanoseconds since its start.
    end: u64,
}

/// Iterator over one share of the arrivals, in order.
#[derive(Clone, Debug)]
pub(super) struct ReplayArrivals {
    cursor: RecordingCursor,
    count: u64,
    period: u64,
    number: u64,
    end_number: u64,
}

impl ReplaySchedule {
    /// Returns the arrivals of `load`; `None`: the load has no recording.
    pub(super) fn from_load(load: &LoadPlan) -> Option<ReplaySchedule> {
        let recording = load.recording.clone()?;
        let length = |warmup: bool| {
            let stages = load.stages.iter().filter(|stage| stage.warmup || !warmup);
            let lengths = stages.filter_map(|stage| stage.duration);
            lengths.fold(0u64, |sum, length| {
                sum.saturating_add(u64::try_from(length.as_nanos()).unwrap_or(u64::MAX))
            })
        };
        let mut cursor = recording.cursor();
        let repeats = load.repeats;
        let mut end = length(false);
        let mut end_number = first_arrival_at(&recording, &mut cursor, end, repeats);
        if let Some(calls) = load.calls {
            let warmed_up = first_arrival_at(&recording, &mut cursor, length(true), repeats);
            let last = warmed_up.saturating_add(calls);
            if last < end_number {
                end_number = last;
                // The load ends at the time of the first arrival past the limit, which is not sent.
                end = arrival_time(&recording, &mut cursor, last, repeats)
                    .unwrap_or(end)
                    .min(end);
            }
        }
        Some(ReplaySchedule {
            recording,
            end_number,
            end,
        })
    }

    /// Returns the end of the load, in nanoseconds since its start.
    pub(super) fn end_ns(&self) -> u64 {
        self.end
    }

    /// Returns the arrivals from `number` on.
    pub(super) fn arrivals_from(&self, number: u64) -> ReplayArrivals {
        ReplayArrivals {
            cursor: self.recording.cursor(),
            count: self.recording.count(),
            period: self.recording.end_ns(),
            number,
            end_number: self.end_number,
        }
    }
}

impl ReplayArrivals {
    /// Returns the number and time of the next arrival, and advances by `step` arrivals.
    #[inline]
    pub(super) fn next(&mut self, step: u64) -> Option<(u64, u64)> {
        let number = self.number;
        if number >= self.end_number {
            return None;
        }
        self.number = number.saturating_add(step);
        let (round, place) = (number / self.count, number % self.count);
        let at = self.cursor.arrival_time_ns(place)?;
        Some((number, round.saturating_mul(self.period).saturating_add(at)))
    }
}

/// Returns when arrival `number` is due, in nanoseconds since the load's start. `repeats`: the recording restarts at
/// its end.
fn arrival_time(
    recording: &Recording,
    cursor: &mut RecordingCursor,
    number: u64,
    repeats: bool,
) -> Option<u64> {
    let (round, place) = (number / recording.count(), number % recording.count());
    if round > 0 && !repeats {
        return None;
    }
    let begins = round.saturating_mul(recording.end_ns());
    Some(begins.saturating_add(cursor.arrival_time_ns(place)?))
}

/// Returns the number of the first arrival at or after `at`, which is in nanoseconds since the load's start. If there
/// is no such arrival, returns the count of arrivals (one past the last).
fn first_arrival_at(
    recording: &Recording,
    cursor: &mut RecordingCursor,
    at: u64,
    repeats: bool,
) -> u64 {
    let round = if repeats { at / recording.end_ns() } else { 0 };
    let within = at - round * recording.end_ns();
    let (mut low, mut high) = (0, recording.count());
    while low < high {
        let middle = low + (high - low) / 2;
        if cursor
            .arrival_time_ns(middle)
            .is_some_and(|time| time < within)
        {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    round * recording.count() + low
}
