//! The search for the load line: the highest arrival rate that meets the objectives.
//!
//! After RFC 9971 (multiple loss ratio search): trials of growing length classify rates as
//! lower bounds (the objectives are met) or upper bounds (they are not), where a share of
//! the trial time at a rate, the exceed ratio, may go the other way. The rate doubles until
//! it fails, the interval is halved to the precision that was asked for, and the winner is
//! confirmed by a longer trial.
//!
//! Invariant: [`next`] is a pure function of the goal and the trials made so far. It starts
//! nothing and reads no clock, so a search is replayed from its record, and simulated
//! servers test it. Called by `plimsoll find`.

mod bounds;
mod finding;
mod likelihood;
mod record;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use bounds::Level;
use bounds::{Bounds, Standing, bounds, standing};
pub use finding::{Finding, Knee, Limit, finding};
pub use record::{FILE, SearchRecord};

/// What is searched for, and how carefully (RFC 9971, 4.6: search goal).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Goal {
    /// The first rate to try, calls a second.
    pub start_per_s: f64,
    /// Rates outside of these are not tried, calls a second.
    pub least_per_s: f64,
    pub most_per_s: f64,
    /// The relative width of the interval that is enough: 0.01 is 1 % (goal width).
    pub precision: f64,
    /// How long a trial is that finds the neighbourhood, seconds.
    pub probe_s: f64,
    /// How long a trial is that counts, seconds (goal final trial duration).
    pub trial_s: f64,
    /// How many trials that count are made at most at a rate that is in doubt (goal
    /// duration sum, in trials).
    pub trials: u32,
    /// The share of them that may fail at a rate that passes (goal exceed ratio).
    pub exceed_ratio: f64,
    /// How long the trial is that confirms the winner, seconds.
    pub confirm_s: f64,
    /// A trial has at least so many calls, and takes longer where it must: what the
    /// objectives' percentiles need.
    pub least_calls: u64,
    /// All trials together end within this time, seconds.
    pub budget_s: f64,
    /// Trials at other rates, as far as the budget goes, for the curve of latency
    /// against rate.
    pub curve: bool,
}

impl Default for Goal {
    fn default() -> Goal {
        Goal {
            start_per_s: 100.0,
            least_per_s: 1.0,
            most_per_s: 10e6,
            precision: 0.01,
            probe_s: 2.0,
            trial_s: 5.0,
            trials: 3,
            exceed_ratio: 0.5,
            confirm_s: 15.0,
            least_calls: 0,
            budget_s: 300.0,
            curve: true,
        }
    }
}

/// Why a goal can't be searched for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {problem}")]
pub struct GoalError {
    /// The field without its unit.
    pub key: &'static str,
    pub problem: String,
}

impl Goal {
    /// # Errors
    /// The first field that makes no sense, and what would.
    pub fn check(&self) -> Result<(), GoalError> {
        let wrong = |key, problem: String| Err(GoalError { key, problem });
        for (key, seconds) in [
            ("probe", self.probe_s),
            ("trial", self.trial_s),
            ("confirm", self.confirm_s),
            ("budget", self.budget_s),
        ] {
            if !(seconds.is_finite() && seconds > 0.0) {
                return wrong(
                    key,
                    format!("{seconds} s is no length of a trial: use a duration such as \"5s\""),
                );
            }
        }
        if !(0.0005..=0.5).contains(&self.precision) {
            return wrong(
                "precision",
                format!(
                    "{} % is out of range: use 0.05% to 50%",
                    self.precision * 100.0
                ),
            );
        }
        if !(0.0..1.0).contains(&self.exceed_ratio) {
            return wrong(
                "exceed_ratio",
                format!(
                    "{} is out of range: use 0 to below 1, such as 0.5",
                    self.exceed_ratio
                ),
            );
        }
        if self.trials == 0 {
            return wrong("trials", "0 trials decide nothing: use 1 or more".into());
        }
        if self.trial_s < self.probe_s || self.confirm_s < self.trial_s {
            return wrong(
                "trial",
                format!(
                    "trials grow: a probe ({} s) is no longer than a trial ({} s), and a trial no longer than the confirmation ({} s)",
                    self.probe_s, self.trial_s, self.confirm_s
                ),
            );
        }
        let ordered = self.least_per_s > 0.0
            && self.least_per_s <= self.start_per_s
            && self.start_per_s <= self.most_per_s
            && self.most_per_s.is_finite();
        if !ordered {
            return wrong(
                "start",
                format!(
                    "rates must rise from least ({}/s) over start ({}/s) to most ({}/s)",
                    self.least_per_s, self.start_per_s, self.most_per_s
                ),
            );
        }
        Ok(())
    }

