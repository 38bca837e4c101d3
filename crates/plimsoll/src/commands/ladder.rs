//! `plimsoll ladder`: what each variant of a plan adds, measured in turn.
//!
//! Rounds of short slices, every rung once a round in random order; each slice is a run of its
//! own in the ladder's directory. Servers of ours are child processes of the same program, so
//! that both ends' CPU can be told apart; they end with the ladder, however it ends.

mod servers;
mod sidecars;
mod stand;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use jiff::Timestamp;
use plimsoll_engine::worker::StopLevel;
use plimsoll_model::Plan;
use plimsoll_model::ladder::{self, LadderRecord, Metric, Rung, Slice};
use plimsoll_model::run::{SCHEMA_VERSION, file};
use plimsoll_model::spec::{RungSpec, Secured, Spec};
use plimsoll_model::units::Period;
use plimsoll_report::ladder as shown;
use plimsoll_report::quantity::time;

use crate::arguments::{Origins, boolish};
use crate::commands::report;
use crate::commands::run::read;
use crate::console;
use crate::environment::Environment;
use crate::execution::{self, Session, cannot_keep};
use crate::failure::{Exit, Failure};
use crate::load_flags::LoadFlags;
use crate::planning;
use crate::presentation;
use crate::problems::{self, Source};
use crate::progress::Series;

use servers::Servers;
use stand::Stand;

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

const SLICE: Duration = Duration::from_secs(2);

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
    let options = spec.ladder.clone().unwrap_or_default();
    let length = arguments.slice.or(options.slice).map_or(SLICE, |p| p.0);
    if length < Duration::from_millis(100) {
        return Err(Failure::usage(
            "--slice: shorter than 100ms measures nothing",
            "use a duration such as \"2s\"",
        ));
    }
    (spec.load.duration, spec.load.calls) = (Some(Period(length)), None);
    spec.load.warmup.get_or_insert(Period(length / 4));
    let mut rungs = spec
        .rungs()
        .map_err(|problem| problems::failure(vec![problem], &source))?;
    let name = spec.name.clone().unwrap_or_else(|| "ladder".to_owned());
    let dir = match &arguments.out {
        Some(dir) => dir.clone(),
        None => execution::default_dir(&format!("{name} ladder")),
    };
    make_directory(&dir, &spec)?;
    // Dropped, and so stopped, at the end of this function.
    let servers = match &options.serve {
        Some(words) => servers::start(words, &mut rungs, &dir)?,
        None => {
            check_identity(&rungs)?;
            Servers::default()
        }
    };
    for skipped in &servers.skipped {
        console::tell(format_args!(
            "{} is not measured: {}",
            skipped.name, skipped.reason
        ));
    }
    let skipped = servers.skipped.clone();
    let mut stand = Stand::build(servers, &mut rungs, &dir)?;
    let ready = rungs
        .into_iter()
        .map(|rung| {
            let plan = planning::plan(&rung.spec, environment, &source)?;
            Ok((rung, plan))
        })
        .collect::<Result<Vec<(RungSpec, Plan)>, Failure>>()?;
    let rounds = arguments
        .rounds
        .or(options.rounds)
        .map_or_else(|| ladder::fewest_rounds(ready.len()), |n| n as usize);
    let mut record = LadderRecord {
        schema_version: SCHEMA_VERSION,
        name,
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        started_at: Timestamp::now(),
        slice_s: length.as_secs_f64(),
        seed: spec.seed.unwrap_or(1),
        rungs: ready
            .iter()
            .map(|(rung, _)| Rung {
                name: rung.name.clone(),
                settings: rung.settings.clone(),
                slices: Vec::new(),
            })
            .collect(),
        skipped,
        interrupted: false,
    };
    let series = Series::new(session.progress);
    let outcome = climb(
        &mut record,
        &ready,
        rounds,
        &dir,
        &mut stand,
        &series,
        session,
    );
    // The terminal is given back before anything else is shown.
    drop(series);
    // What was measured until then stays, whatever ended the ladder.
    record.write(&dir).map_err(|e| cannot_keep(&e, &dir))?;
    outcome?;
    conclude(&record, &dir, arguments.json)
}

/// Makes the ladder's directory, with the plan in it.
fn make_directory(dir: &Path, spec: &Spec) -> Result<(), Failure> {
    let used = std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some());
    if used {
        return Err(Failure::usage(
            format_args!("--out: {} is not empty", dir.display()),
            "give another directory, or remove this one first",
        ));
    }
    let text = spec.without_secrets().to_toml().map_err(Failure::error)?;
    std::fs::create_dir_all(dir)
        .and_then(|()| std::fs::write(dir.join(file::PLAN), text))
        .map_err(|e| {
            Failure::error_with_help(
                format_args!("can't keep the ladder in {}: {e}", dir.display()),
                "give a directory on a disk with room, which this user may write to, with --out",
            )
        })
}

/// Mutual TLS without a certificate would quietly be another rung.
fn check_identity(rungs: &[RungSpec]) -> Result<(), Failure> {
    let without = rungs.iter().find(|rung| {
        rung.secured == Secured::Mutual
            && rung.spec.tls.as_ref().is_none_or(|tls| tls.cert.is_none())
    });
    match without {
        None => Ok(()),
        Some(rung) => Err(Failure::usage(
            format_args!(
                "ladder.tls: rung \"{}\" has no client certificate",
                rung.name
            ),
            "give tls.cert and tls.key in the plan, or let the ladder start its own servers: serve = [\"score\"]",
        )),
    }
}

/// Round by round, slice by slice.
fn climb(
    record: &mut LadderRecord,
    ready: &[(RungSpec, Plan)],
    rounds: usize,
    dir: &Path,
    stand: &mut Stand,
    series: &Series,
    session: &Session,
) -> Result<(), Failure> {
    for (round, order) in ladder::order(ready.len(), rounds, record.seed)
        .into_iter()
        .enumerate()
    {
        let mut slices: Vec<Option<Slice>> = vec![None; ready.len()];
        for (nth, rung) in order.into_iter().enumerate() {
            let (variant, mut plan) = (&ready[rung].0, ready[rung].1.clone());
            let before = stand.before(rung, &mut plan)?;
            let plan = &plan;
            let toml = variant
                .spec
                .filled_in(plan)
                .to_toml()
                .map_err(Failure::error)?;
            let name = format!("rung-{}/slice-{:02}", rung + 1, round + 1);
            let context = format!(
                "round {} of {rounds}, slice {} of {}: {}",
                round + 1,
                nth + 1,
                ready.len(),
                variant.name
            );
            let progress = series.one(plan, vec![context]);
            let run = execution::carry_out(plan, &toml, &dir.join(&name), progress, None, session)?;
            if session.stop.level() != StopLevel::Run {
                record.interrupted = true;
                return Ok(());
            }
            let mut slice = Slice::of(&run, name);
            stand.after(rung, &before, &run, &mut slice);
            slices[rung] = Some(slice);
        }
        for (rung, slice) in record.rungs.iter_mut().zip(slices) {
            rung.slices.extend(slice);
        }
        record.write(dir).map_err(|e| cannot_keep(&e, dir))?;
        series.tell(summary(record, round + 1, rounds));
    }
    Ok(())
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
