//! What flags are called in a plan, so that errors about a plan that was typed as flags name those.
//!
//! Several commands may have a flag each for one key. A message names that of the command which was typed,
//! and the key where it has none. The flags of protocols are read from their definitions.

use std::collections::BTreeSet;
use std::sync::{LazyLock, OnceLock};

use clap::Command;
use plimsoll_protocols::registry;

/// The flags of the command that was typed, with their dashes.
static AT_HAND: OnceLock<BTreeSet<String>> = OnceLock::new();

/// To be called once, with the innermost command that was typed.
pub(crate) fn are_of(command: &Command) {
    let longs = command.get_arguments().filter_map(clap::Arg::get_long);
    let _ = AT_HAND.set(longs.map(|long| format!("--{long}")).collect());
}

/// Whether the command that was typed has `flag`. Before one is known, every flag is one of it.
fn is_at_hand(flag: &str) -> bool {
    AT_HAND.get().is_none_or(|flags| flags.contains(flag))
}

/// Whether the command which was typed has all flags that `words` name.
pub(crate) fn are_at_hand(words: &str) -> bool {
    named_in(words).all(is_at_hand)
}

/// The flags that a text names, with their dashes.
pub(crate) fn named_in(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && !"-._".contains(c));
    let words = words.map(|word| word.trim_end_matches(['.', '-']));
    words.filter(|word| {
        let name = word.strip_prefix("--");
        name.is_some_and(|name| name.starts_with(|c: char| c.is_ascii_lowercase()))
    })
}

/// `{tls.ca}` becomes `--ca (tls.ca)`, or `tls.ca` where the command that was typed has no such flag.
pub(crate) fn filled_in(text: &str) -> String {
    filled_in_with(text, is_at_hand)
}

/// As [`filled_in`], for a command that `has` flags.
pub(crate) fn filled_in_with(text: &str, has: impl Fn(&str) -> bool) -> String {
    let mut text = text.to_owned();
    for (key, flags) in all() {
        if named_in(flags).all(&has) {
            text = text.replace(&format!("{{{key}}}"), &format!("{flags} ({key})"));
        }
    }
    for (key, _) in all() {
        text = text.replace(&format!("{{{key}}}"), key);
    }
    text
}

/// Keys and flags of protocols, and those that all have.
pub(crate) fn all() -> &'static [(String, String)] {
    static ALL: LazyLock<Vec<(String, String)>> =
        LazyLock::new(|| plans().chain(registry::flags()).collect());
    &ALL
}

/// Keys of a plan and the flags that mean the same.
fn plans() -> impl Iterator<Item = (String, String)> {
    let alike = ALIKE.iter().flat_map(|(section, keys)| {
        let flag = |key: &str| format!("--{}", key.replace('_', "-"));
        keys.split(' ')
            .map(move |key| (format!("{section}{key}"), flag(key)))
    });
    let others = OTHERS.map(|(key, flag)| (key.to_owned(), flag.to_owned()));
    alike.chain(others)
}

/// Keys of a plan whose flags have their names, by section; a key that begins another comes after it.
const ALIKE: [(&str, &str); 4] = [
    (
        "load.",
        "connect_timeout abort_after connect_rate connection_lifetime calls_per_connection resolve_interval resolve \
         proxy connections read_buffer arrivals duration deadline clients processes workers warmup calls think drain \
         rate spin tick",
    ),
    (
        "tls.",
        "server_name key_log records resume full early_data chain cert key ca crl pin insecure",
    ),
    ("watch.", "pid"),
    ("", "rows objective watch seed name requests traceparent"),
];

/// Those whose flags have other names.
const OTHERS: [(&str, &str); 10] = [
    ("load.source_addresses", "--source"),
    ("load.precision", "--rate-precision"),
    ("load.reuse", "--cold"),
    ("tls.versions", "--tls-version"),
    ("tls.compressed", "--compressed-certificates"),
    ("tls.suites", "--suite"),
    ("tls.groups", "--group"),
    ("rows.order", "--rows-order"),
    ("load", "--rate or --clients"),
    ("target", "URL"),
];

/// Whether `command` has `flag`.
#[cfg(test)]
pub(crate) fn is_of(command: &Command, flag: &str) -> bool {
    let mut longs = command.get_arguments().filter_map(clap::Arg::get_long);
    let global = ["--progress", "--quiet", "--verbose", "--trace"];
    global.contains(&flag) || longs.any(|long| Some(long) == flag.strip_prefix("--"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands;

    #[test]
    fn flags_are_found_in_sentences() {
        let text = "write --rate, or `--calls 5` (--http-version) -- never---; --tls1.3.";
        let found: Vec<&str> = named_in(text).collect();
        assert_eq!(found, ["--rate", "--calls", "--http-version", "--tls1.3"]);
    }

    #[test]
    fn a_key_stands_alone_where_the_command_has_no_flag_for_it() {
        let text = "with {tls.ca} or {call.http.version}";
        let http = filled_in_with(text, |_| true);
        assert_eq!(
            http,
            "with --ca (tls.ca) or --http-version (call.http.version)"
        );
        let fetch = filled_in_with(text, |flag| flag == "--ca");
        assert_eq!(fetch, "with --ca (tls.ca) or call.http.version");
    }

    /// What problems with typed plans are translated into.
    #[test]
    fn every_key_has_a_flag_of_a_command() {
        let command = commands::command();
        for (key, words) in plans() {
            let mut subs = command.get_subcommands();
            let found = subs.any(|sub| named_in(&words).all(|flag| is_of(sub, flag)));
            assert!(found, "{key}: no command has {words}");
        }
    }
}
