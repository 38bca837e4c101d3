//! A run on the terminal.
//!
//! [`render`] shows one run; [`render_comparison`] two groups of them. What makes the
//! figures worthless stands first; a percentile that the sample can't support is a dash.

mod comparison;
mod errors;
mod measures;
mod memory;
mod objectives;
mod slowest;
mod table;
mod times;

use std::fmt::Write as _;
use std::time::Duration;

use plimsoll_model::objective::{Conclusion, judge_run};
use plimsoll_model::run::header::Loop;
use plimsoll_model::run::summary::ResourcesSummary;
use plimsoll_model::run::{Run, Source, State, TimesSummary};

use crate::measures::{arriving, table as times_of};
use crate::quantity::{bytes, count, plural, rate, share, time};
use crate::table::Table;
use crate::{addresses, ends, facts, shards};

pub use comparison::render_comparison;
pub use table::wrap;

/// How to print.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Columns of the terminal.
    pub width: usize,
    /// ANSI escape sequences may be used.
    pub colour: bool,
    /// The server's own delay, where it is known: show what was added to it.
    pub overhead_over: Option<Duration>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            width: 100,
            colour: false,
            overhead_over: None,
        }
    }
}

impl Options {
    pub(crate) fn loud(&self, text: &str) -> String {
        self.painted("1;31", text)
    }

    pub(crate) fn bold(&self, text: &str) -> String {
        self.painted("1", text)
    }

