//! The tables of a report, and the plan with the command that repeats the run.

use maud::{Markup, html};
use plimsoll_model::runs::run::{Run, StageSummary, TimesSummary};
use plimsoll_model::search::{SearchRecord, TrialVerdict};

use super::RunView;
use super::page::section;
use crate::quantity::{bytes, count, or_dash};
use crate::search::{self as found, trials_by_rate};
use crate::sections::protocol_measures::{CountFact, table as percentile_values};
use crate::sections::rotation::sentence;
use crate::sections::table::TextTable;
use crate::{
    sections::addresses, sections::end_resources, sections::errors, sections::shards,
    sections::slowest, sections::steps, sections::times, sections::totals,
};

/// Returns a table; the first cell of a row is its heading.
pub(super) fn table(caption: &str, table: &TextTable) -> Markup {
    table_with_classes(caption, table, |_| None)
}

/// Returns a table in which the last cell of a row may have its own CSS class.
pub(super) fn table_with_classes(
    caption: &str,
    table: &TextTable,
    own: impl Fn(usize) -> Option<&'static str>,
) -> Markup {
    // Row headings are formatted as text in any case.
    let class = |i: usize| (i > 0 && table.is_text(i)).then_some("text");
    let last = table.head.len() - 1;
    html! {
        table {
            @if !caption.is_empty() { caption { (caption) } }
            thead { tr { @for (i, name) in table.head.iter().enumerate() { th class=[class(i)] scope="col" { (name) } } } }
            tbody { @for (n, row) in table.rows.iter().enumerate() { tr {
                @for (i, cell) in row.iter().enumerate() {
                    @if i == 0 { th scope="row" { (cell) } }
                    @else { td class=[own(n).filter(|_| i == last).or(class(i))] { (cell) } }
                }
            } } }
        }
    }
}

/// Returns a [`fn@table`] that scrolls if it is wider than the page.
pub(super) fn wide_table(rows: &TextTable) -> Markup {
    html! { div.scroll { (table("", rows)) } }
}

/// Returns a section with a table; empty if the table has no rows.
pub(super) fn table_section(heading: &str, lead: &str, rows: &TextTable) -> Markup {
    if rows.rows.is_empty() {
        html! {}
    } else {
        section(heading, lead, &wide_table(rows))
    }
}

/// Returns a table of names and texts. The last element of a row says whether its text is emphasised.
pub(super) fn text_list<'a>(rows: impl IntoIterator<Item = (&'a str, &'a str, bool)>) -> Markup {
    html! {
        div.scroll { table { tbody { @for (name, text, is_loud) in rows {
            tr { th scope="row" { (name) } td class={ "text" @if is_loud { " missed" } } { (text) } }
        } } } }
    }
}

pub(super) fn times_table(caption: &str, rows: &[(String, TimesSummary)]) -> Markup {
    let times = percentile_values("", rows.iter().cloned());
    html! { div.scroll { (table(caption, &times)) } }
}

/// Returns the rows of all runs, preceded by the runs' names if there are several.
fn merged_table(views: &[RunView], table: impl Fn(&Run) -> TextTable) -> TextTable {
    let tables = views.iter().map(|view| {
        let mut one = table(&view.run);
        for row in &mut one.rows {
            row[0] = view.with_run_name(&row[0]);
        }
        one
    });
    let all = tables.reduce(|mut all, one| {
        all.rows.extend(one.rows);
        all
    });
    all.unwrap_or_else(|| TextTable::new([""], &[], Vec::<Vec<String>>::new()))
}

