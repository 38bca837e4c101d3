//! A run of a language model as AIPerf, the successor of GenAI-Perf, writes its summary: the names, units and
//! layout of `profile_export_aiperf.json`, schema 1.1.
//!
//! What they name alike is measured otherwise here in one point: a request's times count from when it was due, not
//! from when it was sent. Warm-up is left out.

use std::io::{self, Write};

use plimsoll_model::measure::{Count, TimeMeasure};
use plimsoll_model::record::Times;
use plimsoll_model::run::Run;
use plimsoll_model::statistics::quantile::quantile;
use serde_json::{Map, Value, json};

/// The version of the layout: blocks of a unit and statistics.
const SCHEMA_VERSION: &str = "1.1";

/// Percentiles that a block has.
const PERCENTS: [u32; 9] = [1, 5, 10, 25, 50, 75, 90, 95, 99];

/// Why a run could not be exported.
#[derive(Debug, thiserror::Error)]
pub enum AiperfError {
    #[error("the run has no tokens: only answers read with stream = \"openai\" have")]
    NoTokens,
    #[error("writing the export failed")]
    Write(#[source] io::Error),
}

/// Writes the summary; how many metrics it has.
///
/// # Errors
/// When the run is not one of a language model, or can't be written.
pub fn export(run: &Run, out: &mut impl Write) -> Result<u64, AiperfError> {
    let summary = summary(run)?;
    let metrics = summary.values().filter(|value| value.is_object()).count();
    let text = serde_json::to_string_pretty(&summary).map_err(|e| AiperfError::Write(e.into()))?;
    writeln!(out, "{text}").map_err(AiperfError::Write)?;
    Ok(metrics as u64)
}

fn summary(run: &Run) -> Result<Map<String, Value>, AiperfError> {
    let record = run.measured();
    let measures = record.measures.as_deref().ok_or(AiperfError::NoTokens)?;
    if measures.times(TimeMeasure::TimeToFirstToken).is_empty() {
        return Err(AiperfError::NoTokens);
    }
    let seconds = run.summary.total.lasted_us.unwrap_or(0) as f64 / 1e6;
    let per_second = |n: u64| (seconds > 0.0).then(|| n as f64 / seconds);
    let prompt = measures.of(Count::TokensPrompt);
    let answer = match measures.of(Count::TokensAnswer) {
        0 => measures.of(Count::TokensCounted),
        answer => answer,
    };
    let each = |n: u64| (n > 0 && record.ok() > 0).then(|| n as f64 / record.ok() as f64);
    let token_mean = measures.times(TimeMeasure::TokenMean);
    let mut summary = Map::new();
    summary.insert("schema_version".to_owned(), SCHEMA_VERSION.into());
    for (name, times) in [
        (
            "time_to_first_token",
            measures.times(TimeMeasure::TimeToFirstToken),
        ),
        // A mean for each request there, as here.
        ("inter_token_latency", token_mean),
        ("inter_chunk_latency", measures.times(TimeMeasure::TokenGap)),
        ("request_latency", &record.response),
    ] {
        if let Some(block) = times_block(times) {
            summary.insert(name.to_owned(), block);
        }
    }
    for (name, unit, value) in [
        (
            "output_token_throughput",
            "tokens/sec",
            per_second(answer).filter(|_| answer > 0),
        ),
        (
            "output_token_throughput_per_user",
            "tokens/sec/user",
            // The median's inverse is the inverse's median; a mean's is not.
            token_mean
                .histogram()
                .and_then(|h| quantile(h, 0.5))
                .filter(|ns| *ns > 0)
                .map(|ns| 1e9 / ns as f64),
        ),
        ("output_sequence_length", "tokens", each(answer)),
        ("input_sequence_length", "tokens", each(prompt)),
        (
            "request_throughput",
            "requests/sec",
            per_second(record.ok()),
        ),
        ("request_count", "requests", Some(record.ok() as f64)),
        (
            "error_request_count",
            "requests",
            Some((record.due - record.ok()) as f64),
        ),
        (
            "goodput",
            "requests/sec",
            per_second(measures.of(Count::QueriesGood)),
        ),
        ("good_request_count", "requests", {
            Some(measures.of(Count::QueriesGood) as f64)
        }),
        ("benchmark_duration", "sec", Some(seconds)),
    ] {
        let Some(value) = value else { continue };
        let figure = match name {
            "output_token_throughput_per_user" => "p50",
            _ => "avg",
        };
        summary.insert(name.to_owned(), json!({ "unit": unit, figure: value }));
    }
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

/// Statistics in milliseconds; percentiles only where the sample is large enough to tell.
fn times_block(times: &Times) -> Option<Value> {
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
    for percent in PERCENTS {
        if let Some(value) = quantile(h, f64::from(percent) / 100.0) {
            block[format!("p{percent}")] = ms(value as f64).into();
        }
    }
    Some(block)
}
