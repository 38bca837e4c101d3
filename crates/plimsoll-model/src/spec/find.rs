//! `[find]`: how to search for the load line, the highest rate that meets the objectives.

use clap::Args;
use serde::{Deserialize, Serialize};

use super::{Problem, Spec};
use crate::formats::units::{self, Period, Rate};
use crate::plan::{Metric, Plan, Statistic};
use crate::search::{SearchGoal, SearchVariable};
use crate::statistics::quantile::{first_satisfying, is_supported};

/// How to search for the load line. The search begins at `load.rate`.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[command(next_help_heading = "Search")]
pub struct FindSpec {
    /// How close to each other the bounds must come [default: 1%].
    #[arg(long, value_name = "SHARE")]
    pub precision: Option<String>,
    /// No lower rate is tried [default: 1/s].
    #[arg(long, value_name = "RATE", value_parser = units::parse_per_second::<Rate>)]
    pub least: Option<Rate>,
    /// No higher rate is tried [default: 10000000/s].
    #[arg(long, value_name = "RATE", value_parser = units::parse_per_second::<Rate>)]
    pub most: Option<Rate>,
    /// Search the greatest number of users in a closed loop instead of a rate: 1..500.
    ///
    /// Numbers between these two are tried; `"500"` is `"1..500"`. Default: a rate is searched.
    #[arg(long, value_name = "FROM..TO")]
    pub users: Option<String>,
    /// The length of a trial that finds the neighbourhood of the line. Default 2s.
    #[arg(skip)]
    pub probe: Option<Period>,
    /// The length of a trial that narrows the bounds [default: 5s].
    #[arg(long, value_name = "TIME", value_parser = units::parse_seconds)]
    pub trial: Option<Period>,
    /// The most trials of this length at one rate [default: 3].
    #[arg(long, value_name = "N")]
    pub trials: Option<u32>,
    /// The length of the trial that confirms the result. Default: three times `trial`.
    #[arg(
        help = "The length of the trial that confirms the result [default: three times --trial]",
        long,
        value_name = "TIME",
        value_parser = units::parse_seconds
    )]
    pub confirm: Option<Period>,
    /// The search ends within this time [default: 5m].
    #[arg(long, value_name = "TIME", value_parser = units::parse_seconds)]
    pub budget: Option<Period>,
    /// Also try other rates, for the curve of latency against rate. Default true.
    #[arg(skip)]
    pub curve: Option<bool>,
}

/// The numbers of users between which a search looks for the greatest that meets the objectives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserRange {
    /// The smallest number of users that is tried.
    pub least: u32,
    /// The greatest number of users that is tried.
    pub most: u32,
}

impl UserRange {
    /// The number of users of the first trial, where the plan has none within the range.
    const DEFAULT_START: u32 = 10;

    /// Returns the number of users of the first trial. `clients`: those of the plan.
    pub fn start(&self, clients: Option<u32>) -> u32 {
        let start = clients.unwrap_or(UserRange::DEFAULT_START);
        start.clamp(self.least, self.most)
    }
}

impl FindSpec {
    /// Returns the range of the search if it is over users.
    ///
    /// # Errors
    /// Returns the key whose value is wrong, or can't be combined with a range of users, and what would be right.
    pub fn resolve_users(&self) -> Result<Option<UserRange>, Problem> {
        let Some(text) = &self.users else {
            return Ok(None);
        };
        for (key, rate) in [("find.least", self.least), ("find.most", self.most)] {
            if rate.is_some() {
                return Err(Problem::new(
                    key,
                    "limits a search over rates, and find.users searches a number of users: write both ends of the range there (\"1..500\")",
                ));
            }
        }
        let (from, to) = text.split_once("..").unwrap_or(("1", text));
        let number = |text: &str| text.trim().parse::<u32>().ok();
        let range = number(from)
            .zip(number(to))
            .map(|(least, most)| UserRange { least, most });
        match range {
            Some(range) if range.least > 0 && range.least <= range.most => Ok(Some(range)),
            _ => Err(Problem::new(
                "find.users",
                format!("`{text}` is not a range of numbers of users: write \"1..500\""),
            )),
        }
    }
}

