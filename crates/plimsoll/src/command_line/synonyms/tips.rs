//! Adds tips to clap's errors about command lines that were written for another tool.

use std::ffi::OsString;

use clap::Command;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

use plimsoll_protocols::interface::foreign::command_lines::LineTool;
use plimsoll_protocols::registry::COMMAND_ENTRIES;

use super::by_value::{FLAGS_LEFT_OUT, SYNONYMS_BY_VALUE};
use super::{
    FLAGS_WITHOUT_COUNTERPART, SYNONYMS, combined_flags, find_counterpart, find_switch_with_number,
    first_fitting_counterpart, innermost_command, limits, searches, values, whole_line,
};
use crate::command_line::httpie;
use crate::command_line::possible_translations::{self, find_plimsoll_flag};

/// Adds a tip to the error about a line that was written for another tool: the translation of the whole line, or
/// Plimsoll's counterpart of an unknown flag. `command` is the command tree, `typed` the whole line.
pub(crate) fn add_tip(error: Error, command: &Command, typed: &[OsString]) -> Error {
    let words: Vec<&str> = typed.iter().filter_map(|word| word.to_str()).collect();
    let kind = error.kind();
    let is_usage = error.use_stderr();
    let searched = || searches::search_tip(command, &words).filter(|_| is_usage);
    let tip = if let Some(tip) = searched()
        .or_else(|| number_list_tip(&error, command, &words))
        .or_else(|| other_unit_tip(&error, command, &words))
        .or_else(|| misspelt_command_tip(&error, command, &words))
    {
        Some(tip)
    } else if is_own_flag_value_error(&error, &words) {
        None
    } else if MISREAD_ERROR_KINDS.contains(&kind) {
        possible_translations::foreign_line_tip(command, words.get(1..).unwrap_or_default())
    } else if kind == ErrorKind::UnknownArgument
        && let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg)
    {
        searches::search_flag_tip(command, unknown, &words)
            .or_else(|| httpie::translate(&words))
            .or_else(|| targets_file_tip(command, &words))
            .or_else(|| baseline_tip(command, &words))
            .or_else(|| {
                let tip = unknown_flag_tip(command, unknown, &words);
                // A tip without a line does not correct the other flags.
                let has_line = tip.as_ref().is_some_and(|tip| tip.contains("plimsoll "));
                if has_line {
                    tip
                } else {
                    misspelt_flags_tip(command, &words).or(tip)
                }
            })
    } else {
        None
    };
    match tip {
        Some(tip) => {
            let note = variables_note(&tip);
            with_tip(error, command, &words, tip + &note)
        }
        None => without_escape_hint(error),
    }
}

/// Returns the note about the variables in a tip's line, which a shell or Plimsoll replaces; empty if there are none.
fn variables_note(tip: &str) -> String {
    let line = tip.lines().next().unwrap_or_default();
    let mut names: Vec<&str> = Vec::new();
    for part in line.split('$').skip(1) {
        let part = part.strip_prefix('{').unwrap_or(part);
        let is_other = |c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
        let name = &part[..part.find(is_other).unwrap_or(part.len())];
        let is_name = name.starts_with(|c: char| c.is_ascii_uppercase());
        if is_name && !names.contains(&name) {
            names.push(name);
        }
    }
    let Some(first) = names.first() else {
        return String::new();
    };
    format!(
        "\n  set {} first, for example: export {first}=...",
        names.join(" and ")
    )
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

/// Returns the tip for several numbers where a flag takes one, such as `--clients 1,2,4` and `--rate 10..100`.
fn number_list_tip(error: &Error, command: &Command, words: &[&str]) -> Option<String> {
    let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue) else {
        return None;
    };
    // Numbers of clients have the form of rates.
    combined_flags::split_rates(value)?;
    whole_line_tip(command, words)
}

