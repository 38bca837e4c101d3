//! Translates `vegeta report`, which prints the results of `vegeta attack`, to `plimsoll report`, which shows the
//! newest run directory.
//!
//! In `plimsoll vegeta attack … | plimsoll vegeta report`, the second command waits until the first has written its
//! run.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Read};

use crate::failure::Failure;
use crate::screen::console;

/// Subcommands of vegeta that show results, each with the equivalent words of Plimsoll's command line.
const REPORT_SUBCOMMANDS: [(&str, &[&str]); 3] = [
    ("report", &["report", "LATEST"]),
    ("plot", &["report", "LATEST", "--html", "plot.html"]),
    (
        "encode",
        &["report", "LATEST", "--export", "csv", "results"],
    ),
];

/// Translates a line that begins with `vegeta` and one of [`REPORT_SUBCOMMANDS`]; `None` for any other line. If
/// standard input is a pipe, it is read to its end first.
///
/// # Errors
/// When the pipe was empty: the load before it has failed, and the newest run would be an earlier one.
pub(crate) fn translate(words: &[OsString]) -> Result<Option<Vec<OsString>>, Failure> {
    let [tool, subcommand, flags @ ..] = words else {
        return Ok(None);
    };
    let Some((name, ours)) = REPORT_SUBCOMMANDS
        .iter()
        .find(|(name, _)| tool == "vegeta" && subcommand == *name)
    else {
        return Ok(None);
    };
    let mut stdin = io::stdin();
    let has_file = flags
        .iter()
        .any(|word| !word.to_string_lossy().starts_with('-'));
    if !stdin.is_terminal() && !has_file {
        let mut text = Vec::new();
        let count = stdin.read_to_end(&mut text).unwrap_or(0);
        if count == 0 {
            return Err(Failure::usage(
                format_args!("vegeta {name}: nothing came through the pipe"),
                "a load prints its report itself, and `plimsoll report LATEST` shows the newest run again",
            ));
        }
    }
    let mut ours: Vec<OsString> = ours.iter().map(OsString::from).collect();
    let flags = flags.iter().map(|word| word.to_string_lossy());
    for flag in flags {
        match flag.trim_start_matches('-') {
            "type=json" => ours.push("--json".into()),
            "type=text" => {}
            _ => console::print_notice(format_args!(
                "`{flag}` is left out: the newest run is shown, with its percentiles"
            )),
        }
    }
    Ok(Some(ours))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_of_files_show_the_newest_run() {
        let words = |line: &str| -> Vec<OsString> { line.split(' ').map(OsString::from).collect() };
        let shown = translate(&words("vegeta report -type=json results.bin")).expect("words");
        assert_eq!(shown, Some(words("report LATEST --json")));
        for other in ["vegeta attack -rate=5", "report LATEST", "vegeta"] {
            assert_eq!(
                translate(&words(other)).expect("no report"),
                None,
                "{other}"
            );
        }
    }
}
