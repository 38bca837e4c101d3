//! Percentiles and their confidence intervals, from order statistics.
//!
//! Of `n` independent values, the number below the quantile `p` has a binomial distribution (n, p), whatever the
//! values' distribution is. So the quantile lies between two of the sorted values with a known probability (David and
//! Nagaraja, *Order Statistics*, 7.1).

use hdrhistogram::Histogram;
use statrs::distribution::{Binomial, DiscreteCDF};

/// Minimum confidence with which a sample must bound a percentile for it to be reported.
pub const MIN_CONFIDENCE: f64 = 0.95;

/// Returns whether a sample of `n` values supports quantile `p` (0–1).
///
/// The sample must bound the quantile from both sides with 95 % confidence: on either side of the quantile, there must
/// be a value with probability 97.5 %, that is, pⁿ ≤ 2.5 % and (1−p)ⁿ ≤ 2.5 %. So p50 needs 6 values, p90 36, p95 72,
/// p99 368, p99.9 3,688 and p99.99 36,887.
pub fn is_supported(n: u64, p: f64) -> bool {
    let tail = (1.0 - MIN_CONFIDENCE) / 2.0;
    let n = n as f64;
    p > 0.0 && p < 1.0 && n * p.ln() <= tail.ln() && n * (-p).ln_1p() <= tail.ln()
}

/// Returns the value at quantile `p` (0–1) of a histogram; `None`: the sample is too small ([`is_supported`]).
pub fn quantile(histogram: &Histogram<u64>, p: f64) -> Option<u64> {
    is_supported(histogram.len(), p).then(|| histogram.value_at_quantile(p))
}

/// Returns the 1-based ranks of the sorted values that enclose quantile `p` of `n` values with at least 95 %
/// confidence; `None`: there are too few values.
pub fn confidence_ranks(n: u64, p: f64) -> Option<(u64, u64)> {
    if !is_supported(n, p) {
        return None;
    }
    let tail = (1.0 - MIN_CONFIDENCE) / 2.0;
    let below = Binomial::new(p, n).ok()?;
    // The largest l with P(B ≤ l−1) ≤ tail, and the smallest u with P(B ≥ u) ≤ tail.
    let lower = first_satisfying(n, |k| below.cdf(k) > tail);
    let upper = first_satisfying(n, |k| below.sf(k) <= tail) + 1;
    (lower >= 1 && upper <= n).then_some((lower, upper))
}

/// Returns the smallest `k` in 0..=n that satisfies a monotonic condition.
pub(crate) fn first_satisfying(n: u64, holds: impl Fn(u64) -> bool) -> u64 {
    let (mut low, mut high) = (0, n);
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

/// Returns a 95 % confidence interval of quantile `p` (0–1), as values of the histogram.
///
/// It assumes independent values. Calls of one run are correlated, so their true interval is at least as wide. To
/// compare runs, use [`super::rank`] instead.
pub fn confidence_interval(histogram: &Histogram<u64>, p: f64) -> Option<(u64, u64)> {
    let n = histogram.len();
    let (lower, upper) = confidence_ranks(n, p)?;
    let value_at_rank = |rank: u64| histogram.value_at_quantile(rank as f64 / n as f64);
    Some((value_at_rank(lower), value_at_rank(upper)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_require_minimum_sample_size() {
        for (p, smallest) in [
            (0.5, 6),
            (0.9, 36),
            (0.95, 72),
            (0.99, 368),
            (0.999, 3_688),
            (0.9999, 36_887),
        ] {
            assert!(!is_supported(smallest - 1, p), "{p}");
            assert!(is_supported(smallest, p), "{p}");
            assert_eq!(confidence_ranks(smallest - 1, p), None);
            assert!(confidence_ranks(smallest, p).is_some(), "{p}");
        }
        assert!(!is_supported(1_000, 0.0));
        assert!(!is_supported(1_000, 1.0));
    }

    #[test]
    fn confidence_ranks_match_published_tables() {
        // Median of 10 values: ranks 2 and 9 (97.9 %); of 20: 6 and 15 (95.9 %).
        assert_eq!(confidence_ranks(10, 0.5), Some((2, 9)));
        assert_eq!(confidence_ranks(20, 0.5), Some((6, 15)));
        assert_eq!(confidence_ranks(6, 0.5), Some((1, 6)));
    }

    #[test]
    fn the_interval_encloses_the_quantile() {
        let mut histogram = Histogram::<u64>::new(3).unwrap();
        for value in 1..=1_000 {
            histogram.record(value).unwrap();
        }
        let (low, high) = confidence_interval(&histogram, 0.9).unwrap();
        assert!(
            (878..=884).contains(&low) && (916..=922).contains(&high),
            "{low} {high}"
        );
        assert_eq!(quantile(&histogram, 0.9), Some(900));
        assert_eq!(quantile(&histogram, 0.9999), None);
    }
}
