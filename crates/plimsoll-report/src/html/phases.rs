//! The setup of connections: the mean time of each phase, stacked.
//!
//! Means can be added, but percentiles can't, so the chart shows means; the table also shows the percentiles.

use maud::{Markup, html};
use plimsoll_model::runs::run::TimesSummary;
use plimsoll_model::runs::run::summary::PhasesSummary;

use super::RunView;
use super::bars::{BarChart, BarRow, BarSegment};
use super::chart::{LegendKey, format_short_time, legend};
use super::page::{chart_with_table, section as part};
use super::tables::times_table;
use crate::quantity::time;

const PHASE_NAMES: [&str; 5] = [
    "resolve",
    "TCP connect",
    "TLS handshake",
    "ready (the protocol's greeting)",
    "first call",
];

/// The mean of each phase over the connections of one run, in µs.
struct PhaseMeans {
    name: String,
    means: [f64; PHASE_NAMES.len()],
}

impl PhaseMeans {
    fn from_phases(view: &RunView, phases: &PhasesSummary) -> Option<PhaseMeans> {
        let connections = phases.connection?;
        // On connections without a phase, the phase counts as zero.
        let mean = |times: Option<TimesSummary>| {
            times.map_or(0.0, |t| {
                t.mean_us * t.count as f64 / connections.count as f64
            })
        };
        let service = view.run.summary.total.service;
        let call = service.filter(|_| view.run.header.cold);
        Some(PhaseMeans {
            name: view.run.header.name.clone(),
            means: [
                mean(phases.resolve),
                mean(phases.connect),
                mean(phases.handshake),
                mean(phases.ready),
                call.map_or(0.0, |t| t.mean_us),
            ],
        })
    }

    fn bar_row(&self) -> BarRow {
        let mut parts: Vec<BarSegment> = Vec::new();
        for (colour, (phase, mean)) in PHASE_NAMES.iter().zip(self.means).enumerate() {
            let from = parts.last().map_or(0.0, |before| before.to);
            if mean > 0.0 {
                parts.push(BarSegment {
                    from,
                    to: from + mean,
                    colour,
                    is_pale: false,
                    title: format!("{phase} {}", time(mean)),
                });
            }
        }
        let titles: Vec<&str> = parts.iter().map(|part| part.title.as_str()).collect();
        BarRow {
            name: format!("{}: {}", self.name, time(self.means.iter().sum())),
            text_alternative: format!("{}: {}", self.name, titles.join(", ")),
            segments: parts,
            interval: None,
        }
    }
}

pub(super) fn section(views: &[RunView]) -> Markup {
    let mut bars = Vec::new();
    let mut rows = Vec::new();
    for view in views {
        let Some(phases) = view.run.summary.phases() else {
            continue;
        };
        bars.extend(PhaseMeans::from_phases(view, phases));
        for (what, times) in [
            ("resolve", phases.resolve),
            ("connect", phases.connect),
            ("TLS handshake", phases.handshake),
            ("ready", phases.ready),
            ("connection in all", phases.connection),
            ("connection and first call", phases.cold_total),
        ] {
            rows.extend(times.map(|t| (view.with_run_name(what), t)));
        }
    }
    if bars.is_empty() {
        return html! {};
    }
    let entries: Vec<(String, usize, LegendKey)> = PHASE_NAMES
        .iter()
        .enumerate()
        .filter(|(phase, _)| bars.iter().any(|b| b.means[*phase] > 0.0))
        .map(|(phase, name)| ((*name).to_owned(), phase, LegendKey::Block))
        .collect();
    let bars = BarChart {
        lead: "The phases of connections, means.".to_owned(),
        axis: "mean time".to_owned(),
        format_tick: format_short_time,
        always_included: [0.0, 1.0],
        rows: bars.iter().map(PhaseMeans::bar_row).collect(),
    };
    let figures = times_table("The phases of connections", &rows);
    let picture = chart_with_table(bars.heights(), &legend(&entries), &figures, |frame| {
        bars.draw(frame)
    });
    part(
        "Connections",
        "What making a connection took, phase by phase: means, which add up.",
        &picture,
    )
}
