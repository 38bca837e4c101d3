//! Formats what a search varies: rates of an open loop, or numbers of users of a closed loop.

use super::{SearchGoal, SearchVariable};
use crate::formats::quantity::{count, exact_rate, rate_interval};

/// Returns a rate such as `210/s`, or a number of users such as `84 users`.
pub fn amount(goal: &SearchGoal, value: f64) -> String {
    match goal.variable {
        SearchVariable::Rate => exact_rate(value),
        SearchVariable::Users if value == 1.0 => "1 user".to_owned(),
        SearchVariable::Users => format!("{} users", count(value as u64)),
    }
}

/// Returns the ends of an interval of rates, with as many digits as tell them apart, or of numbers of users.
pub fn amount_interval(goal: &SearchGoal, low: f64, high: f64) -> (String, String) {
    match goal.variable {
        SearchVariable::Rate => rate_interval(low, high),
        SearchVariable::Users => (amount(goal, low), amount(goal, high)),
    }
}

/// Returns what the search looks for the highest of.
pub fn searched_quantity(goal: &SearchGoal) -> &'static str {
    match goal.variable {
        SearchVariable::Rate => "rate",
        SearchVariable::Users => "number of users",
    }
}

/// Returns the words for a search in which even the lowest amount missed an objective.
pub fn none_meets(goal: &SearchGoal) -> &'static str {
    match goal.variable {
        SearchVariable::Rate => "no rate meets the objectives",
        SearchVariable::Users => "no number of users meets the objectives",
    }
}
