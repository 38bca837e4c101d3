//! Describes a search before it begins.

use std::time::Duration;

use plimsoll_model::formats::units::Rate;
use plimsoll_model::plan::Plan;
use plimsoll_model::search::{SearchGoal, SearchVariable};
use plimsoll_report::quantity::planned_time;
use plimsoll_report::search as shown;

/// Describes the search and its limits, for `--dry-run`.
pub(super) fn describe_search(plan: &Plan, goal: &SearchGoal) -> String {
    let time = |seconds: f64| planned_time(Duration::from_secs_f64(seconds));
    let amount = |value: f64| match goal.variable {
        SearchVariable::Rate => Rate(value).to_string(),
        SearchVariable::Users => shown::amount(goal, value),
    };
    let objectives: Vec<&str> = plan.objectives.iter().map(|o| o.text.as_str()).collect();
    format!(
        "a search for the highest {} that meets {}\nfrom {} on, between {} and {}, until the bounds are within {} %\n\
         at most {} trials of {} per rate, and one of {} that confirms the winner; at most {} in total",
        shown::searched_quantity(goal),
        objectives.join(", "),
        amount(goal.start_per_s),
        amount(goal.least_per_s),
        amount(goal.most_per_s),
        goal.precision * 100.0,
        goal.trials,
        time(goal.trial_s),
        time(goal.confirm_s),
        time(goal.budget_s),
    )
}
