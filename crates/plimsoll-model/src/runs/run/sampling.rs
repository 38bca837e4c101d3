//! Records the calls of a run second by second, and computes the sampling intervals of its figures from these records.

use std::time::Duration;

use serde::Serialize;

use crate::records::record::{StageRecord, TimeHistogram};
use crate::statistics::bootstrap::{
    BootstrapResamples, MAX_BLOCKS, TimesBySecond, ValueCounts, merge_counts,
};

/// Sampling intervals of the statistics of response or service times, µs: their 95 % confidence intervals, derived from
/// the variation between the seconds of the run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SamplingSummary {
    /// Interval of the mean.
    pub mean_us: Option<[f64; 2]>,
    /// Interval of the median.
    pub p50_us: Option<[f64; 2]>,
    /// Interval of the 75th percentile.
    pub p75_us: Option<[f64; 2]>,
    /// Interval of the 90th percentile.
    pub p90_us: Option<[f64; 2]>,
    /// Interval of the 95th percentile.
    pub p95_us: Option<[f64; 2]>,
    /// Interval of the 99th percentile.
    pub p99_us: Option<[f64; 2]>,
    /// Interval of the 99.9th percentile.
    #[serde(rename = "p99.9_us")]
    pub p99_9_us: Option<[f64; 2]>,
    /// Interval of the 99.99th percentile.
    #[serde(rename = "p99.99_us")]
    pub p99_99_us: Option<[f64; 2]>,
}

impl SamplingSummary {
    fn from_seconds(
        seconds: &[&ValueCounts],
        resamples: &BootstrapResamples,
    ) -> Option<SamplingSummary> {
        let times = TimesBySecond::from_seconds(seconds);
        let us = |interval: [f64; 2]| interval.map(|ns| round_to_thousandths(ns / 1e3));
        let at = |p: f64| times.quantile_interval(p, resamples).map(us);
        let summary = SamplingSummary {
            mean_us: times.mean_interval(resamples).map(us),
            p50_us: at(0.5),
            p75_us: at(0.75),
            p90_us: at(0.9),
            p95_us: at(0.95),
            p99_us: at(0.99),
            p99_9_us: at(0.999),
            p99_99_us: at(0.9999),
        };
        summary.mean_us.map(|_| summary)
    }

