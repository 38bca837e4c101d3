//! Sampling intervals: how much a figure would vary in another run like this one.
//!
//! Calls of one second are correlated through the state of machine and target, so the seconds of a run are resampled
//! rather than its calls: the block bootstrap (Künsch, *The jackknife and the bootstrap for general stationary
//! observations*, 1989), with blocks of adjacent seconds that wrap around (Politis and Romano, *A circular
//! block-resampling procedure*, 1992). Each stage is resampled separately. Because the number of blocks is small, these
//! intervals would be too narrow. They are widened as Student's intervals are (Hesterberg, *What teachers should know
//! about the bootstrap*, 2015).
//!
//! For a percentile with few calls beyond it, the bootstrap is unreliable; its interval therefore includes that of
//! [`confidence_ranks`], which assumes independent calls.

use std::cmp::Ordering;
use std::ops::Range;

use statrs::distribution::{ContinuousCDF, Normal, StudentsT};

use super::quantile::{confidence_ranks, is_supported};

/// Minimum number of seconds; with fewer, the variation between seconds can't be estimated.
pub const MIN_RESAMPLED_SECONDS: usize = 10;

/// Maximum number of blocks. Seconds of a longer run are merged, which bounds the cost of intervals.
pub const MAX_BLOCKS: usize = 120;

/// Maximum number of distinct times. If there are more, neighbouring times are merged.
const MAX_DISTINCT_TIMES: usize = 4_096;

/// Number of resampled runs.
const RESAMPLE_COUNT: usize = 400;

/// The confidence level of intervals.
const CONFIDENCE_LEVEL: f64 = 0.95;

/// Times of calls, ascending, each with its count.
pub type ValueCounts = Vec<(u64, u64)>;

