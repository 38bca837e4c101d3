//! The ladder's picture: what each rung adds to the first, with intervals.

use maud::{Markup, html};
use plimsoll_model::ladder::{Added, LadderRecord, Metric};

use super::chart::{Frame, Scale, px, short_time, x_axis};
use super::page::{figure, section as part};
use crate::ladder::{added, groups, metrics, prices, show};

const ROW: f64 = 44.0;

pub(super) fn section(ladder: &LadderRecord) -> Markup {
    let shown: Vec<Metric> = metrics(ladder)
        .into_iter()
        .filter(|m| matches!(m, Metric::P50 | Metric::P99))
        .collect();
    if ladder.rungs.len() < 2 || shown.is_empty() {
        return html! {};
    }
    // A scale for each: tails are of another order than medians.
    let height = 52.0 + ROW * (ladder.rungs.len() - 1) as f64;
    let pictures = |frame: &dyn Fn(f64) -> Frame| {
        html! {
            @for (i, metric) in shown.iter().enumerate() {
                h3 { "at the " (metric.name()) }
                (draw(&frame(height), ladder, *metric, i))
            }
        }
    };
    let picture = figure(
        &pictures(&Frame::wide),
        &pictures(&Frame::narrow),
        &html! {},
        &table(ladder),
    );
    part(
        "What each rung adds",
        match ladder.turns {
            Some(_) => {
                "What each rung adds to the time of a call, from when it was sent, over the first rung: bars with their intervals. A pale bar is a difference that chance alone could make."
            }
            None => {
                "The response time that each rung adds to the first, as bars with their intervals. A pale bar is a difference that chance alone could make."
            }
        },
        &picture,
    )
}

fn draw(frame: &Frame, ladder: &LadderRecord, metric: Metric, colour: usize) -> Markup {
    let frame = Frame {
        left: 12.0,
        top: 4.0,
        ..*frame
    };
    let rows: Vec<Added> = (1..ladder.rungs.len())
        .map(|of| ladder.added(of, 0, metric))
        .collect();
    let bounds = rows.iter().filter_map(|a| match a {
        Added::Clear(d) | Added::NoneSeen(d) => Some((d.low, d.high)),
        Added::Counted(_) | Added::TooFew => None,
    });
    let (low, high) = bounds.fold((0.0_f64, 1.0_f64), |(l, h), (a, b)| (l.min(a), h.max(b)));
    let room = (high - low) * 0.04;
    let left = if low < 0.0 { low - room } else { 0.0 };
    let x = Scale::linear(left, high + room, frame.left, frame.x_end());
    let ticks: Vec<(f64, String)> = x
        .ticks(if frame.is_narrow() { 4 } else { 9 })
        .into_iter()
        .map(|us| (x.at(us), signed(us)))
        .collect();
    let label = (1..ladder.rungs.len())
        .map(|of| format!("{}: {}", ladder.rungs[of].name, added(metric, rows[of - 1])))
        .collect::<Vec<_>>()
        .join("; ");
    let zero = px(x.at(0.0));
    frame.svg(
        &format!("What each rung adds to {}. {label}", ladder.rungs[0].name),
        &html! {
            @for (at, _) in &ticks { path class="grid" d={ "M" (px(*at)) " " (frame.top) "V" (px(frame.y_end())) } {} }
            @for (of, rung) in ladder.rungs.iter().enumerate().skip(1) {
                text class="strong" x=(frame.left) y=(px(frame.top + ROW * (of - 1) as f64 + 15.0)) { (rung.name) }
            }
            @for (row, a) in rows.iter().enumerate() {
                (bar(&x, frame.top + ROW * row as f64 + 22.0, colour, *a, &added(metric, *a)))
            }
            path class="axis" d={ "M" (zero) " " (frame.top) "V" (px(frame.y_end())) } {}
            (x_axis(&frame, &ticks, &format!("added to {}", ladder.rungs[0].name)))
        },
    )
}

fn bar(x: &Scale, y: f64, colour: usize, added: Added, words: &str) -> Markup {
    let (d, opacity) = match added {
        Added::Clear(d) => (d, "0.85"),
        Added::NoneSeen(d) => (d, "0.25"),
        Added::Counted(_) | Added::TooFew => return html! {},
    };
    let (zero, end) = (x.at(0.0), x.at(d.shift));
    let (low, high) = (px(x.at(d.low)), px(x.at(d.high)));
    let middle = px(y + 5.5);
    html! {
        g class={ "c" (colour) } {
            title { (words) }
            rect class="fill" opacity=(opacity) x=(px(zero.min(end))) y=(px(y)) rx="2"
                width=(px((end - zero).abs().max(1.0))) height="11" {}
            path class="whisker" d={ "M" (low) " " (middle) "H" (high) "M" (low) " " (middle - 4.0) "v8M" (high) " " (middle - 4.0) "v8" } {}
        }
    }
}

/// A round difference with its sign.
fn signed(us: f64) -> String {
    match us {
        v if v < 0.0 => format!("−{}", short_time(-v)),
        v if v > 0.0 => format!("+{}", short_time(v)),
        _ => "0".to_owned(),
    }
}

/// The rungs' own figures, and every difference.
pub(super) fn table(ladder: &LadderRecord) -> Markup {
    html! {
        @if let Some((head, rows)) = prices(ladder) {
            table {
                caption { "The price of a new connection: CPU, what the cryptography takes of it in memory on this machine, and what a thousand a second take" }
                thead { tr { @for name in head { th scope="col" { (name) } } } }
                tbody { @for row in &rows {
                    tr { @for (i, cell) in row.iter().enumerate() { @if i == 0 { th scope="row" { (cell) } } @else { td { (cell) } } } }
                } }
            }
        }
        @for (n, group) in groups(ladder).iter().enumerate() {
            table {
                caption { @if n == 0 { "The rungs: medians of their slices" } @else { (group.heading) } }
                thead { tr { th scope="col" { "rung" } @for (_, name) in &group.columns { th scope="col" { (name) } } @if n == 0 { th scope="col" { "slices" } } } }
                tbody { @for rung in &ladder.rungs {
                    tr {
                        th scope="row" { (rung.name) }
                        @for (m, _) in &group.columns { td { (rung.median(*m).map_or_else(|| "–".to_owned(), |v| show(*m, v))) } }
                        @if n == 0 { td { (rung.slices.len()) } }
                    }
                } }
            }
            table {
                caption { @if n == 0 { "What each adds, with intervals that hold together (95 %)" } @else { "What each adds: " (group.heading) } }
                thead { tr { th scope="col" { "rung" } th.text scope="col" { "to" } @for (_, name) in &group.columns { th.text scope="col" { (name) } } } }
                tbody {
                    @for of in 1..ladder.rungs.len() {
                        @for to in [of - 1, 0].into_iter().take(if of == 1 { 1 } else { 2 }) {
                            tr {
                                th scope="row" { (ladder.rungs[of].name) } td.text { (ladder.rungs[to].name) }
                                @for (m, _) in &group.columns { td.text { (added(*m, ladder.added(of, to, *m))) } }
                            }
                        }
                    }
                }
            }
        }
    }
}
