//! What the trials show by themselves: rates that met the objectives, and rates that did not.
//!
//! A trial counts only until a longer one, at its rate or below, says that its length hid what was
//! coming. A generator-limited trial says nothing about the target; a rate at which they
//! outnumber the others is an upper bound of what can be searched, and marked as the generator's.

use super::{Purpose, Trial, Verdict};

/// Two trials must agree that the generator is at its limit: one may be a hiccup.
const GENERATOR_TRIALS: usize = 2;
/// So much longer a trial must be to count for more.
const MIN_LENGTH_RATIO: f64 = 1.5;

impl Verdict {
    /// The target did not carry the rate.
    pub fn is_failure(&self) -> bool {
        matches!(self, Verdict::Missed { .. } | Verdict::Growing)
    }

    pub(super) fn is_limited(&self) -> bool {
        matches!(self, Verdict::GeneratorLimited { .. })
    }
}

/// The generator can't make `rate`.
pub(super) fn is_generators(trials: &[Trial], rate: f64) -> bool {
    let at = |limited: bool| {
        trials
            .iter()
            .filter(|t| t.rate_per_s == rate && t.verdict.is_limited() == limited)
            .count()
    };
    at(true) >= GENERATOR_TRIALS && at(true) > at(false)
}

/// A longer trial at the rate of `trial`, or at a lower one, failed.
pub(super) fn is_outlasted(trials: &[Trial], trial: &Trial) -> bool {
    trials.iter().any(|t| {
        t.verdict.is_failure()
            && t.rate_per_s <= trial.rate_per_s
            && t.length_s > MIN_LENGTH_RATIO * trial.length_s
    })
}

/// The rates between which the line seems to lie.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Bounds {
    /// The highest that met the objectives, as far as that counts.
    pub(super) lower: Option<f64>,
    /// The lowest that did not, or that the generator can't make.
    pub(super) upper: Option<f64>,
}

pub(super) fn bounds(trials: &[Trial]) -> Bounds {
    let counting = || trials.iter().filter(|t| t.purpose != Purpose::Curve);
    Bounds {
        lower: counting()
            .filter(|t| t.verdict == Verdict::Met && !is_outlasted(trials, t))
            .map(|t| t.rate_per_s)
            .max_by(f64::total_cmp),
        upper: counting()
            .filter(|t| {
                t.verdict.is_failure()
                    || t.verdict.is_limited() && is_generators(trials, t.rate_per_s)
            })
            .map(|t| t.rate_per_s)
            .min_by(f64::total_cmp),
    }
}

/// What a trial of the target leaves to hope for at a rate: it failed there more often than
/// not, by the longest trials there are.
pub(super) fn is_lost(trials: &[Trial], rate: f64) -> bool {
    // One in which the generator was the limit outlasts none of the target.
    let here = || {
        trials.iter().filter(|t| {
            t.rate_per_s == rate && t.purpose != Purpose::Curve && !t.verdict.is_limited()
        })
    };
    let longest = here().map(|t| t.length_s).fold(0.0, f64::max);
    let count = |of: fn(&Verdict) -> bool| {
        here()
            .filter(|t| t.length_s * MIN_LENGTH_RATIO >= longest && of(&t.verdict))
            .count()
    };
    count(Verdict::is_failure) > count(|v| *v == Verdict::Met)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(rate_per_s: f64, length_s: f64, verdict: Verdict) -> Trial {
        Trial {
            purpose: Purpose::Narrow,
            rate_per_s,
            length_s,
            took_s: length_s,
            verdict,
            ..Trial::default()
        }
    }

    #[test]
    fn only_much_longer_failed_trial_outlasts() {
        let met = trial(100.0, 2.0, Verdict::Met);
        let failed = |rate, length| trial(rate, length, Verdict::Growing);
        let outlasted = |other| is_outlasted(&[met.clone(), other], &met);
        assert!(outlasted(failed(100.0, 3.1)) && outlasted(failed(90.0, 5.0)));
        assert!(
            !outlasted(failed(100.0, 3.0)),
            "no longer than half as long again"
        );
        assert!(!outlasted(failed(101.0, 5.0)), "at a higher rate");
        assert!(!outlasted(trial(100.0, 5.0, Verdict::Met)));
    }
}