#[cfg(test)]
thread_local! {
    /// Number of times that [`merge_counts`] has visited on this thread.
    pub(crate) static VISITED_TIMES: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Merges two lists and adds the counts of equal times.
pub fn merge_counts(a: &[(u64, u64)], b: &[(u64, u64)]) -> ValueCounts {
    #[cfg(test)]
    VISITED_TIMES.set(VISITED_TIMES.get() + a.len() + b.len());
    let mut all = ValueCounts::with_capacity(a.len() + b.len());
    let (mut a, mut b) = (a, b);
    while let ([(ours, n), rest_a @ ..], [(theirs, m), rest_b @ ..]) = (a, b) {
        match ours.cmp(theirs) {
            Ordering::Less => {
                all.push((*ours, *n));
                a = rest_a;
            }
            Ordering::Greater => {
                all.push((*theirs, *m));
                b = rest_b;
            }
            Ordering::Equal => {
                all.push((*ours, n + m));
                (a, b) = (rest_a, rest_b);
            }
        }
    }
    all.extend_from_slice(a);
    all.extend_from_slice(b);
    all
}

/// Resampled runs, each of which consists of seconds of the measured run.
pub struct BootstrapResamples {
    /// How often each second occurs in each resampled run.
    weights: Vec<Vec<u32>>,
    widening: f64,
}

impl BootstrapResamples {
    /// Draws resampled runs. `stages`: the number of seconds of each stage; all seconds are numbered consecutively.
    /// `None`: there are too few seconds.
    pub fn draw(stages: &[usize]) -> Option<BootstrapResamples> {
        let seconds: usize = stages.iter().sum();
        if seconds < MIN_RESAMPLED_SECONDS {
            return None;
        }
        // If a stage is too short to be resampled separately, all seconds are resampled together.
        let lengths = if stages.iter().any(|length| *length < MIN_RESAMPLED_SECONDS) {
            vec![seconds]
        } else {
            stages.to_vec()
        };
        let mut end = 0;
        let strata = lengths.into_iter().map(|length| {
            let begin = end;
            end += length;
            begin..end
        });
        let strata: Vec<Range<usize>> = strata.collect();
        let mut random = BootstrapRng(0);
        let draw = |_| {
            let mut weights = vec![0; seconds];
            for stratum in &strata {
                random.draw_stratum(stratum, &mut weights);
            }
            weights
        };
        Some(BootstrapResamples {
            weights: (0..RESAMPLE_COUNT).map(draw).collect(),
            widening: interval_widening(&strata),
        })
    }

    /// Returns the interval of a figure. `estimate`: its value in the measured run. `of`: computes its value in a
    /// resampled run.
    fn sampling_interval(&self, estimate: f64, of: impl FnMut(&Vec<u32>) -> f64) -> [f64; 2] {
        let mut drawn: Vec<f64> = self.weights.iter().map(of).collect();
        drawn.sort_unstable_by(f64::total_cmp);
        let tail = (1.0 - CONFIDENCE_LEVEL) / 2.0 * drawn.len() as f64;
        let (low, high) = (drawn[tail as usize], drawn[drawn.len() - 1 - tail as usize]);
        let widened = |end: f64| estimate + (end - estimate) * self.widening;
        [
            widened(low.min(estimate)).max(0.0),
            widened(high.max(estimate)),
        ]
    }

    /// Returns the interval of the ratio of two sums over seconds.
    pub fn ratio_interval(&self, over: &[f64], under: &[f64]) -> Option<[f64; 2]> {
        let sum = |weights: &[u32], of: &[f64]| -> f64 {
            let weighed = weights.iter().zip(of);
            weighed
                .map(|(weight, value)| f64::from(*weight) * value)
                .sum()
        };
        let whole = under.iter().sum::<f64>();
        let estimate = over.iter().sum::<f64>() / whole;
        let interval = self.sampling_interval(estimate, |weights| {
            let under = sum(weights, under);
            // A resampled run without calls has no ratio, so the ratio of the measured run is used.
            if under > 0.0 {
                sum(weights, over) / under
            } else {
                estimate
            }
        });
        (whole > 0.0).then_some(interval)
    }
}

/// Returns the factor by which intervals of resampled runs are widened: resampled runs vary less than real ones, and
/// the variance is estimated from few blocks.
fn interval_widening(strata: &[Range<usize>]) -> f64 {
    let blocks = |stratum: &Range<usize>| stratum.len() as f64 / block_length(stratum.len()) as f64;
    let freedom: f64 = strata.iter().map(|stratum| blocks(stratum) - 1.0).sum();
    let fewest = strata.iter().map(blocks).fold(f64::INFINITY, f64::min);
    let tail = (1.0 + CONFIDENCE_LEVEL) / 2.0;
    let students = StudentsT::new(0.0, 1.0, freedom).map_or(f64::NAN, |t| t.inverse_cdf(tail));
    let uncertain = (students / Normal::standard().inverse_cdf(tail)).max(1.0);
    uncertain * (fewest / (fewest - 1.0)).sqrt()
}

/// Returns how many adjacent seconds form a block: about the cube root of the number of all seconds.
fn block_length(seconds: usize) -> usize {
    ((seconds as f64).cbrt().round() as usize).max(1)
}

/// A generator of random whole numbers (SplitMix64).
struct BootstrapRng(u64);

impl BootstrapRng {
    fn next_below(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(z ^ (z >> 31)) * below as u128) >> 64) as usize
    }

    /// Draws as many seconds of a stratum as it has, and counts them in `weights`.
    fn draw_stratum(&mut self, stratum: &Range<usize>, weights: &mut [u32]) {
        let (seconds, length) = (stratum.len(), block_length(stratum.len()));
        let mut left = seconds;
        while left > 0 {
            let first = self.next_below(seconds);
            for i in 0..length.min(left) {
                weights[stratum.start + (first + i) % seconds] += 1;
            }
            left -= length.min(left);
        }
    }
}

/// The times of a run's calls, by second.
pub struct TimesBySecond {
    values: Vec<u64>,
    /// For each second, the number of calls that took at most each of `values`.
    counts_up_to: Vec<Vec<u32>>,
    /// For each second, the number of calls (`counts`) and the sum of their times (`sums`).
    counts: Vec<f64>,
    sums: Vec<f64>,
    all: u64,
}

