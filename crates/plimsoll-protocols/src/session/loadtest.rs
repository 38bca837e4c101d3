//! Imports the result files of session load tests, in the format of an earlier load test for token-streaming services,
//! as runs: `loadtest_YYYYMMDD_HHMMSS.csv`, one row per query, and `loadtest_YYYYMMDD_HHMMSS_summary.json` in the same
//! folder. [`export`] writes the same files.
//!
//! The rows contain the times of every query; the summary contains the duration of the test and the number of
//! reconnects. Either file may be missing; the values in it are then unknown.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use plimsoll_model::metrics::measure::{Count, StageMeasures, TimeMeasure};
use plimsoll_model::records::record::{FailureDetail, StageRecord};
use plimsoll_model::runs::run::{IntervalRecord, Run, RunHeader, RunWriter, Timestamp};
use plimsoll_model::{Outcome, formats::input};
use serde_json::{Map, Value};

use super::measures::{SESSION_CREATE, SESSIONS_FAILED, SESSIONS_OK, SESSIONS_RECONNECTED};
use crate::interface::protocol_module::{ForeignFormat, ForeignFormatError};

mod export;
mod row_budget;

use export::CSV_COLUMNS;
use row_budget::RowBudget;

const SUMMARY_SUFFIX: &str = "_summary.json";

/// The maximum number of distinct failure texts that are kept.
const MAX_FAILURE_TEXTS: usize = 100;

/// The file format of session load tests.
pub(super) const LOADTEST_FORMAT: ForeignFormat = ForeignFormat {
    description: "CSV and JSON summary of a run of sessions",
    name: "sessions",
    export: export::export,
    recognises: is_loadtest_file,
    import,
};

/// Returns whether a file with this name and beginning is a table or a summary of a session load test.
fn is_loadtest_file(path: &Path, beginning: &str) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    beginning.starts_with("session_id,query_num,")
        || name.ends_with(SUMMARY_SUFFIX) && beginning.trim_start().starts_with('{')
}

/// The information that the rows contain about one session.
#[derive(Default)]
struct ImportedSession {
    failed: bool,
    reconnected: bool,
}

#[derive(Default)]
struct LoadtestImport {
    record: StageRecord,
    measures: StageMeasures,
    sessions: BTreeMap<String, ImportedSession>,
    details: Vec<FailureDetail>,
}

/// Imports the file `path` and its counterpart in the same folder into the run directory `dir`.
///
/// # Errors
/// When a file can't be read or parsed, or the run can't be written.
fn import(
    path: &Path,
    dir: &Path,
    tool_version: &str,
    imported_at: Timestamp,
) -> Result<Run, ForeignFormatError> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let (stem, is_summary) = match name.strip_suffix(SUMMARY_SUFFIX) {
        Some(stem) => (stem, true),
        None => (name.strip_suffix(".csv").unwrap_or(&name), false),
    };
    let (rows, summary) = if is_summary {
        (path.with_file_name(format!("{stem}.csv")), path.to_owned())
    } else {
        (
            path.to_owned(),
            path.with_file_name(format!("{stem}{SUMMARY_SUFFIX}")),
        )
    };
    let mut header =
        RunHeader::for_import(&name, tool_version, start_time(stem).unwrap_or(imported_at));
    header.protocol = Some("session".to_owned());
    let mut read = LoadtestImport::default();
    let summary = if is_summary || summary.is_file() {
        Some(read_summary(&summary)?)
    } else {
        None
    };
    if !is_summary || rows.is_file() {
        read.add_rows(&rows)?;
    } else if let Some(summary) = &summary {
        read.add_totals(summary);
        let note = "made from a summary alone: its percentiles are not a distribution, so times are unknown";
        header.notes.push(note.to_owned());
    }
    let length = summary
        .as_ref()
        .and_then(|s| summary_number(s, "test_duration"));
    if let Some(summary) = &summary {
        read.add_reconnects(summary);
    }
    read.count_sessions();
    read.record.measures = read.measures;
    let interval = IntervalRecord {
        length: length
            .and_then(|s| Duration::try_from_secs_f64(s).ok())
            .unwrap_or_default(),
        stages: vec![(0, read.record)],
        details: read.details,
        ..IntervalRecord::default()
    };
    Ok(RunWriter::from_interval(dir, header, &interval)?)
}

