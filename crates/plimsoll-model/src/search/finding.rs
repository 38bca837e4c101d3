//! What a search has found: the line with its bounds, the knee, and why it stopped.

use serde::{Deserialize, Serialize};

use super::bounds::{Bounds, Level, Standing, bounds, standing};
use super::{Goal, Purpose, Trial, Verdict, likelihood, width};

/// What lies above the load line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Limit {
    /// The target misses objectives above it: these, as typed.
    Objective { objectives: Vec<String> },
    /// The target answers with errors above it.
    ServerErrors,
    /// The generator can't make more. What the target can do is not known.
    Generator { reason: String },
    /// Even the highest rate that was allowed meets the objectives.
    MostRate,
    /// Even the lowest rate that was allowed misses them.
    LeastRate,
    /// Nothing above it was tried before the budget was spent.
    NotReached,
}

/// Where the latency begins to climb.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Knee {
    pub rate_per_s: f64,
    pub p99_us: f64,
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// The load line: the highest rate that was shown to meet the objectives. `None`: no
    /// rate did.
    pub line_per_s: Option<f64>,
    /// Where the line may lie, given how much the trials scattered (95 %, and at least from
    /// the highest rate that met the objectives to the lowest that did not).
    pub low_per_s: Option<f64>,
    /// `None`: no rate missed the objectives.
    pub high_per_s: Option<f64>,
    /// The relative width of the interval from the line to the lowest rate that missed.
    pub width: Option<f64>,
    /// A longer trial at the line met the objectives too.
    pub confirmed: bool,
    pub limit: Limit,
    /// The lowest rate at which the generator was at its limit.
    pub generator_limit_per_s: Option<f64>,
    /// The budget ended before the precision was reached or the line confirmed.
    pub budget_spent: bool,
    pub knee: Option<Knee>,
}

/// What `trials` have found. `budget_spent`: there was more to do.
pub fn finding(goal: &Goal, trials: &[Trial], budget_spent: bool) -> Finding {
    let (level, seen) = best_known(goal, trials);
    let generator_limit_per_s = trials
        .iter()
        .filter(|t| matches!(t.verdict, Verdict::GeneratorLimited { .. }))
        .map(|t| t.rate_per_s)
        .filter(|rate| seen.upper_is_generator && seen.upper.is_some_and(|upper| *rate >= upper))
        .min_by(f64::total_cmp);
    let judged: Vec<(f64, bool)> = trials
        .iter()
        .filter(|t| Level::of(t) >= Some(level.min(Level::Trial)))
        .filter_map(|t| match t.verdict {
            Verdict::Met => Some((t.rate_per_s, true)),
            Verdict::Missed { .. } => Some((t.rate_per_s, false)),
            Verdict::GeneratorLimited { .. } => None,
        })
        .collect();
    let scatter = likelihood::interval(&judged);
    let target_upper = seen.upper.filter(|_| !seen.upper_is_generator);
    Finding {
        line_per_s: seen.lower,
        low_per_s: seen
            .lower
            .map(|line| scatter.map_or(line, |(low, _)| low.min(line))),
        high_per_s: target_upper.map(|upper| scatter.map_or(upper, |(_, high)| high.max(upper))),
        width: seen.lower.zip(target_upper).map(|(l, u)| width(l, u)),
        confirmed: seen
            .lower
            .is_some_and(|l| standing(goal, trials, l, Level::Confirm) == Standing::Lower),
        limit: limit(goal, trials, &seen),
        generator_limit_per_s,
        budget_spent,
        knee: knee(trials),
    }
}

/// The bounds on the highest level that has a say.
fn best_known(goal: &Goal, trials: &[Trial]) -> (Level, Bounds) {
    let confirmed = bounds(goal, trials, Level::Confirm);
    let counted = bounds(goal, trials, Level::Trial);
    let probed = bounds(goal, trials, Level::Probe);
    if let Some(upper) = confirmed.upper {
        let lower = confirmed.lower.or_else(|| {
            [counted.lower, probed.lower]
                .into_iter()
                .flatten()
                .find(|rate| *rate < upper)
        });
        return (Level::Confirm, Bounds { lower, ..confirmed });
    }
    if counted.lower.is_some() || counted.upper.is_some() {
        // What the trials that count have not reached, the probes have.
        let lower = counted.lower.or(probed.lower);
        let upper = counted.upper.or(probed.upper);
        let upper_is_generator = if counted.upper.is_some() {
            counted.upper_is_generator
        } else {
            probed.upper_is_generator
        };
        if lower.zip(upper).is_none_or(|(l, u)| l < u) {
            let seen = Bounds {
                lower,
                upper,
                upper_is_generator,
                ..counted
            };
            return (Level::Trial, seen);
        }
        return (Level::Trial, counted);
    }
    (Level::Probe, probed)
}

fn limit(goal: &Goal, trials: &[Trial], seen: &Bounds) -> Limit {
    let Some(upper) = seen.upper else {
        return match seen.lower {
            Some(lower) if lower >= goal.most_per_s => Limit::MostRate,
            _ => Limit::NotReached,
        };
    };
    let at_upper = || trials.iter().filter(|t| t.rate_per_s == upper).rev();
    if seen.upper_is_generator {
        let reason = at_upper().find_map(|t| match &t.verdict {
            Verdict::GeneratorLimited { reason } => Some(reason.clone()),
            _ => None,
        });
        return Limit::Generator {
            reason: reason.unwrap_or_default(),
        };
    }
    if seen.lower.is_none() && upper <= goal.least_per_s {
        return Limit::LeastRate;
    }
    let missed = at_upper().find_map(|t| match &t.verdict {
        Verdict::Missed { objectives, errors } => Some((objectives.clone(), *errors)),
        _ => None,
    });
    match missed {
        Some((objectives, false)) => Limit::Objective { objectives },
        Some((_, true)) => Limit::ServerErrors,
        None => Limit::NotReached,
    }
}

/// The rate farthest below the chord of the curve of p99 against rate, both scaled to 0–1
/// (Satopää et al. 2011). `None`: too few points, or a curve that doesn't bend.
fn knee(trials: &[Trial]) -> Option<Knee> {
    const FEWEST_POINTS: usize = 5;
    const LEAST_BEND: f64 = 0.2;
    let mut points: Vec<(f64, f64)> = trials
        .iter()
        .filter(|t| !matches!(t.verdict, Verdict::GeneratorLimited { .. }))
        .filter(|t| t.purpose != Purpose::Confirm)
        .filter_map(|t| Some((t.rate_per_s, t.p99_us?)))
        .collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (first, last) = (*points.first()?, *points.last()?);
    let lowest = points.iter().map(|p| p.1).fold(f64::INFINITY, f64::min);
    let highest = points.iter().map(|p| p.1).fold(0.0, f64::max);
    if points.len() < FEWEST_POINTS || last.0 <= first.0 || highest <= lowest {
        return None;
    }
    let below_chord =
        |p: &(f64, f64)| (p.0 - first.0) / (last.0 - first.0) - (p.1 - lowest) / (highest - lowest);
    let bend = points
        .iter()
        .max_by(|a, b| below_chord(a).total_cmp(&below_chord(b)))?;
    (below_chord(bend) >= LEAST_BEND).then_some(Knee {
        rate_per_s: bend.0,
        p99_us: bend.1,
    })
}