    /// Returns the percentiles' intervals with their names, in order.
    pub fn percentiles(&self) -> [(&'static str, Option<[f64; 2]>); 7] {
        [
            ("p50", self.p50_us),
            ("p75", self.p75_us),
            ("p90", self.p90_us),
            ("p95", self.p95_us),
            ("p99", self.p99_us),
            ("p99.9", self.p99_9_us),
            ("p99.99", self.p99_99_us),
        ]
    }
}

/// Rounds to three decimals, so a value in µs is rounded to a nanosecond.
fn round_to_thousandths(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// The records of one second or of several consecutive ones.
#[derive(Clone, Debug, Default)]
struct SecondsBlock {
    /// Calls that ended in complete intervals of the stage.
    ended: u64,
    /// The total length of these intervals.
    length: Duration,
    response: ValueCounts,
    service: ValueCounts,
}

impl SecondsBlock {
    fn from_record(record: &StageRecord, complete_length: Option<Duration>) -> SecondsBlock {
        let counted = |times: &TimeHistogram| {
            let mut all = ValueCounts::new();
            times.for_each_bucket(|ns, n| all.push((ns, n)));
            all
        };
        SecondsBlock {
            ended: complete_length.map_or(0, |_| record.ended_calls()),
            length: complete_length.unwrap_or_default(),
            response: counted(&record.response),
            service: counted(&record.service),
        }
    }

    fn add(&mut self, other: &SecondsBlock) {
        self.ended += other.ended;
        self.length += other.length;
        self.response = merge_counts(&self.response, &other.response);
        self.service = merge_counts(&self.service, &other.service);
    }
}

/// The seconds of one stage, grouped into blocks so that their number stays small.
#[derive(Clone, Debug)]
pub(super) struct StageSeconds {
    blocks: Vec<SecondsBlock>,
    seconds_per_block: usize,
    seconds_in_last: usize,
}

impl Default for StageSeconds {
    fn default() -> StageSeconds {
        StageSeconds {
            blocks: Vec::new(),
            seconds_per_block: 1,
            seconds_in_last: 0,
        }
    }
}

impl StageSeconds {
    /// Adds the next interval. `whole`: the length of the interval if it lies completely within the stage; otherwise
    /// its calls do not count for the rate.
    pub(super) fn add(&mut self, record: &StageRecord, whole: Option<Duration>) {
        if record.ended_calls() == 0 {
            return;
        }
        let block = SecondsBlock::from_record(record, whole);
        match self.blocks.last_mut() {
            Some(last) if self.seconds_in_last < self.seconds_per_block => {
                last.add(&block);
                self.seconds_in_last += 1;
            }
            _ => {
                self.blocks.push(block);
                self.seconds_in_last = 1;
            }
        }
        if self.blocks.len() >= 2 * MAX_BLOCKS && self.seconds_in_last == self.seconds_per_block {
            self.merge_block_pairs();
        }
    }

    fn merge_block_pairs(&mut self) {
        let pairs = std::mem::take(&mut self.blocks).into_iter();
        for (i, block) in pairs.enumerate() {
            match self.blocks.last_mut() {
                Some(last) if i % 2 == 1 => last.add(&block),
                _ => self.blocks.push(block),
            }
        }
        self.seconds_per_block *= 2;
        self.seconds_in_last = self.seconds_per_block;
    }
}

/// The sampling intervals of a run's figures.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RunSampling {
    pub(super) response: Option<SamplingSummary>,
    pub(super) service: Option<SamplingSummary>,
    pub(super) achieved_per_s: Option<[f64; 2]>,
}

impl RunSampling {
    /// Computes the sampling intervals of a run with these stages.
    pub(super) fn from_stages<'a>(stages: impl Iterator<Item = &'a StageSeconds>) -> RunSampling {
        let (mut blocks, mut lengths) = (Vec::new(), Vec::new());
        for stage in stages.filter(|stage| !stage.blocks.is_empty()) {
            blocks.extend(&stage.blocks);
            lengths.push(stage.blocks.len());
        }
        let Some(resamples) = BootstrapResamples::draw(&lengths) else {
            return RunSampling::default();
        };
        let of = |times: fn(&SecondsBlock) -> &ValueCounts| {
            let seconds: Vec<&ValueCounts> = blocks.iter().map(|block| times(block)).collect();
            SamplingSummary::from_seconds(&seconds, &resamples)
        };
        let ended: Vec<f64> = blocks.iter().map(|block| block.ended as f64).collect();
        let lengths: Vec<f64> = blocks.iter().map(|b| b.length.as_secs_f64()).collect();
        let rate = resamples.ratio_interval(&ended, &lengths);
        RunSampling {
            response: of(|block| &block.response),
            service: of(|block| &block.service),
            achieved_per_s: rate.map(|interval| interval.map(round_to_thousandths)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Outcome;

    fn second(ms: u64) -> StageRecord {
        let mut record = StageRecord::default();
        record.response.record_n(ms * 1_000_000, 100);
        record.outcomes.add(Outcome::Ok, 100);
        record
    }

    #[test]
    fn long_runs_keep_few_blocks_of_all_calls() {
        let mut seconds = StageSeconds::default();
        for i in 0..1_001 {
            seconds.add(&second(5 + i % 3), Some(Duration::from_secs(1)));
        }
        assert!(
            seconds.blocks.len() < 2 * MAX_BLOCKS,
            "{}",
            seconds.blocks.len()
        );
        let ended: u64 = seconds.blocks.iter().map(|block| block.ended).sum();
        assert_eq!(ended, 100_100);
        let lasted: Duration = seconds.blocks.iter().map(|block| block.length).sum();
        assert_eq!(lasted, Duration::from_secs(1_001));
        let found = RunSampling::from_stages([&seconds].into_iter());
        let [low, high] = found.response.unwrap().p50_us.unwrap();
        assert!((5_990.0..=6_010.0).contains(&low) && (5_990.0..=6_010.0).contains(&high));
        assert_eq!(found.achieved_per_s, Some([100.0, 100.0]));
        assert_eq!(found.service, None);
        // Calls that end after the stage have times, but no rate.
        seconds.add(&second(6), None);
        let found = RunSampling::from_stages([&seconds].into_iter());
        assert_eq!(found.achieved_per_s, Some([100.0, 100.0]));
    }
}
