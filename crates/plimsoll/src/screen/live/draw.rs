//! Draws the dashboard. Parts that don't fit are left out, the least important first.

mod grid;
mod lines;

use plimsoll_model::objective::{ObjectiveResult, ObjectiveVerdict};
use plimsoll_model::runs::run::TimesSummary;
use plimsoll_report::quantity::{bytes, count, or_dash, rate, share, time};
use plimsoll_report::terminal::wrap;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::line::THICK_HORIZONTAL;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, LineGauge, Paragraph, Sparkline};

use super::dashboard::{Dashboard, EndpointUsage, RunPhase, TimeStats};
use crate::screen::remaining::format_clock;
use grid::{Grid, GridRow};
use lines::lines;

const DIM_STYLE: Style = Style::new().add_modifier(Modifier::DIM);
/// Bold and not dim: if both are set, terminals show only one of them, and differ in which one.
const BOLD_STYLE: Style = Style::new()
    .add_modifier(Modifier::BOLD)
    .remove_modifier(Modifier::DIM);
const ACCENT_STYLE: Style = Style::new().fg(Color::Cyan);
const ERROR_STYLE: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
/// Width of the left panels if there are two columns of panels, and the gap after them.
const LEFT_PANEL_WIDTH: u16 = 40;
const PANEL_GAP: u16 = 2;
/// Number of rows of the table of times: title, head, p50 and p99 of the last interval, four percentiles, maximum,
/// blank row.
const TIMES_TABLE_ROWS: u16 = 10;
/// Minimum terminal size for panels; on smaller terminals plain lines are drawn.
const MIN_COLUMNS: u16 = 60;
const MIN_ROWS: u16 = 10;
/// Minimum and maximum number of rows of the charts.
const MIN_CHART_ROWS: u16 = 5;
const MAX_CHART_ROWS: u16 = 16;