    /// The length of a trial at `rate_per_s`, seconds.
    fn length_s(&self, level: Level, rate_per_s: f64) -> f64 {
        let length_s = match level {
            Level::Probe => self.probe_s,
            Level::Trial => self.trial_s,
            Level::Confirm => self.confirm_s,
        };
        length_s.max(self.least_calls as f64 / rate_per_s)
    }
}

/// What a trial is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// Find the neighbourhood: double, halve.
    Probe,
    /// Classify a rate.
    Narrow,
    /// Hold the winner to its promise for longer.
    Confirm,
    /// A point of the curve. Says nothing about the bounds.
    Curve,
}

/// How a trial ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    /// Every objective was met.
    Met,
    /// An objective was missed.
    Missed {
        /// The objectives that were, as typed.
        objectives: Vec<String>,
        /// More calls than allowed ended with an error of the target or the link, and
        /// but for them the objectives were met.
        errors: bool,
    },
    /// The generator, not the target, was the limit: this says nothing of the target.
    GeneratorLimited { reason: String },
}

/// A trial that was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    pub purpose: Purpose,
    pub rate_per_s: f64,
    /// Of the load that counts, seconds.
    pub length_s: f64,
    /// With everything around it: connecting, warm-up, draining, settling. Seconds.
    pub took_s: f64,
    #[serde(flatten)]
    pub verdict: Verdict,
    pub achieved_per_s: Option<f64>,
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
    #[serde(rename = "p99.9_us")]
    pub p99_9_us: Option<f64>,
    pub mean_us: Option<f64>,
    /// Share of the calls that did not end ok.
    pub errors_share: Option<f64>,
    /// The run directory, relative to the search's.
    pub run: Option<String>,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Make this trial.
    Try {
        purpose: Purpose,
        rate_per_s: f64,
        length: Duration,
    },
    /// Nothing more is to be learned, or the budget is spent.
    Done(Box<Finding>),
}

/// The interval in which trials that count begin: so many times the precision.
const NEIGHBOURHOOD: f64 = 8.0;
/// The share of the precision to which the interval is halved; the rest is for noise.
const SPARE: f64 = 0.5;
/// What a trial takes besides its length, until one has shown it. Seconds.
const ASIDE_S: f64 = 1.0;
/// Where the curve wants points, as shares of the load line.
const CURVE: [f64; 7] = [0.1, 0.25, 0.5, 0.7, 0.85, 0.95, 1.1];
/// Points closer than this to one another show nothing new.
const CURVE_DISTANCE: f64 = 0.04;

/// The next step of the search for `goal`, after `trials`.
pub fn next(goal: &Goal, trials: &[Trial]) -> Step {
    let left_s = goal.budget_s - trials.iter().map(|t| t.took_s).sum::<f64>();
    let aside_s = trials
        .iter()
        .map(|t| t.took_s - t.length_s)
        .fold(if trials.is_empty() { ASIDE_S } else { 0.0 }, f64::max);
    let fits = |length_s: f64| length_s + aside_s <= left_s;
    let wanted = narrowing(goal, trials);
    if let Some((level, rate)) = wanted {
        let length_s = goal.length_s(level, rate);
        // The confirmation of what is known by now comes before knowing it better.
        let winner = confirmable(goal, trials);
        let reserve = match (level, winner) {
            (Level::Confirm, _) | (_, None) => 0.0,
            (_, Some(winner)) => goal.length_s(Level::Confirm, winner) + aside_s,
        };
        if fits(length_s + reserve) {
            return attempt(level, rate, length_s);
        }
        if let Some(rate) = winner {
            let length_s = goal.length_s(Level::Confirm, rate);
            if fits(length_s) {
                return attempt(Level::Confirm, rate, length_s);
            }
        }
        return Step::Done(Box::new(finding(goal, trials, true)));
    }
    let found = finding(goal, trials, false);
    if let (true, Some(line)) = (goal.curve, found.line_per_s) {
        let near = |rate: f64| {
            trials
                .iter()
                .any(|t| (t.rate_per_s / rate - 1.0).abs() < CURVE_DISTANCE)
        };
        let missing = CURVE
            .iter()
            .map(|share| rounded(goal, line * share))
            .find(|rate| {
                !near(*rate)
                    && (goal.least_per_s..=goal.most_per_s).contains(rate)
                    && found
                        .generator_limit_per_s
                        .is_none_or(|limit| *rate < limit)
            });
        if let Some(rate_per_s) = missing {
            let length_s = goal.length_s(Level::Probe, rate_per_s);
            if fits(length_s) {
                return Step::Try {
                    purpose: Purpose::Curve,
                    rate_per_s,
                    length: Duration::from_secs_f64(length_s),
                };
            }
        }
    }
    Step::Done(Box::new(found))
}

