//! `plimsoll report`: runs again, as tables, as JSON, or exported.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use plimsoll_model::input;
use plimsoll_model::ladder::LadderRecord;
use plimsoll_model::lanes::LanesRecord;
use plimsoll_model::run::{Run, RunError};
use plimsoll_model::search::SearchRecord;
use plimsoll_model::units::Period;
use plimsoll_report::html::{self, View};
use plimsoll_report::{
    hdr_log, json, junit, ladder, lanes, lines, markdown, prometheus, search, sessions, sweep,
    terminal,
};
use serde_json::Value;

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
    /// Run directories, or that of a search or a ladder.
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<PathBuf>,

    /// The server's own delay: show what is added to it.
    #[arg(long, env = "PLIMSOLL_OVERHEAD_OVER", value_name = "TIME")]
    overhead_over: Option<Period>,

    /// Write a run to a file ("-": stdout): `lines`, a JSON object a call; `hdr`, an HdrHistogram
    /// log. `sessions`: CSV and JSON summary of a run of sessions, into a folder.
    #[arg(long, env = "PLIMSOLL_EXPORT", num_args = 2, value_names = ["FORMAT", "FILE"])]
    export: Vec<String>,

    /// Write an HTML report of the runs, of one search or one ladder ("-": stdout). It needs no network.
    #[arg(long, env = "PLIMSOLL_HTML", value_name = "FILE")]
    html: Option<PathBuf>,

    /// Write objectives and validity as JUnit XML ("-": stdout).
    #[arg(long, env = "PLIMSOLL_JUNIT", value_name = "FILE")]
    junit: Option<PathBuf>,

    /// Write a summary in Markdown ("-": stdout).
    #[arg(long, env = "PLIMSOLL_MARKDOWN", value_name = "FILE")]
    markdown: Option<PathBuf>,

    /// Write the figures in Prometheus's text format ("-": stdout).
    #[arg(long, env = "PLIMSOLL_PROMETHEUS", value_name = "FILE")]
    prometheus: Option<PathBuf>,

    #[command(flatten)]
    json: Json,
}

pub(crate) fn execute(arguments: &Arguments) -> Result<Exit, Failure> {
    let dirs = expanded(&arguments.runs)?;
    let asked = read(&dirs)?;
    let mut written = false;
    if let Some(file) = &arguments.html {
        write_text("--html", file, page(&dirs)?)?;
        written = true;
    }
    let documents: [(&str, &Option<PathBuf>, Render); 3] = [
        ("--junit", &arguments.junit, |asked| match asked {
            Asked::Runs(runs) => Some(junit::render(runs)),
            Asked::Search(record) => Some(junit::search(record)),
            Asked::Ladder(record) => Some(junit::ladder(record)),
        }),
        ("--markdown", &arguments.markdown, |asked| match asked {
            Asked::Runs(runs) => Some(markdown::render(runs)),
            Asked::Search(record) => Some(markdown::search(record)),
            Asked::Ladder(record) => Some(markdown::ladder(record)),
        }),
        ("--prometheus", &arguments.prometheus, |asked| match asked {
            Asked::Runs(runs) => Some(prometheus::render(runs)),
            Asked::Search(_) | Asked::Ladder(_) => None,
        }),
    ];
    for (flag, file, render) in documents {
        if let Some(file) = file {
            let text = render(&asked).ok_or_else(|| only_runs(flag))?;
            write_text(flag, file, text)?;
            written = true;
        }
    }
    if let [format, file] = arguments.export.as_slice() {
        let Asked::Runs(runs) = &asked else {
            return Err(only_runs("--export"));
        };
        export(runs, format, file)?;
        written = true;
    }
    let overhead_over = arguments.overhead_over.map(|p| p.0);
    if arguments.json.json {
        let document = document(&asked, overhead_over)?;
        let text = serde_json::to_string_pretty(&document).map_err(Failure::error)?;
        console::result(format_args!("{text}\n"))?;
        written = true;
    }
    // Where nothing else was asked for, the tables are.
    if !written {
        if let ([dir], Asked::Runs(runs)) = (&arguments.runs[..], &asked)
            && LanesRecord::is_in(dir)
        {
            let record = LanesRecord::load(dir).map_err(|e| Failure::error(chain(&e)))?;
            let table = lanes::render(&record, runs, &presentation::options());
            console::result(format_args!("{table}\n"))?;
        }
        show(&asked, overhead_over)?;
    }
    Ok(Exit::Done)
}

