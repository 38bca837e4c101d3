//! `plimsoll report`: shows runs again as tables or JSON, or exports them.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::slice;
use std::time::Duration;

use clap::Args;
use plimsoll_model::formats::output;
use plimsoll_model::formats::units::Period;
use plimsoll_model::runs::run::Run;
use plimsoll_protocols::registry::{self, ExportSummary, ExportTarget, ForeignFormat};
use plimsoll_report::quantity::plural;
use plimsoll_report::sentences::closing;
use plimsoll_report::{
    ExportError, exports::aiperf, exports::bencher, exports::data, exports::hdr_log,
    exports::lines, exports::prometheus, ladder, lanes, search, sweep, terminal,
};

use crate::failure::{Exit, Failure, message_with_causes};
use crate::load::documents::{
    DocumentFlags, ReportContents, is_stdout, resolve_latest, write_text,
};
use crate::load::presentation;
use crate::screen::console;
use crate::settings::environment::Environment;
use crate::settings::origins::{FlagOrigins, Precedence};
use crate::telemetry::spans::SPANS_FLAG;

/// Show the results of runs again, or export their calls.
#[derive(Debug, Args)]
#[command(before_help = "\
Example: a run, and what the link and the tool add to the 5 ms that the server takes
  plimsoll report runs/steady
  plimsoll report runs/steady --overhead-over 5ms
Example: the newest run, with its response times as bars
  plimsoll report LATEST --histogram
Example: a page to show around, of one run or of several laid over each other
  plimsoll report runs/steady --html steady.html
Example: the calls of a run, one JSON object a line (the run was made with --requests)
  plimsoll report runs/steady --export lines steady.txt
Example: tables for a notebook, a folder of CSV files
  plimsoll report runs/steady --export csv steady
Example: spans of the slowest calls for Jaeger or Tempo (the run carried trace ids)
  plimsoll report runs/steady --spans spans.jsonl")]
pub(crate) struct ReportArguments {
    /// Run directories, or the directory of a search or a ladder; LATEST: the newest in runs/.
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<PathBuf>,

    /// The server's own delay: show the time that exceeds it.
    #[arg(long, value_name = "TIME")]
    overhead_over: Option<Period>,

    /// Show response times and outcomes as histograms, too.
    #[arg(long)]
    histogram: bool,

    #[arg(long, num_args = 2, value_names = ["FORMAT", "FILE"])]
    #[arg(help = format!("Write a run (\"-\": to stdout) as {}", list_formats()))]
    export: Vec<String>,

    /// Write the figures in Prometheus's text format ("-": stdout).
    #[arg(long, value_name = "FILE")]
    prometheus: Option<PathBuf>,

    #[command(flatten)]
    documents: DocumentFlags,
}

/// Export formats of all protocols.
const COMMON_EXPORT_FORMATS: [(&str, &str); 6] = [
    ("lines", "a JSON object a call"),
    ("hdr", "an HdrHistogram log"),
    (
        "aiperf",
        "what tokens took by AIPerf's and GenAI-Perf's names",
    ),
    ("bencher", "Bencher's metrics, of several runs too"),
    (
        "csv",
        "a folder of tables: intervals, percentiles and, where they were kept, calls",
    ),
    ("parquet", "the same tables, in builds that have it"),
];

/// Returns a list of all export formats, for help and errors.
fn list_formats() -> String {
    let of_protocols = registry::foreign_formats().map(|files| (files.name, files.description));
    let all = COMMON_EXPORT_FORMATS.into_iter().chain(of_protocols);
    let all = all.map(|(name, about)| format!("{name} ({about})"));
    all.collect::<Vec<String>>().join(", ")
}

pub(crate) fn execute(
    arguments: &ReportArguments,
    origins: &FlagOrigins,
    environment: &Environment,
) -> Result<Exit, Failure> {
    arguments.documents.check(environment)?;
    let asked: Vec<PathBuf> = arguments
        .runs
        .iter()
        .map(|dir| resolve_latest(dir))
        .collect();
    let contents = ReportContents::from_dirs(&asked)?;
    let overhead_over = server_delay(arguments, &contents, origins)?;
    let histogram = shows_histogram(arguments, &contents, origins)?;
    let mut written = (arguments.documents).write(&contents, &asked, overhead_over)?;
    let spans = &arguments.documents.spans;
    // Post spans, but report a failure of the collector only after all other outputs have been written.
    let posted = if spans.collector_url().is_some() {
        written = true;
        spans.post(contents.require_runs(SPANS_FLAG)?, environment)
    } else {
        Ok(())
    };
    if let Some(file) = &arguments.prometheus {
        let runs = contents.require_runs("--prometheus")?;
        write_text("--prometheus", file, prometheus::render(runs))?;
        written = true;
    }
    if let [format, file] = arguments.export.as_slice() {
        let runs = contents.require_runs("--export")?;
        export(runs, format, Path::new(file))?;
        written = true;
    }
    if arguments.documents.json {
        contents.print_json(overhead_over)?;
        written = true;
    }
    // Without any other output, show the tables.
    if !written {
        let options = terminal::TerminalOptions {
            overhead_over,
            histogram,
            ..presentation::terminal_options()
        };
        print_report(&contents, &options)?;
    }
    posted.map(|()| Exit::Done)
}

