//! Adds tips to errors of lines that were typed for another tool.

use std::ffi::OsString;

use clap::Command;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

use super::{
    WITHOUT_COUNTERPART, counterpart, fitting, innermost, numbered_switch, values, whole_line,
};
use crate::command_line::foreign_readings;

/// Adds what the line means to the error of a line that was typed for another tool: the whole line in our words, or
/// the counterpart of an unknown flag. `command` is the command tree, `typed` the whole line.
pub(crate) fn explain(error: Error, command: &Command, typed: &[OsString]) -> Error {
    let words: Vec<&str> = typed.iter().filter_map(|word| word.to_str()).collect();
    let kind = error.kind();
    let tip = if has_wrong_own_value(&error, &words) {
        None
    } else if MISREAD_ERRORS.contains(&kind) {
        foreign_readings::owned_tip(command, words.get(1..).unwrap_or_default())
    } else if kind == ErrorKind::UnknownArgument
        && let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg)
    {
        unknown_tip(command, unknown, &words)
    } else {
        None
    };
    match tip {
        Some(tip) => with_tip(error, innermost(command, &words), tip),
        None => error,
    }
}

/// Returns whether the error is about the value of one of our flags that was typed by its long name, with possible
/// values that clap lists: that says enough, and no other tool has such a flag.
fn has_wrong_own_value(error: &Error, words: &[&str]) -> bool {
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

/// Errors that a line of another tool gets where its flags are ours, too, with other values.
const MISREAD_ERRORS: [ErrorKind; 4] = [
    ErrorKind::ValueValidation,
    ErrorKind::InvalidValue,
    ErrorKind::ArgumentConflict,
    ErrorKind::WrongNumberOfValues,
];

/// Returns the tip for a line with an unknown flag: the line as that of the only tool that it can be of, or with the
/// counterparts of its flags, or as that of each tool that it can be of.
fn unknown_tip(command: &Command, unknown: &str, words: &[&str]) -> Option<String> {
    let inner = innermost(command, words);
    let readings = foreign_readings::readings(command, words.get(1..).unwrap_or_default());
    let found = match counterpart(inner, unknown, words) {
        Some(ours) => Some((unknown.to_owned(), ours)),
        None => numbered_switch(inner, words),
    };
    let bare = unknown.trim_start_matches('-');
    let is_example = fitting(inner, bare, None).is_some_and(values::is_example);
    // Translating a line of one flag would also add the defaults of a tool.
    let is_single = foreign_readings::count_flags(words) < 2 && !is_example;
    let reason = WITHOUT_COUNTERPART
        .iter()
        .find(|(names, _)| names.contains(&bare));
    if readings.len() == 1 && !(is_single && (found.is_some() || reason.is_some())) {
        return foreign_readings::tip(&readings);
    }
    let whole = whole_line::replaced(command, words);
    let whole = whole.map_or_else(String::new, |line| format!(": plimsoll {line}"));
    match (found, reason) {
        (Some((theirs, ours)), _) if !whole.is_empty() || is_single || readings.is_empty() => {
            Some(format!("`{theirs}` of other tools is `{ours}` here{whole}"))
        }
        (None, Some((_, reason))) => {
            Some(format!("`{unknown}` has no counterpart: {reason}{whole}"))
        }
        _ => foreign_readings::tip(&readings),
    }
}

/// Replaces what clap suggests.
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
