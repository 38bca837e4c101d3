//! The changes of a folder's histories as JSON.

use serde_json::{Value, json};

use super::{HistoryChange, HistorySeries};

/// The version of the document, increased whenever a key changes its meaning or place.
const DOCUMENT_VERSION: u32 = 1;

/// Returns the series with their changes as JSON.
pub fn document(all: &[HistorySeries<'_>]) -> Value {
    json!({ "version": DOCUMENT_VERSION, "series": all.iter().map(series).collect::<Vec<_>>() })
}

fn series(series: &HistorySeries<'_>) -> Value {
    let machine = series.machine().map(|facts| {
        json!({
            "cpu_model": facts.cpu_model,
            "cores": facts.cores,
            "memory_bytes": facts.memory_bytes,
        })
    });
    let changes = series.changes.iter();
    json!({
        "kind": series.kind.name(),
        "name": series.name,
        "target": series.target,
        "machine": machine,
        "runs": series.items.len(),
        "changes": changes.map(|c| change(c, series.items.len())).collect::<Vec<_>>(),
    })
}

fn change(change: &HistoryChange<'_>, runs: usize) -> Value {
    let [share, low, high] = match change.relative_change() {
        Some(shares) => shares.map(Some),
        None => [None; 3],
    };
    json!({
        "metric": change.metric.key(),
        "run": change.first.id,
        "last_run_before": change.last_before.id,
        "started_at": change.first.began,
        "labels": change.first.labels,
        "runs_since": runs - change.position,
        "before": change.before,
        "after": change.after,
        "change": change.difference.shift,
        "change_low": change.difference.low,
        "change_high": change.difference.high,
        "change_share": share,
        "change_share_low": low,
        "change_share_high": high,
        "is_better": change.is_better(),
        "p_value": change.p_value,
        "also_changed": change.other_changes(),
    })
}