/// Returns the server's own delay (`--overhead-over`), which is subtracted from the times shown.
///
/// # Errors
/// When no requested output shows times without the server's delay.
fn server_delay(
    arguments: &ReportArguments,
    contents: &ReportContents,
    origins: &FlagOrigins,
) -> Result<Option<Duration>, Failure> {
    let Some(Period(delay)) = arguments.overhead_over else {
        return Ok(None);
    };
    let documents = &arguments.documents;
    let is_only_written = documents.writes_any_file()
        || arguments.prometheus.is_some()
        || !arguments.export.is_empty();
    let refused = match contents.require_runs("--overhead-over") {
        Err(failure) => Some(failure),
        Ok(_) if is_only_written && !documents.shows_response_times() => Some(Failure::usage(
            "--overhead-over: no requested output shows it",
            "leave it out, or add --json, --markdown FILE or --html FILE",
        )),
        Ok(_) => None,
    };
    // If the value came from an environment variable, it may be meant for another command: ignore it.
    let is_typed = origins.precedence("overhead_over") == Some(Precedence::CommandLine);
    match refused {
        Some(failure) if is_typed => Err(failure),
        Some(_) => Ok(None),
        None => Ok(Some(delay)),
    }
}

/// Returns whether the tables have histograms (`--histogram`).
///
/// # Errors
/// When no tables of runs are printed.
fn shows_histogram(
    arguments: &ReportArguments,
    contents: &ReportContents,
    origins: &FlagOrigins,
) -> Result<bool, Failure> {
    let documents = &arguments.documents;
    let is_only_written = documents.writes_any_file()
        || documents.json
        || documents.spans.collector_url().is_some()
        || arguments.prometheus.is_some()
        || !arguments.export.is_empty();
    let refused = match contents.require_runs("--histogram") {
        Err(failure) => Some(failure),
        Ok(_) if is_only_written => Some(Failure::usage(
            "--histogram: only the tables have histograms, and another output takes their place",
            "leave the other output out; --html FILE has the whole distribution",
        )),
        Ok(_) => None,
    };
    // If the value came from an environment variable, it may be meant for another command: ignore it.
    let is_typed = origins.precedence("histogram") == Some(Precedence::CommandLine);
    match refused {
        Some(failure) if arguments.histogram && is_typed => Err(failure),
        Some(_) => Ok(false),
        None => Ok(arguments.histogram),
    }
}

/// Exports a run in the requested format, if any.
///
/// # Errors
/// When it can't be written.
pub(crate) fn export_if_requested(run: &Run, asked: Option<ExportTarget>) -> Result<(), Failure> {
    asked.map_or(Ok(()), |(format, path)| {
        export(slice::from_ref(run), format, &path)
    })
}

/// Prints the same tables as the command that made the run.
fn print_report(
    contents: &ReportContents,
    options: &terminal::TerminalOptions,
) -> Result<(), Failure> {
    let (text, answer) = render(contents, options);
    let end = closing::closing_lines(&text, answer, options);
    console::print_result(text + &end)
}

/// Returns the tables, and the closing lines with the verdict and the first sentences of the explanation.
pub(crate) fn render(
    contents: &ReportContents,
    options: &terminal::TerminalOptions,
) -> (String, Vec<String>) {
    let each = |runs: &[Run]| {
        let tables = runs.iter().map(|run| terminal::render(run, options));
        tables.collect::<Vec<String>>().join("\n")
    };
    match contents {
        ReportContents::Lanes(record, runs) => (
            lanes::render(record, runs, options) + "\n" + &each(runs),
            closing::lane_lines(record, runs, options),
        ),
        ReportContents::Search(_, record) => (
            search::render(record, options),
            closing::search_lines(record, options),
        ),
        ReportContents::Ladder(_, record) if record.limits.is_some() => {
            (sweep::render(record, options), Vec::new())
        }
        ReportContents::Ladder(dir, record) => (
            ladder::render(record, options) + &ladder::render_profiles(record, dir, options),
            closing::ladder_lines(record, options),
        ),
        // Only a single run gets closing lines; the tables of several runs have their verdicts at the top.
        ReportContents::Runs(runs) => (
            each(runs),
            match &runs[..] {
                [run] => closing::run_lines(run, options),
                _ => Vec::new(),
            },
        ),
    }
}

