//! Paired differences by ranks: the Hodges–Lehmann estimate with the interval of Wilcoxon's signed-rank test, exact
//! for up to [`MAX_EXACT_PAIRS`] pairs (Hollander and Wolfe, *Nonparametric Statistical Methods*, 3.1–3.3).
//!
//! Two variants measured close together in time share the state of the machine, so their paired differences are more
//! informative than the difference of all their values.

use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, Normal};

/// Maximum number of pairs for the exact interval, which takes cubic time.
const MAX_EXACT_PAIRS: usize = 60;

/// A difference with its interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PairedDifference {
    /// The median of the Walsh averages.
    pub shift: f64,
    /// The interval's lower end.
    pub low: f64,
    /// The interval's upper end.
    pub high: f64,
}

impl PairedDifference {
    /// Returns whether the interval excludes zero.
    pub fn excludes_zero(&self) -> bool {
        self.low > 0.0 || self.high < 0.0
    }
}

/// Estimates the location of the differences of pairs, with an interval that misses the true value with probability
/// `alpha` at most. `None`: there are too few pairs, or a value is NaN.
pub fn paired_difference(differences: &[f64], alpha: f64) -> Option<PairedDifference> {
    if differences.iter().any(|d| !d.is_finite()) {
        return None;
    }
    let beyond = excluded_average_count(differences.len(), alpha / 2.0)?;
    let mut averages = Vec::new();
    for (i, a) in differences.iter().enumerate() {
        averages.extend(differences[i..].iter().map(|b| f64::midpoint(*a, *b)));
    }
    let n = averages.len();
    let mut nth = |n: usize| *averages.select_nth_unstable_by(n, f64::total_cmp).1;
    Some(PairedDifference {
        shift: f64::midpoint(nth((n - 1) / 2), nth(n / 2)),
        low: nth(beyond),
        high: nth(n - 1 - beyond),
    })
}

/// Returns the smallest number of pairs for which there is an interval with error probability `alpha`.
pub fn min_pairs(alpha: f64) -> usize {
    // The most extreme outcome, that all signs are equal, has a probability of 2 / 2ⁿ.
    (1..64)
        .find(|n| 2.0 / 2_f64.powi(*n) <= alpha)
        .map_or(64, |n| n as usize)
}

/// Returns how many of the smallest Walsh averages lie outside the interval: the largest k with P(signed-rank sum ≤ k)
/// ≤ `tail`. `None`: even k = 0 is too likely.
fn excluded_average_count(n: usize, tail: f64) -> Option<usize> {
    if n == 0 {
        return None;
    }
    if n > MAX_EXACT_PAIRS {
        return approximate_excluded_average_count(n, tail);
    }
    let most = n * (n + 1) / 2;
    let mut ways = vec![0.0_f64; most + 1];
    ways[0] = 1.0;
    for rank in 1..=n {
        for sum in (rank..=most).rev() {
            ways[sum] += ways[sum - rank];
        }
    }
    let total = 2_f64.powi(i32::try_from(n).ok()?);
    let mut cumulated = 0.0;
    let mut found = None;
    for (k, count) in ways.iter().enumerate() {
        cumulated += count;
        if cumulated / total > tail {
            break;
        }
        found = Some(k);
    }
    found
}

