//! The page of a folder of runs: the history of each plan, links to all runs, and a selection of two to compare.
//!
//! The page is served by `plimsoll view`, which also answers its links (`/runs/…`, `/compare`).

use maud::{Markup, html};

use super::chart::{
    AxisScale, AxisTick, LegendKey, PlotArea, format_short_time, legend, round_px, svg_path,
    x_axis, y_axis,
};
use super::page::{chart_with_table, complete_page, section as part};
use crate::history::{
    FolderItem, FolderItemKind, HistoryMetric, HistorySeries, describe_method, group_into_series,
};
use crate::quantity::{count, exact_rate, or_dash, plural, rate, time};
use crate::sections::facts;

/// Minimum number of measurements in a series for which the page states that nothing changed.
const MIN_RUNS_TO_STATE_NO_CHANGE: usize = 10;

/// Minimum horizontal distance between the numbers of two changes in one row above a chart.
const MIN_LABEL_SPACING: f64 = 18.0;

/// Returns the page of `items` of the folder `title`; `unreadable`: directories that can't be read, with the reasons.
pub fn folder_page(
    title: &str,
    mut items: Vec<FolderItem>,
    unreadable: &[(String, String)],
) -> String {
    items.sort_by_key(|item| std::cmp::Reverse(item.began));
    let series = group_into_series(&items);
    let mut plans: Vec<(FolderItemKind, String)> = Vec::new();
    for item in &items {
        let plan = (item.kind, item.name.clone());
        if !plans.contains(&plan) {
            plans.push(plan);
        }
    }
    let comparable = items
        .iter()
        .filter(|i| i.kind == FolderItemKind::Run)
        .count();
    let body = html! {
        section.verdict.plain {
            h1 { (title) }
            p.lead {
                (plural(items.len() as u64, "measurement")) " of " (plural(plans.len() as u64, "plan"))
                @if comparable > 1 { ". Choose two runs, A and B, to compare." }
            }
            @if items.is_empty() { p { "There are no runs here yet: " code { "plimsoll run" } " and similar commands save their runs in " code { "runs/" } "." } }
        }
        form.folder action="/compare" method="get" {
            @for (kind, name) in &plans {
                (plan_section(
                    &items.iter().filter(|i| i.kind == *kind && i.name == *name).collect::<Vec<_>>(),
                    &series.iter().filter(|s| s.kind == *kind && s.name == name).collect::<Vec<_>>(),
                ))
            }
            @if comparable > 1 { p.choice { button type="submit" { "Compare A with B" } } }
        }
        @if series.iter().any(|s| !s.changes.is_empty()) { (part("How changes are found", &describe_method(), &html! {})) }
        @if !unreadable.is_empty() {
            (part("Unreadable directories", "", &html! { ul.sentences { @for (dir, why) in unreadable { li { (dir) ": " (why) } } } }))
        }
    };
    complete_page(title, &body)
}