impl Spec {
    /// Returns the goal of a search with the objectives of `plan`, which starts at `start_per_s`.
    ///
    /// # Errors
    /// Returns the key of `[find]` with an invalid value, and what would be valid.
    pub fn search_goal(&self, plan: &Plan, start_per_s: f64) -> Result<SearchGoal, Problem> {
        let find = self.find.clone().unwrap_or_default();
        let defaults = SearchGoal::default();
        let seconds =
            |period: Option<Period>, default: f64| period.map_or(default, |p| p.0.as_secs_f64());
        let precision = match &find.precision {
            None => defaults.precision,
            Some(text) => text
                .trim()
                .strip_suffix('%')
                .and_then(|percent| percent.trim().parse::<f64>().ok())
                .map(|percent| percent / 100.0)
                .ok_or_else(|| {
                    Problem::new(
                        "find.precision",
                        format!("`{text}` is not a share: write \"1%\""),
                    )
                })?,
        };
        let users = find.resolve_users()?;
        let (variable, start_per_s, least_per_s, most_per_s) = match users {
            None => (
                SearchVariable::Rate,
                start_per_s,
                find.least
                    .map_or(defaults.least_per_s, |r| r.0)
                    .min(start_per_s),
                find.most.map_or(defaults.most_per_s, |r| r.0),
            ),
            Some(range) => (
                SearchVariable::Users,
                f64::from(range.start(self.load.clients)),
                f64::from(range.least),
                f64::from(range.most),
            ),
        };
        // The default lengths of the other trials are derived from `trial_s`.
        let trial_s = seconds(find.trial, defaults.trial_s);
        let goal = SearchGoal {
            variable,
            start_per_s,
            least_per_s,
            most_per_s,
            precision,
            probe_s: seconds(find.probe, defaults.probe_s.min(trial_s)),
            trial_s,
            trials: find.trials.unwrap_or(defaults.trials),
            confirm_s: seconds(find.confirm, (3.0 * trial_s).max(trial_s)),
            least_calls: plan
                .objectives
                .iter()
                .map(|o| match o.metric {
                    Metric::Time(_, Statistic::Percentile(p)) => min_calls_for_quantile(p / 100.0),
                    _ => 0,
                })
                .max()
                .unwrap_or(0),
            budget_s: seconds(find.budget, defaults.budget_s),
            curve: find.curve.unwrap_or(defaults.curve),
        };
        goal.check()
            .map_err(|e| Problem::new(format!("find.{}", e.key), e.problem))?;
        Ok(goal)
    }
}

/// Returns the number of calls that quantile `p` needs, with a margin.
fn min_calls_for_quantile(p: f64) -> u64 {
    let least = first_satisfying(1 << 40, |n| is_supported(n, p));
    least + least / 20 + 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_a_range_of_whole_numbers() {
        let range = |text: &str| {
            let find = FindSpec {
                users: Some(text.to_owned()),
                ..FindSpec::default()
            };
            let range = find.resolve_users().map_err(|e| e.to_string())?;
            Ok::<_, String>(range.map(|range| (range.least, range.most)))
        };
        assert_eq!(range("1..500"), Ok(Some((1, 500))));
        assert_eq!(range("500"), Ok(Some((1, 500))));
        assert_eq!(range(" 7 .. 7 "), Ok(Some((7, 7))));
        for wrong in [
            "0..5", "9..5", "1..", "..5", "1..many", "-1", "1.5", "100/s",
        ] {
            let problem = range(wrong).expect_err(wrong);
            assert!(
                problem.contains("find.users") && problem.contains("1..500"),
                "{problem}"
            );
        }
        let both = FindSpec {
            users: Some("1..5".to_owned()),
            most: Some(Rate(5.0)),
            ..FindSpec::default()
        };
        let problem = both.resolve_users().expect_err("two ranges").to_string();
        assert!(problem.contains("find.most"), "{problem}");
    }

    #[test]
    fn goal_requires_calls_for_percentiles() {
        assert_eq!(min_calls_for_quantile(0.99), 368 + 18 + 2);
        assert_eq!(min_calls_for_quantile(0.999), 3_688 + 184 + 2);
    }
}
