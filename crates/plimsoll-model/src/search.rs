//! The search for the load line: the highest arrival rate that meets the objectives.
//!
//! In the terms of RFC 9971 (multiple loss ratio search): trials of growing length show whether a rate is below the
//! line (the objectives are met and the queue does not grow) or above it. The rate rises until a trial fails. From then
//! on, every trial is made at the rate at which it is most informative, given the results so far ([`estimate`]). The
//! best rate is confirmed by a longer trial, for which the budget reserves time.
//!
//! Invariant: [`next_step`], which `plimsoll find` calls, is a pure function of the goal and the trials made so far. It
//! does no I/O and reads no clock, so a search can be replayed from its record and tested with simulated servers.
//!
//! This file is long because the next step is a single decision, which is kept together with everything that it depends
//! on.

mod amount;
mod bounds;
mod estimate;
mod goal;
mod growth;
mod record;
mod result;
mod users;
mod verdict;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::formats::named_enum::named;

pub use amount::{amount, amount_interval, none_meets, searched_quantity};
use bounds::{is_beyond_generator_limit, is_rate_rejected, rate_bounds};
use estimate::{LoadLineEstimate, OVERLOAD_RATIO};
pub use goal::{GoalError, SearchGoal, SearchVariable};
pub use growth::{BacklogGrowth, GROWTH_ERROR_PROBABILITY};
pub use record::{FILE_NAME, SearchRecord};
pub use result::{Knee, LimitingFactor, SearchResult, search_result};
pub use verdict::TrialVerdict;

named! {
    /// The purpose of a trial.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum TrialPurpose by name {
        /// Add a point to the curve of latency against rate. Such a trial says nothing about where the line is.
        Curve "curve",
        /// Find the neighbourhood of the line by large steps up and down.
        #[default]
        Probe "probe",
        /// Find on which side of the line a rate is, or measure the target's capacity.
        Narrow "narrow",
        /// Check in a longer trial that the best rate keeps meeting the objectives.
        Confirm "confirm",
    }
}

/// A trial that has been made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// The purpose of the trial.
    pub purpose: TrialPurpose,
    /// Arrivals per second; in a search over users, their number.
    #[serde(alias = "users")]
    pub rate_per_s: f64,
    /// The length of the measured load, in seconds.
    pub length_s: f64,
    /// Elapsed seconds, including connecting, warm-up, drain and the pause after it.
    pub took_s: f64,
    /// The verdict.
    #[serde(flatten)]
    pub verdict: TrialVerdict,
    /// Calls per second that ended; `None`: not known.
    pub achieved_per_s: Option<f64>,
    /// The median response time; `None`, here and in the next two fields: too few calls.
    pub p50_us: Option<f64>,
    /// The 99th percentile of response times.
    pub p99_us: Option<f64>,
    /// The 99.9th percentile of response times.
    #[serde(rename = "p99.9_us")]
    pub p99_9_us: Option<f64>,
    /// The mean response time; `None`: no call ended ok.
    pub mean_us: Option<f64>,
    /// The time that an objective limits (see [`crate::objective::plotted_objective`]); left out where unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limited_us: Option<f64>,
    /// Share of the calls that did not end ok.
    pub errors_share: Option<f64>,
    /// The growth of the number of calls in flight; `None`: the trial is too short for an estimate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub growth: Option<BacklogGrowth>,
    /// The run directory, relative to the search's.
    pub run: Option<String>,
}

/// The next action of a search.
#[derive(Clone, Debug, PartialEq)]
pub enum SearchStep {
    /// Make this trial.
    Try {
        /// The purpose of the trial.
        purpose: TrialPurpose,
        /// Arrivals per second; in a search over users, their number.
        rate_per_s: f64,
        /// The length of the measured load.
        length: Duration,
    },
    /// The search has ended: nothing more can be learned, or the budget is spent.
    Done(Box<SearchResult>),
}

