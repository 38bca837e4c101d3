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
    static ALL: LazyLock<Vec<(String, String)>> = LazyLock::new(|| {
        let known = FLAGS.iter();
        let known = known.map(|(key, flag)| ((*key).to_owned(), (*flag).to_owned()));
        known.chain(registry::flags()).collect()
    });
    &ALL
}

/// Keys of a plan and the flags that mean the same; a key that begins another comes after it.
const FLAGS: &[(&str, &str)] = &[
    ("load.source_addresses", "--source"),
    ("load.connect_timeout", "--connect-timeout"),
    ("load.abort_after", "--abort-after"),
    ("load.connect_rate", "--connect-rate"),
    ("load.connection_lifetime", "--connection-lifetime"),
    ("load.calls_per_connection", "--calls-per-connection"),
    ("load.resolve_interval", "--resolve-interval"),
    ("load.resolve", "--resolve"),
    ("load.proxy", "--proxy"),
    ("load.connections", "--connections"),
    ("load.read_buffer", "--read-buffer"),
    ("load.arrivals", "--arrivals"),
    ("load.duration", "--duration"),
    ("load.deadline", "--deadline"),
    ("load.clients", "--clients"),
    ("load.processes", "--processes"),
    ("load.precision", "--rate-precision"),
    ("load.workers", "--workers"),
    ("load.warmup", "--warmup"),
    ("load.calls", "--calls"),
    ("load.think", "--think"),
    ("load.drain", "--drain"),
    ("load.reuse", "--cold"),
    ("load.rate", "--rate"),
    ("load.spin", "--spin"),
    ("load.tick", "--tick"),
    ("load", "--rate or --clients"),
    ("tls.server_name", "--server-name"),
    ("tls.versions", "--tls-version"),
    ("tls.compressed", "--compressed-certificates"),
    ("tls.key_log", "--key-log"),
    ("tls.suites", "--suite"),
    ("tls.groups", "--group"),
    ("tls.records", "--records"),
    ("tls.resume", "--resume"),
    ("tls.full", "--full"),
    ("tls.early_data", "--early-data"),
    ("tls.chain", "--chain"),
    ("tls.cert", "--cert"),
    ("tls.key", "--key"),
    ("tls.ca", "--ca"),
    ("tls.crl", "--crl"),
    ("tls.pin", "--pin"),
    ("tls.insecure", "--insecure"),
    ("rows.order", "--rows-order"),
    ("rows", "--rows"),
    ("objective", "--objective"),
    ("watch.pid", "--pid"),
    ("watch", "--watch"),
    ("target", "URL"),
    ("seed", "--seed"),
    ("name", "--name"),
    ("requests", "--requests"),
    ("traceparent", "--traceparent"),
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
        for (key, words) in FLAGS {
            let mut subs = command.get_subcommands();
            let found = subs.any(|sub| named_in(words).all(|flag| is_of(sub, flag)));
            assert!(found, "{key}: no command has {words}");
        }
    }
}
