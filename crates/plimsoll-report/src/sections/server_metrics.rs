//! The metrics that a model's server published itself during a run, as a table, as sentences and as JSON.

use std::path::Path;

use plimsoll_model::runs::server_metrics::{
    MetricKind, MetricSummary, ServerMetric, ServerMetricsRecord,
};
use serde_json::{Value, json};

use crate::quantity::{count, or_dash, plural, rate, share};
use crate::sections::table::TextTable;

/// The heading of the table.
pub(crate) const HEADING: &str = "The server's own metrics";

/// Returns a row for each metric that the server published.
pub(crate) fn table(record: &ServerMetricsRecord) -> TextTable {
    let rows = ServerMetric::ALL.into_iter().filter_map(|metric| {
        let summary = record.summary(metric)?;
        let [mean, peak, total] = match metric {
            // The queries are the whole of which the hits are shown as a share.
            ServerMetric::PrefixCacheQueries => return None,
            ServerMetric::PrefixCacheHits => prefix_cache_cells(record, summary),
            _ => cells(metric, summary),
        };
        Some([metric.words().to_owned(), mean, peak, total])
    });
    let head = ["server's own metrics", "mean", "peak", "total"];
    TextTable::new(head, &[0], rows)
}

fn cells(metric: ServerMetric, summary: MetricSummary) -> [String; 3] {
    let show = match metric.kind() {
        MetricKind::Level => format_level,
        MetricKind::Share => format_percent,
        MetricKind::Counter => rate,
    };
    [
        or_dash(summary.mean, show),
        or_dash(summary.peak, show),
        or_dash(summary.total, format_count),
    ]
}

/// Returns the share of prompt tokens that the prefix cache had, and their number.
fn prefix_cache_cells(record: &ServerMetricsRecord, hits: MetricSummary) -> [String; 3] {
    let queries = record.summary(ServerMetric::PrefixCacheQueries);
    let both = hits
        .total
        .zip(queries.and_then(|queries| queries.total))
        .map(|(hits, queries)| share(to_count(hits), to_count(queries)));
    [
        or_dash(both, |text| text),
        "–".to_owned(),
        or_dash(hits.total, format_count),
    ]
}

/// Describes how the metrics were read, and what could not be read.
pub(crate) fn facts(record: &ServerMetricsRecord) -> Vec<String> {
    let mut all = Vec::new();
    if record.readings > 0 {
        all.push(format!(
            "read once a second from {}: {}",
            record.url,
            plural(record.readings, "reading")
        ));
    }
    if let Some(problem) = &record.problem {
        let failed = plural(record.failed_readings, "reading");
        all.push(format!("{failed} failed; the first: {problem}"));
    }
    all
}

/// Formats a number of requests, or a mean of them.
pub(crate) fn format_level(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").unwrap_or(&text).to_owned()
}

/// Formats a share from 0 to 1 in per cent.
pub(crate) fn format_percent(value: f64) -> String {
    format!("{:.1} %", value * 100.0)
}

fn format_count(value: f64) -> String {
    count(to_count(value))
}

fn to_count(value: f64) -> u64 {
    value.round().max(0.0) as u64
}

/// Returns the metrics of a run's server as a part of the run's document; `None` if they were not read.
pub(crate) fn document(dir: &Path) -> Option<Value> {
    match ServerMetricsRecord::read(dir) {
        Ok(record) => Some(json!(record?)),
        Err(problem) => Some(json!({ "problem": problem.to_string() })),
    }
}
