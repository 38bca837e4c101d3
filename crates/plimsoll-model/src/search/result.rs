//! The result of a search: the line with its bounds, the knee, and why the search stopped.

use serde::{Deserialize, Serialize};

use super::bounds::{is_beyond_generator_limit, is_contradicted, is_rate_rejected, rate_bounds};
use super::estimate::LoadLineEstimate;
use super::{SearchGoal, SearchVariable, Trial, TrialPurpose, TrialVerdict, relative_width};

/// Probability of the reported interval in the estimate, which corresponds to three standard deviations. It is higher
/// than 95 % because the estimate ignores that rates are chosen by earlier results; with this value, the interval
/// contains the line in 95 of 100 simulated searches.
const INTERVAL_PROBABILITY: f64 = 0.997;
/// Margin on either side of the interval, as a share of the precision. It covers rounded rates and the assumed
/// variance.
const INTERVAL_MARGIN: f64 = 0.3;

/// The factor that limits the load above the load line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum LimitingFactor {
    /// The target misses objectives above the line.
    Objective {
        /// The objectives that are missed first, as the user wrote them.
        objectives: Vec<String>,
    },
    /// The target answers with errors above the line.
    ServerErrors,
    /// The backlog grows above the line: the target's capacity is reached.
    Queue,
    /// The generator can't reach a higher rate, so the target's limit is unknown.
    Generator {
        /// The reason, a sentence.
        reason: String,
    },
    /// Even the highest allowed rate meets the objectives.
    MostRate,
    /// Even the lowest allowed rate misses the objectives.
    LeastRate,
    /// No rate above the line was tried before the budget was spent.
    NotReached,
}

/// The point from which latency rises steeply.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Knee {
    /// Arrivals per second; in a search over users, their number.
    #[serde(alias = "users")]
    pub rate_per_s: f64,
    /// The p99 at that rate, µs.
    pub p99_us: f64,
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SearchResult {
    /// The load line: the highest rate that was shown to meet the objectives. `None`: no rate was shown to meet them.
    #[serde(alias = "line_users")]
    pub line_per_s: Option<f64>,
    /// Lower end of the line's confidence interval (95 %), from the variance and length of the trials. The interval
    /// covers at least the range from the line to the lowest failed rate above it.
    #[serde(alias = "low_users")]
    pub low_per_s: Option<f64>,
    /// Upper end of that interval; `None`: no rate missed the objectives.
    #[serde(alias = "high_users")]
    pub high_per_s: Option<f64>,
    /// The relative width of the interval from the line to the lowest rate that missed the objectives.
    pub width: Option<f64>,
    /// Whether a longer trial at the line also met the objectives, without a growing queue.
    pub confirmed: bool,
    /// The factor that limits the load above the line.
    pub limit: LimitingFactor,
    /// The lowest rate at which the generator was the limit.
    #[serde(alias = "generator_limit_users")]
    pub generator_limit_per_s: Option<f64>,
    /// Whether the budget was spent before the precision was reached and the line was confirmed.
    pub budget_spent: bool,
    /// The knee of the curve of latency against rate; `None`: there are too few points, or the curve has no bend.
    pub knee: Option<Knee>,
}

/// Returns the result of a search that ends after `trials`. If the caller has stopped the search early, it must set
/// [`SearchResult::budget_spent`].
pub fn search_result(goal: &SearchGoal, trials: &[Trial]) -> SearchResult {
    let estimate = match goal.variable {
        SearchVariable::Rate => LoadLineEstimate::new(goal, trials),
        // The estimate takes the number of calls of a trial from its rate.
        SearchVariable::Users => None,
    };
    search_result_with_estimate(goal, trials, estimate.as_ref())
}

/// Returns the result like [`search_result`], given the estimate of these trials.
pub(super) fn search_result_with_estimate(
    goal: &SearchGoal,
    trials: &[Trial],
    estimate: Option<&LoadLineEstimate>,
) -> SearchResult {
    let (line_per_s, confirmed) = select_reported_line(trials, estimate);
    let lowest = |ends: &dyn Fn(&Trial) -> bool| {
        let above = |t: &&Trial| line_per_s.is_none_or(|line| t.rate_per_s > line);
        let ending = trials.iter().filter(above).filter(|t| ends(t));
        ending.map(|t| t.rate_per_s).min_by(f64::total_cmp)
    };
    let generator_limit_per_s = lowest(&|t| {
        t.verdict.is_generator_limited() && is_beyond_generator_limit(trials, t.rate_per_s)
    });
    let failed_per_s =
        lowest(&|t| t.verdict.is_failure() && is_rate_rejected(trials, t.rate_per_s));
    // The generator's limit only matters if it is below the lowest rate that failed.
    let generator_limit_per_s =
        generator_limit_per_s.filter(|limit| failed_per_s.is_none_or(|failed| *limit < failed));
    let failed_per_s = failed_per_s.filter(|_| generator_limit_per_s.is_none());
    let tail = (1.0 - INTERVAL_PROBABILITY) / 2.0;
    let room = |share: f64| (share - 0.5).signum() * goal.precision * INTERVAL_MARGIN;
    let quantile = |share| estimate.map(|e| e.quantile(share) * (1.0 + room(share)));
    // Trials that longer ones contradict may still have been right, so they extend the interval.
    let outlasted = trials
        .iter()
        .any(|t| t.verdict == TrialVerdict::Met && is_contradicted(trials, t));
    let highest = outlasted
        .then(|| LoadLineEstimate::with_contradicted_trials(goal, trials))
        .flatten()
        .map_or(0.0, |e| e.quantile(1.0 - tail));
    SearchResult {
        line_per_s,
        low_per_s: line_per_s.map(|line| quantile(tail).map_or(line, |low| low.min(line))),
        high_per_s: failed_per_s.map(|failed| {
            quantile(1.0 - tail).map_or(failed, |high| high.max(failed).max(highest))
        }),
        width: line_per_s
            .zip(failed_per_s)
            .map(|(l, f)| relative_width(l, f)),
        confirmed,
        limit: limiting_factor(
            goal,
            trials,
            line_per_s,
            failed_per_s,
            generator_limit_per_s,
        ),
        generator_limit_per_s,
        budget_spent: false,
        knee: find_knee(trials),
    }
}

