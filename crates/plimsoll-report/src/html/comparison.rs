//! Two groups of runs on one page: what differs, with intervals, and the runs themselves.

use maud::{Markup, html};
use plimsoll_model::record::StageRecord;
use plimsoll_model::run::State;

use super::View;
use super::chart::{Frame, Key, Scale, legend, px, round, x_axis};
use super::page::{self, Card, Facts, Tone, figure, page, section as part};
use super::spectrum::{self, Calls};
use super::tables;
use super::tables::wide;
use crate::compare::{Comparison, Row};
use crate::quantity::{or_dash, rate, share, signed, time};

const ROW: f64 = 42.0;

/// The page of a comparison of the runs `a` with the runs `b`.
pub fn comparison(c: &Comparison, a: &[View], b: &[View]) -> String {
    let body = html! {
        (verdict(c))
        (differences(c))
        (spectrum::section(&[together("A", a), together("B", b)]))
        (part("The figures", &c.method(), &html! { div.scroll { (table(c)) } }))
        (plans(c))
        (runs(a, b))
        @for (name, side) in [("A", a), ("B", b)] {
            @if let Some(first) = side.first() { (tables::plan(&first.run.plan, name, &tables::again("run", &first.run.dir))) }
        }
    };
    page(&format!("{} against {}", c.a.name, c.b.name), &body)
}

/// Histograms of a side, added up.
fn together(name: &str, side: &[View]) -> Calls {
    let mut record = StageRecord::default();
    for view in side {
        record.merge(&view.run.measured());
    }
    Calls {
        name: name.to_owned(),
        record,
    }
}

fn verdict(c: &Comparison) -> Markup {
    let names = |word: &str| -> Vec<&str> {
        let is = |row: &&Row| row.word() == word;
        c.rows.iter().filter(is).map(|row| row.metric).collect()
    };
    let (better, worse) = (names("better"), names("worse"));
    let (tone, label) = match () {
        () if !c.warnings.is_empty() => (Tone::Unsure, "beware"),
        () if !c.enough_runs() => (Tone::Plain, "not enough runs to tell"),
        () if !worse.is_empty() && !better.is_empty() => (Tone::Unsure, "better and worse"),
        () if !worse.is_empty() => (Tone::Bad, "B is worse"),
        () if !better.is_empty() => (Tone::Good, "B is better"),
        () => (Tone::Plain, "no difference seen"),
    };
    let cards: Vec<Card> = c
        .rows
        .iter()
        .filter(|row| {
            [
                "response p50",
                "response p99",
                "t_total p50",
                "t_total p99",
                "client CPU a call",
                "rate achieved",
            ]
            .contains(&row.metric)
        })
        .map(|row| {
            let mut card = Card::new(row.metric, row.unit.show(row.b));
            let percent = row
                .percent()
                .map_or_else(String::new, |p| format!(" ({p} %)"));
            card.note = Some(format!("A: {}{percent}", row.unit.show(row.a)));
            card
        })
        .collect();
    let mut sentences = c.warnings.clone();
    for (word, names) in [("better", &better), ("worse", &worse)] {
        if !names.is_empty() {
            sentences.push(format!("B is {word} in {}", names.join(", ")));
        }
    }
    if !c.enough_runs() {
        sentences.push(c.method());
    }
    let sides = format!("A: {} · B: {}", c.a.words(), c.b.words());
    let heading = if c.a.name == c.b.name {
        c.a.name.clone()
    } else {
        format!("{} against {}", c.b.name, c.a.name)
    };
    let facts = Facts {
        target: Some(sides),
        ..Facts::default()
    };
    page::verdict(tone, label, &heading, &facts, &cards, &sentences)
}

/// Every metric's difference, in per cent of A, as a bar with its interval.
fn differences(c: &Comparison) -> Markup {
    let rows: Vec<&Row> = c
        .rows
        .iter()
        .filter(|row| row.relative().is_some())
        .collect();
    if rows.is_empty() {
        return html! {};
    }
    let height = 50.0 + ROW * rows.len() as f64;
    let entries = [
        ("better".to_owned(), 2, Key::Block),
        ("worse".to_owned(), 4, Key::Block),
        ("can't be told apart from chance".to_owned(), 5, Key::Block),
    ];
    let picture = figure(
        &draw(&Frame::wide(height), &rows),
        &draw(&Frame::narrow(height), &rows),
        &legend(&entries),
        &table(c),
    );
    part(
        "What differs",
        "B less A, in per cent of A, with its 95 % interval where there are enough runs. To the left B has less of it.",
        &picture,
    )
}

