//! `plimsoll import`: converts results of other tools to runs, and recordings and descriptions of services to plans.

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use jiff::Timestamp;
use plimsoll_model::{formats::input, formats::output};
use plimsoll_protocols::registry::{
    self, ForeignFormat, PlanImportRequest, PlanImportResult, PlanSource,
};
use plimsoll_report::{exports::lines, exports::s_time, json};

use crate::failure::{Exit, Failure, message_with_causes};
use crate::load::documents::JsonFlag;
use crate::load::documents::{StdoutContent, print_json};
use crate::load::execution::default_dir;
use crate::load::presentation;
use crate::screen::console;

/// Make a plan from HAR, OpenAPI or curl lines, or a run from another tool's results.
///
/// The format is recognised from the file. A plan is made from a recording of a browser or a proxy (HAR 1.2), from a
/// description of a service (OpenAPI 3.0 or 3.1, in JSON or YAML), and from curl command lines. A run is made from a
/// file with one line per request (#TEST=01_steady or #TEST=02_coldconn), from the output of `openssl s_time`, and from
/// the loadtest_TIME.csv or the summary of a session load test. If s_time measured both new and resumed connections,
/// two runs are made, DIR/new and DIR/resumed. A session load test has two files; if the other file exists, it is read,
/// too.
#[derive(Debug, Args)]
#[command(before_help = "\
Example: a plan of what a browser recorded, whose answers' values later requests send
  plimsoll import recording.har --out shop.toml
  plimsoll run shop.toml --dry-run
Example: a plan of the operations of a service
  plimsoll import openapi.yaml --origin URL --out api.toml
Example: read a file back, and compare it with a run
  plimsoll import steady.txt --out runs/old
  plimsoll compare runs/old runs/new
Example: openssl s_time, beside a run of ours against the same server
  openssl s_time -connect localhost:4433 -new -www /bytes/1024 > s_time.txt
  plimsoll import s_time.txt --out runs/s_time
  plimsoll compare runs/s_time runs/new
Example: counts, percentiles, histogram and errors of a session load test
  plimsoll import results/loadtest_20261122_081500.csv --out runs/sessions
  plimsoll report runs/sessions")]
pub(crate) struct ImportArguments {
    /// The file to convert; - is stdin.
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// The plan file to write [default: stdout], or the run directory [default: runs/<UTC time>-<file>].
    #[arg(long, value_name = "PATH")]
    out: Option<PathBuf>,

    /// For a recording: keep only requests to this origin [default: those to the site with most requests]. For
    /// OpenAPI: the server [default: the first in the file].
    #[arg(long, value_name = "URL")]
    origin: Option<String>,

    /// For a recording: also keep requests to other sites, to up to eight origins.
    #[arg(long, conflicts_with = "origin")]
    all_origins: bool,

    /// For a recording: also keep images, fonts, style sheets and scripts.
    #[arg(long)]
    with_assets: bool,

    /// For OpenAPI: the id of an operation, or 'METHOD /path'; repeatable [default: all GET operations].
    #[arg(long, value_name = "ID")]
    operation: Vec<String>,

    #[command(flatten)]
    json: JsonFlag,
}

/// Maximum size of a file that is converted to a plan, bytes. Recordings contain the bodies of all responses.
const MAX_PLAN_SOURCE_BYTES: u64 = 256 << 20;

/// Number of bytes at a file's start that are read to recognise its format.
const FORMAT_PROBE_BYTES: u64 = 64 << 10;

/// Maximum size of the output of `openssl s_time`, bytes: one character per connection, enough for a day.
const MAX_S_TIME_OUTPUT_BYTES: u64 = 64 << 20;

pub(crate) fn execute(arguments: &ImportArguments) -> Result<Exit, Failure> {
    if arguments.file == Path::new("-") {
        return import_stdin(arguments);
    }
    import_file(&arguments.file, arguments)
}

