//! What `--json` prints: one document of any number of runs, or of the many runs of a search, a ladder or a sweep.
//! Its shape is that of `docs/run-format.md`, and as stable.

use std::path::Path;
use std::time::Duration;

use plimsoll_model::ladder::LadderRecord;
use plimsoll_model::lanes::LanesRecord;
use plimsoll_model::objective::{Conclusion, judge_run};
use plimsoll_model::run::Run;
use plimsoll_model::search::SearchRecord;
use serde_json::{Value, json};

use crate::overhead::overhead;
use crate::sweep;

/// The document's version, greater whenever a key changes its meaning or its place.
const DOCUMENT_VERSION: u32 = 1;

/// Runs, in their order.
pub fn runs<'a>(runs: impl IntoIterator<Item = &'a Run>, overhead_over: Option<Duration>) -> Value {
    let runs = runs.into_iter().map(|run| document(run, overhead_over));
    json!({ "version": DOCUMENT_VERSION, "runs": runs.collect::<Vec<_>>() })
}

/// Lanes: their runs, in order, and the record of which they are.
///
/// # Errors
/// When the record can't be written as JSON.
pub fn lanes(
    record: &LanesRecord,
    of: &[Run],
    overhead_over: Option<Duration>,
) -> serde_json::Result<Value> {
    let mut document = runs(of, overhead_over);
    document["lanes"] = serde_json::to_value(record)?;
    Ok(document)
}

/// The search in `dir`.
///
/// # Errors
/// When the record can't be written as JSON.
pub fn search(record: &SearchRecord, dir: &Path) -> serde_json::Result<Value> {
    Ok(of_many("search", serde_json::to_value(record)?, dir))
}

/// The ladder or the sweep in `dir`.
///
/// # Errors
/// When the record can't be written as JSON.
pub fn ladder(record: &LadderRecord, dir: &Path) -> serde_json::Result<Value> {
    if record.limits.is_some() {
        return Ok(of_many("sweep", sweep::document(record), dir));
    }
    let mut ladder = serde_json::to_value(record)?;
    let gated = record.gated().into_iter().map(|gated| {
        json!({
            "gate": gated.gate,
            "rung": record.rungs[gated.rung].name,
            "passage": gated.passage,
            "allowed": gated.allowed,
        })
    });
    ladder["gated"] = gated.collect();
    Ok(of_many("ladder", ladder, dir))
}

/// The runs are in the record's directory, and their figures in the record.
fn of_many(kind: &str, mut record: Value, dir: &Path) -> Value {
    record["directory"] = json!(dir);
    json!({ "version": DOCUMENT_VERSION, "runs": [], kind: record })
}

/// One run: the keys of `run.json`, with `directory`, `objectives` with the `verdict` on them, and with
/// `overhead` where a server's own delay is stated.
fn document(run: &Run, overhead_over: Option<Duration>) -> Value {
    let mut document = run.to_json();
    document["directory"] = json!(run.dir);
    let judged = judge_run(run);
    document["verdict"] = json!(Conclusion::of(&judged));
    document["objectives"] = json!(judged);
    if let Some(delay) = overhead_over {
        document["overhead"] = json!(overhead(run, delay));
    }
    document
}
