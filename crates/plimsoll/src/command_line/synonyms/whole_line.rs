//! Replaces all flags of other tools in a command line by Plimsoll's counterparts, so that users can paste the result.

use std::ffi::OsString;

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use plimsoll_protocols::registry::COMMAND_ENTRIES;

use super::by_value::{FAIL_FAST_FLAGS, FLAGS_LEFT_OUT, RAMP_FLAGS, TARGET_FLAGS};
use super::limits::is_time;
use super::{
    FLAGS_WITHOUT_COUNTERPART, SWITCHES_WITH_NUMBER, combined_flags, find_counterparts,
    first_fitting_counterpart, values,
};
use crate::command_line::possible_translations::find_plimsoll_flag;
use crate::command_line::quoting::quote_for_shell;
use crate::commands;

/// The file to which users of other tools write output that they don't need.
const NULL_DEVICE: &str = "/dev/null";

/// Flags with one number, for which other tools may take a list.
const SINGLE_NUMBER_FLAGS: [&str; 7] = [
    "--clients",
    "--connections",
    "--calls",
    "--max-in-flight",
    "--workers",
    "--prompt-tokens",
    "--max-tokens",
];

/// A line with counterparts in place of the flags that its command does not have.
#[derive(Debug, Default)]
pub(super) struct ReplacedLine {
    /// The line without the program's name, quoted for a shell.
    pub(super) text: String,
    /// What the line does without, or does in another way.
    pub(super) notes: Vec<String>,
}

/// Returns the line with each flag that its command does not have replaced by the flag's counterpart. Returns `None` if
/// a flag has no counterpart, or if clap rejects the result. `words` begins with the program's name.
pub(super) fn replace_flags(root: &Command, words: &[&str]) -> Option<ReplacedLine> {
    let (program, rest) = words.split_first()?;
    let (name, rest) = rest.split_first()?;
    let command = root.find_subcommand(name)?;
    let rest = combined_flags::combine(command, rest);
    let mut line = LineReplacement {
        root,
        command,
        ours: vec![(*name).to_owned()],
        tail: String::new(),
        notes: Vec::new(),
        has_end: rest.iter().any(|word| sets_end(command, word)),
    };
    line.replace(&rest)?;
    if !line.has_target() {
        return None;
    }
    line.name_row_columns();
    line.replace_clients_of_rate();
    let ours: Vec<OsString> = line.ours.into_iter().map(OsString::from).collect();
    let program = std::iter::once(OsString::from(program));
    let whole: Vec<OsString> = program.chain(ours.iter().cloned()).collect();
    let (ours, whole) = add_required(ours, whole);
    let matches = commands::command_for_words(&whole).try_get_matches_from(&whole);
    commands::Cli::from_matches(&matches.ok()?).ok()?;
    Some(ReplacedLine {
        text: quote_for_shell(&ours) + &line.tail,
        notes: line.notes,
    })
}

/// Adds the flags that the command requires and the line does not have, each with a placeholder, to the line without
/// and with the program's name.
fn add_required(
    mut ours: Vec<OsString>,
    mut whole: Vec<OsString>,
) -> (Vec<OsString>, Vec<OsString>) {
    let parsed = commands::command_for_words(&whole).try_get_matches_from(&whole);
    let missing = parsed
        .err()
        .filter(|error| error.kind() == ErrorKind::MissingRequiredArgument);
    if let Some(error) = missing
        && let Some(ContextValue::Strings(flags)) = error.get(ContextKind::InvalidArg)
        && flags.iter().all(|flag| flag.starts_with("--"))
    {
        // Such as `--model <NAME>`.
        let words = flags.iter().flat_map(|flag| flag.split(' '));
        let words = words.map(|word| OsString::from(word.trim_matches(['<', '>'])));
        let words: Vec<OsString> = words.collect();
        ours.extend(words.iter().cloned());
        whole.extend(words);
    }
    (ours, whole)
}

/// A line whose flags are being replaced.
struct LineReplacement<'a> {
    root: &'a Command,
    command: &'a Command,
    ours: Vec<String>,
    /// What follows the command: a redirection of stdout, or another command.
    tail: String,
    notes: Vec<String>,
    /// Whether a flag sets a duration or a number of calls.
    has_end: bool,
}

