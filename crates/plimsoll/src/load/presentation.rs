//! Prints a run's result to stdout, as tables or as JSON.

use std::io::{self, IsTerminal};

use plimsoll_model::runs::run::Run;
use plimsoll_model::spec::Spec;
use plimsoll_protocols::registry;
use plimsoll_report::terminal;

use crate::failure::Failure;
use crate::load::documents::{DocumentFlags, StdoutContent, print_json};
use crate::screen::console;

/// Prints the tables of `run`, unless stdout is reserved for machine-readable output such as JSON.
///
/// # Errors
/// When stdout can't be written.
pub(crate) fn print_tables(run: &Run, screen: StdoutContent) -> Result<(), Failure> {
    match screen {
        StdoutContent::Tables => console::print_result(tables(run, &terminal_options())),
        StdoutContent::Document => Ok(()),
    }
}

/// Returns the tables of `run`.
pub(crate) fn tables(run: &Run, options: &terminal::TerminalOptions) -> String {
    terminal::render(run, options) + &registry::report_footer(run)
}

/// Prints the plan of a dry run, as JSON or as TOML; the TOML is preceded by comments that outline the plan.
///
/// # Errors
/// When stdout can't be written.
pub(crate) fn show_plan(
    spec: &Spec,
    outline: &str,
    documents: &DocumentFlags,
) -> Result<(), Failure> {
    if documents.json {
        return print_json(spec);
    }
    let toml = spec.to_toml().map_err(Failure::error)?;
    let comments: String = outline.lines().map(|line| format!("# {line}\n")).collect();
    console::print_result(comments + &toml)
}

/// Returns options with the size of the terminal. Colour is used only if stdout is a terminal, and NO_COLOR is unset or
/// empty.
pub(crate) fn terminal_options() -> terminal::TerminalOptions {
    let out = io::stdout();
    let size = rustix::termios::tcgetwinsize(&out).ok();
    let given = |cells: u16| Some(usize::from(cells)).filter(|&cells| cells > 0);
    let width = size.and_then(|size| given(size.ws_col));
    terminal::TerminalOptions {
        width: width.unwrap_or_else(|| terminal::TerminalOptions::default().width),
        height: size.and_then(|size| given(size.ws_row)),
        colour: out.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()),
        ..terminal::TerminalOptions::default()
    }
}
