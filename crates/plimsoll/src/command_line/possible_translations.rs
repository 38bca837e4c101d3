//! Interprets command lines that start with a Plimsoll command but were written for another tool, and suggests their
//! translations as tips in errors. One line may have several readings: one for each tool that it may have been written
//! for.

use std::ffi::OsString;

use clap::{Arg, Command};
use plimsoll_protocols::registry::{self, PlimsollFlag, PossibleTranslation};

use crate::command_line::foreign_lines::read_piped_input;
use crate::command_line::quoting::quote_for_shell;

/// Returns the readings of a line that starts with a Plimsoll command but has flags of other tools. `root` is the
/// command tree; `words` does not include the program's name.
pub(crate) fn find_translations(root: &Command, words: &[&str]) -> Vec<PossibleTranslation> {
    let Some((name, rest)) = words.split_first() else {
        return Vec::new();
    };
    let Some(command) = root.find_subcommand(name) else {
        return Vec::new();
    };
    let rest: Vec<String> = rest.iter().map(|word| (*word).to_owned()).collect();
    let lookup = |typed: &str| {
        find_plimsoll_flag(command, typed).or_else(|| find_plimsoll_flag(root, typed))
    };
    registry::find_possible_translations(name, &rest, &read_piped_input, &lookup)
}

/// Returns the number of flags in a line.
pub(crate) fn count_flags(words: &[&str]) -> usize {
    let is_flag = |word: &&&str| word.len() > 1 && word.starts_with('-');
    words.iter().filter(is_flag).count()
}

/// Returns the flag of `command` that is named by the word `typed`, from which a value has been removed; `None` if the
/// command has no such flag.
pub(crate) fn find_plimsoll_flag(command: &Command, typed: &str) -> Option<PlimsollFlag> {
    let is_typed = |arg: &&Arg| match typed.strip_prefix("--") {
        Some(long) => {
            let aliases = arg.get_all_aliases();
            arg.get_long() == Some(long) || aliases.is_some_and(|aliases| aliases.contains(&long))
        }
        None => {
            let letter = typed.strip_prefix('-').and_then(|rest| rest.chars().next());
            letter.is_some() && arg.get_short() == letter
        }
    };
    let arg = command.get_arguments().find(is_typed)?;
    let values = arg.get_num_args();
    let is_optional = values.is_some_and(|range| range.min_values() == 0);
    Some(PlimsollFlag {
        long: format!("--{}", arg.get_long()?),
        takes_value: arg.get_action().takes_values() && !is_optional,
    })
}

/// Maximum number of readings of one line to show.
const MAX_SHOWN_TRANSLATIONS: usize = 3;

/// Returns the tip that shows the readings of a line; `None` if there are none.
pub(crate) fn translations_tip(readings: &[PossibleTranslation]) -> Option<String> {
    let shown = readings.iter().take(MAX_SHOWN_TRANSLATIONS).map(|reading| {
        let ours = reading.translated.words.iter().map(OsString::from);
        let ours: Vec<OsString> = ours.collect();
        let mut tip = format!(
            "as a line of {} it is: plimsoll {}",
            reading.tool.name(),
            quote_for_shell(&ours)
        );
        for missing in &reading.translated.reasons {
            tip += &format!("\n  {missing}");
        }
        for note in &reading.translated.notes {
            tip += &format!("\n  {note}");
        }
        tip
    });
    let shown: Vec<String> = shown.collect();
    (!shown.is_empty()).then(|| shown.join("\n  "))
}

/// Returns the tip for a line whose flags show that it was written for another tool; `None` if they don't show that.
pub(crate) fn foreign_line_tip(root: &Command, words: &[&str]) -> Option<String> {
    let readings = find_translations(root, words);
    let command = words.first().and_then(|name| root.find_subcommand(name))?;
    // A flag that Plimsoll does not have shows that the line was written for the other tool.
    let is_foreign = |word: &&str| {
        let flag = word.split('=').next().unwrap_or(word);
        word.len() > 1 && word.starts_with('-') && find_plimsoll_flag(command, flag).is_none()
    };
    let is_owned = readings.first().is_some_and(|reading| reading.is_owned)
        || readings.len() == 1 && words.iter().any(is_foreign);
    if is_owned && count_flags(words) > 1 {
        translations_tip(&readings)
    } else {
        None
    }
}