/// Copies stdin into a file first, because recognising the format needs a second read.
fn import_stdin(arguments: &ImportArguments) -> Result<Exit, Failure> {
    let failed = |e: std::io::Error| Failure::error(format_args!("can't read stdin: {e}"));
    let content = input::read_stdin().map_err(failed)?;
    let folder = tempfile::tempdir().map_err(failed)?;
    let file = folder.path().join("stdin");
    std::fs::write(&file, content).map_err(failed)?;
    import_file(&file, arguments)
}

fn import_file(file: &Path, arguments: &ImportArguments) -> Result<Exit, Failure> {
    let name = file.file_stem().unwrap_or_default().to_string_lossy();
    if detect_foreign_format(file).is_none()
        && let Some(source) = detect_plan_source(file)
    {
        return import_plan(file, source, arguments);
    }
    reject_plan_flags(arguments)?;
    let dir = arguments.out.clone().unwrap_or_else(|| default_dir(&name));
    let (version, now) = (env!("CARGO_PKG_VERSION"), Timestamp::now());
    let runs = match read_s_time_output(file) {
        Some(text) => s_time::import(file, &text, &dir, version, now)
            .map_err(|e| Failure::error(message_with_causes(&e)))?,
        None => vec![match detect_foreign_format(file) {
            Some(files) => (files.import)(file, &dir, version, now)
                .map_err(|e| Failure::error(message_with_causes(&*e)))?,
            None => lines::import(file, &dir, version, now)
                .map_err(|e| Failure::error(message_with_causes(&e)))?,
        }],
    };
    for run in &runs {
        console::print_notice(format_args!("imported as {}", run.dir.display()));
    }
    if arguments.json.json {
        print_json(&json::runs_document(&runs, None))?;
        return Ok(Exit::Done);
    }
    for run in &runs {
        presentation::print_tables(run, StdoutContent::Tables)?;
    }
    Ok(Exit::Done)
}

/// Returns the converter to plans that recognises the file's format; `None` if no converter does.
fn detect_plan_source(file: &Path) -> Option<&'static PlanSource> {
    let file = input::open_file(file).ok()?;
    let mut beginning = Vec::new();
    file.take(FORMAT_PROBE_BYTES)
        .read_to_end(&mut beginning)
        .ok()?;
    let beginning = input::strip_byte_order_mark(beginning);
    registry::find_plan_source(&String::from_utf8_lossy(&beginning))
}

/// Rejects flags that apply to plans only, because this file is converted to a run.
fn reject_plan_flags(arguments: &ImportArguments) -> Result<(), Failure> {
    let given = [
        ("--origin", arguments.origin.is_some()),
        ("--all-origins", arguments.all_origins),
        ("--with-assets", arguments.with_assets),
        ("--operation", !arguments.operation.is_empty()),
    ];
    match given.iter().find(|(_, is_given)| *is_given) {
        Some((flag, _)) => Err(Failure::usage(
            format_args!("{flag}: the file is none that a plan is made of"),
            "plans are made of recordings (HAR), OpenAPI in JSON, and lines of curl",
        )),
        None => Ok(()),
    }
}

fn import_plan(
    file: &Path,
    source: &PlanSource,
    arguments: &ImportArguments,
) -> Result<Exit, Failure> {
    if arguments.json.json {
        return Err(Failure::usage(
            format_args!(
                "--json: the file is {}, of which a plan is made",
                source.name
            ),
            "a plan is TOML: leave --json out",
        ));
    }
    let shown = arguments.file.display();
    let failed = |problem: &dyn std::fmt::Display| {
        let problem = strip_control_characters(&problem.to_string());
        Failure::error(format_args!("can't import {shown}: {problem}"))
    };
    let text = read_plan_source(file).map_err(|e| failed(&e))?;
    let name = arguments
        .out
        .as_deref()
        .unwrap_or(&arguments.file)
        .file_stem();
    let name = name.map_or_else(
        || "plan".to_owned(),
        |name| name.to_string_lossy().into_owned(),
    );
    let request = PlanImportRequest {
        text: &text,
        name: if name == "-" { "plan" } else { &name },
        origin: arguments.origin.as_deref(),
        all_origins: arguments.all_origins,
        with_assets: arguments.with_assets,
        operations: &arguments.operation,
    };
    let imported = (source.import)(&request).map_err(|e| failed(&e))?;
    match &arguments.out {
        Some(out) => write_new_plan(out, &imported.plan)?,
        None => console::print_result(&imported.plan)?,
    }
    let out = arguments.out.as_ref().map(|out| out.display().to_string());
    print_summary(&imported, out.as_deref().unwrap_or("PLAN"));
    Ok(Exit::Done)
}

