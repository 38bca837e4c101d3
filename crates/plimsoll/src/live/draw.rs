//! Draws the board. What does not fit is left out, the least important first.

use plimsoll_report::quantity::{bytes, count, rate, share, time};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::line::THICK_HORIZONTAL;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, LineGauge, Paragraph, Row, Sparkline, Table};

use super::board::{Board, End, Phase, Spread, clock};

const SOFT: Style = Style::new().add_modifier(Modifier::DIM);
const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);
const SEA: Style = Style::new().fg(Color::Cyan);
const BAD: Style = Style::new().fg(Color::Red).add_modifier(Modifier::BOLD);
/// Columns of the panels at the left, with a gap behind them.
const LEFT: u16 = 40;
const GAP: u16 = 2;
/// Rows of the table of times: head, five percentiles, the last interval's p50 and p99.
const FIGURES: u16 = 10;

/// Draws `board`, and below it what was `noted` while it is shown.
pub(super) fn draw(frame: &mut Frame<'_>, board: &Board, noted: &[String]) {
    let area = frame.area();
    let context = board.context.len() as u16;
    let height = area.height;
    let errors = board.so_far.errors_by_code().len().max(1) as u16;
    let ends = errors.clamp(3, 6) + 2;
    let pictures = if height >= 22 + context { 5 } else { 0 };
    let [head, middle, pictures, ends, notes, foot] = Layout::vertical([
        Constraint::Length(3 + context),
        Constraint::Length(FIGURES),
        Constraint::Length(pictures),
        Constraint::Length(if height >= 17 + context { ends } else { 0 }),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(area);
    header(frame, head, board);
    let [calls, times] =
        Layout::horizontal([Constraint::Length(LEFT), Constraint::Min(0)]).areas(middle);
    calls_panel(frame, before_gap(calls), board);
    times_panel(frame, times, board);
    let [rates, p99s] =
        Layout::horizontal([Constraint::Percentage(50), Constraint::Percentage(50)])
            .areas(pictures);
    history(frame, rates, " calls/s ", &board.rates, SEA, |n| {
        rate(n as f64)
    });
    let orange = Style::new().fg(Color::Yellow);
    history(
        frame,
        p99s,
        " p99, by the second ",
        &board.p99s,
        orange,
        |us| time(us as f64),
    );
    let [failed, both] =
        Layout::horizontal([Constraint::Length(LEFT), Constraint::Min(0)]).areas(ends);
    errors_panel(frame, before_gap(failed), board);
    ends_panel(frame, both, board);
    notes_panel(frame, notes, noted);
    let keys = "q: end the run, with everything written · Ctrl-C: the same, twice: at once";
    frame.render_widget(Paragraph::new(Span::styled(keys, SOFT)), foot);
}

fn header(frame: &mut Frame<'_>, area: Rect, board: &Board) {
    let (phase, style) = match board.phase {
        Phase::Connecting { wanted: 0, .. } => ("connecting".to_owned(), SOFT),
        Phase::Connecting { open, wanted } => (
            format!("connecting: {} of {}", count(open), count(wanted)),
            SOFT,
        ),
        Phase::WarmUp => ("warm-up".to_owned(), SOFT),
        Phase::Measuring => ("measuring".to_owned(), SEA),
    };
    let room = usize::from(area.width).saturating_sub(phase.chars().count() + 1);
    let title = shortened(&board.title, room);
    let gap = room - title.chars().count() + 1;
    let mut lines = vec![
        Line::from(vec![
            Span::styled(title, STRONG),
            Span::raw(" ".repeat(gap)),
            Span::styled(phase, style),
        ]),
        Line::styled(board.what.clone(), SOFT),
    ];
    lines.extend(
        board
            .context
            .iter()
            .map(|line| Line::styled(line.clone(), SEA)),
    );
    let [text, gauge] = Layout::vertical([
        Constraint::Length(lines.len() as u16),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(Paragraph::new(lines), text);
    let elapsed = clock(board.elapsed.as_secs_f64());
    match board.progress() {
        Some((part, left)) => {
            let of = match board.wanted_calls {
                Some(wanted) => format!("{} of {} calls, ", count(board.calls), count(wanted)),
                None => String::new(),
            };
            frame.render_widget(
                LineGauge::default()
                    .filled_symbol(THICK_HORIZONTAL)
                    .filled_style(SEA)
                    .unfilled_style(SOFT)
                    .label(format!("{of}{elapsed}, {left} "))
                    .ratio(part.clamp(0.0, 1.0)),
                gauge,
            );
        }
        None => frame.render_widget(
            Paragraph::new(format!("{elapsed}, until it is ended")),
            gauge,
        ),
    }
}

fn before_gap(area: Rect) -> Rect {
    Rect {
        width: area.width.saturating_sub(GAP),
        ..area
    }
}

fn panel(title: &str) -> Block<'_> {
    Block::new()
        .borders(Borders::TOP)
        .border_style(SOFT)
        .title(Span::styled(title, STRONG))
}

fn right<'a>(text: impl Into<String>) -> Cell<'a> {
    Cell::from(Line::from(text.into()).right_aligned())
}

fn calls_panel(frame: &mut Frame<'_>, area: Rect, board: &Board) {
    let (last, all) = (&board.last, &board.so_far);
    let row = |name: &'static str, now: String, total: String, style: Style| {
        Row::new([Cell::from(name), right(now), right(total)]).style(style)
    };
    let flow = |name, now: u64, total: u64, style| {
        row(name, rate(last.per_second(now)), count(total), style)
    };
    let failing = if all.errors > 0 { BAD } else { Style::new() };
    let mut rows = vec![
        flow("due", last.due, all.due, Style::new()),
        flow("done", last.ended, all.ended, STRONG),
        flow("failed", last.errors, all.errors, failing),
        row(
            "in flight",
            count(board.in_flight),
            String::new(),
            Style::new(),
        ),
        row("waiting", count(board.backlog), String::new(), Style::new()),
        row(
            "connections",
            count(board.connections),
            String::new(),
            Style::new(),
        ),
    ];
    for (i, (name, total)) in all.besides.iter().enumerate() {
        let now = last.besides.get(i).map_or(0, |(_, n)| *n);
        rows.push(flow(name, now, *total, Style::new()));
    }
    let widths = [
        Constraint::Length(17),
        Constraint::Length(10),
        Constraint::Length(9),
    ];
    let head = Row::new([Cell::from(""), right("now"), right("so far")]).style(SOFT);
    frame.render_widget(
        Table::new(rows, widths)
            .header(head)
            .column_spacing(1)
            .block(panel("calls ")),
        area,
    );
}

fn times_panel(frame: &mut Frame<'_>, area: Rect, board: &Board) {
    let dash = |us: Option<f64>| us.map_or_else(|| "–".to_owned(), time);
    let kinds = [
        &board.so_far.response,
        &board.so_far.service,
        &board.so_far.lag,
    ];
    let now = [&board.last.response, &board.last.service, &board.last.lag];
    type Of = fn(&Spread) -> Option<f64>;
    let so_far: [(&str, Of); 5] = [
        ("p50", |s| s.p50),
        ("p90", |s| s.p90),
        ("p99", |s| s.p99),
        ("p99.9", |s| s.p99_9),
        ("max", |s| s.max),
    ];
    let line = |name: &'static str, of: Of, from: [&Spread; 3], style: Style| {
        let mut cells = vec![Cell::from(name)];
        cells.extend(from.into_iter().map(|s| right(dash(of(s)))));
        Row::new(cells).style(style)
    };
    let mut rows: Vec<Row<'_>> = vec![
        line("now p50", |s| s.p50, now, STRONG),
        line("now p99", |s| s.p99, now, STRONG),
    ];
    rows.extend(
        so_far
            .into_iter()
            .map(|(name, of)| line(name, of, kinds, Style::new())),
    );
    let widths = [
        Constraint::Length(8),
        Constraint::Length(10),
        Constraint::Length(10),
        Constraint::Length(10),
    ];
    let head = Row::new([
        Cell::from(""),
        right("response"),
        right("service"),
        right("lag"),
    ]);
    frame.render_widget(
        Table::new(rows, widths)
            .header(head.style(SOFT))
            .column_spacing(1)
            .block(panel("times of calls that ended ok ")),
        area,
    );
}

