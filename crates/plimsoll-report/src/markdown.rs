//! Runs as Markdown, for the summary of a job or a pull request.

use std::fmt::Write as _;

use plimsoll_model::ladder::LadderRecord;
use plimsoll_model::objective::{Conclusion, Verdict, judge_run};
use plimsoll_model::run::{Run, State};
use plimsoll_model::search::SearchRecord;

use crate::compare::Comparison;
use crate::ladder as rungs;
use crate::quantity::{or_dash, rate, share, time};
use crate::search as found;
use crate::{addresses, shards, slowest, sweep};

/// The summary: a table of the runs, then each run's objectives and what is wrong with it.
pub fn render(runs: &[Run]) -> String {
    let mut out = String::new();
    let head = [
        "run", "calls ok", "achieved", "p50", "p99", "p99.9", "verdict",
    ];
    let rows = runs.iter().map(|run| {
        let total = &run.summary.total;
        let response = total.response;
        let verdict = match (Conclusion::of(&judge_run(run)), run.state) {
            (Some(conclusion), _) => conclusion.name(),
            (None, State::Complete) => "valid",
            (None, state) => state.name(),
        };
        [
            run.header.name.clone(),
            share(total.ok, total.ok + total.errors),
            or_dash(total.achieved_per_s, rate),
            or_dash(response.and_then(|r| r.p50_us), time),
            or_dash(response.and_then(|r| r.p99_us), time),
            or_dash(response.and_then(|r| r.p99_9_us), time),
            verdict.to_owned(),
        ]
    });
    table(&mut out, &head, &[0, 6], rows);
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
        named_table(&mut out, run, &addresses::HEAD, &[0], addresses::rows(run));
        shards(&mut out, run);
        let (head, texts) = (&slowest::HEAD, &slowest::TEXTS);
        named_table(&mut out, run, head, texts, slowest::rows(run));
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
    let finding = record.finding.as_ref();
    sentences(
        &mut out,
        finding.map_or_else(Vec::new, |f| found::explanation(record, f)),
    );
    out.push('\n');
    let head = ["rate", "p50", "p99", "errors", "trial", "verdict"];
    let rows = found::by_rate(record).into_iter().map(|trial| {
        let [rate, _, p50, p99, _, errors, _, purpose, verdict] = found::row(trial);
        [rate, p50, p99, errors, purpose, verdict]
    });
    table(&mut out, &head, &[4, 5], rows);
    out
}

/// A ladder, or a sweep: the verdict and what is to be known, and a row a rung.
pub fn ladder(record: &LadderRecord) -> String {
    if record.limits.is_some() {
        return swept(record);
    }
    let metrics = rungs::metrics(record);
    let mut head = vec!["rung"];
    head.extend(metrics.iter().map(|m| m.name()));
    let mut out = format!("**{}**\n\n", cell(&record.name));
    let rows = record.rungs.iter();
    table(
        &mut out,
        &head,
        &[0],
        rows.map(|rung| rungs::row(rung, metrics.iter().copied())),
    );
    if let Some((head, rows)) = rungs::prices(record) {
        out.push('\n');
        table(&mut out, head, &[0], rows);
    }
    let notes = [rungs::objectives(record), rungs::notes(record)].concat();
    if !notes.is_empty() {
        out.push('\n');
    }
    sentences(&mut out, notes);
    out
}

fn swept(record: &LadderRecord) -> String {
    let links = sweep::links::links(record);
    let mut out = format!("**{}**\n\n", cell(&record.name));
    table(&mut out, &sweep::HEAD, &[0], sweep::rows(&links));
    out.push('\n');
    sentences(&mut out, sweep::notes(record, &links));
    out
}

/// Sentences, each with a dash.
fn sentences(out: &mut String, all: Vec<String>) {
    for sentence in all {
        let _ = writeln!(out, "- {}", cell(&sentence));
    }
}

/// A table. Columns of these numbers hold text, the others figures.
fn table<R: AsRef<[String]>>(
    out: &mut String,
    head: &[&str],
    texts: &[usize],
    rows: impl IntoIterator<Item = R>,
) {
    let side = |i| if texts.contains(&i) { "---" } else { "---:" };
    let sides: Vec<&str> = (0..head.len()).map(side).collect();
    let heads = head.iter().map(|name| match *name {
        "" => " |".to_owned(),
        name => format!(" {name} |"),
    });
    let _ = writeln!(out, "|{}\n|{}|", heads.collect::<String>(), sides.join("|"));
    for row in rows {
        let cells: Vec<String> = row.as_ref().iter().map(|text| cell(text)).collect();
        let _ = writeln!(out, "| {} |", cells.join(" | "));
    }
}

/// A table below the name of what it is of, with columns of text; nothing without rows.
fn named_table<const N: usize>(
    out: &mut String,
    run: &Run,
    head: &[&str; N],
    texts: &[usize],
    rows: Vec<[String; N]>,
) {
    if !rows.is_empty() {
        let _ = writeln!(out, "\n**{}**\n", cell(&run.header.name));
        table(out, head, texts, rows);
    }
}

/// What each shard of a run on several machines did.
fn shards(out: &mut String, run: &Run) {
    let texts = [shards::HEAD.len() - 1];
    named_table(out, run, &shards::HEAD, &texts, shards::rows(run));
    if let Some(note) = shards::note(run) {
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
    let sides = [&c.a, &c.b].map(|side| cell(&side.words()));
    let _ = writeln!(out, "A: {}; B: {}\n", sides[0], sides[1]);
    let rows = c.rows.iter().map(|row| {
        let word = match row.better() {
            Some(true) => "✅ better",
            Some(false) => "❌ worse",
            None => "unclear",
        };
        [
            row.metric.to_owned(),
            row.unit.show(row.a),
            row.unit.show(row.b),
            or_dash(row.percent(), |percent| percent),
            or_dash(row.interval(), |interval| interval),
            word.to_owned(),
        ]
    });
    let head = ["", "A", "B", "%", "95 % interval", "B is"];
    table(&mut out, &head, &[0, 5], rows);
    if !c.plan_differences.is_empty() {
        out += "\nThe plans differ in:\n\n";
        let differences = c.plan_differences.iter();
        sentences(&mut out, differences.map(ToString::to_string).collect());
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
