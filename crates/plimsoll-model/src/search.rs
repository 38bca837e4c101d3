//! The search for the load line: the highest arrival rate that meets the objectives.
//!
//! In the terms of RFC 9971 (multiple loss ratio search): trials of growing length say whether a
//! rate is below the line (the objectives are met and the queue does not grow) or above it. The
//! rate rises until a trial fails; then every trial is made where it is worth most, given how all
//! before it ended ([`estimate`]); the winner is confirmed by a longer trial, for which the budget keeps room.
//!
//! Invariant: [`next`] is a pure function of the goal and the trials made so far. It starts
//! nothing and reads no clock, so a search is replayed from its record, and simulated
//! servers test it. Called by `plimsoll find`.
//!
//! Long because the next step is one decision, with all that it is made from beside it.

mod bounds;
mod estimate;
mod finding;
mod goal;
mod growth;
mod record;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::named::named;

use bounds::{bounds, is_generators, is_lost};
use estimate::{Estimate, OVERLOAD_RATIO};
pub use finding::{Finding, Knee, Limit, finding};
pub use goal::{Goal, GoalError};
pub use growth::{GROWTH_ERROR, Growth};
pub use record::{FILE_NAME, SearchRecord};

named! {
    /// What a trial is made for.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Purpose by name {
        /// A point of the curve. Says nothing about the bounds.
        Curve "curve",
        /// Find the neighbourhood: double, halve.
        #[default]
        Probe "probe",
        /// Find which side of the line a rate is on, or measure what the target carries.
        Narrow "narrow",
        /// Hold the winner to its promise for longer.
        Confirm "confirm",
    }
}

/// How a trial ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    /// Every objective was met.
    #[default]
    Met,
    /// An objective was missed.
    Missed {
        /// The objectives that were, as typed.
        objectives: Vec<String>,
        /// More calls than allowed ended with an error of the target or the link, and
        /// but for them the objectives were met.
        errors: bool,
    },
    /// Every objective was met, and all the same calls piled up from beginning to end: the
    /// target does not carry the rate, which a longer trial would show.
    Growing,
    /// The generator, not the target, was the limit: this says nothing of the target.
    GeneratorLimited {
        /// A sentence.
        reason: String,
    },
}

/// A trial that was made.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// What it was made for.
    pub purpose: Purpose,
    /// Arrivals a second.
    pub rate_per_s: f64,
    /// The length of the load that counts, seconds.
    pub length_s: f64,
    /// Seconds with everything around it: connecting, warm-up, draining, settling.
    pub took_s: f64,
    /// How it ended.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Calls a second that ended; `None`: not known.
    pub achieved_per_s: Option<f64>,
    /// Response time; `None`, as the next two: too few calls.
    pub p50_us: Option<f64>,
    /// The 99th percentile.
    pub p99_us: Option<f64>,
    /// The 99.9th percentile.
    #[serde(rename = "p99.9_us")]
    pub p99_9_us: Option<f64>,
    /// The mean response time; `None`: no call ended ok.
    pub mean_us: Option<f64>,
    /// What an objective on a time limits ([`plotted`](crate::objective::plotted)); left out where unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limited_us: Option<f64>,
    /// Share of the calls that did not end ok.
    pub errors_share: Option<f64>,
    /// How the calls that wait for their answers grew; `None`: too short to tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub growth: Option<Growth>,
    /// The run directory, relative to the search's.
    pub run: Option<String>,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Make this trial.
    Try {
        /// What it is made for.
        purpose: Purpose,
        /// Arrivals a second.
        rate_per_s: f64,
        /// The length of the load that counts.
        length: Duration,
    },
    /// Nothing more is to be learned, or the budget is spent.
    Done(Box<Finding>),
}

