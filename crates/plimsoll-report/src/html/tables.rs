//! The tables of a report: figures that no picture shows, and how to repeat the run.

use std::path::Path;

use maud::{Markup, html};
use plimsoll_model::run::summary::{ErrorSummary, ResourcesSummary};
use plimsoll_model::run::{TimesSummary, file};
use plimsoll_model::search::{SearchRecord, Verdict};

use super::View;
use super::page::section;
use crate::quantity::{bytes, count, exact_rate, known, rate, share, time};
use crate::rotation::sentence;
use crate::search::{by_rate, purpose, verdict};
use crate::shards;

fn dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "–".to_owned())
}

pub(super) fn times_table(caption: &str, rows: &[(String, TimesSummary)]) -> Markup {
    html! {
        div.scroll { table {
            @if !caption.is_empty() { caption { (caption) } }
            thead { tr {
                th scope="col" { "" } th scope="col" { "mean" } th scope="col" { "p50" } th scope="col" { "p90" }
                th scope="col" { "p99" } th scope="col" { "p99.9" } th scope="col" { "max" } th scope="col" { "count" }
            } }
            tbody { @for (name, t) in rows {
                tr {
                    th scope="row" { (name) } td { (time(t.mean_us)) } td { (dash(t.p50_us.map(time))) }
                    td { (dash(t.p90_us.map(time))) } td { (dash(t.p99_us.map(time))) } td { (dash(t.p99_9_us.map(time))) }
                    td { (time(t.max_us)) } td { (count(t.count)) }
                }
            } }
        } }
    }
}

/// Times of calls, and how late the generator was.
pub(super) fn latency(views: &[View]) -> Markup {
    let mut rows = Vec::new();
    for view in views {
        let total = &view.run.summary.total;
        for (what, times) in [
            ("response time", &total.response),
            ("service time", &total.service),
            ("first byte", &total.first_byte),
            ("failed calls", &total.failed),
        ] {
            rows.extend(times.map(|t| (view.named(what), t)));
        }
    }
    if rows.is_empty() {
        return html! {};
    }
    section("Times", "", &times_table("", &rows))
}

pub(super) fn errors(views: &[View]) -> Markup {
    let rows: Vec<_> = views
        .iter()
        .flat_map(|view| {
            let total = &view.run.summary.total;
            let all = total.ok + total.errors;
            let codes = total.errors_by_code.iter();
            codes.map(move |e| CodeRow::of(view.named(&e.code), e, all))
        })
        .collect();
    codes("Errors", "", &rows)
}

/// Calls that say nothing of the target.
pub(super) fn given_up(views: &[View]) -> Markup {
    let rows: Vec<_> = views
        .iter()
        .flat_map(|view| {
            let total = &view.run.summary.total;
            let cut_off = total.cut_off_by_code.iter();
            let cut_off = cut_off.map(move |e| CodeRow::of(view.named(&e.code), e, total.due));
            let waiting = (total.not_started > 0).then(|| CodeRow {
                code: view.named("not started"),
                calls: total.not_started,
                part: share(total.not_started, total.due),
                text: "due, and never sent before the run ended".to_owned(),
            });
            cut_off.chain(waiting)
        })
        .collect();
    codes(
        "Given up",
        "Calls that the end of the run cut off, or that the generator came to too late: no errors, and in no percentile.",
        &rows,
    )
}

/// What became of some calls.
struct CodeRow {
    code: String,
    calls: u64,
    part: String,
    text: String,
}

impl CodeRow {
    fn of(code: String, summary: &ErrorSummary, all: u64) -> CodeRow {
        CodeRow {
            code,
            calls: summary.count,
            part: share(summary.count, all),
            text: format!("{} ({})", summary.explanation, summary.blame),
        }
    }
}

fn codes(title: &str, note: &str, rows: &[CodeRow]) -> Markup {
    if rows.is_empty() {
        return html! {};
    }
    let table = html! {
        div.scroll { table {
            thead { tr { th scope="col" { "code" } th scope="col" { "calls" } th scope="col" { "of all" } th.text scope="col" { "what it means (whose failure)" } } }
            tbody { @for row in rows {
                tr { th scope="row" { (row.code) } td { (count(row.calls)) } td { (row.part) } td.text { (row.text) } }
            } }
        } }
    };
    section(title, note, &table)
}