/// The directories, with those of its lanes in place of one that holds lanes.
fn expanded(dirs: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut all = Vec::new();
    for dir in dirs {
        match LanesRecord::is_in(dir) {
            true => {
                let record = LanesRecord::load(dir).map_err(|e| Failure::error(chain(&e)))?;
                all.extend(record.runs(dir));
            }
            false => all.push(dir.clone()),
        }
    }
    Ok(all)
}

/// What the directories hold.
enum Asked {
    Runs(Vec<Run>),
    Search(SearchRecord),
    Ladder(LadderRecord),
}

fn read(dirs: &[PathBuf]) -> Result<Asked, Failure> {
    if let [dir] = dirs {
        if SearchRecord::is_in(dir) {
            let record = SearchRecord::load(dir).map_err(|e| Failure::error(chain(&e)))?;
            return Ok(Asked::Search(record));
        }
        if LadderRecord::is_in(dir) {
            let record = LadderRecord::load(dir).map_err(|e| Failure::error(chain(&e)))?;
            return Ok(Asked::Ladder(record));
        }
    }
    check_kinds(dirs)?;
    let runs = dirs.iter().map(|dir| load(dir));
    Ok(Asked::Runs(runs.collect::<Result<Vec<Run>, Failure>>()?))
}

/// # Errors
/// Where a search or a ladder stands among others.
fn check_kinds(dirs: &[PathBuf]) -> Result<(), Failure> {
    let other = dirs
        .iter()
        .find(|dir| SearchRecord::is_in(dir) || LadderRecord::is_in(dir));
    match other {
        None => Ok(()),
        Some(dir) => Err(Failure::usage(
            format_args!("{} is not a single run", dir.display()),
            "a report is of one search, one ladder, or runs: give it alone, or run directories only",
        )),
    }
}

fn only_runs(flag: &str) -> Failure {
    Failure::usage(
        format_args!("{flag}: a search or a ladder is many runs"),
        "give one of the run directories in it",
    )
}

/// As JSON: a search and a ladder as they are kept, of several runs a list.
fn document(asked: &Asked, overhead_over: Option<Duration>) -> Result<Value, Failure> {
    match asked {
        Asked::Search(record) => serde_json::to_value(record).map_err(Failure::error),
        Asked::Ladder(record) if record.limits.is_some() => Ok(sweep::document(record)),
        Asked::Ladder(record) => serde_json::to_value(record).map_err(Failure::error),
        Asked::Runs(runs) => {
            let mut documents: Vec<Value> = runs
                .iter()
                .map(|run| json::document(run, overhead_over))
                .collect();
            Ok(match documents.len() {
                1 => documents.remove(0),
                _ => Value::from(documents),
            })
        }
    }
}

/// As when it was made.
fn show(asked: &Asked, overhead_over: Option<Duration>) -> Result<(), Failure> {
    let options = terminal::Options {
        overhead_over,
        ..presentation::options()
    };
    let runs = match asked {
        Asked::Search(record) => return console::result(search::render(record, &options)),
        Asked::Ladder(record) if record.limits.is_some() => {
            return console::result(sweep::render(record, &options));
        }
        Asked::Ladder(record) => return console::result(ladder::render(record, &options)),
        Asked::Runs(runs) => runs,
    };
    for (i, run) in runs.iter().enumerate() {
        let gap = if i > 0 { "\n" } else { "" };
        console::result(format_args!("{gap}{}", terminal::render(run, &options)))?;
    }
    Ok(())
}

/// What was asked for as a document; `None`: it has none of the kind.
type Render = fn(&Asked) -> Option<String>;

/// Writes what `flag` asked for.
///
/// # Errors
/// When the file can't be written.
pub(crate) fn write_text(flag: &str, file: &Path, text: String) -> Result<(), Failure> {
    if file == Path::new("-") {
        return console::result(text);
    }
    std::fs::write(file, text)
        .map_err(|e| Failure::error(format_args!("{flag}: can't write {}: {e}", file.display())))?;
    console::tell(format_args!("written to {}", file.display()));
    Ok(())
}

