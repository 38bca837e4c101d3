//! What the trials say about rates: lower bounds, upper bounds, and what is in doubt.
//!
//! A trial of one level also counts on the levels below it. A generator-limited trial says
//! nothing about the target; a rate at which they outnumber the others is an upper bound of
//! what can be searched, and marked as the generator's.

use super::{Goal, Purpose, Trial, Verdict};

/// How much a trial counts: by its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Probe,
    Trial,
    Confirm,
}

impl Level {
    pub(super) fn of(trial: &Trial) -> Option<Level> {
        match trial.purpose {
            Purpose::Probe => Some(Level::Probe),
            Purpose::Narrow => Some(Level::Trial),
            Purpose::Confirm => Some(Level::Confirm),
            Purpose::Curve => None,
        }
    }
}

/// What is known of one rate on one level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// No trial at this rate.
    Unknown,
    /// Trials disagree, and more are needed.
    InDoubt,
    Lower,
    Upper,
    /// The generator can't make this rate.
    Generator,
}

/// Two trials must agree that the generator is at its limit: one may be a hiccup.
const GENERATOR_TRIALS: u32 = 2;
/// A confirmation that fails is tried again; most of so many decide.
const CONFIRMATIONS: u32 = 3;

/// How `rate` stands on `level`.
pub(super) fn standing(goal: &Goal, trials: &[Trial], rate: f64, level: Level) -> Standing {
    let (mut met, mut missed, mut limited) = (0_u32, 0_u32, 0_u32);
    let at_rate = |t: &&Trial| t.rate_per_s == rate && Level::of(t) >= Some(level);
    for trial in trials.iter().filter(at_rate) {
        // On its own level a confirmation outweighs every shorter trial.
        match trial.verdict {
            Verdict::Met => met += 1,
            Verdict::Missed { .. } => missed += 1,
            Verdict::GeneratorLimited { .. } => limited += 1,
        }
    }
    if met + missed + limited == 0 {
        return Standing::Unknown;
    }
    if limited >= GENERATOR_TRIALS && limited > met + missed {
        return Standing::Generator;
    }
    match level {
        Level::Probe if missed > met => Standing::Upper,
        Level::Probe if met > 0 => Standing::Lower,
        Level::Probe => Standing::InDoubt,
        Level::Trial => decided(met, missed, goal.trials, goal.exceed_ratio),
        Level::Confirm if met > 0 && missed == 0 => Standing::Lower,
        Level::Confirm => decided(met, missed, CONFIRMATIONS, 0.5),
    }
}

/// Lower, when the rate passes even if all trials still to come fail; upper, when it fails
/// even if they all pass (RFC 9971, 4.6 and appendix A).
fn decided(met: u32, missed: u32, of: u32, exceed_ratio: f64) -> Standing {
    let allowed = (f64::from(of) * exceed_ratio).floor() as u32;
    if missed > allowed {
        Standing::Upper
    } else if met >= of.saturating_sub(allowed) {
        Standing::Lower
    } else {
        Standing::InDoubt
    }
}

/// What all trials of a level, or above, say.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Bounds {
    /// The highest lower bound below the lowest upper bound (relevant lower bound).
    pub(super) lower: Option<f64>,
    /// The lowest upper bound (relevant upper bound).
    pub(super) upper: Option<f64>,
    /// The upper bound is the generator's.
    pub(super) upper_is_generator: bool,
    /// A rate that needs another trial.
    pub(super) in_doubt: Option<f64>,
    /// How many rates are classified.
    pub(super) classified: u32,
}

impl Bounds {
    pub(super) fn is_begun(&self) -> bool {
        self.classified > 0 || self.in_doubt.is_some()
    }
}

pub(super) fn bounds(goal: &Goal, trials: &[Trial], level: Level) -> Bounds {
    let mut rates: Vec<f64> = trials
        .iter()
        .filter(|t| Level::of(t) >= Some(level))
        .map(|t| t.rate_per_s)
        .collect();
    rates.sort_by(f64::total_cmp);
    rates.dedup();
    let mut found = Bounds::default();
    for rate in rates {
        let standing = standing(goal, trials, rate, level);
        match standing {
            Standing::Unknown => continue,
            Standing::InDoubt => {
                found.in_doubt = Some(rate);
                continue;
            }
            // Above the lowest upper bound nothing matters.
            Standing::Lower if found.upper.is_none() => found.lower = Some(rate),
            Standing::Lower => {}
            Standing::Upper | Standing::Generator => {
                if found.upper.is_none() {
                    found.upper = Some(rate);
                    found.upper_is_generator = standing == Standing::Generator;
                }
            }
        }
        found.classified += 1;
    }
    // A rate in doubt above a known upper bound can't become relevant.
    if let (Some(doubt), Some(upper)) = (found.in_doubt, found.upper)
        && doubt > upper
    {
        found.in_doubt = None;
    }
    found
}
