//! `plimsoll ladder`: what each variant of a plan adds, measured in turn.

use std::path::{Path, PathBuf};

use clap::Args;
use plimsoll_model::ladder::{self, LadderRecord, Metric, Slice};
use plimsoll_model::run::file;
use plimsoll_model::units::Period;
use plimsoll_report::ladder as shown;
use plimsoll_report::quantity::time;

use crate::arguments::{Origins, boolish};
use crate::climbing::{Asked, Climb};
use crate::commands::report;
use crate::commands::run::read;
use crate::console;
use crate::environment::Environment;
use crate::execution::Session;
use crate::failure::{Exit, Failure};
use crate::load_flags::LoadFlags;
use crate::presentation;
use crate::problems::Source;

/// Measure variants of a plan in turn, and tell what each adds.
///
/// The plan's section [ladder] lists axes with their values; every combination is a rung.
#[derive(Debug, Args)]
#[command(before_help = "\
Example: what TLS and client certificates add, with a server of ours for each
  plimsoll ladder plans/score-ladder.toml",
    after_help = crate::environment::HELP)]
pub(crate) struct Arguments {
    #[arg(value_name = "PLAN")]
    plan: PathBuf,

    /// Another target than the plan's.
    #[arg(long, env = "PLIMSOLL_TARGET", value_name = "URL")]
    target: Option<String>,

    /// How often each rung is measured [default: as often as differences can be told].
    #[arg(long, env = "PLIMSOLL_ROUNDS", value_name = "N", help_heading = "Ladder",
        value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,

    /// How long a slice is measured [default: 2s].
    #[arg(
        long,
        env = "PLIMSOLL_SLICE",
        value_name = "TIME",
        help_heading = "Ladder"
    )]
    slice: Option<Period>,

    /// The ladder's directory [default: runs/<UTC time>-<name>-ladder].
    #[arg(
        long,
        env = "PLIMSOLL_OUT",
        value_name = "DIR",
        help_heading = "Output"
    )]
    out: Option<PathBuf>,

    /// Print the ladder as JSON.
    #[arg(long, env = "PLIMSOLL_JSON", value_parser = boolish(), help_heading = "Output")]
    json: bool,

    #[command(flatten)]
    load: LoadFlags,
}

pub(crate) fn execute(
    arguments: &Arguments,
    origins: &Origins,
    environment: &Environment,
    session: &Session,
) -> Result<Exit, Failure> {
    let (mut spec, text) = read(&arguments.plan)?;
    let source = Source::File {
        name: arguments.plan.display().to_string(),
        text: &text,
    };
    if let Some(target) = &arguments.target {
        spec.target = Some(target.clone());
    }
    arguments.load.lay_over(&mut spec, origins)?;
    let asked = Asked {
        kind: "ladder",
        rounds: arguments.rounds,
        default_rounds: ladder::fewest_rounds,
        round_told: summary,
        slice: arguments.slice,
        out: arguments.out.as_deref(),
    };
    let mut climb = Climb::prepare(&spec, &asked, environment, &source)?;
    climb.run(session, |_, run, name| Slice::of(run, name))?;
    conclude(&climb.record, &climb.dir, arguments.json)
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
        Exit::Done
    })
}