fn history(
    frame: &mut Frame<'_>,
    area: Rect,
    title: &str,
    values: &std::collections::VecDeque<u64>,
    style: Style,
    show: impl Fn(u64) -> String,
) {
    let columns = usize::from(before_gap(area).width);
    let shown: Vec<u64> = values.iter().rev().take(columns).rev().copied().collect();
    let most = shown.iter().copied().max().unwrap_or(0);
    let title = if most > 0 {
        format!("{}(up to {}) ", title.trim_start(), show(most))
    } else {
        title.trim_start().to_owned()
    };
    frame.render_widget(
        Sparkline::default()
            .data(&shown)
            .style(style)
            .block(panel(&title)),
        before_gap(area),
    );
}

fn errors_panel(frame: &mut Frame<'_>, area: Rect, board: &Board) {
    let errors = board.so_far.errors_by_code();
    let all = board.so_far.ended;
    let room = usize::from(area.height.saturating_sub(1));
    let mut rows: Vec<Row<'_>> = errors
        .iter()
        .take(room)
        .map(|(outcome, n)| {
            let now = board.last.of_outcome(*outcome);
            Row::new([
                Cell::from(outcome.code()).style(BAD),
                right(count(*n)),
                right(share(*n, all)),
                right(if now > 0 {
                    format!("+{}", count(now))
                } else {
                    String::new()
                }),
            ])
        })
        .collect();
    if rows.is_empty() {
        rows.push(Row::new([Cell::from("none")]).style(SOFT));
    }
    let widths = [
        Constraint::Min(10),
        Constraint::Length(6),
        Constraint::Length(7),
        Constraint::Length(5),
    ];
    let title = match errors.len().saturating_sub(room) {
        0 => "errors ".to_owned(),
        more => format!("errors (and {more} more) "),
    };
    frame.render_widget(
        Table::new(rows, widths)
            .column_spacing(1)
            .block(panel(&title)),
        area,
    );
}

