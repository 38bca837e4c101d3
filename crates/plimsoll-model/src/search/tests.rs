use super::*;

#[test]
fn invalid_goal_error_names_key() {
    let goal = SearchGoal::default();
    assert_eq!(goal.check(), Ok(()));
    let equal = SearchGoal {
        least_per_s: 7.0,
        start_per_s: 7.0,
        most_per_s: 7.0,
        probe_s: 5.0,
        trial_s: 5.0,
        confirm_s: 5.0,
        trials: 1,
        ..goal.clone()
    };
    assert_eq!(equal.check(), Ok(()), "bounds may be equal");
    let with = |change: fn(&mut SearchGoal)| {
        let mut goal = SearchGoal::default();
        change(&mut goal);
        goal.check().map_err(|error| error.key)
    };
    assert_eq!(with(|g| g.least_per_s = 0.0), Err("start"));
    assert_eq!(with(|g| g.least_per_s = g.start_per_s + 1.0), Err("start"));
    assert_eq!(with(|g| g.most_per_s = g.start_per_s - 1.0), Err("start"));
    assert_eq!(with(|g| g.most_per_s = f64::INFINITY), Err("start"));
    assert_eq!(with(|g| g.trial_s = g.probe_s - 0.1), Err("trial"));
    assert_eq!(with(|g| g.confirm_s = g.trial_s - 0.1), Err("trial"));
    assert_eq!(with(|g| g.trials = 0), Err("trials"));
    assert_eq!(with(|g| g.budget_s = 0.0), Err("budget"));
    assert_eq!(with(|g| g.probe_s = 0.0), Err("probe"));
    assert_eq!(with(|g| g.precision = 0.6), Err("precision"));
}
