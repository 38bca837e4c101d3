//! Draws the figures and objectives of a run on a terminal that is too small for tables. Figures are drawn one per line
//! or, if there are too few rows, side by side. Text that doesn't fit ends with `…`.

use plimsoll_model::objective::{ObjectiveResult, ObjectiveVerdict};
use plimsoll_report::quantity::{count, or_dash, plural, rate, time};
use ratatui::layout::Rect;
use ratatui::text::Line;

use super::{
    Dashboard, format_clock, objective_lines, printable, shorten, text_width, verdict_line,
    verdict_style,
};

/// Returns the lines to draw, at most as many as `area` has rows.
pub(super) fn lines(board: &Dashboard, area: Rect) -> Vec<Line<'static>> {
    let (width, height) = (usize::from(area.width), usize::from(area.height));
    let mut rows = vec![board.title.clone()];
    rows.extend(board.context.iter().cloned());
    let figures = figures(board);
    let judged = board.objectives.len();
    let is_low = rows.len() + figures.len() + judged > height;
    rows.extend(if is_low {
        arrange_figures(&figures, width)
    } else {
        figures
    });
    // Reserve one row for the number of objectives that don't fit.
    let room = height - usize::from(judged > 0 && height > 1);
    let is_cut = rows.len() > room;
    rows.truncate(room);
    if let Some(last) = rows.last_mut().filter(|_| is_cut) {
        *last = format!("{} …", shorten(last, width.saturating_sub(2)));
    }
    let left = height - rows.len();
    let rows = rows.iter().map(|row| printable(&shorten(row, width)));
    let mut lines: Vec<Line<'static>> = rows.collect();
    if judged <= left {
        lines.extend(objective_lines(board, area.width, left))
    } else {
        lines.extend(missed_objectives_first(&board.objectives, width, left))
    }
    lines
}

/// Returns the lines of as many objectives as fit, missed objectives first, and a line that counts the others.
fn missed_objectives_first(
    objectives: &[ObjectiveResult],
    width: usize,
    rows: usize,
) -> Vec<Line<'static>> {
    let Some(shown) = rows.checked_sub(1) else {
        return Vec::new();
    };
    let is_missed = |judged: &&ObjectiveResult| judged.verdict == ObjectiveVerdict::Missed;
    let (missed, others): (Vec<&ObjectiveResult>, Vec<&ObjectiveResult>) =
        objectives.iter().partition(is_missed);
    let all = missed.iter().chain(&others).take(shown);
    let mut lines: Vec<Line<'static>> = all
        .map(|judged| {
            let text = shorten(&verdict_line(judged), width);
            printable(&text).style(verdict_style(judged.verdict))
        })
        .collect();
    let of_them = match missed.len().saturating_sub(shown) {
        0 => String::new(),
        n => format!(", {n} missed"),
    };
    let more = (objectives.len() - shown) as u64;
    let rest = format!("… {}{of_them}", plural(more, "more objective"));
    lines.push(Line::from(shorten(&rest, width)));
    lines
}

/// Returns the most important figures, each with a short label.
fn figures(board: &Dashboard) -> Vec<String> {
    let (last, all) = (&board.last, &board.so_far);
    let left = board
        .progress()
        .map_or(String::new(), |(_, left)| format!(", {left}"));
    let at = |us| or_dash(us, time);
    let response = all.response();
    vec![
        format!("{}{left}", format_clock(board.elapsed.as_secs_f64())),
        format!("{} now", rate(last.per_second(last.record.ended_calls()))),
        format!("{} done", count(all.record.ended_calls())),
        format!("{} failed", count(all.record.errors())),
        format!("p50 {}", at(response.and_then(|r| r.p50_us))),
        format!("p99 {}", at(response.and_then(|r| r.p99_us))),
    ]
}

/// Arranges figures in lines, with as many per line as fit into `width`.
fn arrange_figures(figures: &[String], width: usize) -> Vec<String> {
    const FIGURE_SEPARATOR: &str = " · ";
    let mut rows: Vec<String> = Vec::new();
    for figure in figures {
        let together = text_width(figure) + text_width(FIGURE_SEPARATOR);
        match rows.last_mut() {
            Some(row) if text_width(row) + together <= width => {
                row.push_str(FIGURE_SEPARATOR);
                row.push_str(figure);
            }
            _ => rows.push(figure.clone()),
        }
    }
    rows
}