/// Maximum width of the estimate's interval, in multiples of the precision, at which trials narrow it.
const MAX_NARROWING_WIDTH_RATIO: f64 = 8.0;
/// Width to which the estimate is narrowed, as a share of the precision. The rest of the precision is left for the
/// uncertainty of the confirmation.
const TARGET_WIDTH_SHARE: f64 = 0.6;
/// Probability with which the line lies in the interval that is narrowed, and minimum probability at which a capacity
/// counts as found.
const MIN_CONFIDENCE: f64 = 0.9;
/// A capacity is measured while the queue grows. The trial's rate is this many standard errors above the highest
/// plausible capacity (the quantile [`CAPACITY_UPPER_QUANTILE`]).
const OVERLOAD_STANDARD_ERRORS: f64 = 2.0;
const CAPACITY_UPPER_QUANTILE: f64 = 0.9;
/// Where an overloaded target's throughput is the only hint, its capacity is measured at least this far above that
/// throughput, relative to the throughput.
const MIN_OVERLOAD_SHARE: f64 = 0.03;
/// Minimum probability that the confirmation meets the objectives.
const MIN_PASS_PROBABILITY: f64 = 0.9;
/// The same minimum for a rate at which a narrowing trial has already met them.
const MIN_REPEATED_PASS_PROBABILITY: f64 = 0.7;
/// A line can't be more precise than this many standard errors of a single trial that takes the whole budget.
const MAX_PRECISION_STANDARD_ERRORS: f64 = 3.0;
/// Maximum number of narrowing trials, in multiples of the trials allowed at one rate.
const MAX_NARROWING_TRIALS_RATIO: u32 = 8;
/// Assumed time in seconds that a trial takes in addition to its length, until a trial has been made.
const DEFAULT_TRIAL_OVERHEAD_S: f64 = 1.5;
/// Minimum length of a confirmation, as a share of its planned length.
const MIN_CONFIRMATION_LENGTH_SHARE: f64 = 0.6;
/// Maximum length of a narrowing trial, in multiples of the confirmation's length.
const MAX_NARROWING_LENGTH_RATIO: f64 = 2.2;
/// Extra drain time in seconds of a trial above the load line, compared with one below it.
const OVERLOAD_EXTRA_DRAIN_S: f64 = 0.5;
/// The drain time of a trial predicts that of trials at up to this multiple of its rate.
const MAX_SIMILAR_RATE_RATIO: f64 = 1.3;
/// Factor by which the rate rises while all trials pass.
const RATE_RISE_FACTOR: f64 = 4.0;
/// Rates at which the curve should have points, as shares of the load line.
const CURVE_RATE_SHARES: [f64; 7] = [0.1, 0.25, 0.5, 0.7, 0.85, 0.95, 1.1];
/// Minimum relative distance between two points of the curve.
const MIN_CURVE_POINT_DISTANCE: f64 = 0.04;

