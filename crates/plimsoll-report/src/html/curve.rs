//! The load-line curve: latency against rate with a mark for each trial, and the load line (the highest rate that meets
//! the objectives).

use maud::{Markup, html};
use plimsoll_model::objective;
use plimsoll_model::plan::Objective;
use plimsoll_model::search::{SearchRecord, SearchVariable, Trial, TrialVerdict};
use plimsoll_model::spec;
use plimsoll_model::statistics::rank::median_of_unsorted;

use super::chart::{
    AxisScale, LegendKey, PlotArea, format_short_time, legend, round_px, svg_path, x_axis, y_axis,
};
use super::page::{chart_with_table, section as part};
use crate::quantity::{count, rate, time};
use crate::search::{amount, trials_by_rate};

pub(super) fn section(record: &SearchRecord) -> Markup {
    let points: Vec<(&Trial, f64)> = trials_by_rate(record)
        .into_iter()
        .filter_map(|t| Some((t, charted_latency_us(t)?)))
        .collect();
    if points.len() < 2 {
        return html! {};
    }
    let entries = [
        ("objectives met".to_owned(), 2, LegendKey::Dot),
        ("missed, or calls piled up".to_owned(), 4, LegendKey::Cross),
        ("generator-limited".to_owned(), 5, LegendKey::Ring),
        ("load line, with its bounds".to_owned(), 0, LegendKey::Line),
    ];
    let picture = chart_with_table(
        [400.0, 330.0],
        &legend(&entries),
        &super::tables::trials_table(record),
        |frame| draw(frame, record, &points),
    );
    part("Latency against rate", &explain_marks(record), &picture)
}

/// Explains the chart's marks.
fn explain_marks(record: &SearchRecord) -> String {
    let named = record.trials.iter().any(|t| t.limited_us.is_some());
    let what = match charted_objective(record).filter(|_| named) {
        Some(objective) => format!("what \"{}\" limits", objective.text),
        None => "the p99 of its response times".to_owned(),
    };
    format!(
        "Each mark is a trial: {what} (where a trial had not enough calls for that, the highest percentile it supports). The line joins the trials that count by their medians."
    )
}

/// Returns the time in µs that the objective limits, or else the highest percentile that the trial supports.
fn charted_latency_us(trial: &Trial) -> Option<f64> {
    let known = trial.limited_us.or(trial.p99_us).or(trial.p50_us);
    known.filter(|us| *us > 0.0)
}

/// Returns the objective that limits the time shown by the marks.
fn charted_objective(record: &SearchRecord) -> Option<Objective> {
    let mut spec = spec::Spec::default();
    for text in &record.objectives {
        if let Some(at) = text.find(['<', '>']) {
            let (metric, limit) = text.split_at(at);
            spec.objective
                .insert(metric.trim().to_owned(), limit.to_owned());
        }
    }
    objective::plotted_objective(&spec.objectives()).cloned()
}

fn draw(frame: &PlotArea, record: &SearchRecord, points: &[(&Trial, f64)]) -> Markup {
    let finding = record.finding.as_ref();
    let limit = charted_objective(record).map(|o| o.limit / 1e3);
    let fastest = points.iter().map(|p| p.1).fold(f64::INFINITY, f64::min);
    let slowest = points.iter().map(|p| p.1).fold(0.0, f64::max);
    let most = points.iter().map(|p| p.0.rate_per_s).fold(0.0, f64::max);
    let x = AxisScale::linear(0.0, most * 1.06, frame.left, frame.x_end());
    let low = limit.map_or(fastest, |l| l.min(fastest));
    let high = limit.map_or(slowest, |l| l.max(slowest));
    let y = AxisScale::log(low / 1.3, high * 1.3, frame.y_end(), frame.top);
    let rates = x.labelled_ticks(frame.pick_for_width(9, 4), |value| {
        short_amount(record, value)
    });
    let unit = match record.goal.variable {
        SearchVariable::Rate => "arrivals a second",
        SearchVariable::Users => "users",
    };
    let label = finding.and_then(|f| f.line_per_s).map_or_else(
        || "Latency against rate. No load line was found.".to_owned(),
        |line| format!("Latency against rate, with the load line at {}. The figures are in the table below.", amount(&record.goal, line)),
    );
    frame.svg(
        &label,
        &html! {
            (y_axis(frame, &y, 7, format_short_time))
            @if let Some(limit) = limit {
                @let at = round_px(y.position(limit));
                path class="line dash stroke c4" d={ "M" (frame.left) " " (at) "H" (frame.x_end()) } {}
                text x=(frame.left + 6.0) y=(at - 6.0) { "objective " (time(limit)) }
            }
            @if let Some(f) = finding { (draw_load_line(frame, &x, record, f)) }
            path class="line stroke c5" opacity="0.55" d=(svg_path(median_latency_by_rate(points).into_iter().map(|(r, us)| (x.position(r), y.position(us))))) {}
            @for (trial, us) in points { (draw_mark(record, trial, x.position(trial.rate_per_s), y.position(*us))) }
            @if let Some(knee) = finding.and_then(|f| f.knee) {
                @let (kx, ky) = (round_px(x.position(knee.rate_per_s)), round_px(y.position(knee.p99_us)));
                circle class="stroke c3" cx=(kx) cy=(ky) r="9" fill="none" stroke-width="2" {}
                text class="strong" x=(kx - 14.0) y=(ky - 6.0) text-anchor="end" { "knee" }
            }
            (x_axis(frame, &rates, unit))
        },
    )
}

