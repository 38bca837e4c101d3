//! Exports a run of a language model in the format of AIPerf, the successor of GenAI-Perf: the names, units and layout
//! of `profile_export_aiperf.json`, schema 1.1.
//!
//! One definition differs from AIPerf's: a request's times count from when it was due, not from when it was sent. The
//! warm-up is left out.

use std::io::Write;

use plimsoll_model::metrics::measure::{Count, TimeMeasure};
use plimsoll_model::records::record::TimeHistogram;
use plimsoll_model::runs::run::Run;
use plimsoll_model::statistics::quantile::quantile;
use serde_json::{Map, Value, json};

use crate::ExportError;

/// The version of the layout, in which a metric is an object with a unit and statistics.
const SCHEMA_VERSION: &str = "1.1";

/// The percentiles of a metric.
const METRIC_PERCENTILES: [u32; 9] = [1, 5, 10, 25, 50, 75, 90, 95, 99];

/// Writes the summary; returns the number of metrics.
///
/// # Errors
/// When the run is not one of a language model, or writing fails.
pub fn export(run: &Run, out: &mut impl Write) -> Result<u64, ExportError> {
    let summary = build_summary(run)?;
    let metrics = summary.values().filter(|value| value.is_object()).count();
    let failed = ExportError::write_error("the export");
    let text = serde_json::to_string_pretty(&summary).map_err(|e| failed(e.into()))?;
    writeln!(out, "{text}").map_err(failed)?;
    Ok(metrics as u64)
}

fn build_summary(run: &Run) -> Result<Map<String, Value>, ExportError> {
    let record = run.measured_record();
    let measures = &record.measures;
    let counted = measures.counter(Count::TokensPrompt) + measures.counter(Count::TokensAnswer);
    if measures.times(TimeMeasure::TimeToFirstToken).is_empty() && counted == 0 {
        return Err(ExportError::NoTokens);
    }
    let seconds = run.summary.total.lasted_us.unwrap_or(0) as f64 / 1e6;
    let per_second = |n: u64| (seconds > 0.0).then(|| n as f64 / seconds);
    let prompt = measures.counter(Count::TokensPrompt);
    let answer = match measures.counter(Count::TokensAnswer) {
        0 => measures.counter(Count::TokensCounted),
        answer => answer,
    };
    let each =
        |n: u64| (n > 0 && record.ok_calls() > 0).then(|| n as f64 / record.ok_calls() as f64);
    let token_mean = measures.times(TimeMeasure::TokenMean);
    let mut summary = Map::new();
    summary.insert("schema_version".to_owned(), SCHEMA_VERSION.into());
    for (name, times) in [
        ("time_to_first_token", TimeMeasure::TimeToFirstToken),
        // AIPerf, too, computes this mean separately for each request.
        ("inter_token_latency", TimeMeasure::TokenMean),
        ("inter_chunk_latency", TimeMeasure::TokenGap),
    ]
    .map(|(name, measure)| (name, measures.times(measure)))
    .into_iter()
    .chain([("request_latency", &record.response)])
    {
        if let Some(block) = time_statistics(times) {
            summary.insert(name.to_owned(), block);
        }
    }
    let mut put = |name: &str, unit: &str, figure: &str, value: Option<f64>| {
        if let Some(value) = value {
            summary.insert(name.to_owned(), json!({ "unit": unit, figure: value }));
        }
    };
    let (ok, good) = (record.ok_calls(), measures.counter(Count::QueriesGood));
    let tokens_per_s = per_second(answer).filter(|_| answer > 0);
    put("output_token_throughput", "tokens/sec", "avg", tokens_per_s);
    // The inverse of the median is the median of the inverses, which is not true of a mean.
    let median = token_mean.histogram().and_then(|h| quantile(h, 0.5));
    let per_user = median.filter(|ns| *ns > 0).map(|ns| 1e9 / ns as f64);
    let name = "output_token_throughput_per_user";
    put(name, "tokens/sec/user", "p50", per_user);
    put("output_sequence_length", "tokens", "avg", each(answer));
    put("input_sequence_length", "tokens", "avg", each(prompt));
    let (rate, count) = ("requests/sec", "requests");
    put("request_throughput", rate, "avg", per_second(ok));
    put("request_count", count, "avg", Some(ok as f64));
    let errors = (record.due - ok) as f64;
    put("error_request_count", count, "avg", Some(errors));
    put("goodput", rate, "avg", per_second(good));
    put("good_request_count", count, "avg", Some(good as f64));
    put("benchmark_duration", "sec", "avg", Some(seconds));
    let started = run.header.started_at.to_string();
    summary.insert("start_time".to_owned(), started.into());
    let errors = record.outcomes.iter();
    let errors: Vec<Value> = errors
        .filter(|(outcome, n)| outcome.is_error() && *n > 0)
        .map(|(outcome, n)| {
            let details = json!({ "type": outcome.code(), "message": outcome.explanation() });
            json!({ "error_details": details, "count": n })
        })
        .collect();
    summary.insert("error_summary".to_owned(), errors.into());
    Ok(summary)
}

/// Returns statistics in milliseconds; percentiles only if the sample is large enough.
fn time_statistics(times: &TimeHistogram) -> Option<Value> {
    let h = times.histogram().filter(|h| !h.is_empty())?;
    let ms = |ns: f64| ns / 1e6;
    let mut block = json!({
        "unit": "ms",
        "avg": ms(h.mean()),
        "min": ms(h.min() as f64),
        "max": ms(h.max() as f64),
        "std": ms(h.stdev()),
        "count": h.len(),
        "sum": ms(h.mean() * h.len() as f64),
    });
    for percent in METRIC_PERCENTILES {
        if let Some(value) = quantile(h, f64::from(percent) / 100.0) {
            block[format!("p{percent}")] = ms(value as f64).into();
        }
    }
    Some(block)
}
