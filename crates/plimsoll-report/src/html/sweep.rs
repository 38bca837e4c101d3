//! The page of a sweep: the throughput of each TLS configuration, and the share of CPU time that cryptography takes.

use std::path::Path;

use maud::{Markup, html};
use plimsoll_model::comparisons::ladder::LadderRecord;
use plimsoll_model::comparisons::ladder::throughput::IntervalEstimate;
use plimsoll_model::crypto_speeds::CryptoSpeeds;
use plimsoll_model::objective::RunVerdict;

use super::bars::{BarChart, BarRow, BarSegment};
use super::chart::format_tick;
use super::page::{self, FigureCard, PageFacts, VerdictTone, chart_with_table, section as part};
use super::tables;
use crate::quantity::{count, rate};
use crate::sections::table::TextTable;
use crate::sweep::links::{SweepConfiguration, sweep_configurations};
use crate::sweep::{
    describe_limit, format_estimate, format_in_unit, format_percent, format_speed, notes, table,
};

type SweepFigure = fn(&SweepConfiguration) -> Option<IntervalEstimate>;
/// Formats a figure with its unit.
type FormatFigure = fn(f64) -> String;

/// A chart of one figure of each configuration.
struct SweepChart {
    name: &'static str,
    axis: &'static str,
    figure: SweepFigure,
    format: FormatFigure,
    /// Formats a figure at a tick of the axis.
    format_tick: FormatFigure,
}

const SWEEP_CHARTS: [SweepChart; 4] = [
    SweepChart {
        name: "Bytes a second",
        axis: "of files, received",
        figure: |link| link.speed,
        format: format_speed,
        format_tick: |bytes_per_s| format_in_unit(bytes_per_s, format_tick),
    },
    SweepChart {
        name: "Files a second",
        axis: "fetched; if new or resumed, connections",
        figure: |link| link.files,
        format: rate,
        format_tick: rate,
    },
    crypto_share_chart("The client's CPU: share of cryptography", |link| {
        link.client_share
    }),
    crypto_share_chart("The server's CPU: share of cryptography", |link| {
        link.server_share
    }),
];

const fn crypto_share_chart(name: &'static str, of: SweepFigure) -> SweepChart {
    SweepChart {
        name,
        axis: "of its CPU, cryptography alone (measured in memory)",
        figure: of,
        format: format_percent,
        format_tick: |share| format!("{} %", format_tick(share * 100.0)),
    }
}

/// Returns the page of the sweep in `dir`. `plan`: the text of its plan.
pub(super) fn sweep_page(record: &LadderRecord, plan: &str, dir: &Path) -> String {
    let links = sweep_configurations(record);
    let body = html! {
        (verdict(record, &links))
        @for (i, measure) in SWEEP_CHARTS.iter().enumerate() { (section(measure, &links, i)) }
        (tables::table_section("The configurations", "", &table(&links)))
        @if let Some(limits) = &record.limits { (limit_section(limits)) }
        (tables::plan_section(plan, &record.name, &crate::sections::facts::rerun_command("sweep", dir)))
    };
    page::complete_page(&format!("{}: the sweep", record.name), &body)
}

fn verdict(record: &LadderRecord, links: &[SweepConfiguration]) -> Markup {
    let idle = links.iter().any(|link| link.ok == 0);
    let (tone, label) = match record.conclusion() {
        Some(RunVerdict::Fail) => (VerdictTone::Bad, "objective missed"),
        _ if record.interrupted => (VerdictTone::Uncertain, "interrupted"),
        _ if idle => (
            VerdictTone::Uncertain,
            "not every configuration fetched a file",
        ),
        Some(RunVerdict::Invalid) => (VerdictTone::Uncertain, "inconclusive"),
        Some(RunVerdict::Pass) => (VerdictTone::Good, "objectives met"),
        None => (VerdictTone::Plain, "no objective"),
    };
    let most = |of: SweepFigure| {
        let known = links
            .iter()
            .filter_map(|link| Some((link, of(link)?.value)));
        known.max_by(|a, b| a.1.total_cmp(&b.1))
    };
    let mut cards = vec![FigureCard::new("configurations", count(links.len() as u64))];
    let largest: [(&'static str, SweepFigure, FormatFigure); 2] = [
        ("most bytes a second", |link| link.speed, format_speed),
        ("most files a second", |link| link.files, rate),
    ];
    for (name, of, show) in largest {
        if let Some((link, value)) = most(of) {
            let mut card = FigureCard::new(name, show(value));
            card.note = Some(link_title(link));
            cards.push(card);
        }
    }
    let facts = PageFacts::from_ladder(None, record);
    let sentences = notes(record, links);
    page::verdict(tone, label, &record.name, &facts, &cards, &sentences)
}

/// Returns the bars of all configurations; empty if the figure is not known for any of them.
fn section(measure: &SweepChart, links: &[SweepConfiguration], colour: usize) -> Markup {
    let bars: Vec<(String, IntervalEstimate)> = links
        .iter()
        .filter_map(|link| Some((link_title(link), (measure.figure)(link)?)))
        .collect();
    if bars.is_empty() {
        return html! {};
    }
    let cells = bars
        .iter()
        .map(|(name, value)| [name.clone(), format_estimate(*value, measure.format)]);
    let figures = TextTable::new(["configuration", measure.axis], &[], cells);
    let figures = tables::table(measure.name, &figures);
    let bars = BarChart {
        lead: format!("{}:", measure.name),
        axis: measure.axis.to_owned(),
        format_tick: measure.format_tick,
        always_included: [0.0; 2],
        rows: bars
            .into_iter()
            .map(|(name, figure)| bar(measure, name, figure, colour))
            .collect(),
    };
    let picture = chart_with_table(bars.heights(), &html! {}, &figures, |frame| {
        bars.draw(frame)
    });
    part(measure.name, "", &picture)
}

fn bar(measure: &SweepChart, name: String, figure: IntervalEstimate, colour: usize) -> BarRow {
    let words = format!("{name} {}", format_estimate(figure, measure.format));
    BarRow {
        name,
        segments: vec![BarSegment {
            from: 0.0,
            to: figure.value,
            colour,
            is_pale: false,
            title: words.clone(),
        }],
        text_alternative: words,
        interval: figure.interval,
    }
}

fn limit_section(limits: &CryptoSpeeds) -> Markup {
    part("The limit", "", &html! { p { (describe_limit(limits)) } })
}

fn link_title(link: &SweepConfiguration) -> String {
    format!("{}, {}", link.title(), link.size_text())
}
