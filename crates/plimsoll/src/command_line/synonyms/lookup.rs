//! Looks for the counterparts of other tools' flags.

use std::ffi::OsString;

use clap::Command;

use super::{SWITCHES_WITH_NUMBER, SYNONYMS, by_value, values};
use crate::command_line::quoting::quote_for_shell;
use crate::settings::flag_names;

/// Returns the innermost subcommand that the words name.
pub(crate) fn innermost_command<'a>(command: &'a Command, words: &[&str]) -> &'a Command {
    let mut found = command;
    for word in words.iter().skip(1) {
        found = found.find_subcommand(word).unwrap_or(found);
    }
    found
}

/// Returns the counterpart of an unknown flag, with the value that was typed; `None` if there is none.
pub(crate) fn find_counterpart(command: &Command, unknown: &str, words: &[&str]) -> Option<String> {
    let name = unknown.strip_prefix("--").or(unknown.strip_prefix('-'))?;
    let value = values::flag_value(unknown, words);
    let ours = first_fitting_counterpart(command, name, value)?;
    Some(fill_and_quote(ours, value))
}

/// Returns a counterpart with the typed value, quoted for a shell and without secrets.
fn fill_and_quote(ours: &str, value: Option<&str>) -> String {
    let filled = values::fill_placeholder(ours, value);
    let (flags, tail) = values::split_tail(&filled);
    match shell_words::split(flags) {
        Ok(words) => {
            let words: Vec<OsString> = words.into_iter().map(OsString::from).collect();
            quote_for_shell(&words) + tail
        }
        Err(_) => filled.clone(),
    }
}

/// Returns the first counterpart of another tool's flag `name` that the command has, and whose placeholder the value
/// fits.
pub(super) fn first_fitting_counterpart(
    command: &Command,
    name: &str,
    value: Option<&str>,
) -> Option<&'static str> {
    let has_method = command
        .get_arguments()
        .any(|arg| arg.get_long() == Some("method"));
    // A socket's message is what other tools send with a method.
    let is_message = |ours: &str| values::placeholder(ours) == Some("MESSAGE");
    find_counterparts(name).find(|ours| {
        has_all_flags(command, ours)
            && values::value_fits(ours, value)
            && !(has_method && is_message(ours))
    })
}

pub(crate) fn find_counterparts(name: &str) -> impl Iterator<Item = &'static str> {
    let known = by_value::SYNONYMS_BY_VALUE
        .iter()
        .chain(SYNONYMS)
        .filter(move |(theirs, _)| theirs.contains(&name));
    known.flat_map(|(_, ours)| ours.iter().copied())
}

/// Returns whether `command` has all flags that a text mentions.
pub(super) fn has_all_flags(command: &Command, text: &str) -> bool {
    let text = values::split_tail(text).0;
    let mut shorts = text.split(' ').filter_map(|word| word.strip_prefix('-'));
    let short = shorts
        .find(|word| word.len() == 1)
        .and_then(|word| word.chars().next());
    let has_short = |short| {
        command
            .get_arguments()
            .any(|arg| arg.get_short() == Some(short))
    };
    let has_long = |flag: &str| {
        let longs = command.get_arguments().filter_map(clap::Arg::get_long);
        let is_global = ["--progress", "--quiet", "--verbose", "--telemetry"].contains(&flag);
        is_global
            || longs
                .map(|long| format!("--{long}"))
                .any(|long| long == flag)
    };
    short.is_none_or(has_short) && flag_names::mentioned_flags(text).all(has_long)
}

/// Finds a flag of [`SWITCHES_WITH_NUMBER`] followed by a number; returns the two words and their counterpart.
pub(super) fn find_switch_with_number(
    command: &Command,
    words: &[&str],
) -> Option<(String, String)> {
    words.windows(2).find_map(|pair| {
        let (flag, ours) = SWITCHES_WITH_NUMBER
            .iter()
            .find(|(flag, _)| pair[0] == *flag)?;
        let is_number = pair[1].chars().all(|c| c.is_ascii_digit());
        (is_number && has_all_flags(command, ours)).then(|| {
            (
                format!("{flag} {}", pair[1]),
                values::fill_placeholder(ours, Some(pair[1])),
            )
        })
    })
}
