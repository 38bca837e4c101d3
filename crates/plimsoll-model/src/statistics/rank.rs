//! Two groups of runs compared by ranks: the Mann–Whitney test, and the difference of
//! the medians with its confidence (Hodges and Lehmann 1963).
//!
//! The values are one statistic a run (its p99, its mean), never single calls: calls of
//! one run share that run's luck, and tests over them call noise a difference.
//! Small groups are computed exactly, ties included, by counting the ways in which the
//! rank sum can come about; the normal approximation serves above [`EXACT_RUNS`].

use statrs::distribution::{ContinuousCDF, Normal};

/// Fewer runs a side than this can't show a difference: with three against three the
/// most extreme order of all comes about by chance in 10 % of cases.
pub const FEWEST_RUNS: usize = 4;

/// Both groups together, up to which the test is computed exactly.
pub const EXACT_RUNS: usize = 60;

/// How two groups of runs differ in one statistic.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// The Hodges–Lehmann estimate of b − a: the median of all pairwise differences.
    pub shift: f64,
    /// 95 % confidence interval of the shift.
    pub low: f64,
    pub high: f64,
    /// Two-sided Mann–Whitney p-value: how often chance alone differs this much.
    pub p_value: f64,
}

impl Difference {
    /// Chance alone would differ this much in fewer than 5 % of cases.
    pub fn is_clear(&self) -> bool {
        self.p_value < 0.05
    }
}

/// Compare `b` with `a`. `None`: fewer than [`FEWEST_RUNS`] a side, or a value that is
/// not a number: not enough to tell.
pub fn compare(a: &[f64], b: &[f64]) -> Option<Difference> {
    if a.len() < FEWEST_RUNS || b.len() < FEWEST_RUNS {
        return None;
    }
    if a.iter().chain(b).any(|v| !v.is_finite()) {
        return None;
    }
    let mut differences: Vec<f64> = b
        .iter()
        .flat_map(|vb| a.iter().map(move |va| vb - va))
        .collect();
    differences.sort_by(f64::total_cmp);
    let pairs = differences.len();
    // From the k-th smallest to the k-th largest pairwise difference, where fewer than k
    // pairs the wrong way round come about in at most 2.5 % of cases: k ≥ 1 from four
    // runs a side.
    let beyond = lower_tail(a.len(), b.len(), 0.025).clamp(1, pairs.div_ceil(2)) - 1;
    Some(Difference {
        shift: median(&differences),
        low: differences[beyond],
        high: differences[pairs - 1 - beyond],
        p_value: mann_whitney(a, b),
    })
}

