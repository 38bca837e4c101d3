//! A run's result on stdout, for a person or as JSON.

use std::fmt::Write as _;

use plimsoll_model::run::Run;

use crate::console;
use crate::failure::Failure;
use crate::objectives::{Judged, Verdict};

/// Shows `run`, and what became of its objectives.
///
/// # Errors
/// When the run can't be shown as JSON, or stdout can't be written.
pub(crate) fn show(run: &Run, judged: &[Judged], json: bool) -> Result<(), Failure> {
    if json {
        return console::result(document(run, judged)?);
    }
    let total = &run.summary.total;
    let mut text = format!(
        "{}: {} ok, {} errors, {} not started\n",
        run.header.name, total.ok, total.errors, total.not_started
    );
    for problem in &run.summary.health.problems {
        let _ = writeln!(text, "{}", problem.text);
    }
    text += &objectives(judged);
    console::result(text)
}

/// A line an objective.
pub(crate) fn objectives(judged: &[Judged]) -> String {
    let mut text = String::new();
    for one in judged {
        let verdict = match one.verdict {
            Verdict::Met => "met",
            Verdict::Missed => "MISSED",
            Verdict::NotSupported => "NOT JUDGED",
        };
        let _ = writeln!(
            text,
            "objective {}: {verdict} ({})",
            one.objective, one.measured
        );
    }
    text
}

/// `run.json`, with the directory and the objectives.
fn document(run: &Run, judged: &[Judged]) -> Result<String, Failure> {
    let path = run.dir.join(plimsoll_model::run::file::RUN);
    let text = std::fs::read_to_string(&path)
        .map_err(|e| Failure::error(format_args!("can't read {}: {e}", path.display())))?;
    let mut document: serde_json::Value = serde_json::from_str(&text).map_err(Failure::error)?;
    document["dir"] = run.dir.display().to_string().into();
    document["objectives"] = serde_json::to_value(judged).map_err(Failure::error)?;
    Ok(format!(
        "{}\n",
        serde_json::to_string_pretty(&document).map_err(Failure::error)?
    ))
}
