//! `plimsoll sweep`: measures file transfers over many kinds of TLS links, and compares each with the rate at which the
//! machine's cryptography alone works in memory.

use std::path::{Path, PathBuf};

use clap::Args;
use plimsoll_engine::tls::crypto_speed;
use plimsoll_model::comparisons::ladder::LadderRecord;
use plimsoll_model::formats::output;
use plimsoll_model::plan::{KeyExchangeGroup, Plan, TlsSuite};
use plimsoll_model::spec::Spec;
use plimsoll_protocols::registry::sweep_checks;
use plimsoll_report::sweep as shown;

use crate::failure::{Exit, Failure};
use crate::ladder_run::{self, LadderFlags, LadderRequest};
use crate::load::documents::{OutputDirs, StdoutContent};
use crate::load::execution::{self, OutputFlags};
use crate::load::presentation;
use crate::load::process::ProcessContext;
use crate::screen::console;
use crate::settings::problems::PlanSource;
use crate::shards::ShardContext;

/// File names of the table of metrics in a sweep's directory: as CSV for spreadsheets, and as JSON for programs.
const CSV_FILE: &str = "metrics.csv";
const JSON_FILE: &str = "metrics.json";

/// Measure TLS links of every suite, size and mode in a plan, and how close each gets to the machine's limit.
///
/// The plan's section [ladder] lists axes with their values; every combination is measured in turn. An interrupted
/// sweep keeps its measurements.
#[derive(Debug, Args)]
#[command(before_help = "\
Example: three suites, sizes from 1 KiB to 512 MiB, full and resumed handshakes
  plimsoll sweep plans/tls-sweep.toml
Example: the same against a server of your own, three times each
  plimsoll sweep plans/tls-sweep.toml --target https://localhost:4433 --ca certs/ca.crt --rounds 3",
    after_help = crate::settings::environment::VARIABLES_HELP,
    mut_arg("target", |arg| arg.help(sweep_checks::TARGET_HELP)),
    mut_arg("rounds", |arg| arg.help("How often each configuration is measured [default: 1]")))]
pub(crate) struct SweepArguments {
    #[arg(value_name = "PLAN")]
    plan: PathBuf,

    #[command(flatten)]
    pub(crate) ladder: LadderFlags,
}

pub(crate) fn execute(
    arguments: &SweepArguments,
    process: &ProcessContext,
    meeting: Option<&ShardContext>,
) -> Result<Exit, Failure> {
    let flags = &arguments.ladder;
    let (spec, text) = flags.read_spec(&arguments.plan, &process.origins)?;
    let asked = LadderRequest {
        kind: "sweep",
        flags,
        source: &PlanSource::from_file(&arguments.plan, &text),
        process,
        shard_context: meeting,
        services: None,
    };
    run_sweep(&spec, &asked, flags.documents.stdout_content())
}

/// Measures the rungs (variants) of a ladder that was given as flags (`fetch --mode both`).
///
/// # Errors
/// When the links don't fetch files over TLS or could not be measured, or the record can't be saved.
pub(crate) fn run_ladder_from_flags(
    spec: &Spec,
    output: &OutputFlags,
    process: &ProcessContext,
) -> Result<Exit, Failure> {
    if output.save_or_show_plan(spec)? {
        return Ok(Exit::Done);
    }
    let asked = LadderRequest {
        kind: "both",
        flags: &LadderFlags::with_directory(output.out.clone()),
        source: &PlanSource::Flags,
        process,
        shard_context: None,
        services: None,
    };
    run_sweep(spec, &asked, output.stdout_content())
}

/// Measures the links that the ladder axes in `spec` describe, and shows the results.
///
/// # Errors
/// When the links don't fetch files over TLS or could not be measured, or the record can't be saved.
fn run_sweep(
    spec: &Spec,
    asked: &LadderRequest<'_>,
    screen: StdoutContent,
) -> Result<Exit, Failure> {
    sweep_checks::check_fetches_files(spec, asked.kind)?;
    ladder_run::execute(spec, asked, |mut climb| {
        let (suites, groups) = offered_tls_parameters(climb.plans())?;
        let limits = crypto_speed::measure(&suites, &groups).map_err(Failure::error)?;
        climb.record.limits = Some(limits);
        let measured = climb.run();
        // If anything was measured, show it, even if the sweep ended with an error.
        if climb.record.rungs.iter().any(|r| !r.slices.is_empty()) {
            show(
                &climb.record,
                &climb.dir,
                screen,
                &asked.process.output_dirs,
            )?;
        }
        measured?;
        Ok(if climb.record.interrupted {
            Exit::Interrupted
        } else {
            exit_code(&climb.record)
        })
    })
}

/// Returns all cipher suites and key exchange groups that at least one of the plans offers.
fn offered_tls_parameters(
    plans: &[Plan],
) -> Result<(Vec<TlsSuite>, Vec<KeyExchangeGroup>), Failure> {
    let (mut suites, mut groups) = (Vec::new(), Vec::new());
    for plan in plans {
        let Some(tls) = &plan.tls else {
            return Err(sweep_checks::plaintext_target_error().into());
        };
        for suite in &tls.suites {
            if !suites.contains(suite) {
                suites.push(*suite);
            }
        }
        for group in &tls.groups {
            if !groups.contains(group) {
                groups.push(*group);
            }
        }
    }
    Ok((suites, groups))
}

fn show(
    record: &LadderRecord,
    dir: &Path,
    screen: StdoutContent,
    made: &OutputDirs,
) -> Result<(), Failure> {
    let pretty =
        serde_json::to_string_pretty(&shown::sweep_json(record)).map_err(Failure::error)?;
    let files = [(CSV_FILE, shown::csv(record)), (JSON_FILE, pretty + "\n")];
    for (name, text) in files {
        let path = dir.join(name);
        output::write(&path, text)
            .map_err(|e| Failure::error(format_args!("can't write {}: {e}", path.display())))?;
    }
    execution::write_page(dir, made)?;
    match screen {
        StdoutContent::Tables => {
            let text = shown::render(record, &presentation::terminal_options());
            let csv = dir.join(CSV_FILE);
            console::print_result(format_args!("{text}\nCSV: {}\n", csv.display()))
        }
        StdoutContent::Document => Ok(()),
    }
}

/// Returns the exit code: an error if no call succeeded, otherwise the verdict on the objectives.
fn exit_code(record: &LadderRecord) -> Exit {
    let volumes = record.rungs.iter().flat_map(|r| &r.slices);
    let ok = volumes.filter_map(|s| s.volume.as_ref()).any(|v| v.ok > 0);
    if ok {
        Exit::from_verdict(record.conclusion())
    } else {
        Exit::Error
    }
}
