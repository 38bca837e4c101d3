//! Percentiles of the times of one rung (variant) of a ladder, given in nanoseconds by round.

use crate::statistics::quantile::is_supported;
use crate::statistics::rank::median_of_unsorted;

/// Returns the median of the times of a round, in µs; `None`: it has none.
pub(super) fn round_median_us(times_by_round: &[Vec<u64>], round: usize) -> Option<f64> {
    let times = times_by_round.get(round)?.iter().map(|ns| *ns as f64);
    median_of_unsorted(times.collect()).map(|ns| ns / 1e3)
}

/// Returns a quantile of the times of all rounds together, in µs; `None`: too few times.
pub(super) fn pooled_quantile_us(times_by_round: &[Vec<u64>], q: f64) -> Option<f64> {
    let mut times: Vec<u64> = times_by_round.iter().flatten().copied().collect();
    if !is_supported(times.len() as u64, q) {
        return None;
    }
    times.sort_unstable();
    // Nearest rank.
    let rank = (times.len() as f64 * q).ceil() as usize;
    times.get(rank.max(1) - 1).map(|ns| *ns as f64 / 1e3)
}