/// Reads a file that is converted to a plan.
fn read_plan_source(file: &Path) -> Result<String, String> {
    let mut content = Vec::new();
    let open = input::open_file(file).map_err(|e| e.to_string())?;
    let read = open
        .take(MAX_PLAN_SOURCE_BYTES + 1)
        .read_to_end(&mut content);
    read.map_err(|e| e.to_string())?;
    if content.len() as u64 > MAX_PLAN_SOURCE_BYTES {
        return Err(format!(
            "the file is larger than {} MiB: record only what one user does",
            MAX_PLAN_SOURCE_BYTES >> 20
        ));
    }
    let content = input::strip_byte_order_mark(content);
    String::from_utf8(content).map_err(|e| format!("the file is not UTF-8: {e}"))
}

/// Writes a plan to a new file. An existing file is not overwritten, because users may have edited it.
fn write_new_plan(path: &Path, plan: &str) -> Result<(), Failure> {
    let shown = path.display();
    let created = OpenOptions::new().write(true).create_new(true).open(path);
    let mut file = created.map_err(|e| match e.kind() {
        std::io::ErrorKind::AlreadyExists => Failure::usage(
            format_args!("--out: {shown} exists, and may have been edited"),
            "name another file, or remove this one",
        ),
        _ => Failure::error(format_args!("can't write {shown}: {e}")),
    })?;
    let written = file
        .write_all(plan.as_bytes())
        .and_then(|()| output::sync(&file));
    written.map_err(|e| Failure::error(format_args!("can't write {shown}: {e}")))
}

/// Prints how much of the file was converted, what the user must add to the plan, and the command to run next.
fn print_summary(imported: &PlanImportResult, out: &str) {
    let notes = imported.notes.iter();
    notes
        .map(|note| strip_control_characters(note))
        .for_each(console::print_notice);
    if !imported.variables.is_empty() {
        let variables = imported.variables.join(", ");
        console::print_notice(format_args!(
            "secrets are not in the plan: set the environment variables {variables}"
        ));
    }
    if !imported.columns.is_empty() {
        console::print_notice(format_args!(
            "secrets of users are not in the plan: write {}: the line `{}`, and a line for each user",
            imported.rows_file,
            imported.columns.join(",")
        ));
    }
    console::print_notice(format_args!("next: plimsoll run {out} --dry-run"));
}

/// Replaces characters that would control the terminal.
fn strip_control_characters(text: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    text.chars().map(plain).collect()
}

/// Returns the file's text if it is output of `openssl s_time`; `None` for other files, which are read line by line.
fn read_s_time_output(file: &Path) -> Option<String> {
    let mut file = input::open_file(file).ok()?.take(MAX_S_TIME_OUTPUT_BYTES);
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    (!text.starts_with("#TEST=") && s_time::is_s_time_output(&text)).then_some(text)
}

/// Returns the protocol-specific format that the file has; `None` if it has none of them.
fn detect_foreign_format(path: &Path) -> Option<&'static ForeignFormat> {
    let mut beginning = Vec::new();
    let file = input::open_file(path).ok()?;
    file.take(64).read_to_end(&mut beginning).ok()?;
    let beginning = String::from_utf8_lossy(&beginning);
    registry::foreign_formats().find(|files| (files.recognises)(path, &beginning))
}
