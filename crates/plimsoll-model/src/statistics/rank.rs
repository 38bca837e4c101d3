//! Compares two groups of runs by ranks: the Mann–Whitney test, and the difference of the medians with its confidence
//! interval (Hodges and Lehmann 1963).
//!
//! The values are one statistic of each run (its p99, its mean), never single calls: calls of one run are correlated,
//! and tests over them would report noise as a difference. Small groups are computed exactly, ties included, by
//! counting the ways in which the rank sum can arise; above [`MAX_EXACT_RUNS`] the normal approximation is used.
//!
//! When several statistics of the same runs are compared, the error probability of 5 % applies to all of them together
//! (Bonferroni), as in [`crate::comparisons::ladder`]: p-values are multiplied by the number of statistics, and the
//! intervals are simultaneous.

use statrs::distribution::{ContinuousCDF, Normal};
use statrs::statistics::{Data, OrderStatistics, RankTieBreaker};

/// Probability of reporting a difference between equal groups, over all statistics that are compared together.
pub const ALPHA: f64 = 0.05;

/// Maximum size of both groups together for the exact test.
pub const MAX_EXACT_RUNS: usize = 60;

/// The difference of two groups of runs in one statistic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupDifference {
    /// The Hodges–Lehmann estimate of b − a: the median of all pairwise differences.
    pub shift: f64,
    /// Lower end of the confidence interval of the shift: 95 % for all statistics that are compared together.
    pub low: f64,
    /// Upper end of that interval.
    pub high: f64,
    /// Two-sided Mann–Whitney p-value, times the number of statistics compared together: an upper bound of the
    /// probability that any of them differs this much by chance.
    pub p_value: f64,
}

impl GroupDifference {
    /// Returns whether the probability that any statistic differs this much by chance is at most 5 %.
    pub fn is_significant(&self) -> bool {
        self.p_value <= ALPHA
    }
}

/// Returns whether groups of these sizes can differ significantly in one of `together` statistics, that is, whether the
/// most extreme orders of all values are improbable enough.
pub fn has_enough_values(n1: usize, n2: usize, together: usize) -> bool {
    // The number of orders is the binomial coefficient "n1 + n2 choose n1".
    let orders: f64 = (1..=n1).map(|i| (n2 + i) as f64 / i as f64).product();
    2.0 / orders * together.max(1) as f64 <= ALPHA
}

/// Returns the smallest number of runs in each group with which one of `together` statistics can differ significantly.
pub fn min_runs(together: usize) -> usize {
    (1..)
        .find(|n| has_enough_values(*n, *n, together))
        .unwrap_or(1)
}

/// Compares `b` with `a` in one of `together` statistics of the same runs. `None`: too few runs
/// ([`has_enough_values`]), or a value is NaN.
pub fn compare_groups(a: &[f64], b: &[f64], together: usize) -> Option<GroupDifference> {
    if !has_enough_values(a.len(), b.len(), together) {
        return None;
    }
    if a.iter().chain(b).any(|v| !v.is_finite()) {
        return None;
    }
    let together = together.max(1) as f64;
    let mut differences: Vec<f64> = b
        .iter()
        .flat_map(|vb| a.iter().map(move |va| vb - va))
        .collect();
    differences.sort_by(f64::total_cmp);
    let pairs = differences.len();
    // The interval extends from the k-th smallest to the k-th largest pairwise difference, where k is the result of
    // `lower_tail_quantile` for half of the allowed error. `has_enough_values` ensures that k ≥ 1 in the exact test.
    let beyond = lower_tail_quantile(a.len(), b.len(), ALPHA / together / 2.0)
        .clamp(1, pairs.div_ceil(2))
        - 1;
    Some(GroupDifference {
        shift: median_of_sorted(&differences),
        low: differences[beyond],
        high: differences[pairs - 1 - beyond],
        p_value: (mann_whitney(a, b) * together).min(1.0),
    })
}