/// Returns the section with all measurements of one plan, the newest first, and its series.
fn plan_section(items: &[&FolderItem], series: &[&HistorySeries<'_>]) -> Markup {
    let Some(newest) = items.first() else {
        return html! {};
    };
    let content = html! {
        @for one in series.iter().filter(|s| s.items.len() > 1) {
            @if series.len() > 1 { h3 { (plural(one.items.len() as u64, "run")) " " (one.describe_conditions()) } }
            @if plotted_values(one).count() > 0 { (series_chart(one)) }
            @if !one.changes.is_empty() { div.scroll { (changes_table(one)) } }
            @else if one.items.len() >= MIN_RUNS_TO_STATE_NO_CHANGE { p.lead { "No figure changed in these " (plural(one.items.len() as u64, one.kind.name())) "." } }
        }
        div.scroll { (measurements_table(items)) }
    };
    let heading = match newest.kind {
        FolderItemKind::Run => newest.name.clone(),
        other => format!("{} ({})", newest.name, other.name()),
    };
    part(&heading, &newest.what, &content)
}

/// Numbers the changes in the chart. Changes that begin with the same measurement share a number. Returns each number
/// with the position of that measurement.
fn assign_change_numbers(series: &HistorySeries<'_>) -> Vec<(usize, usize)> {
    let mut positions: Vec<usize> = series.changes.iter().map(|c| c.position).collect();
    positions.dedup();
    (1..).zip(positions).collect()
}

/// Returns the table of changes, the oldest first.
fn changes_table(series: &HistorySeries<'_>) -> Markup {
    let numbers = assign_change_numbers(series);
    let number = |position: usize| {
        let found = numbers.iter().find(|(_, at)| *at == position);
        found.map_or(0, |(number, _)| *number)
    };
    let has_remarks = series.changes.iter().any(|c| !c.remarks().is_empty());
    html! {
        table {
            caption { "Changes" }
            thead { tr {
                th scope="col" { "no." } th.text scope="col" { "metric" } th scope="col" { "change (95 % interval)" }
                th scope="col" { "before" } th scope="col" { "after" } th scope="col" { "since" } th scope="col" { "p" }
                @if has_remarks { th.text scope="col" { "remarks" } }
            } }
            tbody { @for change in &series.changes { tr {
                th scope="row" { (number(change.position)) }
                td.text { (change.metric.name()) }
                td class=(if change.is_better() { "met" } else { "missed" }) { (change.describe_size()) }
                td { (change.before_text()) } td { (change.after_text()) }
                td { a href=(change.first.page_path()) { (facts::format_time(change.first.began)) } }
                td { (change.format_p_value()) }
                @if has_remarks { td.text { (change.remarks().join("; ")) } }
            } } }
        }
    }
}

fn measurements_table(items: &[&FolderItem]) -> Markup {
    let runs = items.iter().any(|i| i.kind == FolderItemKind::Run);
    html! {
        table {
            thead { tr {
                th scope="col" { "began" }
                @if runs { th scope="col" { "A" } th scope="col" { "B" } }
                th.text scope="col" { "verdict" } th scope="col" { "rate" } th scope="col" { "p50" } th scope="col" { "p99" }
                th scope="col" { "errors" } th scope="col" { "client CPU a call" } th.text scope="col" { "directory" }
            } }
            tbody { @for item in items { tr {
                th scope="row" { a href=(item.page_path()) { (facts::format_time(item.began)) } }
                @if runs { @for side in ["a", "b"] {
                    td { input type="radio" name=(side) value=(item.id) aria-label={ (side.to_uppercase()) ": " (item.id) }; }
                } }
                td class={ "text " (item.verdict.0) } { (item.verdict.1) }
                td { (or_dash(item.rate_per_s, rate)) } td { (or_dash(item.p50_us, time)) }
                td { (or_dash(item.p99_us, time)) } td { (or_dash(item.errors.clone(), |errors| errors)) }
                td { (or_dash(item.cpu_us, time)) } td.text { (item.id) }
            } } }
        }
    }
}

/// Returns the metrics in the chart of a series.
fn plotted_metrics(series: &HistorySeries<'_>) -> &'static [HistoryMetric] {
    match series.kind {
        FolderItemKind::Search => &[HistoryMetric::LoadLine],
        _ => &[HistoryMetric::P50, HistoryMetric::P99],
    }
}

/// Returns the values that the chart of a series plots, without unknown ones.
fn plotted_values(series: &HistorySeries<'_>) -> impl Iterator<Item = f64> {
    let items = series.items.iter();
    items.flat_map(|item| {
        plotted_metrics(series)
            .iter()
            .filter_map(|metric| metric.value(item))
    })
}

/// Draws the figures of a series over time: the median and a high percentile of latency or, for searches, the load line
/// (the highest rate that meets the objectives).
fn series_chart(series: &HistorySeries<'_>) -> Markup {
    let is_search = series.kind == FolderItemKind::Search;
    let names = if is_search {
        &["load line"][..]
    } else {
        &["p50 of the response time", "p99"]
    };
    let lines = names.iter().enumerate();
    let mut entries: Vec<_> = lines
        .map(|(i, name)| ((*name).to_owned(), i, LegendKey::Line))
        .collect();
    if !series.changes.is_empty() {
        entries.push(("change, numbered as below".to_owned(), 5, LegendKey::Dash));
    }
    let show = |item: &FolderItem, metric: HistoryMetric| {
        metric.value(item).map_or_else(String::new, |value| {
            if is_search {
                exact_rate(value)
            } else {
                time(value)
            }
        })
    };
    let figures = html! {
        table { tbody { @for item in &series.items {
            tr { th scope="row" { (facts::format_time(item.began)) } @for metric in plotted_metrics(series) { td { (show(item, *metric)) } } }
        } } }
    };
    chart_with_table([240.0, 230.0], &legend(&entries), &figures, |frame| {
        draw(frame, series)
    })
}

fn draw(frame: &PlotArea, series: &HistorySeries<'_>) -> Markup {
    let items = &series.items;
    let is_search = series.kind == FolderItemKind::Search;
    // The numbers of changes are placed above the chart.
    let frame = &PlotArea {
        top: frame.top + if series.changes.is_empty() { 0.0 } else { 22.0 },
        ..*frame
    };
    let low = plotted_values(series).fold(f64::INFINITY, f64::min);
    let high = plotted_values(series).fold(0.0, f64::max);
    let x = AxisScale::linear(-0.5, items.len() as f64 - 0.5, frame.left, frame.x_end());
    let y = AxisScale::log(low, high, frame.y_end(), frame.top);
    // The axis shows only as many dates as there is space for.
    let every = items.len().div_ceil(frame.pick_for_width(8, 3));
    let dates: Vec<AxisTick> = items
        .iter()
        .enumerate()
        .step_by(every)
        .map(|(i, item)| {
            (
                x.position(i as f64),
                item.began.strftime("%m-%d %H:%M").to_string(),
            )
        })
        .collect();
    let show = |value: f64| {
        if is_search {
            exact_rate(value)
        } else {
            time(value)
        }
    };
    let names: Vec<&str> = plotted_metrics(series)
        .iter()
        .map(|metric| metric.name())
        .collect();
    // Many points are drawn small, so that the lines remain visible.
    let radius = if items.len() > frame.pick_for_width(120, 40) {
        2.5
    } else {
        4.5
    };
    frame.svg(
        &format!(
            "{} of {}, the oldest at the left, with {}.",
            names.join(" and "),
            plural(items.len() as u64, series.kind.name()),
            plural(series.changes.len() as u64, "change")
        ),
        &html! {
            @if is_search { (y_axis(frame, &y, 5, rate)) } @else { (y_axis(frame, &y, 5, format_short_time)) }
            (x_axis(frame, &dates, "runs, in their order"))
            (draw_change_marks(frame, series, &x))
            @for (colour, metric) in plotted_metrics(series).iter().enumerate() {
                path class={ "line stroke c" (colour) } d=(svg_path(items.iter().enumerate().filter_map(|(i, item)| Some((x.position(i as f64), y.position(metric.value(item)?)))))) {}
                @for (i, item) in items.iter().enumerate() {
                    @if let Some(value) = metric.value(item) {
                        a href=(item.page_path()) {
                            circle class={ "fill c" (colour) } cx=(round_px(x.position(i as f64))) cy=(round_px(y.position(value))) r=(radius) {
                                title { (facts::format_time(item.began)) ": " (metric.name()) " " (show(value)) }
                            }
                        }
                    }
                }
            }
        },
    )
}

/// Draws a vertical line with its number at each change. Numbers that would overlap are placed in two rows.
fn draw_change_marks(frame: &PlotArea, series: &HistorySeries<'_>, x: &AxisScale) -> Markup {
    let mut last = [f64::NEG_INFINITY; 2];
    let mut marks = Vec::new();
    for (number, position) in assign_change_numbers(series) {
        let at = x.position(position as f64 - 0.5);
        let row = usize::from(at - last[0] < MIN_LABEL_SPACING && at - last[1] > at - last[0]);
        last[row] = at;
        let here = series.changes.iter().filter(|c| c.position == position);
        let words: Vec<String> = here
            .map(|c| format!("{} {}", c.metric.name(), c.describe_size()))
            .collect();
        marks.push((
            number,
            at,
            frame.top - 6.0 - 13.0 * row as f64,
            words.join("; "),
        ));
    }
    html! {
        @for (number, at, y, words) in marks {
            g {
                title { (words) }
                path class="dash stroke c5" d={ "M" (round_px(at)) " " (round_px(y + 3.0)) "V" (round_px(frame.y_end())) } {}
                text.strong x=(round_px(at)) y=(round_px(y)) text-anchor="middle" { (count(number as u64)) }
            }
        }
    }
}

/// Returns a page that contains only a message.
pub fn message_page(text: &str) -> String {
    complete_page("Plimsoll", &html! { section { p { (text) } } })
}

/// Adds a link to the folder's list of runs to a page.
pub fn with_home_link(page: &str) -> String {
    page.replacen(
        "<span>Plimsoll</span>",
        "<a class=\"home\" href=\"/\">Plimsoll</a>",
        1,
    )
}
