//! `plimsoll import`: files of other tools as runs.

use std::path::PathBuf;

use clap::Args;
use jiff::Timestamp;
use plimsoll_report::lines;

use crate::arguments::Json;
use crate::console;
use crate::execution::default_dir;
use crate::failure::{Exit, Failure, chain};
use crate::presentation;

/// Make a run of a line-per-request file (#TEST=01_steady or #TEST=02_coldconn).
#[derive(Debug, Args)]
#[command(
    before_help = "Example: read a file back, and compare it with a run\n  \
    plimsoll import steady.txt --out runs/old\n  \
    plimsoll compare runs/old runs/new"
)]
pub(crate) struct Arguments {
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// The run directory to make [default: runs/<UTC time>-<file>].
    #[arg(long, env = "PLIMSOLL_OUT", value_name = "DIR")]
    out: Option<PathBuf>,

    #[command(flatten)]
    json: Json,
}

pub(crate) fn execute(arguments: &Arguments) -> Result<Exit, Failure> {
    let name = arguments
        .file
        .file_stem()
        .unwrap_or_default()
        .to_string_lossy();
    let dir = arguments.out.clone().unwrap_or_else(|| default_dir(&name));
    let run = lines::import(
        &arguments.file,
        &dir,
        env!("CARGO_PKG_VERSION"),
        Timestamp::now(),
    )
    .map_err(|e| Failure::error(chain(&e)))?;
    console::tell(format_args!("imported as {}", dir.display()));
    presentation::show(&run, arguments.json.json)?;
    Ok(Exit::Done)
}
