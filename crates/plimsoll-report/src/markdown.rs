//! Runs as Markdown, for the summary of a job or a pull request.

use std::fmt::Write as _;

use plimsoll_model::objective::{Verdict, judge_run};
use plimsoll_model::run::{Run, State};

use crate::quantity::{rate, share, time};

/// The summary: a table of the runs, then each run's objectives and what is wrong with it.
pub fn render(runs: &[Run]) -> String {
    let mut out = String::from(
        "| run | calls ok | achieved | p50 | p99 | p99.9 | state |\n|---|---:|---:|---:|---:|---:|---|\n",
    );
    let dash = |text: Option<String>| text.unwrap_or_else(|| "–".to_owned());
    for run in runs {
        let total = &run.summary.total;
        let response = total.response;
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} | {} |",
            cell(&run.header.name),
            share(total.ok, total.ok + total.errors + total.not_started),
            dash(total.achieved_per_s.map(rate)),
            dash(response.and_then(|r| r.p50_us).map(time)),
            dash(response.and_then(|r| r.p99_us).map(time)),
            dash(response.and_then(|r| r.p99_9_us).map(time)),
            if run.state == State::Complete {
                "valid"
            } else {
                run.state.name()
            },
        );
    }
    for run in runs {
        let judged = judge_run(run);
        let problems = &run.summary.health.problems;
        if judged.is_empty() && problems.is_empty() && run.reason.is_none() {
            continue;
        }
        let _ = writeln!(out, "\n**{}**\n", cell(&run.header.name));
        for j in judged {
            let word = match j.verdict {
                Verdict::Met => "✅ met",
                Verdict::Missed => "❌ missed",
                Verdict::NotSupported => "⚠️ not judged",
            };
            let _ = writeln!(
                out,
                "- {word}: {} ({})",
                cell(&j.objective),
                cell(&j.measured)
            );
        }
        if problems.is_empty()
            && let Some(reason) = &run.reason
        {
            let _ = writeln!(out, "- ⚠️ {}", cell(reason));
        }
        for problem in problems {
            let _ = writeln!(out, "- ⚠️ {}", cell(&problem.text));
        }
    }
    out
}

/// Text that stays in its cell and means nothing to Markdown or HTML.
fn cell(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('|', "\\|")
        .replace('<', "&lt;")
        .replace(['\n', '\r'], " ")
}
