//! Draws the live view on terminals of many sizes.

use std::time::Duration;

use plimsoll_model::metrics::measure::{Count, TimeMeasure};
use plimsoll_model::records::record::StageRecord;
use plimsoll_model::runs::run::{IntervalRecord, ResourceUsage, UserLevels};
use plimsoll_model::{Outcome, Plan, spec};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use snapbox::{assert_data_eq, file};

use super::*;
use crate::load::planning;
use crate::settings::environment::Environment;
use crate::settings::problems::PlanSource;

fn plan(load: &str) -> Plan {
    let text = format!(
        "name = \"score, open loop\"\ntarget = \"grpc://127.0.0.1:50051\"\n[call.grpc]\nmethod = \"score.ScoreService/GetScore\"\n[load]\n{load}"
    );
    plimsoll_protocols::registry::register_protocols();
    let spec = spec::read(&text).expect("a plan");
    planning::resolve_plan(&spec, &Environment::default(), &PlanSource::Flags).expect("resolved")
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
        Some(ResourceUsage {
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

fn buffer(board: &Dashboard, noted: &[String], width: u16, height: u16) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
    terminal
        .draw(|frame| draw(frame, board, noted))
        .expect("drawn");
    terminal.backend().buffer().clone()
}

fn frame(board: &Dashboard, noted: &[String], width: u16, height: u16) -> String {
    let buffer = buffer(board, noted, width, height);
    let mut text = String::new();
    for y in 0..height {
        let line: String = (0..width).map(|x| buffer[(x, y)].symbol()).collect();
        text += line.trim_end();
        text.push('\n');
    }
    text
}

fn running(load: &str, failing: u64) -> Dashboard {
    let mut board = Dashboard::new(&plan(load), Vec::new(), Duration::ZERO);
    board.add_interval(&interval(0, 0, 0), Duration::from_micros(300));
    for index in 1..8 {
        board.add_interval(
            &interval(index, 1, failing),
            Duration::from_micros(300 * (index + 1)),
        );
    }
    board
}

const LOAD_WITH_OBJECTIVES: &str = "rate = \"1000/s\"\nwarmup = \"1s\"\nduration = \"30s\"\n[objective]\np99 = \"< 10ms\"\nerrors = \"< 1%\"\n\"p99.99\" = \"< 1s\"\n";
const TIMED_LOAD: &str = "rate = \"1000/s\"\nwarmup = \"1s\"\nduration = \"30s\"\n";

#[test]
fn running_view_matches_golden() {
    let noted = ["1 of 10 connections did not come up".to_owned()];
    let text = frame(&running(TIMED_LOAD, 20), &noted, 80, 30);
    assert_data_eq!(text, file!["../golden/run.txt"]);
}

#[test]
fn users_are_shown_beside_calls() {
    let mut board = running(TIMED_LOAD, 0);
    let users = UserLevels {
        in_flight: 1_234,
        waiting: 7,
        ..UserLevels::default()
    };
    let last = IntervalRecord {
        users: Some(users),
        ..interval(8, 1, 0)
    };
    board.add_interval(&last, Duration::ZERO);
    let text = frame(&board, &[], 80, 30);
    let words: Vec<&str> = text.split_whitespace().collect();
    let text = words.join(" ");
    assert!(text.contains("users 1,234"), "{text}");
    assert!(text.contains("users waiting 7"), "{text}");
}

#[test]
fn abandoned_calls_are_not_errors() {
    let mut board = running(TIMED_LOAD, 0);
    let mut last = interval(8, 1, 0);
    let record = &mut last.stages[0].1;
    record.not_started = 700;
    record.outcomes.add(Outcome::Interrupted, 30);
    record.outcomes.add(Outcome::CutOff, 20);
    board.add_interval(&last, Duration::ZERO);
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
fn wide_characters_occupy_two_columns() {
    let mut board = running(TIMED_LOAD, 20);
    let name = "压力测试".repeat(20);
    board.title.clone_from(&name);
    board.subtitle.clone_from(&name);
    board.context = vec![name.clone()];
    for width in [60, 61, 80, 120] {
        let text = frame(&board, std::slice::from_ref(&name), width, 30);
        let ended = text.lines().filter(|line| line.contains('…'));
        assert_eq!(ended.count(), 4, "{text}");
        let first = text.lines().next().unwrap_or_default();
        assert!(
            first.ends_with("… measuring") || first.ends_with("…  measuring"),
            "{text}"
        );
    }
}

#[test]
fn connecting_view_shows_connection_count() {
    let mut board = Dashboard::new(&plan(TIMED_LOAD), Vec::new(), Duration::ZERO);
    board.phase = RunPhase::Connecting {
        open: 640,
        wanted: 10_000,
    };
    assert_data_eq!(
        frame(&board, &[], 80, 24),
        file!["../golden/connecting.txt"]
    );
}

#[test]
fn search_trial_on_wide_terminal() {
    let mut board = running(TIMED_LOAD, 0);
    board.context =
        vec!["step 7 at 1,000/s · the load line is between 900/s and 1,100/s".to_owned()];
    let noted: Vec<String> = (1..7)
        .map(|n| format!("step  {n}      1,000/s  met"))
        .collect();
    assert_data_eq!(
        frame(&board, &noted, 120, 40),
        file!["../golden/search.txt"]
    );
}

#[test]
fn call_limited_run_shows_completed_calls() {
    let board = running(
        "clients = 2\nconnections = 2\ncalls = 20000\nwarmup = \"1s\"\n",
        0,
    );
    assert_data_eq!(frame(&board, &[], 80, 24), file!["../golden/calls.txt"]);
}

#[test]
fn drawing_survives_any_terminal_size() {
    let board = running(TIMED_LOAD, 20);
    for (width, height) in [(1, 1), (10, 3), (20, 8), (40, 12), (79, 16), (500, 200)] {
        frame(&board, &["noted".to_owned()], width, height);
    }
}

/// No figure is cut, however narrow the terminal is.
#[test]
fn figures_are_never_truncated() {
    let mut board = running(TIMED_LOAD, 20);
    let mut big = interval(8, 1, 0);
    big.stages[0].1.due = 12_345_678;
    big.stages[0].1.outcomes.add(Outcome::Ok, 12_344_000);
    board.add_interval(&big, Duration::from_micros(2_700));
    let figures: Vec<String> = frame(&board, &[], 500, 60)
        .split_whitespace()
        .filter(|word| word.bytes().any(|b| b.is_ascii_digit()))
        .map(str::to_owned)
        .collect();
    for width in 60..140 {
        let text = frame(&board, &[], width, 40);
        for word in text.split_whitespace() {
            let is_figure = word.bytes().any(|b| b.is_ascii_digit()) && !word.contains('…');
            assert!(
                !is_figure || figures.iter().any(|f| f == word),
                "{word} at {width} columns:\n{text}"
            );
        }
    }
}

#[test]
fn narrow_terminal_keeps_essential_figures() {
    let noted = ["1 of 10 connections did not come up".to_owned()];
    let board = running(LOAD_WITH_OBJECTIVES, 20);
    assert_data_eq!(frame(&board, &noted, 60, 36), file!["../golden/narrow.txt"]);
    assert_data_eq!(frame(&board, &noted, 40, 12), file!["../golden/lines.txt"]);
}

/// Below 60 columns or 10 rows figures are not cut, and shortened text ends with `…`.
#[test]
fn plain_lines_mark_truncated_text() {
    let mut board = running(LOAD_WITH_OBJECTIVES, 20);
    board.title = "a long name of a plan that no narrow terminal has room for, by far".to_owned();
    board.context = vec!["step 7 at 1,000/s · the load line is above 900/s".to_owned()];
    for judged in &mut board.objectives {
        judged.measured = "calls that failed, of which there were more than a few".to_owned();
    }
    let wide = frame(&board, &[], 500, 9);
    let words: Vec<&str> = wide.split_whitespace().collect();
    for (width, height) in (24..60).flat_map(|w| (1..40).map(move |h| (w, h))) {
        let text = frame(&board, &[], width, height);
        let is_said = |judged: &ObjectiveResult| text.contains(&judged.objective);
        let is_counted = text.contains("objective") || board.objectives.iter().all(is_said);
        assert!(height == 1 || is_counted, "{width} × {height}:\n{text}");
        for line in text.lines() {
            let last = line.split_whitespace().last().unwrap_or("…");
            let is_whole = line.split_whitespace().all(|word| words.contains(&word));
            assert!(
                is_whole || last.ends_with('…') || line.starts_with('…'),
                "`{line}` at {width} × {height}:\n{text}"
            );
        }
    }
    // With enough rows, nothing is left out.
    for width in [40, 59] {
        let text = frame(&board, &[], width, 20);
        let said = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for judged in &board.objectives {
            assert!(said.contains(&verdict_line(judged)), "{width}:\n{text}");
        }
    }
    let low = frame(&board, &[], 40, 7);
    assert_data_eq!(low, file!["../golden/low.txt"]);
}

/// A long target address and a search's context end with `…`; messages are wrapped and shown in full.
#[test]
fn long_text_is_wrapped_or_ends_with_ellipsis() {
    let mut board = running(TIMED_LOAD, 0);
    board.subtitle = format!("grpcs://{}.example:443", "long-".repeat(40));
    board.context = vec!["step 7 · ".repeat(20)];
    let noted = ["1 of 10 connections did not come up: the target refused them ".repeat(3)];
    for width in [60, 80, 120] {
        let text = frame(&board, &noted, width, 60);
        let head: Vec<&str> = text.lines().skip(1).take(2).collect();
        assert!(head.iter().all(|line| line.ends_with('…')), "{text}");
        let said = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(said.matches("the target refused them").count(), 3, "{text}");
    }
    // A control character takes the width of its replacement.
    let steering = ["\u{1b}[31mred and \u{1b}[0m".repeat(9)];
    let text = frame(&board, &steering, 60, 60);
    let shown = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(shown.matches("[31mred and").count(), 9, "{text}");
}

#[test]
fn tall_terminal_shows_objectives_and_fills_height() {
    let noted = ["1 of 10 connections did not come up".to_owned()];
    let board = running(LOAD_WITH_OBJECTIVES, 20);
    assert_data_eq!(frame(&board, &noted, 120, 60), file!["../golden/tall.txt"]);
}

/// Terminals show only one of bold and dim, and differ in which.
#[test]
fn titles_are_never_bold_and_dim() {
    let mut board = running(LOAD_WITH_OBJECTIVES, 20);
    board.phase = RunPhase::WarmUp;
    for (width, height) in [(60, 36), (80, 30), (120, 60)] {
        let drawn = buffer(&board, &["noted".to_owned()], width, height);
        let both = Modifier::BOLD | Modifier::DIM;
        let mixed = drawn.content.iter().filter(|c| c.modifier.contains(both));
        let mixed: String = mixed.map(|cell| cell.symbol()).collect();
        assert_eq!(mixed, "", "{width} × {height}");
    }
}

/// An objective's reason is shown in full if there are rows for it, and otherwise ends with `…`.
#[test]
fn objective_reasons_are_wrapped() {
    let mut board = running(LOAD_WITH_OBJECTIVES, 20);
    let reason = "too few calls yet: the percentile needs 36,887 of them, 7,000 have ended, and more are due";
    for judged in &mut board.objectives {
        judged.verdict = ObjectiveVerdict::CannotBeJudged;
        judged.measured = reason.to_owned();
    }
    for width in 60..121 {
        let text = frame(&board, &[], width, 40);
        let words: Vec<&str> = text.split_whitespace().collect();
        let whole = words.join(" ").matches(&format!("({reason})")).count();
        assert_eq!(whole, 3, "{width}:\n{text}");
        assert!(
            text.lines()
                .all(|line| line.chars().count() <= width.into())
        );
    }
    let low = frame(&board, &[], 80, 18);
    let objectives = low.lines().skip_while(|line| !line.contains("so far ─"));
    let shown: Vec<&str> = objectives.skip(1).take(3).collect();
    assert!(shown.iter().all(|line| line.ends_with('…')), "{low}");
}

/// Six calls a second are too few for a p99, so the maximum is shown and named as such.
#[test]
fn maximum_replaces_unsupported_p99() {
    let mut board = Dashboard::new(&plan(TIMED_LOAD), Vec::new(), Duration::ZERO);
    for index in 1..5 {
        let mut record = StageRecord {
            due: 6,
            ..StageRecord::default()
        };
        for call in 0..6 {
            record.response.record(5_000_000 + call * 1_000_000);
        }
        record.outcomes.add(Outcome::Ok, 6);
        let mut one = interval(index, 1, 0);
        one.stages = vec![(1, record)];
        board.add_interval(&one, Duration::ZERO);
    }
    let text = frame(&board, &[], 80, 30);
    assert!(text.contains("longest (up to 10.00 ms)"), "{text}");
    assert!(!text.contains("p99 (up"), "{text}");
}

/// Tokens have their own kinds of time.
#[test]
fn token_latencies_appear_beside_response_time() {
    let mut board = Dashboard::new(&plan(TIMED_LOAD), Vec::new(), Duration::ZERO);
    let mut one = interval(1, 1, 0);
    let record = &mut one.stages[0].1;
    let measures = &mut record.measures;
    for call in 0..1_000 {
        measures.record(TimeMeasure::TimeToFirstToken, 80_000_000 + call * 1_000);
        measures.record(TimeMeasure::TokenGap, 9_000_000 + call * 1_000);
    }
    measures.add(Count::TokensReceived, 40_000);
    board.add_interval(&one, Duration::ZERO);
    let text = frame(&board, &[], 80, 30);
    for words in ["1st token", "token gap", "80.54 ms", "9.50 ms", "40,000/s"] {
        assert!(text.contains(words), "{words} in\n{text}");
    }
}

/// A rate of a few milliseconds, scaled to a second, would be misleading.
#[test]
fn truncated_interval_does_not_update_rate() {
    let mut board = running(TIMED_LOAD, 0);
    let whole = (
        board.last.per_second(board.last.record.ended_calls()),
        board.rates.clone(),
    );
    let short = IntervalRecord {
        length: Duration::from_millis(400),
        ..interval(8, 1, 0)
    };
    board.add_interval(&short, Duration::ZERO);
    let shown = (
        board.last.per_second(board.last.record.ended_calls()),
        board.rates.clone(),
    );
    assert_eq!(shown, whole);
    assert_eq!(board.so_far.record.ended_calls(), 8_000);
}
