//! Runs as Markdown, for the summary of a job or a pull request.

use std::fmt::Write as _;

use plimsoll_model::objective::{Conclusion, Verdict, judge_run};
use plimsoll_model::run::{Run, State};

use crate::compare::Comparison;
use crate::quantity::{rate, share, time};

/// The summary: a table of the runs, then each run's objectives and what is wrong with it.
pub fn render(runs: &[Run]) -> String {
    let mut out = String::from(
        "| run | calls ok | achieved | p50 | p99 | p99.9 | verdict |\n|---|---:|---:|---:|---:|---:|---|\n",
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
            match (Conclusion::of(&judge_run(run)), run.state) {
                (Some(conclusion), _) => conclusion.name(),
                (None, State::Complete) => "valid",
                (None, state) => state.name(),
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
                Verdict::CannotBeJudged | Verdict::NotSupported => "⚠️ cannot be judged",
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

/// Two groups of runs: the warnings, a row a metric, where the plans differ.
pub fn comparison(c: &Comparison) -> String {
    let mut out = String::new();
    for warning in &c.warnings {
        let _ = writeln!(out, "> ⚠️ {}", cell(warning));
    }
    if !c.warnings.is_empty() {
        out.push('\n');
    }
    let _ = writeln!(
        out,
        "A: {}; B: {}\n\n| | A | B | % | 95 % interval | B is |\n|---|---:|---:|---:|---:|---|",
        cell(&c.a.words()),
        cell(&c.b.words())
    );
    let dash = || "–".to_owned();
    for row in &c.rows {
        let word = match row.better() {
            Some(true) => "✅ better",
            Some(false) => "❌ worse",
            None => "unclear",
        };
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {word} |",
            row.metric,
            row.unit.show(row.a),
            row.unit.show(row.b),
            row.percent().unwrap_or_else(dash),
            row.interval().unwrap_or_else(dash),
        );
    }
    if !c.plan_differences.is_empty() {
        out += "\nThe plans differ in:\n\n";
        for difference in &c.plan_differences {
            let _ = writeln!(out, "- {}", cell(&difference.to_string()));
        }
    }
    let _ = writeln!(out, "\n{}", cell(&c.method()));
    out
}

/// Text that stays in its cell and means nothing to Markdown or HTML.
fn cell(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('|', "\\|")
        .replace('<', "&lt;")
        .replace(['\n', '\r'], " ")
}
