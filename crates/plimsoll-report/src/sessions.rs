//! A run of sessions as its own load-testing clients write it: a CSV file of a row a query,
//! and a JSON summary, named after the run's start.
//!
//! Times are in milliseconds. Warm-up is left out of both.

use std::io::{self, Write};

use hdrhistogram::Histogram;
use plimsoll_model::measure::{Count, TimeMeasure};
use plimsoll_model::record::{StageRecord, Times};
use plimsoll_model::run::{Run, RunError};
use serde_json::{Map, Value, json};

use crate::distribution::{buckets, percentiles};

const BUCKETS: u64 = 20;

/// Why a run could not be exported.
#[derive(Debug, thiserror::Error)]
pub enum SessionsError {
    #[error("not a run of sessions, but of {0}")]
    Protocol(String),
    #[error("the run's plan.toml does not say how many queries a session has")]
    Plan,
    #[error(transparent)]
    Run(#[from] RunError),
    #[error("writing the export failed")]
    Write(#[source] io::Error),
}

/// `loadtest_20261121_094500`: what both files' names begin with.
///
/// # Errors
/// When the run is not one of sessions.
pub fn stem(run: &Run) -> Result<String, SessionsError> {
    match run.header.protocol.as_deref() {
        Some("session") => {}
        other => {
            return Err(SessionsError::Protocol(
                other.unwrap_or("unknown").to_owned(),
            ));
        }
    }
    let started = run.header.started_at.strftime("%Y%m%d_%H%M%S");
    Ok(format!("loadtest_{started}"))
}

const COLUMNS: &str = "session,query,ok,error,latency_ms,first_token_ms,time_per_token_ms,tokens,\
                       duplicated,out_of_order,reconnects,session_create_ms,socket_open_ms";

/// Writes a row a query (RFC 4180) of a run that was made with `--requests`; how many. A
/// field that was not measured is empty.
///
/// # Errors
/// When the run kept no calls or can't be read, or the rows not written.
pub fn export_csv(run: &Run, out: &mut impl Write) -> Result<u64, SessionsError> {
    stem(run)?;
    let queries = u64::from(queries_per_session(run).ok_or(SessionsError::Plan)?);
    let mut rows = 0;
    let mut failed = None;
    let mut write = |text: std::fmt::Arguments<'_>| {
        if failed.is_none() {
            failed = write!(out, "{text}\r\n").err();
        }
    };
    write(format_args!("{COLUMNS}"));
    run.each_request(|r| {
        let s = &r.sample;
        if run.header.is_warmup(s.stage) {
            return Ok(());
        }
        let none = plimsoll_model::measure::CallMeasures::default();
        let measures = r.measures.as_deref().unwrap_or(&none);
        let time = |measure| {
            let ns = measures.time_ns(measure);
            ns.map_or_else(String::new, |ns| format!("{:.3}", ns as f64 / 1e6))
        };
        let code = if s.outcome.is_ok() {
            ""
        } else {
            s.outcome.code()
        };
        write(format_args!(
            "{},{},{},{code},{:.3},{},{},{},{},{},{},{},{}",
            s.number / queries,
            s.number % queries + 1,
            s.outcome.is_ok(),
            s.response_ns() as f64 / 1e6,
            time(TimeMeasure::FirstToken),
            time(TimeMeasure::TokenMean),
            measures.count(Count::TokensReceived),
            measures.count(Count::TokensDuplicated),
            measures.count(Count::TokensOutOfOrder),
            measures.count(Count::Reconnects),
            time(TimeMeasure::SessionCreate),
            time(TimeMeasure::SocketOpen),
        ));
        rows += 1;
        Ok(())
    })?;
    match failed {
        None => Ok(rows),
        Some(e) => Err(SessionsError::Write(e)),
    }
}

fn queries_per_session(run: &Run) -> Option<u32> {
    let spec = plimsoll_model::spec::read(&run.plan).ok()?;
    spec.call.session?.queries.filter(|n| *n > 0)
}

/// The summary.
///
/// # Errors
/// When the run is not one of sessions.
pub fn summary(run: &Run) -> Result<Value, SessionsError> {
    stem(run)?;
    let record = run.measured();
    let total = &run.summary.total;
    let count = |c: Count| record.measures.as_ref().map_or(0, |m| m.of(c));
    let times = |m: TimeMeasure| record.measures.as_ref().map(|all| all.times(m));
    let seconds = total.lasted_us.unwrap_or(0) as f64 / 1e6;
    let per_second = |n: u64| (seconds > 0.0).then(|| n as f64 / seconds);
    let share = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64);
    let (ok, failed) = (count(Count::SessionsOk), count(Count::SessionsFailed));
    let mean = |m: TimeMeasure| {
        let histogram = times(m).and_then(Times::histogram);
        histogram.map(|h| h.mean() / 1e6)
    };
    Ok(json!({
        "run": run.header.name,
        "target": run.header.target,
        "started_at": run.header.started_at.to_string(),
        "duration_s": seconds,
        "sessions": {
            "total": ok + failed,
            "ok": ok,
            "failed": failed,
            "success_rate": share(ok, ok + failed),
        },
        "queries": {
            "total": record.due,
            "ok": record.ok(),
            "failed": record.due - record.ok(),
            "success_rate": share(record.ok(), record.due),
            "good": count(Count::QueriesGood),
            "per_second": per_second(record.ok()),
            "good_per_second": per_second(count(Count::QueriesGood)),
        },
        "tokens": {
            "received": count(Count::TokensReceived),
            "missing": count(Count::TokensMissing),
            "duplicated": count(Count::TokensDuplicated),
            "out_of_order": count(Count::TokensOutOfOrder),
            "stray": count(Count::TokensStray),
            "per_second": per_second(count(Count::TokensReceived)),
        },
        "latency_ms": spread(Some(&record.response)),
        "first_token_ms": spread(times(TimeMeasure::FirstToken)),
        "inter_token_ms": spread(times(TimeMeasure::TokenGap)),
        "time_per_token_ms": spread(times(TimeMeasure::TokenMean)),
        "session_create_ms_mean": mean(TimeMeasure::SessionCreate),
        "socket_open_ms_mean": mean(TimeMeasure::SocketOpen),
        "reconnects": {
            "attempts": count(Count::Reconnects) + count(Count::ReconnectsFailed),
            "ok": count(Count::Reconnects),
            "failed": count(Count::ReconnectsFailed),
            "sessions_affected": count(Count::SessionsReconnected),
            "not_resumed": count(Count::HistoryGone),
        },
        "latency_histogram": histogram(&record),
        "errors": errors(&record),
    }))
}

