//! The goal of a search.

use serde::{Deserialize, Serialize};

use super::TrialPurpose;

/// The quantity of which a search finds the greatest value that meets the objectives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SearchVariable {
    /// The rate of arrivals of an open loop.
    #[default]
    Rate,
    /// The number of users (clients) of a closed loop. Fields whose names end with `_per_s` hold numbers of users then,
    /// and are named accordingly in JSON.
    Users,
}

impl SearchVariable {
    fn is_rate(&self) -> bool {
        *self == SearchVariable::Rate
    }
}

/// The goal of a search: the range of rates, the precision, and the lengths of trials (RFC 9971 §4.6: search goal).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SearchGoal {
    /// The quantity that the search varies; left out if it is the rate.
    #[serde(default, skip_serializing_if = "SearchVariable::is_rate")]
    pub variable: SearchVariable,
    /// The first rate to try, in calls per second.
    #[serde(alias = "start_users")]
    pub start_per_s: f64,
    /// The lowest rate that is tried, in calls per second.
    #[serde(alias = "least_users")]
    pub least_per_s: f64,
    /// The highest rate that is tried, in calls per second.
    #[serde(alias = "most_users")]
    pub most_per_s: f64,
    /// The relative width at which the interval around the greatest value that meets the objectives is narrow enough:
    /// 0.01 is 1 % (goal width).
    pub precision: f64,
    /// The length of a probing trial, seconds.
    pub probe_s: f64,
    /// The length of a narrowing trial, seconds (goal final trial duration).
    pub trial_s: f64,
    /// Maximum number of narrowing trials at one rate.
    pub trials: u32,
    /// The length of the trial that confirms the result, seconds.
    pub confirm_s: f64,
    /// Minimum number of calls in a trial, which the objectives' percentiles require. Trials are lengthened to reach
    /// it.
    pub least_calls: u64,
    /// Maximum time of all trials together, seconds.
    pub budget_s: f64,
    /// Whether remaining budget is spent on trials at other rates, for the curve of latency against rate.
    pub curve: bool,
}

impl Default for SearchGoal {
    fn default() -> SearchGoal {
        SearchGoal {
            variable: SearchVariable::Rate,
            start_per_s: 100.0,
            least_per_s: 1.0,
            most_per_s: 10e6,
            precision: 0.01,
            probe_s: 2.0,
            trial_s: 5.0,
            trials: 3,
            confirm_s: 15.0,
            least_calls: 0,
            budget_s: 300.0,
            curve: true,
        }
    }
}

/// Why a goal is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {problem}")]
pub struct GoalError {
    /// The name of the field without its unit.
    pub key: &'static str,
    /// The problem, and what would be valid.
    pub problem: String,
}

impl SearchGoal {
    /// Checks the goal.
    ///
    /// # Errors
    /// Returns the first invalid field, and what would be valid.
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
                    format!(
                        "{seconds} s is not a valid length of a trial: use a duration such as \"5s\""
                    ),
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
        if self.trials == 0 {
            return wrong("trials", "0 trials can't decide: use 1 or more".into());
        }
        if self.trial_s < self.probe_s || self.confirm_s < self.trial_s {
            return wrong(
                "trial",
                format!(
                    "trial lengths must not decrease: probe {} s, trial {} s, confirmation {} s",
                    self.probe_s, self.trial_s, self.confirm_s
                ),
            );
        }
        let ordered = self.least_per_s > 0.0
            && self.least_per_s <= self.start_per_s
            && self.start_per_s <= self.most_per_s
            && self.most_per_s.is_finite();
        if !ordered && self.variable == SearchVariable::Users {
            return wrong(
                "users",
                format!(
                    "numbers of users must rise from {} to {}, and be 1 or more",
                    self.least_per_s, self.most_per_s
                ),
            );
        }
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

    /// Returns the length of a trial at `rate_per_s`, seconds. A short budget shortens trials.
    pub(super) fn trial_length_s(&self, purpose: TrialPurpose, rate_per_s: f64) -> f64 {
        let (length_s, of_budget) = match purpose {
            TrialPurpose::Probe | TrialPurpose::Curve => (self.probe_s, 1.0 / 30.0),
            TrialPurpose::Narrow => (self.trial_s, 1.0 / 12.0),
            TrialPurpose::Confirm => (self.confirm_s, 1.0 / 6.0),
        };
        length_s
            .min(self.budget_s * of_budget)
            .max(self.least_calls as f64 / rate_per_s)
    }
}
