//! Records the calls of a run second by second, and computes the sampling intervals of its figures from these records.

use std::borrow::Cow;
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
    fn add(&mut self, other: &SecondsBlock) {
        self.ended += other.ended;
        self.length += other.length;
        self.response = merge_counts(&self.response, &other.response);
        self.service = merge_counts(&self.service, &other.service);
    }
}

/// The seconds of the block that is being filled. Their times are histograms, to which a second is added without visiting
/// the times of the seconds before it.
#[derive(Clone, Debug, Default)]
struct UnfinishedSeconds {
    /// Number of seconds in the block.
    seconds: usize,
    /// Calls that ended in complete intervals of the stage.
    ended: u64,
    /// The total length of these intervals.
    length: Duration,
    response: TimeHistogram,
    service: TimeHistogram,
}

impl UnfinishedSeconds {
    fn add(&mut self, record: &StageRecord, complete_length: Option<Duration>) {
        self.seconds += 1;
        if let Some(length) = complete_length {
            self.ended += record.ended_calls();
            self.length += length;
        }
        self.response.merge(&record.response);
        self.service.merge(&record.service);
    }

    /// Returns the block as it is so far; `None`: it has no seconds.
    fn block(&self) -> Option<SecondsBlock> {
        let counted = |times: &TimeHistogram| {
            let mut all = ValueCounts::new();
            times.for_each_bucket(|ns, n| all.push((ns, n)));
            all
        };
        (self.seconds > 0).then(|| SecondsBlock {
            ended: self.ended,
            length: self.length,
            response: counted(&self.response),
            service: counted(&self.service),
        })
    }
}

/// The seconds of one stage, grouped into blocks so that their number stays small.
#[derive(Clone, Debug)]
pub(super) struct StageSeconds {
    /// The blocks that are full.
    full: Vec<SecondsBlock>,
    seconds_per_block: usize,
    open: UnfinishedSeconds,
}

impl Default for StageSeconds {
    fn default() -> StageSeconds {
        StageSeconds {
            full: Vec::new(),
            seconds_per_block: 1,
            open: UnfinishedSeconds::default(),
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
        self.open.add(record, whole);
        if self.open.seconds < self.seconds_per_block {
            return;
        }
        self.full.extend(std::mem::take(&mut self.open).block());
        if self.full.len() >= 2 * MAX_BLOCKS {
            self.merge_block_pairs();
        }
    }

    fn merge_block_pairs(&mut self) {
        let pairs = std::mem::take(&mut self.full).into_iter();
        for (i, block) in pairs.enumerate() {
            match self.full.last_mut() {
                Some(last) if i % 2 == 1 => last.add(&block),
                _ => self.full.push(block),
            }
        }
        self.seconds_per_block *= 2;
    }

    /// Returns the blocks, in order; the last one may not be full.
    fn blocks(&self) -> impl Iterator<Item = Cow<'_, SecondsBlock>> {
        let full = self.full.iter().map(Cow::Borrowed);
        full.chain(self.open.block().map(Cow::Owned))
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
        for stage in stages {
            let before = blocks.len();
            blocks.extend(stage.blocks());
            if blocks.len() > before {
                lengths.push(blocks.len() - before);
            }
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
    use crate::statistics::bootstrap::VISITED_TIMES;

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
        let blocks: Vec<_> = seconds.blocks().collect();
        assert!(blocks.len() < 2 * MAX_BLOCKS, "{}", blocks.len());
        let ended: u64 = blocks.iter().map(|block| block.ended).sum();
        assert_eq!(ended, 100_100);
        let lasted: Duration = blocks.iter().map(|block| block.length).sum();
        assert_eq!(lasted, Duration::from_secs(1_001));
        let found = RunSampling::from_stages([&seconds].into_iter());
        let [low, high] = found.response.unwrap().p50_us.unwrap();
        assert!((5_990.0..=6_010.0).contains(&low) && (5_990.0..=6_010.0).contains(&high));
        assert_eq!(found.achieved_per_s, Some([100.0, 100.0]));
        assert_eq!(found.service, None);
        // Calls that end after the stage have times, but no rate.
        let visited = VISITED_TIMES.get();
        seconds.add(&second(6), None);
        assert_eq!(
            VISITED_TIMES.get(),
            visited,
            "earlier seconds are read again"
        );
        let found = RunSampling::from_stages([&seconds].into_iter());
        assert_eq!(found.achieved_per_s, Some([100.0, 100.0]));
    }
}
