//! Prepares the load of a search for the greatest number of users.

use std::time::Duration;

use plimsoll_model::formats::units::Period;
use plimsoll_model::spec::{FindSpec, Spec, UserRange};

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
