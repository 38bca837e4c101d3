//! The search for the greatest number of users of a closed loop that meets the objectives.
//!
//! A closed loop has no queue that grows, so a trial shows only on which side of the line a number of users is. The
//! number rises until a trial fails, and then the distance between the greatest number that met the objectives and the
//! smallest that missed them is halved. Numbers are whole, so the line can be exact.

use std::time::Duration;

use super::bounds::{is_beyond_generator_limit, is_contradicted, is_rate_rejected};
use super::goal::SearchGoal;
use super::result::{SearchResult, search_result_with_estimate};
use super::{
    CURVE_RATE_SHARES, MAX_NARROWING_TRIALS_RATIO, MAX_NARROWING_WIDTH_RATIO,
    MIN_CURVE_POINT_DISTANCE, RATE_RISE_FACTOR, SearchBudget, SearchStep, Trial, TrialPurpose,
    TrialVerdict,
};

/// The length of a trial leaves room for this many times the calls that the objectives need.
const CALLS_MARGIN: f64 = 1.2;
/// A trial with too few calls is repeated at least this many times longer.
const MIN_REPEAT_LENGTH_RATIO: f64 = 2.0;

/// Returns the next step of a search over users.
pub(super) fn next_user_step(goal: &SearchGoal, trials: &[Trial]) -> SearchStep {
    let mut found = search_result_with_estimate(goal, trials, None);
    let budget = SearchBudget { goal, trials };
    let room_s = |purpose, users| budget.remaining_s() - budget.trial_overhead_s(purpose, users);
    if let Some((purpose, users)) = next_trial(goal, trials, &found) {
        let length_s = trial_length_s(goal, trials, purpose, users);
        // The winner so far is confirmed before the budget is spent.
        let winner = found
            .line_per_s
            .filter(|_| !found.confirmed && purpose != TrialPurpose::Confirm);
        let confirmation_s = |users| trial_length_s(goal, trials, TrialPurpose::Confirm, users);
        let reserve_s = winner.map_or(0.0, |users| {
            confirmation_s(users) + budget.trial_overhead_s(TrialPurpose::Confirm, users)
        });
        if length_s + reserve_s <= room_s(purpose, users) {
            return user_step(purpose, users, length_s);
        }
        let last = if purpose == TrialPurpose::Confirm {
            Some(users)
        } else {
            winner
        };
        if let Some(users) = last {
            let room_s = room_s(TrialPurpose::Confirm, users);
            if room_s >= confirmation_s(users) * super::MIN_CONFIRMATION_LENGTH_SHARE {
                let length_s = confirmation_s(users).min(room_s);
                return user_step(TrialPurpose::Confirm, users, length_s);
            }
        }
        found.budget_spent = true;
        return SearchStep::Done(Box::new(found));
    }
    let missing = found.line_per_s.filter(|_| goal.curve).and_then(|line| {
        let near = |users: f64| {
            let is_near = |t: &Trial| {
                (t.rate_per_s / users - 1.0).abs() < MIN_CURVE_POINT_DISTANCE.max(0.5 / users)
            };
            trials.iter().any(is_near)
        };
        let points = CURVE_RATE_SHARES.iter().map(|share| (line * share).round());
        let mut open = points.filter(|users| {
            (goal.least_per_s..=goal.most_per_s).contains(users)
                && !near(*users)
                && found
                    .generator_limit_per_s
                    .is_none_or(|limit| *users < limit)
        });
        open.next()
    });
    if let Some(users) = missing {
        let length_s = trial_length_s(goal, trials, TrialPurpose::Curve, users);
        if length_s <= room_s(TrialPurpose::Curve, users) {
            return user_step(TrialPurpose::Curve, users, length_s);
        }
    }
    SearchStep::Done(Box::new(found))
}

/// Returns the trial with so many users. Lengths are whole milliseconds, so that rounding can't exceed the budget.
fn user_step(purpose: TrialPurpose, users: f64, length_s: f64) -> SearchStep {
    SearchStep::Try {
        purpose,
        rate_per_s: users,
        length: Duration::from_millis((length_s * 1e3) as u64),
    }
}