fn ends_panel(frame: &mut Frame<'_>, area: Rect, board: &Board) {
    let percent = |part: f64| format!("{:.0} %", part * 100.0);
    let row = |name: &'static str, end: Option<End>| {
        let cells = match end {
            None => vec![Cell::from(name), right("not seen").style(SOFT)],
            Some(end) => vec![
                Cell::from(name),
                right(percent(end.cpu_share)),
                right(end.cpu_us_per_call.map_or_else(|| "–".to_owned(), time)),
                right(bytes(end.rss_bytes)),
                right(count(end.descriptors)),
            ],
        };
        Row::new(cells)
    };
    let rows = [row("client", board.client), row("server", board.server)];
    let widths = [
        Constraint::Length(7),
        Constraint::Length(8),
        Constraint::Length(8),
        Constraint::Length(9),
        Constraint::Length(6),
    ];
    let head = Row::new([
        Cell::from(""),
        right("CPU"),
        right("a call"),
        right("memory"),
        right("files"),
    ]);
    let table = Table::new(rows, widths)
        .header(head.style(SOFT))
        .column_spacing(1)
        .block(panel("both ends "));
    let [table_area, below] =
        Layout::vertical([Constraint::Length(4), Constraint::Min(0)]).areas(area);
    frame.render_widget(table, table_area);
    let busiest = format!(
        "busiest worker {}, this view {:.1} %",
        percent(board.busiest_worker),
        board.view_share * 100.0
    );
    frame.render_widget(Paragraph::new(Span::styled(busiest, SOFT)), below);
}

/// The latest messages, the newest last.
fn notes_panel(frame: &mut Frame<'_>, area: Rect, noted: &[String]) {
    if area.height < 2 || noted.is_empty() {
        return;
    }
    let lines: Vec<Line<'_>> = noted
        .iter()
        .flat_map(|text| text.lines())
        .map(printable)
        .collect();
    let room = usize::from(area.height - 1);
    let shown = lines[lines.len().saturating_sub(room)..].to_vec();
    frame.render_widget(Paragraph::new(shown).block(panel("so far ")), area);
}

/// Text from elsewhere must not steer the terminal.
fn printable(text: &str) -> Line<'static> {
    let clean = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    Line::from(text.chars().map(clean).collect::<String>())
}