/// The interval in which trials that count begin: so many times the precision.
const MAX_NARROWING_WIDTH: f64 = 8.0;
/// The share of the precision to which the estimate is narrowed; the rest is for what the confirmation needs.
const NARROWED_WIDTH: f64 = 0.6;
/// The share of the probability that is narrowed, and how probable a capacity must be to count as found.
const MIN_CONFIDENCE: f64 = 0.9;
/// A capacity is measured while the queue grows: so many standard errors of the trial above what
/// it is at most, with this probability.
const LIFT_STANDARD_ERRORS: f64 = 2.0;
const AT_MOST: f64 = 0.9;
/// And above what an overloaded target carried, in parts of it and in standard errors of exponential service times.
const ABOVE_HINT: f64 = 0.03;
/// How probable it must be that the confirmation meets the objectives.
const MIN_PASS_CHANCE: f64 = 0.9;
/// And where a trial that counts met them already.
const MIN_REPEAT_CHANCE: f64 = 0.7;
/// A line that is within so many standard errors of all calls that the budget has room for is
/// as near as it can be.
const STANDARD_ERRORS: f64 = 3.0;
/// Trials that count, at most, for each that may be made at one rate.
const MAX_NARROWING_RATIO: u32 = 8;
/// What a trial takes besides its length, until one has shown it. Seconds.
const ASIDE_S: f64 = 1.5;
/// The share of its length that a confirmation has at least.
const MIN_CONFIRMATION_SHARE: f64 = 0.6;
/// How many times as long as a confirmation a trial that counts may be.
const MAX_TRIAL_RATIO: f64 = 2.2;
/// What a trial above the line may take longer than one below it. Seconds.
const DRAIN_S: f64 = 0.5;
/// Trials at higher rates than this many times another's drain for longer.
const SIMILAR_RATE_RATIO: f64 = 1.3;
/// How steep the rate rises while all is well.
const RISE_FACTOR: f64 = 4.0;
/// Where the curve wants points, as shares of the load line.
const CURVE_POINTS: [f64; 7] = [0.1, 0.25, 0.5, 0.7, 0.85, 0.95, 1.1];
/// Points closer than this to one another show nothing new.
const CURVE_DISTANCE: f64 = 0.04;

/// The next step of the search for `goal`, after `trials`.
pub fn next(goal: &Goal, trials: &[Trial]) -> Step {
    let budget = Budget { goal, trials };
    let estimate = Estimate::of(goal, trials);
    let mut found = finding::found(goal, trials, estimate.as_ref());
    if let Some((purpose, rate)) = wanted(goal, trials, estimate.as_ref(), &found) {
        // The confirmation of what is known by now comes before knowing it better.
        let winner = winner(goal, trials, estimate.as_ref());
        let confirmed = found.confirmed;
        let reserve_s = match winner {
            Some(winner) if purpose != Purpose::Confirm && !confirmed => {
                budget.confirmation_takes(winner) + DRAIN_S
            }
            _ => 0.0,
        };
        let room_s = budget.left_s() - reserve_s;
        if budget.takes(purpose, rate) <= room_s {
            if let (Some(estimate), Purpose::Narrow) = (&estimate, purpose) {
                let length_s = budget.stretched(estimate, rate, room_s);
                return attempt(
                    purpose,
                    lifted(goal, trials, estimate, rate, length_s),
                    length_s,
                );
            }
            return attempt(purpose, rate, goal.length_s(purpose, rate));
        }
        if let Some(rate) = winner.filter(|_| !confirmed)
            && let Some(length_s) = budget.confirmation_s(rate)
        {
            return attempt(Purpose::Confirm, rate, length_s);
        }
        found.budget_spent = true;
        return Step::Done(Box::new(found));
    }
    if let (true, Some(line)) = (goal.curve, found.line_per_s) {
        let near = |rate: f64| {
            trials
                .iter()
                .any(|t| (t.rate_per_s / rate - 1.0).abs() < CURVE_DISTANCE)
        };
        let missing = CURVE_POINTS
            .iter()
            .map(|share| rounded(goal, line * share))
            .find(|rate| {
                !near(*rate)
                    && (goal.least_per_s..=goal.most_per_s).contains(rate)
                    && found
                        .generator_limit_per_s
                        .is_none_or(|limit| *rate < limit)
            });
        if let Some(rate) = missing
            && budget.takes(Purpose::Curve, rate) <= budget.left_s()
        {
            return attempt(Purpose::Curve, rate, goal.length_s(Purpose::Curve, rate));
        }
    }
    Step::Done(Box::new(found))
}

