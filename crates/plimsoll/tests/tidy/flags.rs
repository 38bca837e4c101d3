//! Flags named in messages exist: a flag in a text of the program belongs to some command, and in a
//! command's own file it belongs to that command or to one that the text names.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use proc_macro2::{TokenStream, TokenTree};

use crate::sources::{Source, sources};

/// Flags that are no advice to users: the beginning of the files that name them, and the flags.
const NOT_OUR_FLAGS: &[(&str, &[&str])] = &[
    // Flags of redis-server, protoc, cargo, sbatch, srun and kubectl.
    (
        "crates/plimsoll-stack/src/sessions.rs",
        &["--bind", "--save", "--appendonly", "--maxclients"],
    ),
    (
        "crates/plimsoll/src/launching/",
        &[
            "--all-pods",
            "--cpus-per-task",
            "--job-name",
            "--kill-on-bad-exit",
            "--ntasks",
            "--ntasks-per-node",
            "--tail",
        ],
    ),
    (
        "crates/plimsoll/src/commands/report.rs",
        &["--path", "--features"],
    ),
    (
        "crates/plimsoll-protocols/src/grpc/resolve.rs",
        &["--descriptor_set_out", "--include_imports"],
    ),
    (
        "crates/plimsoll-protocols/src/grpc/schema.rs",
        &["--include_imports"],
    ),
    // Flags of Caddy, Envoy and NGINX's build.
    (
        "crates/plimsoll/src/proxies/",
        &[
            "--adapter",
            "--concurrency",
            "--disable-hot-restart",
            "--log-level",
            "--with-stream",
        ],
    ),
    // Flags of git.
    (
        "crates/plimsoll/src/tracking/commits.rs",
        &[
            "--all",
            "--bisect-all",
            "--detach",
            "--directory",
            "--end-of-options",
            "--exclude-standard",
            "--format",
            "--git-path",
            "--is-ancestor",
            "--not",
            "--others",
            "--porcelain",
            "--show-prefix",
            "--show-toplevel",
            "--unshallow",
            "--untracked-files",
            "--verify",
        ],
    ),
    // Flags of perf.
    (
        "crates/plimsoll/src/load/profiler.rs",
        &[
            "--call-graph",
            "--clockid",
            "--control",
            "--delay",
            "--event",
            "--fields",
            "--freq",
            "--input",
            "--max-size",
            "--mmap-pages",
            "--no-buildid-cache",
            "--no-inline",
            "--output",
            "--time",
        ],
    ),
    // Flags that the program passes to its own processes.
    (
        "crates/plimsoll/src/commands/shard.rs",
        &["--index", "--of", "--origin"],
    ),
    (
        "crates/plimsoll/src/load/multiprocess/supervisor.rs",
        &["--index", "--of", "--origin"],
    ),
    (
        "crates/plimsoll/src/commands/serve/",
        &["--tickets-from-input"],
    ),
    (
        "crates/plimsoll/src/commands/mcp/",
        &[
            "--budget",
            "--connections",
            "--dry-run",
            "--duration",
            "--json",
            "--most",
            "--objective",
            "--out",
            "--precision",
            "--rate",
            "--target",
            "--warmup",
        ],
    ),
    // Flags of whichever command is started next.
    (
        "crates/plimsoll/src/commands/certs.rs",
        &[
            "--ca",
            "--cert",
            "--crl",
            "--key",
            "--tls-cert",
            "--tls-client-ca",
            "--tls-client-crl",
            "--tls-key",
        ],
    ),
    ("crates/plimsoll/src/commands/report.rs", &["--requests"]),
    // An example of `compare --live`, which has the flags of a ladder.
    (
        "crates/plimsoll/src/commands/compare.rs",
        &["--rate", "--fail-if"],
    ),
    // Former names of flags.
    ("crates/plimsoll/src/command_line/arguments.rs", &["--turn"]),
    // Flags that users know from other tools.
    (
        "crates/plimsoll/src/command_line/foreign_words.rs",
        &["--no-of-clients", "--qps", "--rps"],
    ),
    (
        "crates/plimsoll/src/command_line/quoting.rs",
        &["--body", "--data-raw"],
    ),
    (
        "crates/plimsoll-protocols/src/http/foreign_lines",
        &[
            "--alpn-list",
            "--api-key",
            "--backend",
            "--benchmark",
            "--burst-delay",
            "--connect-to",
            "--custom-dataset-type",
            "--data-raw",
            "--data-urlencode",
            "--dataset-name",
            "--endpoint-type",
            "--form-string",
            "--output-format",
            "--public-dataset",
            "--rand-regex-url",
            "--redirects",
            "--request-rate",
            "--request-rate-mode",
            "--stage",
            "--tls-max",
        ],
    ),
    (
        "crates/plimsoll-protocols/src/grpc/foreign_lines",
        &[
            "--call",
            "--config",
            "--load-end",
            "--load-step",
            "--load-step-duration",
        ],
    ),
    // The flag that follows redirects is left out where a path varies.
    (
        "crates/plimsoll-protocols/src/interface/foreign/command_lines.rs",
        &["--redirects"],
    ),
    // A flag of HTTP that is no key of a plan.
    (
        "crates/plimsoll-protocols/src/http/redirects.rs",
        &["--redirects"],
    ),
    (
        "crates/plimsoll/src/commands/redirects.rs",
        &["--redirects"],
    ),
    // The common beginning of --tls-cert and --tls-key.
    ("crates/plimsoll-protocols/src/fetch/openssl.rs", &["--tls"]),
    (
        "crates/plimsoll-protocols/src/http/flags.rs",
        &["--http1.1", "--http2", "--http2-prior-knowledge"],
    ),
];

