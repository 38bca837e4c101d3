//! How far the line may lie from the bounds when trials are noisy.
//!
//! A trial at rate r is taken to pass when r lies below a capacity that varies from trial to
//! trial, normally distributed around the line. The line's interval is that of the profile
//! likelihood over the unknown spread (Venzon and Moolgavkar 1988): every line whose best
//! likelihood is within a quantile of chi-squared of the best of all.

use statrs::distribution::{ContinuousCDF, Normal};

/// Twice the difference of log-likelihoods that is allowed: three standard deviations
/// (chi-squared, one degree of freedom). The rates are chosen by how earlier trials ended,
/// which the model does not know; simulated searches hold their line in 95 of 100 with this.
const ROOM: f64 = 9.0;
/// Spreads tried, relative to the line.
const LEAST_SPREAD: f64 = 0.0005;
const MOST_SPREAD: f64 = 0.5;
const SPREADS: u32 = 24;
/// Lines tried, between the lowest and the highest rate.
const LINES: u32 = 400;

/// The interval of the line, given trials as (rate, passed). `None` where all passed
/// or all failed.
pub(super) fn interval(trials: &[(f64, bool)]) -> Option<(f64, f64)> {
    let of = |passed| trials.iter().filter(move |t| t.1 == passed).map(|t| t.0);
    let highest_met = of(true).max_by(f64::total_cmp)?;
    let lowest_missed = of(false).min_by(f64::total_cmp)?;
    let lowest = of(true).fold(lowest_missed, f64::min) * 0.9;
    let highest = of(false).fold(highest_met, f64::max) * 1.1;
    let spreads: Vec<f64> = (0..SPREADS)
        .map(|i| {
            let share = f64::from(i) / f64::from(SPREADS - 1);
            LEAST_SPREAD * (MOST_SPREAD / LEAST_SPREAD).powf(share)
        })
        .collect();
    let normal = Normal::standard();
    let best_at = |line: f64| {
        spreads
            .iter()
            .map(|spread| {
                let likelihood = |(rate, passed): &(f64, bool)| {
                    let z = (line - rate) / (line * spread);
                    let p = normal.cdf(if *passed { z } else { -z });
                    p.max(1e-12).ln()
                };
                trials.iter().map(likelihood).sum::<f64>()
            })
            .fold(f64::NEG_INFINITY, f64::max)
    };
    let profile: Vec<(f64, f64)> = (0..=LINES)
        .map(|i| lowest * (highest / lowest).powf(f64::from(i) / f64::from(LINES)))
        // The steps must not miss a narrow gap between what passed and what failed.
        .chain([
            f64::midpoint(highest_met, lowest_missed),
            highest_met,
            lowest_missed,
        ])
        .map(|line| (line, best_at(line)))
        .collect();
    let best = profile
        .iter()
        .map(|p| p.1)
        .fold(f64::NEG_INFINITY, f64::max);
    let inside = || {
        profile
            .iter()
            .filter(|(_, l)| 2.0 * (best - l) <= ROOM)
            .map(|p| p.0)
    };
    let low = inside().min_by(f64::total_cmp)?;
    let high = inside().max_by(f64::total_cmp)?;
    Some((low, high))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_noise_the_interval_is_the_gap() {
        let trials: Vec<(f64, bool)> = [100.0, 200.0, 300.0, 310.0, 311.0, 313.0, 320.0, 400.0]
            .iter()
            .flat_map(|r| [(*r, *r < 312.0); 3])
            .collect();
        let (low, high) = interval(&trials).unwrap();
        assert!(low > 308.0 && high < 316.0, "{low} {high}");
        assert!(low <= 311.5 && high >= 312.5, "{low} {high}");
    }

    #[test]
    fn contradictions_widen_it() {
        let four = |at: [(f64, bool); 4]| at.map(|t| [t; 4]).concat();
        let calm = four([(97.0, true), (99.0, true), (101.0, false), (103.0, false)]);
        let torn = four([(97.0, true), (99.0, false), (101.0, true), (103.0, false)]);
        let width = |trials: &[(f64, bool)]| {
            let (low, high) = interval(trials).unwrap();
            high - low
        };
        assert!(width(&torn) > 1.5 * width(&calm));
        assert_eq!(interval(&calm[..2]), None);
    }
}