/// Returns when a test began. `stem` is the common beginning of its files' names, which contains the time.
fn start_time(stem: &str) -> Option<Timestamp> {
    let moment = stem.strip_prefix("loadtest_")?;
    Timestamp::strptime("%Y%m%d_%H%M%S%z", format!("{moment}+0000")).ok()
}

fn read_file(path: &Path) -> Result<String, ForeignFormatError> {
    input::read_to_string(path).map_err(|e| format!("can't read {}: {e}", path.display()).into())
}

fn read_summary(path: &Path) -> Result<Map<String, Value>, ForeignFormatError> {
    serde_json::from_str(&read_file(path)?)
        .map_err(|e| format!("{}: not a JSON object: {e}", path.display()).into())
}

fn summary_number(summary: &Map<String, Value>, key: &str) -> Option<f64> {
    summary.get(key)?.as_f64()
}

fn summary_integer(summary: &Map<String, Value>, key: &str) -> Option<u64> {
    summary.get(key)?.as_u64()
}

impl LoadtestImport {
    fn add_rows(&mut self, path: &Path) -> Result<(), ForeignFormatError> {
        let file =
            input::open_file(path).map_err(|e| format!("can't read {}: {e}", path.display()))?;
        let budget = RowBudget::new();
        let mut reader = csv::ReaderBuilder::new().from_reader(budget.limit_reader(file));
        let wrong = |line: u64, problem: String| {
            ForeignFormatError::from(format!("{}, line {line}: {problem}", path.display()))
        };
        let head = reader
            .headers()
            .map_err(|e| wrong(1, e.to_string()))?
            .clone();
        let places: Vec<usize> = CSV_COLUMNS
            .split(',')
            .map(|column| {
                let place = head.iter().position(|name| name == column);
                place.ok_or_else(|| wrong(1, format!("no column {column}: expected {CSV_COLUMNS}")))
            })
            .collect::<Result<_, _>>()?;
        for row in reader.records() {
            let row = row.map_err(|e| {
                let line = e.position().map_or(0, csv::Position::line);
                wrong(line, e.to_string())
            })?;
            let line = row.position().map_or(0, csv::Position::line);
            let fields: Vec<&str> = places.iter().map(|at| row.get(*at).unwrap_or("")).collect();
            self.add_row(&fields)
                .map_err(|problem| wrong(line, problem))?;
            budget.reset();
        }
        Ok(())
    }

    /// Adds a row, whose fields are in the order of [`CSV_COLUMNS`].
    fn add_row(&mut self, fields: &[&str]) -> Result<(), String> {
        let &[
            session,
            _,
            latency,
            tokens,
            create,
            connect,
            _,
            attempts,
            reconnects,
            error,
        ] = fields
        else {
            return Err(format!("{} fields", fields.len()));
        };
        let latency = parse_seconds("latency", latency)?;
        let record = &mut self.record;
        record.due += 1;
        let outcome = outcome_from_text(error);
        record.outcomes.add(outcome, 1);
        match (outcome.is_ok(), latency) {
            (true, Some(ns)) => record.response.record(ns),
            (true, None) => return Err("latency is empty, and so is error".to_owned()),
            (false, Some(ns)) => record.failed.record(ns),
            (false, None) => {}
        }
        let is_new = || !self.details.iter().any(|known| known.text == error);
        if !outcome.is_ok() && self.details.len() < MAX_FAILURE_TEXTS && is_new() {
            self.details.push(FailureDetail {
                code: outcome,
                text: error.to_owned(),
            });
        }
        let (attempts, reconnects) = (
            parse_count("reconnect_attempts", attempts)?,
            parse_count("successful_reconnects", reconnects)?,
        );
        let measures = &mut self.measures;
        measures.add(Count::TokensReceived, parse_count("tokens", tokens)?);
        if !self.sessions.contains_key(session) {
            // These values belong to the session and are repeated in each of its rows.
            measures.add(Count::Reconnects, reconnects);
            measures.add(Count::ReconnectsFailed, attempts.saturating_sub(reconnects));
            for (measure, key, typed) in [
                (SESSION_CREATE, "create_time", create),
                (TimeMeasure::SocketOpen, "connect_time", connect),
            ] {
                if let Some(ns) = parse_seconds(key, typed)? {
                    measures.record(measure, ns);
                }
            }
        }
        let session = self.sessions.entry(session.to_owned()).or_default();
        session.failed |= !outcome.is_ok();
        session.reconnected |= attempts > 0;
        Ok(())
    }

