//! The chart of a ladder: the costs that each rung (variant) adds to the first one, with intervals.

use maud::{Markup, html};
use plimsoll_model::comparisons::ladder::{AddedCost, LadderMetric, LadderRecord};

use super::bars::{BarChart, BarRow, BarSegment};
use super::chart::format_short_time;
use super::page::{chart_with_table, section as part};
use super::tables;
use crate::ladder::{
    MetricGroup, connection_costs, format_added_cost, format_confidence, measured_metrics,
    metric_groups,
};
use crate::sections::table::TextTable;

pub(super) fn section(ladder: &LadderRecord) -> Markup {
    let shown: Vec<LadderMetric> = measured_metrics(ladder)
        .into_iter()
        .filter(|m| {
            matches!(
                m,
                LadderMetric::P50 | LadderMetric::P99 | LadderMetric::FirstToken
            )
        })
        .collect();
    if ladder.rungs.len() < 2 || shown.is_empty() {
        return html! {};
    }
    // Each metric has its own scale, because tail latencies are an order of magnitude larger than medians.
    let all: Vec<(LadderMetric, BarChart)> = (shown.iter().enumerate())
        .map(|(colour, metric)| (*metric, metric_bars(ladder, *metric, colour)))
        .collect();
    let heights = all[0].1.heights();
    let picture = chart_with_table(heights, &html! {}, &rung_tables(ladder), |frame| {
        html! { @for (metric, bars) in &all { h3 { "at the " (metric.name()) } (bars.draw(frame)) } }
    });
    part(
        "What each rung adds",
        match ladder.batches {
            Some(_) => {
                "What each rung adds to the time of a call, from when it was sent, over the first rung: bars with their intervals. A pale bar is a difference that may be due to chance."
            }
            None => {
                "The response time that each rung adds to the first, as bars with their intervals. A pale bar is a difference that may be due to chance."
            }
        },
        &picture,
    )
}

fn metric_bars(ladder: &LadderRecord, metric: LadderMetric, colour: usize) -> BarChart {
    let first = &ladder.rungs[0].name;
    let rows = ladder.rungs.iter().enumerate().skip(1).map(|(of, rung)| {
        let difference = ladder.added_cost(of, 0, metric);
        let title = format_added_cost(metric, difference);
        let words = format!("{}: {title}", rung.name);
        let known = match difference {
            AddedCost::Significant(d) | AddedCost::NotSignificant(d) => Some(d),
            AddedCost::Exact(_) | AddedCost::TooFewRounds => None,
        };
        let part = known.map(|d| BarSegment {
            from: 0.0,
            to: d.shift,
            colour,
            is_pale: matches!(difference, AddedCost::NotSignificant(_)),
            title,
        });
        BarRow {
            name: rung.name.clone(),
            text_alternative: words,
            segments: part.into_iter().collect(),
            interval: known.map(|d| [d.low, d.high]),
        }
    });
    BarChart {
        lead: format!("What each rung adds to {first}."),
        axis: format!("added to {first}"),
        format_tick: format_signed,
        always_included: [0.0, 1.0],
        rows: rows.collect(),
    }
}

/// Formats a rounded difference with its sign.
fn format_signed(us: f64) -> String {
    match us {
        v if v < 0.0 => format!("−{}", format_short_time(-v)),
        v if v > 0.0 => format!("+{}", format_short_time(v)),
        _ => "0".to_owned(),
    }
}

/// Returns the tables of the rungs' figures, and of all differences between rungs.
pub(super) fn rung_tables(ladder: &LadderRecord) -> Markup {
    html! {
        @if let Some(prices) = connection_costs(ladder) {
            (tables::table("The cost of a new connection: CPU, the part of cryptography alone (measured in memory on this machine), and the cores for a thousand a second", &prices))
        }
        @for (n, group) in metric_groups(ladder).iter().enumerate() {
            (figures_table(ladder, group, n == 0))
            (differences_table(ladder, group, n == 0))
        }
    }
}

fn figures_table(ladder: &LadderRecord, group: &MetricGroup, is_first: bool) -> Markup {
    let mut table = group.table(ladder);
    if !is_first {
        return tables::table("", &table);
    }
    table.head.push("slices".to_owned());
    for (row, rung) in table.rows.iter_mut().zip(&ladder.rungs) {
        row.push(rung.slices.len().to_string());
    }
    tables::table("The rungs: medians of their slices", &table)
}

fn differences_table(ladder: &LadderRecord, group: &MetricGroup, is_first: bool) -> Markup {
    let mut head = vec!["rung", "to"];
    head.extend(group.columns.iter().map(|(_, name)| *name));
    let texts: Vec<usize> = (1..head.len()).collect();
    let rows = LadderRecord::reported_pairs(ladder.rungs.len()).map(|(of, to)| {
        let names = [of, to].map(|rung| ladder.rungs[rung].name.clone());
        let added = group
            .columns
            .iter()
            .map(|(m, _)| format_added_cost(*m, ladder.added_cost(of, to, *m)));
        names.into_iter().chain(added).collect::<Vec<_>>()
    });
    let caption = if is_first {
        let confidence = format_confidence(ladder);
        format!("What each adds, with simultaneous {confidence} intervals")
    } else {
        format!("What each adds: {}", group.heading)
    };
    tables::table(&caption, &TextTable::new(head, &texts, rows))
}
