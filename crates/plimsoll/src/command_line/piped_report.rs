//! Translates `vegeta report`, which prints the results of `vegeta attack`, to `plimsoll report`, which shows the
//! newest run directory.
//!
//! In `plimsoll vegeta attack … | plimsoll vegeta report`, the second command waits until the first has written its
//! run.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Read};
use std::path::Path;

use plimsoll_model::formats::input;

use crate::failure::Failure;
use crate::screen::console;

/// Subcommands of vegeta that show results, each with the equivalent words of Plimsoll's command line.
const REPORT_SUBCOMMANDS: [(&str, &[&str]); 3] = [
    ("report", &["report", "LATEST"]),
    ("plot", &["report", "LATEST", "--html"]),
    (
        "encode",
        &["report", "LATEST", "--export", "csv", "results"],
    ),
];

/// The file of a plot if standard output is a terminal.
const PLOT_FILE: &str = "plot.html";

/// Translates a line that begins with `vegeta` and one of [`REPORT_SUBCOMMANDS`]; `None` for any other line. If
/// standard input is a pipe, it is read to its end first. A file is read for the run that its text names.
///
/// # Errors
/// When the pipe was empty: the load before it has failed, and the newest run would be an earlier one. When a file names
/// no run.
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
    let flags = join_values(flags);
    let mut stdin = io::stdin();
    let has_file = flags.iter().any(|word| !word.starts_with('-'));
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
    if *name == "plot" {
        let is_terminal = io::stdout().is_terminal();
        ours.push(if is_terminal { PLOT_FILE } else { "-" }.into());
    }
    for flag in &flags {
        match flag.trim_start_matches('-') {
            "type=json" => ours.push("--json".into()),
            "type=text" => {}
            kind if *name == "report" && kind.starts_with("type=hist") => {
                if kind.contains('[') {
                    console::print_notice(
                        "the bounds of a histogram can't be chosen: its bars follow the figures",
                    );
                }
                ours.push("--histogram".into());
            }
            file if !flag.starts_with('-') => match find_run_in(file) {
                Some(run) => ours[1] = run.into(),
                None => {
                    let line: Vec<String> = (ours.iter())
                        .map(|word| word.to_string_lossy().into_owned())
                        .collect();
                    return Err(Failure::usage(
                        format_args!("vegeta {name}: {file} does not name a run of plimsoll"),
                        &format!(
                            "every load leaves a run directory, and the newest is shown by: plimsoll {}",
                            line.join(" ")
                        ),
                    ));
                }
            },
            _ => console::print_notice(format_args!(
                "`{flag}` is left out: the newest run is shown, with its percentiles"
            )),
        }
    }
    Ok(Some(ours))
}

/// Returns the words with each flag's value behind an `=`, as in `-type=json` for `-type json`.
fn join_values(words: &[OsString]) -> Vec<String> {
    let mut joined: Vec<String> = Vec::new();
    let mut awaits_value = false;
    for word in words.iter().map(|word| word.to_string_lossy()) {
        match joined.last_mut() {
            Some(flag) if awaits_value => {
                *flag = format!("{flag}={word}");
                awaits_value = false;
            }
            _ => {
                awaits_value = VALUE_FLAGS.contains(&word.trim_start_matches('-'));
                joined.push(word.into_owned());
            }
        }
    }
    joined
}

/// Flags of vegeta's report, plot and encode with a value.
const VALUE_FLAGS: [&str; 7] = [
    "buckets",
    "every",
    "output",
    "threshold",
    "title",
    "to",
    "type",
];

/// Maximum size of a file that is searched for the name of a run.
const MAX_RESULT_BYTES: u64 = 16 << 20;

/// Returns the run that a file names, into which a load's report was redirected.
fn find_run_in(file: &str) -> Option<String> {
    let text = input::untrusted_file_to_string(Path::new(file), MAX_RESULT_BYTES).ok()?;
    let run = text.lines().find_map(|line| line.strip_prefix("run: "))?;
    Path::new(run).is_dir().then(|| run.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_reports_show_named_run() {
        let words = |line: &str| -> Vec<OsString> { line.split(' ').map(OsString::from).collect() };
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("results.bin").display().to_string();
        let line = words(&format!("vegeta report -type=json {file}"));
        let missing = translate(&line).expect_err("no file").to_string();
        assert!(
            missing.contains("plimsoll report LATEST --json"),
            "{missing}"
        );
        let run = dir.path().display().to_string();
        std::fs::write(&file, format!("GET /\nrun: {run}\n")).expect("written");
        let shown = translate(&line).expect("words");
        assert_eq!(shown, Some(words(&format!("report {run} --json"))));
        let line = words(&format!("vegeta report -type hist[0,1ms] {file}"));
        let shown = translate(&line).expect("words");
        assert_eq!(shown, Some(words(&format!("report {run} --histogram"))));
        for other in ["vegeta attack -rate=5", "report LATEST", "vegeta"] {
            assert_eq!(
                translate(&words(other)).expect("no report"),
                None,
                "{other}"
            );
        }
    }
}
