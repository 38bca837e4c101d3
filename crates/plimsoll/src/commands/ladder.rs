//! `plimsoll ladder`: what each variant of a plan adds, measured in turn.

use std::path::Path;

use clap::Args;
use plimsoll_model::ladder::{self, LadderRecord, Metric, Slice};
use plimsoll_model::run::file;
use plimsoll_report::ladder as shown;
use plimsoll_report::quantity::time;

use crate::arguments::Origins;
use crate::climbing::{Climb, ClimbFlags};
use crate::commands::report;
use crate::console;
use crate::environment::Environment;
use crate::execution::Session;
use crate::failure::{Exit, Failure};
use crate::presentation;
use crate::problems::Source;
use crate::row_flags::RowFlags;

/// Measure variants of a plan in turn, and tell what each adds.
///
/// The plan's section [ladder] lists axes with their values; every combination is a rung.
#[derive(Debug, Args)]
#[command(before_help = "\
Example: what TLS and client certificates add, with a server of ours for each
  plimsoll ladder plans/score-ladder.toml",
    after_help = crate::environment::HELP)]
pub(crate) struct Arguments {
    #[command(flatten)]
    climb: ClimbFlags,

    #[command(flatten)]
    rows: RowFlags,
}

pub(crate) fn execute(
    arguments: &Arguments,
    origins: &Origins,
    environment: &Environment,
    session: &Session,
) -> Result<Exit, Failure> {
    let flags = &arguments.climb;
    let (mut spec, text) = flags.spec(origins)?;
    arguments.rows.lay_over(&mut spec);
    let source = Source::File {
        name: flags.plan.display().to_string(),
        text: &text,
    };
    let asked = flags.asked("ladder", ladder::fewest_rounds, summary);
    let mut climb = Climb::prepare(&spec, &asked, environment, &source)?;
    climb.run(session, |_, run, name| Slice::of(run, name))?;
    conclude(&climb.record, &climb.dir, flags.json)
}

/// A line a round: the medians so far.
fn summary(record: &LadderRecord, round: usize, rounds: usize) -> String {
    let medians: Vec<String> = record
        .rungs
        .iter()
        .filter_map(|rung| Some(format!("{} {}", rung.name, time(rung.median(Metric::P50)?))))
        .collect();
    format!(
        "round {round} of {rounds}  p50 so far: {}",
        medians.join(", ")
    )
}

fn conclude(record: &LadderRecord, dir: &Path, json: bool) -> Result<Exit, Failure> {
    let page = dir.join(file::REPORT);
    std::fs::write(&page, report::page(&[dir.to_owned()])?)
        .map_err(|e| Failure::error(format_args!("can't write {}: {e}", page.display())))?;
    if json {
        let mut document = serde_json::to_value(record).map_err(Failure::error)?;
        document["dir"] = dir.display().to_string().into();
        let text = serde_json::to_string_pretty(&document).map_err(Failure::error)?;
        console::result(format_args!("{text}\n"))?;
    } else {
        let text = shown::render(record, &presentation::options());
        console::result(format_args!("{text}\nThe report is {}\n", page.display()))?;
    }
    Ok(if record.interrupted {
        Exit::Interrupted
    } else {
        Exit::of(record.conclusion())
    })
}
