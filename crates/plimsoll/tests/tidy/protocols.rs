//! Protocols are self-contained: counts the places outside of a protocol's folder that name it.
//!
//! A place is a line in which an identifier (an import, a type, a variant, a field, a function) or
//! a string names a protocol. Comments and tests do not count. Rust's tokens are read, so macro
//! contents count as well.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::ratchet::Ratchet;
use crate::sources::{Source, crate_of, sources};

/// A protocol and the words that name it.
struct Protocol {
    /// Its folder in `crates/plimsoll-protocols/src`, and its section in a plan.
    folder: &'static str,
    words: &'static [&'static str],
    /// The words have other meanings in English: a string names the protocol only as a section
    /// (`call.hold`), as a scheme (`session://`) or as the whole string.
    is_english: bool,
}

const PROTOCOLS: [Protocol; 7] = [
    protocol("grpc", &["grpc", "grpcs"], false),
    protocol(
        "bolt",
        &["bolt", "sofa", "sofas", "sofarpc", "sofabolt"],
        false,
    ),
    protocol("fetch", &["fetch"], true),
    protocol("http", &["http", "https"], true),
    protocol("session", &["session", "sessions"], true),
    protocol("plugin", &["plugin", "plugins"], true),
    protocol("hold", &["hold"], true),
];

const fn protocol(
    folder: &'static str,
    words: &'static [&'static str],
    is_english: bool,
) -> Protocol {
    Protocol {
        folder,
        words,
        is_english,
    }
}

/// Places where a word does not mean the protocol: beginning of the path, protocol or word,
/// meaning.
const OTHER_MEANINGS: &[(&str, &str, &str)] = &[
    (
        "crates/plimsoll/src/telemetry/",
        "http",
        "how metrics are posted (OTLP)",
    ),
    (
        "crates/plimsoll/src/load/server_metrics",
        "http",
        "how a server's metrics are read (Prometheus)",
    ),
    (
        "crates/plimsoll/src/settings/metrics_url",
        "http",
        "how a server's metrics are read (Prometheus)",
    ),
    (
        "crates/plimsoll-engine/",
        "session",
        "a TLS session (RFC 8446 §2.2)",
    ),
    (
        "crates/plimsoll-engine/",
        "hold",
        "the machine's capacity, or what memory holds",
    ),
    (
        "crates/plimsoll-engine/",
        "http",
        "the ALPN names of servers",
    ),
    (
        "crates/plimsoll-wire/",
        "http",
        "the wire formats, which several protocols share",
    ),
    (
        "crates/plimsoll-model/src/metrics/outcome.rs",
        "grpc",
        "the closed list of outcomes, which are explained without a protocol at hand",
    ),
    (
        "crates/plimsoll-model/src/metrics/outcome.rs",
        "bolt",
        "the closed list of outcomes, which are explained without a protocol at hand",
    ),
    (
        "crates/plimsoll-model/src/spec/arrivals",
        "hold",
        "a stage that keeps its rate",
    ),
    (
        "crates/plimsoll-model/src/spec/proxy",
        "http",
        "the scheme of a proxy",
    ),
    (
        "crates/plimsoll-model/src/formats/redaction",
        "session",
        "a word in the names of secrets",
    ),
    (
        "crates/plimsoll-report/src/html/page",
        "http",
        "an attribute of HTML",
    ),
    ("crates/plimsoll-wire/", "session", "a session of a relay"),
    (
        "crates/plimsoll-protocols/src/http/foreign_lines/fortio.rs",
        "grpc",
        "flags of fortio, whose lines may be of gRPC",
    ),
    (
        "crates/plimsoll-protocols/src/http/foreign_lines/httperf.rs",
        "session",
        "flags of httperf",
    ),
    (
        "crates/plimsoll-plugin/",
        "plugin",
        "the C interface that codec plugins have",
    ),
    (
        "crates/plimsoll-relays/",
        "session",
        "what the gateway and the service carry",
    ),
    ("crates/plimsoll-relays/", "http", "the wire format"),
    (
        "crates/plimsoll-stack/src/",
        "session",
        "the stack of that name",
    ),
    (
        "crates/plimsoll-stack/src/sessions",
        "http",
        "the wire format, of health checks",
    ),
    ("crates/plimsoll-protocols/", "http", "the wire format"),
    ("crates/plimsoll-serving/", "http", "the wire format"),
    (
        "crates/plimsoll-protocols/src/http/envelopes",
        "grpc",
        "gRPC-Web, a format of bodies",
    ),
    (
        "crates/plimsoll-protocols/src/fetch/",
        "session",
        "a TLS session",
    ),
    (
        "crates/plimsoll-protocols/src/hold/",
        "session",
        "a TLS session",
    ),
    ("crates/plimsoll-serving/", "session", "a TLS session"),
    (
        "crates/plimsoll-serving/",
        "hold",
        "connections that outlive a server",
    ),
    (
        "crates/plimsoll/src/shards/",
        "http",
        "where an object store is",
    ),
    (
        "crates/plimsoll/src/commands/check.rs",
        "http",
        "where a health check is",
    ),
    (
        "crates/plimsoll/src/commands/check.rs",
        "sessions",
        "the stack of that name",
    ),
    (
        "crates/plimsoll/src/commands/relay.rs",
        "session",
        "what the gateway carries",
    ),
    (
        "crates/plimsoll/src/commands/serve/llm.rs",
        "session",
        "what the gateway and the service carry",
    ),
    (
        "crates/plimsoll/src/command_line/synonyms/",
        "hold",
        "a flag of other tools, the time after a ramp",
    ),
    (
        "crates/plimsoll/src/commands/stack.rs",
        "http",
        "where the balancer shows its statistics",
    ),
    (
        "crates/plimsoll/src/commands/stack.rs",
        "sessions",
        "the stack of that name",
    ),
    (
        "crates/plimsoll/src/command_line/foreign_words.rs",
        "sessions",
        "the stack of that name",
    ),
    (
        "crates/plimsoll-model/src/spec/wire.rs",
        "http",
        "versions of HTTP, as proxies know them",
    ),
    (
        "crates/plimsoll-model/src/spec/wire.rs",
        "grpc",
        "what proxies call it",
    ),
    (
        "crates/plimsoll/src/proxies",
        "http",
        "versions of HTTP, and words of proxies' configurations",
    ),
    ("crates/plimsoll/src/proxies", "session", "a TLS session"),
    (
        "crates/plimsoll/src/proxies",
        "grpc",
        "words of proxies' configurations",
    ),
    (
        "crates/plimsoll/src/commands/view.rs",
        "http",
        "what a browser opens",
    ),
];