/// What the TLS handshakes agreed on.
pub(super) fn handshakes(views: &[View]) -> Markup {
    let rows: Vec<_> = views
        .iter()
        .flat_map(|view| {
            let tls = view.run.header.tls.iter();
            let handshakes = tls.flat_map(|tls| &tls.handshakes);
            handshakes.map(move |alike| (view.named(&alike.version), alike))
        })
        .collect();
    if rows.is_empty() {
        return html! {};
    }
    let table = html! {
        div.scroll { table {
            thead { tr {
                th scope="col" { "version" } th scope="col" { "connections" } th.text scope="col" { "suite" } th.text scope="col" { "group" }
                th.text scope="col" { "certificate" } th scope="col" { "chain" } th.text scope="col" { "signature" } th.text scope="col" { "handshake" }
            } }
            tbody { @for (name, h) in &rows {
                tr {
                    th scope="row" { (name) } td { (count(h.count)) } td.text { (h.suite) } td.text { (dash(h.group.clone())) }
                    td.text { (dash(h.certificate.clone())) } td { (dash(h.chain_bytes.map(bytes))) } td.text { (dash(h.signature.clone())) }
                    td.text { (h.life()) }
                }
            } }
        } }
    };
    let rotations = views.iter().filter_map(|view| {
        let rotation = view.run.summary.rotation.as_ref()?;
        Some((view.named("Rotation"), sentence(rotation)))
    });
    let content = html! {
        (table)
        @for (name, text) in rotations {
            p { (name) ": " (text) "." }
        }
    };
    section(
        "TLS handshakes",
        "All connections by what their handshakes agreed on, the warm-up's too.",
        &content,
    )
}

/// What became of calls and connections at each of a name's addresses.
pub(super) fn addresses(views: &[View]) -> Markup {
    let rows: Vec<_> = views
        .iter()
        .flat_map(|view| {
            let addresses = view.run.summary.total.addresses.iter();
            addresses.map(move |a| (view.named(&a.address), a.counts))
        })
        .collect();
    if rows.is_empty() {
        return html! {};
    }
    let table = html! {
        div.scroll { table {
            thead { tr {
                th scope="col" { "address" } th scope="col" { "calls" } th scope="col" { "errors" }
                th scope="col" { "connections" } th scope="col" { "failed to connect" }
            } }
            tbody { @for (name, counts) in &rows {
                tr {
                    th scope="row" { (name) } td { (count(counts.calls)) } td { (count(counts.errors)) }
                    td { (count(counts.connections)) } td { (count(counts.connect_failures)) }
                }
            } }
        } }
    };
    let lead = "Connections are spread over the addresses of the target; one that can't be connected to is left out for a while.";
    section("Addresses", lead, &table)
}

/// What each shard of a run on several machines did.
pub(super) fn shards(views: &[View]) -> Markup {
    let rows: Vec<_> = views
        .iter()
        .flat_map(|view| {
            shards::rows(&view.run).into_iter().map(move |mut row| {
                row[0] = view.named(&row[0]);
                row
            })
        })
        .collect();
    if rows.is_empty() {
        return html! {};
    }
    let notes: Vec<String> = views.iter().filter_map(|v| shards::note(&v.run)).collect();
    let table = html! {
        div.scroll { table {
            thead { tr { @for name in shards::HEAD { th scope="col" { (name) } } } }
            tbody { @for row in &rows {
                tr {
                    th scope="row" { (row[0]) }
                    @for text in &row[1..] { td { (text) } }
                }
            } }
        } }
        @for note in &notes { p { (note) "." } }
    };
    let lead = "The load came from several machines; one that is at its own limit makes the whole invalid. CPU is of each shard's processes; the clock is the rendezvous's less the shard's.";
    section("Shards", lead, &table)
}

/// CPU and memory of both ends.
pub(super) fn ends(views: &[View]) -> Markup {
    let rows: Vec<(String, ResourcesSummary)> = views
        .iter()
        .flat_map(|view| {
            let total = &view.run.summary.total;
            [("client", total.client), ("server", total.server)]
                .into_iter()
                .filter_map(move |(what, r)| Some((view.named(what), r?)))
        })
        .collect();
    if rows.is_empty() {
        return html! {};
    }
    let table = html! {
        div.scroll { table {
            thead { tr {
                th scope="col" { "" } th scope="col" { "CPU a call" } th scope="col" { "user" } th scope="col" { "system" }
                th scope="col" { "memory" } th scope="col" { "descriptors" } th scope="col" { "threads" }
            } }
            tbody { @for (name, r) in &rows {
                tr {
                    th scope="row" { (name) } td { (dash(r.cpu_us_per_call.map(time))) } td { (time(r.cpu_user_us)) }
                    td { (dash(r.cpu_system_us.map(time))) } td { (known(r.rss_bytes_max, bytes)) }
                    td { (known(r.descriptors_max, count)) } td { (known(r.threads_max, count)) }
                }
            } }
        } }
    };
    section(
        "Both ends",
        "What client and server used while the calls ran; memory, descriptors and threads at their most.",
        &table,
    )
}

