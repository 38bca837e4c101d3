//! `plimsoll compare`: shows differences between runs and whether they may be due to chance.

use std::collections::HashSet;
use std::path::PathBuf;

use clap::Args;
use plimsoll_model::runs::run::Run;
use plimsoll_report::compare::{Comparison, ComparisonRow, RunGroup, compare};
use plimsoll_report::{comment, html, markdown, terminal};
use serde_json::{Value, json};

use crate::failure::{Exit, Failure};
use crate::load::documents::{JsonFlag, is_stdout, load_run, print_json, run_views, write_text};
use crate::load::presentation;
use crate::screen::console;

/// Compare two runs, or two groups of runs of the same test.
///
/// The statistical unit is the run, not the call: with fewer than about six runs per side, differences are shown
/// without a verdict. All rows are judged together: if the groups are equal, at most one comparison in twenty reports a
/// difference in any row.
#[derive(Debug, Args)]
#[command(before_help = "\
Example: two runs; and two builds with six runs each
  plimsoll compare runs/before runs/after
  plimsoll compare --baseline runs/a[1-6] --candidate runs/b[1-6]
Example: a page to show around, and a table for a pull request
  plimsoll compare runs/before runs/after --html compare.html --markdown compare.md
Example: two builds beside each other in one run, which ends when the gate is decided
  plimsoll compare --live old=grpc://localhost:50051 new=grpc://localhost:50052 \\
      -m score.ScoreService/GetScore -d @vector.json --rate 500/s --fail-if 'p99 +3%'")]
pub(crate) struct CompareArguments {
    /// The run to compare with.
    #[arg(value_name = "A", requires = "b", required_unless_present = "baseline")]
    a: Option<PathBuf>,

    /// The run to judge.
    #[arg(value_name = "B")]
    b: Option<PathBuf>,

    /// Runs to compare with.
    #[arg(long, value_name = "RUN", num_args = 1.., requires = "candidate", conflicts_with = "a")]
    baseline: Vec<PathBuf>,

    /// Runs to judge.
    #[arg(long, value_name = "RUN", num_args = 1.., requires = "baseline", conflicts_with = "a")]
    candidate: Vec<PathBuf>,

    /// Write the comparison as an HTML page ("-": stdout). It needs no network.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,

    /// Write the comparison in Markdown ("-": stdout).
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,

    /// Write a comment for a pull request ("-": stdout).
    #[arg(long, value_name = "FILE")]
    comment: Option<PathBuf>,

    /// Measure two services now, side by side in one run, instead of comparing runs: the same as
    /// `plimsoll ladder A B`, with its flags.
    #[arg(long)]
    live: bool,

    #[command(flatten)]
    json: JsonFlag,
}

pub(crate) fn execute(arguments: &CompareArguments) -> Result<Exit, Failure> {
    if arguments.live {
        return Err(Failure::usage(
            "--live (PLIMSOLL_LIVE) is for services, not for runs",
            "type it: plimsoll compare --live old=URL new=URL, with the flags of `plimsoll ladder`",
        ));
    }
    let dirs = |single: &Option<PathBuf>, several: &[PathBuf]| -> Vec<PathBuf> {
        single.iter().chain(several).cloned().collect()
    };
    let a = dirs(&arguments.a, &arguments.baseline);
    let b = dirs(&arguments.b, &arguments.candidate);
    let (comparison, [a, b]) = load_and_compare(&a, &b)?;
    if let Some(file) = &arguments.markdown {
        write_text("--markdown", file, markdown::comparison_report(&comparison))?;
    }
    if let Some(file) = &arguments.html {
        write_text(
            "--html",
            file,
            html::comparison_page(&comparison, &run_views(a)?, &run_views(b)?),
        )?;
    }
    if let Some(file) = &arguments.comment {
        let pages = arguments.html.iter().chain(&arguments.markdown);
        let pages: Vec<PathBuf> = pages.filter(|file| !is_stdout(file)).cloned().collect();
        write_text("--comment", file, comment::comparison(&comparison, &pages))?;
    }
    if arguments.html.is_some() || arguments.markdown.is_some() || arguments.comment.is_some() {
        return Ok(Exit::Done);
    }
    if arguments.json.json {
        print_json(&comparison_json(&comparison))?;
    } else {
        console::print_result(terminal::render_comparison(
            &comparison,
            &presentation::terminal_options(),
        ))?;
    }
    Ok(Exit::Done)
}

/// Reads the runs of both sides and compares them.
///
/// # Errors
/// When a run can't be read or is given twice, or one side has no runs.
pub(crate) fn load_and_compare(
    a: &[PathBuf],
    b: &[PathBuf],
) -> Result<(Comparison, [Vec<Run>; 2]), Failure> {
    let runs = |dirs: &[PathBuf]| {
        let runs = dirs.iter().map(|dir| load_run(dir));
        runs.collect::<Result<Vec<Run>, Failure>>()
    };
    let (a, b) = (runs(a)?, runs(b)?);
    check_distinct(&a)?;
    check_distinct(&b)?;
    let comparison = compare(&a, &b).ok_or_else(|| {
        Failure::usage(
            "nothing to compare",
            "give two runs, or --baseline and --candidate",
        )
    })?;
    Ok((comparison, [a, b]))
}

/// Rejects a run that is given twice: the statistical test assumes independent runs.
fn check_distinct(side: &[Run]) -> Result<(), Failure> {
    let mut known = HashSet::new();
    for run in side {
        let place = run.dir.canonicalize().unwrap_or_else(|_| run.dir.clone());
        if !known.insert(place) {
            return Err(Failure::usage(
                format_args!("{} is given twice", run.dir.display()),
                "measure again: it takes about six runs a side to see a difference",
            ));
        }
    }
    Ok(())
}

/// Returns the comparison as JSON. Times are in µs.
pub(crate) fn comparison_json(comparison: &Comparison) -> Value {
    let side = |side: &RunGroup| json!({ "name": side.name, "directory": side.directory, "runs": side.runs });
    json!({
        "a": side(&comparison.a),
        "b": side(&comparison.b),
        "enough_runs": comparison.has_enough_runs(),
        "rows_judged": comparison.judged_rows,
        "warnings": comparison.warnings,
        "plan_differences": comparison
            .plan_differences
            .iter()
            .map(|d| json!({ "key": d.key, "a": d.a, "b": d.b, "matters": d.affects_measurement() }))
            .collect::<Vec<_>>(),
        "metrics": comparison.rows.iter().map(row).collect::<Vec<_>>(),
    })
}

fn row(row: &ComparisonRow) -> Value {
    json!({
        "metric": row.metric,
        "unit": match row.unit {
            plimsoll_report::compare::ComparisonUnit::Time => "us",
            plimsoll_report::compare::ComparisonUnit::PerSecond => "1/s",
            plimsoll_report::compare::ComparisonUnit::Share => "share",
        },
        "a": row.a,
        "b": row.b,
        "shift": row.shift(),
        "relative": row.relative_shift(),
        "p_value": row.difference.map(|d| d.p_value),
        "interval": row.difference.map(|d| [d.low, d.high]),
        "better": row.is_better(),
    })
}
