//! Renders runs as Markdown, for the summary of a CI job or a pull request.

use std::fmt::Write as _;
use std::time::Duration;

use plimsoll_model::comparisons::ladder::LadderRecord;
use plimsoll_model::objective::{ObjectiveVerdict, RunVerdict, judge_run};
use plimsoll_model::runs::lanes::LanesRecord;
use plimsoll_model::runs::run::{Run, RunState};
use plimsoll_model::search::SearchRecord;

use crate::compare::Comparison;
use crate::ladder as rungs;
use crate::search as found;
use crate::sections::headline::describe_latency;
use crate::sections::table::TextTable;
use crate::{
    lanes, sections::addresses, sections::end_resources, sections::errors, sections::facts,
    sections::memory, sections::protocol_measures, sections::shards, sections::slowest,
    sections::steps, sections::times, sections::totals, sweep,
};

/// Renders runs: a table of all runs, then each run's objectives, problems and figures. `overhead_over`: the server's
/// own delay; if given, the time beyond it is shown as overhead.
pub fn render(runs: &[Run], overhead_over: Option<Duration>) -> String {
    let mut out = String::new();
    let rows = runs.iter().map(|run| {
        let verdict = match (RunVerdict::from_results(&judge_run(run)), run.state) {
            (Some(conclusion), _) => conclusion.name(),
            (None, RunState::Complete) => "valid",
            (None, state) => state.name(),
        };
        let name = vec![run.header.name.clone()];
        [
            name,
            totals::summary_row(run).into(),
            vec![verdict.to_owned()],
        ]
        .concat()
    });
    let head = [&["run"], &totals::SUMMARY_HEADINGS[..], &["verdict"]].concat();
    write_table(&mut out, &TextTable::new(head, &[0, 6], rows));
    for run in runs {
        let _ = writeln!(out, "\n**{}**\n", escape_cell(&run.header.name));
        write_overview(&mut out, run);
        write_figures(&mut out, run, overhead_over);
    }
    out
}

/// Renders a run of several lanes (loads that run side by side): a row for each lane and their sum, then each lane as
/// in [`render`]. `runs`: the lanes' runs, in order.
pub fn lanes_report(record: &LanesRecord, runs: &[Run], overhead_over: Option<Duration>) -> String {
    let mut out = format!("**{}**\n", escape_cell(&record.name));
    write_section(
        &mut out,
        &lanes::table(record, runs),
        [lanes::table_notes(runs)],
    );
    out.push('\n');
    out + &render(runs, overhead_over)
}

/// Writes how the load was generated, the objectives, and notes on the figures.
fn write_overview(out: &mut String, run: &Run) {
    write_list(out, describe_latency(run));
    let how = facts::describe_setup(&run.header);
    let how = (!how.is_empty()).then(|| how.join(", "));
    write_list(
        out,
        facts::describe_call(&run.header).into_iter().chain(how),
    );
    for j in judge_run(run) {
        let word = match j.verdict {
            ObjectiveVerdict::Met => "✅ met",
            ObjectiveVerdict::Missed => "❌ missed",
            ObjectiveVerdict::CannotBeJudged | ObjectiveVerdict::NotSupported => "⚠️ inconclusive",
        };
        let _ = writeln!(
            out,
            "- {word}: {} ({})",
            escape_cell(&j.objective),
            escape_cell(&j.measured)
        );
    }
    let problems = run.summary.health.problems.iter().map(|p| p.text.clone());
    for text in facts::describe_end(run).into_iter().chain(problems) {
        let _ = writeln!(out, "- ⚠️ {}", escape_cell(&text));
    }
    write_list(out, facts::notes(&run.header));
}

