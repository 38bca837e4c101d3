//! The tables of a report: figures that no picture shows, and how to repeat the run.

use std::path::Path;

use maud::{Markup, html};
use plimsoll_model::run::summary::ErrorSummary;
use plimsoll_model::run::{Run, TimesSummary, file};
use plimsoll_model::search::{SearchRecord, Verdict};

use super::View;
use super::page::section;
use crate::quantity::{bytes, count, known, or_dash, share, time};
use crate::rotation::sentence;
use crate::search::{HEAD, by_rate, row};
use crate::{addresses, shards, slowest};

/// A table; the first cell of a row names it. Columns of these numbers hold text, the others figures.
pub(super) fn table<R: AsRef<[String]>>(
    caption: &str,
    head: &[&str],
    texts: &[usize],
    rows: impl IntoIterator<Item = R>,
) -> Markup {
    judged(
        caption,
        head,
        texts,
        rows.into_iter().map(|row| (row, None)),
    )
}

/// The same, where the last cell of a row may have a class of its own.
pub(super) fn judged<R: AsRef<[String]>>(
    caption: &str,
    head: &[&str],
    texts: &[usize],
    rows: impl IntoIterator<Item = (R, Option<&'static str>)>,
) -> Markup {
    let class = |i: usize| texts.contains(&i).then_some("text");
    let last = head.len() - 1;
    html! {
        table {
            @if !caption.is_empty() { caption { (caption) } }
            thead { tr { @for (i, name) in head.iter().enumerate() { th class=[class(i)] scope="col" { (name) } } } }
            tbody { @for (row, own) in rows { tr {
                @for (i, cell) in row.as_ref().iter().enumerate() {
                    @if i == 0 { th scope="row" { (cell) } }
                    @else { td class=[own.filter(|_| i == last).or(class(i))] { (cell) } }
                }
            } } }
        }
    }
}

/// [`table`], where it may be wider than the page.
pub(super) fn wide<R: AsRef<[String]>>(
    head: &[&str],
    texts: &[usize],
    rows: impl IntoIterator<Item = R>,
) -> Markup {
    html! { div.scroll { (table("", head, texts, rows)) } }
}

pub(super) fn times_table(caption: &str, rows: &[(String, TimesSummary)]) -> Markup {
    let head = ["", "mean", "p50", "p90", "p99", "p99.9", "max", "count"];
    let rows = rows.iter().map(|(name, t)| {
        [
            name.clone(),
            time(t.mean_us),
            or_dash(t.p50_us, time),
            or_dash(t.p90_us, time),
            or_dash(t.p99_us, time),
            or_dash(t.p99_9_us, time),
            time(t.max_us),
            count(t.count),
        ]
    });
    html! { div.scroll { (table(caption, &head, &[], rows)) } }
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
            codes.map(move |e| code_row(view.named(&e.code), e, all))
        })
        .collect();
    codes("Errors", "", rows)
}

/// Calls that say nothing of the target.
pub(super) fn given_up(views: &[View]) -> Markup {
    let rows: Vec<_> = views
        .iter()
        .flat_map(|view| {
            let total = &view.run.summary.total;
            let cut_off = total.cut_off_by_code.iter();
            let cut_off = cut_off.map(move |e| code_row(view.named(&e.code), e, total.due));
            let waiting = (total.not_started > 0).then(|| {
                [
                    view.named("not started"),
                    count(total.not_started),
                    share(total.not_started, total.due),
                    "due, and never sent before the run ended".to_owned(),
                ]
            });
            cut_off.chain(waiting)
        })
        .collect();
    codes(
        "Given up",
        "Calls that the end of the run cut off, or that the generator came to too late: no errors, and in no percentile.",
        rows,
    )
}

/// What became of some of `all` calls: the code, how many, their share, and what it means.
type CodeRow = [String; 4];

fn code_row(code: String, summary: &ErrorSummary, all: u64) -> CodeRow {
    let text = format!("{} ({})", summary.explanation, summary.blame);
    [code, count(summary.count), share(summary.count, all), text]
}

fn codes(title: &str, note: &str, rows: Vec<CodeRow>) -> Markup {
    if rows.is_empty() {
        return html! {};
    }
    let head = ["code", "calls", "of all", "what it means (whose failure)"];
    section(title, note, &wide(&head, &[3], rows))
}