/// Returns the whole line for one whose quantities have units of other tools, such as `100rps` and `2sec`.
fn other_unit_tip(error: &Error, command: &Command, words: &[&str]) -> Option<String> {
    let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue) else {
        return None;
    };
    limits::plain_quantity(value)?;
    let line: Vec<String> = words
        .iter()
        .enumerate()
        .map(|(at, word)| match word.split_once('=') {
            Some((flag, value)) if flag.starts_with('-') => {
                let plain = limits::plain_quantity(value);
                plain.map_or_else(|| (*word).to_owned(), |value| format!("{flag}={value}"))
            }
            _ if at > 0 && words[at - 1].starts_with('-') => {
                limits::plain_quantity(word).unwrap_or_else(|| (*word).to_owned())
            }
            _ => (*word).to_owned(),
        })
        .collect();
    let line: Vec<&str> = line.iter().map(String::as_str).collect();
    whole_line_tip(command, &line)
}

/// Minimum similarity of a misspelt flag and the flag that is meant.
const MIN_FLAG_SIMILARITY: f64 = 0.75;

/// Returns the whole line for one with misspelt flags: with the most similar flags of its command.
fn misspelt_flags_tip(command: &Command, words: &[&str]) -> Option<String> {
    let inner = innermost_command(command, words);
    let longs: Vec<&str> = (inner.get_arguments().chain(command.get_arguments()))
        .filter_map(clap::Arg::get_long)
        .collect();
    let theirs: Vec<&str> = (SYNONYMS.iter().chain(SYNONYMS_BY_VALUE))
        .flat_map(|(names, _)| names.iter().copied())
        .filter(|name| name.len() > 3 && first_fitting_counterpart(inner, name, None).is_some())
        .collect();
    let line: Vec<String> = words
        .iter()
        .map(|word| {
            let (flag, value) = match word.split_once('=') {
                Some((flag, value)) => (flag, format!("={value}")),
                None => (*word, String::new()),
            };
            let is_known = find_plimsoll_flag(inner, flag).is_some()
                || find_plimsoll_flag(command, flag).is_some()
                || whole_line::is_known(flag.trim_start_matches('-'))
                || left_out_reason(flag.trim_start_matches('-')).is_some();
            if !flag.starts_with("--") || is_known {
                return (*word).to_owned();
            }
            let near =
                find_similar(&flag[2..], &longs).or_else(|| find_similar(&flag[2..], &theirs));
            near.map_or_else(|| (*word).to_owned(), |near| format!("--{near}{value}"))
        })
        .collect();
    let line: Vec<&str> = line.iter().map(String::as_str).collect();
    whole_line_tip(command, &line)
}

/// Returns the name that is most similar to that of a misspelt flag; `None` if none is similar enough.
fn find_similar<'a>(typed: &str, names: &[&'a str]) -> Option<&'a str> {
    let (similarity, name) = (names.iter())
        .map(|name| (strsim::normalized_damerau_levenshtein(typed, name), *name))
        .max_by(|a, b| a.0.total_cmp(&b.0))?;
    (similarity >= MIN_FLAG_SIMILARITY).then_some(name)
}

/// Returns the line of a load that is compared with an earlier run: the load, and the comparison with its run.
fn baseline_tip(command: &Command, words: &[&str]) -> Option<String> {
    let at = words.iter().position(|word| *word == "--baseline")?;
    let earlier = *words.get(at + 1)?;
    let mut load: Vec<&str> = words[..at].to_vec();
    load.extend(&words[at + 2..]);
    let inner = innermost_command(command, &load);
    find_plimsoll_flag(inner, "--connections")?;
    if find_plimsoll_flag(inner, "--baseline").is_some() {
        return None;
    }
    let line = whole_line::replace_flags(command, &load)?;
    let notes = line.notes.iter().map(|note| format!("\n  {note}"));
    Some(format!(
        "plimsoll {} && plimsoll compare {} LATEST{}",
        line.text,
        shell_words::quote(earlier),
        notes.collect::<String>()
    ))
}