/// Writes the figures: for each part of the report a table with notes.
fn write_figures(out: &mut String, run: &Run, overhead_over: Option<Duration>) {
    let summary = &run.summary;
    let counted = [totals::total_facts(run), totals::describe_handshakes(run)].concat();
    let measured = protocol_measures::protocol_facts(run)
        .into_iter()
        .chain(protocol_measures::describe_distribution(run));
    let held = summary
        .memory
        .as_ref()
        .map(memory::describe_open_connections);
    let facts = counted.into_iter().chain([totals::count_check_fact(run)]);
    let facts = facts.chain(measured).chain(held);
    let rows = facts.map(|fact| {
        let mark = if fact.is_problem { "⚠️ " } else { "" };
        [fact.name.to_owned(), format!("{mark}{}", fact.text)]
    });
    write_section(out, &TextTable::new([""; 2], &[0, 1], rows), None);
    let of_calls = times::call_times(run);
    let calls = of_calls.first().map(|(_, first)| first.count);
    let streams = summary
        .total
        .messages
        .map(|_| protocol_measures::STREAMS_NOTE.to_owned());
    let above = overhead_over.map(|delay| times::overhead_text(run, delay));
    let notes = calls.and_then(times::dash_note).into_iter();
    let notes = notes.chain(streams).chain(above);
    write_section(out, &protocol_measures::table("times", of_calls), notes);
    write_section(
        out,
        &times::confidence_table(run),
        times::confidence_note(run),
    );
    write_section(out, &steps::table(run), steps::note(run));
    let besides = summary.total.measures.as_ref();
    let besides = besides
        .map(protocol_measures::protocol_times)
        .unwrap_or_default();
    write_section(
        out,
        &protocol_measures::table(protocol_measures::protocol_times_heading(run), besides),
        None,
    );
    if let Some(memory) = &summary.memory {
        write_section(
            out,
            &memory::table(memory),
            [memory::MEMORY_NOTE.to_owned()],
        );
    }
    let phases = protocol_measures::table("connections", times::phase_times(run));
    write_section(out, &phases, None);
    write_section(out, &addresses::table(run), None);
    write_section(out, &shards::table(run), shards::note(run));
    write_section(out, &slowest::table(run), None);
    for failed in [
        errors::call_errors(run),
        errors::abandoned_calls(run),
        errors::connection_errors(run),
    ] {
        write_section(out, &failed, errors::error_messages(run, &failed));
    }
    write_section(
        out,
        &end_resources::table(run).transpose(),
        end_resources::notes(run),
    );
}

/// Writes a table and its notes; writes nothing if the table has no rows.
fn write_section(out: &mut String, rows: &TextTable, notes: impl IntoIterator<Item = String>) {
    if rows.rows.is_empty() {
        return;
    }
    out.push('\n');
    write_table(out, rows);
    let mut notes = notes.into_iter().peekable();
    if notes.peek().is_some() {
        out.push('\n');
    }
    write_list(out, notes);
}

/// Renders a search: its result in sentences, and a row for each trial.
pub fn search_report(record: &SearchRecord) -> String {
    let mut out = format!(
        "**{}** at {}\n\n{}\n\n",
        escape_cell(&record.name),
        escape_cell(&record.target),
        escape_cell(&found::headline(record))
    );
    let finding = record.finding.as_ref();
    write_list(
        &mut out,
        finding.map_or_else(Vec::new, |f| found::explanation(record, f)),
    );
    out.push('\n');
    write_table(&mut out, &found::table(record));
    out
}

/// Renders a ladder or sweep: the verdict and notes, and a row for each rung.
pub fn ladder_report(record: &LadderRecord) -> String {
    if record.limits.is_some() {
        return sweep_report(record);
    }
    let mut out = format!(
        "**{}**\n\n{}\n\n",
        escape_cell(&record.name),
        escape_cell(&rungs::describe_setup(record))
    );
    if record.is_generator_limited() {
        let _ = writeln!(out, "⚠️ {}\n", escape_cell(rungs::INVALID_NOTE));
    }
    let groups = rungs::metric_groups(record).into_iter();
    let mut tables: Vec<TextTable> = groups.map(|group| group.table(record)).collect();
    if tables.is_empty() {
        let names = record.rungs.iter().map(|rung| [rung.name.clone()]);
        tables.push(TextTable::new(["rung"], &[0], names));
    }
    for (n, rows) in tables
        .into_iter()
        .chain(rungs::connection_costs(record))
        .enumerate()
    {
        if n > 0 {
            out.push('\n');
        }
        write_table(&mut out, &rows);
    }
    for pair in rungs::added_costs(record) {
        let head = [
            format!("{} adds to {}", pair.upper, pair.lower),
            String::new(),
        ];
        let rows = pair.rows.into_iter().map(<[String; 2]>::from);
        write_section(&mut out, &TextTable::new(head, &[0, 1], rows), None);
    }
    let notes = [
        rungs::cost_sentences(record),
        rungs::objective_lines(record),
        rungs::notes(record),
        vec![rungs::describe_confidence(record)],
    ];
    out.push('\n');
    write_list(&mut out, notes.concat());
    out
}

