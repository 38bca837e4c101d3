//! The uncertainty of a closed loop's rate: its confidence interval, by the method of batch means.
//!
//! A batch is the number of calls in one interval of a run, which lasts a second. Adjacent seconds are correlated, so
//! the interval, which is Student's, is widened according to their lag-1 autocorrelation (Law, *Simulation Modeling and
//! Analysis*, 9.5).

use statrs::distribution::{ContinuousCDF, StudentsT};

/// Minimum number of batches for estimating their variance.
pub const MIN_BATCHES: usize = 10;

/// Returns half the width of the 95 % confidence interval of the batches' mean, relative to the mean. `None`: there are
/// too few batches, or the mean is not positive.
pub fn relative_half_width(batches: &[f64]) -> Option<f64> {
    let n = batches.len() as f64;
    if batches.len() < MIN_BATCHES {
        return None;
    }
    let mean = batches.iter().sum::<f64>() / n;
    let off = |b: &f64| b - mean;
    let squares: f64 = batches.iter().map(|b| off(b).powi(2)).sum();
    let neighbours: f64 = batches.windows(2).map(|w| off(&w[0]) * off(&w[1])).sum();
    // A negative correlation, which would narrow the interval, is ignored.
    let correlation = if squares > 0.0 {
        (neighbours / squares).clamp(0.0, 0.99)
    } else {
        0.0
    };
    let effective = (n * (1.0 - correlation) / (1.0 + correlation)).max(2.0);
    let deviation = (squares / (n - 1.0)).sqrt();
    let t = StudentsT::new(0.0, 1.0, effective - 1.0)
        .ok()?
        .inverse_cdf(0.975);
    let width = t * deviation / effective.sqrt() / mean;
    (mean > 0.0 && width.is_finite()).then_some(width)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{RngCore, SeedableRng};

    #[test]
    fn half_width_matches_student_t_table() {
        // Ten alternating values: mean 10, s = 1.0541, t(9) = 2.262, correlation negative.
        let batches: Vec<f64> = (0..10)
            .map(|i| if i % 2 == 0 { 9.0 } else { 11.0 })
            .collect();
        let width = relative_half_width(&batches).unwrap();
        assert!(
            (width - 2.262 * 1.0541 / 10_f64.sqrt() / 10.0).abs() < 1e-4,
            "{width}"
        );
        assert_eq!(relative_half_width(&batches[1..]), None);
        assert_eq!(relative_half_width(&[5.0; 12]), Some(0.0));
        assert_eq!(relative_half_width(&[0.0; 12]), None);
        assert_eq!(relative_half_width(&[f64::NAN; 12]), None);
    }

    /// Runs of nines and elevens: 20 batches with equal neighbours 12 times of 19, so that the first autocorrelation
    /// is 5/20 and they count as 20 · 0.75 / 1.25 = 12: t(11) = 2.200985, s = √(20/19).
    #[test]
    fn autocorrelated_batches_widen_interval() {
        let batches: Vec<f64> = [3, 3, 3, 3, 2, 2, 2, 2]
            .into_iter()
            .enumerate()
            .flat_map(|(i, length)| vec![if i % 2 == 0 { 9.0 } else { 11.0 }; length])
            .collect();
        let width = relative_half_width(&batches).unwrap();
        let expected = 2.200_985 * (20.0_f64 / 19.0).sqrt() / 12_f64.sqrt() / 10.0;
        assert!((width - expected).abs() < 1e-7, "{width}");
        // Ten increasing values count as two, the minimum: t(1) = 12.7062, s = √(26/9).
        let rising = [8.0, 8.0, 8.0, 9.0, 10.0, 10.0, 11.0, 12.0, 12.0, 12.0];
        let width = relative_half_width(&rising).unwrap();
        let expected = 12.706_205 * (26.0_f64 / 9.0).sqrt() / 2_f64.sqrt() / 10.0;
        assert!((width - expected).abs() < 1e-6, "{width}");
        assert_eq!(relative_half_width(&rising.map(|b| -b)), None);
    }

    /// Seconds of a loop around 1000/s, autocorrelated by `memory`.
    fn seconds(n: usize, memory: f64, random: &mut ChaCha8Rng) -> Vec<f64> {
        let mut uniform = || (f64::from(random.next_u32()) + 0.5) / 4_294_967_296.0;
        let mut mood = 0.0;
        (0..n)
            .map(|_| {
                let normal =
                    (-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos();
                mood = memory * mood + 30.0 * normal;
                1000.0 + mood
            })
            .collect()
    }

    #[test]
    fn interval_coverage_matches_confidence_level() {
        let mut random = ChaCha8Rng::seed_from_u64(7);
        for (memory, at_least) in [(0.0, 920), (0.5, 870)] {
            let held = (0..1000)
                .filter(|_| {
                    let batches = seconds(30, memory, &mut random);
                    let mean = batches.iter().sum::<f64>() / 30.0;
                    let width = relative_half_width(&batches).unwrap() * mean;
                    (mean - 1000.0).abs() <= width
                })
                .count();
            assert!(held >= at_least, "{memory}: {held} of 1000");
        }
    }
}