    fn count_sessions(&mut self) {
        let of = |which: fn(&ImportedSession) -> bool| {
            self.sessions
                .values()
                .filter(|session| which(session))
                .count() as u64
        };
        let (failed, reconnected) = (of(|s| s.failed), of(|s| s.reconnected));
        let all = self.sessions.len() as u64;
        self.measures.add(SESSIONS_FAILED, failed);
        self.measures.add(SESSIONS_OK, all - failed);
        if self.measures.counter(SESSIONS_RECONNECTED) == 0 {
            self.measures.add(SESSIONS_RECONNECTED, reconnected);
        }
    }

    /// Adds the totals of a summary. It is used only if there are no rows.
    fn add_totals(&mut self, summary: &Map<String, Value>) {
        let of = |key: &str| summary_integer(summary, key).unwrap_or(0);
        let total = of("total_queries");
        let ok = summary_integer(summary, "successful_queries")
            .unwrap_or(total)
            .min(total);
        self.record.due = total;
        self.record.outcomes.add(Outcome::Ok, ok);
        self.record.outcomes.add(Outcome::RunFailed, total - ok);
        self.measures.add(Count::TokensReceived, of("total_tokens"));
        self.measures.add(SESSIONS_OK, of("successful_sessions"));
        self.measures.add(SESSIONS_FAILED, of("failed_sessions"));
    }

    /// Adds the reconnects of the whole test, including those between queries.
    fn add_reconnects(&mut self, summary: &Map<String, Value>) {
        let of = |key: &str| summary_integer(summary, key).unwrap_or(0);
        let ok = of("total_successful_reconnects");
        let failed = of("total_reconnect_attempts").saturating_sub(ok);
        for (c, total) in [
            (Count::Reconnects, ok),
            (Count::ReconnectsFailed, failed),
            (SESSIONS_RECONNECTED, of("sessions_with_reconnects")),
        ] {
            let more = total.saturating_sub(self.measures.counter(c));
            self.measures.add(c, more);
        }
    }
}

