//! The frame of a report's page: its header, its style, and the verdict at the top.

use maud::{DOCTYPE, Markup, PreEscaped, html};
use plimsoll_model::comparisons::ladder::LadderRecord;
use plimsoll_model::runs::run::{CommonConditions, Run, Timestamp, format_version};

use super::chart::PlotArea;
use crate::sections::facts;

/// The tone of a verdict, which determines its colour and sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VerdictTone {
    Good,
    Bad,
    Uncertain,
    Plain,
}

impl VerdictTone {
    fn class(self) -> &'static str {
        match self {
            VerdictTone::Good => "good",
            VerdictTone::Bad => "bad",
            VerdictTone::Uncertain => "unsure",
            VerdictTone::Plain => "plain",
        }
    }

    /// Returns the symbol of the tone, so that colour is not the only indication.
    fn symbol(self) -> &'static str {
        match self {
            VerdictTone::Good => "✓",
            VerdictTone::Bad => "✕",
            VerdictTone::Uncertain => "!",
            VerdictTone::Plain => "·",
        }
    }
}

/// One figure in large type, with its name and a note.
pub(super) struct FigureCard {
    name: &'static str,
    value: String,
    pub(super) note: Option<String>,
}

impl FigureCard {
    pub(super) fn new(name: &'static str, value: impl Into<String>) -> FigureCard {
        FigureCard {
            name,
            value: value.into(),
            note: None,
        }
    }
}

/// The facts in the header of a page: target, and how the measurement was made.
#[derive(Default)]
pub(super) struct PageFacts {
    pub(super) target: Option<String>,
    pub(super) conditions: Vec<(&'static str, String)>,
}

impl PageFacts {
    /// Returns the facts of a run.
    pub(super) fn from_run(run: &Run) -> PageFacts {
        let h = &run.header;
        let how = facts::describe_setup(h);
        let version = h.tls.as_ref().map(|tls| format_version(&tls.version));
        let mut made = vec![("began", facts::format_time(h.started_at))];
        if !how.is_empty() {
            made.push(("load", how.join(", ")));
        }
        made.extend(version.map(|version| ("negotiated", version)));
        made.push(("labels", facts::format_labels(&h.labels)));
        made.extend(
            h.machine
                .as_ref()
                .map(|m| ("machine", facts::describe_machine(m))),
        );
        made.push(("measured by", format!("plimsoll {}", h.tool_version)));
        made.retain(|(_, text)| !text.is_empty());
        PageFacts {
            target: h.target.clone(),
            conditions: made,
        }
    }

    /// Returns the facts of a ladder or a sweep.
    pub(super) fn from_ladder(target: Option<&str>, record: &LadderRecord) -> PageFacts {
        let (conditions, began) = (record.conditions.as_ref(), record.started_at);
        let mut facts = PageFacts::from_record(target, began, conditions, &record.tool_version);
        let tls = record.client_tls.clone();
        facts
            .conditions
            .extend(tls.map(|tls| ("TLS of the client", tls)));
        facts
    }

    /// Returns the facts of several runs that belong to one record.
    pub(super) fn from_record(
        target: Option<&str>,
        began: Timestamp,
        conditions: Option<&CommonConditions>,
        tool_version: &str,
    ) -> PageFacts {
        let mut made = vec![("began", facts::format_time(began))];
        if let Some(c) = conditions {
            let load = facts::describe_arrivals(c.load_loop, c.arrivals.as_deref(), c.clients);
            made.extend(load.map(|load| ("load", load)));
            let labels = facts::format_labels(&c.labels);
            made.extend((!labels.is_empty()).then_some(("labels", labels)));
            made.push(("machine", facts::describe_machine(&c.machine)));
        }
        made.push(("measured by", format!("plimsoll {tool_version}")));
        PageFacts {
            target: target.map(str::to_owned),
            conditions: made,
        }
    }
}

/// Returns the verdict in words, with a few figures.
pub(super) fn verdict(
    tone: VerdictTone,
    label: &str,
    heading: &str,
    facts: &PageFacts,
    cards: &[FigureCard],
    sentences: &[String],
) -> Markup {
    html! {
        section class={ "verdict " (tone.class()) } {
            p.badge { span.sign aria-hidden="true" { (tone.symbol()) } " " (label) }
            h1 { (heading) }
            @if let Some(target) = &facts.target { p.target { (target) } }
            @if !facts.conditions.is_empty() {
                dl.facts { @for (name, text) in &facts.conditions { div { dt { (name) } dd { (text) } } } }
            }
            dl.cards {
                @for card in cards {
                    div {
                        dt { (card.name) }
                        dd { (card.value) @if let Some(note) = &card.note { small { (note) } } }
                    }
                }
            }
            @if !sentences.is_empty() {
                ul.sentences { @for sentence in sentences { li { (sentence) } } }
            }
        }
    }
}

/// Returns a section with a heading and an explanation.
pub(super) fn section(heading: &str, lead: &str, content: &Markup) -> Markup {
    html! {
        section {
            h2 { (heading) }
            @if !lead.is_empty() { p.lead { (lead) } }
            (content)
        }
    }
}

/// Returns a chart with these heights for wide and for narrow screens, and its figures in a table below it.
pub(super) fn chart_with_table(
    heights: [f64; 2],
    legend: &Markup,
    table: &Markup,
    draw: impl Fn(&PlotArea) -> Markup,
) -> Markup {
    let [wide, narrow] = heights;
    html! {
        figure {
            (legend)
            div.wide { (draw(&PlotArea::wide(wide))) }
            div.narrow { (draw(&PlotArea::narrow(narrow))) }
            details {
                summary { "The figures" }
                div.scroll { (table) }
            }
        }
    }
}

/// Returns the complete document.
pub(super) fn complete_page(title: &str, body: &Markup) -> String {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                // With this policy, the browser enforces that the page executes and loads nothing.
                meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:";
                meta name="generator" content={ "plimsoll " (env!("CARGO_PKG_VERSION")) };
                title { (title) " · Plimsoll" }
                // An empty icon keeps browsers from requesting one.
                link rel="icon" href="data:,";
                style { (PreEscaped(STYLE)) }
            }
            body {
                header { (logo()) span { "Plimsoll" } span.what { (title) } }
                main { (body) }
                footer {
                    p {
                        "Response time counts from a call's scheduled time, service time from its actual send. "
                        "A percentile that the sample can't support is a dash."
                    }
                    p { "Made by plimsoll " (env!("CARGO_PKG_VERSION")) " from the run directory alone." }
                }
            }
        }
    }
    .into_string()
    // Boxes that scroll must be reachable by keyboard. The text of runs is escaped, so only the page's own markup can
    // match.
    .replace(
        "<div class=\"scroll\">",
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"scrolls sideways\">",
    )
}

/// Returns the logo: a ring with a line through it (the load line).
fn logo() -> Markup {
    html! {
        svg class="mark" viewBox="0 0 32 32" width="28" height="28" aria-hidden="true" {
            circle cx="16" cy="16" r="9.5" fill="none" stroke="currentColor" stroke-width="3" {}
            path d="M1 16H31" stroke="currentColor" stroke-width="3" {}
        }
    }
}

const STYLE: &str = include_str!("style.css");