/// Approximates [`excluded_average_count`] for many pairs by the normal distribution with continuity correction.
fn approximate_excluded_average_count(n: usize, tail: f64) -> Option<usize> {
    let n = n as f64;
    let (mean, variance) = (n * (n + 1.0) / 4.0, n * (n + 1.0) * (2.0 * n + 1.0) / 24.0);
    let z = Normal::standard().inverse_cdf(tail.clamp(f64::MIN_POSITIVE, 0.5));
    let k = (mean + z * variance.sqrt() - 0.5).floor();
    (k >= 0.0).then_some(k as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn critical_values_match_published_tables() {
        // Critical values of the signed-rank sum, two-sided 5 % (Wilcoxon's table).
        for (n, critical) in [(6, 0), (8, 3), (10, 8), (15, 25), (20, 52)] {
            assert_eq!(excluded_average_count(n, 0.025), Some(critical), "{n}");
        }
        assert_eq!(excluded_average_count(5, 0.025), None);
        assert_eq!(min_pairs(0.05), 6);
        assert_eq!(min_pairs(0.002), 10);
    }

    #[test]
    fn approximation_converges_to_exact_cut() {
        for tail in [0.025, 0.005, 0.0006] {
            let off = |n| {
                let (exact, near) = (
                    excluded_average_count(n, tail).unwrap(),
                    approximate_excluded_average_count(n, tail).unwrap(),
                );
                exact.abs_diff(near) as f64 / exact as f64
            };
            assert!(
                off(30) < 0.12 && off(60) < 0.02,
                "{tail}: {} {}",
                off(30),
                off(60)
            );
        }
        assert_eq!(approximate_excluded_average_count(2, 1e-9), None);
        assert!(excluded_average_count(400, 0.0006).is_some_and(|k| (30_000..40_100).contains(&k)));
    }

    /// The signed ranks of 1 to 6 sum up to 0, 1, 2, 3, 4 in 1, 1, 1, 2, 2 of 64 ways (counted with
    /// `itertools.product`).
    #[test]
    fn critical_values_are_exact_at_boundaries() {
        for (ways, cut_at) in [
            (0.99, None),
            (1.0, Some(0)),
            (1.99, Some(0)),
            (2.0, Some(1)),
            (3.0, Some(2)),
            (4.99, Some(2)),
            (5.0, Some(3)),
            (7.0, Some(4)),
        ] {
            assert_eq!(excluded_average_count(6, ways / 64.0), cut_at, "{ways}");
        }
        assert_eq!(excluded_average_count(0, 0.5), None);
        assert_eq!(excluded_average_count(1, 0.5), Some(0));
        assert_eq!(min_pairs(2.0 / 32.0), 5, "to the letter");
        assert_eq!(min_pairs(2.0 / 32.1), 6);
        assert_eq!(min_pairs(1.0), 1);
        assert_eq!(min_pairs(0.0), 64);
    }

    #[test]
    fn interval_touching_zero_is_not_clear() {
        let clear = |low, high| {
            PairedDifference {
                shift: 0.0,
                low,
                high,
            }
            .excludes_zero()
        };
        assert!(clear(0.1, 1.0) && clear(-1.0, -0.1));
        assert!(!clear(0.0, 1.0) && !clear(-1.0, 0.0) && !clear(-1.0, 1.0));
    }

    /// The 36 Walsh averages of these are, sorted, 1, 1.5, 2, 2.5, … 72, 80, 96, 128; the interval
    /// of 5 % leaves three out on either side (`sorted((x[i] + x[j]) / 2 for i, j in …)`).
    #[test]
    fn interval_trims_walsh_averages_per_table() {
        let d = paired_difference(&[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0], 0.05).unwrap();
        assert_eq!((d.low, d.high), (2.5, 72.0));
        assert_eq!(d.shift, 19.0);
        let tighter =
            paired_difference(&[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0], 2.0 / 256.0).unwrap();
        assert_eq!((tighter.low, tighter.high), (1.0, 128.0));
    }

    #[test]
    fn shift_lies_within_its_bounds() {
        let d = paired_difference(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 0.05).unwrap();
        assert_eq!((d.low, d.shift, d.high), (1.0, 3.5, 6.0));
        assert!(d.excludes_zero());
        let d = paired_difference(&[-1.0, 2.0, -3.0, 4.0, -5.0, 6.0], 0.05).unwrap();
        assert!(!d.excludes_zero());
        assert_eq!(paired_difference(&[1.0; 5], 0.05), None);
        assert_eq!(paired_difference(&[f64::NAN; 9], 0.05), None);
        let same = paired_difference(&[0.0; 8], 0.05).unwrap();
        assert!(!same.excludes_zero());
    }
}