fn attempt(level: Level, rate_per_s: f64, length_s: f64) -> Step {
    Step::Try {
        purpose: match level {
            Level::Probe => Purpose::Probe,
            Level::Trial => Purpose::Narrow,
            Level::Confirm => Purpose::Confirm,
        },
        rate_per_s,
        length: Duration::from_secs_f64(length_s),
    }
}

/// The rate that would be confirmed if nothing more could be learned.
fn confirmable(goal: &Goal, trials: &[Trial]) -> Option<f64> {
    [Level::Trial, Level::Probe]
        .into_iter()
        .find_map(|level| bounds(goal, trials, level).lower)
        .filter(|rate| {
            let standing = standing(goal, trials, *rate, Level::Confirm);
            matches!(standing, Standing::Unknown | Standing::InDoubt)
        })
}

/// The next rate to classify, and by which kind of trial; `None`: the bounds stand.
fn narrowing(goal: &Goal, trials: &[Trial]) -> Option<(Level, f64)> {
    let probed = bounds(goal, trials, Level::Probe);
    let counted = bounds(goal, trials, Level::Trial);
    if !counted.is_begun()
        && let Some(rate) = probe(goal, &probed)
    {
        return Some((Level::Probe, rate));
    }
    // Where a confirmation failed, short trials flatter: only long ones count from there.
    let confirmed = bounds(goal, trials, Level::Confirm);
    if confirmed.upper.is_some() {
        return approach(goal, &confirmed, None).map(|rate| (Level::Confirm, rate));
    }
    let hint = (probed.lower, probed.upper);
    if let Some(rate) = approach(goal, &counted, Some(hint)) {
        return Some((Level::Trial, rate));
    }
    let winner = counted.lower?;
    match standing(goal, trials, winner, Level::Confirm) {
        Standing::Unknown | Standing::InDoubt => Some((Level::Confirm, winner)),
        _ => None,
    }
}

/// Double until it fails, halve until it passes, then halve the interval to the
/// neighbourhood of the line.
fn probe(goal: &Goal, seen: &Bounds) -> Option<f64> {
    if let Some(rate) = seen.in_doubt {
        return Some(rate);
    }
    match (seen.lower, seen.upper) {
        (None, None) => Some(goal.start_per_s),
        (Some(lower), None) => {
            (lower < goal.most_per_s).then(|| (lower * 2.0).min(goal.most_per_s))
        }
        (None, Some(upper)) => {
            (upper > goal.least_per_s).then(|| (upper / 2.0).max(goal.least_per_s))
        }
        (Some(lower), Some(upper)) => {
            let wide = goal.precision * NEIGHBOURHOOD;
            (width(lower, upper) > wide).then(|| rounded(goal, f64::midpoint(lower, upper)))
        }
    }
}

/// One rate closer to an interval of the wanted precision around the line; `None`: it is
/// there, or the range of rates ends. `hint`: bounds that shorter trials showed.
fn approach(goal: &Goal, seen: &Bounds, hint: Option<(Option<f64>, Option<f64>)>) -> Option<f64> {
    if let Some(rate) = seen.in_doubt {
        return Some(rate);
    }
    let (low_hint, high_hint) = hint.unwrap_or_default();
    // Each step away from where the hints proved wrong is twice as long as the last.
    let stride = goal.precision * f64::from(1_u32 << seen.classified.min(16)) / 2.0;
    match (seen.lower, seen.upper) {
        (None, None) => low_hint.or(high_hint),
        (Some(lower), None) => {
            let further = high_hint
                .filter(|rate| *rate > lower)
                .unwrap_or_else(|| rounded(goal, lower * (1.0 + stride)));
            (lower < goal.most_per_s).then(|| further.min(goal.most_per_s))
        }
        (None, Some(upper)) => {
            let further = rounded(goal, upper * (1.0 - stride.min(0.5)));
            (upper > goal.least_per_s).then(|| further.max(goal.least_per_s))
        }
        (Some(lower), Some(upper)) => {
            let middle = rounded(goal, f64::midpoint(lower, upper));
            let between = middle > lower && middle < upper;
            (width(lower, upper) > goal.precision * SPARE && between).then_some(middle)
        }
    }
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
