//! Replaces all flags of other tools in a command line by Plimsoll's counterparts, so that users can paste the result.

use std::ffi::OsString;

use clap::Command;

use super::{FLAGS_WITHOUT_COUNTERPART, SWITCHES_WITH_NUMBER, first_fitting_counterpart, values};
use crate::command_line::foreign_lines::quote_for_shell;
use crate::command_line::possible_translations::find_plimsoll_flag;
use crate::commands;

/// The file to which users of other tools write output that they don't need.
const NULL_DEVICE: &str = "/dev/null";

/// Returns the line, quoted for a shell, with each flag that its command does not have replaced by the flag's
/// counterpart. Returns `None` if a flag has no counterpart, or if clap rejects the result. `words` begins with the
/// program's name.
pub(super) fn replace_flags(root: &Command, words: &[&str]) -> Option<String> {
    let (program, rest) = words.split_first()?;
    let (name, rest) = rest.split_first()?;
    let command = root.find_subcommand(name)?;
    let mut ours = vec![(*name).to_owned()];
    let mut left = rest.iter().copied().peekable();
    while let Some(word) = left.next() {
        if word == "--" {
            ours.push(word.to_owned());
            ours.extend(left.map(str::to_owned));
            break;
        }
        if word.len() < 2 || !word.starts_with('-') {
            ours.push(word.to_owned());
            continue;
        }
        let (flag, attached) = split_word(word);
        let next = left.peek().copied();
        let value =
            attached.or(next.filter(|next| !next.starts_with('-') && !next.contains("://")));
        let is_count = value.is_some_and(|value| value.bytes().all(|b| b.is_ascii_digit()));
        let numbered = SWITCHES_WITH_NUMBER
            .iter()
            .find(|(switch, _)| *switch == word && is_count);
        let own = find_plimsoll_flag(command, flag).or_else(|| find_plimsoll_flag(root, flag));
        if let Some(own) = own.filter(|_| numbered.is_none()) {
            ours.push(word.to_owned());
            if own.takes_value && attached.is_none() {
                ours.extend(left.next().map(str::to_owned));
            }
            continue;
        }
        let bare = flag.trim_start_matches('-');
        let counterpart = numbered
            .map(|(_, ours)| *ours)
            .or_else(|| first_fitting_counterpart(command, bare, value));
        let takes_value = if let Some(text) = counterpart {
            let filled = values::fill_placeholder(text, value);
            ours.extend(shell_words::split(&filled).ok()?);
            values::placeholder(text).is_some() || values::has_example_value(text)
        } else if value == Some(NULL_DEVICE) {
            true
        } else {
            let mut without = FLAGS_WITHOUT_COUNTERPART.iter();
            without.find(|(names, _)| names.contains(&bare))?;
            is_count
        };
        if takes_value && attached.is_none() && value.is_some() {
            left.next();
        }
    }
    let ours: Vec<OsString> = ours.into_iter().map(OsString::from).collect();
    let program = std::iter::once(OsString::from(program));
    let line: Vec<OsString> = program.chain(ours.iter().cloned()).collect();
    let matches = commands::command_for_words(&line).try_get_matches_from(&line);
    commands::Cli::from_matches(&matches.ok()?).ok()?;
    Some(quote_for_shell(&ours))
}

/// Splits a word into a flag and the value that is attached to it, if any.
fn split_word(word: &str) -> (&str, Option<&str>) {
    if word.starts_with("--") {
        return match word.split_once('=') {
            Some((flag, value)) => (flag, Some(value)),
            None => (word, None),
        };
    }
    let end = word.char_indices().nth(2).map_or(word.len(), |(at, _)| at);
    let (flag, value) = word.split_at(end);
    (flag, Some(value).filter(|value| !value.is_empty()))
}
