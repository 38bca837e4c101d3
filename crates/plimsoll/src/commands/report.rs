//! `plimsoll report`: runs again, as tables, as JSON, or exported.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use plimsoll_model::ladder::LadderRecord;
use plimsoll_model::run::{Run, RunError};
use plimsoll_model::search::SearchRecord;
use plimsoll_model::units::Period;
use plimsoll_report::html::{self, View};
use plimsoll_report::{
    hdr_log, json, junit, ladder, lines, markdown, prometheus, search, sessions, sweep, terminal,
};

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
    if let Some(file) = &arguments.html {
        return write_html(&arguments.runs, file);
    }
    if let [dir] = arguments.runs.as_slice()
        && SearchRecord::is_in(dir)
    {
        return show_search(dir, arguments.json.json);
    }
    if let [dir] = arguments.runs.as_slice()
        && LadderRecord::is_in(dir)
    {
        return show_ladder(dir, arguments.json.json);
    }
    let runs = arguments
        .runs
        .iter()
        .map(|dir| load(dir))
        .collect::<Result<Vec<Run>, Failure>>()?;
    let documents: [(&str, &Option<PathBuf>, Render); 3] = [
        ("--junit", &arguments.junit, junit::render),
        ("--markdown", &arguments.markdown, markdown::render),
        ("--prometheus", &arguments.prometheus, prometheus::render),
    ];
    if documents.iter().any(|(_, file, _)| file.is_some()) {
        for (flag, file, render) in documents {
            if let Some(file) = file {
                write_text(flag, file, render(&runs))?;
            }
        }
        return Ok(Exit::Done);
    }
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

/// A ladder, as when it was made.
fn show_ladder(dir: &Path, as_json: bool) -> Result<Exit, Failure> {
    let record = LadderRecord::load(dir).map_err(|e| Failure::error(chain(&e)))?;
    let is_sweep = record.limits.is_some();
    let text = if as_json && is_sweep {
        serde_json::to_string_pretty(&sweep::document(&record)).map_err(Failure::error)? + "\n"
    } else if as_json {
        serde_json::to_string_pretty(&record).map_err(Failure::error)? + "\n"
    } else if is_sweep {
        sweep::render(&record, &presentation::options())
    } else {
        ladder::render(&record, &presentation::options())
    };
    console::result(text)?;
    Ok(Exit::Done)
}

/// Runs as a document.
type Render = fn(&[Run]) -> String;

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

fn write_html(dirs: &[PathBuf], file: &Path) -> Result<Exit, Failure> {
    write_text("--html", file, page(dirs)?)?;
    Ok(Exit::Done)
}

/// The HTML report of runs laid over each other, of one search, or of one ladder.
///
/// # Errors
/// When a directory can't be read, or kinds are mixed.
pub(crate) fn page(dirs: &[PathBuf]) -> Result<String, Failure> {
    let unreadable = |e: RunError| Failure::error(chain(&e));
    if let [dir] = dirs {
        let plan = || {
            std::fs::read_to_string(dir.join(plimsoll_model::run::file::PLAN)).unwrap_or_default()
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
    let other = dirs
        .iter()
        .find(|dir| SearchRecord::is_in(dir) || LadderRecord::is_in(dir));
    if let Some(dir) = other {
        return Err(Failure::usage(
            format_args!("{} is not a single run", dir.display()),
            "a page shows one search, one ladder, or runs: give it alone, or run directories only",
        ));
    }
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
fn export_sessions(run: &Run, folder: &Path) -> Result<Exit, Failure> {
    let wrong = |e: &dyn std::error::Error| Failure::error(format_args!("--export: {}", chain(e)));
    let written = |path: &Path, e: io::Error| {
        Failure::error(format_args!(
            "--export: can't write {}: {e}",
            path.display()
        ))
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