/// Smallest, largest, mean and percentiles in milliseconds; null where there are none.
fn spread(times: Option<&Times>) -> Value {
    let Some(h) = times.and_then(Times::histogram).filter(|h| !h.is_empty()) else {
        return Value::Null;
    };
    let ms = |ns: u64| ns as f64 / 1e6;
    let mut spread = Map::new();
    spread.insert("min".to_owned(), ms(h.min()).into());
    spread.insert("avg".to_owned(), (h.mean() / 1e6).into());
    spread.insert("max".to_owned(), ms(h.max()).into());
    for (percent, value) in percentiles(h) {
        spread.insert(format!("p{percent}"), value.map(ms).into());
    }
    Value::Object(spread)
}

fn histogram(record: &StageRecord) -> Vec<Value> {
    let times: Option<&Histogram<u64>> = record.response.histogram();
    let buckets = times.map(|h| buckets(h, BUCKETS)).unwrap_or_default();
    let ms = |ns: u64| ns as f64 / 1e6;
    buckets
        .iter()
        .map(|b| json!({ "above_ms": ms(b.from), "to_ms": ms(b.to), "count": b.count }))
        .collect()
}

fn errors(record: &StageRecord) -> Map<String, Value> {
    record
        .outcomes
        .iter()
        .filter(|(outcome, n)| outcome.is_error() && *n > 0)
        .map(|(outcome, n)| (outcome.code().to_owned(), n.into()))
        .collect()
}