fn sweep_report(record: &LadderRecord) -> String {
    let links = sweep::links::sweep_configurations(record);
    let mut out = format!("**{}**\n\n", escape_cell(&record.name));
    write_table(
        &mut out,
        &sweep::table(&links).columns(&sweep::NARROW_COLUMNS),
    );
    out.push('\n');
    write_list(&mut out, record.limits.as_ref().map(sweep::describe_limit));
    write_list(&mut out, sweep::notes(record, &links));
    out
}

/// Writes sentences as a list.
fn write_list<S: AsRef<str>>(out: &mut String, all: impl IntoIterator<Item = S>) {
    for sentence in all {
        let _ = writeln!(out, "- {}", escape_cell(sentence.as_ref()));
    }
}

fn write_table(out: &mut String, table: &TextTable) {
    let side = |i| if table.is_text(i) { "---" } else { "---:" };
    let sides: Vec<&str> = (0..table.head.len()).map(side).collect();
    let heads = table.head.iter().map(|name| match name.as_str() {
        "" => " |".to_owned(),
        name => format!(" {} |", escape_cell(name)),
    });
    let _ = writeln!(out, "|{}\n|{}|", heads.collect::<String>(), sides.join("|"));
    for row in &table.rows {
        let cells: Vec<String> = row.iter().map(|text| escape_cell(text)).collect();
        let _ = writeln!(out, "| {} |", cells.join(" | "));
    }
}

/// Renders a comparison: the warnings, a row for each metric, and the differences between the plans.
pub fn comparison_report(c: &Comparison) -> String {
    let mut out = String::new();
    for warning in &c.warnings {
        let _ = writeln!(out, "> ⚠️ {}", escape_cell(warning));
    }
    if !c.warnings.is_empty() {
        out.push('\n');
    }
    let sides = [&c.a, &c.b].map(|side| escape_cell(&side.describe()));
    let _ = writeln!(out, "A: {}; B: {}\n", sides[0], sides[1]);
    let mut figures = c.table().columns(&[0, 1, 2, 4, 5, 7]);
    for (cells, row) in figures.rows.iter_mut().zip(&c.rows) {
        let sign = match row.is_better() {
            Some(true) => "✅ ",
            Some(false) => "❌ ",
            None => "",
        };
        cells[5].insert_str(0, sign);
    }
    write_table(&mut out, &figures);
    if !c.plan_differences.is_empty() {
        out += "\nThe plans differ in:\n\n";
        let differences = c.plan_differences.iter();
        write_list(&mut out, differences.map(ToString::to_string));
    }
    let _ = writeln!(out, "\n{}", escape_cell(&c.describe_method()));
    out
}

/// Escapes text for a table cell, so that it has no special meaning in Markdown or HTML.
pub(crate) fn escape_cell(text: &str) -> String {
    let mut cell = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' | '|' | '[' | '`' | '*' | '_' | '~' => cell.extend(['\\', c]),
            '&' => cell.push_str("&amp;"),
            '<' => cell.push_str("&lt;"),
            // GitHub would notify the user whose name follows the `@`.
            '@' => cell.push_str("&#64;"),
            '\n' | '\r' => cell.push(' '),
            c => cell.push(c),
        }
    }
    cell
}
