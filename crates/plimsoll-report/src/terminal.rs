//! Renders runs for the terminal.
//!
//! [`render`] shows one run, [`render_comparison`] two groups. Problems that invalidate the figures come first.
//! Percentiles that the sample can't support are shown as dashes.

mod comparison;
mod histograms;
mod history;
mod memory;
mod objectives;
mod profile;
mod protocol_measures;
mod server_metrics;
mod slowest_calls;
mod table;
mod times;

use std::fmt::Write as _;
use std::time::Duration;

use plimsoll_model::objective::{RunVerdict, judge_run};
use plimsoll_model::runs::run::{Run, RunState, TimesSummary};

use crate::sections::headline::describe_latency;
use crate::sections::protocol_measures::{CountFact, table as percentile_values};
use crate::sections::table::TextTable;
use crate::sections::times::phase_times;
use crate::{
    sections::addresses, sections::end_resources, sections::errors, sections::facts,
    sections::shards, sections::steps, sections::totals,
};

pub use comparison::render_comparison;
pub use history::render_changes;
pub(crate) use objectives::verdict;
pub use table::wrap;

/// The options of printing.
#[derive(Clone, Copy, Debug)]
pub struct TerminalOptions {
    /// Columns of the terminal.
    pub width: usize,
    /// Rows of the terminal; `None` if the output is not a terminal, on which it could scroll out of sight.
    pub height: Option<usize>,
    /// Whether ANSI escape sequences may be used.
    pub colour: bool,
    /// The server's own delay, beyond which the overhead is shown; `None` if it is not known.
    pub overhead_over: Option<Duration>,
    /// Whether response times and outcomes are shown as histograms, too.
    pub histogram: bool,
}

impl Default for TerminalOptions {
    fn default() -> TerminalOptions {
        TerminalOptions {
            width: 100,
            height: None,
            colour: false,
            overhead_over: None,
            histogram: false,
        }
    }
}

impl TerminalOptions {
    pub(crate) fn bold_red(&self, text: &str) -> String {
        self.paint("1;31", text)
    }

    pub(crate) fn bold(&self, text: &str) -> String {
        self.paint("1", text)
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colour {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

/// Renders the report of one run, with a line feed at its end.
pub fn render(run: &Run, options: &TerminalOptions) -> String {
    let mut out = String::new();
    write_warnings(&mut out, run, options);
    if let Some(answer) = describe_latency(run) {
        for line in wrap(&answer, options.width) {
            let _ = writeln!(out, "{}", options.bold(&line));
        }
        out.push('\n');
    }
    write_headline(&mut out, run, options);
    objectives::write_objectives(&mut out, run, options);
    write_counts(&mut out, run, options);
    times::write_times(&mut out, run, options);
    histograms::write_histograms(&mut out, run, options);
    write_section(&mut out, &steps::table(run), steps::note(run), options);
    protocol_measures::write_measures(&mut out, run, options);
    memory::write_memory(&mut out, run, options);
    write_times_table(&mut out, "connections", phase_times(run), options);
    write_section(&mut out, &addresses::table(run), [], options);
    write_section(&mut out, &shards::table(run), shards::note(run), options);
    slowest_calls::write_slowest(&mut out, run, options);
    for errors in [
        errors::call_errors(run),
        errors::cut_off_call_count(run),
        errors::connection_errors(run),
    ] {
        write_section(
            &mut out,
            &errors,
            errors::error_messages(run, &errors),
            options,
        );
    }
    write_resources(&mut out, run, options);
    server_metrics::write_server_metrics(&mut out, run, options);
    profile::write_profile(&mut out, run, options);
    write_notes(&mut out, run, options);
    out
}

/// Writes text, wrapped to the width of the terminal.
pub(crate) fn write_wrapped(out: &mut String, text: &str, options: &TerminalOptions) {
    for line in wrap(text, options.width) {
        let _ = writeln!(out, "{line}");
    }
}

/// Writes sentences as a list, wrapped and indented.
pub(crate) fn write_list<S: AsRef<str>>(
    out: &mut String,
    all: impl IntoIterator<Item = S>,
    options: &TerminalOptions,
) {
    for sentence in all {
        let parts = wrap(sentence.as_ref(), options.width.saturating_sub(4));
        for (i, part) in parts.iter().enumerate() {
            let lead = if i == 0 { "  - " } else { "    " };
            let _ = writeln!(out, "{lead}{part}");
        }
    }
}

/// Writes a table and its notes; writes nothing if the table has no rows.
fn write_section(
    out: &mut String,
    table: &TextTable,
    notes: impl IntoIterator<Item = String>,
    options: &TerminalOptions,
) {
    if !table.rows.is_empty() {
        *out += &table.render(options.width);
        write_list(out, notes, options);
        out.push('\n');
    }
}

/// Writes the warnings that come before the figures: that they are invalid, or that the load ended early.
fn write_warnings(out: &mut String, run: &Run, options: &TerminalOptions) {
    if let Some(title) = invalid_title(run) {
        let problems = run.summary.health.problems.iter();
        let invalid = problems.filter(|p| p.invalidates).map(|p| p.text.as_str());
        let _ = writeln!(out, "{}", options.bold_red(title));
        write_list(out, invalid, options);
        out.push('\n');
    }
    if let Some(title) = early_end_title(run) {
        let _ = writeln!(out, "{}", options.bold_red(title));
        write_list(out, run.reason.as_deref(), options);
        out.push('\n');
    }
}

/// Returns the warnings for a run that is invalid or ended early.
pub(crate) fn warning_titles(run: &Run) -> Vec<&'static str> {
    [invalid_title(run), early_end_title(run)]
        .into_iter()
        .flatten()
        .collect()
}

/// Returns the warning for figures that can't be relied on; `None` if no problem invalidates them.
fn invalid_title(run: &Run) -> Option<&'static str> {
    let problems = run.summary.health.problems.iter();
    let invalid: Vec<_> = problems.filter(|p| p.invalidates).collect();
    if invalid.is_empty() {
        return None;
    }
    let limited = invalid.iter().any(|p| p.kind.is_generator_limit());
    let failed = RunVerdict::from_results(&judge_run(run)) == Some(RunVerdict::Fail);
    Some(match (limited, failed) {
        (true, true) => "THE LOAD WAS NOT DELIVERED. Failures still count.",
        (true, false) => "INVALID: the load was not delivered.",
        (false, true) => "LOAD DIFFERS FROM THE PLAN. Failures still count.",
        (false, false) => "INVALID. These figures can't be relied on.",
    })
}

/// Returns the warning for a load that ended early; `None` if it did not.
pub(crate) fn early_end_title(run: &Run) -> Option<&'static str> {
    match run.state {
        RunState::Partial | RunState::Running => Some("PARTIAL"),
        RunState::Aborted => Some("ABORTED"),
        RunState::Complete | RunState::Invalid => None,
    }
}