fn attempt(purpose: Purpose, rate_per_s: f64, length_s: f64) -> Step {
    Step::Try {
        purpose,
        rate_per_s,
        length: Duration::from_secs_f64(length_s),
    }
}

/// What is left, and what trials take of it.
struct Budget<'a> {
    goal: &'a Goal,
    trials: &'a [Trial],
}

impl Budget<'_> {
    fn left_s(&self) -> f64 {
        self.goal.budget_s - self.trials.iter().map(|t| t.took_s).sum::<f64>()
    }

    /// What a trial at `rate` takes besides its length.
    fn aside_s(&self, purpose: Purpose, rate: f64) -> f64 {
        let alike = match purpose {
            Purpose::Confirm => 1.0,
            _ => SIMILAR_RATE_RATIO,
        };
        let alike = self.trials.iter().filter(|t| t.rate_per_s <= alike * rate);
        alike
            .map(|t| t.took_s - t.length_s)
            .max_by(f64::total_cmp)
            .unwrap_or(ASIDE_S)
    }

    fn takes(&self, purpose: Purpose, rate: f64) -> f64 {
        self.goal.length_s(purpose, rate) + self.aside_s(purpose, rate)
    }

    /// The length of a confirmation for which there is still time; a bit shorter than it should
    /// be is better than none.
    fn confirmation_s(&self, rate: f64) -> Option<f64> {
        let length_s = self.goal.length_s(Purpose::Confirm, rate);
        let room_s = self.left_s() - self.aside_s(Purpose::Confirm, rate);
        // Whole milliseconds, so that sums do not end beyond the budget.
        let room_s = (room_s * 1e3).floor() / 1e3;
        (room_s >= self.shortest_s(rate)).then(|| length_s.min(room_s))
    }

    fn shortest_s(&self, rate: f64) -> f64 {
        let calls_s = self.goal.least_calls as f64 / rate;
        (self.goal.length_s(Purpose::Confirm, rate) * MIN_CONFIRMATION_SHARE).max(calls_s)
    }

    /// What the shortest confirmation takes.
    fn confirmation_takes(&self, rate: f64) -> f64 {
        self.shortest_s(rate) + self.aside_s(Purpose::Confirm, rate)
    }

    /// The length of a trial that counts: longer where the server's own spread asks for it,
    /// so that what is left goes into few long trials.
    fn stretched(&self, estimate: &Estimate, rate: f64, room_s: f64) -> f64 {
        let length_s = self.goal.length_s(Purpose::Narrow, rate);
        // The first one shows where a long one is worth its time.
        let first = !self.trials.iter().any(|t| t.purpose >= Purpose::Narrow);
        if first || estimate.within(rate * length_s) <= self.goal.precision * NARROWED_WIDTH {
            return length_s;
        }
        let asides = self.trials.iter().map(|t| t.took_s - t.length_s);
        let aside_s = asides.min_by(f64::total_cmp).unwrap_or(ASIDE_S) + DRAIN_S;
        let longest_s = (MAX_TRIAL_RATIO * self.goal.confirm_s).max(length_s);
        let trials = (room_s / (longest_s + aside_s)).round().max(1.0);
        // What is measured above the capacity drains for as long as that was too much.
        let longer = 1.0
            + (estimate.quantile(AT_MOST) / estimate.quantile(0.5) - 1.0)
            + LIFT_STANDARD_ERRORS * estimate.within(rate * longest_s);
        ((room_s / trials - aside_s) / longer).clamp(length_s, longest_s)
    }
}

/// The trial that is worth most; `None`: the line is known and confirmed, or there is none.
fn wanted(
    goal: &Goal,
    trials: &[Trial],
    estimate: Option<&Estimate>,
    found: &Finding,
) -> Option<(Purpose, f64)> {
    // Whose limit it was is asked once more.
    if let Some(last) = trials.last()
        && last.verdict.is_limited()
        && !is_generators(trials, last.rate_per_s)
    {
        return Some((last.purpose, last.rate_per_s));
    }
    let seen = bounds(trials);
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
        (None, None) => Some((Purpose::Probe, goal.start_per_s)),
        (Some(lower), None) if lower >= goal.most_per_s => at_end(lower, Purpose::Confirm),
        (Some(lower), None) => Some((Purpose::Probe, higher(goal, lower))),
        (None, Some(upper)) if upper <= goal.least_per_s => at_end(upper, Purpose::Narrow),
        (None, Some(upper)) => {
            let lower = hint(trials, upper).map_or(upper, |(carried, _)| carried) / 2.0;
            let rate = rounded(goal, lower).max(goal.least_per_s);
            Some((Purpose::Probe, rate))
        }
        (Some(lower), Some(upper)) => between(goal, trials, estimate?, found, (lower, upper)),
    }
}

