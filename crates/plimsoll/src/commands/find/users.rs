//! Prepares the load of a search for the greatest number of users.

use std::time::Duration;

use plimsoll_model::formats::units::Period;
use plimsoll_model::search::{SearchGoal, SearchVariable};
use plimsoll_model::spec::{FindSpec, Spec, UserRange};
use plimsoll_report::quantity::plural;

use crate::failure::Failure;
use crate::settings::problems::{self, PlanSource};

/// Returns the numbers of users to search, if it is users that are searched.
pub(super) fn users_of(spec: &Spec, source: &PlanSource<'_>) -> Result<Option<UserRange>, Failure> {
    let find = spec.find.as_ref();
    let users = find.map_or(Ok(None), FindSpec::resolve_users);
    users.map_err(|problem| problems::failure(vec![problem], source))
}

/// Replaces the load's rate, steps or clients by the number of users of the first trial; returns that number.
pub(super) fn normalise_users(spec: &mut Spec, users: UserRange) -> f64 {
    let load = &mut spec.load;
    let start = users.start(load.clients);
    (load.rate, load.steps, load.arrivals) = (None, None, None);
    load.clients = Some(start);
    (load.duration, load.calls) = (Some(Period(Duration::from_secs(1))), None);
    f64::from(start)
}

/// Checks the plan with the greatest number of users of a search for their number, so that an error does not end the
/// search after minutes. `plan_trial` plans a trial with a number of users.
///
/// # Errors
/// When the plan can't have so many users.
pub(super) fn check_greatest_number<T>(
    goal: &SearchGoal,
    plan_trial: impl FnOnce(f64) -> Result<T, Failure>,
) -> Result<(), Failure> {
    if goal.variable != SearchVariable::Users {
        return Ok(());
    }
    let users = plural(goal.most_per_s as u64, "user");
    let help = format!(
        "the search goes up to {users}: end --users (find.users) at a number that the plan can have"
    );
    plan_trial(goal.most_per_s)
        .map(drop)
        .map_err(|failure| failure.with_help(&help))
}