/// Returns the times of all runs.
pub(super) fn merged_times<'a, const N: usize>(
    views: &[RunView],
    kinds: impl Fn(&StageSummary) -> [(&'a str, Option<TimesSummary>); N],
) -> Vec<(String, TimesSummary)> {
    let of = |view: &RunView| {
        let known = kinds(&view.run.summary.total).into_iter();
        let known = known.filter_map(|(what, times)| Some((view.with_run_name(what), times?)));
        known.collect::<Vec<_>>()
    };
    views.iter().flat_map(of).collect()
}

/// Returns the section about the times of calls and the lateness of the generator.
pub(super) fn latency_section(views: &[RunView]) -> Markup {
    let rows = merged_times(views, |total| {
        [
            ("response time", total.response),
            ("service time", total.service),
            ("first byte", total.first_byte),
            ("failed calls", total.failed),
        ]
    });
    if rows.is_empty() {
        return html! {};
    }
    let of = |view: &RunView| {
        let response = view.run.summary.total.response;
        let dash = response.and_then(|times| times::dash_note(times.count));
        let above = view.server_delay;
        let above = above.map(|delay| times::overhead_text(&view.run, delay));
        let notes = dash.into_iter().chain(above);
        let named = notes.map(|note| view.with_run_name(&note));
        named.collect::<Vec<_>>()
    };
    let notes: Vec<String> = views.iter().flat_map(of).collect();
    let sampled = merged_table(views, times::confidence_table);
    let sampled_notes = views.iter().filter_map(|view| {
        let note = times::confidence_note(&view.run)?;
        Some(view.with_run_name(&note))
    });
    let sampled_notes: Vec<String> = sampled_notes.collect();
    let content = html! {
        (wide_table(&percentile_values("", rows)))
        (note_list(&notes))
        @if !sampled.rows.is_empty() { (wide_table(&sampled)) (note_list(&sampled_notes)) }
    };
    section("Times", "", &content)
}

/// Returns the section about failures of calls and connections, with their details.
pub(super) fn errors_section(views: &[RunView]) -> Markup {
    let given_up = "Calls that were cut off by the end of the run, or that the generator had no time to send: they are neither errors nor in any percentile.";
    let connections = "Failed attempts to connect, counted separately from calls and including the warm-up. The share is of all attempts.";
    html! {
        (section_with_notes("Errors", "", views, errors::call_errors, errors::error_messages))
        (section_with_notes("Abandoned", given_up, views, errors::abandoned_calls, errors::error_messages))
        (section_with_notes("Connections that failed", connections, views, errors::connection_errors, errors::error_messages))
    }
}

/// Returns a section with a table of all runs and notes on each of them; empty if the table has no rows.
fn section_with_notes(
    heading: &str,
    lead: &str,
    views: &[RunView],
    table: impl Fn(&Run) -> TextTable,
    notes: impl Fn(&Run, &TextTable) -> Vec<String>,
) -> Markup {
    let rows = merged_table(views, &table);
    if rows.rows.is_empty() {
        return html! {};
    }
    let of = |view: &RunView| {
        let notes = notes(&view.run, &table(&view.run));
        let named = notes.iter().map(|note| view.with_run_name(note));
        named.collect::<Vec<_>>()
    };
    let notes: Vec<String> = views.iter().flat_map(of).collect();
    let content = html! { (wide_table(&rows)) (note_list(&notes)) };
    section(heading, lead, &content)
}

/// Returns the notes below a table as a list.
fn note_list(all: &[String]) -> Markup {
    html! { @if !all.is_empty() { ul.sentences { @for text in all { li { (text) } } } } }
}

/// Returns the section with the counts of calls, messages and connections.
pub(super) fn totals_section(views: &[RunView]) -> Markup {
    let of = |view: &RunView| {
        let facts = totals::total_facts(&view.run).into_iter();
        let named = facts.map(|fact| (view.with_run_name(fact.name), fact));
        named.collect::<Vec<_>>()
    };
    let facts: Vec<_> = views.iter().flat_map(of).collect();
    section("Calls and connections", "", &facts_table(&facts))
}

/// Returns a table of named facts.
pub(super) fn facts_table(facts: &[(String, CountFact)]) -> Markup {
    let rows = facts.iter();
    text_list(rows.map(|(name, fact)| (name.as_str(), fact.text.as_str(), fact.is_problem)))
}

/// Returns the section with the parameters that TLS handshakes negotiated.
pub(super) fn handshakes_section(views: &[RunView]) -> Markup {
    let head = [
        "version",
        "connections",
        "suite",
        "group",
        "certificate",
        "chain",
        "signature",
        "handshake",
    ];
    let rows = merged_table(views, |run| {
        let handshakes = run.header.tls.iter().flat_map(|tls| &tls.handshakes);
        let known = |text: &Option<String>| or_dash(text.clone(), |text| text);
        let rows = handshakes.map(|h| {
            [
                h.version.clone(),
                count(h.count),
                h.suite.clone(),
                known(&h.group),
                known(&h.certificate),
                or_dash(h.chain_bytes, |of| match h.chain {
                    Some(certificates) => format!("{certificates}, {}", bytes(of)),
                    None => bytes(of),
                }),
                known(&h.signature),
                h.describe_resumption(),
            ]
        });
        TextTable::new(head, &[2, 3, 4, 6, 7], rows)
    });
    let rotations = views.iter().filter_map(|view| {
        let rotation = view.run.summary.rotation.as_ref()?;
        Some((view.with_run_name("Rotation"), sentence(rotation)))
    });
    let rotations: Vec<_> = rotations.collect();
    if rows.rows.is_empty() && rotations.is_empty() {
        return html! {};
    }
    let content = html! {
        @if !rows.rows.is_empty() { (wide_table(&rows)) }
        @for (name, text) in rotations {
            p { (name) ": " (text) "." }
        }
    };
    section(
        "TLS handshakes",
        "All connections, including the warm-up's, by what their handshakes negotiated.",
        &content,
    )
}

/// Returns the section with the figures of each step of a journey (the requests that a user makes in sequence).
pub(super) fn steps_section(views: &[RunView]) -> Markup {
    let lead = "Response times of calls that ended ok. A journey's first step is due when its user arrives, each further one at the end of the step before plus its pause.";
    table_section("Steps", lead, &merged_table(views, steps::table))
}

/// Returns the section with the counts of calls and connections at each address of the target's name.
pub(super) fn addresses_section(views: &[RunView]) -> Markup {
    let lead = "Connections are spread over the addresses of the target; one that can't be connected to is skipped for a while.";
    table_section("Addresses", lead, &merged_table(views, addresses::table))
}

/// Returns the section with the figures of each shard of a run on several machines.
pub(super) fn shards_section(views: &[RunView]) -> Markup {
    let rows = merged_table(views, shards::table);
    if rows.rows.is_empty() {
        return html! {};
    }
    let notes = views.iter().filter_map(|v| shards::note(&v.run));
    let table = html! {
        (wide_table(&rows))
        @for note in notes { p { (note) "." } }
    };
    let lead = "The load came from several machines; one that is at its own limit makes the whole run invalid. CPU is that of each shard's processes; the clock is the rendezvous's minus the shard's.";
    section("Shards", lead, &table)
}

/// Returns the section with the slowest calls and their trace ids.
pub(super) fn slowest_calls_section(views: &[RunView]) -> Markup {
    let lead = "Response times, and when calls were scheduled in the run. The requests carried these trace ids: the server's traces show what took so long.";
    table_section("Slowest calls", lead, &merged_table(views, slowest::table))
}

/// Returns the section with the CPU time and memory of client and server.
pub(super) fn resources_section(views: &[RunView]) -> Markup {
    let lead = "What client and server used while the calls ran; memory, open files and threads at their peak.";
    section_with_notes(
        "Client and server",
        lead,
        views,
        end_resources::table,
        |run, _| end_resources::notes(run),
    )
}

/// Returns the section about the generator's health.
pub(super) fn health_section(views: &[RunView]) -> Markup {
    let rows = merged_times(views, |total| {
        [("generator delay", total.pacing), ("send delay", total.lag)]
    });
    let checks: Vec<String> = views
        .iter()
        .map(|view| view.with_run_name(&totals::count_check_fact(&view.run).text))
        .collect();
    let busiest = views.iter().map(|view| {
        view.with_run_name(&format!(
            "the busiest worker used {:.0} % of a core at most",
            view.timeline.busiest_worker * 100.0
        ))
    });
    let sentences_below: Vec<String> = checks.into_iter().chain(busiest).collect();
    let content = html! {
        @if !rows.is_empty() { (times_table("", &rows)) }
        (note_list(&sentences_below))
    };
    section(
        "Generator health",
        "Generator delay is how late the generator noticed a scheduled call; send delay, how late the call was sent, waiting for a connection included.",
        &content,
    )
}

pub(super) fn trials_table(record: &SearchRecord) -> Markup {
    let trials = trials_by_rate(record);
    let class = |n: usize| match &trials[n].verdict {
        TrialVerdict::Met => Some("text met"),
        TrialVerdict::Missed { .. } | TrialVerdict::Growing => Some("text missed"),
        TrialVerdict::GeneratorLimited { .. } | TrialVerdict::TooFewCalls { .. } => {
            Some("text limited")
        }
    };
    table_with_classes("The trials, by rate", &found::table(record), class)
}

/// Returns the section with the goal of a search and its trials.
pub(super) fn trials_section(record: &SearchRecord) -> Markup {
    let g = &record.goal;
    let rows = [
        ("objectives", record.objectives.join(", ")),
        (
            "implied",
            record.implied_errors_share.map_or_else(
                || "nothing".to_owned(),
                |s| format!("errors < {} %", s * 100.0),
            ),
        ),
        ("precision", format!("{} %", g.precision * 100.0)),
        (
            "trials",
            format!(
                "probe {} s, trial {} s (at most {} at a rate), confirmation {} s",
                g.probe_s, g.trial_s, g.trials, g.confirm_s
            ),
        ),
        (
            "calls a trial",
            format!("at least {}", count(g.least_calls)),
        ),
        (
            "budget",
            format!(
                "{} s, of which {:.0} s were used",
                g.budget_s,
                record.trials.iter().map(|t| t.took_s).sum::<f64>()
            ),
        ),
    ];
    let table = text_list(
        rows.iter()
            .map(|(name, value)| (*name, value.as_str(), false)),
    );
    section(
        "The search",
        "After RFC 9971 (multiple loss ratio search), with objectives in the place of loss.",
        &table,
    )
}

/// Returns the section with the plan and the command that repeats the measurement.
pub(super) fn plan_section(text: &str, name: &str, again: &str) -> Markup {
    if text.trim().is_empty() {
        return html! {};
    }
    let content = html! {
        pre tabindex="0" { (again) }
        details open { summary { "plan.toml" } pre tabindex="0" { (text) } }
    };
    section(
        &format!("The plan: {name}"),
        "Every default filled in, without secrets. To repeat it, from the folder in which it was made:",
        &content,
    )
}
