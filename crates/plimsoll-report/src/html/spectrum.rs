//! The percentile spectrum: latency against the share of slower calls, on a scale of 1/(1−p), which gives the tail as
//! much space as the middle.

use maud::{Markup, html};
use plimsoll_model::records::record::{StageRecord, TimeHistogram};
use plimsoll_model::statistics::quantile::is_supported;

use super::RunView;
use super::chart::{
    AxisScale, AxisTick, LegendKey, PlotArea, format_short_time, legend, round_px, svg_path,
    x_axis, x_grid, y_axis,
};
use super::page::chart_with_table;
use super::tables;
use crate::quantity::{or_dash, time};
use crate::sections::table::TextTable;

/// Number of points in each decade of the scale.
const POINTS_PER_DECADE: u32 = 24;

/// One line of the chart.
struct SpectrumLine {
    name: String,
    colour: usize,
    is_dashed: bool,
    /// The points: log₁₀ of 1/(1−p), and the time in µs.
    points: Vec<(f64, f64)>,
}

/// The calls of one run, or of several merged runs, under one name.
pub(super) struct SpectrumCalls {
    pub(super) name: String,
    pub(super) record: StageRecord,
}

/// Returns the calls of each run.
pub(super) fn calls_by_run(views: &[RunView]) -> Vec<SpectrumCalls> {
    let calls = |view: &RunView| SpectrumCalls {
        name: view.run.header.name.clone(),
        record: view.run.measured_record(),
    };
    views.iter().map(calls).collect()
}

pub(super) fn section(all: &[SpectrumCalls]) -> Markup {
    let several = all.len() > 1;
    let mut lines = Vec::new();
    for (i, SpectrumCalls { name, record }) in all.iter().enumerate() {
        let name = |what: &str| {
            if several {
                format!("{name}, {what}")
            } else {
                what.to_owned()
            }
        };
        // Each run has a colour; a single run has a colour for each kind of time.
        let service = if several { i } else { 1 };
        lines.extend(spectrum_line(
            name("response time"),
            i,
            false,
            &record.response,
        ));
        lines.extend(spectrum_line(
            name("service time"),
            service,
            true,
            &record.service,
        ));
    }
    if lines.is_empty() {
        return html! {};
    }
    let entries: Vec<(String, usize, LegendKey)> = lines
        .iter()
        .map(|l| {
            let key = if l.is_dashed {
                LegendKey::Dash
            } else {
                LegendKey::Line
            };
            (l.name.clone(), l.colour, key)
        })
        .collect();
    let picture = chart_with_table([380.0, 290.0], &legend(&entries), &table(&lines), |frame| {
        draw(frame, &lines)
    });
    super::page::section(
        "Percentiles",
        "How slow the slowest calls were: each step to the right is a tail ten times rarer. Where response and service time diverge, calls waited to be sent.",
        &picture,
    )
}

fn spectrum_line(
    name: String,
    colour: usize,
    dashed: bool,
    times: &TimeHistogram,
) -> Option<SpectrumLine> {
    let h = times.histogram()?;
    let mut points = Vec::new();
    for i in 0..=(6 * POINTS_PER_DECADE) {
        let x = f64::from(i) / f64::from(POINTS_PER_DECADE);
        let p = 1.0 - 10_f64.powf(-x);
        // Up to the median, no minimum number of samples is required.
        if p > 0.5 && !is_supported(h.len(), p) {
            break;
        }
        points.push((x, h.value_at_quantile(p).max(1) as f64 / 1e3));
    }
    (points.len() > 1).then_some(SpectrumLine {
        name,
        colour,
        is_dashed: dashed,
        points,
    })
}

const PERCENTILE_MARKS: [(f64, &str); 7] = [
    (0.0, "0 %"),
    (std::f64::consts::LOG10_2, "50 %"),
    (1.0, "90 %"),
    (2.0, "99 %"),
    (3.0, "99.9 %"),
    (4.0, "99.99 %"),
    (5.0, "99.999 %"),
];

fn draw(frame: &PlotArea, lines: &[SpectrumLine]) -> Markup {
    let all = || lines.iter().flat_map(|l| &l.points);
    let low = all().map(|p| p.1).fold(f64::INFINITY, f64::min);
    let high = all().map(|p| p.1).fold(0.0, f64::max);
    let right = all().map(|p| p.0).fold(1.0, f64::max);
    let x = AxisScale::linear(0.0, right, frame.left, frame.x_end());
    let y = AxisScale::log(low, high, frame.y_end(), frame.top);
    let marks: Vec<AxisTick> = PERCENTILE_MARKS
        .iter()
        .filter(|(at, _)| *at <= right + 1e-9)
        .filter(|(at, _)| !frame.is_narrow() || *at != 0.0)
        .map(|(at, text)| (x.position(*at), (*text).to_owned()))
        .collect();
    let slowest = lines
        .iter()
        .filter_map(|l| Some(format!("{} up to {}", l.name, time(l.points.last()?.1))))
        .collect::<Vec<_>>()
        .join("; ");
    frame.svg(
        &format!("Latency by percentile: {slowest}. The figures are in the table below."),
        &html! {
            (y_axis(frame, &y, 8, format_short_time))
            (x_grid(frame, &marks))
            (x_axis(frame, &marks, "share of calls that were at least as fast"))
            @for line in lines {
                path class={ "line stroke c" (line.colour % 6) @if line.is_dashed { " dash" } }
                    d=(svg_path(line.points.iter().map(|(px, py)| (x.position(*px), y.position(*py))))) {}
            }
            @for line in lines { (draw_hover_areas(line, &x, &y)) }
        },
    )
}

/// Draws hover areas that show the values of every other point.
fn draw_hover_areas(line: &SpectrumLine, x: &AxisScale, y: &AxisScale) -> Markup {
    html! {
        @for (at, us) in line.points.iter().step_by(2) {
            circle class={ "hover c" (line.colour % 6) } cx=(round_px(x.position(*at))) cy=(round_px(y.position(*us))) r="5" {
                title { (line.name) ", " (format_percentile_label(*at)) ": " (time(*us)) }
            }
        }
    }
}

/// Formats the percentile at a position on the scale, with as many nines as needed.
fn format_percentile_label(at: f64) -> String {
    let percent = 100.0 * (1.0 - 10_f64.powf(-at));
    let digits = (at.ceil() as usize).saturating_sub(2);
    format!("{percent:.digits$} %")
}

fn table(lines: &[SpectrumLine]) -> Markup {
    let at = |line: &SpectrumLine, mark: f64| {
        let found = line.points.iter().find(|(x, _)| *x >= mark - 1e-9);
        or_dash(found, |(_, us)| time(*us))
    };
    let mut head = vec!["times"];
    head.extend(PERCENTILE_MARKS[1..].iter().map(|(_, text)| *text));
    let rows = lines.iter().map(|line| {
        let figures = PERCENTILE_MARKS[1..]
            .iter()
            .map(|(mark, _)| at(line, *mark));
        [line.name.clone()]
            .into_iter()
            .chain(figures)
            .collect::<Vec<_>>()
    });
    tables::table("Latency by percentile", &TextTable::new(head, &[], rows))
}