/// Draws the load line with its bounds.
fn draw_load_line(
    frame: &PlotArea,
    x: &AxisScale,
    record: &SearchRecord,
    finding: &plimsoll_model::search::SearchResult,
) -> Markup {
    let Some(at) = finding.line_per_s else {
        return html! {};
    };
    let here = round_px(x.position(at));
    // The label is placed on the side that has more space.
    let left = here > f64::midpoint(frame.left, frame.x_end());
    html! {
        @if let (Some(low), Some(high)) = (finding.low_per_s, finding.high_per_s) {
            rect class="fill c0 band" x=(round_px(x.position(low))) y=(frame.top)
                width=(round_px((x.position(high) - x.position(low)).max(2.0))) height=(round_px(frame.y_end() - frame.top)) {}
        }
        path class="line stroke c0" d={ "M" (here) " " (frame.top) "V" (round_px(frame.y_end())) } {}
        text class="strong" x=(if left { here - 9.0 } else { here + 9.0 }) y=(frame.top + 14.0)
            text-anchor=(if left { "end" } else { "start" }) { (short_amount(record, at)) }
    }
}

/// Returns a rate or a number of users without its unit's name, for a chart.
fn short_amount(record: &SearchRecord, value: f64) -> String {
    match record.goal.variable {
        SearchVariable::Rate => rate(value),
        SearchVariable::Users => count(value.round() as u64),
    }
}

fn draw_mark(record: &SearchRecord, trial: &Trial, x: f64, y: f64) -> Markup {
    let (x, y) = (round_px(x), round_px(y));
    let title = format!(
        "{}: {}",
        amount(&record.goal, trial.rate_per_s),
        crate::search::verdict(&trial.verdict)
    );
    html! {
        @match &trial.verdict {
            TrialVerdict::Met => circle class="fill c2" cx=(x) cy=(y) r="5" { title { (title) } },
            TrialVerdict::Missed { .. } | TrialVerdict::Growing => path class="line stroke c4" d={ "M" (x - 4.5) " " (y - 4.5) "l9 9m0-9l-9 9" } { title { (title) } },
            TrialVerdict::GeneratorLimited { .. } | TrialVerdict::TooFewCalls { .. } => circle class="stroke c5" cx=(x) cy=(y) r="4.5" fill="none" stroke-width="2" { title { (title) } },
        }
    }
}

/// Returns the median latency at each rate.
fn median_latency_by_rate(points: &[(&Trial, f64)]) -> Vec<(f64, f64)> {
    let mut all: Vec<(f64, Vec<f64>)> = Vec::new();
    for (trial, us) in points {
        if matches!(
            trial.verdict,
            TrialVerdict::GeneratorLimited { .. } | TrialVerdict::TooFewCalls { .. }
        ) {
            continue;
        }
        match all.last_mut().filter(|(r, _)| *r == trial.rate_per_s) {
            Some((_, values)) => values.push(*us),
            None => all.push((trial.rate_per_s, vec![*us])),
        }
    }
    all.into_iter()
        .filter_map(|(r, values)| Some((r, median_of_unsorted(values)?)))
        .collect()
}
