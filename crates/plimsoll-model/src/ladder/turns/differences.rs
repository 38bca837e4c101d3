//! What turns show that one rung adds to another, with its interval: of one metric, at one level.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::RngCore;
use statrs::distribution::{ContinuousCDF, StudentsT};

use super::Measured;
use crate::ladder::Metric;
use crate::statistics::autocorrelation::widening;
use crate::statistics::paired::{Paired, paired};
use crate::statistics::quantile::is_supported;
use crate::statistics::rank::median_of;

/// The signed-rank interval of more pairs takes long. Fewer, each the median of a few neighbours, would
/// make a wider one: what disturbs single turns has long tails.
const MAX_PAIRS: usize = 1_000;

/// Fewer blocks would make intervals that hold together far wider by themselves.
const FEWEST_BLOCKS: usize = 20;

/// What neighbouring pairs have in common is estimated over one lag for so many pairs. With one for twelve,
/// simulated rungs that fare differently for tens of rounds were more often claimed to differ.
const PAIRS_A_LAG: usize = 16;

/// Resamples of a bootstrap: the tails of intervals that hold together are thin.
const RESAMPLES: usize = 8_000;

pub(super) fn p50(
    upper: &Measured,
    lower: &Measured,
    rounds: &[usize],
    alpha: f64,
) -> Option<Paired> {
    let differences: Vec<f64> = rounds
        .iter()
        .filter_map(|round| Some(upper.median_us(*round)? - lower.median_us(*round)?))
        .collect();
    dependent(&differences, alpha)
}

/// The interval of differences that may be alike when they are near each other.
fn dependent(differences: &[f64], alpha: f64) -> Option<Paired> {
    let block = differences.len().div_ceil(MAX_PAIRS).max(1);
    let medians: Vec<f64> = differences
        .chunks_exact(block)
        .filter_map(|block| median_of(block.to_vec()))
        .collect();
    let found = paired(&medians, alpha)?;
    let wider = widening(&medians, medians.len() / PAIRS_A_LAG, alpha);
    Some(Paired {
        low: found.shift - wider * (found.shift - found.low),
        high: found.shift + wider * (found.high - found.shift),
        ..found
    })
}

pub(super) fn cpu(
    upper: &Measured,
    lower: &Measured,
    metric: Metric,
    rounds: &[usize],
    alpha: f64,
) -> Option<Paired> {
    let differences: Vec<f64> = rounds
        .iter()
        .filter_map(|round| {
            let above = upper.cpu_us_per_call(metric, *round)?;
            Some(above - lower.cpu_us_per_call(metric, *round)?)
        })
        .collect();
    let typical = dependent(&differences, alpha)?;
    let average = average(&differences, alpha)?;
    // Bursts of work that few turns have, such as a garbage collector's, are a cost that ranks leave out.
    let bursts = typical.shift < average.low || typical.shift > average.high;
    let found = if bursts { average } else { typical };
    // Turns that agree to the nanosecond are of a clock that is too coarse for them.
    (found.low < found.high).then_some(found)
}

/// The mean of differences, with the interval of the means of blocks (Law, *Simulation Modeling and
/// Analysis*, 9.5.3). `None`: too few for blocks.
fn average(differences: &[f64], alpha: f64) -> Option<Paired> {
    let block = differences.len() / FEWEST_BLOCKS;
    if block == 0 {
        return None;
    }
    let means: Vec<f64> = differences.chunks_exact(block).map(mean).collect();
    let (n, shift) = (means.len() as f64, mean(&means));
    let squares: f64 = means.iter().map(|m| (m - shift).powi(2)).sum();
    let students = StudentsT::new(0.0, 1.0, n - 1.0).ok()?;
    let half = students.inverse_cdf(1.0 - alpha / 2.0) * (squares / (n - 1.0) / n).sqrt();
    Some(Paired {
        shift,
        low: shift - half,
        high: shift + half,
    })
}

pub(super) fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// All calls of a rung, the longest first, each with the block of rounds that it is of.
struct Pooled {
    longest: Vec<(u64, usize)>,
    calls_by_block: Vec<u64>,
}

impl Pooled {
    fn of(rung: &Measured, rounds: &[usize], block: usize) -> Pooled {
        let mut longest = Vec::new();
        let mut calls_by_block = Vec::new();
        for (n, block) in rounds.chunks(block).enumerate() {
            let before = longest.len();
            let times = block.iter().flat_map(|round| &rung.rounds[*round]);
            longest.extend(times.map(|ns| (*ns, n)));
            calls_by_block.push((longest.len() - before) as u64);
        }
        longest.sort_unstable_by(|a, b| b.cmp(a));
        Pooled {
            longest,
            calls_by_block,
        }
    }

    /// The p99 of a resample that has each block so often, in µs.
    fn p99(&self, times: &[u64]) -> f64 {
        let mut calls = 0;
        for (of_block, n) in self.calls_by_block.iter().zip(times) {
            calls += of_block * n;
        }
        // Nearest rank: so many calls are longer.
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

pub(super) fn p99(
    upper: &Measured,
    lower: &Measured,
    rounds: &[usize],
    alpha: f64,
    random: &mut ChaCha8Rng,
) -> Option<Paired> {
    // Long enough that blocks are nearly independent of each other.
    let block = (rounds.len() / (FEWEST_BLOCKS * 3 / 2)).max((rounds.len() as f64).cbrt() as usize);
    if block == 0 {
        return None;
    }
    let (upper, lower) = (
        Pooled::of(upper, rounds, block),
        Pooled::of(lower, rounds, block),
    );
    let blocks = upper.calls_by_block.len();
    let supported = |pooled: &Pooled| is_supported(pooled.longest.len() as u64, 0.99);
    // With fewer blocks a resample is hardly another sample.
    if blocks < FEWEST_BLOCKS || !supported(&upper) || !supported(&lower) {
        return None;
    }
    let difference = |times: &[u64]| upper.p99(times) - lower.p99(times);
    let shift = difference(&vec![1; blocks]);
    let mut resampled: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let mut times = vec![0; blocks];
            for _ in 0..blocks {
                times[(random.next_u64() % blocks as u64) as usize] += 1;
            }
            difference(&times)
        })
        .collect();
    resampled.sort_by(f64::total_cmp);
    let beyond = (RESAMPLES as f64 * alpha / 2.0) as usize;
    Some(Paired {
        shift,
        low: resampled[beyond].min(shift),
        high: resampled[RESAMPLES - 1 - beyond].max(shift),
    })
}