/// The next higher rate while all is well.
fn higher(goal: &Goal, lower: f64) -> f64 {
    (lower * RISE_FACTOR).min(goal.most_per_s)
}

/// What the target carried when too much was asked of it, by the lowest rate that was.
/// And in how many calls.
fn hint(trials: &[Trial], upper: f64) -> Option<(f64, f64)> {
    let at_upper = trials.iter().filter(|t| t.rate_per_s == upper);
    at_upper
        .filter_map(|t| {
            let growth = t.growth?;
            let carried = t.rate_per_s - growth.per_s;
            Some((carried, carried * f64::from(growth.increments)))
        })
        .rfind(|(carried, _)| *carried > 0.0 && *carried * OVERLOAD_RATIO < upper)
}

/// The trial that is worth most for a line that lies between two rates.
fn between(
    goal: &Goal,
    trials: &[Trial],
    estimate: &Estimate,
    found: &Finding,
    (lower, upper): (f64, f64),
) -> Option<(Purpose, f64)> {
    let inside = |rate: f64| rounded(goal, rate).clamp(goal.least_per_s, goal.most_per_s);
    // Just above what an overloaded target carried lies its capacity.
    let narrowed = trials
        .iter()
        .filter(|t| t.purpose >= Purpose::Narrow)
        .count();
    if narrowed == 0
        && let Some((carried, calls)) = hint(trials, upper)
        && lower * 0.9 < carried
    {
        let lift = goal.precision.max(ABOVE_HINT) + LIFT_STANDARD_ERRORS / calls.sqrt();
        return Some((Purpose::Narrow, inside(carried * (1.0 + lift))));
    }
    let width = estimate.width(MIN_CONFIDENCE);
    if width > goal.precision * MAX_NARROWING_WIDTH
        && estimate.is_capacity() < MIN_CONFIDENCE
        && upper > lower * (1.0 + goal.precision * MAX_NARROWING_WIDTH)
    {
        return Some((Purpose::Probe, inside(estimate.quantile(0.5))));
    }
    let spent = narrowed as u32 >= MAX_NARROWING_RATIO * goal.trials;
    let precise = |line: f64| upper > line && self::width(line, upper) <= goal.precision;
    let confirmed = found.line_per_s.filter(|_| found.confirmed);
    if let Some(line) = confirmed
        && spent
        && !precise(line)
        && let Some(better) = seen(trials, estimate, &|rate| *rate > line)
    {
        return Some((Purpose::Confirm, better));
    }
    if let Some(line) = confirmed
        && (spent
            || precise(line)
            || estimate.quantile(0.98) <= line * (1.0 + 0.8 * goal.precision))
    {
        return None;
    }
    if width <= goal.precision * NARROWED_WIDTH || spent {
        let winner = winner(goal, trials, Some(estimate))?;
        if Some(winner) != found.line_per_s || !found.confirmed {
            return Some((Purpose::Confirm, winner));
        }
        return None;
    }
    let middle = estimate.quantile(0.5);
    let rate = inside(middle);
    let repeated = trials
        .iter()
        .filter(|t| t.rate_per_s == rate && t.purpose >= Purpose::Narrow);
    if repeated.count() as u32 >= goal.trials {
        let winner = winner(goal, trials, Some(estimate))?;
        return (Some(winner) != found.line_per_s || !found.confirmed)
            .then_some((Purpose::Confirm, winner));
    }
    Some((Purpose::Narrow, rate))
}

