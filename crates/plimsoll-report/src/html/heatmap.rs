//! Latency over time: a heatmap of response times, and below it the scheduled rate, the achieved rate, and the errors.

use hdrhistogram::Histogram;
use maud::{Markup, html};
use plimsoll_model::statistics::quantile::quantile;

use super::RunView;
use super::chart::{
    AxisScale, LegendKey, PlotArea, format_short_time, format_tick, legend, round_px, svg_path,
    x_axis, y_axis,
};
use super::page::{chart_with_table, section as part};
use super::tables;
use super::timeline::TimelineColumn;
use crate::quantity::{count, or_dash, plural, rate, time};
use crate::sections::table::TextTable;

/// The height of the area with the rates.
const RATES_HEIGHT: f64 = 92.0;

pub(super) fn section(view: &RunView) -> Markup {
    let whole = view.timeline.columns(usize::MAX);
    if whole.len() < 2 {
        return html! {};
    }
    let warmup_s = view.run.header.warmup_length().as_secs_f64();
    let mut entries = vec![
        (
            "calls by response time (stronger: more)".to_owned(),
            0,
            LegendKey::Block,
        ),
        ("scheduled".to_owned(), 5, LegendKey::Dash),
        ("achieved".to_owned(), 2, LegendKey::Line),
    ];
    if whole.iter().any(|c| c.errors > 0) {
        entries.push(("errors".to_owned(), 4, LegendKey::Block));
    }
    // The reader can widen the chart, which then scrolls horizontally in its own box.
    let above = html! {
        (legend(&entries))
        label.zoom { input type="checkbox"; " stretch the time axis" }
    };
    let figures = table(&view.timeline.columns(60));
    let picture = chart_with_table([430.0, 390.0], &above, &figures, |frame| {
        // If there are more intervals than columns, neighbouring intervals are merged.
        let columns = view.timeline.columns(frame.pick_for_width(150, 60));
        html! { div.scroll { (draw(frame, &columns, frame.pick_for_width(36, 26), warmup_s)) } }
    });
    let heading = if view.is_one_of_several {
        format!("Over time: {}", view.run.header.name)
    } else {
        "Over time".to_owned()
    };
    part(
        &heading,
        "Every successful call, by when it ended and how long it took from its scheduled time. Warm-up is shaded and not in the figures. Point at a column for its figures.",
        &picture,
    )
}

fn draw(frame: &PlotArea, columns: &[TimelineColumn], rows: usize, warmup_s: f64) -> Markup {
    let end = columns.last().map_or(1.0, |c| c.to_s);
    let warmup_s = warmup_s.min(end);
    let x = AxisScale::linear(0.0, end, frame.left, frame.x_end());
    let heat_end = frame.y_end() - RATES_HEIGHT - 14.0;
    let measured = || columns.iter().filter_map(|c| c.response.histogram());
    let low = measured()
        .map(|h| ns_to_us(h.min()))
        .fold(f64::INFINITY, f64::min);
    let high = measured().map(|h| ns_to_us(h.max())).fold(0.0, f64::max);
    let y = AxisScale::log(low.min(high.max(1.0)), high.max(1.0), heat_end, frame.top);
    let most_rate = columns
        .iter()
        .filter(|c| c.to_s - c.from_s > 0.3)
        .map(|c| c.per_second(c.due.max(c.ended)))
        .fold(1.0, f64::max);
    let r = AxisScale::linear(0.0, most_rate * 1.12, frame.y_end(), heat_end + 14.0);
    let most_errors = columns.iter().map(|c| c.errors).max().unwrap_or(0);
    let seconds = x.labelled_ticks(frame.pick_for_width(10, 5), |s| s.to_string());
    // The last column may be too short for a meaningful rate.
    let rates = |of: fn(&TimelineColumn) -> u64| {
        svg_path(
            columns
                .iter()
                .filter(|c| c.to_s - c.from_s > 0.3)
                .flat_map(|c| {
                    let height = r.position(c.per_second(of(c)));
                    [(x.position(c.from_s), height), (x.position(c.to_s), height)]
                }),
        )
    };
    let label = format!(
        "Response times over {end:.0} seconds, from {} to {}, at up to {}. The figures are in the table below.",
        time(low.min(high)),
        time(high),
        rate(most_rate)
    );
    frame.svg(
        &label,
        &html! {
            @if warmup_s > 0.0 {
                @let wide = round_px(x.position(warmup_s) - frame.left);
                rect class="fill c5 band" x=(frame.left) y=(frame.top) width=(wide) height=(round_px(frame.y_end() - frame.top)) {}
                @if wide > 60.0 { text x=(round_px(frame.left + wide / 2.0)) y=(round_px(heat_end + 10.0)) text-anchor="middle" { "warm-up" } }
            }
            (y_axis(frame, &y, 7, format_short_time))
            @for column in columns { (heat_column(&x, &y, column, rows, frame.top, heat_end)) }
            (y_axis(frame, &r, 3, format_short_rate))
            @if most_errors > 0 {
                @for column in columns.iter().filter(|c| c.errors > 0) {
                    @let height = (column.errors as f64 / most_errors as f64 * RATES_HEIGHT * 0.6).max(3.0);
                    rect class="fill c4" opacity="0.75" x=(round_px(x.position(column.from_s))) y=(round_px(frame.y_end() - height))
                        width=(round_px((x.position(column.to_s) - x.position(column.from_s)).max(1.5))) height=(round_px(height)) {
                        title { (count(column.errors)) " errors at " (format!("{:.0}", column.from_s)) " s" }
                    }
                }
            }
            @for column in columns { (hover_area(frame, &x, column)) }
            path class="line stroke c2" d=(rates(|c| c.ended)) {}
            path class="line dash stroke c5" d=(rates(|c| c.due)) {}
            (x_axis(frame, &seconds, "seconds since the load began"))
        },
    )
}

