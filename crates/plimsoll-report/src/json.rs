//! The output of `--json`: one document for runs, or for a search, a ladder or a sweep. `docs/run-format.md` describes
//! its structure and how stable it is.

use std::path::Path;
use std::time::Duration;

use plimsoll_model::comparisons::ladder::LadderRecord;
use plimsoll_model::objective::{RunVerdict, judge_run};
use plimsoll_model::runs::lanes::LanesRecord;
use plimsoll_model::runs::run::Run;
use plimsoll_model::search::SearchRecord;
use serde_json::{Value, json};

use crate::sections::overhead::overhead;
use crate::sections::profile::{self, LadderProfiles};
use crate::sections::server_metrics;
use crate::sweep;

/// The version of the document, increased whenever a key changes its meaning or place.
const DOCUMENT_VERSION: u32 = 1;

/// Returns the document of runs, in the given order.
pub fn runs_document<'a>(
    runs: impl IntoIterator<Item = &'a Run>,
    overhead_over: Option<Duration>,
) -> Value {
    let runs = runs.into_iter().map(|run| run_document(run, overhead_over));
    json!({ "version": DOCUMENT_VERSION, "runs": runs.collect::<Vec<_>>() })
}

/// Returns the document of a run of several lanes (loads that run side by side): their record, and their runs in order.
///
/// # Errors
/// When the record can't be serialised as JSON.
pub fn lanes_document(
    record: &LanesRecord,
    of: &[Run],
    overhead_over: Option<Duration>,
) -> serde_json::Result<Value> {
    let mut document = runs_document(of, overhead_over);
    document["lanes"] = serde_json::to_value(record)?;
    Ok(document)
}

/// Returns the document of the search in `dir`.
///
/// # Errors
/// When the record can't be serialised as JSON.
pub fn search_document(record: &SearchRecord, dir: &Path) -> serde_json::Result<Value> {
    Ok(record_document(
        "search",
        serde_json::to_value(record)?,
        dir,
    ))
}

/// Returns the document of the ladder or sweep in `dir`.
///
/// # Errors
/// When the record can't be serialised as JSON.
pub fn ladder_document(record: &LadderRecord, dir: &Path) -> serde_json::Result<Value> {
    if record.limits.is_some() {
        return Ok(record_document("sweep", sweep::sweep_json(record), dir));
    }
    let mut ladder = serde_json::to_value(record)?;
    let gated = record.evaluate_gates().into_iter().map(|gated| {
        json!({
            "gate": gated.gate,
            "rung": record.rungs[gated.rung].name,
            "passage": gated.outcome,
            "obstacle": gated.obstacle,
            "allowed": gated.allowed,
        })
    });
    ladder["gated"] = gated.collect();
    match LadderProfiles::read(record, dir) {
        Ok(None) => {}
        Ok(Some(profiles)) => ladder["profiles"] = profiles.document(record),
        Err(problem) => ladder["profiles"] = json!({ "problem": problem.to_string() }),
    }
    Ok(record_document("ladder", ladder, dir))
}

/// Returns the document of a record whose figures come from runs in its directory.
fn record_document(kind: &str, mut record: Value, dir: &Path) -> Value {
    record["directory"] = json!(dir);
    json!({ "version": DOCUMENT_VERSION, "runs": [], kind: record })
}

/// Returns the document of one run: the keys of `run.json`, `directory`, `objectives` with the `verdict` on them, and
/// `overhead` if the server's own delay is given.
fn run_document(run: &Run, overhead_over: Option<Duration>) -> Value {
    let mut document = run.to_json();
    document["directory"] = json!(run.dir);
    let judged = judge_run(run);
    document["verdict"] = json!(RunVerdict::from_results(&judged));
    document["objectives"] = json!(judged);
    if let Some(profile) = profile::document(&run.dir) {
        document["profile"] = profile;
    }
    if let Some(metrics) = server_metrics::document(&run.dir) {
        document["server_metrics"] = metrics;
    }
    if let Some(delay) = overhead_over {
        document["overhead"] = json!(overhead(run, delay));
    }
    document
}