/// Returns the next trial that counts; `None`: the line is known and confirmed, or can't be found.
fn next_trial(
    goal: &SearchGoal,
    trials: &[Trial],
    found: &SearchResult,
) -> Option<(TrialPurpose, f64)> {
    if let Some(last) = trials.last() {
        let is_undecided = match last.verdict {
            TrialVerdict::GeneratorLimited { .. } => {
                !is_beyond_generator_limit(trials, last.rate_per_s)
            }
            TrialVerdict::TooFewCalls { .. } => true,
            _ => false,
        };
        if is_undecided && last.purpose != TrialPurpose::Curve {
            return Some((last.purpose, last.rate_per_s));
        }
    }
    let was_tried = |users: f64, purpose: TrialPurpose| {
        let mut made = trials.iter().filter(|t| t.purpose != TrialPurpose::Curve);
        made.any(|t| t.rate_per_s == users && t.purpose >= purpose)
    };
    let once = |purpose, users| (!was_tried(users, purpose)).then_some((purpose, users));
    let (lower, upper) = user_bounds(trials);
    match (lower, upper) {
        (None, None) => once(TrialPurpose::Probe, goal.start_per_s),
        (Some(lower), None) if lower >= goal.most_per_s => once(TrialPurpose::Confirm, lower),
        (Some(lower), None) => {
            let higher = (lower * RATE_RISE_FACTOR).min(goal.most_per_s);
            Some((TrialPurpose::Probe, higher))
        }
        (None, Some(upper)) if upper <= goal.least_per_s => once(TrialPurpose::Narrow, upper),
        (None, Some(upper)) => {
            let lower = (upper / RATE_RISE_FACTOR).floor();
            Some((TrialPurpose::Probe, lower.max(goal.least_per_s)))
        }
        (Some(lower), Some(upper)) => {
            let narrowed = trials.iter().filter(|t| t.purpose >= TrialPurpose::Narrow);
            let is_spent = narrowed.count() as u32 >= MAX_NARROWING_TRIALS_RATIO * goal.trials;
            let width = (goal.precision * upper).floor().max(1.0);
            if upper - lower > width && !is_spent {
                let is_wide =
                    upper - lower > width.max(goal.precision * upper * MAX_NARROWING_WIDTH_RATIO);
                let purpose = if is_wide && upper > 1.5 * lower {
                    TrialPurpose::Probe
                } else {
                    TrialPurpose::Narrow
                };
                let middle = if upper > 2.0 * lower {
                    (lower * upper).sqrt()
                } else {
                    f64::midpoint(lower, upper)
                };
                let middle = middle.round().clamp(lower + 1.0, upper - 1.0);
                return Some((purpose, middle));
            }
            // The end above the line should not rest on a probe alone.
            if !is_spent && let Some(trial) = once(TrialPurpose::Narrow, upper) {
                return Some(trial);
            }
            if found.confirmed && found.line_per_s == Some(lower) {
                return None;
            }
            once(TrialPurpose::Confirm, lower)
        }
    }
}

/// Returns the greatest number of users that met the objectives, and the smallest that missed them or that the generator
/// can't make. The greatest number is below the smallest one.
fn user_bounds(trials: &[Trial]) -> (Option<f64>, Option<f64>) {
    let counting = || trials.iter().filter(|t| t.purpose != TrialPurpose::Curve);
    let upper = counting()
        .filter(|t| {
            is_rate_rejected(trials, t.rate_per_s)
                || is_beyond_generator_limit(trials, t.rate_per_s)
        })
        .map(|t| t.rate_per_s)
        .min_by(f64::total_cmp);
    let lower = counting()
        .filter(|t| t.verdict == TrialVerdict::Met && !is_contradicted(trials, t))
        .map(|t| t.rate_per_s)
        .filter(|users| upper.is_none_or(|upper| *users < upper))
        .max_by(f64::total_cmp);
    (lower, upper)
}

/// Returns the length of a trial, seconds, in which the objectives' percentiles probably get enough calls.
fn trial_length_s(goal: &SearchGoal, trials: &[Trial], purpose: TrialPurpose, users: f64) -> f64 {
    let calls_per_s = expected_calls_per_s(trials, users).unwrap_or(f64::INFINITY);
    let length_s = goal.trial_length_s(purpose, calls_per_s / CALLS_MARGIN);
    let too_short = trials
        .iter()
        .filter(|t| t.rate_per_s == users && matches!(t.verdict, TrialVerdict::TooFewCalls { .. }));
    let longest = too_short.map(|t| t.length_s).fold(0.0, f64::max);
    length_s.max(longest * MIN_REPEAT_LENGTH_RATIO)
}

