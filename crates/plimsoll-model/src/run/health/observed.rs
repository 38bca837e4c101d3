//! What the intervals of a run show of the generator and its machine.

use std::time::Duration;

use super::{BUSY_RATIO, INTERVAL};
use crate::run::interval::IntervalRecord;
use crate::run::machine::{Cause, MachineUse};

/// What the intervals showed of the generator and its machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// In which calls ran that count.
    pub intervals: u64,
    /// Intervals in which a worker was above [`BUSY_RATIO`].
    pub busy_intervals: u64,
    /// The largest share of a core that a worker used (0–1).
    pub busiest_ratio: f64,
    /// Intervals at least a quarter longer than asked.
    pub stalled_intervals: u64,
    /// Asked for is [`INTERVAL`].
    pub longest_interval: Duration,
    /// Of all intervals together, and how long those were whose machine is known.
    pub machine: MachineUse,
    /// Zero: the machine is not known.
    pub watched: Duration,
}

impl Observed {
    /// Take in an interval in which calls ran that count.
    pub fn add(&mut self, interval: &IntervalRecord) {
        self.intervals += 1;
        self.longest_interval = self.longest_interval.max(interval.length);
        if let Some(machine) = &interval.machine {
            self.machine.add(machine);
            self.watched += interval.length;
        }
        if interval.length > INTERVAL + INTERVAL / 4 {
            self.stalled_intervals += 1;
        }
        // The last interval is often a few milliseconds, and a share of that means nothing.
        if interval.length >= INTERVAL / 2 {
            self.busiest_ratio = self.busiest_ratio.max(interval.busiest_worker_ratio);
            if interval.busiest_worker_ratio >= BUSY_RATIO {
                self.busy_intervals += 1;
            }
        }
    }

    /// Why the load was late, as the end of a sentence; empty where that is not known.
    pub(super) fn cause(&self) -> String {
        if self.watched.is_zero() {
            return String::new();
        }
        let seconds = self.watched.as_secs_f64();
        format!(
            "; {}",
            Cause::of(&self.machine, seconds, self.busiest_ratio)
        )
    }
}