/// Returns the whole line for one whose command is misspelt: with the similar command, or with the command for the
/// target.
fn misspelt_command_tip(error: &Error, command: &Command, words: &[&str]) -> Option<String> {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return None;
    }
    let similar: Vec<&str> = match error.get(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::Strings(all)) => all.iter().map(String::as_str).collect(),
        Some(ContextValue::String(one)) => vec![one.as_str()],
        _ => Vec::new(),
    };
    let rest = words.get(2..)?;
    let of_target = rest
        .iter()
        .find_map(|word| searches::command_for_address(word))?;
    let is_call = |name: &&str| COMMAND_ENTRIES.iter().any(|entry| entry.name == *name);
    let name = if similar.contains(&of_target) {
        of_target
    } else {
        similar.iter().copied().find(is_call).unwrap_or(of_target)
    };
    let mut line = words.to_vec();
    line[1] = name;
    whole_line_tip(command, &line)
}

/// Returns the line with counterparts in place of all foreign flags, and below it what the line leaves out; `None` if
/// there is no whole line.
pub(crate) fn whole_line_tip(command: &Command, words: &[&str]) -> Option<String> {
    let line = whole_line::replace_flags(command, words)?;
    let notes = line.notes.iter().map(|note| format!("\n  {note}"));
    Some(format!(
        "plimsoll {}{}",
        line.text,
        notes.collect::<String>()
    ))
}

/// Returns the tip for a line of a call without a target, whose file is a list of targets: the line of the tool that
/// reads such a list.
fn targets_file_tip(command: &Command, words: &[&str]) -> Option<String> {
    let is_address = |word: &&str| word.contains("://") || word.contains(':');
    if words.iter().any(is_address) {
        return None;
    }
    let at = words.iter().position(|word| {
        ["f", "file", "targets", "urls"].contains(&word.trim_start_matches('-'))
    })?;
    let file = words.get(at + 1)?;
    let targets = format!("-targets={file}");
    let mut line: Vec<&str> = words[1..at].to_vec();
    line.push(&targets);
    line.extend(&words[at + 2..]);
    let readings = possible_translations::find_translations(command, &line);
    possible_translations::translations_tip(&readings)
}

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
    let reason = left_out_reason(bare);
    let whole = whole_line_tip(command, words);
    // A line that is not wholly another tool's keeps its words: a guessed tool adds defaults, and ignores flags.
    let is_owned = readings
        .first()
        .is_some_and(|reading| reading.is_owned && has_foreign_marker(inner, reading.tool, words));
    let is_mixed = whole.is_some() && !is_owned;
    if readings.len() == 1 && !is_mixed && !(is_single && (found.is_some() || reason.is_some())) {
        return possible_translations::translations_tip(&readings);
    }
    let line = whole.map_or_else(String::new, |line| format!(": {line}"));
    let has_line = !line.is_empty();
    match (found, reason) {
        _ if has_line && names_target(inner, unknown, words) => {
            Some(format!("the target is a word without a flag{line}"))
        }
        (None, Some(reason)) if !has_line && readings.is_empty() => {
            Some(format!("`{unknown}` has no counterpart: {reason}"))
        }
        (Some((theirs, ours)), _) if has_line && line.contains(&ours) => {
            Some(format!("`{theirs}` of other tools is `{ours}` here{line}"))
        }
        _ if has_line => Some(line.trim_start_matches(": ").to_owned()),
        (Some(_), _) if is_single || readings.is_empty() => list_counterparts(inner, words),
        _ => possible_translations::translations_tip(&readings),
    }
}

