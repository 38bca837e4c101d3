//! Line-per-request files of older load generators.
//!
//! The first line names the test: `#TEST=01_steady` (calls over a persistent connection) or `#TEST=02_coldconn` (a new
//! connection for every call). The other lines hold one JSON object per call: `{"ok":true,"latency_ms":5.83}`,
//! `{"ok":false,"code":"DEADLINE_EXCEEDED"}`, or
//! `{"ok":true,"t_connect_ms":19.4,"t_first_rpc_ms":6.1,"t_total_ms":25.5}`. The latency is the response time, which
//! begins when the call was due. The warm-up is left out.

use std::io::{BufReader, Write};
use std::path::Path;

use plimsoll_model::formats::input::{self, LineEnd};
use plimsoll_model::records::record::StageRecord;
use plimsoll_model::runs::run::{IntervalRecord, Run, RunError, RunHeader, RunWriter, Timestamp};
use plimsoll_model::{Outcome, TimeMeasure};
use serde::Deserialize;

use crate::ExportError;

const STEADY_HEADER: &str = "#TEST=01_steady";
const COLD_HEADER: &str = "#TEST=02_coldconn";

/// Writes the calls of `run` that are not warm-up; returns their number.
///
/// # Errors
/// When the run did not record calls or can't be read, or the lines can't be written.
pub fn export(run: &Run, out: &mut impl Write) -> Result<u64, ExportError> {
    if !run.has_requests {
        return Err(RunError::NoRequests(run.dir.clone()).into());
    }
    let failed = ExportError::write_error("the export");
    let cold = run.header.cold;
    let mut written = 0;
    let head = if cold { COLD_HEADER } else { STEADY_HEADER };
    writeln!(out, "{head}").map_err(&failed)?;
    run.try_for_each_request(|r| {
        let s = &r.sample;
        if run.header.is_warmup(s.stage) {
            return Ok(());
        }
        let ms = |ns: u64| ns as f64 / 1e6;
        let code = s.outcome.code();
        let wrote = match (s.outcome.is_ok(), &r.phases) {
            (false, _) => writeln!(out, r#"{{"ok":false,"code":"{code}"}}"#),
            (true, Some(p)) if cold => writeln!(
                out,
                r#"{{"ok":true,"t_connect_ms":{},"t_first_rpc_ms":{},"t_total_ms":{}}}"#,
                ms(p.total_ns()),
                ms(s.service_ns()),
                ms(p.total_ns() + s.service_ns())
            ),
            (true, _) => writeln!(out, r#"{{"ok":true,"latency_ms":{}}}"#, ms(s.response_ns())),
        };
        written += 1;
        wrote.map_err(&failed)
    })?;
    Ok(written)
}

/// One line in any of the three formats.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResultLine {
    ok: bool,
    code: Option<String>,
    latency_ms: Option<f64>,
    t_connect_ms: Option<f64>,
    t_first_rpc_ms: Option<f64>,
    t_total_ms: Option<f64>,
}

/// Converts a time from a line to nanoseconds.
fn ms_to_ns(key: &str, ms: Option<f64>) -> Result<u64, String> {
    match ms {
        None => Err(format!("{key} is missing: a successful call needs it")),
        Some(ms) if ms.is_finite() && ms >= 0.0 => Ok((ms * 1e6).round() as u64),
        Some(ms) => Err(format!("{key} is {ms}; expected milliseconds, 0 or more")),
    }
}

fn add(record: &mut StageRecord, cold: bool, text: &str) -> Result<(), String> {
    let line: ResultLine = serde_json::from_str(text).map_err(|e| e.to_string())?;
    record.due += 1;
    if !line.ok {
        let code = line.code.ok_or("code is missing: a failed call needs it")?;
        let outcome = Outcome::from_code(&code)
            .filter(|o| !o.is_ok())
            .ok_or_else(|| {
                format!("{code:?} is not the code of a failure; expected one like \"UNAVAILABLE\"")
            })?;
        record.outcomes.add(outcome, 1);
        return Ok(());
    }
    record.outcomes.add(Outcome::Ok, 1);
    if cold {
        let connection = ms_to_ns("t_connect_ms", line.t_connect_ms)?;
        let total = ms_to_ns("t_total_ms", line.t_total_ms)?;
        record.measures.record(TimeMeasure::Connection, connection);
        record.measures.record(TimeMeasure::ColdTotal, total);
        record
            .service
            .record(ms_to_ns("t_first_rpc_ms", line.t_first_rpc_ms)?);
    } else {
        record
            .response
            .record(ms_to_ns("latency_ms", line.latency_ms)?);
    }
    Ok(())
}

/// Maximum length of a line in bytes; the line of a call has about 100.
const MAX_LINE_BYTES: usize = 1 << 20;

/// Creates a run directory `dir` from the line-per-request file `path`. Figures that the file doesn't contain (rate,
/// duration, service time, resources) stay unknown. `imported_at` is used as the start.
pub fn import(
    path: &Path,
    dir: &Path,
    tool_version: &str,
    imported_at: Timestamp,
) -> Result<Run, RunError> {
    let wrong = |line, problem| RunError::Line {
        path: path.to_owned(),
        line,
        problem,
    };
    let mut reader =
        BufReader::new(input::open_file(path).map_err(RunError::io(path, "opening it"))?);
    let mut record = StageRecord::default();
    let mut cold = None;
    let mut bytes = Vec::new();
    for number in 1.. {
        let wrong = |problem| wrong(number, problem);
        let end = input::read_line(&mut reader, &mut bytes, MAX_LINE_BYTES)
            .map_err(RunError::io(path, "reading it"))?;
        if end == LineEnd::EndOfInput && bytes.is_empty() {
            break;
        }
        let line = std::str::from_utf8(&bytes).map_err(|e| wrong(e.to_string()))?;
        let line = line.trim();
        match (cold, line) {
            (None, STEADY_HEADER) => cold = Some(false),
            (None, COLD_HEADER) => cold = Some(true),
            (None, other) => {
                let seen: String = other.chars().take(40).collect();
                return Err(wrong(format!(
                    "the first line is {seen:?}; expected \"{STEADY_HEADER}\" or \"{COLD_HEADER}\""
                )));
            }
            (Some(_), "") => {}
            (Some(cold), call) => add(&mut record, cold, call).map_err(wrong)?,
        }
    }
    let Some(cold) = cold else {
        let problem =
            format!("the file is empty; expected \"{STEADY_HEADER}\" or \"{COLD_HEADER}\"");
        return Err(wrong(1, problem));
    };
    let file_name = path.file_name().unwrap_or(path.as_os_str());
    let name = file_name.to_string_lossy();
    let mut header = RunHeader::for_import(&name, tool_version, imported_at);
    header.cold = cold;
    let interval = IntervalRecord {
        stages: vec![(0, record)],
        ..IntervalRecord::default()
    };
    RunWriter::from_interval(dir, header, &interval)
}
