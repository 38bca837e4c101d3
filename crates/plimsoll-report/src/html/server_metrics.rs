//! The section of the metrics that the server published itself: requests, cache and tokens over time, and their table.

use maud::{Markup, html};
use plimsoll_model::runs::server_metrics::{
    MetricKind, MetricReading, ServerMetric, ServerMetricsRecord,
};

use super::RunView;
use super::chart::{
    AxisScale, LegendKey, PlotArea, format_tick, legend, round_px, svg_path, x_axis, y_axis,
};
use super::page::{chart_with_table, section};
use super::tables;
use crate::quantity::{or_dash, rate};
use crate::sections::server_metrics::{HEADING, facts, format_level, format_percent, table};
use crate::sections::table::TextTable;

/// Maximum number of points of a line; each is the highest of its part of a longer run.
const MAX_POINTS: usize = 300;

/// Maximum number of rows of the table below a chart.
const MAX_TABLE_ROWS: usize = 60;

/// Minimum time between two readings from which a rate is drawn, in seconds.
const MIN_RATE_WINDOW_S: f64 = 0.5;

/// The metrics of a chart, and the format of their values.
type ChartMetrics = (&'static [ServerMetric], fn(f64) -> String);

const CHARTS: [ChartMetrics; 3] = [
    (
        &[ServerMetric::RequestsRunning, ServerMetric::RequestsWaiting],
        format_level,
    ),
    (
        &[
            ServerMetric::KvCacheUsage,
            ServerMetric::PrefixCacheHitShare,
        ],
        format_percent,
    ),
    (
        &[ServerMetric::PromptTokens, ServerMetric::GeneratedTokens],
        rate,
    ),
];

/// A metric over time: seconds since the load began, and values.
struct MetricLine {
    metric: ServerMetric,
    points: Vec<(f64, f64)>,
}

/// Returns the sections of all runs whose servers published metrics.
pub(super) fn sections(views: &[RunView]) -> Markup {
    html! { @for view in views { (run_section(view)) } }
}

fn run_section(view: &RunView) -> Markup {
    let record = match ServerMetricsRecord::read(&view.run.dir) {
        Ok(Some(record)) => record,
        Ok(None) => return html! {},
        Err(problem) => {
            let text = html! { p { "They can't be read: " (problem) } };
            return section(HEADING, "", &text);
        }
    };
    let heading = if view.is_one_of_several {
        format!("{HEADING}: {}", view.run.header.name)
    } else {
        HEADING.to_owned()
    };
    let warmup_s = view.run.header.warmup_length().as_secs_f64();
    let all = table(&record);
    section(
        &heading,
        "What the server itself reported beside the load, warm-up excluded. The mean and the peak of tokens are per second.",
        &html! {
            @if !all.rows.is_empty() { div.scroll { (tables::table("", &all)) } }
            @for (metrics, show) in CHARTS { (chart(&record, metrics, show, warmup_s)) }
            ul.sentences { @for fact in facts(&record) { li { (fact) } } }
        },
    )
}

/// Returns a chart of these metrics over time; empty if the server published none of them.
fn chart(
    record: &ServerMetricsRecord,
    metrics: &[ServerMetric],
    show: fn(f64) -> String,
    warmup_s: f64,
) -> Markup {
    let lines: Vec<MetricLine> = metrics
        .iter()
        .map(|metric| MetricLine {
            metric: *metric,
            points: points(&record.samples, *metric),
        })
        .filter(|line| line.points.len() > 1)
        .collect();
    if lines.is_empty() {
        return html! {};
    }
    let entries: Vec<(String, usize, LegendKey)> = lines
        .iter()
        .enumerate()
        .map(|(colour, line)| (line.metric.words().to_owned(), colour, LegendKey::Line))
        .collect();
    chart_with_table(
        [230.0, 210.0],
        &legend(&entries),
        &figures(&lines, show),
        |frame| draw(frame, &lines, show, warmup_s),
    )
}

/// Returns the values of a metric over time; of a counter, its increase per second.
fn points(samples: &[MetricReading], metric: ServerMetric) -> Vec<(f64, f64)> {
    let known = samples
        .iter()
        .filter_map(|sample| Some((sample.offset_s, sample.value(metric)?)));
    let known: Vec<(f64, f64)> = known.collect();
    let all: Vec<(f64, f64)> = match metric.kind() {
        MetricKind::Level | MetricKind::Share => known,
        MetricKind::Counter => known
            .windows(2)
            .filter_map(|pair| {
                let [(began, before), (at, value)] = [pair[0], pair[1]];
                if at - began < MIN_RATE_WINDOW_S {
                    return None;
                }
                // The counter of a server that was restarted begins at 0 again.
                let increase = if value >= before {
                    value - before
                } else {
                    value
                };
                Some((at, increase / (at - began)))
            })
            .collect(),
    };
    let drawn = all
        .into_iter()
        .filter(|(at, value)| *at >= 0.0 && value.is_finite());
    thin(&drawn.collect::<Vec<_>>(), MAX_POINTS)
}

/// Returns at most `most` points, each with the highest value of its neighbours.
fn thin(points: &[(f64, f64)], most: usize) -> Vec<(f64, f64)> {
    let group = points.len().div_ceil(most).max(1);
    points
        .chunks(group)
        .filter_map(|chunk| {
            let (at, _) = chunk.last()?;
            let highest = chunk.iter().map(|(_, value)| *value).fold(0.0, f64::max);
            Some((*at, highest))
        })
        .collect()
}

fn draw(frame: &PlotArea, lines: &[MetricLine], show: fn(f64) -> String, warmup_s: f64) -> Markup {
    let all = || lines.iter().flat_map(|line| &line.points);
    let end = all().map(|(at, _)| *at).fold(1.0, f64::max);
    let highest = all().map(|(_, value)| *value).fold(0.0, f64::max);
    // A server that was idle all the time has a scale, too.
    let top = if highest > 0.0 { highest * 1.1 } else { 1.0 };
    let x = AxisScale::linear(0.0, end, frame.left, frame.x_end());
    let y = AxisScale::linear(0.0, top, frame.y_end(), frame.top);
    let seconds = x.labelled_ticks(frame.pick_for_width(10, 5), format_tick);
    let warmup_end = x.position(warmup_s.min(end));
    let names: Vec<&str> = lines.iter().map(|line| line.metric.words()).collect();
    let label = format!(
        "{} over {end:.0} seconds, up to {}. The figures are in the table below.",
        names.join(" and "),
        show(highest)
    );
    frame.svg(
        &label,
        &html! {
            @if warmup_s > 0.0 {
                rect class="fill c5 band" x=(frame.left) y=(frame.top) width=(round_px(warmup_end - frame.left))
                    height=(round_px(frame.y_end() - frame.top)) { title { "warm-up" } }
            }
            (y_axis(frame, &y, 5, show))
            @for (colour, line) in lines.iter().enumerate() {
                @let path = svg_path(line.points.iter().map(|(at, value)| (x.position(*at), y.position(*value))));
                path class={ "line stroke c" (colour) } d=(path) {}
            }
            (x_axis(frame, &seconds, "seconds since the load began"))
        },
    )
}

/// Returns the table of the lines' values, by the time of the longest line.
fn figures(lines: &[MetricLine], show: fn(f64) -> String) -> Markup {
    let thinned: Vec<Vec<(f64, f64)>> = lines
        .iter()
        .map(|line| thin(&line.points, MAX_TABLE_ROWS))
        .collect();
    let Some(longest) = thinned.iter().max_by_key(|points| points.len()) else {
        return html! {};
    };
    let rows = longest.iter().map(|(at, _)| {
        let values = thinned.iter().map(|points| {
            let found = points.iter().find(|(other, _)| other == at);
            or_dash(found, |(_, value)| show(*value))
        });
        std::iter::once(format!("{at:.0}"))
            .chain(values)
            .collect::<Vec<String>>()
    });
    let names = lines.iter().map(|line| line.metric.words());
    let head = std::iter::once("s").chain(names);
    tables::table("", &TextTable::new(head, &[], rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(offset_s: f64, metric: ServerMetric, value: f64) -> MetricReading {
        MetricReading {
            offset_s,
            values: [(metric.name().to_owned(), value)].into(),
        }
    }

    #[test]
    fn counters_are_drawn_as_rates() {
        let metric = ServerMetric::GeneratedTokens;
        let samples = [
            (-1.0, 5.0),
            (0.5, 20.0),
            (1.5, 40.0),
            (1.6, 41.0),
            (3.6, 10.0),
        ]
        .map(|(at, value)| reading(at, metric, value));
        // The reading after a tenth of a second has no rate; the last one is from a restarted server.
        assert_eq!(
            points(&samples, metric),
            [(0.5, 10.0), (1.5, 20.0), (3.6, 5.0)]
        );
    }

    #[test]
    fn thinned_line_keeps_peaks() {
        let points: Vec<(f64, f64)> = (0..1000_u32)
            .map(|n| (f64::from(n), if n == 501 { 9.0 } else { 1.0 }))
            .collect();
        let thinned = thin(&points, 100);
        assert_eq!(thinned.len(), 100);
        assert_eq!(thinned.iter().filter(|(_, value)| *value == 9.0).count(), 1);
        assert_eq!(thinned.last(), Some(&(999.0, 1.0)));
        assert!(thin(&[], 5).is_empty());
    }
}
