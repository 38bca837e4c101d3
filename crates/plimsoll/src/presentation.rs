//! A run's result on stdout, for a person or as JSON.

use std::fmt::Write as _;
use std::io::{self, IsTerminal};

use plimsoll_model::objective::{Judged, Verdict};
use plimsoll_model::run::Run;
use plimsoll_report::{bolt, json, terminal};

use crate::console;
use crate::failure::Failure;

/// Shows `run`, and what became of its objectives.
///
/// # Errors
/// When stdout can't be written.
pub(crate) fn show(run: &Run, judged: &[Judged], as_json: bool) -> Result<(), Failure> {
    if as_json {
        let mut document = json::document(run, None);
        document["objectives"] = serde_json::to_value(judged).map_err(Failure::error)?;
        let text = serde_json::to_string_pretty(&document).map_err(Failure::error)?;
        return console::result(format_args!("{text}\n"));
    }
    let report = terminal::render(run, &options()) + &bolt::render(run).unwrap_or_default();
    console::result(format_args!("{report}{}", objectives(judged)))
}

/// A line an objective.
fn objectives(judged: &[Judged]) -> String {
    let mut text = String::new();
    for one in judged {
        let verdict = match one.verdict {
            Verdict::Met => "met",
            Verdict::Missed => "MISSED",
            Verdict::NotSupported => "NOT JUDGED",
        };
        let _ = writeln!(
            text,
            "objective {}: {verdict} ({})",
            one.objective, one.measured
        );
    }
    if text.is_empty() {
        text
    } else {
        format!("\n{text}")
    }
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