impl LineReplacement<'_> {
    fn replace(&mut self, words: &[String]) -> Option<()> {
        let mut left = words.iter().map(String::as_str).peekable();
        while let Some(word) = left.next() {
            if word == "--" {
                self.ours.push(word.to_owned());
                self.ours.extend(left.map(str::to_owned));
                break;
            }
            if word.len() < 2 || !word.starts_with('-') {
                self.ours.push(word.to_owned());
                continue;
            }
            let (flag, attached) = split_word(word);
            let next = left.peek().copied();
            let bare = flag.trim_start_matches('-');
            let typed = attached.or(next.filter(|next| !next.starts_with('-')));
            let own = find_plimsoll_flag(self.command, flag)
                .or_else(|| find_plimsoll_flag(self.root, flag));
            if let Some(target) = typed.filter(|typed| is_target(bare, typed, own.is_some())) {
                self.ours.insert(1, target.to_owned());
                if attached.is_none() {
                    left.next();
                }
                continue;
            }
            let value = typed.filter(|typed| attached.is_some() || !typed.contains("://"));
            let is_count = value.is_some_and(|value| value.bytes().all(|b| b.is_ascii_digit()));
            let numbered = SWITCHES_WITH_NUMBER
                .iter()
                .find(|(switch, _)| *switch == word && is_count);
            if let Some(own) = own.filter(|_| numbered.is_none()) {
                let value = own.takes_value.then(|| attached.or_else(|| left.next()));
                match value.flatten() {
                    Some(list)
                        if SINGLE_NUMBER_FLAGS.contains(&own.long.as_str())
                            && list.contains(',') =>
                    {
                        self.ours.push(flag.to_owned());
                        self.add_first_of_list(flag, list);
                    }
                    Some(value) if attached.is_none() => {
                        self.ours.extend([word.to_owned(), value.to_owned()]);
                    }
                    _ => self.ours.push(word.to_owned()),
                }
                continue;
            }
            if self.replace_flag(flag, numbered.map(|(_, ours)| *ours), typed, value)?
                && attached.is_none()
                && typed.is_some()
            {
                left.next();
            }
        }
        Some(())
    }

    /// Replaces one flag; returns whether the flag has a value. `typed` is the word after the flag, and `value` the same
    /// unless it is a URL, which is the value only of a flag that takes one.
    fn replace_flag(
        &mut self,
        flag: &str,
        numbered: Option<&'static str>,
        typed: Option<&str>,
        value: Option<&str>,
    ) -> Option<bool> {
        let bare = flag.trim_start_matches('-');
        if value == Some(NULL_DEVICE) {
            return Some(true);
        }
        // `-t 5s` is the length of a load that has no other end.
        let is_length = bare == "t" && !self.has_end && value.is_some_and(is_time);
        let fitting = |value| {
            let length = is_length.then_some("--duration {TIME}");
            length.or_else(|| first_fitting_counterpart(self.command, bare, value))
        };
        let counterpart = numbered
            .map(|ours| (ours, value))
            .or_else(|| Some((fitting(value)?, value)))
            .or_else(|| Some((fitting(typed)?, typed)));
        let counterpart = counterpart.map(|(ours, value)| {
            let takes_url = values::placeholder(ours).is_some_and(|name| name == "URL");
            (ours, if takes_url { typed } else { value })
        });
        if let Some((ours, value)) = counterpart {
            // The typed value would be lost.
            if values::has_example_value(ours) && value.is_some() && !values::replaces_secret(ours)
            {
                return None;
            }
            let filled = values::fill_placeholder(ours, value);
            let (flags, tail) = values::split_tail(&filled);
            let mut words = shell_words::split(flags).ok()?;
            let is_known_switch = words.len() == 1 && self.ours.contains(&words[0]);
            if !is_known_switch {
                self.ours.append(&mut words);
            }
            self.tail.push_str(tail);
            if RAMP_FLAGS.contains(&bare) {
                self.notes.push(format!(
                    "`{flag}`: all clients start together, and the figures leave out the warm-up"
                ));
            }
            if FAIL_FAST_FLAGS.contains(&bare) {
                self.notes.push(format!(
                    "`{flag}`: no load stops at its first error, but when more calls have failed than the objective allows"
                ));
            }
            // The next word is no value of a flag whose counterpart has one of its own.
            return Some(values::placeholder(ours).is_some() || values::replaces_secret(ours));
        }
        let is_streaming = ["stream", "streaming"].contains(&bare);
        if is_streaming && find_plimsoll_flag(self.command, "--no-stream").is_some() {
            self.notes.push(format!(
                "`{flag}` is left out: answers are streamed, unless --no-stream is given"
            ));
            return Some(false);
        }
        let mut left_out = FLAGS_LEFT_OUT.iter();
        if let Some((_, takes_value, reason)) = left_out.find(|(names, ..)| names.contains(&bare)) {
            self.notes.push(format!("`{flag}` is left out: {reason}"));
            return Some(*takes_value);
        }
        let mut without = FLAGS_WITHOUT_COUNTERPART.iter();
        let (_, reason) = without.find(|(names, _)| names.contains(&bare))?;
        self.notes
            .push(format!("`{flag}` has no counterpart: {reason}"));
        Some(value.is_some_and(|value| value.bytes().all(|b| b.is_ascii_digit())))
    }

    /// Adds the first number of a list such as `1,2,4`.
    fn add_first_of_list(&mut self, flag: &str, list: &str) {
        let (first, others) = list.split_once(',').unwrap_or((list, ""));
        self.ours.push(first.to_owned());
        self.notes.push(format!(
            "a load has one number here: repeat the line with {flag} {}",
            others.replace(',', " and ")
        ));
    }

    /// Returns whether a line of a call has its target, without which a flag's file may be meant as a list of targets.
    fn has_target(&self) -> bool {
        let is_call = COMMAND_ENTRIES
            .iter()
            .any(|entry| entry.name == self.ours[0]);
        !is_call
            || self
                .ours
                .iter()
                .any(|word| word.contains([':', '.', '/']) && !word.starts_with(['-', '@', '{']))
    }

    /// Turns clients into connections if there is a rate, which a load with clients can't have, or into a limit of calls
    /// in flight where a connection carries many calls. Where each call has a connection of its own, turns connections
    /// into clients, or into that limit if there is a rate.
    fn replace_clients_of_rate(&mut self) {
        let long = |word: &String| {
            let flag = word.split('=').next().unwrap_or(word);
            let own = find_plimsoll_flag(self.command, flag).filter(|_| word.starts_with('-'));
            own.map(|own| own.long)
        };
        let longs: Vec<Option<String>> = self.ours.iter().map(long).collect();
        let has = |name: &str| longs.iter().flatten().any(|long| long == name);
        let is_open = has("--rate") || has("--step");
        // A connection carries many calls at once if the command has a flag for their metadata.
        let at_once = if find_plimsoll_flag(self.command, "--metadata").is_some() {
            "--max-in-flight"
        } else {
            "--connections"
        };
        let (from, to) = match (has("--cold"), is_open) {
            (true, true) => ("--connections", "--max-in-flight"),
            (true, false) if !has("--clients") => ("--connections", "--clients"),
            (false, true) if !has(at_once) => ("--clients", at_once),
            _ => return,
        };
        for (word, long) in self.ours.iter_mut().zip(&longs) {
            let is_short = !word.starts_with("--") && word.len() > 2;
            if long.as_deref() == Some(from) && !is_short {
                let value = word.split_once('=').map(|(_, value)| format!("={value}"));
                *word = format!("{to}{}", value.unwrap_or_default());
            }
        }
    }

    /// Writes `{{id}}` as `{{row.id}}` if the line has a file of rows.
    fn name_row_columns(&mut self) {
        const FIELDS: [&str; 6] = ["seq", "uuid", "now", "client", "message", "row"];
        if !self.ours.iter().any(|word| word == "--rows") {
            return;
        }
        for word in &mut self.ours {
            let mut named = String::new();
            let mut rest = word.as_str();
            while let Some((before, after)) = rest.split_once("{{") {
                let name = after.split("}}").next().unwrap_or_default().trim();
                let is_name = !name.is_empty()
                    && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
                named.push_str(before);
                named.push_str("{{");
                if is_name && !FIELDS.contains(&name) {
                    named.push_str("row.");
                }
                rest = after;
            }
            named.push_str(rest);
            *word = named;
        }
    }
}

