//! A run's result on stdout, for a person or as JSON.

use std::io::{self, IsTerminal};

use plimsoll_model::run::Run;
use plimsoll_report::{bolt, json, terminal};

use crate::console;
use crate::failure::Failure;

/// Shows `run`.
///
/// # Errors
/// When stdout can't be written.
pub(crate) fn show(run: &Run, as_json: bool) -> Result<(), Failure> {
    if as_json {
        let text =
            serde_json::to_string_pretty(&json::document(run, None)).map_err(Failure::error)?;
        return console::result(format_args!("{text}\n"));
    }
    let bolt = bolt::render(run).unwrap_or_default();
    console::result(terminal::render(run, &options()) + &bolt)
}

/// As wide as the terminal, and in colour only there.
pub(crate) fn options() -> terminal::Options {
    let out = io::stdout();
    let width = rustix::termios::tcgetwinsize(&out)
        .ok()
        .map(|size| usize::from(size.ws_col))
        .filter(|&columns| columns > 0);
    terminal::Options {
        width: width.unwrap_or_else(|| terminal::Options::default().width),
        colour: out.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()),
        ..terminal::Options::default()
    }
}
