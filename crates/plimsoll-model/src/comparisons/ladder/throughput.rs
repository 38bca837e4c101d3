//! Divides the slices of a sweep, which compares the throughput of several TLS configurations. The time of each
//! configuration is split into short parts (runs or batches), in random order within rounds, so that a slow moment of
//! the machine affects all configurations alike. A confidence interval is computed from the values of the parts.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{ALPHA, SliceThroughput};
use crate::statistics::paired::{min_pairs, paired_difference};

/// Rounds in addition to the minimum for an interval; with just the minimum, the interval's bounds would be the extreme
/// values.
pub const EXTRA_ROUNDS: usize = 4;

/// Number of figures of a configuration that have an interval: throughput, and cryptography's share of CPU time at each
/// end.
const FIGURES_PER_CONFIGURATION: usize = 3;

/// Minimum length of a part.
const MIN_PART_LENGTH: Duration = Duration::from_millis(100);

/// Minimum length of a part, as a multiple of the time that the files in flight take at [`ASSUMED_BYTES_PER_S`]: calls
/// in flight at a part's start and end belong to it only partially.
const MIN_FILES_PER_PART: f64 = 20.0;
const ASSUMED_BYTES_PER_S: f64 = 1e9;

/// Assumed CPU time of a new connection's handshake at both ends.
const ASSUMED_HANDSHAKE_TIME: Duration = Duration::from_micros(250);

/// Returns the length of the shortest part in which the bytes and handshakes in flight at its start and end are
/// negligible.
fn min_part_length(in_flight: u64, handshakes: u32) -> Duration {
    let files = MIN_FILES_PER_PART
        * (in_flight as f64 / ASSUMED_BYTES_PER_S
            + f64::from(handshakes) * ASSUMED_HANDSHAKE_TIME.as_secs_f64());
    MIN_PART_LENGTH.max(Duration::from_millis((files * 1e3) as u64))
}

fn min_rounds(links: usize) -> usize {
    min_pairs(interval_alpha(links)) + EXTRA_ROUNDS
}

/// Plans the batches of `links` configurations that run at the same time, for `length` in all, with at most `in_flight`
/// bytes and `handshakes` handshakes in flight. Returns the time between the starts of two batches, and the number of
/// batches of each configuration. `None`: there would be too few batches for intervals.
pub fn plan_batches(
    length: Duration,
    links: usize,
    in_flight: u64,
    handshakes: u32,
) -> Option<(Duration, u32)> {
    let slot = min_part_length(in_flight, handshakes) * 11 / 10;
    let rounds = length.as_nanos() / (slot.as_nanos() * links.max(1) as u128);
    (rounds >= min_rounds(links) as u128).then_some((slot, rounds as u32))
}

/// Returns the number of parts into which each of the `rounds` slices of a configuration is divided, so that the
/// figures of all `links` configurations have intervals. `in_flight`: bytes of the files that one configuration fetches
/// at the same time.
pub fn parts_per_slice(slice: Duration, rounds: usize, links: usize, in_flight: u64) -> usize {
    let most = slice.as_millis() / min_part_length(in_flight, 0).as_millis();
    let wanted = min_rounds(links).div_ceil(rounds.max(1));
    wanted.min(most as usize).max(1)
}

/// Returns whether a configuration that is measured in `own` of `rounds` rounds is measured in `round` (from 0). Its
/// rounds are spread evenly.
pub fn is_round_measured(round: usize, own: usize, rounds: usize) -> bool {
    (round + 1) * own / rounds > round * own / rounds
}

/// Throughput and CPU cost of a slice or batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThroughputSample {
    /// Time to the last call's end, seconds.
    pub elapsed_s: f64,
    /// Calls that ended ok.
    pub ok: u64,
    /// Bytes of files, without protocol overhead.
    pub bytes_received: u64,
    /// The client's CPU time, µs; `None`: not known.
    pub client_cpu_us: Option<f64>,
    /// The server's CPU time, µs; `None`: not known.
    pub server_cpu_us: Option<f64>,
    /// Whether the last call ended in another configuration's batch.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overran: bool,
}

impl SliceThroughput {
    /// Sets the batches, and computes the totals from them. The totals of the run can't be used, because the run also
    /// contains the batches of other configurations.
    pub fn set_batches(&mut self, turns: Vec<ThroughputSample>) {
        let cpu = |of: fn(&ThroughputSample) -> Option<f64>| turns.iter().map(of).sum();
        self.elapsed_s = turns.iter().map(|turn| turn.elapsed_s).sum();
        self.ok = turns.iter().map(|turn| turn.ok).sum();
        self.bytes_received = turns.iter().map(|turn| turn.bytes_received).sum();
        self.client_cpu_us = cpu(|turn| turn.client_cpu_us);
        self.server_cpu_us = cpu(|turn| turn.server_cpu_us);
        self.turns = turns;
    }

    /// Returns the batches, or the whole slice as a single sample if there are none.
    pub fn samples(&self) -> Vec<ThroughputSample> {
        match self.turns.as_slice() {
            [] => vec![ThroughputSample {
                elapsed_s: self.elapsed_s,
                ok: self.ok,
                bytes_received: self.bytes_received,
                client_cpu_us: self.client_cpu_us,
                server_cpu_us: self.server_cpu_us,
                overran: false,
            }],
            turns => turns.to_vec(),
        }
    }
}

/// A value with its confidence interval, where there are enough parts; the intervals of all configurations are
/// simultaneous.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IntervalEstimate {
    /// The value, in the unit of the figure.
    pub value: f64,
    /// The bounds of the interval; `None`: too few parts.
    pub interval: Option<[f64; 2]>,
}

