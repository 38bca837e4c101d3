//! `plimsoll import`: converts files of other tools into runs.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use jiff::Timestamp;
use plimsoll_model::input;
use plimsoll_protocols::registry::{self, ForeignFormat};
use plimsoll_report::{json, lines, s_time};

use crate::console;
use crate::documents::JsonFlag;
use crate::documents::{StdoutContent, print_json};
use crate::execution::default_dir;
use crate::failure::{Exit, Failure, chain};
use crate::presentation;

/// Make a run of a file: line-per-request (#TEST=01_steady or #TEST=02_coldconn), what
/// `openssl s_time` printed, or a session load test's loadtest_TIME.csv or its summary.
///
/// The format is recognised from the file. Where s_time measured new and resumed connections
/// there are two runs, DIR/new and DIR/resumed. A session load test has two files: the other one is read, too, if it
/// exists.
#[derive(Debug, Args)]
#[command(before_help = "\
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
    /// The file; - is stdin.
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// The run directory to make [default: runs/<UTC time>-<file>].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    #[command(flatten)]
    json: JsonFlag,
}

/// Maximum size of the output of `openssl s_time`, bytes: one character per connection, enough for a day.
const MAX_S_TIME_BYTES: u64 = 64 << 20;

pub(crate) fn execute(arguments: &ImportArguments) -> Result<Exit, Failure> {
    if arguments.file == Path::new("-") {
        return from_stdin(arguments);
    }
    import(&arguments.file, arguments)
}

/// Copies stdin into a file first, because recognising the format needs a second read.
fn from_stdin(arguments: &ImportArguments) -> Result<Exit, Failure> {
    let failed = |e: std::io::Error| Failure::error(format_args!("can't read stdin: {e}"));
    let content = input::stdin().map_err(failed)?;
    let folder = tempfile::tempdir().map_err(failed)?;
    let file = folder.path().join("stdin");
    std::fs::write(&file, content).map_err(failed)?;
    import(&file, arguments)
}

fn import(file: &Path, arguments: &ImportArguments) -> Result<Exit, Failure> {
    let name = file.file_stem().unwrap_or_default().to_string_lossy();
    let dir = arguments.out.clone().unwrap_or_else(|| default_dir(&name));
    let (version, now) = (env!("CARGO_PKG_VERSION"), Timestamp::now());
    let runs =
        match s_time_output(file) {
            Some(text) => s_time::import(file, &text, &dir, version, now)
                .map_err(|e| Failure::error(chain(&e)))?,
            None => vec![match recognised_format(file) {
                Some(files) => (files.import)(file, &dir, version, now)
                    .map_err(|e| Failure::error(chain(&*e)))?,
                None => lines::import(file, &dir, version, now)
                    .map_err(|e| Failure::error(chain(&e)))?,
            }],
        };
    for run in &runs {
        console::notice(format_args!("imported as {}", run.dir.display()));
    }
    if arguments.json.json {
        print_json(&json::runs(&runs, None))?;
        return Ok(Exit::Done);
    }
    for run in &runs {
        presentation::show(run, StdoutContent::Tables)?;
    }
    Ok(Exit::Done)
}

/// Returns the file's text if it is output of `openssl s_time`; anything else is left to the line reader.
fn s_time_output(file: &Path) -> Option<String> {
    let mut file = input::open_file(file).ok()?.take(MAX_S_TIME_BYTES);
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    (!text.starts_with("#TEST=") && s_time::is_s_time_output(&text)).then_some(text)
}

/// Returns the protocol's file format that this file has, if any.
fn recognised_format(path: &Path) -> Option<&'static ForeignFormat> {
    let mut beginning = Vec::new();
    let file = input::open_file(path).ok()?;
    file.take(64).read_to_end(&mut beginning).ok()?;
    let beginning = String::from_utf8_lossy(&beginning);
    registry::foreign_formats().find(|files| (files.recognises)(path, &beginning))
}
