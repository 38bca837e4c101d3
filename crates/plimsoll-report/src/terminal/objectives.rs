//! What became of the objectives: the verdict, then each with what was measured.

use std::fmt::Write;

use plimsoll_model::objective::{Conclusion, Verdict, judge_run};
use plimsoll_model::run::Run;

use super::Options;

pub(super) fn objectives(out: &mut String, run: &Run, options: &Options) {
    let judged = judge_run(run);
    let Some(conclusion) = Conclusion::of(&judged) else {
        return;
    };
    let verdict = match conclusion {
        Conclusion::Pass => options.bold("verdict: pass"),
        Conclusion::Fail => options.loud("verdict: FAIL"),
        Conclusion::Invalid => {
            options.loud("verdict: INCONCLUSIVE, not every objective could be judged")
        }
    };
    let _ = writeln!(out, "{verdict}");
    for one in judged {
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