/// Returns the next step of the search for `goal`, after `trials`.
pub fn next_step(goal: &SearchGoal, trials: &[Trial]) -> SearchStep {
    if goal.variable == SearchVariable::Users {
        return users::next_user_step(goal, trials);
    }
    let budget = SearchBudget { goal, trials };
    let estimate = LoadLineEstimate::new(goal, trials);
    let mut found = result::search_result_with_estimate(goal, trials, estimate.as_ref());
    if let Some((purpose, rate)) = most_informative_trial(goal, trials, estimate.as_ref(), &found) {
        // Confirming the current best rate comes before refining it.
        let winner = rate_to_confirm(goal, trials, estimate.as_ref());
        let confirmed = found.confirmed;
        let reserve_s = match winner {
            Some(winner) if purpose != TrialPurpose::Confirm && !confirmed => {
                budget.min_confirmation_time_s(winner) + OVERLOAD_EXTRA_DRAIN_S
            }
            _ => 0.0,
        };
        let room_s = budget.remaining_s() - reserve_s;
        if budget.trial_time_s(purpose, rate) <= room_s {
            if let (Some(estimate), TrialPurpose::Narrow) = (&estimate, purpose) {
                let length_s = budget.narrowing_length_s(estimate, rate, room_s);
                return new_trial_step(
                    purpose,
                    most_informative_rate(goal, trials, estimate, rate, length_s),
                    length_s,
                );
            }
            return new_trial_step(purpose, rate, goal.trial_length_s(purpose, rate));
        }
        if let Some(rate) = winner.filter(|_| !confirmed)
            && let Some(length_s) = budget.confirmation_length_s(rate)
        {
            return new_trial_step(TrialPurpose::Confirm, rate, length_s);
        }
        found.budget_spent = true;
        return SearchStep::Done(Box::new(found));
    }
    if let (true, Some(line)) = (goal.curve, found.line_per_s) {
        let near = |rate: f64| {
            trials
                .iter()
                .any(|t| (t.rate_per_s / rate - 1.0).abs() < MIN_CURVE_POINT_DISTANCE)
        };
        let missing = CURVE_RATE_SHARES
            .iter()
            .map(|share| round_rate(goal, line * share))
            .find(|rate| {
                !near(*rate)
                    && (goal.least_per_s..=goal.most_per_s).contains(rate)
                    && found
                        .generator_limit_per_s
                        .is_none_or(|limit| *rate < limit)
            });
        if let Some(rate) = missing
            && budget.trial_time_s(TrialPurpose::Curve, rate) <= budget.remaining_s()
        {
            return new_trial_step(
                TrialPurpose::Curve,
                rate,
                goal.trial_length_s(TrialPurpose::Curve, rate),
            );
        }
    }
    SearchStep::Done(Box::new(found))
}

fn new_trial_step(purpose: TrialPurpose, rate_per_s: f64, length_s: f64) -> SearchStep {
    SearchStep::Try {
        purpose,
        rate_per_s,
        length: Duration::from_secs_f64(length_s),
    }
}

/// The time budget of a search, for computing what remains of it and how long trials take.
struct SearchBudget<'a> {
    goal: &'a SearchGoal,
    trials: &'a [Trial],
}

impl SearchBudget<'_> {
    fn remaining_s(&self) -> f64 {
        self.goal.budget_s - self.trials.iter().map(|t| t.took_s).sum::<f64>()
    }

    /// Returns the time that a trial at `rate` takes in addition to its length.
    fn trial_overhead_s(&self, purpose: TrialPurpose, rate: f64) -> f64 {
        let alike = match purpose {
            TrialPurpose::Confirm => 1.0,
            _ => MAX_SIMILAR_RATE_RATIO,
        };
        let alike = self.trials.iter().filter(|t| t.rate_per_s <= alike * rate);
        alike
            .map(|t| t.took_s - t.length_s)
            .max_by(f64::total_cmp)
            .unwrap_or(DEFAULT_TRIAL_OVERHEAD_S)
    }

    fn trial_time_s(&self, purpose: TrialPurpose, rate: f64) -> f64 {
        self.goal.trial_length_s(purpose, rate) + self.trial_overhead_s(purpose, rate)
    }

    /// Returns the length of a confirmation that the remaining budget allows; a slightly shortened confirmation is
    /// better than none.
    fn confirmation_length_s(&self, rate: f64) -> Option<f64> {
        let length_s = self.goal.trial_length_s(TrialPurpose::Confirm, rate);
        let room_s = self.remaining_s() - self.trial_overhead_s(TrialPurpose::Confirm, rate);
        // Round down to whole milliseconds, so that rounding can't exceed the budget.
        let room_s = (room_s * 1e3).floor() / 1e3;
        (room_s >= self.min_confirmation_length_s(rate)).then(|| length_s.min(room_s))
    }

    fn min_confirmation_length_s(&self, rate: f64) -> f64 {
        let calls_s = self.goal.least_calls as f64 / rate;
        (self.goal.trial_length_s(TrialPurpose::Confirm, rate) * MIN_CONFIRMATION_LENGTH_SHARE)
            .max(calls_s)
    }

    /// Returns the total time of the shortest acceptable confirmation.
    fn min_confirmation_time_s(&self, rate: f64) -> f64 {
        self.min_confirmation_length_s(rate) + self.trial_overhead_s(TrialPurpose::Confirm, rate)
    }

    /// Returns the length of a narrowing trial. If the server's variance requires longer trials, the remaining budget
    /// is divided into a few long ones.
    fn narrowing_length_s(&self, estimate: &LoadLineEstimate, rate: f64, room_s: f64) -> f64 {
        let length_s = self.goal.trial_length_s(TrialPurpose::Narrow, rate);
        // The first narrowing trial is short, because it shows at which rate a long trial is worthwhile.
        let first = !self
            .trials
            .iter()
            .any(|t| t.purpose >= TrialPurpose::Narrow);
        if first
            || estimate.standard_error(rate * length_s) <= self.goal.precision * TARGET_WIDTH_SHARE
        {
            return length_s;
        }
        let asides = self.trials.iter().map(|t| t.took_s - t.length_s);
        let aside_s = asides
            .min_by(f64::total_cmp)
            .unwrap_or(DEFAULT_TRIAL_OVERHEAD_S)
            + OVERLOAD_EXTRA_DRAIN_S;
        let longest_s = (MAX_NARROWING_LENGTH_RATIO * self.goal.confirm_s).max(length_s);
        let trials = (room_s / (longest_s + aside_s)).round().max(1.0);
        // A trial above the capacity needs additional time to drain the excess.
        let longer = 1.0
            + (estimate.quantile(CAPACITY_UPPER_QUANTILE) / estimate.quantile(0.5) - 1.0)
            + OVERLOAD_STANDARD_ERRORS * estimate.standard_error(rate * longest_s);
        ((room_s / trials - aside_s) / longer).clamp(length_s, longest_s)
    }
}

