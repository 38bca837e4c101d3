//! The factor by which autocorrelation of a series widens the confidence interval of its location.

use statrs::distribution::{ContinuousCDF, Normal, StudentsT};
use statrs::statistics::{Data, OrderStatistics, RankTieBreaker};

/// Returns the factor by which an interval of the values' location is wider than that of the same number of independent
/// values. The factor is at least 1: negative correlation is ignored.
///
/// The factor has two parts. The first comes from the ratio of the long-run variance to the variance, both of the
/// values' ranks, which are robust to outliers. The long-run variance is estimated over `lags` lags, the first half of
/// which have full weight (Politis and Romano, *Bias-corrected nonparametric spectral estimation*, 1995). The second
/// part replaces the normal quantile with Student's t, whose degrees of freedom are those of this estimate (Priestley,
/// *Spectral Analysis and Time Series*, 6.2.4: 2n / M∫k²). `alpha`: the interval's error probability, both tails
/// together.
pub fn interval_widening(values: &[f64], lags: usize, alpha: f64) -> f64 {
    let n = values.len();
    if lags < 2 || n <= 2 * lags {
        return 1.0;
    }
    let ranks = Data::new(values.to_vec()).ranks(RankTieBreaker::Average);
    let mean = (n as f64 + 1.0) / 2.0;
    let ranks: Vec<f64> = ranks.iter().map(|rank| rank - mean).collect();
    let product = |lag: usize| -> f64 { ranks.iter().zip(&ranks[lag..]).map(|(a, b)| a * b).sum() };
    let own = product(0);
    if own <= 0.0 {
        return 1.0;
    }
    let shared: f64 = (1..lags)
        .map(|lag| 2.0 * (2.0 * (1.0 - lag as f64 / lags as f64)).min(1.0) * product(lag) / own)
        .sum();
    let freedom = 1.5 * n as f64 / lags as f64;
    let tail = 1.0 - alpha / 2.0;
    let students = StudentsT::new(0.0, 1.0, freedom).map_or(f64::NAN, |t| t.inverse_cdf(tail));
    let uncertain = (students / Normal::standard().inverse_cdf(tail)).max(1.0);
    (1.0 + shared).max(1.0).sqrt() * uncertain
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{RngCore, SeedableRng};

    use super::*;

    fn noise(n: usize, seed: u64) -> Vec<f64> {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        (0..n).map(|_| f64::from(random.next_u32())).collect()
    }

    #[test]
    fn widening_grows_with_repeated_values() {
        let mean = |repeated: usize| {
            let wider = (0..50).map(|seed| {
                let values = noise(400 / repeated, seed);
                let all: Vec<f64> = values.iter().flat_map(|v| vec![*v; repeated]).collect();
                interval_widening(&all, 20, 0.05)
            });
            wider.sum::<f64>() / 50.0
        };
        let uncertain = 2.042 / 1.960; // t(30) over z.
        assert!(
            (uncertain..uncertain * 1.15).contains(&mean(1)),
            "{}",
            mean(1)
        );
        assert!((1.7..2.2).contains(&mean(4)), "{}", mean(4));
    }

    #[test]
    fn alternating_and_few_values_do_not_widen() {
        let alternating: Vec<f64> = (0..100).map(|i| f64::from(i % 2)).collect();
        let uncertain = 2.228 / 1.960; // t(10) over z.
        assert!((interval_widening(&alternating[..40], 6, 0.05) - uncertain).abs() < 0.001);
        assert_eq!(interval_widening(&[1.0; 3], 2, 0.05), 1.0);
        assert_eq!(interval_widening(&noise(19, 1), 0, 0.05), 1.0);
    }
}