    fn painted(&self, code: &str, text: &str) -> String {
        if self.colour {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

/// The report of one run, with a line's end at its end.
pub fn render(run: &Run, options: &Options) -> String {
    let mut out = String::new();
    verdict(&mut out, run, options);
    headline(&mut out, run, options);
    objectives::objectives(&mut out, run, options);
    totals(&mut out, run, options);
    times::times(&mut out, run, options);
    measures::measures(&mut out, run, options);
    memory::memory(&mut out, run, options);
    phases(&mut out, run, options);
    shown(&mut out, &addresses::table(run), None, options);
    shown(&mut out, &shards::table(run), shards::note(run), options);
    slowest::slowest(&mut out, run, options);
    errors::errors(&mut out, run, options);
    resources(&mut out, run, options);
    notes(&mut out, run, options);
    out
}

/// Text in as many lines as it takes.
pub(crate) fn lines(out: &mut String, text: &str, options: &Options) {
    for line in wrap(text, options.width) {
        let _ = writeln!(out, "{line}");
    }
}

/// Lists of sentences, each with a dash, wrapped and indented.
pub(crate) fn sentences<S: AsRef<str>>(
    out: &mut String,
    all: impl IntoIterator<Item = S>,
    options: &Options,
) {
    for sentence in all {
        let parts = wrap(sentence.as_ref(), options.width.saturating_sub(4));
        for (i, part) in parts.iter().enumerate() {
            let lead = if i == 0 { "  - " } else { "    " };
            let _ = writeln!(out, "{lead}{part}");
        }
    }
}

/// A table, and what it does not show; nothing without rows.
fn shown(out: &mut String, table: &Table, note: Option<String>, options: &Options) {
    if !table.rows.is_empty() {
        *out += &table.on_terminal(options.width);
        sentences(out, note, options);
        out.push('\n');
    }
}

/// First of all, whatever makes the figures less than they seem.
fn verdict(out: &mut String, run: &Run, options: &Options) {
    let summary = &run.summary;
    let invalid: Vec<&str> = summary
        .health
        .problems
        .iter()
        .filter(|p| p.invalidates)
        .map(|p| p.text.as_str())
        .collect();
    if !invalid.is_empty() {
        let limited = summary
            .health
            .problems
            .iter()
            .any(|p| p.invalidates && p.kind.is_generator_limit());
        let failed = Conclusion::of(&judge_run(run)) == Some(Conclusion::Fail);
        let title = match (limited, failed) {
            (true, true) => {
                "GENERATOR-LIMITED. The times include the load generator's own delays; what was missed is the target's all the same."
            }
            (true, false) => {
                "INVALID: generator-limited. These figures describe the load generator, not the target."
            }
            (false, true) => {
                "NOT THE LOAD THAT WAS ASKED FOR. What was missed is missed all the same."
            }
            (false, false) => "INVALID. These figures can't be relied on.",
        };
        let _ = writeln!(out, "{}", options.loud(title));
        sentences(out, invalid, options);
        out.push('\n');
    }
    let title = match run.state {
        State::Partial | State::Running => "PARTIAL",
        State::Aborted => "ABORTED",
        State::Complete | State::Invalid => return,
    };
    let _ = writeln!(out, "{}", options.loud(title));
    sentences(out, run.reason.as_deref(), options);
    out.push('\n');
}

fn headline(out: &mut String, run: &Run, options: &Options) {
    let h = &run.header;
    let _ = writeln!(out, "{}", options.bold(&h.name));
    let mut what: Vec<&str> = Vec::new();
    what.extend(h.call.as_deref());
    if let Some(target) = &h.target {
        what.push("at");
        what.push(target);
    }
    if !what.is_empty() {
        let _ = writeln!(out, "{}", what.join(" "));
    }
    let mut parts = facts::how(h);
    let warmup = h.warmup();
    if !warmup.is_zero() {
        let us = warmup.as_micros() as f64;
        parts.push(format!("after {} of warm-up", time(us)));
    }
    if h.source == Source::Imported {
        parts.push("imported: what the file doesn't hold is not known".to_owned());
    }
    if !parts.is_empty() {
        lines(out, &parts.join(", "), options);
    }
    out.push('\n');
}

/// The rate that the plan asked for over its measured stages.
fn asked(run: &Run) -> Option<String> {
    let stages: Vec<_> = run
        .header
        .planned_stages
        .iter()
        .filter(|s| !s.warmup)
        // A stretch without calls asks for nothing.
        .filter(|s| s.rate_from_per_s != Some(0.0) || s.rate_to_per_s != Some(0.0))
        .collect();
    let (first, last) = (stages.first()?, stages.last()?);
    let (from, to) = (first.rate_from_per_s?, last.rate_to_per_s?);
    Some(if from == to {
        rate(from)
    } else {
        format!("{} to {}", rate(from), rate(to))
    })
}

fn totals(out: &mut String, run: &Run, options: &Options) {
    let t = &run.summary.total;
    let mut calls = vec![
        format!("{} due", count(t.due)),
        format!("{} ok", count(t.ok)),
        plural(t.errors, "error"),
    ];
    if t.cut_off > 0 {
        calls.push(format!("{} cut off", count(t.cut_off)));
    }
    if t.not_started > 0 {
        calls.push(format!("{} not started", count(t.not_started)));
    }
    if t.expired_unsent > 0 {
        let unsent = count(t.expired_unsent);
        calls.push(format!(
            "{unsent} of the errors not sent (their deadline passed first)"
        ));
    }
    if t.late > 0 {
        calls.push(format!("{} answered after the deadline", count(t.late)));
    }
    let settled = t.ok + t.errors;
    if settled > 0 {
        calls.push(format!("{} successful", share(t.ok, settled)));
    }
    row(out, "calls", &calls.join(", "), options);
    rates(out, run, options);
    links(out, run, options);
    check(out, run, options);
    out.push('\n');
}

fn rates(out: &mut String, run: &Run, options: &Options) {
    let t = &run.summary.total;
    if let Some(achieved) = t.achieved_per_s {
        let mut text = String::new();
        let callers = arriving(run);
        let callers = callers.map(|c| (format!(" {}", c.name()), format!(" {}", c.calls)));
        let (arriving, ending) = callers.unwrap_or_default();
        if run.header.is_open()
            && let Some(asked) = asked(run)
        {
            let _ = write!(text, "{asked}{arriving} asked, ");
        }
        let _ = write!(text, "{}{ending} achieved", rate(achieved));
        if let Some(elapsed) = t.elapsed_us {
            let _ = write!(text, " over {}", time(elapsed as f64));
        }
        row(out, "rate", &text, options);
    }
    if let Some(fact) = crate::measures::messages(run) {
        row(out, fact.name, &fact.text, options);
    } else if t.bytes_sent + t.bytes_received > 0 {
        let (sent, received) = (bytes(t.bytes_sent), bytes(t.bytes_received));
        row(
            out,
            "messages",
            &format!("{sent} sent, {received} received"),
            options,
        );
    }
}

fn links(out: &mut String, run: &Run, options: &Options) {
    // Shared connections are made before the first call, mostly in warm-up: count them all.
    let stages = &run.summary.stages;
    let full: u64 = stages.iter().map(|s| s.connections_full).sum();
    let resumed: u64 = stages.iter().map(|s| s.connections_resumed).sum();
    let retried: u64 = stages.iter().map(|s| s.connections_retried).sum();
    if full + resumed > 0 {
        let mut text = format!("{} made", plural(full + resumed, "connection"));
        if run.header.tls.is_some() {
            let _ = write!(
                text,
                ": {} with a full handshake, {} resumed",
                count(full),
                count(resumed)
            );
        }
        if retried > 0 {
            let _ = write!(text, "; {} retried (HelloRetryRequest)", count(retried));
        }
        let lost: u64 = stages.iter().map(|s| s.connections_lost).sum();
        if lost > 0 {
            let _ = write!(text, ", {} lost while open", count(lost));
            text = options.loud(&text);
        }
        row(out, "links", &text, options);
    }
    let handshakes = run.header.tls.iter().flat_map(|tls| &tls.handshakes);
    for (i, alike) in handshakes.enumerate() {
        let name = if i == 0 { "handshakes" } else { "" };
        let text = format!("{}: {}", count(alike.count), alike.sentence());
        row(out, name, &text, options);
    }
    if let Some(rotation) = &run.summary.rotation {
        let text = crate::rotation::sentence(rotation);
        row(out, "rotation", &text, options);
    }
}

/// Every call that was due is in exactly one count.
fn check(out: &mut String, run: &Run, options: &Options) {
    let mut sum = facts::counts(run);
    if !run.summary.count_check.matches {
        sum = options.loud(&format!("{sum}: THE COUNTS DIFFER"));
    }
    row(out, "check", &sum, options);
}

/// A name and its text, wrapped under itself.
fn row(out: &mut String, name: &str, text: &str, options: &Options) {
    const INDENT: usize = 11;
    debug_assert!(name.chars().count() < INDENT, "`{name}` runs into its text");
    for (i, line) in wrap(text, options.width.saturating_sub(INDENT))
        .iter()
        .enumerate()
    {
        let name = if i == 0 { name } else { "" };
        let _ = writeln!(out, "{name:<INDENT$}{line}");
    }
}

/// Times by their names; `what` there is so many of. Nothing where there are none.
fn times_table(
    out: &mut String,
    what: &str,
    rows: impl Iterator<Item = (String, TimesSummary)>,
    options: &Options,
) {
    let times = times_of(what, rows).columns(&[0, 7, 1, 2, 3, 4, 6]);
    shown(out, &times, None, options);
}

/// Making the connections, phase by phase.
fn phases(out: &mut String, run: &Run, options: &Options) {
    let Some(p) = run.summary.phases() else {
        return;
    };
    let rows = [
        ("resolve", p.resolve),
        ("connect", p.connect),
        ("handshake", p.handshake),
        ("ready", p.ready),
        ("all phases", p.connection),
    ];
    let rows = rows.map(|(name, times)| Some((name.to_owned(), times?)));
    times_table(out, "connections", rows.into_iter().flatten(), options);
}

fn resources(out: &mut String, run: &Run, options: &Options) {
    let t = &run.summary.total;
    let ends: Vec<(&str, ResourcesSummary)> = [("client", t.client), ("server", t.server)]
        .into_iter()
        .filter_map(|(name, r)| Some((name, r?)))
        .collect();
    if ends.is_empty() {
        return;
    }
    *out += &ends::table(run).sideways().on_terminal(options.width);
    if let Some(us) = run.header.live_view_cpu_us {
        let _ = writeln!(
            out,
            "client CPU includes {} of the live view, warm-up included",
            time(us as f64)
        );
    }
    // Below this the process's own growth outweighs its connections.
    const MANY_CONNECTIONS: u64 = 1_000;
    // Where memory itself was measured, at rest, that is reported elsewhere, and better.
    if t.connections_open_max >= MANY_CONNECTIONS && run.summary.memory.is_none() {
        let grown = |r: &ResourcesSummary| {
            Some(r.rss_bytes_max.saturating_sub(r.rss_bytes_before?) / t.connections_open_max)
        };
        let each: Vec<String> = ends
            .iter()
            .filter_map(|(name, r)| Some(format!("{name} {}", bytes(grown(r)?))))
            .collect();
        if !each.is_empty() {
            let _ = writeln!(
                out,
                "memory a connection, of {}: {} (what the process grew by since before the first)",
                plural(t.connections_open_max, "connection"),
                each.join(", ")
            );
        }
    }
    out.push('\n');
}

/// What a reader should know besides, and what to do next.
fn notes(out: &mut String, run: &Run, options: &Options) {
    let problems = run.summary.health.problems.iter();
    let mut texts: Vec<&str> = problems
        .filter(|p| !p.invalidates)
        .map(|p| p.text.as_str())
        .chain(run.header.notes.iter().map(String::as_str))
        .collect();
    if run.header.load_loop == Some(Loop::Closed) {
        texts.push(
            "closed loop: a slow target slows the arrivals, so times say nothing of calls that would have come meanwhile",
        );
    }
    if !texts.is_empty() {
        let _ = writeln!(out, "notes");
        sentences(out, texts, options);
        out.push('\n');
    }
    let dir = run.dir.display();
    let _ = writeln!(out, "run: {dir}");
    let _ = writeln!(out, "next: plimsoll report {dir} --json");
    let _ = writeln!(out, "      plimsoll compare {dir} ANOTHER_RUN");
}
