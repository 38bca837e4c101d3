//! Runs as Markdown, for the summary of a job or a pull request.

use std::fmt::Write as _;

use plimsoll_model::ladder::LadderRecord;
use plimsoll_model::objective::{Conclusion, Verdict, judge_run};
use plimsoll_model::run::{Run, State};
use plimsoll_model::search::SearchRecord;

use crate::compare::Comparison;
use crate::ladder as rungs;
use crate::quantity::{exact_rate, rate, share, time};
use crate::search as found;
use crate::{addresses, shards, sweep};

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
            share(total.ok, total.ok + total.errors),
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
    for run in runs {
        table(&mut out, run, addresses::HEAD, 0, &addresses::rows(run));
        shards(&mut out, run);
    }
    out
}

/// A search: its result in sentences, and a row a trial.
pub fn search(record: &SearchRecord) -> String {
    let mut out = format!(
        "**{}**\n\n{}\n\n",
        cell(&record.name),
        cell(&found::headline(record))
    );
    let sentences = record
        .finding
        .as_ref()
        .map(|f| found::explanation(record, f));
    for sentence in sentences.into_iter().flatten() {
        let _ = writeln!(out, "- {}", cell(&sentence));
    }
    out += "\n| rate | p50 | p99 | errors | trial | verdict |\n|---:|---:|---:|---:|---|---|\n";
    let dash = |text: Option<String>| text.unwrap_or_else(|| "–".to_owned());
    for trial in found::by_rate(record) {
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} | {} |",
            exact_rate(trial.rate_per_s),
            dash(trial.p50_us.map(time)),
            dash(trial.p99_us.map(time)),
            dash(trial.errors_share.map(|s| format!("{:.2} %", s * 100.0))),
            trial.purpose.name(),
            cell(&found::verdict(&trial.verdict)),
        );
    }
    out
}

/// A ladder, or a sweep: the verdict and what is to be known, and a row a rung.
pub fn ladder(record: &LadderRecord) -> String {
    if record.limits.is_some() {
        return sweep::markdown(record, cell);
    }
    let metrics = rungs::metrics(record);
    let names: Vec<&str> = metrics.iter().map(|m| m.name()).collect();
    let mut out = format!(
        "**{}**\n\n| rung | {} |\n|---|{}\n",
        cell(&record.name),
        names.join(" | "),
        "---:|".repeat(metrics.len())
    );
    for rung in &record.rungs {
        let medians: Vec<String> = metrics
            .iter()
            .map(|m| {
                rung.median(*m)
                    .map_or_else(|| "–".to_owned(), |v| rungs::show(*m, v))
            })
            .collect();
        let _ = writeln!(out, "| {} | {} |", cell(&rung.name), medians.join(" | "));
    }
    if let Some((head, rows)) = rungs::prices(record) {
        let _ = writeln!(
            out,
            "\n| {} |\n|---|{}",
            head.join(" | "),
            "---:|".repeat(head.len() - 1)
        );
        for row in rows {
            let cells: Vec<String> = row.iter().map(|text| cell(text)).collect();
            let _ = writeln!(out, "| {} |", cells.join(" | "));
        }
    }
    let sentences = [rungs::objectives(record), rungs::notes(record)].concat();
    if !sentences.is_empty() {
        out.push('\n');
    }
    for sentence in sentences {
        let _ = writeln!(out, "- {}", cell(&sentence));
    }
    out
}

/// A table below the name of what it is of, with one column of `text`; nothing without rows.
fn table<const N: usize>(
    out: &mut String,
    run: &Run,
    head: [&str; N],
    text: usize,
    rows: &[[String; N]],
) {
    if rows.is_empty() {
        return;
    }
    let sides: Vec<&str> = (0..N)
        .map(|i| if i == text { "---" } else { "---:" })
        .collect();
    let _ = writeln!(
        out,
        "\n**{}**\n\n| {} |\n|{}|",
        cell(&run.header.name),
        head.join(" | "),
        sides.join("|")
    );
    for row in rows {
        let cells: Vec<String> = row.iter().map(|text| cell(text)).collect();
        let _ = writeln!(out, "| {} |", cells.join(" | "));
    }
}

/// What each shard of a run on several machines did.
fn shards(out: &mut String, run: &Run) {
    let rows = shards::rows(run);
    table(out, run, shards::HEAD, shards::HEAD.len() - 1, &rows);
    if let Some(note) = shards::note(run).filter(|_| !rows.is_empty()) {
        let _ = writeln!(out, "\n{note}.");
    }
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