impl TimesBySecond {
    /// Collects the times of `seconds`.
    pub fn from_seconds(seconds: &[&ValueCounts]) -> TimesBySecond {
        let mut values: Vec<u64> = seconds
            .iter()
            .flat_map(|s| s.iter().map(|(v, _)| *v))
            .collect();
        values.sort_unstable();
        values.dedup();
        let step = values.len().div_ceil(MAX_DISTINCT_TIMES).max(1);
        if step > 1 {
            values = values
                .chunks(step)
                .filter_map(|chunk| chunk.last().copied())
                .collect();
        }
        let mut within = vec![vec![0_u32; seconds.len()]; values.len()];
        let (mut counts, mut sums) = (Vec::new(), Vec::new());
        for (second, times) in seconds.iter().enumerate() {
            let (mut n, mut sum, mut left) = (0_u32, 0.0, times.iter().peekable());
            for (value, row) in values.iter().zip(&mut within) {
                while let Some((time, times)) = left.next_if(|(time, _)| time <= value) {
                    n = n.saturating_add(u32::try_from(*times).unwrap_or(u32::MAX));
                    sum += *time as f64 * *times as f64;
                }
                row[second] = n;
            }
            counts.push(f64::from(n));
            sums.push(sum);
        }
        let all = counts.iter().sum::<f64>() as u64;
        TimesBySecond {
            values,
            counts_up_to: within,
            counts,
            sums,
            all,
        }
    }

    /// Returns the sampling interval of the mean.
    pub fn mean_interval(&self, resamples: &BootstrapResamples) -> Option<[f64; 2]> {
        resamples.ratio_interval(&self.sums, &self.counts)
    }

    /// Returns the sampling interval of quantile `p` (0–1); `None`: there are too few calls.
    pub fn quantile_interval(&self, p: f64, resamples: &BootstrapResamples) -> Option<[f64; 2]> {
        if !is_supported(self.all, p) {
            return None;
        }
        let once = vec![1; self.counts.len()];
        let estimate = self.value_at_quantile(p, &once);
        let [low, high] =
            resamples.sampling_interval(estimate, |weights| self.value_at_quantile(p, weights));
        let (first, last) = confidence_ranks(self.all, p)?;
        Some([
            low.min(self.value_at_rank(first as f64, &once)),
            high.max(self.value_at_rank(last as f64, &once)),
        ])
    }

    fn value_at_quantile(&self, p: f64, weights: &[u32]) -> f64 {
        let weighed = weights.iter().zip(&self.counts);
        let all: f64 = weighed.map(|(weight, n)| f64::from(*weight) * n).sum();
        // The factor corrects a product that floating-point rounding put just above a whole number.
        self.value_at_rank((p * all * (1.0 - 1e-12)).ceil().max(1.0), weights)
    }