impl IntervalEstimate {
    /// Estimates the value. `total`: the value over all parts, used where there are too few parts. `links`: number of
    /// configurations in the sweep.
    pub fn from_parts(
        total: Option<f64>,
        pieces: impl Iterator<Item = f64>,
        links: usize,
    ) -> Option<IntervalEstimate> {
        match paired_difference(&pieces.collect::<Vec<f64>>(), interval_alpha(links)) {
            Some(found) => Some(IntervalEstimate {
                value: found.shift,
                interval: Some([found.low, found.high]),
            }),
            None => total.map(|value| IntervalEstimate {
                value,
                interval: None,
            }),
        }
    }

    /// Returns the larger of the two bounds' distances from the value, relative to the value.
    pub fn relative_half_width(&self) -> Option<f64> {
        let [low, high] = self.interval.filter(|_| self.value > 0.0)?;
        Some((high - self.value).max(self.value - low) / self.value)
    }
}

/// Returns the error probability of a single interval if those of `links` configurations are simultaneous.
fn interval_alpha(links: usize) -> f64 {
    ALPHA / (FIGURES_PER_CONFIGURATION * links.max(1)) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparisons::ladder::batches::RungMeasurement;
    use crate::plan::BatchSchedule;
    use crate::records::record::{BatchStart, BatchTotals};
    use crate::runs::run::IntervalRecord;

    #[test]
    fn only_small_file_slices_are_split() {
        let of = |slice_ms, rounds, in_flight| {
            parts_per_slice(Duration::from_millis(slice_ms), rounds, 42, in_flight)
        };
        assert_eq!(of(2000, 1, 16 << 10), 18);
        assert_eq!(of(2000, 3, 16 << 10), 6);
        assert_eq!(of(2000, 99, 16 << 10), 1);
        assert_eq!(of(400, 1, 16 << 10), 4);
        assert_eq!(of(1400, 1, 16 << 10), 14);
        assert_eq!(of(2000, 1, 16 << 20), 5);
        assert_eq!(of(2000, 1, 512 << 20), 1);
        assert_eq!(of(0, 1, 0), 1);
    }

    #[test]
    fn batch_count_must_fit_duration() {
        let of = |length_s, links, in_flight, handshakes| {
            plan_batches(Duration::from_secs(length_s), links, in_flight, handshakes)
        };
        let slot = Duration::from_millis(110);
        assert_eq!(of(32, 16, 16 << 10, 16), Some((slot, 18)));
        assert_eq!(of(64, 16, 16 << 10, 16), Some((slot, 36)));
        assert_eq!(of(16, 16, 16 << 10, 16), None);
        assert_eq!(of(32, 16, 64 << 20, 4), None);
        let longer = Duration::from_micros(550_000);
        assert_eq!(of(60, 4, 0, 100), Some((longer, 27)));
        assert_eq!(of(1, 0, 0, 0), None);
    }

    #[test]
    fn rounds_are_spread_without_loss() {
        for own in 1..=18 {
            let taken: Vec<usize> = (0..18).filter(|r| is_round_measured(*r, own, 18)).collect();
            assert_eq!(taken.len(), own);
            let widest = taken.windows(2).map(|two| two[1] - two[0]).max();
            assert!(widest.is_none_or(|rounds| rounds <= 18_usize.div_ceil(own)));
        }
    }

    /// A closed loop with two workers, whose readings are in separate intervals.
    #[test]
    fn batch_totals_are_differences_across_workers() {
        let reading = |turn, client_ns, ok, began_ns, ended_ns| BatchStart {
            batch: turn,
            client_ns,
            server_ns: Some(turn * 40_000),
            done: Some(BatchTotals {
                ok,
                bytes_received: ok * 1_000,
                began_ns,
                ended_ns,
            }),
        };
        let ms = 1_000_000;
        let first = [
            reading(0, 0, 0, 10 * ms, 10 * ms),
            reading(1, 20_000, 5, 210 * ms, 105 * ms),
            reading(2, 50_000, 15, 410 * ms, 308 * ms),
            // The worker slept through the third batch.
            reading(4, 90_000, 16, 820 * ms, 540 * ms),
        ];
        let second = [
            reading(0, 0, 0, 11 * ms, 11 * ms),
            reading(1, 10_000, 5, 209 * ms, 104 * ms),
            reading(2, 30_000, 25, 411 * ms, 311 * ms),
            reading(4, 40_000, 26, 819 * ms, 520 * ms),
        ];
        let turns = BatchSchedule {
            of: 2,
            index: 0,
            share: 1,
            calls: 1,
            seed: 1,
            read_cpu: true,
            slot: Some(Duration::from_millis(110)),
        };
        let mut all = vec![RungMeasurement::new(turns, 0, vec![true, false])];
        for readings in [first, second] {
            all[0].add_interval(&IntervalRecord {
                batches: readings.to_vec(),
                ..IntervalRecord::default()
            });
        }
        RungMeasurement::end_batch_group(&mut all, &[&[7]]);
        let piece = |elapsed_s, ok, client_us, server_us, overran| ThroughputSample {
            elapsed_s,
            ok,
            bytes_received: ok * 1_000,
            client_cpu_us: Some(client_us),
            server_cpu_us: Some(server_us),
            overran,
        };
        assert_eq!(
            all[0].closed_loop_batches(1, Duration::from_millis(110)),
            [
                piece(0.102, 30, 50.0, 40.0, false),
                piece(0.13, 2, 50.0, 80.0, true),
            ]
        );
    }
}