/// `text` in at most `room` characters.
fn shortened(text: &str, room: usize) -> String {
    if text.chars().count() <= room {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(room.saturating_sub(1)).collect();
    if room > 0 {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use plimsoll_model::record::StageRecord;
    use plimsoll_model::run::{IntervalRecord, Resources};
    use plimsoll_model::{Outcome, Plan, spec};
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use snapbox::{assert_data_eq, file};

    use super::*;
    use crate::environment::Environment;
    use crate::planning;
    use crate::problems::Source;

    fn plan(load: &str) -> Plan {
        let text = format!(
            "name = \"score, steady\"\ntarget = \"grpc://127.0.0.1:50051\"\n[call.grpc]\nmethod = \"score.ScoreService/GetScore\"\n[load]\n{load}"
        );
        let spec = spec::read(&text).expect("a plan");
        planning::plan(&spec, &Environment::default(), &Source::Flags).expect("resolved")
    }

    fn interval(index: u64, stage: u8, failing: u64) -> IntervalRecord {
        let mut record = StageRecord {
            due: 1_000,
            ..StageRecord::default()
        };
        for call in 0..1_000 - failing {
            record
                .response
                .record(5_000_000 + call * 2_000 + index * 10_000);
            record.service.record(4_900_000 + call * 2_000);
            record.lag.record(12_000 + call * 10);
        }
        record.outcomes.add(Outcome::Ok, 1_000 - failing);
        record.outcomes.add(Outcome::DeadlineExceeded, failing / 2);
        record.outcomes.add(Outcome::Reset, failing - failing / 2);
        let used = |us| {
            Some(Resources {
                cpu_user_us: us,
                cpu_system_us: Some(us / 2),
                rss_bytes: 9_400_000,
                rss_bytes_before: None,
                descriptors: 13,
                threads: 2,
            })
        };
        IntervalRecord {
            index,
            start_offset: Duration::from_secs(index),
            length: Duration::from_secs(1),
            stages: vec![(stage, record)],
            in_flight: 5,
            backlog: failing,
            connections_open: 1,
            busiest_worker_ratio: 0.12,
            client: used(80_000),
            server: used(400_000),
            ..IntervalRecord::default()
        }
    }

    fn frame(board: &Board, noted: &[String], width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal
            .draw(|frame| draw(frame, board, noted))
            .expect("drawn");
        let buffer = terminal.backend().buffer();
        let mut text = String::new();
        for y in 0..height {
            let line: String = (0..width).map(|x| buffer[(x, y)].symbol()).collect();
            text += line.trim_end();
            text.push('\n');
        }
        text
    }

    fn running(load: &str, failing: u64) -> Board {
        let mut board = Board::of(&plan(load), Vec::new(), Duration::ZERO);
        board.interval(&interval(0, 0, 0), Duration::from_micros(300));
        for index in 1..8 {
            board.interval(
                &interval(index, 1, failing),
                Duration::from_micros(300 * (index + 1)),
            );
        }
        board
    }

    const TIMED: &str = "rate = \"1000/s\"\nwarmup = \"1s\"\nduration = \"30s\"\n";

    #[test]
    fn a_run_at_its_work() {
        let noted = ["1 of 10 connections did not come up".to_owned()];
        let text = frame(&running(TIMED, 20), &noted, 80, 30);
        assert_data_eq!(text, file!["golden/run.txt"]);
    }

    #[test]
    fn calls_that_were_given_up_are_no_errors() {
        let mut board = running(TIMED, 0);
        let mut last = interval(8, 1, 0);
        let record = &mut last.stages[0].1;
        record.not_started = 700;
        record.outcomes.add(Outcome::Interrupted, 30);
        record.outcomes.add(Outcome::CutOff, 20);
        board.interval(&last, Duration::ZERO);
        let text = frame(&board, &[], 80, 30);
        let failed = text.lines().find(|line| line.contains("failed"));
        let words: Vec<&str> = failed.unwrap_or_default().split_whitespace().collect();
        assert!(
            words.windows(3).any(|w| w == ["failed", "0/s", "0"]),
            "{text}"
        );
        assert!(
            !text.contains("INTERRUPTED") && !text.contains("CUT_OFF"),
            "{text}"
        );
    }

    #[test]
    fn before_the_first_call() {
        let mut board = Board::of(&plan(TIMED), Vec::new(), Duration::ZERO);
        board.phase = Phase::Connecting {
            open: 640,
            wanted: 10_000,
        };
        assert_data_eq!(frame(&board, &[], 80, 24), file!["golden/connecting.txt"]);
    }

    #[test]
    fn a_trial_of_a_search_on_a_wide_terminal() {
        let mut board = running(TIMED, 0);
        board.context =
            vec!["trial 7, narrow, at 1,000/s · the line is between 900/s and 1,100/s".to_owned()];
        let noted: Vec<String> = (1..7)
            .map(|n| format!("trial  {n}  double   met"))
            .collect();
        assert_data_eq!(frame(&board, &noted, 120, 40), file!["golden/search.txt"]);
    }

    #[test]
    fn calls_are_counted_down() {
        let board = running(
            "clients = 2\nconnections = 2\ncalls = 20000\nwarmup = \"1s\"\n",
            0,
        );
        assert_data_eq!(frame(&board, &[], 80, 24), file!["golden/calls.txt"]);
    }

    #[test]
    fn no_terminal_is_too_small() {
        let board = running(TIMED, 20);
        for (width, height) in [(1, 1), (10, 3), (20, 8), (40, 12), (79, 16), (500, 200)] {
            frame(&board, &["noted".to_owned()], width, height);
        }
    }
}