/// Returns how many calls a second so many users make at least, by earlier trials: more users make at least as many
/// calls as fewer users, and each of fewer users at least as many as each of more.
fn expected_calls_per_s(trials: &[Trial], users: f64) -> Option<f64> {
    let rates = trials.iter().filter_map(|t| {
        let achieved = t.achieved_per_s.filter(|rate| *rate > 0.0)?;
        Some(achieved * (users / t.rate_per_s).min(1.0))
    });
    rates.max_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::{LimitingFactor, SearchVariable, next_step};

    fn goal(least: f64, most: f64) -> SearchGoal {
        SearchGoal {
            variable: SearchVariable::Users,
            start_per_s: least.max(10.0_f64.min(most)),
            least_per_s: least,
            most_per_s: most,
            ..SearchGoal::default()
        }
    }

    /// Searches with a server that serves `capacity` users. `met` gives the verdict of a trial with some users.
    fn search(
        goal: &SearchGoal,
        calls_per_user_s: f64,
        met: &mut dyn FnMut(f64) -> bool,
    ) -> (SearchResult, Vec<Trial>) {
        let mut trials: Vec<Trial> = Vec::new();
        for _ in 0..200 {
            match next_step(goal, &trials) {
                SearchStep::Done(found) => return (*found, trials),
                SearchStep::Try {
                    purpose,
                    rate_per_s,
                    length,
                } => {
                    assert_eq!(rate_per_s, rate_per_s.round(), "users are whole");
                    assert!((goal.least_per_s..=goal.most_per_s).contains(&rate_per_s));
                    let length_s = length.as_secs_f64();
                    let achieved = rate_per_s * calls_per_user_s;
                    let verdict = if achieved * length_s < goal.least_calls as f64 {
                        TrialVerdict::TooFewCalls {
                            objectives: vec!["p99 < 1s".to_owned()],
                        }
                    } else if met(rate_per_s) {
                        TrialVerdict::Met
                    } else {
                        TrialVerdict::Missed {
                            objectives: vec!["p99 < 1s".to_owned()],
                            errors: false,
                        }
                    };
                    trials.push(Trial {
                        purpose,
                        rate_per_s,
                        length_s,
                        took_s: length_s + 1.5,
                        verdict,
                        achieved_per_s: Some(achieved),
                        ..Trial::default()
                    });
                }
            }
        }
        panic!("the search does not end: {trials:#?}");
    }

    #[test]
    fn line_is_the_exact_number_of_users() {
        for capacity in 1..=99 {
            let capacity = f64::from(capacity);
            let (found, trials) = search(&goal(1.0, 100.0), 100.0, &mut |users| users <= capacity);
            assert_eq!(found.line_per_s, Some(capacity), "{trials:#?}");
            assert_eq!(found.high_per_s, Some(capacity + 1.0));
            assert!(found.confirmed && !found.budget_spent);
            let objectives = vec!["p99 < 1s".to_owned()];
            assert_eq!(found.limit, LimitingFactor::Objective { objectives });
            let took: f64 = trials.iter().map(|t| t.took_s).sum();
            assert!(took <= 300.0, "{took} s");
        }
    }

    #[test]
    fn range_ends_are_separate_lines() {
        let (found, _) = search(&goal(1.0, 50.0), 100.0, &mut |_| true);
        assert_eq!((found.line_per_s, found.confirmed), (Some(50.0), true));
        assert_eq!(found.limit, LimitingFactor::MostRate);
        let (found, _) = search(&goal(5.0, 50.0), 100.0, &mut |_| false);
        assert_eq!(
            (found.line_per_s, found.limit),
            (None, LimitingFactor::LeastRate)
        );
    }

    #[test]
    fn slow_users_get_trials_long_enough() {
        let wanted = SearchGoal {
            least_calls: 388,
            budget_s: 3_000.0,
            ..goal(1.0, 200.0)
        };
        // A user makes a call in two seconds, so ten users need 78 s for 388 calls.
        let (found, trials) = search(&wanted, 0.5, &mut |users| users <= 84.0);
        assert_eq!((found.line_per_s, found.confirmed), (Some(84.0), true));
        let undecided = |t: &&Trial| matches!(t.verdict, TrialVerdict::TooFewCalls { .. });
        let short = trials.iter().filter(undecided).count();
        assert!((1..=3).contains(&short), "{trials:#?}");
    }

    #[test]
    fn chance_near_the_line_moves_it_little() {
        // Of trials between 76 and 92 users, some are met and some are missed, by a fixed sequence.
        for seed in 0..200_u64 {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            let mut chance = move || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state >> 11) as f64 / (1_u64 << 53) as f64
            };
            let mut met = |users: f64| {
                let share = (92.0 - users) / 16.0;
                chance() < share
            };
            let (found, trials) = search(&goal(1.0, 500.0), 100.0, &mut met);
            let line = found.line_per_s.expect("a line");
            assert!(
                (70.0..=92.0).contains(&line),
                "seed {seed}: {line} {trials:#?}"
            );
            assert!(found.high_per_s.is_none_or(|high| high > line));
        }
    }
}
