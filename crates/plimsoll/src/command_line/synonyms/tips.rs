//! Adds tips to clap's errors about command lines that were written for another tool.

use std::ffi::OsString;

use clap::Command;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

use super::{
    FLAGS_WITHOUT_COUNTERPART, find_counterpart, find_switch_with_number,
    first_fitting_counterpart, innermost_command, values, whole_line,
};
use crate::command_line::possible_translations;

/// Adds a tip to the error about a line that was written for another tool: the translation of the whole line, or
/// Plimsoll's counterpart of an unknown flag. `command` is the command tree, `typed` the whole line.
pub(crate) fn add_tip(error: Error, command: &Command, typed: &[OsString]) -> Error {
    let words: Vec<&str> = typed.iter().filter_map(|word| word.to_str()).collect();
    let kind = error.kind();
    let tip = if is_own_flag_value_error(&error, &words) {
        None
    } else if MISREAD_ERROR_KINDS.contains(&kind) {
        possible_translations::foreign_line_tip(command, words.get(1..).unwrap_or_default())
    } else if kind == ErrorKind::UnknownArgument
        && let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg)
    {
        unknown_flag_tip(command, unknown, &words)
    } else {
        None
    };
    match tip {
        Some(tip) => with_tip(error, innermost_command(command, &words), tip),
        None => error,
    }
}

/// Returns whether the error is about an invalid value of a Plimsoll flag that was typed by its long name and whose
/// possible values clap lists. Such an error needs no tip, because no other tool has such a flag.
fn is_own_flag_value_error(error: &Error, words: &[&str]) -> bool {
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else {
        return false;
    };
    let long = flag.split(' ').next().unwrap_or_default();
    let is_typed = |word: &&str| word.split('=').next() == Some(long);
    let lists_values = matches!(
        error.get(ContextKind::ValidValue),
        Some(ContextValue::Strings(values)) if !values.is_empty()
    );
    error.kind() == ErrorKind::InvalidValue && lists_values && words.iter().any(is_typed)
}

/// Errors about a line of another tool whose flags have the same names as Plimsoll's, but take different values.
const MISREAD_ERROR_KINDS: [ErrorKind; 4] = [
    ErrorKind::ValueValidation,
    ErrorKind::InvalidValue,
    ErrorKind::ArgumentConflict,
    ErrorKind::WrongNumberOfValues,
];

/// Returns the tip for a line with an unknown flag. If the line can be of only one tool, the tip is its translation
/// from that tool; otherwise it is the line with its flags replaced by their counterparts, or the translation from each
/// possible tool.
fn unknown_flag_tip(command: &Command, unknown: &str, words: &[&str]) -> Option<String> {
    let inner = innermost_command(command, words);
    let readings =
        possible_translations::find_translations(command, words.get(1..).unwrap_or_default());
    let found = match find_counterpart(inner, unknown, words) {
        Some(ours) => Some((unknown.to_owned(), ours)),
        None => find_switch_with_number(inner, words),
    };
    let bare = unknown.trim_start_matches('-');
    let is_example =
        first_fitting_counterpart(inner, bare, None).is_some_and(values::has_example_value);
    // For a line with a single flag, prefer the flag's counterpart: a translated line would also contain the tool's
    // defaults.
    let is_single = possible_translations::count_flags(words) < 2 && !is_example;
    let reason = FLAGS_WITHOUT_COUNTERPART
        .iter()
        .find(|(names, _)| names.contains(&bare));
    if readings.len() == 1 && !(is_single && (found.is_some() || reason.is_some())) {
        return possible_translations::translations_tip(&readings);
    }
    let whole = whole_line::replace_flags(command, words);
    let whole = whole.map_or_else(String::new, |line| format!(": plimsoll {line}"));
    match (found, reason) {
        (Some((theirs, ours)), _) if !whole.is_empty() || is_single || readings.is_empty() => {
            Some(format!("`{theirs}` of other tools is `{ours}` here{whole}"))
        }
        (None, Some((_, reason))) => {
            Some(format!("`{unknown}` has no counterpart: {reason}{whole}"))
        }
        _ => possible_translations::translations_tip(&readings),
    }
}

/// Replaces clap's suggestion in an error by `tip`.
fn with_tip(mut error: Error, command: &Command, tip: String) -> Error {
    error.remove(ContextKind::SuggestedArg);
    error.insert(
        ContextKind::Suggested,
        ContextValue::StyledStrs(vec![StyledStr::from(tip)]),
    );
    let usage = command.clone().render_usage();
    error.insert(ContextKind::Usage, ContextValue::StyledStr(usage));
    error
}