/// Returns the flags of each command, with their dashes; a subcommand is written `serve llm`.
fn flags_by_command() -> BTreeMap<String, BTreeSet<String>> {
    let mut all = BTreeMap::new();
    add(&[], &mut all);
    all
}

fn add(path: &[&str], all: &mut BTreeMap<String, BTreeSet<String>>) {
    let shown = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(path)
        .arg("--help")
        .output()
        .expect("plimsoll runs");
    let help = String::from_utf8(shown.stdout).expect("text");
    let words = |line: &str| {
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let mut flags = BTreeSet::new();
    let mut commands = Vec::new();
    let mut in_commands = false;
    for line in help.lines() {
        let indented = line.starts_with(' ');
        if !indented && !line.is_empty() {
            in_commands = line.starts_with("Commands:");
        }
        if in_commands && line.starts_with("  ") && !line.starts_with("   ") {
            commands.extend(words(line).into_iter().next());
        }
        let trimmed = line.trim_start();
        if indented && trimmed.starts_with('-') {
            let named = words(trimmed);
            let named = named
                .iter()
                .take(2)
                .map(|word| {
                    word.split_once("[=")
                        .map_or(word.as_str(), |(flag, _)| flag)
                })
                .map(|word| word.trim_end_matches([',', '.']));
            flags.extend(named.filter(|w| w.starts_with("--")).map(str::to_owned));
        }
    }
    all.insert(path.join(" "), flags);
    for command in commands.iter().filter(|name| *name != "help") {
        add(&[path, &[command.as_str()]].concat(), all);
    }
}

/// Returns the string literals of a source file, without those of tests and comments.
fn string_literals(source: &Source) -> Vec<String> {
    let (text, _) = source
        .text
        .split_once("#[cfg(test)]\nmod tests {")
        .unwrap_or((&source.text, ""));
    let mut found = Vec::new();
    collect_literals(text.parse().expect("it compiles"), &mut found);
    found
}

fn collect_literals(tokens: TokenStream, found: &mut Vec<String>) {
    for token in tokens {
        match token {
            TokenTree::Group(group) => {
                // A doc comment is parsed as `[doc = …]`.
                let mut first = group.stream().into_iter();
                if !matches!(first.next(), Some(TokenTree::Ident(name)) if name == "doc") {
                    collect_literals(group.stream(), found);
                }
            }
            TokenTree::Literal(literal) => {
                if let Ok(text) = syn::parse_str::<syn::LitStr>(&literal.to_string()) {
                    found.push(text.value());
                }
            }
            TokenTree::Ident(_) | TokenTree::Punct(_) => {}
        }
    }
}

/// Returns the flags that a text names, with their dashes.
fn flags_in(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && !"-._".contains(c));
    let words = words.map(|word| word.trim_end_matches(['.', '-']));
    words.filter(|word| {
        let name = word.strip_prefix("--");
        name.is_some_and(|name| name.starts_with(|c: char| c.is_ascii_lowercase()))
    })
}

#[test]
fn flags_named_in_messages_exist() {
    let flags = flags_by_command();
    let mut wrong = Vec::new();
    for source in sources().iter().filter(|source| !source.is_test) {
        let own = source.file.strip_prefix("crates/plimsoll/src/commands/");
        let own = own.and_then(|path| path.split(['/', '.']).next());
        for text in string_literals(source) {
            for flag in flags_in(&text) {
                let mut having = flags
                    .iter()
                    .filter(|(_, flags)| flags.contains(flag))
                    .map(|(command, _)| command);
                let is_named = match own.filter(|own| flags.contains_key(*own)) {
                    None => having.next().is_some(),
                    Some(own) => having.any(|command| {
                        command.split(' ').next() == Some(own)
                            || text.contains(&format!("plimsoll {command}"))
                    }),
                };
                let is_elsewhere = NOT_OUR_FLAGS
                    .iter()
                    .any(|(file, flags)| source.file.starts_with(file) && flags.contains(&flag));
                if !is_named && !is_elsewhere {
                    wrong.push(format!("{}: {flag} in {text:?}", source.file));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