/// Returns the purpose and the rate of the most informative trial; `None`: the line has been found and confirmed, or
/// can't be found.
fn most_informative_trial(
    goal: &SearchGoal,
    trials: &[Trial],
    estimate: Option<&LoadLineEstimate>,
    found: &SearchResult,
) -> Option<(TrialPurpose, f64)> {
    // A trial that was limited by the generator is repeated once.
    if let Some(last) = trials.last()
        && last.verdict.is_generator_limited()
        && !is_beyond_generator_limit(trials, last.rate_per_s)
    {
        return Some((last.purpose, last.rate_per_s));
    }
    let seen = rate_bounds(trials);
    let at_end = |rate: f64, purpose| {
        let made = |t: &&Trial| t.rate_per_s == rate && t.purpose >= purpose;
        trials
            .iter()
            .rev()
            .find(made)
            .is_none()
            .then_some((purpose, rate))
    };
    match (seen.lower, seen.upper) {
        (None, None) => Some((TrialPurpose::Probe, goal.start_per_s)),
        (Some(lower), None) if lower >= goal.most_per_s => at_end(lower, TrialPurpose::Confirm),
        (Some(lower), None) => Some((TrialPurpose::Probe, next_higher_rate(goal, lower))),
        (None, Some(upper)) if upper <= goal.least_per_s => at_end(upper, TrialPurpose::Narrow),
        (None, Some(upper)) => {
            let lower =
                overload_throughput(trials, upper).map_or(upper, |(carried, _)| carried) / 2.0;
            let rate = round_rate(goal, lower).max(goal.least_per_s);
            Some((TrialPurpose::Probe, rate))
        }
        (Some(lower), Some(upper)) => {
            most_informative_trial_between(goal, trials, estimate?, found, (lower, upper))
        }
    }
}

/// Returns the next higher rate while all trials pass.
fn next_higher_rate(goal: &SearchGoal, lower: f64) -> f64 {
    (lower * RATE_RISE_FACTOR).min(goal.most_per_s)
}

/// Returns the throughput of the overloaded target at rate `upper`, and the number of calls from which it was computed.
fn overload_throughput(trials: &[Trial], upper: f64) -> Option<(f64, f64)> {
    let at_upper = trials.iter().filter(|t| t.rate_per_s == upper);
    at_upper
        .filter_map(|t| {
            let growth = t.growth?;
            let carried = t.rate_per_s - growth.per_s;
            Some((carried, carried * f64::from(growth.increments)))
        })
        .rfind(|(carried, _)| *carried > 0.0 && *carried * OVERLOAD_RATIO < upper)
}

