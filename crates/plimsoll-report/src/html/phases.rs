//! Making the connections: the mean time that each phase took, laid end to end.
//!
//! Means add up, percentiles do not: so the picture is of means, and the table has the rest.

use maud::{Markup, html};
use plimsoll_model::run::TimesSummary;
use plimsoll_model::run::summary::PhasesSummary;

use super::View;
use super::chart::{Frame, Key, Scale, legend, px, short_time, x_axis};
use super::page::{figure, section as part};
use super::tables::times_table;
use crate::quantity::time;

const ROW: f64 = 46.0;
const NAMES: [&str; 5] = [
    "resolve",
    "TCP connect",
    "TLS handshake",
    "ready (the protocol's greeting)",
    "first call",
];

/// One run's connections: a mean for each phase, µs.
struct Bar {
    name: String,
    means: [f64; NAMES.len()],
}

impl Bar {
    fn of(view: &View, phases: &PhasesSummary) -> Option<Bar> {
        let connections = phases.connection?;
        // A phase that did not happen on some connections took no time there.
        let mean = |times: Option<TimesSummary>| {
            times.map_or(0.0, |t| {
                t.mean_us * t.count as f64 / connections.count as f64
            })
        };
        let service = view.run.summary.total.service;
        let call = service.filter(|_| view.run.header.cold);
        Some(Bar {
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

    fn total(&self) -> f64 {
        self.means.iter().sum()
    }

    fn words(&self) -> String {
        let parts: Vec<String> = NAMES
            .iter()
            .zip(self.means)
            .filter(|(_, mean)| *mean > 0.0)
            .map(|(name, mean)| format!("{name} {}", time(mean)))
            .collect();
        format!("{}: {}", self.name, parts.join(", "))
    }
}

pub(super) fn section(views: &[View]) -> Markup {
    let mut bars = Vec::new();
    let mut rows = Vec::new();
    for view in views {
        let Some(phases) = view.run.summary.phases() else {
            continue;
        };
        bars.extend(Bar::of(view, phases));
        for (what, times) in [
            ("resolve", phases.resolve),
            ("connect", phases.connect),
            ("TLS handshake", phases.handshake),
            ("ready", phases.ready),
            ("connection in all", phases.connection),
            ("connection and first call", phases.cold_total),
        ] {
            rows.extend(times.map(|t| (view.named(what), t)));
        }
    }
    if bars.is_empty() {
        return html! {};
    }
    let entries: Vec<(String, usize, Key)> = NAMES
        .iter()
        .enumerate()
        .filter(|(phase, _)| bars.iter().any(|b| b.means[*phase] > 0.0))
        .map(|(phase, name)| ((*name).to_owned(), phase, Key::Block))
        .collect();
    let height = 46.0 + ROW * bars.len() as f64;
    let picture = figure(
        &draw(&Frame::wide(height), &bars),
        &draw(&Frame::narrow(height), &bars),
        &legend(&entries),
        &times_table("The phases of connections", &rows),
    );
    part(
        "Connections",
        "What making a connection took, phase by phase: means, which add up.",
        &picture,
    )
}

fn draw(frame: &Frame, bars: &[Bar]) -> Markup {
    let frame = Frame {
        left: 12.0,
        top: 4.0,
        ..*frame
    };
    let longest = bars.iter().map(Bar::total).fold(1.0, f64::max);
    let x = Scale::linear(0.0, longest * 1.04, frame.left, frame.x_end());
    let ticks: Vec<(f64, String)> = x
        .ticks(if frame.is_narrow() { 4 } else { 9 })
        .into_iter()
        .map(|us| (x.at(us), short_time(us)))
        .collect();
    let label = bars.iter().map(Bar::words).collect::<Vec<_>>().join("; ");
    frame.svg(
        &format!("The phases of connections, means. {label}"),
        &html! {
            @for (at, _) in &ticks { path class="grid" d={ "M" (px(*at)) " " (frame.top) "V" (px(frame.y_end())) } {} }
            @for (row, bar) in bars.iter().enumerate() {
                @let top = frame.top + ROW * row as f64;
                text class="strong" x=(frame.left) y=(px(top + 15.0)) { (bar.name) ": " (time(bar.total())) }
                (segments(&x, top + 22.0, bar))
            }
            (x_axis(&frame, &ticks, "mean time"))
        },
    )
}

fn segments(x: &Scale, y: f64, bar: &Bar) -> Markup {
    let mut from = 0.0;
    let mut parts = Vec::new();
    for (phase, mean) in bar.means.into_iter().enumerate() {
        if mean > 0.0 {
            parts.push((phase, from, from + mean));
        }
        from += mean;
    }
    html! {
        @for (phase, from, to) in parts {
            g class={ "c" (phase) } {
                rect class="fill" opacity="0.85" x=(px(x.at(from))) y=(px(y)) height="14"
                    width=(px((x.at(to) - x.at(from)).max(1.0))) {
                    title { (NAMES[phase]) " " (time(to - from)) }
                }
            }
        }
    }
}