    /// Returns the time at this rank among the calls of the weighted seconds.
    fn value_at_rank(&self, rank: f64, weights: &[u32]) -> f64 {
        let is_below = |within: &Vec<u32>| {
            let weighed = weights.iter().zip(within);
            let n: u64 = weighed
                .map(|(weight, n)| u64::from(*weight) * u64::from(*n))
                .sum();
            (n as f64) < rank
        };
        let at = self.counts_up_to.partition_point(is_below);
        let value = self.values.get(at).or(self.values.last());
        value.copied().unwrap_or(0) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uniform(random: &mut BootstrapRng) -> f64 {
        (random.next_below(1 << 40) as f64 + 0.5) / (1_u64 << 40) as f64
    }

    fn normal(random: &mut BootstrapRng) -> f64 {
        let (u, v) = (uniform(random), uniform(random));
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }

    /// Seconds of 50 calls each around 10,000, whose level is autocorrelated by `memory`.
    fn seconds(n: usize, memory: f64, random: &mut BootstrapRng) -> Vec<ValueCounts> {
        let mut level = 0.0;
        let second = |_| {
            level = memory * level + 200.0 * normal(random);
            let calls = (0..50).map(|_| (10_000.0 + level + 500.0 * normal(random)) as u64);
            calls.fold(ValueCounts::new(), |all, time| {
                merge_counts(&all, &[(time, 1)])
            })
        };
        (0..n).map(second).collect()
    }

    #[test]
    fn merged_counts_are_ascending_and_added() {
        let (a, b) = ([(1, 1), (4, 2), (9, 3)], [(2, 5), (4, 6), (10, 7), (11, 8)]);
        let merged = vec![(1, 1), (2, 5), (4, 8), (9, 3), (10, 7), (11, 8)];
        assert_eq!(merge_counts(&a, &b), merged);
        assert_eq!(merge_counts(&b, &a), merged);
        assert_eq!(merge_counts(&a, &[]), a);
    }

    #[test]
    fn equal_seconds_leave_no_sampling_interval() {
        let second = vec![(5, 10), (7, 10)];
        let times = TimesBySecond::from_seconds(&[&second; 20]);
        let resamples = BootstrapResamples::draw(&[20]).unwrap();
        assert_eq!(times.mean_interval(&resamples), Some([6.0, 6.0]));
        assert_eq!(
            resamples.ratio_interval(&[30.0; 20], &[1.0; 20]),
            Some([30.0, 30.0])
        );
        // For independent calls the median could be either of the two values, and independence can't be excluded.
        assert_eq!(times.quantile_interval(0.5, &resamples), Some([5.0, 7.0]));
        assert_eq!(times.quantile_interval(0.9, &resamples), Some([7.0, 7.0]));
        assert_eq!(times.quantile_interval(0.99, &resamples), Some([7.0, 7.0]));
        assert_eq!(times.quantile_interval(0.999, &resamples), None);
    }

    #[test]
    fn few_seconds_have_no_sampling_interval() {
        assert!(BootstrapResamples::draw(&[9]).is_none());
        assert!(BootstrapResamples::draw(&[]).is_none());
        // Short stages are resampled together.
        assert!(BootstrapResamples::draw(&[5, 5]).is_some());
    }

    #[test]
    fn resample_has_as_many_seconds_as_measured() {
        let resamples = BootstrapResamples::draw(&[17, 13]).unwrap();
        for weights in &resamples.weights {
            assert_eq!(weights[..17].iter().sum::<u32>(), 17);
            assert_eq!(weights[17..].iter().sum::<u32>(), 13);
        }
        // 13 seconds are 6.5 blocks of 2, 17 are 5.7 of 3: t(10.2) = 2.222, √(5.67/4.67) = 1.102.
        assert!((resamples.widening - 2.222 / 1.960 * 1.102).abs() < 2e-3);
    }

    #[test]
    fn steps_of_load_do_not_widen_interval() {
        let ends = [
            (0..30).collect::<Vec<u64>>(),
            (0..30).map(|i| 1_000 + i).collect(),
        ]
        .concat();
        let seconds: Vec<ValueCounts> = ends.iter().map(|end| vec![(*end, 50)]).collect();
        let seconds: Vec<&ValueCounts> = seconds.iter().collect();
        let times = TimesBySecond::from_seconds(&seconds);
        let width = |stages: &[usize]| {
            let resamples = BootstrapResamples::draw(stages).unwrap();
            let [low, high] = times.mean_interval(&resamples).unwrap();
            high - low
        };
        assert!(width(&[30, 30]) < 20.0 && width(&[60]) > 200.0);
    }

    #[test]
    fn sampling_intervals_hold_truth_as_promised() {
        let mut random = BootstrapRng(11);
        for (memory, at_least) in [(0.0, 90), (0.5, 84)] {
            let mut held = [0; 3];
            for _ in 0..100 {
                let all = seconds(40, memory, &mut random);
                let all: Vec<&ValueCounts> = all.iter().collect();
                let times = TimesBySecond::from_seconds(&all);
                let resamples = BootstrapResamples::draw(&[40]).unwrap();
                // The standard deviation is 500 within a second, and 200/√(1 − memory²) between seconds.
                let sd = (250_000.0 + 40_000.0 / (1.0 - memory * memory)).sqrt();
                let found = [
                    (times.mean_interval(&resamples), 10_000.0),
                    (times.quantile_interval(0.5, &resamples), 10_000.0),
                    (
                        times.quantile_interval(0.9, &resamples),
                        10_000.0 + 1.281_55 * sd,
                    ),
                ];
                for (held, (interval, truth)) in held.iter_mut().zip(found) {
                    let [low, high] = interval.unwrap();
                    *held += usize::from(low <= truth && truth <= high);
                }
            }
            assert!(
                held.iter().all(|held| *held >= at_least),
                "{memory}: {held:?} of 100"
            );
        }
    }
}
