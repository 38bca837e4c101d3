//! Renders the objectives: the verdict, then each with its measured value.

use std::fmt::Write;

use plimsoll_model::objective::{Conclusion, Verdict, judge_run};
use plimsoll_model::run::Run;

use super::Options;

/// Returns the verdict on all objectives; `None`: there are none.
pub(crate) fn verdict(run: &Run, options: &Options) -> Option<String> {
    Some(match Conclusion::of(&judge_run(run))? {
        Conclusion::Pass => options.bold("verdict: pass"),
        Conclusion::Fail => options.loud("verdict: FAIL"),
        Conclusion::Invalid => {
            options.loud("verdict: INCONCLUSIVE, not every objective could be judged")
        }
    })
}

pub(super) fn objectives(out: &mut String, run: &Run, options: &Options) {
    let Some(verdict) = verdict(run, options) else {
        return;
    };
    let _ = writeln!(out, "{verdict}");
    for one in judge_run(run) {
        let word = match one.verdict {
            Verdict::Met => "met".to_owned(),
            Verdict::Missed => options.loud("MISSED"),
            Verdict::CannotBeJudged | Verdict::NotSupported => options.loud("INCONCLUSIVE"),
        };
        let _ = writeln!(
            out,
            "objective {}: {word} ({})",
            one.objective, one.measured
        );
    }
    out.push('\n');
}