/// How well the generator did its own part.
pub(super) fn health(views: &[View]) -> Markup {
    let mut rows = Vec::new();
    for view in views {
        let total = &view.run.summary.total;
        for (what, times) in [("pacing", total.pacing), ("lag", total.lag)] {
            rows.extend(times.map(|t| (view.named(what), t)));
        }
    }
    let checks: Vec<String> = views
        .iter()
        .map(|view| {
            let c = &view.run.summary.count_check;
            let sum = format!(
                "{} due = {} ok + {} errors + {} cut off + {} not started + {} unfinished",
                count(c.due),
                count(c.ok),
                count(c.errors),
                count(c.cut_off),
                count(c.not_started),
                count(c.in_flight + c.backlog)
            );
            let verdict = if c.matches {
                "the counts agree"
            } else {
                "THE COUNTS DIFFER"
            };
            view.named(&format!("{verdict}: {sum}"))
        })
        .collect();
    let busiest = views.iter().map(|view| {
        view.named(&format!(
            "the busiest worker used {:.0} % of a core at most",
            view.timeline.busiest_worker * 100.0
        ))
    });
    let content = html! {
        @if !rows.is_empty() { (times_table("", &rows)) }
        ul.sentences { @for text in checks.iter().cloned().chain(busiest) { li { (text) } } }
    };
    section(
        "Generator health",
        "Pacing is how late the generator noticed that a call was due; lag, how late it was sent, waiting for a connection included.",
        &content,
    )
}

pub(super) fn trials_table(record: &SearchRecord) -> Markup {
    html! {
        table {
            caption { "The trials, by rate" }
            thead { tr {
                th scope="col" { "rate" } th scope="col" { "achieved" } th scope="col" { "p50" } th scope="col" { "p99" }
                th scope="col" { "p99.9" } th scope="col" { "errors" } th scope="col" { "s" } th scope="col" { "trial" }
                th.text scope="col" { "verdict" }
            } }
            tbody { @for t in by_rate(record) {
                tr {
                    th scope="row" { (exact_rate(t.rate_per_s)) } td { (dash(t.achieved_per_s.map(rate))) }
                    td { (dash(t.p50_us.map(time))) } td { (dash(t.p99_us.map(time))) } td { (dash(t.p99_9_us.map(time))) }
                    td { (dash(t.errors_share.map(|s| format!("{:.2} %", s * 100.0)))) }
                    td { (format!("{}", (t.length_s * 10.0).round() / 10.0)) } td { (purpose(t.purpose)) }
                    td class={ "text " (tone(&t.verdict)) } { (verdict(&t.verdict)) }
                }
            } }
        }
    }
}

fn tone(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Met => "met",
        Verdict::Missed { .. } | Verdict::Growing => "missed",
        Verdict::GeneratorLimited { .. } => "limited",
    }
}

/// What was searched for, and how.
pub(super) fn trials(record: &SearchRecord) -> Markup {
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
    let table = html! {
        div.scroll { table { tbody { @for (name, value) in &rows {
            tr { th scope="row" { (name) } td.text { (value) } }
        } } } }
    };
    section(
        "The search",
        "After RFC 9971 (multiple loss ratio search), with objectives in the place of loss.",
        &table,
    )
}

/// The command that does the same again, from where the report was made.
pub(super) fn again(command: &str, dir: &Path) -> String {
    let plan = dir.join(file::PLAN).display().to_string();
    let plain = |c: char| c.is_alphanumeric() || "/._-+=:,@".contains(c);
    match plan.chars().all(plain) {
        true => format!("plimsoll {command} {plan}"),
        false => format!("plimsoll {command} '{}'", plan.replace('\'', r"'\''")),
    }
}

/// The plan, and the command that does the same `again`.
pub(super) fn plan(text: &str, name: &str, again: &str) -> Markup {
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
