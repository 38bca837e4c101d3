//! Ends a run early when an objective can no longer be met.

use std::time::Duration;

use plimsoll_model::Plan;
use plimsoll_model::objective::{self, LiveObjectiveInputs, OBJECTIVE_LOST_SUFFIX};
use plimsoll_model::runs::run::IntervalRecord;

use crate::reporter::Reporter;

/// Watches a run's intervals for an objective that can no longer be met.
pub(crate) struct AbortMonitor<'a> {
    plan: &'a Plan,
    after: Duration,
    so_far: LiveObjectiveInputs,
    /// Why the monitor ended the run; `None` if it has not.
    pub(crate) reason: Option<String>,
}

impl<'a> AbortMonitor<'a> {
    /// Creates a monitor that ends the run no sooner than `after` its start.
    pub(crate) fn new(plan: &'a Plan, after: Duration) -> AbortMonitor<'a> {
        AbortMonitor {
            plan,
            after,
            so_far: LiveObjectiveInputs::new(plan),
            reason: None,
        }
    }

    /// Adds an interval; returns the reason if the run must end now.
    fn add_interval(&mut self, interval: &IntervalRecord) -> Option<String> {
        self.so_far.add(interval);
        let end = interval.end_offset();
        if end < self.after {
            return None;
        }
        let expected = |stage: Option<&str>| planned_calls(self.plan, stage);
        let lost = objective::find_lost_objective(
            &self.plan.objectives,
            &self.so_far.measured,
            &expected,
        )?;
        Some(format!(
            "stopped after {:.1} s: \"{}\" {OBJECTIVE_LOST_SUFFIX}",
            end.as_secs_f64(),
            lost.text
        ))
    }
}

impl Reporter for AbortMonitor<'_> {
    fn on_interval(&mut self, interval: &IntervalRecord) -> Option<String> {
        if self.reason.is_some() {
            return None;
        }
        self.reason = self.add_interval(interval);
        self.reason.clone()
    }
}

/// Returns the planned number of calls of a stage, or of all measured stages; `None` if the plan does not determine it.
fn planned_calls(plan: &Plan, stage: Option<&str>) -> Option<u64> {
    let load = &plan.load;
    let stages = load.stages.iter().filter(|s| !s.warmup);
    // In a journey, each arrival is a user, who makes up to this many calls.
    let journey = plan.call.max_calls_per_journey();
    if let Some(calls) = load.calls
        && (stage.is_none() || stages.clone().count() == 1)
    {
        // `load.calls` counts a whole journey as one call.
        return Some(calls.saturating_mul(u64::from(journey.unwrap_or(1).max(1))));
    }
    let calls_each = journey.or(plan.call.calls_per_user()).unwrap_or(1).max(1);
    let planned: f64 = stages
        .filter(|s| stage.is_none_or(|name| s.name == name))
        .filter_map(|s| Some(s.duration?.as_secs_f64() * f64::midpoint(s.rate_from, s.rate_to)))
        .sum();
    (planned >= 1.0).then_some((planned * f64::from(calls_each)) as u64)
}