/// Draws the dashboard `board`, and below it the messages `noted`, which are held back from stderr while the live view
/// is shown.
pub(super) fn draw(frame: &mut Frame<'_>, board: &Dashboard, noted: &[String]) {
    let area = frame.area();
    if area.width < MIN_COLUMNS || area.height < MIN_ROWS {
        frame.render_widget(Paragraph::new(lines(board, area)), area);
        return;
    }
    let rows = RowLayout::allot_rows(area, board, noted);
    let [head, middle, objectives, pictures, ends, notes, foot] = Layout::vertical([
        Constraint::Length(rows.head),
        Constraint::Length(TIMES_TABLE_ROWS),
        Constraint::Length(rows.objectives),
        Constraint::Length(rows.charts),
        Constraint::Length(rows.endpoints),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(area);
    // On a narrow terminal, limit the left panels to half of the width, rounded up, plus half of the gap.
    let left = LEFT_PANEL_WIDTH.min(area.width.div_ceil(2) + 1);
    let halves =
        |area| Layout::horizontal([Constraint::Length(left), Constraint::Min(0)]).areas(area);
    draw_header(frame, head, board);
    let [calls, times] = halves(middle);
    calls_panel(frame, without_gap(calls), board);
    times_panel(frame, times, board);
    objectives_panel(frame, objectives, board);
    let [rates, tails] =
        Layout::horizontal([Constraint::Percentage(50), Constraint::Percentage(50)])
            .areas(pictures);
    draw_history(frame, rates, "calls/s", &board.rates, ACCENT_STYLE, |n| {
        rate(n as f64)
    });
    let orange = Style::new().fg(Color::Yellow);
    let (name, tail) = board.tail_latency_history();
    draw_history(frame, tails, name, tail, orange, |us| time(us as f64));
    let [failed, both] = halves(ends);
    errors_panel(frame, without_gap(failed), board);
    endpoints_panel(frame, both, board);
    notes_panel(frame, notes, noted);
    let keys = "q/Ctrl-C: stop and save · Ctrl-C twice: quit now";
    frame.render_widget(Paragraph::new(Span::styled(keys, DIM_STYLE)), foot);
}

/// The number of rows of each part of the screen.
struct RowLayout {
    head: u16,
    objectives: u16,
    charts: u16,
    endpoints: u16,
}

impl RowLayout {
    /// Distributes the rows of the terminal. If there are too few, the least important parts are dropped first; spare
    /// rows are used for objectives with long reasons, then for the charts.
    fn allot_rows(area: Rect, board: &Dashboard, noted: &[String]) -> RowLayout {
        let head = 3 + board.context.len() as u16;
        let errors = board.so_far.errors_by_code().len().max(1) as u16;
        let mut left = area.height.saturating_sub(head + TIMES_TABLE_ROWS + 1);
        let mut take = |rows: u16| {
            let taken = if rows <= left { rows } else { 0 };
            left -= taken;
            taken
        };
        let judged = board.objectives.len() as u16;
        let objectives = take(if judged > 0 { judged + 1 } else { 0 });
        let ends = take(errors.clamp(3, 6) + 2);
        let pictures = take(MIN_CHART_ROWS);
        let reasons: usize = verdict_rows(board, area.width).iter().map(Vec::len).sum();
        let more = u16::try_from(reasons).unwrap_or(u16::MAX) - judged;
        let more = if objectives > 0 { left.min(more) } else { 0 };
        left -= more;
        let notes = note_rows(noted, area.width).len();
        let wanted = u16::try_from(notes)
            .unwrap_or(u16::MAX)
            .saturating_add(1)
            .min(left / 2);
        let growth = if pictures > 0 { left - wanted } else { 0 };
        RowLayout {
            head,
            objectives: objectives + more,
            charts: pictures + growth.min(MAX_CHART_ROWS - MIN_CHART_ROWS),
            endpoints: ends,
        }
    }
}

fn draw_header(frame: &mut Frame<'_>, area: Rect, board: &Dashboard) {
    let (phase, style) = match board.phase {
        RunPhase::Connecting { wanted: 0, .. } => ("connecting".to_owned(), DIM_STYLE),
        RunPhase::Connecting { open, wanted } => (
            format!("connecting: {} of {}", count(open), count(wanted)),
            DIM_STYLE,
        ),
        RunPhase::WarmUp => ("warm-up".to_owned(), DIM_STYLE),
        RunPhase::Measuring => ("measuring".to_owned(), ACCENT_STYLE),
    };
    let width = usize::from(area.width);
    let room = width.saturating_sub(text_width(&phase) + 1);
    let title = shorten(&board.title, room);
    let gap = room - text_width(&title) + 1;
    let mut lines = vec![
        Line::from(vec![
            Span::styled(title, BOLD_STYLE),
            Span::raw(" ".repeat(gap)),
            Span::styled(phase, style),
        ]),
        Line::styled(shorten(&board.subtitle, width), DIM_STYLE),
    ];
    let context = board.context.iter().map(|line| shorten(line, width));
    lines.extend(context.map(|line| Line::styled(line, ACCENT_STYLE)));
    let [text, gauge] = Layout::vertical([
        Constraint::Length(lines.len() as u16),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(lines), text);
    let elapsed = format_clock(board.elapsed.as_secs_f64());
    match board.progress() {
        Some((part, left)) => {
            let of = match board.wanted_calls {
                Some(wanted) => format!("{} of {} calls, ", count(board.calls), count(wanted)),
                None => String::new(),
            };
            frame.render_widget(
                LineGauge::default()
                    .filled_symbol(THICK_HORIZONTAL)
                    .filled_style(ACCENT_STYLE)
                    .unfilled_style(DIM_STYLE)
                    .label(format!("{of}{elapsed}, {left} "))
                    .ratio(part.clamp(0.0, 1.0)),
                gauge,
            );
        }
        None => frame.render_widget(
            Paragraph::new(format!("{elapsed}, until it is stopped")),
            gauge,
        ),
    }
}

fn without_gap(area: Rect) -> Rect {
    Rect {
        width: area.width.saturating_sub(PANEL_GAP),
        ..area
    }
}

fn panel(title: &str) -> Block<'_> {
    Block::new()
        .borders(Borders::TOP)
        .border_style(DIM_STYLE)
        .title(Span::styled(title, BOLD_STYLE))
}

fn calls_panel(frame: &mut Frame<'_>, area: Rect, board: &Dashboard) {
    let (last, all) = (&board.last, &board.so_far);
    let (now, so_far) = (&last.record, &all.record);
    let flow = |name: &str, now: u64, total: u64, style| {
        let now = rate(last.per_second(now));
        GridRow::new([name.to_owned(), now, count(total)], style)
    };
    let level =
        |name: &str, n: u64| GridRow::new([name.to_owned(), count(n), String::new()], Style::new());
    let failing = if so_far.errors() > 0 {
        ERROR_STYLE
    } else {
        Style::new()
    };
    let mut entries = vec![
        flow("scheduled", now.due, so_far.due, Style::new()),
        flow("done", now.ended_calls(), so_far.ended_calls(), BOLD_STYLE),
        flow("failed", now.errors(), so_far.errors(), failing),
        level("in flight", board.in_flight),
        level("waiting", board.backlog),
        level("connections", board.connections),
    ];
    if let Some(users) = &last.users {
        entries.push(level("users", users.in_flight));
        entries.push(level("users waiting", users.waiting));
    }
    let besides = last.other_counts();
    for (name, total) in all.other_counts() {
        let now = besides.iter().find(|(known, _)| *known == name);
        entries.push(flow(name, now.map_or(0, |(_, n)| *n), total, Style::new()));
    }
    let grid = Grid {
        title: "calls",
        head: &["", "now", "so far"],
        min_width: 9,
        entries,
    };
    grid.draw(frame, area);
}

/// Draws the table of times, with as many kinds of time as fit, the most important first.
fn times_panel(frame: &mut Frame<'_>, area: Rect, board: &Dashboard) {
    type TimeSelector = fn(TimesSummary) -> Option<f64>;
    let so_far: [(&str, TimeSelector); 5] = [
        ("p50", |t| t.p50_us),
        ("p90", |t| t.p90_us),
        ("p99", |t| t.p99_us),
        ("p99.9", |t| t.p99_9_us),
        ("max", |t| Some(t.max_us)),
    ];
    let kinds = board.so_far.times.iter().map(|(kind, _)| *kind);
    let entry = |name: &str, of: TimeSelector, times: &[(&'static str, TimeStats)], style| {
        // The last interval may have no value for this kind of time.
        let value = |kind: &str| {
            times
                .iter()
                .find(|(k, _)| *k == kind)
                .and_then(|(_, spread)| of((*spread)?))
        };
        let values = kinds.clone().map(|kind| or_dash(value(kind), time));
        let cells = std::iter::once(name.to_owned()).chain(values);
        GridRow::new(cells, style)
    };
    let now = &board.last.times;
    let mut entries = vec![
        entry("now p50", |t| t.p50_us, now, BOLD_STYLE),
        entry("now p99", |t| t.p99_us, now, BOLD_STYLE),
    ];
    for (name, of) in so_far {
        entries.push(entry(name, of, &board.so_far.times, Style::new()));
    }
    let head: Vec<&str> = std::iter::once("").chain(kinds.clone()).collect();
    let grid = Grid {
        title: "latency (successful calls)",
        head: &head,
        min_width: 10,
        entries,
    };
    grid.draw(frame, area);
}

/// Draws the provisional verdicts of the objectives.
fn objectives_panel(frame: &mut Frame<'_>, area: Rect, board: &Dashboard) {
    if area.height == 0 {
        return;
    }
    let lines = objective_lines(board, area.width, usize::from(area.height - 1));
    frame.render_widget(
        Paragraph::new(lines).block(panel("objectives, so far ")),
        area,
    );
}

/// Returns the lines of all objectives in `rows` rows; each objective gets at least one row.
fn objective_lines(board: &Dashboard, width: u16, rows: usize) -> Vec<Line<'static>> {
    let mut spare = rows.saturating_sub(board.objectives.len());
    let mut lines = Vec::new();
    for (judged, mut wrapped) in board.objectives.iter().zip(verdict_rows(board, width)) {
        // If a reason does not fit, its last row ends with `…`.
        let rest = wrapped.split_off(wrapped.len().min(spare + 1) - 1);
        spare -= wrapped.len();
        wrapped.push(rest.join(" "));
        let style = verdict_style(judged.verdict);
        let whole = wrapped.iter().map(|row| shorten(row, width.into()));
        lines.extend(whole.map(|row| printable(&row).style(style)));
    }
    lines
}

fn verdict_style(verdict: ObjectiveVerdict) -> Style {
    match verdict {
        ObjectiveVerdict::Met => Style::new().fg(Color::Green),
        ObjectiveVerdict::Missed => ERROR_STYLE,
        ObjectiveVerdict::CannotBeJudged | ObjectiveVerdict::NotSupported => DIM_STYLE,
    }
}

/// Returns the text of each objective's verdict, wrapped into rows.
fn verdict_rows(board: &Dashboard, width: u16) -> Vec<Vec<String>> {
    let rows = |judged| wrap(&verdict_line(judged), usize::from(width));
    board.objectives.iter().map(rows).collect()
}

/// Formats a line such as "p99 < 10ms: met (7.02ms)".
fn verdict_line(judged: &ObjectiveResult) -> String {
    let word = match judged.verdict {
        ObjectiveVerdict::Met => "met",
        ObjectiveVerdict::Missed => "missed",
        ObjectiveVerdict::CannotBeJudged | ObjectiveVerdict::NotSupported => "not yet known",
    };
    format!("{}: {word} ({})", judged.objective, judged.measured)
}

fn draw_history(
    frame: &mut Frame<'_>,
    area: Rect,
    title: &str,
    values: &std::collections::VecDeque<u64>,
    style: Style,
    show: impl Fn(u64) -> String,
) {
    let width = usize::from(without_gap(area).width);
    let shown: Vec<u64> = values.iter().rev().take(width).rev().copied().collect();
    let most = shown.iter().copied().max().unwrap_or(0);
    // If the maximum does not fit into the title, leave it out rather than cut it.
    let scale = format!("{title} (up to {}) ", show(most));
    let title = if most > 0 && text_width(&scale) <= width {
        scale
    } else {
        format!("{title} ")
    };
    frame.render_widget(
        Sparkline::default()
            .data(&shown)
            .style(style)
            .block(panel(&title)),
        without_gap(area),
    );
}

fn errors_panel(frame: &mut Frame<'_>, area: Rect, board: &Dashboard) {
    let errors = board.so_far.errors_by_code();
    let all = board.so_far.record.ended_calls();
    let room = usize::from(area.height.saturating_sub(1));
    let mut entries: Vec<GridRow> = errors
        .iter()
        .take(room)
        .map(|(outcome, n)| {
            let now = match board.last.record.outcomes.get(*outcome) {
                0 => String::new(),
                now => format!("+{}", count(now)),
            };
            let cells = [outcome.code().to_owned(), count(*n), now, share(*n, all)];
            GridRow::new(cells, ERROR_STYLE)
        })
        .collect();
    if entries.is_empty() {
        entries.push(GridRow::new(["none".to_owned()], DIM_STYLE));
    }
    let title = match errors.len().saturating_sub(room) {
        0 => "errors".to_owned(),
        more => format!("errors (and {more} more)"),
    };
    let grid = Grid {
        title: &title,
        head: &[],
        min_width: 5,
        entries,
    };
    grid.draw(frame, area);
}

fn endpoints_panel(frame: &mut Frame<'_>, area: Rect, board: &Dashboard) {
    let percent = |part: f64| format!("{:.0} %", part * 100.0);
    let entry = |name: &str, end: Option<EndpointUsage>| match end {
        None => GridRow::new([name.to_owned(), "not watched".to_owned()], DIM_STYLE),
        Some(end) => {
            let cells = [
                name.to_owned(),
                percent(end.cpu_share),
                or_dash(end.cpu_us_per_call, time),
                bytes(end.rss_bytes),
                count(end.descriptors),
            ];
            GridRow::new(cells, Style::new())
        }
    };
    let [table, below] = Layout::vertical([Constraint::Length(4), Constraint::Min(0)]).areas(area);
    let grid = Grid {
        title: "client and server",
        head: &["", "CPU", "a call", "memory", "open files"],
        min_width: 7,
        entries: vec![entry("client", board.client), entry("server", board.server)],
    };
    grid.draw(frame, table);
    let busiest = format!("busiest worker {}", percent(board.busiest_worker));
    let view = format!("{busiest}, this view {:.1} %", board.view_share * 100.0);
    let busiest = if text_width(&view) <= usize::from(below.width) {
        view
    } else {
        busiest
    };
    frame.render_widget(Paragraph::new(Span::styled(busiest, DIM_STYLE)), below);
}

/// Draws the latest messages, ending with the newest.
fn notes_panel(frame: &mut Frame<'_>, area: Rect, noted: &[String]) {
    if area.height < 2 || noted.is_empty() {
        return;
    }
    let rows = note_rows(noted, area.width);
    let room = usize::from(area.height - 1);
    let shown = rows[rows.len().saturating_sub(room)..].iter();
    let shown: Vec<Line<'_>> = shown
        .map(|row| printable(&shorten(row, area.width.into())))
        .collect();
    frame.render_widget(Paragraph::new(shown).block(panel("so far ")), area);
}

/// Returns the messages `noted`, wrapped into rows of `width` columns.
fn note_rows(noted: &[String], width: u16) -> Vec<String> {
    let width = usize::from(width);
    let rows = |line: &str| {
        if text_width(line) <= width {
            vec![line.to_owned()]
        } else {
            wrap(line, width)
        }
    };
    // Replace control characters before measuring: they have no width, but their replacement has.
    let lines = noted
        .iter()
        .flat_map(|text| text.lines())
        .map(replace_control_characters);
    lines.flat_map(|line| rows(&line)).collect()
}

/// Replaces control characters, so that text from servers or files can't control the terminal.
fn replace_control_characters(text: &str) -> String {
    let shown = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().map(shown).collect()
}

fn printable(text: &str) -> Line<'static> {
    Line::from(replace_control_characters(text))
}

/// Returns the number of terminal columns of `text`; wide characters such as Chinese take two.
fn text_width(text: &str) -> usize {
    Span::raw(text).width()
}

/// Shortens `text` to at most `room` terminal columns.
fn shorten(text: &str, room: usize) -> String {
    if text_width(text) <= room {
        return text.to_owned();
    }
    let starts = text.char_indices().map(|(at, _)| &text[..at]);
    let short = starts.take_while(|start| text_width(start) < room).last();
    short.map_or_else(String::new, |start| format!("{start}…"))
}

#[cfg(test)]
mod tests;