/// Where a trial of this length is worth most for a line at about `rate`: a capacity is measured while
/// the queue grows.
fn lifted(goal: &Goal, trials: &[Trial], estimate: &Estimate, rate: f64, length_s: f64) -> f64 {
    let measured = trials.iter().any(|t| t.purpose >= Purpose::Narrow);
    if !measured || estimate.is_capacity() <= MIN_CONFIDENCE {
        return rate;
    }
    let lift = estimate.within(rate * length_s) * LIFT_STANDARD_ERRORS;
    let lifted = (estimate.quantile(AT_MOST) * (1.0 + lift)).min(rate * OVERLOAD_RATIO);
    rounded(goal, lifted.max(rate)).clamp(goal.least_per_s, goal.most_per_s)
}

/// The rate that would be confirmed if nothing more could be learned. Of a measured capacity: the
/// one that is most likely to be confirmed and near it. Else the highest below the middle of what
/// is probable that is likely to pass.
fn winner(goal: &Goal, trials: &[Trial], estimate: Option<&Estimate>) -> Option<f64> {
    let Some(estimate) = estimate else {
        return bounds(trials).lower;
    };
    let middle = estimate.quantile(0.5);
    let near = goal
        .precision
        .max(STANDARD_ERRORS * estimate.within(middle * goal.budget_s));
    let length_s = goal.length_s(Purpose::Confirm, middle);
    let step = goal.precision / 5.0;
    let candidates: Vec<f64> = (-20_i32..60)
        .map(|i| f64::from(i) * (1.0 + f64::from(i.max(0)) / 20.0))
        .map(|steps| rounded(goal, middle * (1.0 - step * steps).max(0.0)))
        .filter(|rate| (goal.least_per_s..=goal.most_per_s).contains(rate))
        .filter(|rate| !is_lost(trials, *rate))
        .collect();
    let confirmations = estimate.trials(middle, length_s);
    // A measured capacity settles the question.
    if estimate.is_capacity() > MIN_CONFIDENCE {
        let best = candidates
            .iter()
            .map(|rate| (*rate, confirmations.chances(*rate, near)))
            .filter(|(_, (passes, succeeds))| *passes >= MIN_PASS_CHANCE && *succeeds > 0.0)
            .max_by(|(a, of_a), (b, of_b)| of_a.1.total_cmp(&of_b.1).then(a.total_cmp(b)));
        if let Some((rate, _)) = best {
            return Some(rate);
        }
    }
    let passes = |rate: &f64| confirmations.chances(*rate, near).0;
    let likely = candidates
        .into_iter()
        .filter(|rate| *rate <= middle)
        .find(|rate| passes(rate) >= MIN_PASS_CHANCE);
    // Else what was met may be met again.
    let seen = seen(trials, estimate, &|rate| passes(rate) >= MIN_REPEAT_CHANCE);
    likely
        .into_iter()
        .chain(seen)
        .max_by(f64::total_cmp)
        .or(bounds(trials).lower)
        .map(|rate| rate.min(goal.most_per_s))
}

/// The highest rate below the middle of what is probable at which a trial that counts met the
/// objectives, and none that was longer missed them; of those that will `do`.
fn seen(trials: &[Trial], estimate: &Estimate, will_do: &dyn Fn(&f64) -> bool) -> Option<f64> {
    let middle = estimate.quantile(0.5);
    trials
        .iter()
        .filter(|t| t.purpose >= Purpose::Narrow && t.verdict == Verdict::Met)
        .map(|t| t.rate_per_s)
        .filter(|rate| *rate <= middle && !is_lost(trials, *rate) && will_do(rate))
        .max_by(f64::total_cmp)
}

/// The relative width of an interval of rates (RFC 9971, 4.6.12).
fn width(lower: f64, upper: f64) -> f64 {
    (upper - lower) / upper
}

/// A rate in figures that people can read: to a tenth of the precision.
fn rounded(goal: &Goal, rate: f64) -> f64 {
    let step = 10_f64.powf((rate * goal.precision / 5.0).log10().floor());
    let steps = (rate / step).round();
    // Dividing by the inverse keeps 12.3 from becoming 12.300000000000001.
    if step < 1.0 {
        steps / (1.0 / step).round()
    } else {
        steps * step
    }
}

#[cfg(test)]
mod tests;
