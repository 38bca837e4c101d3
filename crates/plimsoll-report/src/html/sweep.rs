//! The page of a sweep: what each TLS link carried, and how much of the CPU was cryptography.

use std::path::Path;

use maud::{Markup, html};
use plimsoll_model::ladder::LadderRecord;
use plimsoll_model::ladder::pieces::Figure;
use plimsoll_model::limits::Limits;
use plimsoll_model::objective::Conclusion;

use super::chart::{Frame, Scale, px, round, x_axis};
use super::page::{self, Card, Facts, Tone, figure, section as part};
use super::tables;
use crate::quantity::{count, or_dash, rate, time};
use crate::sweep::links::{Link, links};
use crate::sweep::{notes, spread, wall};

const ROW: f64 = 40.0;

type Of = fn(&Link) -> Option<Figure>;
/// Writes a figure with its unit.
type Show = fn(f64) -> String;

/// What a picture shows of each link.
struct Measure {
    name: &'static str,
    axis: &'static str,
    of: Of,
    show: Show,
    /// On the axis.
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
    Measure {
        name: "The client's CPU: share of cryptography",
        axis: "of its CPU, what cryptography alone takes in memory",
        of: |link| link.client_share,
        show: percent,
        tick: |share| format!("{} %", round(share * 100.0)),
    },
    Measure {
        name: "The server's CPU: share of cryptography",
        axis: "of its CPU, what cryptography alone takes in memory",
        of: |link| link.server_share,
        show: percent,
        tick: |share| format!("{} %", round(share * 100.0)),
    },
];

/// The page. `plan`: the text of its plan, kept in `dir`.
pub(super) fn page(record: &LadderRecord, plan: &str, dir: &Path) -> String {
    let links = links(record);
    let body = html! {
        (verdict(record, &links))
        @for (i, measure) in MEASURES.iter().enumerate() { (section(measure, &links, i)) }
        (part("The links", "", &html! { div.scroll { (table(&links)) } }))
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
        _ if idle => (Tone::Unsure, "not every link carried a file"),
        Some(Conclusion::Invalid) => (Tone::Unsure, "not every objective can be judged"),
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
    let mut facts = Facts::of_record(
        None,
        record.started_at,
        record.conditions.as_ref(),
        &record.tool_version,
    );
    let tls = record.client_tls.clone();
    facts.made.extend(tls.map(|tls| ("TLS of the client", tls)));
    let sentences = notes(record, links);
    page::verdict(tone, label, &record.name, &facts, &cards, &sentences)
}

/// Bars of all links; nothing where it is known of none.
fn section(measure: &Measure, links: &[Link], colour: usize) -> Markup {
    let bars: Vec<(String, Figure)> = links
        .iter()
        .filter_map(|link| Some((titled(link), (measure.of)(link)?)))
        .collect();
    if bars.is_empty() {
        return html! {};
    }
    let height = 48.0 + ROW * bars.len() as f64;
    let cells = bars
        .iter()
        .map(|(name, value)| [name.clone(), spread(*value, measure.show)]);
    let figures = tables::table(measure.name, &["link", measure.axis], &[], cells);
    let draw = |frame: &Frame| draw(frame, measure, &bars, colour);
    let picture = figure(
        &draw(&Frame::wide(height)),
        &draw(&Frame::narrow(height)),
        &html! {},
        &figures,
    );
    part(measure.name, "", &picture)
}

fn draw(frame: &Frame, measure: &Measure, bars: &[(String, Figure)], colour: usize) -> Markup {
    let frame = Frame {
        left: 18.0,
        top: 4.0,
        right: 30.0,
        ..*frame
    };
    let end = |figure: &Figure| figure.interval.map_or(figure.value, |[_, high]| high);
    let most = bars
        .iter()
        .map(|(_, figure)| end(figure))
        .fold(0.0, f64::max);
    let x = Scale::linear(0.0, most * 1.04, frame.left, frame.x_end());
    let ticks: Vec<(f64, String)> = x
        .ticks(if frame.is_narrow() { 3 } else { 8 })
        .into_iter()
        .map(|value| (x.at(value), (measure.tick)(value)))
        .collect();
    let words: Vec<String> = bars
        .iter()
        .map(|(name, value)| format!("{name} {}", spread(*value, measure.show)))
        .collect();
    frame.svg(
        &format!("{}: {}", measure.name, words.join("; ")),
        &html! {
            @for (at, _) in &ticks { path class="grid" d={ "M" (px(*at)) " " (frame.top) "V" (px(frame.y_end())) } {} }
            @for (row, (name, figure)) in bars.iter().enumerate() {
                @let y = frame.top + ROW * row as f64;
                text class="strong" x=(frame.left) y=(px(y + 14.0)) { (name) }
                rect class={ "fill c" (colour % 6) } opacity="0.8" x=(frame.left) y=(px(y + 20.0)) rx="2"
                    width=(px((x.at(figure.value) - frame.left).max(1.0))) height="11" { title { (words[row]) } }
                @if let Some([low, high]) = figure.interval {
                    path class="whisker" d={ "M" (px(x.at(low))) " " (px(y + 25.5)) "H" (px(x.at(high))) } {}
                }
            }
            (x_axis(&frame, &ticks, measure.axis))
        },
    )
}

fn table(links: &[Link]) -> Markup {
    let known = |of: Option<Figure>, show: Show| or_dash(of, |figure| spread(figure, show));
    let head = [
        "link",
        "size",
        "files",
        "bytes",
        "client CPU a file",
        "server CPU a file",
        "full handshakes",
        "resumed",
        "of the limit, client",
        "server",
    ];
    let rows = links.iter().map(|link| {
        [
            link.title(),
            link.size_text(),
            known(link.files, rate),
            known(link.speed, speed),
            or_dash(link.client.us(link.ok), time),
            or_dash(link.server.us(link.ok), time),
            count(link.full),
            count(link.resumed),
            known(link.client_share, percent),
            known(link.server_share, percent),
        ]
    });
    tables::table("", &head, &[], rows)
}

fn limit(limits: &Limits) -> Markup {
    part("The limit", "", &html! { p { (wall(limits)) } })
}

fn titled(link: &Link) -> String {
    format!("{}, {}", link.title(), link.size_text())
}

fn speed(bytes_per_s: f64) -> String {
    in_unit(bytes_per_s, |value| {
        let digits = usize::from(value < 100.0 && value.fract() > 0.0);
        format!("{value:.digits$}")
    })
}

/// Decimal, as links are sold.
fn in_unit(bytes_per_s: f64, show: fn(f64) -> String) -> String {
    let (value, unit) = match bytes_per_s {
        b if b >= 1e9 => (b / 1e9, "GB/s"),
        b if b >= 1e6 => (b / 1e6, "MB/s"),
        b if b >= 1e3 => (b / 1e3, "kB/s"),
        b => (b, "B/s"),
    };
    format!("{} {unit}", show(value))
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}