/// Code that makes any protocol misbehave, or that chooses between them.
const PROTOCOL_NEUTRAL_FILES: [&str; 3] = [
    "crates/plimsoll-hostile/",
    "crates/plimsoll-protocols/src/lib.rs",
    "crates/plimsoll-protocols/src/registry.rs",
];

/// Methods of atomics.
const ATOMIC_METHODS: [&str; 8] = [
    "fetch_add",
    "fetch_and",
    "fetch_max",
    "fetch_min",
    "fetch_or",
    "fetch_sub",
    "fetch_update",
    "fetch_xor",
];

/// Returns the lines of `text` that name a protocol, each with the words.
fn places_in(file: &str, tokens: TokenStream) -> BTreeSet<(usize, &'static str)> {
    let mut found = BTreeSet::new();
    let elsewhere = |name: &str| {
        OTHER_MEANINGS
            .iter()
            .any(|(path, what, _)| file.starts_with(path) && *what == name)
    };
    let known: Vec<ProtocolMatcher> = PROTOCOLS
        .iter()
        .filter(|protocol| {
            let own = format!("crates/plimsoll-protocols/src/{}", protocol.folder);
            let beneath = file.strip_prefix(own.as_str());
            !beneath.is_some_and(|rest| rest.starts_with(['/', '.'])) && !elsewhere(protocol.folder)
        })
        .map(|protocol| ProtocolMatcher {
            protocol,
            words: protocol
                .words
                .iter()
                .copied()
                .filter(|word| !elsewhere(word))
                .collect(),
        })
        .collect();
    if PROTOCOL_NEUTRAL_FILES
        .iter()
        .any(|path| file.starts_with(path))
    {
        return found;
    }
    collect_places(tokens, &known, &mut found);
    found
}

/// Looks for a protocol in one file.
struct ProtocolMatcher {
    protocol: &'static Protocol,
    words: Vec<&'static str>,
}

fn collect_places(
    tokens: TokenStream,
    known: &[ProtocolMatcher],
    found: &mut BTreeSet<(usize, &'static str)>,
) {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Punct(mark) if mark.as_char() == '#' => {
                // `#![…]` is an attribute, too.
                tokens.next_if(
                    |next| matches!(next, TokenTree::Punct(mark) if mark.as_char() == '!'),
                );
                let Some(TokenTree::Group(attribute)) =
                    tokens.next_if(|next| matches!(next, TokenTree::Group(_)))
                else {
                    continue;
                };
                let text = attribute.stream().to_string();
                if text.starts_with("doc") {
                    continue;
                }
                if text.starts_with("cfg") && text.contains("test") && !text.contains("not") {
                    // A test-only item is skipped up to its block or semicolon.
                    for next in tokens.by_ref() {
                        match next {
                            TokenTree::Group(block) if block.delimiter() == Delimiter::Brace => {
                                break;
                            }
                            TokenTree::Punct(mark) if mark.as_char() == ';' => break,
                            _ => {}
                        }
                    }
                    continue;
                }
                collect_places(attribute.stream(), known, found);
            }
            TokenTree::Group(group) => collect_places(group.stream(), known, found),
            TokenTree::Ident(ident) => {
                let name = ident.to_string();
                let line = ident.span().start().line;
                let words = words_of(&name);
                for ProtocolMatcher {
                    protocol,
                    words: naming,
                } in known
                {
                    if !ATOMIC_METHODS.contains(&name.as_str())
                        && words.iter().any(|word| naming.contains(&word.as_str()))
                    {
                        found.insert((line, protocol.folder));
                    }
                }
            }
            TokenTree::Literal(literal) => {
                let text = literal.to_string();
                let line = literal.span().start().line;
                for known in known.iter().filter(|_| text.contains('"')) {
                    if is_named_in(known, &text.to_lowercase()) {
                        found.insert((line, known.protocol.folder));
                    }
                }
            }
            TokenTree::Punct(_) => {}
        }
    }
}