/// Returns the purpose and the rate of the most informative trial for a line between two rates.
fn most_informative_trial_between(
    goal: &SearchGoal,
    trials: &[Trial],
    estimate: &LoadLineEstimate,
    found: &SearchResult,
    (lower, upper): (f64, f64),
) -> Option<(TrialPurpose, f64)> {
    let inside = |rate: f64| round_rate(goal, rate).clamp(goal.least_per_s, goal.most_per_s);
    // The first narrowing trial uses the fact that the capacity lies just above the throughput of an overloaded target.
    let narrowed = trials
        .iter()
        .filter(|t| t.purpose >= TrialPurpose::Narrow)
        .count();
    if narrowed == 0
        && let Some((carried, calls)) = overload_throughput(trials, upper)
        && lower * 0.9 < carried
    {
        let lift = goal.precision.max(MIN_OVERLOAD_SHARE) + OVERLOAD_STANDARD_ERRORS / calls.sqrt();
        return Some((TrialPurpose::Narrow, inside(carried * (1.0 + lift))));
    }
    let width = estimate.width(MIN_CONFIDENCE);
    if width > goal.precision * MAX_NARROWING_WIDTH_RATIO
        && estimate.capacity_probability() < MIN_CONFIDENCE
        && upper > lower * (1.0 + goal.precision * MAX_NARROWING_WIDTH_RATIO)
    {
        return Some((TrialPurpose::Probe, inside(estimate.quantile(0.5))));
    }
    let spent = narrowed as u32 >= MAX_NARROWING_TRIALS_RATIO * goal.trials;
    let precise = |line: f64| upper > line && self::relative_width(line, upper) <= goal.precision;
    let confirmed = found.line_per_s.filter(|_| found.confirmed);
    if let Some(line) = confirmed
        && spent
        && !precise(line)
        && let Some(better) = highest_passed_rate(trials, estimate, &|rate| *rate > line)
    {
        return Some((TrialPurpose::Confirm, better));
    }
    if let Some(line) = confirmed
        && (spent
            || precise(line)
            || estimate.quantile(0.98) <= line * (1.0 + 0.8 * goal.precision))
    {
        return None;
    }
    if width <= goal.precision * TARGET_WIDTH_SHARE || spent {
        let winner = rate_to_confirm(goal, trials, Some(estimate))?;
        if Some(winner) != found.line_per_s || !found.confirmed {
            return Some((TrialPurpose::Confirm, winner));
        }
        return None;
    }
    let middle = estimate.quantile(0.5);
    let rate = inside(middle);
    let repeated = trials
        .iter()
        .filter(|t| t.rate_per_s == rate && t.purpose >= TrialPurpose::Narrow);
    if repeated.count() as u32 >= goal.trials {
        let winner = rate_to_confirm(goal, trials, Some(estimate))?;
        return (Some(winner) != found.line_per_s || !found.confirmed)
            .then_some((TrialPurpose::Confirm, winner));
    }
    Some((TrialPurpose::Narrow, rate))
}

/// Returns the rate at which a trial is most informative for a line near `rate`: above a capacity, so that the queue
/// grows.
fn most_informative_rate(
    goal: &SearchGoal,
    trials: &[Trial],
    estimate: &LoadLineEstimate,
    rate: f64,
    length_s: f64,
) -> f64 {
    let measured = trials.iter().any(|t| t.purpose >= TrialPurpose::Narrow);
    if !measured || estimate.capacity_probability() <= MIN_CONFIDENCE {
        return rate;
    }
    let lift = estimate.standard_error(rate * length_s) * OVERLOAD_STANDARD_ERRORS;
    let lifted =
        (estimate.quantile(CAPACITY_UPPER_QUANTILE) * (1.0 + lift)).min(rate * OVERLOAD_RATIO);
    round_rate(goal, lifted.max(rate)).clamp(goal.least_per_s, goal.most_per_s)
}

