//! `[find]`: how to search for the load line, the highest rate that meets the objectives.

use clap::Args;
use serde::{Deserialize, Serialize};

use super::{Problem, Spec};
use crate::formats::units::{Period, Rate};
use crate::plan::{Metric, Plan, Statistic};
use crate::search::SearchGoal;
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
    #[arg(long, value_name = "RATE")]
    pub least: Option<Rate>,
    /// No higher rate is tried [default: 10000000/s].
    #[arg(long, value_name = "RATE")]
    pub most: Option<Rate>,
    /// The length of a trial that finds the neighbourhood of the line. Default 2s.
    #[arg(skip)]
    pub probe: Option<Period>,
    /// The length of a trial that narrows the bounds [default: 5s].
    #[arg(long, value_name = "TIME")]
    pub trial: Option<Period>,
    /// The most trials of this length at one rate [default: 3].
    #[arg(long, value_name = "N")]
    pub trials: Option<u32>,
    /// The length of the trial that confirms the result. Default: three times `trial`.
    #[arg(
        help = "The length of the trial that confirms the result [default: three times --trial]",
        long,
        value_name = "TIME"
    )]
    pub confirm: Option<Period>,
    /// The search ends within this time [default: 5m].
    #[arg(long, value_name = "TIME")]
    pub budget: Option<Period>,
    /// Also try other rates, for the curve of latency against rate. Default true.
    #[arg(skip)]
    pub curve: Option<bool>,
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
        // The default lengths of the other trials are derived from `trial_s`.
        let trial_s = seconds(find.trial, defaults.trial_s);
        let goal = SearchGoal {
            start_per_s,
            least_per_s: find
                .least
                .map_or(defaults.least_per_s, |r| r.0)
                .min(start_per_s),
            most_per_s: find.most.map_or(defaults.most_per_s, |r| r.0),
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
    fn goal_requires_calls_for_percentiles() {
        assert_eq!(min_calls_for_quantile(0.99), 368 + 18 + 2);
        assert_eq!(min_calls_for_quantile(0.999), 3_688 + 184 + 2);
    }
}