/// Splits `HttpVersion` and `http_version` into http and version. Digits at a word's end are
/// dropped.
pub(crate) fn words_of(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    for c in name.chars() {
        if c == '_' || c.is_ascii_uppercase() {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| c.is_ascii_alphabetic()) {
            word.push(c.to_ascii_lowercase());
        }
    }
    // `GRPC` is one word.
    if name.chars().all(|c| !c.is_ascii_lowercase()) {
        words = name.to_lowercase().split('_').map(str::to_owned).collect();
    }
    words
}

fn is_named_in(known: &ProtocolMatcher, text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    known.words.iter().any(|word| {
        text.match_indices(word).any(|(at, _)| {
            let (before, after) = (&text[..at], &text[at + word.len()..]);
            let is_word = !before.ends_with(is_part) && !after.starts_with(is_part);
            let is_named = before.ends_with("call.") || after.starts_with("://");
            let is_all = before.ends_with('"') && after.starts_with('"');
            is_word && (!known.protocol.is_english || is_named || is_all)
        })
    })
}

/// Returns the places of all crates' sources, one per line: `FILE:LINE: PROTOCOL`.
fn places_by_crate() -> BTreeMap<String, Vec<String>> {
    let mut by_crate: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for Source { file, text, .. } in sources().iter().filter(|source| !source.is_test) {
        let tokens: TokenStream = text.parse().expect("it compiles");
        let all = by_crate.entry(crate_of(file).to_owned()).or_default();
        for (line, protocol) in places_in(file, tokens) {
            all.push(format!("{file}:{line}: {protocol}"));
        }
    }
    by_crate
}

#[test]
fn protocol_names_stay_in_own_folders() {
    Ratchet::read("protocol names").hold(&places_by_crate());
}

#[test]
fn every_protocol_is_checked() {
    for source in sources() {
        let path = source.file.strip_prefix("crates/plimsoll-protocols/src/");
        if let Some(folder) = path.and_then(|path| path.strip_suffix("/driver.rs")) {
            assert!(
                PROTOCOLS.iter().any(|protocol| protocol.folder == folder),
                "{folder} has a driver: add the words that name it to PROTOCOLS in tests/tidy/protocols.rs"
            );
        }
    }
}

#[test]
fn protocol_names_exclude_plain_words() {
    let found = |file: &str, text: &str| -> Vec<(usize, &'static str)> {
        let tokens = text.parse().expect("Rust");
        places_in(file, tokens).into_iter().collect()
    };
    let file = "crates/plimsoll-model/src/x.rs";
    for wrong in [
        "use plimsoll_protocols::hold::target;",
        "enum Call { Hold }",
        "fn f(c: C) { match c { C::Hold(_) => {} } }",
        "const KEY: &str = \"call.hold.message\";",
        "const URL: &str = \"hold://HOST\";",
        "fn f() { println!(\"hold\") }",
        "fn hold_arrivals() {}",
        "#[arg(long = \"hold\")] struct A;",
    ] {
        assert_eq!(found(file, wrong), [(1, "hold")], "{wrong}");
        let own = "crates/plimsoll-protocols/src/hold/x.rs";
        assert_eq!(found(own, wrong), [], "{wrong}");
    }
    for right in [
        "/// Hold the line: call.hold\nfn threshold() {}",
        "const WHY: &str = \"0 connections hold nothing\";",
        "fn f(n: &AtomicU64) { n.fetch_add(1, Relaxed); }",
        "#[cfg(test)] mod tests { use crate::grpc; }",
        "#[cfg(test)] use crate::grpc;",
    ] {
        assert_eq!(found(file, right), [], "{right}");
    }
    assert_eq!(
        found(file, "\n\nuse a::{grpc, B};\nstatic GRPC: u8 = 0;"),
        [(3, "grpc"), (4, "grpc")]
    );
    assert_eq!(found(file, "struct Http2Call;"), [(1, "http")]);
    // The word stack does not name a protocol there, but a session does.
    let stack = "crates/plimsoll/src/commands/stack.rs";
    assert_eq!(found(stack, "fn sessions() {}"), []);
    assert_eq!(
        found(stack, "use plimsoll_protocols::session::QueryFlags;"),
        [(1, "session")]
    );
    // A TLS session.
    assert_eq!(
        found("crates/plimsoll-engine/src/tls.rs", "fn session() {}"),
        []
    );
}
