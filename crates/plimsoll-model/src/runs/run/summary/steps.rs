//! Summaries of the steps of a run's journeys, for reports.

use serde::Serialize;

use super::ErrorSummary;
use crate::Outcome;
use crate::records::instrument::LatenessBounds;
use crate::records::record::StepRecord;
use crate::runs::run::times_summary::TimesSummary;

/// The figures of one step of a journey.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepSummary {
    /// The step's name in the plan.
    pub name: String,
    /// Calls that were due; a retried or repeated step makes several calls.
    pub due: u64,
    /// Calls that ended ok.
    pub ok: u64,
    /// Calls that ended with an error.
    pub errors: u64,
    /// Calls that were abandoned because the run ended.
    pub cut_off: u64,
    /// Errors, the most frequent first.
    pub errors_by_code: Vec<ErrorSummary>,
    /// Time from when calls were due to their end.
    pub response: Option<TimesSummary>,
    /// Time from the actual send to the end.
    pub service: Option<TimesSummary>,
}

impl StepSummary {
    pub(super) fn from_record(step: &StepRecord, lateness: Option<&LatenessBounds>) -> StepSummary {
        let cut_off = step.cut_off_call_count();
        StepSummary {
            name: step.name.clone(),
            due: step.due,
            ok: step.ok_calls(),
            errors: step.outcomes.total() - step.ok_calls() - cut_off,
            cut_off,
            errors_by_code: ErrorSummary::from_counts(&step.outcomes, Outcome::is_error),
            response: TimesSummary::with_lateness(&step.response, lateness),
            service: TimesSummary::with_lateness(&step.service, lateness),
        }
    }
}
