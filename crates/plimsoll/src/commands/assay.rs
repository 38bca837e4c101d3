//! `plimsoll assay`: compares a run's figures with the true ones, which the test server `plimsoll serve known` wrote to
//! a file (the envelope).

mod bounds;
mod findings;
mod rendering;
mod schedule;

use std::path::PathBuf;

use clap::Args;
use plimsoll_model::formats::units::Period;
use plimsoll_serving::envelope::Envelope;

use crate::failure::{Exit, Failure};
use crate::load::documents::{JsonFlag, load_run, print_json};
use crate::screen::console;
use findings::Assay;

/// Compare a run with the true response times in the envelope of `serve known`.
///
/// First the envelope is checked against its commitment, and every delay is recomputed. Then each percentile of the
/// run's response time is compared with the value that a client that is never late would have measured.
#[derive(Debug, Args)]
#[command(before_help = "\
Example: a run against `plimsoll serve known --law law.toml --envelope envelope.jsonl`, once that has ended
  plimsoll assay LATEST envelope.jsonl
Example: only if it is the envelope whose commitment the server printed
  plimsoll assay LATEST envelope.jsonl --commitment 6d0e…")]
pub(crate) struct AssayArguments {
    /// The run's directory, or LATEST.
    #[arg(value_name = "RUN")]
    run: PathBuf,

    /// The envelope that the server wrote.
    #[arg(value_name = "ENVELOPE")]
    envelope: PathBuf,

    /// The commitment that the server printed when it started.
    #[arg(long, value_name = "HASH")]
    commitment: Option<String>,

    /// Maximum network round-trip time, which the run's measurements include and the server's do not.
    #[arg(long, value_name = "TIME", default_value = "50us")]
    path: Period,

    #[command(flatten)]
    json: JsonFlag,
}

pub(crate) fn execute(arguments: &AssayArguments) -> Result<Exit, Failure> {
    let envelope = Envelope::read(&arguments.envelope).map_err(Failure::error)?;
    if let Some(expected) = &arguments.commitment
        && !expected.trim().eq_ignore_ascii_case(&envelope.commitment)
    {
        return Err(Failure::error_with_help(
            format_args!(
                "--commitment: {} has the commitment {}",
                arguments.envelope.display(),
                envelope.commitment
            ),
            "give the envelope of the server that printed this commitment",
        ));
    }
    let run = load_run(&arguments.run)?;
    let assay = Assay::compare(&run, &envelope, arguments.path.0).map_err(Failure::error)?;
    if arguments.json.json {
        print_json(&assay.to_json())?;
    } else {
        console::print_result(assay.to_text())?;
    }
    Ok(assay.exit_code())
}
