//! The page of a sweep: throughput of each TLS configuration, and cryptography's share of CPU time.

use std::path::Path;

use maud::{Markup, html};
use plimsoll_model::ladder::LadderRecord;
use plimsoll_model::ladder::pieces::Figure;
use plimsoll_model::limits::Limits;
use plimsoll_model::objective::Conclusion;

use super::bars::{Bars, Part, Row};
use super::chart::round;
use super::page::{self, Card, Facts, Tone, figure, section as part};
use super::tables;
use crate::quantity::{count, rate};
use crate::sweep::links::{Link, links};
use crate::sweep::{in_unit, notes, percent, speed, spread, table, wall};
use crate::table::Table;

type Of = fn(&Link) -> Option<Figure>;
/// Formats a figure with its unit.
type Show = fn(f64) -> String;

/// A chart of one figure of each configuration.
struct Measure {
    name: &'static str,
    axis: &'static str,
    of: Of,
    show: Show,
    /// Formats a figure at a tick of the axis.
    tick: Show,
}

const MEASURES: [Measure; 4] = [
    Measure {
        name: "Bytes a second",
        axis: "of files, received",
        of: |link| link.speed,
        show: speed,
        tick: |bytes_per_s| in_unit(bytes_per_s, round),
    },
    Measure {
        name: "Files a second",
        axis: "fetched; of new and resumed links, connections",
        of: |link| link.files,
        show: rate,
        tick: rate,
    },
    share("The client's CPU: share of cryptography", |link| {
        link.client_share
    }),
    share("The server's CPU: share of cryptography", |link| {
        link.server_share
    }),
];

const fn share(name: &'static str, of: Of) -> Measure {
    Measure {
        name,
        axis: "of its CPU, the part of cryptography alone, measured in memory",
        of,
        show: percent,
        tick: |share| format!("{} %", round(share * 100.0)),
    }
}

/// Returns the page. `plan`: the text of the plan, stored in `dir`.
pub(super) fn page(record: &LadderRecord, plan: &str, dir: &Path) -> String {
    let links = links(record);
    let body = html! {
        (verdict(record, &links))
        @for (i, measure) in MEASURES.iter().enumerate() { (section(measure, &links, i)) }
        (tables::shown("The links", "", &table(&links)))
        @if let Some(limits) = &record.limits { (limit(limits)) }
        (tables::plan(plan, &record.name, &tables::again("sweep", dir)))
    };
    page::page(&format!("{}: the sweep", record.name), &body)
}

fn verdict(record: &LadderRecord, links: &[Link]) -> Markup {
    let idle = links.iter().any(|link| link.ok == 0);
    let (tone, label) = match record.conclusion() {
        Some(Conclusion::Fail) => (Tone::Bad, "objective missed"),
        _ if record.interrupted => (Tone::Unsure, "interrupted"),
        _ if idle => (Tone::Unsure, "not every link fetched a file"),
        Some(Conclusion::Invalid) => (Tone::Unsure, "inconclusive"),
        Some(Conclusion::Pass) => (Tone::Good, "objectives met"),
        None => (Tone::Plain, "no objective"),
    };
    let most = |of: Of| {
        let known = links
            .iter()
            .filter_map(|link| Some((link, of(link)?.value)));
        known.max_by(|a, b| a.1.total_cmp(&b.1))
    };
    let mut cards = vec![Card::new("links", count(links.len() as u64))];
    let largest: [(&'static str, Of, Show); 2] = [
        ("most bytes a second", |link| link.speed, speed),
        ("most files a second", |link| link.files, rate),
    ];
    for (name, of, show) in largest {
        if let Some((link, value)) = most(of) {
            let mut card = Card::new(name, show(value));
            card.note = Some(titled(link));
            cards.push(card);
        }
    }
    let facts = Facts::of_ladder(None, record);
    let sentences = notes(record, links);
    page::verdict(tone, label, &record.name, &facts, &cards, &sentences)
}

/// Returns the bars of all configurations; nothing if the figure is known of none.
fn section(measure: &Measure, links: &[Link], colour: usize) -> Markup {
    let bars: Vec<(String, Figure)> = links
        .iter()
        .filter_map(|link| Some((titled(link), (measure.of)(link)?)))
        .collect();
    if bars.is_empty() {
        return html! {};
    }
    let cells = bars
        .iter()
        .map(|(name, value)| [name.clone(), spread(*value, measure.show)]);
    let figures = Table::new(["link", measure.axis], &[], cells);
    let figures = tables::table(measure.name, &figures);
    let bars = Bars {
        lead: format!("{}:", measure.name),
        axis: measure.axis.to_owned(),
        tick: measure.tick,
        least: [0.0; 2],
        rows: bars
            .into_iter()
            .map(|(name, figure)| bar(measure, name, figure, colour))
            .collect(),
    };
    let picture = figure(bars.heights(), &html! {}, &figures, |frame| {
        bars.draw(frame)
    });
    part(measure.name, "", &picture)
}

fn bar(measure: &Measure, name: String, figure: Figure, colour: usize) -> Row {
    let words = format!("{name} {}", spread(figure, measure.show));
    Row {
        name,
        parts: vec![Part {
            from: 0.0,
            to: figure.value,
            colour,
            pale: false,
            title: words.clone(),
        }],
        words,
        interval: figure.interval,
    }
}

fn limit(limits: &Limits) -> Markup {
    part("The limit", "", &html! { p { (wall(limits)) } })
}

fn titled(link: &Link) -> String {
    format!("{}, {}", link.title(), link.size_text())
}
