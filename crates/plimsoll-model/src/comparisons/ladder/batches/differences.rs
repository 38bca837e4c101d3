//! Computes the difference of two rungs (variants) of a ladder with its interval, for one metric at one level.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::RngCore;

use super::RungMeasurement;
use super::replicates::{MIN_REPLICATES, mean, student_interval, widen_by_replicates};
use crate::comparisons::ladder::LadderMetric;
use crate::statistics::autocorrelation::interval_widening;
use crate::statistics::paired::{PairedDifference, paired_difference};
use crate::statistics::quantile::is_supported;
use crate::statistics::rank::median_of_unsorted;

/// Maximum number of pairs, because the signed-rank interval takes a long time to compute. Beyond this, neighbouring
/// pairs are reduced to their medians. A far lower limit would widen the interval, because disturbances of single
/// batches have long tails.
const MAX_PAIRS: usize = 1_000;

/// Minimum number of blocks of a bootstrap; with fewer, simultaneous intervals are far wider.
const MIN_BOOTSTRAP_BLOCKS: usize = 20;

/// Minimum number of pairs per lag of the estimated autocorrelation. With only 12, too many simulated ladders of equal
/// rungs reported a difference when disturbances lasted for tens of rounds.
const MIN_PAIRS_PER_LAG: usize = 16;

/// Number of resamples of a bootstrap, large because simultaneous intervals need the far tails.
const BOOTSTRAP_RESAMPLES: usize = 8_000;

/// Estimates the difference of the medians of typical batches, in the times of calls or of their tokens.
pub(super) fn median_difference(
    upper: &RungMeasurement,
    lower: &RungMeasurement,
    metric: LadderMetric,
    rounds: &[Vec<usize>],
    alpha: f64,
) -> Option<PairedDifference> {
    let differences = values_by_replicate(rounds, |round| {
        Some(upper.median_us(metric, round)? - lower.median_us(metric, round)?)
    });
    typical_difference(&differences, alpha)
}

fn values_by_replicate(rounds: &[Vec<usize>], of: impl Fn(usize) -> Option<f64>) -> Vec<Vec<f64>> {
    let sittings = rounds.iter();
    sittings
        .map(|rounds| rounds.iter().filter_map(|round| of(*round)).collect())
        .collect()
}

/// Estimates the difference between typical batches, by rank statistics.
fn typical_difference(differences: &[Vec<f64>], alpha: f64) -> Option<PairedDifference> {
    let found = autocorrelated_difference(&differences.concat(), alpha)?;
    let most = MAX_PAIRS / differences.len().max(1);
    let value =
        |sitting: &Vec<f64>| Some(paired_difference(&reduce_to_medians(sitting, most), 1.0)?.shift);
    let values: Vec<f64> = match differences.len() {
        // The interval is widened only if there are at least [`MIN_REPLICATES`].
        ..MIN_REPLICATES => Vec::new(),
        _ => differences.iter().filter_map(value).collect(),
    };
    widen_by_replicates(found, differences.len(), &values, alpha)
}

/// Reduces `values` to at most `most` medians of neighbouring values.
fn reduce_to_medians(values: &[f64], most: usize) -> Vec<f64> {
    let block = values.len().div_ceil(most.max(1)).max(1);
    let blocks = values.chunks_exact(block);
    blocks
        .filter_map(|block| median_of_unsorted(block.to_vec()))
        .collect()
}

/// Estimates the interval of differences that may be autocorrelated.
fn autocorrelated_difference(differences: &[f64], alpha: f64) -> Option<PairedDifference> {
    let medians = reduce_to_medians(differences, MAX_PAIRS);
    let found = paired_difference(&medians, alpha)?;
    let wider = interval_widening(&medians, medians.len() / MIN_PAIRS_PER_LAG, alpha);
    Some(PairedDifference {
        low: found.shift - wider * (found.shift - found.low),
        high: found.shift + wider * (found.high - found.shift),
        ..found
    })
}

pub(super) fn cpu_difference(
    upper: &RungMeasurement,
    lower: &RungMeasurement,
    metric: LadderMetric,
    rounds: &[Vec<usize>],
    alpha: f64,
) -> Option<PairedDifference> {
    let differences = values_by_replicate(rounds, |round| {
        let above = upper.cpu_us_per_call(metric, round)?;
        Some(above - lower.cpu_us_per_call(metric, round)?)
    });
    let typical = typical_difference(&differences, alpha)?;
    let average = mean_difference(&differences, alpha)?;
    // Bursts of work in few batches, such as garbage collection, are a cost that rank statistics miss.
    let bursts = typical.shift < average.low || typical.shift > average.high;
    let found = if bursts { average } else { typical };
    // An interval of zero width means that the CPU clock is too coarse.
    (found.low < found.high).then_some(found)
}