/// Returns the rate that is reported as the line, and whether it is confirmed. It is the highest rate that a
/// confirmation met or, without one, the highest that met the objectives and is probably below the line.
fn select_reported_line(
    trials: &[Trial],
    estimate: Option<&LoadLineEstimate>,
) -> (Option<f64>, bool) {
    let met = |purpose: TrialPurpose| {
        trials
            .iter()
            .filter(move |t| t.purpose >= purpose && t.verdict == TrialVerdict::Met)
            .map(|t| t.rate_per_s)
            .filter(|rate| !is_rate_rejected(trials, *rate))
            .max_by(f64::total_cmp)
    };
    if let Some(rate) = met(TrialPurpose::Confirm) {
        return (Some(rate), true);
    }
    let known = rate_bounds(trials).lower;
    let likely = estimate.map(|e| e.quantile(0.75));
    let below = trials
        .iter()
        .filter(|t| t.purpose != TrialPurpose::Curve && t.verdict == TrialVerdict::Met)
        .map(|t| t.rate_per_s)
        .filter(|rate| {
            likely.is_none_or(|likely| *rate <= likely) && !is_rate_rejected(trials, *rate)
        })
        .max_by(f64::total_cmp);
    (below.or(known), false)
}

fn limiting_factor(
    goal: &SearchGoal,
    trials: &[Trial],
    line: Option<f64>,
    failed: Option<f64>,
    generator: Option<f64>,
) -> LimitingFactor {
    let at = |rate: Option<f64>| {
        trials
            .iter()
            .filter(move |t| Some(t.rate_per_s) == rate)
            .rev()
    };
    if generator.is_some() {
        let reason = at(generator).find_map(|t| match &t.verdict {
            TrialVerdict::GeneratorLimited { reason } => Some(reason.clone()),
            _ => None,
        });
        return LimitingFactor::Generator {
            reason: reason.unwrap_or_default(),
        };
    }
    if line.is_none() && failed.is_some_and(|rate| rate <= goal.least_per_s) {
        return LimitingFactor::LeastRate;
    }
    let failure = at(failed).map(|t| &t.verdict).find(|v| v.is_failure());
    match failure {
        Some(TrialVerdict::Missed { errors: true, .. }) => LimitingFactor::ServerErrors,
        Some(TrialVerdict::Missed { objectives, .. }) => LimitingFactor::Objective {
            objectives: objectives.clone(),
        },
        Some(_) => LimitingFactor::Queue,
        None if line.is_some_and(|line| line >= goal.most_per_s) => LimitingFactor::MostRate,
        None => LimitingFactor::NotReached,
    }
}

/// Finds the knee: the rate at which the curve of p99 against rate is farthest below its chord, with both axes scaled
/// to 0–1 (Satopää et al. 2011). `None`: there are too few points, or the curve has no bend.
fn find_knee(trials: &[Trial]) -> Option<Knee> {
    const MIN_KNEE_POINTS: usize = 5;
    const MIN_KNEE_BEND: f64 = 0.2;
    let mut points: Vec<(f64, f64)> = trials
        .iter()
        .filter(|t| !t.verdict.is_undecided())
        .filter(|t| t.purpose != TrialPurpose::Confirm)
        .filter_map(|t| Some((t.rate_per_s, t.p99_us?)))
        .collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (first, last) = (*points.first()?, *points.last()?);
    let lowest = points.iter().map(|p| p.1).fold(f64::INFINITY, f64::min);
    let highest = points.iter().map(|p| p.1).fold(0.0, f64::max);
    if points.len() < MIN_KNEE_POINTS || last.0 <= first.0 || highest <= lowest {
        return None;
    }
    let below_chord =
        |p: &(f64, f64)| (p.0 - first.0) / (last.0 - first.0) - (p.1 - lowest) / (highest - lowest);
    let bend = points
        .iter()
        .max_by(|a, b| below_chord(a).total_cmp(&below_chord(b)))?;
    (below_chord(bend) >= MIN_KNEE_BEND).then_some(Knee {
        rate_per_s: bend.0,
        p99_us: bend.1,
    })
}