/// Returns the rate that a confirmation should try. If the capacity is measured, this is the rate near it that most
/// probably passes; otherwise, the highest rate below the median estimate that probably passes.
fn rate_to_confirm(
    goal: &SearchGoal,
    trials: &[Trial],
    estimate: Option<&LoadLineEstimate>,
) -> Option<f64> {
    let Some(estimate) = estimate else {
        return rate_bounds(trials).lower;
    };
    let middle = estimate.quantile(0.5);
    let near = goal
        .precision
        .max(MAX_PRECISION_STANDARD_ERRORS * estimate.standard_error(middle * goal.budget_s));
    let length_s = goal.trial_length_s(TrialPurpose::Confirm, middle);
    let step = goal.precision / 5.0;
    let candidates: Vec<f64> = (-20_i32..60)
        .map(|i| f64::from(i) * (1.0 + f64::from(i.max(0)) / 20.0))
        .map(|steps| round_rate(goal, middle * (1.0 - step * steps).max(0.0)))
        .filter(|rate| (goal.least_per_s..=goal.most_per_s).contains(rate))
        .filter(|rate| !is_rate_rejected(trials, *rate))
        .collect();
    let confirmations = estimate.predict_trials(middle, length_s);
    // If the capacity is measured, it is the line.
    if estimate.capacity_probability() > MIN_CONFIDENCE {
        let best = candidates
            .iter()
            .map(|rate| (*rate, confirmations.pass_probabilities(*rate, near)))
            .filter(|(_, (passes, succeeds))| *passes >= MIN_PASS_PROBABILITY && *succeeds > 0.0)
            .max_by(|(a, of_a), (b, of_b)| of_a.1.total_cmp(&of_b.1).then(a.total_cmp(b)));
        if let Some((rate, _)) = best {
            return Some(rate);
        }
    }
    let passes = |rate: &f64| confirmations.pass_probabilities(*rate, near).0;
    let likely = candidates
        .into_iter()
        .filter(|rate| *rate <= middle)
        .find(|rate| passes(rate) >= MIN_PASS_PROBABILITY);
    // If no rate is likely enough, accept a rate that has passed once and may pass again.
    let seen = highest_passed_rate(trials, estimate, &|rate| {
        passes(rate) >= MIN_REPEATED_PASS_PROBABILITY
    });
    likely
        .into_iter()
        .chain(seen)
        .max_by(f64::total_cmp)
        .or(rate_bounds(trials).lower)
        .map(|rate| rate.min(goal.most_per_s))
}

/// Returns the highest rate below the median estimate that passes `is_acceptable`, at which a narrowing trial met the
/// objectives and no longer trial missed them.
fn highest_passed_rate(
    trials: &[Trial],
    estimate: &LoadLineEstimate,
    is_acceptable: &dyn Fn(&f64) -> bool,
) -> Option<f64> {
    let middle = estimate.quantile(0.5);
    trials
        .iter()
        .filter(|t| t.purpose >= TrialPurpose::Narrow && t.verdict == TrialVerdict::Met)
        .map(|t| t.rate_per_s)
        .filter(|rate| *rate <= middle && !is_rate_rejected(trials, *rate) && is_acceptable(rate))
        .max_by(f64::total_cmp)
}

/// Returns the relative width of the interval between two rates (RFC 9971 §4.6.12).
fn relative_width(lower: f64, upper: f64) -> f64 {
    (upper - lower) / upper
}

/// Rounds a rate to a tenth of the precision, for readable figures.
fn round_rate(goal: &SearchGoal, rate: f64) -> f64 {
    let step = 10_f64.powf((rate * goal.precision / 5.0).log10().floor());
    let steps = (rate / step).round();
    // Dividing by the inverse avoids results like 12.300000000000001.
    if step < 1.0 {
        steps / (1.0 / step).round()
    } else {
        steps * step
    }
}

#[cfg(test)]
mod tests;