/// Estimates the mean of differences, with an interval from the means of blocks (Law, *Simulation Modeling and
/// Analysis*, 9.5.3). `None`: too few differences for blocks.
fn mean_difference(differences: &[Vec<f64>], alpha: f64) -> Option<PairedDifference> {
    let all = differences.concat();
    let block = all.len() / MIN_BOOTSTRAP_BLOCKS;
    if block == 0 {
        return None;
    }
    let means: Vec<f64> = all.chunks_exact(block).map(mean).collect();
    let found = student_interval(&means, alpha)?;
    let of_sittings = differences.iter().filter(|sitting| !sitting.is_empty());
    let replicate_means: Vec<f64> = of_sittings.map(|sitting| mean(sitting)).collect();
    widen_by_replicates(found, differences.len(), &replicate_means, alpha)
}

/// All calls of a rung, the longest first, each with its block of rounds.
struct PooledCalls {
    longest: Vec<(u64, usize)>,
    calls_by_block: Vec<u64>,
}

impl PooledCalls {
    fn new(rung: &RungMeasurement, blocks: &[&[usize]]) -> PooledCalls {
        let mut longest = Vec::new();
        let mut calls_by_block = Vec::new();
        for (n, block) in blocks.iter().enumerate() {
            let before = longest.len();
            let times = block.iter().flat_map(|round| &rung.times_by_round[*round]);
            longest.extend(times.map(|ns| (*ns, n)));
            calls_by_block.push((longest.len() - before) as u64);
        }
        longest.sort_unstable_by(|a, b| b.cmp(a));
        PooledCalls {
            longest,
            calls_by_block,
        }
    }

    /// Returns the p99, in µs, of a resample in which block `i` occurs `times[i]` times.
    fn p99(&self, times: &[u64]) -> f64 {
        let mut calls = 0;
        for (of_block, n) in self.calls_by_block.iter().zip(times) {
            calls += of_block * n;
        }
        // The p99 by nearest rank is the time that is exceeded by this many calls.
        let mut longer = calls - (calls * 99).div_ceil(100);
        for (ns, block) in &self.longest {
            match longer.checked_sub(times[*block]) {
                Some(left) => longer = left,
                None => return *ns as f64 / 1e3,
            }
        }
        0.0
    }
}

pub(super) fn p99_difference(
    upper: &RungMeasurement,
    lower: &RungMeasurement,
    rounds: &[Vec<usize>],
    alpha: f64,
    random: &mut ChaCha8Rng,
) -> Option<PairedDifference> {
    // Blocks are long enough to be nearly independent of each other.
    let all: usize = rounds.iter().map(Vec::len).sum();
    let block = (all / (MIN_BOOTSTRAP_BLOCKS * 3 / 2)).max((all as f64).cbrt() as usize);
    if block == 0 {
        return None;
    }
    let divided = rounds.iter().map(|sitting| sitting.chunks(block));
    let blocks_by_replicate: Vec<usize> = divided.clone().map(|blocks| blocks.len()).collect();
    let divided: Vec<&[usize]> = divided.flatten().collect();
    let (upper, lower) = (
        PooledCalls::new(upper, &divided),
        PooledCalls::new(lower, &divided),
    );
    let blocks = divided.len();
    let supported = |pooled: &PooledCalls| is_supported(pooled.longest.len() as u64, 0.99);
    // Resamples of too few blocks hardly differ from each other.
    if blocks < MIN_BOOTSTRAP_BLOCKS || !supported(&upper) || !supported(&lower) {
        return None;
    }
    let difference = |times: &[u64]| upper.p99(times) - lower.p99(times);
    let shift = difference(&vec![1; blocks]);
    let mut resampled: Vec<f64> = (0..BOOTSTRAP_RESAMPLES)
        .map(|_| {
            let mut times = vec![0; blocks];
            for _ in 0..blocks {
                times[(random.next_u64() % blocks as u64) as usize] += 1;
            }
            difference(&times)
        })
        .collect();
    resampled.sort_by(f64::total_cmp);
    let beyond = (BOOTSTRAP_RESAMPLES as f64 * alpha / 2.0) as usize;
    let found = PairedDifference {
        shift,
        low: resampled[beyond].min(shift),
        high: resampled[BOOTSTRAP_RESAMPLES - 1 - beyond].max(shift),
    };
    // A single replicate has too few calls for a p99, so the jackknife leaves out one replicate at a time (Efron and
    // Tibshirani, *An Introduction to the Bootstrap*, 11.5).
    let sittings = rounds.len();
    let mut first = 0;
    let values = blocks_by_replicate.iter().map(|blocks_of_it| {
        let mut times = vec![1; blocks];
        times[first..first + blocks_of_it].fill(0);
        first += blocks_of_it;
        let n = sittings as f64;
        n * shift - (n - 1.0) * difference(&times)
    });
    let values: Vec<f64> = values.collect();
    widen_by_replicates(found, sittings, &values, alpha)
}
