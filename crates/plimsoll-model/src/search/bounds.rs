//! The rates between which the load line lies, according to trials that met the objectives and trials that missed them.
//!
//! A trial no longer counts once a longer trial, at its rate or below, has failed: the shorter one was too short to
//! reveal the failure. A generator-limited trial says nothing about the target; a rate at which such trials outnumber
//! the others is the upper end of the search, and marked as the generator's limit.

use super::{Trial, TrialPurpose, TrialVerdict};

/// Number of generator-limited trials that show the generator's limit; a single one may be a hiccup.
const MIN_GENERATOR_LIMITED_TRIALS: usize = 2;
/// A trial overrules another only if it is longer by at least this factor.
const MIN_OVERRULING_LENGTH_RATIO: f64 = 1.5;

/// Returns whether the generator can't reach `rate`.
pub(super) fn is_beyond_generator_limit(trials: &[Trial], rate: f64) -> bool {
    let at = |limited: bool| {
        trials
            .iter()
            .filter(|t| t.rate_per_s == rate && t.verdict.is_generator_limited() == limited)
            .count()
    };
    at(true) >= MIN_GENERATOR_LIMITED_TRIALS && at(true) > at(false)
}

/// Returns whether a longer trial failed at the rate of `trial` or below.
pub(super) fn is_contradicted(trials: &[Trial], trial: &Trial) -> bool {
    trials.iter().any(|t| {
        t.verdict.is_failure()
            && t.rate_per_s <= trial.rate_per_s
            && t.length_s > MIN_OVERRULING_LENGTH_RATIO * trial.length_s
    })
}

/// The rates between which the line probably lies.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct RateBounds {
    /// The highest rate that met the objectives in a trial that counts.
    pub(super) lower: Option<f64>,
    /// The lowest rate that did not meet the objectives, or that the generator can't reach.
    pub(super) upper: Option<f64>,
}

pub(super) fn rate_bounds(trials: &[Trial]) -> RateBounds {
    let counting = || trials.iter().filter(|t| t.purpose != TrialPurpose::Curve);
    RateBounds {
        lower: counting()
            .filter(|t| t.verdict == TrialVerdict::Met && !is_contradicted(trials, t))
            .map(|t| t.rate_per_s)
            .max_by(f64::total_cmp),
        upper: counting()
            .filter(|t| {
                t.verdict.is_failure()
                    || t.verdict.is_generator_limited()
                        && is_beyond_generator_limit(trials, t.rate_per_s)
            })
            .map(|t| t.rate_per_s)
            .min_by(f64::total_cmp),
    }
}

/// Returns whether a rate is ruled out, because most of the longest trials at this rate failed.
pub(super) fn is_rate_rejected(trials: &[Trial], rate: f64) -> bool {
    // Trials that say nothing about the target are left out.
    let here = || {
        trials.iter().filter(|t| {
            t.rate_per_s == rate && t.purpose != TrialPurpose::Curve && !t.verdict.is_undecided()
        })
    };
    let longest = here().map(|t| t.length_s).fold(0.0, f64::max);
    let count = |of: fn(&TrialVerdict) -> bool| {
        here()
            .filter(|t| t.length_s * MIN_OVERRULING_LENGTH_RATIO >= longest && of(&t.verdict))
            .count()
    };
    count(TrialVerdict::is_failure) > count(|v| *v == TrialVerdict::Met)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(rate_per_s: f64, length_s: f64, verdict: TrialVerdict) -> Trial {
        Trial {
            purpose: TrialPurpose::Narrow,
            rate_per_s,
            length_s,
            took_s: length_s,
            verdict,
            ..Trial::default()
        }
    }

    #[test]
    fn only_much_longer_failed_trial_outlasts() {
        let met = trial(100.0, 2.0, TrialVerdict::Met);
        let failed = |rate, length| trial(rate, length, TrialVerdict::Growing);
        let outlasted = |other| is_contradicted(&[met.clone(), other], &met);
        assert!(outlasted(failed(100.0, 3.1)) && outlasted(failed(90.0, 5.0)));
        assert!(
            !outlasted(failed(100.0, 3.0)),
            "no longer than half as long again"
        );
        assert!(!outlasted(failed(101.0, 5.0)), "at a higher rate");
        assert!(!outlasted(trial(100.0, 5.0, TrialVerdict::Met)));
    }
}