fn draw(frame: &Frame, rows: &[&Row]) -> Markup {
    let frame = Frame {
        left: 12.0,
        top: 4.0,
        ..*frame
    };
    let bounds = |row: &Row| {
        let shift = row.relative().unwrap_or(0.0) * 100.0;
        let of = |v: f64| v / row.a * 100.0;
        let (low, high) = row
            .difference
            .map_or((shift, shift), |d| (of(d.low), of(d.high)));
        (shift, low, high)
    };
    let (low, high) = rows.iter().fold((-1.0_f64, 1.0_f64), |(low, high), row| {
        let (shift, l, h) = bounds(row);
        (low.min(shift).min(l), high.max(shift).max(h))
    });
    let room = (high - low) * 0.04;
    let x = Scale::linear(low - room, high + room, frame.left, frame.x_end());
    let ticks: Vec<(f64, String)> = x
        .ticks(if frame.is_narrow() { 5 } else { 9 })
        .into_iter()
        .map(|percent| (x.at(percent), signed_percent(percent)))
        .collect();
    let zero = px(x.at(0.0));
    let label = rows
        .iter()
        .map(|row| {
            format!(
                "{}: {} %, {}",
                row.metric,
                row.percent().unwrap_or_default(),
                row.word()
            )
        })
        .collect::<Vec<_>>()
        .join("; ");
    frame.svg(
        &format!("B less A, in per cent of A. {label}"),
        &html! {
            @for (at, _) in &ticks { path class="grid" d={ "M" (px(*at)) " " (frame.top) "V" (px(frame.y_end())) } {} }
            @for (i, row) in rows.iter().enumerate() {
                @let top = frame.top + ROW * i as f64;
                @let (shift, low, high) = bounds(row);
                @let (from, to) = (x.at(shift.min(0.0)), x.at(shift.max(0.0)));
                @let middle = px(top + 26.5);
                text class="strong" x=(frame.left) y=(px(top + 14.0)) {
                    (row.metric) ": " (row.unit.show(row.a)) " → " (row.unit.show(row.b))
                }
                g class={ "c" (colour(row)) } {
                    rect class="fill" opacity=(if row.better().is_some() { "0.85" } else { "0.3" }) x=(px(from)) y=(px(top + 21.0)) rx="2"
                        width=(px((to - from).max(1.0))) height="11" {}
                    @if row.difference.is_some() {
                        path class="whisker" d={ "M" (px(x.at(low))) " " (middle) "H" (px(x.at(high)))
                            "M" (px(x.at(low))) " " (middle - 4.0) "v8M" (px(x.at(high))) " " (middle - 4.0) "v8" } {}
                    }
                }
            }
            path class="axis" d={ "M" (zero) " " (frame.top) "V" (px(frame.y_end())) } {}
            (x_axis(&frame, &ticks, "per cent of A"))
        },
    )
}

fn colour(row: &Row) -> usize {
    match row.better() {
        Some(true) => 2,
        Some(false) => 4,
        None => 5,
    }
}

fn signed_percent(percent: f64) -> String {
    let text = format!("{} %", round(percent.abs()));
    match percent {
        p if p < 0.0 => format!("−{text}"),
        p if p > 0.0 => format!("+{text}"),
        _ => "0".to_owned(),
    }
}

fn table(c: &Comparison) -> Markup {
    let caption = format!("A: {}; B: {}", c.a.words(), c.b.words());
    let head = ["", "A", "B", "B − A", "%", "95 % interval, %", "p", "B is"];
    let rows = c.rows.iter().map(|row| {
        let cells = [
            row.metric.to_owned(),
            row.unit.show(row.a),
            row.unit.show(row.b),
            signed(row.shift(), |v| row.unit.show(v)),
            or_dash(row.percent(), |percent| percent),
            or_dash(row.interval(), |interval| interval),
            or_dash(row.difference, |d| format!("{:.3}", d.p_value)),
            row.word().to_owned(),
        ];
        let class = match row.better() {
            Some(true) => "text met",
            Some(false) => "text missed",
            None => "text ",
        };
        (cells, Some(class))
    });
    tables::judged(&caption, &head, &[7], rows)
}

fn plans(c: &Comparison) -> Markup {
    if c.plan_differences.is_empty() {
        return html! {};
    }
    let value = |v: &Option<String>| v.clone().unwrap_or_else(|| "(not set)".to_owned());
    let rows = c.plan_differences.iter().map(|d| {
        let matters = if d.matters() {
            "changes what is measured"
        } else {
            ""
        };
        [d.key.clone(), value(&d.a), value(&d.b), matters.to_owned()]
    });
    let table = wide(&["key", "A", "B", ""], &[1, 2, 3], rows);
    part("Where the plans differ", "", &table)
}

fn runs(a: &[View], b: &[View]) -> Markup {
    let head = [
        "",
        "directory",
        "calls ok",
        "achieved",
        "p50",
        "p99",
        "p99.9",
        "state",
    ];
    let sides = a.iter().map(|v| ("A", v)).chain(b.iter().map(|v| ("B", v)));
    let rows = sides.map(|(name, view)| {
        let total = &view.run.summary.total;
        let [p50, p99, p99_9] =
            (total.response).map_or([None; 3], |r| [r.p50_us, r.p99_us, r.p99_9_us]);
        let cells = [
            name.to_owned(),
            view.run.dir.display().to_string(),
            share(total.ok, total.ok + total.errors),
            or_dash(total.achieved_per_s, rate),
            or_dash(p50, time),
            or_dash(p99, time),
            or_dash(p99_9, time),
            view.run.state.name().to_owned(),
        ];
        let is_whole = view.run.state == State::Complete;
        (cells, (!is_whole).then_some("text missed"))
    });
    let table = tables::judged("", &head, &[1, 7], rows);
    part("The runs", "", &html! { div.scroll { (table) } })
}
