//! Exports a run of sessions as a `loadtest_TIME.csv` file with one row per query, and a flat
//! `loadtest_TIME_summary.json`, where TIME is the run's start. [`super`] can read these files back.
//!
//! Times are in seconds. Neither file includes the warm-up.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;

use plimsoll_model::formats::output;
use plimsoll_model::metrics::measure::{Count, TimeMeasure};
use plimsoll_model::records::record::{StageRecord, TimeHistogram};
use plimsoll_model::runs::run::Run;
use plimsoll_model::statistics::distribution::{buckets, percentiles};
use serde_json::{Map, Value, json};

use crate::interface::protocol_module::{ExportSummary, ForeignFormatError};
use crate::session::measures::{
    SESSION_CREATE, SESSIONS_FAILED, SESSIONS_OK, SESSIONS_RECONNECTED,
};

const HISTOGRAM_BUCKET_COUNT: u64 = 20;

/// Writes the summary of `run` into `folder`, and one row per query if the run logged its requests.
///
/// # Errors
/// When the run is not a run of sessions, or a file can't be written.
pub(super) fn export(run: &Run, folder: &Path) -> Result<ExportSummary, ForeignFormatError> {
    fn write_error(path: &Path) -> impl FnOnce(io::Error) -> String {
        move |e| format!("can't write {}: {e}", path.display())
    }
    let stem = file_stem(run)?;
    let summary = build_summary(run);
    fs::create_dir_all(folder).map_err(write_error(folder))?;
    let path = folder.join(format!("{stem}_summary.json"));
    output::write(&path, format!("{summary:#}\n")).map_err(write_error(&path))?;
    if !run.has_requests {
        return Ok(ExportSummary::Partial(format!(
            "wrote the summary to {}; {} has no log of requests, so there are no rows to write: run with --requests",
            path.display(),
            run.dir.display()
        )));
    }
    let csv = folder.join(format!("{stem}.csv"));
    let mut out = BufWriter::new(File::create(&csv).map_err(write_error(&csv))?);
    let rows = write_rows(run, &mut out)?;
    out.flush()
        .and_then(|()| output::sync(out.get_ref()))
        .map_err(write_error(&csv))?;
    Ok(ExportSummary::Complete(format!(
        "wrote {rows} queries to {}, their summary to {}",
        csv.display(),
        path.display()
    )))
}

/// Returns the common beginning of both file names, such as `loadtest_20261121_094500`.
///
/// # Errors
/// When the run is not a run of sessions.
fn file_stem(run: &Run) -> Result<String, ForeignFormatError> {
    match run.header.protocol.as_deref() {
        Some("session") => {}
        other => {
            let other = other.unwrap_or("unknown");
            return Err(format!("not a run of sessions, but of {other}").into());
        }
    }
    let started = run.header.started_at.strftime("%Y%m%d_%H%M%S");
    Ok(format!("loadtest_{started}"))
}

/// The header of the CSV file. `session_id` counts sessions from 0. `close_time` is empty, because queries are logged
/// before their session is closed. The numbers of reconnects apply to a whole session, and are repeated in each of its
/// rows.
pub(super) const CSV_COLUMNS: &str = "session_id,query_num,latency,tokens,create_time,connect_time,close_time,\
                                  reconnect_attempts,successful_reconnects,error";

/// Writes one row per query (RFC 4180) of a run with a request log, and returns the number of rows. A field that was
/// not measured is empty.
///
/// # Errors
/// When the run has no request log or can't be read, or when writing fails.
fn write_rows(run: &Run, out: &mut impl Write) -> Result<u64, ForeignFormatError> {
    let queries = u64::from(
        queries_per_session(run)
            .ok_or("the run's plan.toml does not say how many queries a session has")?,
    );
    let reconnects = reconnects_by_session(run, queries)?;
    let mut rows = 0;
    write!(out, "{CSV_COLUMNS}\r\n").map_err(describe_write_error)?;
    run.try_for_each_request::<ForeignFormatError>(|r| {
        let s = &r.sample;
        if run.header.is_warmup(s.stage) {
            return Ok(());
        }
        let none = plimsoll_model::metrics::measure::CallMeasures::default();
        let measures = r.measures.as_deref().unwrap_or(&none);
        let time = |measure| {
            let ns = measures.time_ns(measure);
            ns.map_or_else(String::new, |ns| format!("{:.6}", ns as f64 / 1e9))
        };
        let code = if s.outcome.is_ok() {
            ""
        } else {
            s.outcome.code()
        };
        let session = s.number / queries;
        let (attempts, successful) = reconnects.get(&session).copied().unwrap_or_default();
        write!(
            out,
            "{session},{},{:.6},{},{},{},,{attempts},{successful},{code}\r\n",
            s.number % queries + 1,
            s.response_ns() as f64 / 1e9,
            measures.count(Count::TokensReceived),
            time(SESSION_CREATE),
            time(TimeMeasure::SocketOpen),
        )
        .map_err(describe_write_error)?;
        rows += 1;
        Ok(())
    })?;
    Ok(rows)
}