/// Returns the median of sorted values; 0 if there are none.
pub fn median_of_sorted(sorted: &[f64]) -> f64 {
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// Returns the median of values in any order; `None` if there are none.
pub fn median_of_unsorted(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    (!values.is_empty()).then(|| median_of_sorted(&values))
}

/// Returns the two-sided p-value of the Mann–Whitney U test, exact with ties up to [`MAX_EXACT_RUNS`] values in all.
fn mann_whitney(a: &[f64], b: &[f64]) -> f64 {
    let ranks = doubled_ranks(a, b);
    let observed: usize = ranks[..a.len()].iter().sum();
    if ranks.len() > MAX_EXACT_RUNS {
        return approximate_p_value(&ranks, a.len(), observed);
    }
    let ways = rank_sum_counts(&ranks, a.len());
    let total: f64 = ways.iter().sum();
    let below: f64 = ways[..=observed].iter().sum();
    let above: f64 = ways[observed..].iter().sum();
    (2.0 * below.min(above) / total).min(1.0)
}

/// Returns twice the mid-rank of every value, those of `a` first. Doubled, mid-ranks are integers even if there are
/// ties.
fn doubled_ranks(a: &[f64], b: &[f64]) -> Vec<usize> {
    let ranks = Data::new([a, b].concat()).ranks(RankTieBreaker::Average);
    ranks.iter().map(|rank| (2.0 * rank) as usize).collect()
}

/// Returns, for every sum, the number of ways to choose `size` of the ranks with this sum.
fn rank_sum_counts(ranks: &[usize], size: usize) -> Vec<f64> {
    let most: usize = ranks.iter().sum();
    let mut ways = vec![vec![0.0; most + 1]; size + 1];
    ways[0][0] = 1.0;
    for &rank in ranks {
        for taken in (1..=size).rev() {
            for sum in (rank..=most).rev() {
                ways[taken][sum] += ways[taken - 1][sum - rank];
            }
        }
    }
    ways.swap_remove(size)
}

/// Returns the p-value by the normal approximation, with corrections for ties and continuity.
fn approximate_p_value(ranks: &[usize], size: usize, observed: usize) -> f64 {
    let (n1, n) = (size as f64, ranks.len() as f64);
    let n2 = n - n1;
    // The variance of the rank sum is computed from the ranks themselves, so that ties are accounted for.
    let mean = ranks.iter().sum::<usize>() as f64 / 2.0 / n;
    let spread: f64 = ranks.iter().map(|r| (*r as f64 / 2.0 - mean).powi(2)).sum();
    let deviation = (n1 * n2 / (n * (n - 1.0)) * spread).sqrt();
    if deviation == 0.0 {
        return 1.0;
    }
    let distance = ((observed as f64 / 2.0 - n1 * mean).abs() - 0.5).max(0.0);
    (2.0 * Normal::standard().sf(distance / deviation)).min(1.0)
}

/// Returns the largest k for which P(U < k) ≤ `tail`, where U is the number of pairs in which the first group's value
/// is larger.
fn lower_tail_quantile(n1: usize, n2: usize, tail: f64) -> usize {
    if n1 + n2 > MAX_EXACT_RUNS {
        let (m, n) = (n1 as f64, n2 as f64);
        let deviation = (m * n * (m + n + 1.0) / 12.0).sqrt();
        let z = Normal::standard().inverse_cdf(1.0 - tail);
        return (m * n / 2.0 - z * deviation).floor().max(0.0) as usize;
    }
    let ranks: Vec<usize> = (1..=n1 + n2).collect();
    let ways = rank_sum_counts(&ranks, n1);
    let total: f64 = ways.iter().sum();
    let smallest = n1 * (n1 + 1) / 2;
    let mut cumulated = 0.0;
    for (k, count) in ways[smallest..].iter().enumerate() {
        cumulated += count;
        if cumulated / total > tail {
            return k;
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u_test_matches_published_example() {
        // The ages of 5 men and 4 women at diagnosis (SciPy's manual of mannwhitneyu):
        // exact two-sided p = 1/9.
        let men = [19.0, 22.0, 16.0, 29.0, 24.0];
        let women = [20.0, 11.0, 17.0, 12.0];
        let p = mann_whitney(&men, &women);
        assert!((p - 0.111_111).abs() < 1e-5, "{p}");
        assert!((mann_whitney(&women, &men) - p).abs() < 1e-12);
    }

    #[test]
    fn clear_difference_needs_four_values() {
        let d = compare_groups(&[1.0, 2.0, 3.0, 4.0], &[11.0, 12.0, 13.0, 14.0], 1).unwrap();
        assert!((d.p_value - 2.0 / 70.0).abs() < 1e-12);
        assert!(d.is_significant());
        assert_eq!((d.shift, d.low, d.high), (10.0, 7.0, 13.0));
        assert_eq!(
            compare_groups(&[1.0, 2.0, 3.0], &[11.0, 12.0, 13.0], 1),
            None
        );
        assert_eq!(compare_groups(&[f64::NAN; 4], &[1.0; 4], 1), None);
        assert_eq!(compare_groups(&[1.0; 4], &[f64::INFINITY; 4], 1), None);
    }

    #[test]
    fn critical_values_match_published_tables() {
        // Critical values of U, two-sided 5 % (Mann and Whitney's table): the largest U
        // that is still significant is 0, 5, 13, 23 for 4, 6, 8, 10 a side.
        for (n, critical) in [(4, 0), (6, 5), (8, 13), (10, 23)] {
            assert_eq!(lower_tail_quantile(n, n, 0.025), critical + 1, "{n}");
        }
        let exact = lower_tail_quantile(30, 30, 0.025) as i64;
        let approximate = {
            let deviation = (900.0_f64 * 61.0 / 12.0).sqrt();
            (450.0 - 1.959_964 * deviation) as i64
        };
        assert!((exact - approximate).abs() <= 1);
    }

    #[test]
    fn equal_values_are_no_difference() {
        let d = compare_groups(&[5.0; 6], &[5.0; 6], 9).unwrap();
        assert_eq!((d.shift, d.low, d.high), (0.0, 0.0, 0.0));
        assert!((d.p_value - 1.0).abs() < 1e-12);
        assert!((mann_whitney(&[5.0; 40], &[5.0; 40]) - 1.0).abs() < 1e-12);
    }

    /// SciPy 1.17: `mannwhitneyu([3.1, 4.7, 5.9, 2.2, 6.8, 7.3, 1.5],
    /// [4.1, 8.2, 9.6, 5.3, 7.7, 10.4], method="exact")`.
    #[test]
    fn exact_p_value_matches_scipy() {
        let a = [3.1, 4.7, 5.9, 2.2, 6.8, 7.3, 1.5];
        let b = [4.1, 8.2, 9.6, 5.3, 7.7, 10.4];
        for p in [mann_whitney(&a, &b), mann_whitney(&b, &a)] {
            assert!((p - 0.051_282_051_282_051_28).abs() < 1e-14, "{p}");
        }
        // Ties, by counting: of the 252 ways to choose five of these ten mid-ranks 19 have a sum
        // as small as the first group's (`itertools.combinations`).
        let (a, b) = ([1.0, 2.0, 2.0, 3.0, 5.0], [2.0, 4.0, 5.0, 5.0, 6.0]);
        for p in [mann_whitney(&a, &b), mann_whitney(&b, &a)] {
            assert!((p - 38.0 / 252.0).abs() < 1e-14, "{p}");
        }
        assert_eq!(doubled_ranks(&a, &b), [2, 6, 6, 10, 16, 6, 12, 16, 16, 20]);
    }

    /// SciPy 1.17: `mannwhitneyu(range(30), [i * 1.3 + 0.65 for i in range(n)], method=…)`,
    /// "exact" for n = 30 and "asymptotic" for n = 31; and, with ties, `mannwhitneyu([i % 7 for i
    /// in range(31)], [i % 9 for i in range(32)], method="asymptotic")`.
    #[test]
    fn p_values_match_scipy_at_exact_limit() {
        let a: Vec<f64> = (0..30).map(f64::from).collect();
        let b = |n: i32| -> Vec<f64> { (0..n).map(|i| f64::from(i) * 1.3 + 0.65).collect() };
        let p = mann_whitney(&a, &b(30));
        assert!((p - 0.090_602_572_353_106_37).abs() < 1e-12, "{p}");
        let p = mann_whitney(&a, &b(31));
        assert!((p - 0.061_734_375_812_617_11).abs() < 1e-9, "{p}");
        let modulo = |n: i32, m: i32| -> Vec<f64> { (0..n).map(|i| f64::from(i % m)).collect() };
        for (a, b) in [
            (modulo(31, 7), modulo(32, 9)),
            (modulo(32, 9), modulo(31, 7)),
        ] {
            let p = mann_whitney(&a, &b);
            assert!((p - 0.195_124_331_673_826_8).abs() < 1e-9, "{p}");
        }
    }

    #[test]
    fn critical_values_are_exact_at_boundaries() {
        // Of the 70 orders of four and four, 1 has no pair in the opposite order, 2 have at most one, 4 at most two, 7
        // at most three.
        for (orders, cut) in [
            (0.99, 0),
            (1.0, 1),
            (1.99, 1),
            (2.0, 2),
            (3.99, 2),
            (4.0, 3),
        ] {
            assert_eq!(lower_tail_quantile(4, 4, orders / 70.0), cut, "{orders}");
        }
        // With different sizes: of 15 orders of two and four, 1, 2, 4, 6.
        for (orders, cut) in [(1.0, 1), (2.0, 2), (4.0, 3), (5.99, 3), (6.0, 4)] {
            assert_eq!(lower_tail_quantile(2, 4, orders / 15.0), cut, "{orders}");
        }
        assert_eq!(
            lower_tail_quantile(4, 4, 1.0),
            0,
            "no order is beyond all of them"
        );
        // 450 − 1.96 · √(30 · 30 · 61 / 12) = 317.4 exactly computed is 318; of 31 and 30 the
        // approximation gives 465 − 1.96 · √(31 · 30 · 62 / 12) = 329.1.
        assert_eq!(lower_tail_quantile(30, 30, 0.025), 318);
        assert_eq!(lower_tail_quantile(31, 30, 0.025), 329);
        assert_eq!(lower_tail_quantile(1, 70, 0.000_001), 0, "never below none");
    }

    #[test]
    fn simultaneous_comparisons_need_more_runs() {
        // 2 of the orders of n and n: 70, 252, 924 for n = 4, 5, 6.
        for (together, fewest) in [(0, 4), (1, 4), (2, 5), (6, 5), (7, 6), (23, 6), (24, 7)] {
            assert_eq!(min_runs(together), fewest, "{together}");
        }
        // 2 · 3 of 120 orders is exactly 5 %.
        assert!(
            has_enough_values(3, 7, 3)
                && !has_enough_values(3, 7, 4)
                && !has_enough_values(3, 6, 3)
        );
        assert!(!has_enough_values(0, 9, 1) && !has_enough_values(9, 0, 1));
        let (a, b) = (
            [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
            [11.0, 12.0, 13.0, 14.0, 15.0, 16.0],
        );
        let alone = compare_groups(&a, &b, 1).unwrap();
        let nine = compare_groups(&a, &b, 9).unwrap();
        assert!((nine.p_value - 9.0 * 2.0 / 924.0).abs() < 1e-12);
        assert!((alone.p_value - 2.0 / 924.0).abs() < 1e-12);
        // 2.5 % of 924 orders are those with up to 5 pairs in the opposite order, 0.28 % those with at most one: so
        // the sixth difference is the lowest, and the second.
        assert_eq!((alone.low, alone.high), (7.0, 13.0));
        assert_eq!((nine.low, nine.high), (6.0, 14.0));
        assert!(nine.is_significant());
        assert_eq!(compare_groups(&a[..5], &b[..5], 9), None);
        let half = GroupDifference {
            p_value: ALPHA,
            ..nine
        };
        assert!(half.is_significant());
        let more = GroupDifference {
            p_value: 0.050_001,
            ..nine
        };
        assert!(!more.is_significant());
        assert_eq!(compare_groups(&a, &a, 9).unwrap().p_value, 1.0);
    }

    #[test]
    fn median_of_even_and_odd_counts() {
        assert_eq!(median_of_sorted(&[]), 0.0);
        assert_eq!(median_of_sorted(&[3.0]), 3.0);
        assert_eq!(median_of_sorted(&[3.0, 5.0]), 4.0);
        assert_eq!(median_of_sorted(&[3.0, 5.0, 9.0]), 5.0);
    }

    #[test]
    fn approximation_agrees_with_exact_at_limit() {
        let a: Vec<f64> = (0..30).map(|i| f64::from(i) + 0.25).collect();
        let b: Vec<f64> = (0..30).map(|i| f64::from(i) * 1.3).collect();
        let ranks = doubled_ranks(&a, &b);
        let near = approximate_p_value(&ranks, 30, ranks[..30].iter().sum());
        assert!((mann_whitney(&a, &b) - near).abs() < 0.01);
    }
}
