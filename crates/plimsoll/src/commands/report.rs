//! `plimsoll report`: runs again, as tables, as JSON, or exported.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use plimsoll_model::run::{Run, RunError};
use plimsoll_model::search::SearchRecord;
use plimsoll_model::units::Period;
use plimsoll_report::html::{self, View};
use plimsoll_report::{json, lines, search, terminal};

use crate::arguments::Json;
use crate::console;
use crate::failure::{Exit, Failure, chain};
use crate::presentation;

/// Show runs again, or export their calls.
#[derive(Debug, Args)]
#[command(before_help = "\
Example: a run, and what the link and the tool add to the 5 ms that the server takes
  plimsoll report runs/steady
  plimsoll report runs/steady --overhead-over 5ms
Example: a page to show around, of one run or of several laid over each other
  plimsoll report runs/steady --html steady.html
Example: the calls of a run, one JSON object a line (the run was made with --requests)
  plimsoll report runs/steady --export lines steady.txt")]
pub(crate) struct Arguments {
    /// Run directories, or a search's.
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<PathBuf>,

    /// The server's own delay: show what is added to it.
    #[arg(long, env = "PLIMSOLL_OVERHEAD_OVER", value_name = "TIME")]
    overhead_over: Option<Period>,

    /// Write a run's calls to a file ("-": stdout). The format is `lines`: a JSON object a call.
    #[arg(long, env = "PLIMSOLL_EXPORT", num_args = 2, value_names = ["FORMAT", "FILE"])]
    export: Vec<String>,

    /// Write an HTML report of the runs, or of one search ("-": stdout). It needs no network.
    #[arg(long, env = "PLIMSOLL_HTML", value_name = "FILE")]
    html: Option<PathBuf>,

    #[command(flatten)]
    json: Json,
}

pub(crate) fn execute(arguments: &Arguments) -> Result<Exit, Failure> {
    if let Some(file) = &arguments.html {
        return write_html(&arguments.runs, file);
    }
    if let [dir] = arguments.runs.as_slice()
        && SearchRecord::is_in(dir)
    {
        return show_search(dir, arguments.json.json);
    }
    let runs = arguments
        .runs
        .iter()
        .map(|dir| load(dir))
        .collect::<Result<Vec<Run>, Failure>>()?;
    if let [format, file] = arguments.export.as_slice() {
        return export(&runs, format, file);
    }
    let overhead_over = arguments.overhead_over.map(|p| p.0);
    if arguments.json.json {
        let documents: Vec<_> = runs
            .iter()
            .map(|run| json::document(run, overhead_over))
            .collect();
        let one = match documents.as_slice() {
            [one] => serde_json::to_string_pretty(one),
            several => serde_json::to_string_pretty(several),
        };
        console::result(format_args!("{}\n", one.map_err(Failure::error)?))?;
        return Ok(Exit::Done);
    }
    let options = terminal::Options {
        overhead_over,
        ..presentation::options()
    };
    for (i, run) in runs.iter().enumerate() {
        let gap = if i > 0 { "\n" } else { "" };
        console::result(format_args!("{gap}{}", terminal::render(run, &options)))?;
    }
    Ok(Exit::Done)
}

/// A search, as when it was made.
fn show_search(dir: &Path, as_json: bool) -> Result<Exit, Failure> {
    let record = SearchRecord::load(dir).map_err(|e| Failure::error(chain(&e)))?;
    let text = if as_json {
        serde_json::to_string_pretty(&record).map_err(Failure::error)? + "\n"
    } else {
        search::render(&record, &presentation::options())
    };
    console::result(text)?;
    Ok(Exit::Done)
}

fn write_html(dirs: &[PathBuf], file: &Path) -> Result<Exit, Failure> {
    let page = page(dirs)?;
    if file == Path::new("-") {
        console::result(page)?;
        return Ok(Exit::Done);
    }
    std::fs::write(file, page)
        .map_err(|e| Failure::error(format_args!("--html: can't write {}: {e}", file.display())))?;
    console::tell(format_args!("written to {}", file.display()));
    Ok(Exit::Done)
}

/// The HTML report of runs laid over each other, or of one search.
///
/// # Errors
/// When a directory can't be read, or searches and runs are mixed.
pub(crate) fn page(dirs: &[PathBuf]) -> Result<String, Failure> {
    let unreadable = |e: RunError| Failure::error(chain(&e));
    match dirs {
        [dir] if SearchRecord::is_in(dir) => {
            let record = SearchRecord::load(dir).map_err(unreadable)?;
            let plan = std::fs::read_to_string(dir.join(plimsoll_model::run::file::PLAN))
                .unwrap_or_default();
            Ok(html::search(&record, &plan))
        }
        dirs => {
            if let Some(dir) = dirs.iter().find(|dir| SearchRecord::is_in(dir)) {
                return Err(Failure::usage(
                    format_args!(
                        "{} is a search: an HTML report shows one search, or runs",
                        dir.display()
                    ),
                    "give it alone, or give run directories only",
                ));
            }
            let views = dirs
                .iter()
                .map(|dir| View::of(load(dir)?).map_err(unreadable))
                .collect::<Result<Vec<View>, Failure>>()?;
            Ok(html::runs(&views))
        }
    }
}

/// Reads a run directory.
///
/// # Errors
/// When it is none, or can't be read.
pub(crate) fn load(dir: &Path) -> Result<Run, Failure> {
    Run::load(dir).map_err(|e| Failure::error(chain(&e)))
}

fn export(runs: &[Run], format: &str, file: &str) -> Result<Exit, Failure> {
    if format != "lines" {
        return Err(Failure::usage(
            format_args!("--export: `{format}` is not a format"),
            "write --export lines FILE",
        ));
    }
    let [run] = runs else {
        return Err(Failure::usage(
            format_args!("--export takes one run, not {}", runs.len()),
            "export each run to a file of its own",
        ));
    };
    let wrong =
        |e: &dyn std::error::Error| Failure::error(format_args!("--export: {file}: {}", chain(e)));
    if file == "-" {
        let mut out = BufWriter::new(io::stdout().lock());
        lines::export(run, &mut out).map_err(|e| wrong(&e))?;
        out.flush().map_err(|e| wrong(&e))?;
        return Ok(Exit::Done);
    }
    let mut out = BufWriter::new(File::create(file).map_err(|e| wrong(&e))?);
    let written = lines::export(run, &mut out).map_err(|e| wrong(&e))?;
    out.flush().map_err(|e| wrong(&e))?;
    console::tell(format_args!("{written} calls written to {file}"));
    Ok(Exit::Done)
}