/// The median of sorted values; 0 of none.
pub fn median(sorted: &[f64]) -> f64 {
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// The two-sided p-value of the Mann–Whitney U test, exact with ties up to
/// [`EXACT_RUNS`] values in all.
fn mann_whitney(a: &[f64], b: &[f64]) -> f64 {
    let ranks = doubled_ranks(a, b);
    let observed: usize = ranks[..a.len()].iter().sum();
    if ranks.len() > EXACT_RUNS {
        return approximate(&ranks, a.len(), observed);
    }
    let ways = rank_sums(&ranks, a.len());
    let total: f64 = ways.iter().sum();
    let below: f64 = ways[..=observed].iter().sum();
    let above: f64 = ways[observed..].iter().sum();
    (2.0 * below.min(above) / total).min(1.0)
}

/// Twice the mid-rank of every value, `a`'s first: whole numbers in spite of ties.
fn doubled_ranks(a: &[f64], b: &[f64]) -> Vec<usize> {
    let all = || a.iter().chain(b);
    all()
        .map(|v| {
            let below = all().filter(|w| *w < v).count();
            let equal = all().filter(|w| *w == v).count();
            2 * below + equal + 1
        })
        .collect()
}

/// For every sum, the number of ways in which `size` of the ranks have that sum.
fn rank_sums(ranks: &[usize], size: usize) -> Vec<f64> {
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

/// The normal approximation, with corrections for ties and continuity.
fn approximate(ranks: &[usize], size: usize, observed: usize) -> f64 {
    let (n1, n) = (size as f64, ranks.len() as f64);
    let n2 = n - n1;
    // The variance of the rank sum from the ranks themselves, so that ties count.
    let mean = ranks.iter().sum::<usize>() as f64 / 2.0 / n;
    let spread: f64 = ranks.iter().map(|r| (*r as f64 / 2.0 - mean).powi(2)).sum();
    let deviation = (n1 * n2 / (n * (n - 1.0)) * spread).sqrt();
    if deviation == 0.0 {
        return 1.0;
    }
    let distance = ((observed as f64 / 2.0 - n1 * mean).abs() - 0.5).max(0.0);
    (2.0 * Normal::standard().sf(distance / deviation)).min(1.0)
}

/// The largest k for which P(U < k) ≤ `tail`, where U counts the pairs in which the one
/// group's value is the larger.
fn lower_tail(n1: usize, n2: usize, tail: f64) -> usize {
    if n1 + n2 > EXACT_RUNS {
        let (m, n) = (n1 as f64, n2 as f64);
        let deviation = (m * n * (m + n + 1.0) / 12.0).sqrt();
        let z = Normal::standard().inverse_cdf(1.0 - tail);
        return (m * n / 2.0 - z * deviation).floor().max(0.0) as usize;
    }
    let ranks: Vec<usize> = (1..=n1 + n2).collect();
    let ways = rank_sums(&ranks, n1);
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
    fn a_published_example() {
        // The ages of 5 men and 4 women at diagnosis (SciPy's manual of mannwhitneyu):
        // exact two-sided p = 1/9.
        let men = [19.0, 22.0, 16.0, 29.0, 24.0];
        let women = [20.0, 11.0, 17.0, 12.0];
        let p = mann_whitney(&men, &women);
        assert!((p - 0.111_111).abs() < 1e-5, "{p}");
        assert!((mann_whitney(&women, &men) - p).abs() < 1e-12);
    }

    #[test]
    fn four_against_four_apart_is_the_least_that_is_clear() {
        let d = compare(&[1.0, 2.0, 3.0, 4.0], &[11.0, 12.0, 13.0, 14.0]).unwrap();
        assert!((d.p_value - 2.0 / 70.0).abs() < 1e-12);
        assert!(d.is_clear());
        assert_eq!((d.shift, d.low, d.high), (10.0, 7.0, 13.0));
        assert_eq!(compare(&[1.0, 2.0, 3.0], &[11.0, 12.0, 13.0, 14.0]), None);
        assert_eq!(compare(&[f64::NAN; 4], &[1.0; 4]), None);
    }

    #[test]
    fn cuts_are_those_of_published_tables() {
        // Critical values of U, two-sided 5 % (Mann and Whitney's table): the largest U
        // that is still significant is 0, 5, 13, 23 for 4, 6, 8, 10 a side.
        for (n, critical) in [(4, 0), (6, 5), (8, 13), (10, 23)] {
            assert_eq!(lower_tail(n, n, 0.025), critical + 1, "{n}");
        }
        let exact = lower_tail(30, 30, 0.025) as i64;
        let approximate = {
            let deviation = (900.0_f64 * 61.0 / 12.0).sqrt();
            (450.0 - 1.959_964 * deviation) as i64
        };
        assert!((exact - approximate).abs() <= 1);
    }

    #[test]
    fn equal_values_are_no_difference() {
        let d = compare(&[5.0; 6], &[5.0; 6]).unwrap();
        assert_eq!((d.shift, d.low, d.high), (0.0, 0.0, 0.0));
        assert!((d.p_value - 1.0).abs() < 1e-12);
        assert!((mann_whitney(&[5.0; 40], &[5.0; 40]) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn approximation_and_exact_agree_at_the_border() {
        let a: Vec<f64> = (0..30).map(|i| f64::from(i) + 0.25).collect();
        let b: Vec<f64> = (0..30).map(|i| f64::from(i) * 1.3).collect();
        let ranks = doubled_ranks(&a, &b);
        let near = approximate(&ranks, 30, ranks[..30].iter().sum());
        assert!((mann_whitney(&a, &b) - near).abs() < 0.01);
    }
}
