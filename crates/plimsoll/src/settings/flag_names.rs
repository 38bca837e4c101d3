//! Maps plan keys to flags, so that errors in a plan that was typed as flags name the flags.
//!
//! Commands may have different flags for one key. A message names the flag of the current command, or the key if the
//! command has no flag for it. The flags are read from their clap definitions.

use std::collections::BTreeSet;
use std::sync::{LazyLock, OnceLock};

use clap::{Args, Command};
use plimsoll_model::spec::{LoadSpec, TlsSpec, struct_keys};
use plimsoll_protocols::interface::flags::TlsFlags;
use plimsoll_protocols::registry::{self, pair_keys_with_flags};

/// The flags of the current command, with their dashes.
static COMMAND_FLAGS: OnceLock<BTreeSet<String>> = OnceLock::new();

/// Sets the current command. Call this once, with the innermost subcommand.
pub(crate) fn set_command(command: &Command) {
    let longs = command.get_arguments().filter_map(clap::Arg::get_long);
    let _ = COMMAND_FLAGS.set(longs.map(|long| format!("--{long}")).collect());
}

/// Returns whether the current command has `flag`; true for every flag as long as no command is set.
fn command_has_flag(flag: &str) -> bool {
    COMMAND_FLAGS.get().is_none_or(|flags| flags.contains(flag))
}

/// Returns whether the current command has all flags that `words` mentions.
pub(crate) fn command_has_all_flags(words: &str) -> bool {
    mentioned_flags(words).all(command_has_flag)
}

/// Returns the flags that a text mentions, with their dashes.
pub(crate) fn mentioned_flags(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && !"-._".contains(c));
    let words = words.map(|word| word.trim_end_matches(['.', '-']));
    words.filter(|word| {
        let name = word.strip_prefix("--");
        name.is_some_and(|name| name.starts_with(|c: char| c.is_ascii_lowercase()))
    })
}

/// Replaces `{tls.ca}` by `--ca (tls.ca)`, or by `tls.ca` if the current command has no such flag.
pub(crate) fn fill_in_flags(text: &str) -> String {
    fill_in_flags_with(text, command_has_flag)
}

/// Replaces `{tls.ca}` by `--ca (tls.ca)` if `has` returns true for the flag, and by `tls.ca` otherwise.
pub(crate) fn fill_in_flags_with(text: &str, has: impl Fn(&str) -> bool) -> String {
    let mut text = text.to_owned();
    for (key, flags) in flags_by_plan_key() {
        if mentioned_flags(flags).all(&has) {
            text = text.replace(&format!("{{{key}}}"), &format!("{flags} ({key})"));
        }
    }
    for (key, _) in flags_by_plan_key() {
        text = text.replace(&format!("{{{key}}}"), key);
    }
    text
}

/// Returns all plan keys with their flags: keys that all protocols share, and keys of single protocols.
pub(crate) fn flags_by_plan_key() -> &'static [(String, String)] {
    static FLAGS_BY_KEY: LazyLock<Vec<(String, String)>> =
        LazyLock::new(|| common_flags().chain(registry::flags_by_key()).collect());
    &FLAGS_BY_KEY
}

/// Returns the plan keys that all protocols share, with their flags. A key that is a prefix of another key comes after
/// that key.
fn common_flags() -> impl Iterator<Item = (String, String)> {
    let load = LoadSpec::augment_args(Command::new("load"));
    let tls = TlsFlags::augment_args(TlsSpec::augment_args(Command::new("tls")));
    let sections = [
        pair_keys_with_flags("load", struct_keys::<LoadSpec>(), &LOAD_FLAG_NAMES, load),
        pair_keys_with_flags("tls", struct_keys::<TlsSpec>(), &TLS_FLAG_NAMES, tls),
    ];
    let others = OTHER_FLAG_NAMES.map(|(key, flag)| (key.to_owned(), flag.to_owned()));
    let alike = KEYS_NAMED_LIKE_FLAGS.map(|key| (key.to_owned(), format!("--{key}")));
    sections.into_iter().flatten().chain(others).chain(alike)
}

/// Keys of the section `[load]` whose flags have other names.
const LOAD_FLAG_NAMES: [(&str, &str); 3] = [
    ("source_addresses", "--source"),
    ("precision", "--rate-precision"),
    ("reuse", "--cold"),
];
const TLS_FLAG_NAMES: [(&str, &str); 4] = [
    ("versions", "--tls-version"),
    ("compressed", "--compressed-certificates"),
    ("suites", "--suite"),
    ("groups", "--group"),
];

/// Keys outside of the sections `[load]` and `[tls]`, with their flags.
const OTHER_FLAG_NAMES: [(&str, &str); 7] = [
    ("labels", "--label"),
    ("watch.pid", "--pid"),
    ("watch.server_metrics", "--server-metrics"),
    ("rows.order", "--rows-order"),
    ("span_sample", "--span-sample"),
    ("load", "--rate or --clients"),
    ("target", "URL"),
];
const KEYS_NAMED_LIKE_FLAGS: [&str; 7] = [
    "rows",
    "objective",
    "watch",
    "seed",
    "name",
    "requests",
    "traceparent",
];

/// Returns whether `command` has `flag`.
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
    fn flags_in_text_are_recognised() {
        let text = "write --rate, or `--calls 5` (--http-version) -- never---; --tls1.3.";
        let found: Vec<&str> = mentioned_flags(text).collect();
        assert_eq!(found, ["--rate", "--calls", "--http-version", "--tls1.3"]);
    }

    #[test]
    fn key_without_flag_is_shown_alone() {
        let text = "with {tls.ca} or {call.http.version}";
        let http = fill_in_flags_with(text, |_| true);
        assert_eq!(
            http,
            "with --ca (tls.ca) or --http-version (call.http.version)"
        );
        let fetch = fill_in_flags_with(text, |flag| flag == "--ca");
        assert_eq!(fetch, "with --ca (tls.ca) or call.http.version");
    }

    /// Messages about plans that were typed as flags are translated by these keys.
    #[test]
    fn every_mapped_key_names_existing_flag() {
        let command = commands::command();
        for (key, words) in common_flags() {
            let mut subs = command.get_subcommands();
            let found = subs.any(|sub| mentioned_flags(&words).all(|flag| is_of(sub, flag)));
            assert!(found, "{key}: no command has {words}");
        }
    }
}