/// Draws a column's hover area with its figures.
fn hover_area(frame: &PlotArea, x: &AxisScale, column: &TimelineColumn) -> Markup {
    let from = x.position(column.from_s);
    let spread = |p: f64| Some(ns_to_us(quantile(column.response.histogram()?, p)?));
    let mut text = format!(
        "{:.0}–{:.0} s: {} scheduled, {} ended, {}",
        column.from_s,
        column.to_s,
        count(column.due),
        count(column.ended),
        plural(column.errors, "error")
    );
    for (name, p) in [("p50", 0.5), ("p99", 0.99)] {
        if let Some(us) = spread(p) {
            text += &format!(", {name} {}", time(us));
        }
    }
    if let Some(h) = column.response.histogram() {
        text += &format!(", max {}", time(ns_to_us(h.max())));
    }
    html! {
        rect class="hover" x=(round_px(from)) y=(frame.top) width=(round_px(x.position(column.to_s) - from))
            height=(round_px(frame.y_end() - frame.top)) { title { (text) } }
    }
}

/// Draws one column of the heatmap.
fn heat_column(
    x: &AxisScale,
    y: &AxisScale,
    column: &TimelineColumn,
    rows: usize,
    top: f64,
    bottom: f64,
) -> Markup {
    let Some(histogram) = column.response.histogram() else {
        return html! {};
    };
    let mut counts = vec![0_u64; rows];
    let height = (bottom - top) / rows as f64;
    for bucket in histogram.iter_recorded() {
        let at = y.position(bucket.value_iterated_to() as f64 / 1e3);
        let row = (((bottom - at) / height) as usize).min(rows - 1);
        counts[row] += bucket.count_at_value();
    }
    let most = counts.iter().copied().max().unwrap_or(1).max(1) as f64;
    let (from, to) = (x.position(column.from_s), x.position(column.to_s));
    html! {
        @for (row, n) in counts.iter().enumerate().filter(|(_, n)| **n > 0) {
            // The shade is logarithmic, so that one slow call among thousands is visible.
            @let depth = 0.14 + 0.86 * (1.0 + *n as f64).ln() / (1.0 + most).ln();
            rect class="fill c0" x=(round_px(from)) y=(round_px(bottom - (row + 1) as f64 * height))
                width=(round_px(to - from + 0.2)) height=(round_px(height + 0.2)) opacity=(format!("{depth:.2}")) {}
        }
    }
}

fn ns_to_us(ns: u64) -> f64 {
    ns.max(1) as f64 / 1e3
}

/// Formats a rate in few characters.
fn format_short_rate(per_s: f64) -> String {
    match per_s {
        r if r >= 1e6 => format!("{}M/s", format_tick(r / 1e6)),
        r if r >= 1e4 => format!("{}k/s", format_tick(r / 1e3)),
        r => format!("{}/s", format_tick(r)),
    }
}

fn table(columns: &[TimelineColumn]) -> Markup {
    let shown = |ns: Option<u64>| or_dash(ns, |ns| time(ns as f64 / 1e3));
    let at =
        |c: &TimelineColumn, p: f64| shown(c.response.histogram().and_then(|h| quantile(h, p)));
    let rows = columns.iter().map(|c| {
        [
            format!("{:.0}–{:.0}", c.from_s, c.to_s),
            count(c.due),
            count(c.ended),
            count(c.errors),
            at(c, 0.5),
            at(c, 0.99),
            shown(c.response.histogram().map(Histogram::max)),
        ]
    });
    let head = ["s", "scheduled", "ended", "errors", "p50", "p99", "max"];
    let caption = "Over time: the calls that ended in each interval";
    tables::table(caption, &TextTable::new(head, &[], rows))
}