/// Returns whether a flag that Plimsoll does not have and its value name the target.
pub(super) fn is_target_value(bare: &str, value: &str) -> bool {
    is_target(bare, value, false)
}

/// Returns whether a word is a flag, of Plimsoll or another tool, that sets a duration or a number of calls.
fn sets_end(command: &Command, word: &str) -> bool {
    let (flag, _) = split_word(word);
    let bare = flag.trim_start_matches('-');
    let ends = |ours: &str| ours.starts_with("--calls") || ours.starts_with("--duration");
    let is_flag = bare.len() < flag.len();
    let own = find_plimsoll_flag(command, flag);
    is_flag
        && (own.is_some_and(|own| ends(&own.long))
            || find_counterparts(bare).any(ends)
            || bare == "requests")
}

/// Returns whether a flag and its value name the target. `is_own`: Plimsoll has a flag of this name, so that only a
/// URL shows that the target is meant.
fn is_target(bare: &str, value: &str, is_own: bool) -> bool {
    if !TARGET_FLAGS.contains(&bare) {
        return false;
    }
    let scheme = value.split_once("://").map(|(scheme, _)| scheme);
    let is_url = scheme.is_some_and(|scheme| {
        scheme
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'+')
    });
    let port = value.rsplit_once(':').map(|(_, port)| port);
    let is_address = bare.len() > 1 && port.is_some_and(|port| port.parse::<u16>().is_ok());
    is_url || is_address && !is_own
}

/// Returns whether a name is that of a flag of other tools.
pub(crate) fn is_known(name: &str) -> bool {
    let is_left_out = FLAGS_LEFT_OUT
        .iter()
        .any(|(names, ..)| names.contains(&name));
    is_left_out || find_counterparts(name).next().is_some()
}

/// Splits a word into a flag and the value that is attached to it, if any.
fn split_word(word: &str) -> (&str, Option<&str>) {
    if word.starts_with("--") {
        return match word.split_once('=') {
            Some((flag, value)) => (flag, Some(value)),
            None => (word, None),
        };
    }
    // A flag of several letters may be typed with one dash, as in programs written in Go.
    let long = word.split('=').next().unwrap_or(word);
    if long.len() > 3 && is_known(&long[1..]) {
        return (long, word.split_once('=').map(|(_, value)| value));
    }
    let end = word.char_indices().nth(2).map_or(word.len(), |(at, _)| at);
    let (flag, value) = word.split_at(end);
    (flag, Some(value).filter(|value| !value.is_empty()))
}
