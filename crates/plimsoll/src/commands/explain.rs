//! `plimsoll explain`: says in at most ten sentences what was measured, how certain the result is, and what to do next.

use std::path::{Path, PathBuf};

use clap::Args;
use plimsoll_report::sentences::explanation;
use serde_json::json;

use crate::failure::{Exit, Failure};
use crate::load::documents::{JsonFlag, ReportContents, print_json, resolve_latest};
use crate::load::presentation;
use crate::screen::console;

/// Explain a run, a ladder or a search in a few sentences, and say what to do next.
#[derive(Debug, Args)]
#[command(before_help = "\
Example: the newest run
  plimsoll explain
Example: a run, a search or a ladder
  plimsoll explain runs/steady")]
pub(crate) struct ExplainArguments {
    /// The directory of a run, search, ladder or lanes; LATEST: the newest in runs/.
    #[arg(value_name = "RUN", default_value = "LATEST")]
    run: PathBuf,

    #[command(flatten)]
    json: JsonFlag,
}

pub(crate) fn execute(arguments: &ExplainArguments) -> Result<Exit, Failure> {
    let dir = resolve_latest(&arguments.run);
    let contents = ReportContents::from_dirs(&[dir])?;
    let parts = explain_each(&contents);
    if arguments.json.json {
        let parts: Vec<_> = parts
            .iter()
            .map(|(dir, sentences)| json!({ "directory": dir, "sentences": sentences }))
            .collect();
        print_json(&json!({ "explained": parts }))?;
        return Ok(Exit::Done);
    }
    let options = presentation::terminal_options();
    let texts = parts.iter().map(|(dir, sentences)| {
        let list = explanation::render(sentences, &options);
        format!("{}\n{list}", dir.display())
    });
    console::print_result(texts.collect::<Vec<String>>().join("\n"))?;
    Ok(Exit::Done)
}

/// Returns each measurement's directory with the sentences that explain the measurement.
fn explain_each(contents: &ReportContents) -> Vec<(&Path, Vec<String>)> {
    match contents {
        ReportContents::Runs(runs) | ReportContents::Lanes(_, runs) => {
            let explained = runs.iter();
            explained
                .map(|run| (run.dir.as_path(), explanation::explain_run(run)))
                .collect()
        }
        ReportContents::Search(dir, record) => {
            vec![(dir, explanation::explain_search(record, dir))]
        }
        ReportContents::Ladder(dir, record) => {
            vec![(dir, explanation::explain_ladder(record, dir))]
        }
    }
}