fn export(runs: &[Run], format: &str, file: &Path) -> Result<(), Failure> {
    let of_protocol = registry::foreign_formats().find(|files| files.name == format);
    if of_protocol.is_none()
        && !COMMON_EXPORT_FORMATS
            .iter()
            .any(|(name, _)| *name == format)
    {
        return Err(Failure::usage(
            format_args!("--export: `{format}` is not a format"),
            &format!(
                "write --export FORMAT FILE, with a format of {}",
                list_formats()
            ),
        ));
    }
    if format == "bencher" {
        let document = serde_json::to_string_pretty(&bencher::build_document(runs));
        let text = document.map_err(Failure::error)? + "\n";
        return write_text("--export bencher", file, text);
    }
    let [run] = runs else {
        return Err(Failure::usage(
            format_args!("--export takes one run, not {}", runs.len()),
            "export each run to a file of its own",
        ));
    };
    if let Some(files) = of_protocol {
        return export_files(run, files, file);
    }
    if ["csv", "parquet"].contains(&format) {
        return export_tables(run, format, file);
    }
    type ExportWriter = BufWriter<Box<dyn Write>>;
    type ExportFn = fn(&Run, &mut ExportWriter) -> Result<u64, ExportError>;
    let (export, what): (ExportFn, _) = match format {
        "hdr" => (hdr_log::export, "histograms"),
        "aiperf" => (aiperf::export, "metrics"),
        _ => (lines::export, "calls"),
    };
    let shown = file.display();
    let wrong = |e: &dyn std::error::Error| {
        Failure::error(format_args!(
            "--export: {shown}: {}",
            message_with_causes(e)
        ))
    };
    let created = (!is_stdout(file)).then(|| File::create(file)).transpose();
    let created = created.map_err(|e| wrong(&e))?;
    let out: Box<dyn Write> = match &created {
        None => Box::new(io::stdout().lock()),
        Some(file) => Box::new(file.try_clone().map_err(|e| wrong(&e))?),
    };
    let mut out = BufWriter::new(out);
    let written = export(run, &mut out).map_err(|e| wrong(&e))?;
    out.flush().map_err(|e| wrong(&e))?;
    if let Some(created) = created {
        output::sync(&created).map_err(|e| wrong(&e))?;
        console::print_confirmation(format_args!("wrote {written} {what} to {shown}"));
    }
    Ok(())
}

/// Writes tables for notebooks into a folder.
fn export_tables(run: &Run, format: &str, folder: &Path) -> Result<(), Failure> {
    let format = match format {
        "csv" => data::TableFormat::Csv,
        #[cfg(feature = "parquet")]
        "parquet" => data::TableFormat::Parquet,
        _ => {
            return Err(Failure::usage(
                format_args!("--export: this build has no {format}"),
                "use --export csv, or build with it: cargo install --path crates/plimsoll --features parquet",
            ));
        }
    };
    std::fs::create_dir_all(folder)
        .map_err(|e| Failure::error(format_args!("can't make {}: {e}", folder.display())))?;
    let written =
        data::export(run, format, folder).map_err(|e| Failure::error(message_with_causes(&e)))?;
    let tables: Vec<String> = written
        .iter()
        .map(|(name, rows)| format!("{name} ({})", plural(*rows, "row")))
        .collect();
    console::print_confirmation(format_args!(
        "wrote {} to {}",
        tables.join(", "),
        folder.display()
    ));
    if !run.has_requests {
        console::print_notice(
            "the run has no request log: run it with --requests for a table of calls",
        );
    }
    Ok(())
}

/// Writes a run into a folder in another tool's file format.
fn export_files(run: &Run, files: &ForeignFormat, folder: &Path) -> Result<(), Failure> {
    match (files.export)(run, folder).map_err(|e| Failure::error(message_with_causes(&*e)))? {
        ExportSummary::Complete(text) => console::print_confirmation(text),
        ExportSummary::Partial(text) => console::print_notice(text),
    }
    Ok(())
}
