//! A run on the terminal.
//!
//! [`render`] shows one run; [`render_comparison`] two groups of them. What makes the
//! figures worthless stands first; a percentile that the sample can't support is a dash.

mod addresses;
mod comparison;
mod measures;
mod memory;
mod objectives;
mod shards;
mod table;

use std::fmt::Write as _;
use std::time::Duration;

use plimsoll_model::measure::Count;
use plimsoll_model::objective::{Conclusion, judge_run};
use plimsoll_model::run::header::Loop;
use plimsoll_model::run::summary::{ErrorSummary, ResourcesSummary};
use plimsoll_model::run::{Run, Source, State, TimesSummary};
use plimsoll_model::statistics::quantile::is_supported;

use crate::facts;
use crate::json::overhead;
use crate::measures::STREAMS;
use crate::quantity::{bytes, count, known, plural, rate, share, signed_time, time};

pub use comparison::render_comparison;
use table::GAP;
pub(crate) use table::{Table, wrap};

/// How to print.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Columns of the terminal.
    pub width: usize,
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
    times(&mut out, run, options);
    measures::measures(&mut out, run, options);
    memory::memory(&mut out, run, options);
    phases(&mut out, run, options);
    addresses::addresses(&mut out, run, options);
    shards::shards(&mut out, run, options);
    errors(&mut out, run, options);
    resources(&mut out, run, options);
    notes(&mut out, run, options);
    out
}

