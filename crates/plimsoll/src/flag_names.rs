//! What flags are called in a plan, so that errors about a plan that was typed as flags name those.
//!
//! Several commands may have a flag each for one key. A message names that of the command which was typed,
//! and the key where it has none.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use clap::Command;

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

/// Of the alternatives of a key, the first that the command which was typed has.
pub(crate) fn at_hand(alternatives: &str) -> Option<&str> {
    first_of(alternatives, is_at_hand)
}

fn first_of(alternatives: &str, has: impl Fn(&str) -> bool) -> Option<&str> {
    let mut alternatives = alternatives.split('|');
    alternatives.find(|words| named_in(words).all(&has))
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
    for (key, flags) in FLAGS {
        let words = match first_of(flags, &has) {
            Some(flag) => format!("{flag} ({key})"),
            None => (*key).to_owned(),
        };
        text = text.replace(&format!("{{{key}}}"), &words);
    }
    text
}

/// Keys of a plan and the flags that mean the same, with `|` between those of different commands; a key that begins
/// another comes after it.
pub(crate) const FLAGS: &[(&str, &str)] = &[
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
    ("tls", "--ca, --cert, --key …"),
    ("call.grpc.descriptor_set", "--descriptor-set"),
    ("call.grpc.cancel_after", "--cancel-after"),
    ("call.grpc.stream_duration", "--stream-duration"),
    ("call.grpc.messages", "--messages"),
    ("call.grpc.expect", "--expect"),
    ("call.grpc.reflection", "--reflection"),
    ("call.grpc.pace", "--pace"),
    (
        "call.grpc.message_binary",
        "--data-binary or --data-delimited",
    ),
    ("call.grpc.message_file", "--data"),
    ("call.grpc.import_path", "--import-path"),
    ("call.grpc.max_message", "--max-message"),
    ("call.grpc.metadata", "--metadata"),
    ("call.grpc.compression", "--compression"),
    ("call.grpc.user_agent", "--user-agent"),
    ("call.grpc.authority", "--authority"),
    ("call.grpc.message", "--data"),
    ("call.grpc.method", "--method"),
    ("call.grpc.proto", "--proto"),
    (
        "call.session.reconnect_pause_most",
        "--reconnect-pause-most",
    ),
    ("call.session.compression", "--compression"),
    ("call.session.headers", "--header"),
    ("call.session.reconnect_pause", "--reconnect-pause"),
    ("call.session.reconnects", "--reconnects"),
    ("call.session.expect_tokens", "--expect-tokens"),
    ("call.session.queries", "--queries"),
    ("call.session.query", "--query"),
    ("call.session.socket", "--socket"),
    ("call.session.agent", "--agent"),
    ("call.http.expect_headers", "--expect-header"),
    ("call.http.expect_body", "--expect-body"),
    ("call.http.stream_until", "--stream-until|--until"),
    ("call.http.stream_error", "--stream-error|--error"),
    ("call.http.body_file", "--data"),
    ("call.http.max_body", "--max-body|--max-message"),
    ("call.http.version", "--http-version"),
    ("call.http.headers", "--header"),
    ("call.http.expect", "--expect"),
    ("call.http.method", "--method"),
    ("call.http.stream", "--stream"),
    ("call.http.websocket.script", "--script"),
    ("call.http.conversation.follow_ups", "--follow-up"),
    ("call.http.conversation", "--turns"),
    ("call.http.websocket.subprotocol", "--subprotocol"),
    ("call.http.websocket.binary", "--binary"),
    ("call.http.compressed", "--compressed"),
    ("call.http.goodput", "--goodput"),
    ("call.http.body", "--data|--prompt"),
    ("call.http.host", "--host"),
    ("call.http.path", "URL"),
    ("rows.order", "--rows-order"),
    ("rows", "--rows"),
    ("objective", "--objective"),
    ("watch.pid", "--pid"),
    ("watch", "--watch"),
    ("target", "URL"),
    ("seed", "--seed"),
    ("name", "--name"),
    ("requests", "--requests"),
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
    use crate::arguments;

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
        let command = arguments::command();
        for (key, alternatives) in FLAGS {
            for words in alternatives.split('|') {
                let mut subs = command.get_subcommands();
                let found = subs.any(|sub| named_in(words).all(|flag| is_of(sub, flag)));
                assert!(found, "{key}: no command has {words}");
            }
        }
    }
}