/// Returns whether the flags that identify a tool are not only long flags of the command itself, or whether the line
/// has a flag that means different things to different tools.
fn has_foreign_marker(command: &Command, tool: &LineTool, words: &[&str]) -> bool {
    let is_own =
        |name: &&str| name.len() > 1 && find_plimsoll_flag(command, &format!("--{name}")).is_some();
    let is_common = tool.marker_flags.iter().any(|set| set.iter().all(is_own));
    // A short flag means different things to different tools.
    let is_foreign_short = |word: &&str| {
        word.len() == 2 && word.starts_with('-') && find_plimsoll_flag(command, word).is_none()
    };
    !is_common || words.contains(&"--insecure") || words.iter().any(is_foreign_short)
}

/// Returns whether an unknown flag and the word after it name the target.
fn names_target(command: &Command, unknown: &str, words: &[&str]) -> bool {
    let bare = unknown.trim_start_matches('-');
    let typed = |pair: &[&str]| pair[0] == unknown && whole_line::is_target_value(bare, pair[1]);
    find_plimsoll_flag(command, unknown).is_none() && words.windows(2).any(typed)
}

/// Returns why a flag of another tool has no counterpart.
fn left_out_reason(bare: &str) -> Option<&'static str> {
    let without = FLAGS_WITHOUT_COUNTERPART.iter();
    let mut without = without.map(|(names, reason)| (*names, *reason));
    let left_out = FLAGS_LEFT_OUT.iter();
    let mut left_out = left_out.map(|(names, _, reason)| (*names, *reason));
    let found = without.find(|(names, _)| names.contains(&bare));
    let found = found.or_else(|| left_out.find(|(names, _)| names.contains(&bare)));
    found.map(|(_, reason)| reason)
}

/// Lists the counterparts of all flags that the command does not have, so that none of them needs another attempt.
fn list_counterparts(command: &Command, words: &[&str]) -> Option<String> {
    let mut known: Vec<String> = Vec::new();
    for word in words.iter().filter(|word| word.starts_with('-')) {
        let flag = word.split('=').next().unwrap_or(word);
        if find_plimsoll_flag(command, flag).is_some() {
            continue;
        }
        if let Some(ours) = find_counterpart(command, flag, words) {
            let example = flag.trim_start_matches('-');
            let is_example =
                first_fitting_counterpart(command, example, values::flag_value(flag, words))
                    .is_some_and(|ours| {
                        values::has_example_value(ours) && !values::replaces_secret(ours)
                    });
            let example = if is_example { ", for example," } else { "" };
            known.push(format!("`{flag}` of other tools is{example} `{ours}` here"));
        }
    }
    if let Some((theirs, ours)) = find_switch_with_number(command, words) {
        known.push(format!("`{theirs}` of other tools is `{ours}` here"));
    }
    known.dedup();
    (!known.is_empty()).then(|| known.join("; "))
}

/// Replaces clap's suggestion in an error by `tip`, and leaves out the usage, which does not have the flags of the tip.
/// The message names the flag of another tool where clap names only its value.
fn with_tip(mut error: Error, command: &Command, words: &[&str], tip: String) -> Error {
    if let Some(ContextValue::String(named)) = error.get(ContextKind::InvalidArg)
        && error.kind() == ErrorKind::UnknownArgument
        && !named.starts_with('-')
        && let Some((theirs, _)) = find_switch_with_number(innermost_command(command, words), words)
    {
        error.insert(ContextKind::InvalidArg, ContextValue::String(theirs));
    }
    error.remove(ContextKind::SuggestedArg);
    error.remove(ContextKind::SuggestedSubcommand);
    error.remove(ContextKind::Usage);
    error.insert(
        ContextKind::Suggested,
        ContextValue::StyledStrs(vec![StyledStr::from(tip)]),
    );
    error
}

/// Removes clap's suggestion to pass an unknown flag as a value after `--`, which no command of Plimsoll expects.
fn without_escape_hint(mut error: Error) -> Error {
    let is_hint = |text: &StyledStr| text.to_string().contains("as a value, use '-- ");
    if let Some(ContextValue::StyledStrs(all)) = error.get(ContextKind::Suggested)
        && all.iter().any(is_hint)
    {
        error.remove(ContextKind::Suggested);
    }
    error
}