/// Parses a time in seconds, and returns nanoseconds; `None` if the field is empty.
fn parse_seconds(key: &str, typed: &str) -> Result<Option<u64>, String> {
    let typed = typed.trim();
    if typed.is_empty() {
        return Ok(None);
    }
    let time = typed
        .parse::<f64>()
        .ok()
        .and_then(|s| Duration::try_from_secs_f64(s).ok())
        .ok_or_else(|| format!("{key} is `{typed}`: expected seconds, 0 or more"))?;
    Ok(Some(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
}

/// Parses a count; an empty field is 0.
fn parse_count(key: &str, typed: &str) -> Result<u64, String> {
    match typed.trim() {
        "" => Ok(0),
        typed => typed
            .parse()
            .ok()
            .filter(|n| *n <= u64::MAX >> 16)
            .ok_or_else(|| format!("{key} is `{typed}`: expected a count, 0 or more")),
    }
}

/// Returns the outcome whose code the text of a failure contains, or else the outcome that is closest to the text of
/// another tool.
fn outcome_from_text(error: &str) -> Outcome {
    if error.trim().is_empty() {
        return Outcome::Ok;
    }
    if let Some(outcome) = Outcome::from_code(error.trim()) {
        return outcome;
    }
    let words = error.to_ascii_lowercase();
    let has = |any: &[&str]| any.iter().any(|word| words.contains(word));
    match () {
        () if has(&["timeout", "timed out"]) => Outcome::DeadlineExceeded,
        () if has(&["401", "403"]) => Outcome::SocketDenied,
        () if has(&["refused"]) => Outcome::ConnectRefused,
        () if has(&["reset"]) => Outcome::Reset,
        () if has(&["websocket", "closed", "disconnect"]) => Outcome::SocketClosed,
        () => Outcome::RunFailed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "session_id,query_num,latency,tokens,create_time,connect_time,close_time,reconnect_attempts,successful_reconnects,error";

    fn imported(files: &[(&str, &str)]) -> Result<Run, String> {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let path = dir.path().join(files[0].0);
        let now = Timestamp::UNIX_EPOCH;
        import(&path, &dir.path().join("run"), "0", now).map_err(|e| e.to_string())
    }

    #[test]
    fn rows_and_summary_form_one_run() {
        let rows = format!(
            "{HEAD}\r\na,1,1.5,18,0.25,0.125,0.01,3,1,\r\na,2,2.5,18,0.25,0.125,0.01,3,1,\r\n\
             b,1,30.0,4,0.5,,,0,0,\"Timeout, after 30 s\"\r\n"
        );
        let summary = r#"{"test_duration": 10.0, "total_reconnect_attempts": 3,
            "total_successful_reconnects": 1, "sessions_with_reconnects": 1}"#;
        let names = [
            "loadtest_20261122_081500.csv",
            "loadtest_20261122_081500_summary.json",
        ];
        for order in [[0, 1], [1, 0]] {
            let files = order.map(|i| (names[i], [rows.as_str(), summary][i]));
            let run = imported(&files).unwrap();
            assert_eq!(run.header.started_at.to_string(), "2026-11-22T08:15:00Z");
            let total = &run.summary.total;
            assert_eq!((total.due, total.ok, total.errors), (3, 2, 1));
            let record = run.measured_record();
            assert_eq!(record.outcomes.get(Outcome::DeadlineExceeded), 1);
            let response = record.response.histogram().unwrap();
            assert_eq!(response.len(), 2);
            // Histograms keep three digits.
            let shortest_ms = response.min() / 1_000_000;
            assert!((1498..=1502).contains(&shortest_ms), "{shortest_ms}");
            let measures = &record.measures;
            for (c, n) in [
                (Count::TokensReceived, 40),
                (SESSIONS_OK, 1),
                (SESSIONS_FAILED, 1),
                (Count::Reconnects, 1),
                (Count::ReconnectsFailed, 2),
                (SESSIONS_RECONNECTED, 1),
            ] {
                assert_eq!(measures.counter(c), n, "{}", c.key());
            }
            assert_eq!(measures.times(SESSION_CREATE).len(), 2);
            assert_eq!(measures.times(TimeMeasure::SocketOpen).len(), 1);
            let text = plimsoll_report::terminal::render(
                &run,
                &plimsoll_report::terminal::TerminalOptions::default(),
            );
            for part in [
                "1 ok, 1 failed",
                "40 received once",
                "DEADLINE_EXCEEDED",
                "█",
            ] {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
    }

    #[test]
    fn summary_without_rows_has_counts() {
        let summary = r#"{"total_queries": 30, "successful_queries": 29, "total_tokens": 520,
            "successful_sessions": 9, "failed_sessions": 1, "test_duration": 2}"#;
        let run = imported(&[("loadtest_x_summary.json", summary)]).unwrap();
        let total = &run.summary.total;
        assert_eq!((total.due, total.ok, total.errors), (30, 29, 1));
        assert!(run.header.notes[0].contains("summary alone"));
    }

    #[test]
    fn malformed_file_error_names_line() {
        for (rows, expected) in [
            (
                format!("{HEAD}\na,1,x,1,0,0,0,0,0,\n"),
                "line 2: latency is `x`",
            ),
            (
                format!("{HEAD}\na,1,-1,1,0,0,0,0,0,\n"),
                "line 2: latency is `-1`",
            ),
            (
                format!("{HEAD}\na,1,1,1,0,0,0,0,0,\na,2,,1,0,0,0,0,0,\n"),
                "line 3: latency is empty",
            ),
            (
                format!("{HEAD}\na,1,1,many,0,0,0,0,0,\n"),
                "line 2: tokens is `many`",
            ),
            (format!("{HEAD}\na,1\n"), "line 2"),
            (HEAD.replace(",tokens", ""), "line 1: no column tokens"),
            (
                format!("{HEAD}\na,1,1,1,0,0,0,0,0,\n\"{}", "x\n".repeat(600_000)),
                "a row of more than 1048576 bytes: is a closing quote missing?",
            ),
        ] {
            let error = imported(&[("rows.csv", &rows)]).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let long = format!("{HEAD}\na,1,1,1,0,0,0,0,0,{}\n", "x".repeat(1_000_000));
        let many = format!("{HEAD}\n{}", "a,1,1,1,0,0,0,0,0,\n".repeat(100_000));
        for (rows, ok) in [(long, 0), (many, 100_000)] {
            let run = imported(&[("rows.csv", &rows)]).unwrap();
            assert_eq!(run.summary.total.ok, ok);
        }
        let error = imported(&[("a_summary.json", "{")]).unwrap_err();
        assert!(error.contains("not a JSON object"), "{error}");
    }
}