fn write_headline(out: &mut String, run: &Run, options: &TerminalOptions) {
    let h = &run.header;
    let _ = writeln!(out, "{}", options.bold(&h.name));
    if let Some(what) = facts::describe_call(h) {
        let _ = writeln!(out, "{what}");
    }
    let how = facts::describe_setup(h);
    if !how.is_empty() {
        write_wrapped(out, &how.join(", "), options);
    }
    if !h.labels.is_empty() {
        write_wrapped(
            out,
            &format!("labels: {}", facts::format_labels(&h.labels)),
            options,
        );
    }
    out.push('\n');
}

/// Writes the counts, and the check that they add up.
fn write_counts(out: &mut String, run: &Run, options: &TerminalOptions) {
    let counted = [totals::total_facts(run), totals::describe_handshakes(run)].concat();
    write_facts(out, counted, options);
    write_facts(out, [totals::count_check_fact(run)], options);
    out.push('\n');
}

/// Writes a row for each fact, in red if it reports an error.
fn write_facts(
    out: &mut String,
    facts: impl IntoIterator<Item = CountFact>,
    options: &TerminalOptions,
) {
    for fact in facts {
        let text = if fact.is_problem {
            options.bold_red(&fact.text)
        } else {
            fact.text
        };
        write_row(out, fact.name, &text, options);
    }
}

/// Writes a name and its text, wrapped and indented.
fn write_row(out: &mut String, name: &str, text: &str, options: &TerminalOptions) {
    const INDENT: usize = 13;
    debug_assert!(name.chars().count() < INDENT, "`{name}` runs into its text");
    for (i, line) in wrap(text, options.width.saturating_sub(INDENT))
        .iter()
        .enumerate()
    {
        let name = if i == 0 { name } else { "" };
        let _ = writeln!(out, "{name:<INDENT$}{line}");
    }
}

/// Writes a table of times; writes nothing if there are none. `what`: the heading of the names.
fn write_times_table(
    out: &mut String,
    what: &str,
    rows: Vec<(String, TimesSummary)>,
    options: &TerminalOptions,
) {
    let times = percentile_values(what, rows).columns(&[0, 12, 1, 4, 6, 8, 11]);
    write_section(out, &times, [], options);
}

fn write_resources(out: &mut String, run: &Run, options: &TerminalOptions) {
    let ends = end_resources::table(run);
    if ends.rows.is_empty() {
        return;
    }
    *out += &ends.transpose().render(options.width);
    for note in end_resources::notes(run) {
        let _ = writeln!(out, "{note}");
    }
    out.push('\n');
}

/// Writes notes for the reader, and advice on what to do next.
fn write_notes(out: &mut String, run: &Run, options: &TerminalOptions) {
    let problems = run.summary.health.problems.iter();
    let texts: Vec<&str> = problems
        .filter(|p| !p.invalidates)
        .map(|p| p.text.as_str())
        .chain(facts::notes(&run.header))
        .collect();
    if !texts.is_empty() {
        let _ = writeln!(out, "notes");
        write_list(out, texts, options);
        out.push('\n');
    }
    let dir = run.dir.display();
    let _ = writeln!(out, "run: {dir}");
    let _ = writeln!(out, "next: plimsoll report {dir} --json");
    let _ = writeln!(out, "      plimsoll compare {dir} ANOTHER_RUN");
}
