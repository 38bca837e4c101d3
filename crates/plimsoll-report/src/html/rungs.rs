//! The ladder's picture: what each rung adds to the first, with intervals.

use maud::{Markup, html};
use plimsoll_model::ladder::{Added, LadderRecord, Metric};

use super::chart::{Frame, Scale, px, short_time, x_axis};
use super::page::{figure, section as part};
use super::tables;
use crate::ladder::{Group, added, groups, metrics, prices, row};

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
            (tables::table("The price of a new connection: CPU, what the cryptography takes of it in memory on this machine, and what a thousand a second take", head, &[], rows))
        }
        @for (n, group) in groups(ladder).iter().enumerate() {
            (figures(ladder, group, n == 0))
            (differences(ladder, group, n == 0))
        }
    }
}

fn figures(ladder: &LadderRecord, group: &Group, is_first: bool) -> Markup {
    let mut head = vec!["rung"];
    head.extend(group.columns.iter().map(|(_, name)| *name));
    head.extend(is_first.then_some("slices"));
    let rows = ladder.rungs.iter().map(|rung| {
        let mut row = row(rung, group.metrics());
        row.extend(is_first.then(|| rung.slices.len().to_string()));
        row
    });
    let caption = if is_first {
        "The rungs: medians of their slices"
    } else {
        group.heading
    };
    tables::table(caption, &head, &[], rows)
}

fn differences(ladder: &LadderRecord, group: &Group, is_first: bool) -> Markup {
    let mut head = vec!["rung", "to"];
    head.extend(group.columns.iter().map(|(_, name)| *name));
    let texts: Vec<usize> = (1..head.len()).collect();
    let rows = LadderRecord::pairs(ladder.rungs.len()).map(|(of, to)| {
        let names = [of, to].map(|rung| ladder.rungs[rung].name.clone());
        let added = group
            .columns
            .iter()
            .map(|(m, _)| added(*m, ladder.added(of, to, *m)));
        names.into_iter().chain(added).collect::<Vec<_>>()
    });
    let caption = match is_first {
        true => "What each adds, with intervals that hold together (95 %)".to_owned(),
        false => format!("What each adds: {}", group.heading),
    };
    tables::table(&caption, &head, &texts, rows)
}