/// What the TLS handshakes agreed on.
pub(super) fn handshakes(views: &[View]) -> Markup {
    let rows: Vec<_> = views
        .iter()
        .flat_map(|view| {
            let tls = view.run.header.tls.iter();
            let handshakes = tls.flat_map(|tls| &tls.handshakes);
            handshakes.map(|h| {
                let known = |text: &Option<String>| or_dash(text.clone(), |text| text);
                [
                    view.named(&h.version),
                    count(h.count),
                    h.suite.clone(),
                    known(&h.group),
                    known(&h.certificate),
                    or_dash(h.chain_bytes, bytes),
                    known(&h.signature),
                    h.life(),
                ]
            })
        })
        .collect();
    if rows.is_empty() {
        return html! {};
    }
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
    let table = wide(&head, &[2, 3, 4, 6, 7], rows);
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

/// The rows of all runs, with the names of the runs where there are several.
fn of_all<const N: usize, R: IntoIterator<Item = [String; N]>>(
    views: &[View],
    rows: impl Fn(&Run) -> R,
) -> Vec<[String; N]> {
    let mut all = Vec::new();
    for view in views {
        all.extend(rows(&view.run).into_iter().map(|mut row| {
            row[0] = view.named(&row[0]);
            row
        }));
    }
    all
}

/// What became of calls and connections at each of a name's addresses.
pub(super) fn addresses(views: &[View]) -> Markup {
    let rows = of_all(views, addresses::rows);
    if rows.is_empty() {
        return html! {};
    }
    let table = wide(&addresses::HEAD, &[], rows);
    let lead = "Connections are spread over the addresses of the target; one that can't be connected to is left out for a while.";
    section("Addresses", lead, &table)
}

/// What each shard of a run on several machines did.
pub(super) fn shards(views: &[View]) -> Markup {
    let rows = of_all(views, shards::rows);
    if rows.is_empty() {
        return html! {};
    }
    let notes: Vec<String> = views.iter().filter_map(|v| shards::note(&v.run)).collect();
    let table = html! {
        (wide(&shards::HEAD, &[], rows))
        @for note in &notes { p { (note) "." } }
    };
    let lead = "The load came from several machines; one that is at its own limit makes the whole invalid. CPU is of each shard's processes; the clock is the rendezvous's less the shard's.";
    section("Shards", lead, &table)
}

/// The calls that took longest, and their trace ids.
pub(super) fn slowest(views: &[View]) -> Markup {
    let rows = of_all(views, slowest::rows);
    if rows.is_empty() {
        return html! {};
    }
    let table = wide(&slowest::HEAD, &slowest::TEXTS, rows);
    let lead = "Response times, and when calls were due in the run. The requests carried the trace ids, by which traces of the server show what took so long.";
    section("Slowest calls", lead, &table)
}

/// CPU and memory of both ends.
pub(super) fn ends(views: &[View]) -> Markup {
    let rows: Vec<_> = views
        .iter()
        .flat_map(|view| {
            let total = &view.run.summary.total;
            let ends = [("client", total.client), ("server", total.server)];
            ends.into_iter().filter_map(|(what, r)| {
                let r = r?;
                Some([
                    view.named(what),
                    or_dash(r.cpu_us_per_call, time),
                    time(r.cpu_user_us),
                    or_dash(r.cpu_system_us, time),
                    known(r.rss_bytes_max, bytes),
                    known(r.descriptors_max, count),
                    known(r.threads_max, count),
                ])
            })
        })
        .collect();
    if rows.is_empty() {
        return html! {};
    }
    let head = [
        "",
        "CPU a call",
        "user",
        "system",
        "memory",
        "descriptors",
        "threads",
    ];
    let table = wide(&head, &[], rows);
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
    let rows = by_rate(record).into_iter().map(|trial| {
        let class = match &trial.verdict {
            Verdict::Met => "text met",
            Verdict::Missed { .. } | Verdict::Growing => "text missed",
            Verdict::GeneratorLimited { .. } => "text limited",
        };
        (row(trial), Some(class))
    });
    judged("The trials, by rate", &HEAD, &[8], rows)
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
