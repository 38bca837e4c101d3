//! The table of the steps of a journey (the requests that a user makes in sequence), for all reports.

use plimsoll_model::runs::run::Run;
use plimsoll_model::runs::run::summary::StepSummary;

use crate::quantity::{count, or_dash};
use crate::sections::headline::format_value_or_interval;
use crate::sections::table::TextTable;

/// The percentiles that the table shows, as indexes into a summary's list.
const SHOWN_PERCENTILES: [usize; 3] = [0, 2, 4];

/// A note that explains the table.
pub(crate) const STEPS_NOTE: &str = "response times of calls that ended ok: a journey's first step is due when its user \
     arrives, each further one at the end of the step before plus its pause";

/// Returns a row for each step; no rows if the run's calls are not steps.
pub(crate) fn table(run: &Run) -> TextTable {
    let head = [
        "step", "due", "ok", "failed", "cut off", "p50", "p90", "p99", "max",
    ];
    let rows = run.summary.total.steps.iter().map(row);
    TextTable::new(head, &[0], rows)
}

fn row(step: &StepSummary) -> Vec<String> {
    let mut cells = vec![
        step.name.clone(),
        count(step.due),
        count(step.ok),
        count(step.errors),
        count(step.cut_off),
    ];
    let response = step.response.as_ref();
    for index in SHOWN_PERCENTILES {
        let at = response.and_then(|times| {
            let (_, us) = times.percentiles()[index];
            let bounds = times.instrument.and_then(|all| all.percentiles()[index].1);
            Some(format_value_or_interval(us?, bounds))
        });
        cells.push(or_dash(at, |text| text));
    }
    let max = response.map(|times| {
        format_value_or_interval(times.max_us, times.instrument.map(|all| all.max_us))
    });
    cells.push(or_dash(max, |text| text));
    cells
}

/// Returns [`STEPS_NOTE`] if the run has steps.
pub(crate) fn note(run: &Run) -> Option<String> {
    (!run.summary.total.steps.is_empty()).then(|| STEPS_NOTE.to_owned())
}