/// Lists of sentences, each with a dash, wrapped and indented.
fn sentences<'a>(out: &mut String, lines: impl IntoIterator<Item = &'a str>, options: &Options) {
    for line in lines {
        for (i, part) in wrap(line, options.width.saturating_sub(4))
            .iter()
            .enumerate()
        {
            let lead = if i == 0 { "  - " } else { "    " };
            let _ = writeln!(out, "{lead}{part}");
        }
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
        for line in wrap(&parts.join(", "), options.width) {
            let _ = writeln!(out, "{line}");
        }
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

/// What arrived where it was not the calls, and what the calls are then called.
fn arriving(run: &Run) -> Option<(&'static str, &'static str)> {
    let measures = run.summary.total.measures.as_ref();
    let any = |counts: [Count; 2]| {
        let of = |count: Count| measures.and_then(|m| m.counts.get(count.key()).copied());
        counts.into_iter().filter_map(of).any(|n| n > 0)
    };
    if any([Count::SessionsOk, Count::SessionsFailed]) {
        return Some((" sessions", " queries"));
    }
    any([Count::UsersOk, Count::UsersFailed]).then_some((" users", " calls"))
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
        let (arriving, ending) = arriving(run).unwrap_or_default();
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
    let c = &run.summary.count_check;
    let mut sum = format!(
        "{} due = {} ok + {}",
        count(c.due),
        count(c.ok),
        plural(c.errors, "error")
    );
    for (n, what) in [
        (c.cut_off, "cut off"),
        (c.not_started, "not started"),
        (c.in_flight, "in flight"),
        (c.backlog, "waiting"),
    ] {
        if n > 0 {
            let _ = write!(sum, " + {} {what}", count(n));
        }
    }
    if run.summary.stages.iter().any(|s| s.warmup) {
        sum.push_str(", warm-up included");
    }
    if !c.matches {
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

type Column<'a> = (&'a str, Option<TimesSummary>);

/// The times that were measured, side by side: a column each, a row a percentile.
fn times(out: &mut String, run: &Run, options: &Options) {
    let t = &run.summary.total;
    let phases = t.phases.as_ref();
    let columns: Vec<Column<'_>> = if run.header.cold {
        vec![
            ("t_connect", phases.and_then(|p| p.connection)),
            ("t_first_rpc", t.service),
            ("first byte", t.first_byte),
            ("t_total", phases.and_then(|p| p.cold_total)),
            ("response", t.response),
            ("lag", t.lag),
            ("pacing", t.pacing),
        ]
    } else if run.header.load_loop == Some(Loop::Closed) {
        // Nothing is due before it is sent: response and service time are the same.
        vec![("response", t.response), ("first byte", t.first_byte)]
    } else {
        vec![
            ("response", t.response),
            ("service", t.service),
            ("first byte", t.first_byte),
            ("lag", t.lag),
            ("pacing", t.pacing),
        ]
    };
    let columns: Vec<(&str, TimesSummary)> = columns
        .into_iter()
        .chain([
            ("1st message", t.messages.and_then(|m| m.first_message)),
            ("inter-message", t.messages.and_then(|m| m.inter_message)),
        ])
        .filter_map(|(name, times)| Some((name, times?)))
        .chain(t.failed.map(|f| ("failed", f)))
        .collect();
    if columns.is_empty() {
        return;
    }
    let names = columns[0].1.percentiles().map(|(name, _)| name);
    let mut rows = vec!["", "mean", "sd", "min"];
    rows.extend(names);
    rows.push("max");
    let cells = columns.iter().map(|(name, t)| {
        let mut cells = vec![
            (*name).to_owned(),
            time(t.mean_us),
            time(t.sd_us),
            time(t.min_us),
        ];
        cells.extend(
            t.percentiles()
                .map(|(_, us)| us.map_or_else(|| "–".to_owned(), time)),
        );
        cells.push(time(t.max_us));
        cells
    });
    // Columns that don't fit beside the others go below them.
    let widest = |cells: &[String]| cells.iter().map(|c| c.chars().count()).max().unwrap_or(0);
    let first = rows.iter().map(|c| c.len()).max().unwrap_or(0);
    let mut beside: Vec<Vec<String>> = Vec::new();
    let mut used = first;
    for column in cells {
        let needed = widest(&column) + GAP;
        if used + needed > options.width && !beside.is_empty() {
            out.push_str(&side_by_side(&rows, &beside, options));
            beside.clear();
            used = first;
        }
        used += needed;
        beside.push(column);
    }
    out.push_str(&side_by_side(&rows, &beside, options));
    dash(out, columns[0].1.count, options);
    if t.messages.is_some() {
        let _ = writeln!(out, "{STREAMS}");
    }
    if let Some(delay) = options.overhead_over {
        above(out, run, delay, options);
    }
    out.push('\n');
}

/// What the link and the tool add to the server's own `delay`.
fn above(out: &mut String, run: &Run, delay: Duration, options: &Options) {
    let o = overhead(run, delay);
    let what = if run.header.cold {
        "the first call"
    } else {
        "response time"
    };
    let part = |name: &str, us: Option<f64>| us.map(|us| format!("{name} {}", signed_time(us)));
    let parts: Vec<String> = [
        part("mean", o.mean_us),
        part("p50", o.p50_us),
        part("p99", o.p99_us),
    ]
    .into_iter()
    .flatten()
    .collect();
    let text = format!(
        "{what} over the server's own {}: {}",
        time(o.over_us),
        parts.join(", ")
    );
    for line in wrap(&text, options.width) {
        let _ = writeln!(out, "{line}");
    }
}

/// A table of columns, each with its head, beside the names of the rows.
fn side_by_side(rows: &[&str], columns: &[Vec<String>], options: &Options) -> String {
    let cells = |i: usize| {
        let columns = columns.iter().map(move |column| column[i].clone());
        std::iter::once(rows[i].to_owned()).chain(columns)
    };
    let mut table = Table::new(options.width, cells(0), &[0]);
    for i in 1..rows.len() {
        table.row(cells(i).collect());
    }
    table.to_string()
}

/// What a dash among the percentiles means.
fn dash(out: &mut String, n: u64, options: &Options) {
    let needed = [
        (0.5, "p50", 6),
        (0.75, "p75", 13),
        (0.9, "p90", 36),
        (0.95, "p95", 72),
        (0.99, "p99", 368),
        (0.999, "p99.9", 3_688),
        (0.9999, "p99.99", 36_887),
    ];
    if let Some((_, name, calls)) = needed.into_iter().find(|(p, ..)| !is_supported(n, *p)) {
        let text = format!(
            "–: too few calls to tell; {name} needs {}, and there are {}",
            count(calls),
            count(n)
        );
        for line in wrap(&text, options.width) {
            let _ = writeln!(out, "{line}");
        }
    }
}

/// Times by their names; `what` there is so many of. Nothing where there are none.
fn times_table(
    out: &mut String,
    what: &str,
    rows: impl Iterator<Item = (String, TimesSummary)>,
    options: &Options,
) {
    let mut rows = rows.peekable();
    if rows.peek().is_none() {
        return;
    }
    let head = [what, "count", "mean", "p50", "p90", "p99", "max"];
    let mut table = Table::new(options.width, head, &[0]);
    let show = |us: Option<f64>| us.map_or_else(|| "–".to_owned(), time);
    for (name, t) in rows {
        table.row(vec![
            name,
            count(t.count),
            time(t.mean_us),
            show(t.p50_us),
            show(t.p90_us),
            show(t.p99_us),
            time(t.max_us),
        ]);
    }
    out.push_str(&table.to_string());
    out.push('\n');
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

fn errors(out: &mut String, run: &Run, options: &Options) {
    let summary = &run.summary;
    let t = &summary.total;
    let mut show = |title: &str, errors: &[ErrorSummary], whole: u64| {
        if errors.is_empty() {
            return;
        }
        let head = [title, "count", "share", "whose", "what happened"];
        let mut table = Table::new(options.width, head, &[0, 3, 4]);
        for e in errors {
            table.row(vec![
                e.code.clone(),
                count(e.count),
                share(e.count, whole),
                e.blame.clone(),
                e.explanation.clone(),
            ]);
        }
        out.push_str(&table.to_string());
        for detail in &summary.details {
            if errors.iter().any(|e| e.code == detail.code) {
                let line = format!("{}: {}", detail.code, printable(&detail.text));
                sentences(out, [line.as_str()], options);
            }
        }
        out.push('\n');
    };
    show("error", &t.errors_by_code, t.ok + t.errors);
    show("cut off", &t.cut_off_by_code, t.due);
    // Attempts at shared connections happen in any stage, and before the first call.
    let mut failures: Vec<ErrorSummary> = Vec::new();
    let mut attempts = 0;
    for stage in &summary.stages {
        attempts += stage.connections_full + stage.connections_resumed;
        for e in &stage.connect_failures_by_code {
            attempts += e.count;
            match failures.iter_mut().find(|f| f.code == e.code) {
                Some(known) => known.count += e.count,
                None => failures.push(e.clone()),
            }
        }
    }
    show("connection failed", &failures, attempts);
}

/// Text from the network must not steer the terminal, and stays in its line.
fn printable(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\t' | '\n' | '\r' => line.extend(c.escape_default()),
            c if c.is_control() => line.push(char::REPLACEMENT_CHARACTER),
            c => line.push(c),
        }
    }
    line
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
    let rows = [
        "process",
        "CPU a call",
        "CPU user",
        "CPU system",
        "memory",
        "descriptors",
        "threads",
    ];
    let columns: Vec<Vec<String>> = ends
        .iter()
        .map(|(name, r)| {
            vec![
                (*name).to_owned(),
                r.cpu_us_per_call
                    .map_or_else(|| "–".to_owned(), |us| format!("{us:.2} µs")),
                time(r.cpu_user_us),
                r.cpu_system_us.map_or_else(|| "–".to_owned(), time),
                known(r.rss_bytes_max, bytes),
                known(r.descriptors_max, count),
                known(r.threads_max, count),
            ]
        })
        .collect();
    out.push_str(&side_by_side(&rows, &columns, options));
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