/// The HTML report of runs laid over each other, of one search, or of one ladder.
///
/// # Errors
/// When a directory can't be read, or kinds are mixed.
pub(crate) fn page(dirs: &[PathBuf]) -> Result<String, Failure> {
    let unreadable = |e: RunError| Failure::error(chain(&e));
    let dirs = &expanded(dirs)?[..];
    if let [dir] = dirs {
        let plan = || {
            input::file_to_string(&dir.join(plimsoll_model::run::file::PLAN)).unwrap_or_default()
        };
        if SearchRecord::is_in(dir) {
            let record = SearchRecord::load(dir).map_err(unreadable)?;
            return Ok(html::search(&record, &plan()));
        }
        if LadderRecord::is_in(dir) {
            let record = LadderRecord::load(dir).map_err(unreadable)?;
            return Ok(html::ladder(&record, &plan()));
        }
    }
    check_kinds(dirs)?;
    let views = dirs
        .iter()
        .map(|dir| View::of(load(dir)?).map_err(unreadable))
        .collect::<Result<Vec<View>, Failure>>()?;
    Ok(html::runs(&views))
}

/// Reads a run directory.
///
/// # Errors
/// When it is none, or can't be read.
pub(crate) fn load(dir: &Path) -> Result<Run, Failure> {
    if dir.is_file() {
        return Err(Failure::error_with_help(
            format_args!("{} is a file, and a run is a directory", dir.display()),
            "give the directory that a run printed; results exported or made by other tools are read with `plimsoll import FILE --out DIR`",
        ));
    }
    Run::load(dir).map_err(|e| Failure::error(chain(&e)))
}

fn export(runs: &[Run], format: &str, file: &str) -> Result<Exit, Failure> {
    if !["lines", "hdr", "sessions"].contains(&format) {
        return Err(Failure::usage(
            format_args!("--export: `{format}` is not a format"),
            "write --export lines FILE (a JSON object a call), --export hdr FILE (an HdrHistogram log), or --export sessions FOLDER (CSV and summary of sessions)",
        ));
    }
    let [run] = runs else {
        return Err(Failure::usage(
            format_args!("--export takes one run, not {}", runs.len()),
            "export each run to a file of its own",
        ));
    };
    if format == "sessions" {
        return export_sessions(run, Path::new(file));
    }
    let wrong =
        |e: &dyn std::error::Error| Failure::error(format_args!("--export: {file}: {}", chain(e)));
    let write = |mut out: &mut dyn Write| -> Result<u64, Failure> {
        match format {
            "hdr" => hdr_log::export(run, &mut out).map_err(|e| wrong(&e)),
            _ => lines::export(run, &mut out).map_err(|e| wrong(&e)),
        }
    };
    if file == "-" {
        let mut out = BufWriter::new(io::stdout().lock());
        write(&mut out)?;
        out.flush().map_err(|e| wrong(&e))?;
        return Ok(Exit::Done);
    }
    let mut out = BufWriter::new(File::create(file).map_err(|e| wrong(&e))?);
    let written = write(&mut out)?;
    out.flush().map_err(|e| wrong(&e))?;
    let what = if format == "hdr" {
        "histograms"
    } else {
        "calls"
    };
    console::tell(format_args!("{written} {what} written to {file}"));
    Ok(Exit::Done)
}

/// `loadtest_TIME.csv` and `loadtest_TIME_summary.json`, named after the run's start.
///
/// # Errors
/// When the run is none of sessions, or they can't be written.
pub(crate) fn export_sessions(run: &Run, folder: &Path) -> Result<Exit, Failure> {
    let wrong = |e: &dyn std::error::Error| Failure::error(chain(e));
    let written = |path: &Path, e: io::Error| {
        Failure::error(format_args!("can't write {}: {e}", path.display()))
    };
    let stem = sessions::stem(run).map_err(|e| wrong(&e))?;
    let summary = sessions::summary(run).map_err(|e| wrong(&e))?;
    let summary = serde_json::to_string_pretty(&summary).map_err(Failure::error)? + "\n";
    std::fs::create_dir_all(folder).map_err(|e| written(folder, e))?;
    let path = folder.join(format!("{stem}_summary.json"));
    std::fs::write(&path, summary).map_err(|e| written(&path, e))?;
    if !run.has_requests {
        console::tell(format_args!(
            "summary written to {}; {} keeps no calls, so there are no rows to write: make the run with --requests",
            path.display(),
            run.dir.display()
        ));
        return Ok(Exit::Done);
    }
    let csv = folder.join(format!("{stem}.csv"));
    let mut out = BufWriter::new(File::create(&csv).map_err(|e| written(&csv, e))?);
    let rows = sessions::export_csv(run, &mut out).map_err(|e| wrong(&e))?;
    out.flush().map_err(|e| written(&csv, e))?;
    console::tell(format_args!(
        "{rows} queries written to {}, their summary to {}",
        csv.display(),
        path.display()
    ));
    Ok(Exit::Done)
}