/// Returns the number of attempts to reconnect, and how many succeeded, for each session with such attempts.
fn reconnects_by_session(
    run: &Run,
    queries: u64,
) -> Result<BTreeMap<u64, (u64, u64)>, ForeignFormatError> {
    let mut by_session = BTreeMap::new();
    run.try_for_each_request::<ForeignFormatError>(|r| {
        let Some(measures) = r.measures.as_deref() else {
            return Ok(());
        };
        let successful = measures.count(Count::Reconnects);
        let attempts = successful + measures.count(Count::ReconnectsFailed);
        if attempts > 0 {
            let session: &mut (u64, u64) = by_session.entry(r.sample.number / queries).or_default();
            session.0 += attempts;
            session.1 += successful;
        }
        Ok(())
    })?;
    Ok(by_session)
}

fn describe_write_error(e: io::Error) -> String {
    format!("writing the export failed: {e}")
}

fn queries_per_session(run: &Run) -> Option<u32> {
    run.plan_call_value("queries").filter(|n| *n > 0)
}

fn build_summary(run: &Run) -> Value {
    let record = run.measured_record();
    let total = &run.summary.total;
    let count = |c: Count| record.measures.counter(c);
    let times = |m: TimeMeasure| record.measures.times(m);
    let seconds = total.lasted_us.unwrap_or(0) as f64 / 1e6;
    let per_second = |n: u64| (seconds > 0.0).then(|| n as f64 / seconds);
    let percent = |part: u64, whole: u64| (whole > 0).then(|| 100.0 * part as f64 / whole as f64);
    let (ok, failed) = (count(SESSIONS_OK), count(SESSIONS_FAILED));
    let mean = |m: TimeMeasure| {
        let histogram = times(m).histogram();
        histogram.filter(|h| !h.is_empty()).map(|h| h.mean() / 1e9)
    };
    let reconnects = count(Count::Reconnects);
    let mut summary = Map::new();
    let mut put = |key: &str, value: Value| {
        summary.insert(key.to_owned(), value);
    };
    put("start_time", run.header.started_at.to_string().into());
    put("target", json!(run.header.target));
    put("test_duration", seconds.into());
    put("total_sessions", (ok + failed).into());
    put("successful_sessions", ok.into());
    put("failed_sessions", failed.into());
    put("success_rate", json!(percent(ok, ok + failed)));
    put("total_queries", record.due.into());
    put("successful_queries", record.ok_calls().into());
    put("failed_queries", (record.due - record.ok_calls()).into());
    put(
        "query_success_rate",
        json!(percent(record.ok_calls(), record.due)),
    );
    put("good_queries", count(Count::QueriesGood).into());
    put("total_tokens", count(Count::TokensReceived).into());
    for (key, c) in [
        ("missing_tokens", Count::TokensMissing),
        ("duplicated_tokens", Count::TokensDuplicated),
        ("out_of_order_tokens", Count::TokensOutOfOrder),
        ("stray_tokens", Count::TokensStray),
    ] {
        put(key, count(c).into());
    }
    put("queries_per_second", json!(per_second(record.ok_calls())));
    let tokens = count(Count::TokensReceived);
    put("tokens_per_second", json!(per_second(tokens)));
    for (figure, value) in summarize_times(&record.response) {
        put(&format!("{figure}_query_latency"), value);
    }
    for (name, times) in [
        ("first_token", times(TimeMeasure::FirstToken)),
        ("inter_token", times(TimeMeasure::TokenGap)),
        ("time_per_token", times(TimeMeasure::TokenMean)),
    ] {
        for (figure, value) in summarize_times(times) {
            put(&format!("{name}_{figure}"), value);
        }
    }
    put("avg_create_time", json!(mean(SESSION_CREATE)));
    put("avg_connect_time", json!(mean(TimeMeasure::SocketOpen)));
    put(
        "total_reconnect_attempts",
        (reconnects + count(Count::ReconnectsFailed)).into(),
    );
    put("total_successful_reconnects", reconnects.into());
    put(
        "sessions_with_reconnects",
        count(SESSIONS_RECONNECTED).into(),
    );
    put("resumes_refused", count(Count::HistoryGone).into());
    put("latency_histogram", histogram_json(&record).into());
    put("errors", error_counts_json(&record).into());
    summary.into()
}

/// Returns minimum, maximum, mean and percentiles in seconds. A percentile is null if the sample is too small for it;
/// without a sample the list is empty.
fn summarize_times(times: &TimeHistogram) -> Vec<(String, Value)> {
    let Some(h) = times.histogram() else {
        return Vec::new();
    };
    let s = |ns: u64| ns as f64 / 1e9;
    let mut spread: Vec<(String, Value)> = vec![
        ("min".to_owned(), s(h.min()).into()),
        ("avg".to_owned(), (h.mean() / 1e9).into()),
        ("max".to_owned(), s(h.max()).into()),
    ];
    for (percent, value) in percentiles(h) {
        spread.push((format!("p{percent}"), value.map(s).into()));
    }
    spread
}

fn histogram_json(record: &StageRecord) -> Vec<Value> {
    let times = record.response.histogram();
    let buckets = times
        .map(|h| buckets(h, HISTOGRAM_BUCKET_COUNT))
        .unwrap_or_default();
    let s = |ns: u64| ns as f64 / 1e9;
    buckets
        .iter()
        .map(|b| json!({ "above": s(b.from), "to": s(b.to), "count": b.count }))
        .collect()
}

fn error_counts_json(record: &StageRecord) -> Map<String, Value> {
    record
        .outcomes
        .iter()
        .filter(|(outcome, n)| outcome.is_error() && *n > 0)
        .map(|(outcome, n)| (outcome.code().to_owned(), n.into()))
        .collect()
}
