//! Renders the objectives: the verdict, then each objective with its measured value.

use std::fmt::Write;

use plimsoll_model::objective::{ObjectiveVerdict, RunVerdict, judge_run};
use plimsoll_model::runs::run::Run;

use super::TerminalOptions;

/// Returns the verdict on all objectives; `None` if there are none.
pub(crate) fn verdict(run: &Run, options: &TerminalOptions) -> Option<String> {
    Some(match RunVerdict::from_results(&judge_run(run))? {
        RunVerdict::Pass => options.bold("verdict: pass"),
        RunVerdict::Fail => options.bold_red("verdict: FAIL"),
        RunVerdict::Invalid => {
            options.bold_red("verdict: INCONCLUSIVE, not every objective could be judged")
        }
    })
}

pub(super) fn write_objectives(out: &mut String, run: &Run, options: &TerminalOptions) {
    let Some(verdict) = verdict(run, options) else {
        return;
    };
    let _ = writeln!(out, "{verdict}");
    for one in judge_run(run) {
        let word = match one.verdict {
            ObjectiveVerdict::Met => "met".to_owned(),
            ObjectiveVerdict::Missed => options.bold_red("MISSED"),
            ObjectiveVerdict::CannotBeJudged | ObjectiveVerdict::NotSupported => {
                options.bold_red("INCONCLUSIVE")
            }
        };
        let _ = writeln!(
            out,
            "objective {}: {word} ({})",
            one.objective, one.measured
        );
    }
    out.push('\n');
}
