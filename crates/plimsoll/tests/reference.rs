//! The pages that list every plan key and every flag are made from the definitions of both:
//! `SNAPSHOTS=overwrite cargo test -p plimsoll --test reference` writes them anew.

mod support;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use snapbox::{assert_data_eq, file};
use support::Place;
use syn::{Attribute, Expr, Fields, Item, Lit, Meta};

/// The sections of a plan: name, the file that defines it, the structure.
const SECTIONS: [(&str, &str, &str); 17] = [
    ("", "plimsoll-model/src/spec.rs", "Spec"),
    ("tls", "plimsoll-model/src/spec.rs", "TlsSpec"),
    ("rows", "plimsoll-model/src/spec.rs", "RowsSpec"),
    ("load", "plimsoll-model/src/spec.rs", "LoadSpec"),
    ("load.rate", "plimsoll-model/src/spec.rs", "RampSpec"),
    ("[load.steps]", "plimsoll-model/src/spec.rs", "StepSpec"),
    (
        "call.grpc",
        "plimsoll-protocols/src/grpc/section.rs",
        "GrpcSpec",
    ),
    (
        "call.http",
        "plimsoll-protocols/src/http/section.rs",
        "HttpSpec",
    ),
    (
        "call.http.websocket",
        "plimsoll-protocols/src/http/section.rs",
        "WebSocketSpec",
    ),
    (
        "call.session",
        "plimsoll-protocols/src/session/section.rs",
        "SessionSection",
    ),
    (
        "call.fetch",
        "plimsoll-protocols/src/fetch/options.rs",
        "FetchOptions",
    ),
    (
        "call.bolt",
        "plimsoll-protocols/src/bolt/options.rs",
        "BoltOptions",
    ),
    (
        "call.hold",
        "plimsoll-protocols/src/hold/options.rs",
        "HoldOptions",
    ),
    (
        "call.plugin",
        "plimsoll-protocols/src/plugin/options.rs",
        "PluginOptions",
    ),
    ("watch", "plimsoll-model/src/spec.rs", "WatchSpec"),
    ("find", "plimsoll-model/src/spec/find.rs", "FindSpec"),
    ("ladder", "plimsoll-model/src/spec/ladder.rs", "LadderSpec"),
];

#[test]
fn every_plan_key_is_listed() {
    let mut page = "# Plan keys\n\nEvery key of a plan, by section. This page is made from the definitions that read plans. \
        Times, rates and sizes have units (`\"5ms\"`, `\"1000/s\"`, `\"4MiB\"`). `plimsoll run PLAN --dry-run` prints a plan \
        with every default filled in.\n"
        .to_owned();
    for (section, file, structure) in SECTIONS {
        let (about, keys) = definition(file, structure);
        let heading = match section {
            "" => "At the top".to_owned(),
            section => format!("`[{section}]`"),
        };
        let _ = write!(
            page,
            "\n## {heading}\n\n{about}\n\n| key | means |\n|---|---|\n"
        );
        assert!(!keys.is_empty(), "{structure}");
        for (key, text) in keys {
            let _ = writeln!(page, "| `{key}` | {text} |");
        }
    }
    assert_data_eq!(page, file!["../../../docs/plan-keys.md"].raw());
}

/// What is written above a structure, and its keys with what is written above each.
fn definition(file: &str, name: &str) -> (String, Vec<(String, String)>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
    let source = fs::read_to_string(&path).expect("a source file");
    let parsed = syn::parse_file(&source).expect("Rust");
    let found = parsed.items.into_iter().find_map(|item| match item {
        Item::Struct(item) if item.ident == name => Some(item),
        _ => None,
    });
    let item = found.unwrap_or_else(|| panic!("no {name} in {file}"));
    let Fields::Named(fields) = &item.fields else {
        panic!("{name} has no named fields");
    };
    let keys = fields.named.iter().map(|field| {
        let key = field.ident.as_ref().expect("a name").to_string();
        let mut text = documentation(&field.attrs);
        if text.is_empty() {
            of_section(&key).clone_into(&mut text);
        }
        let flat = field.attrs.iter().any(|a| is_serde(a, "flatten"));
        (
            if flat {
                "…".to_owned()
            } else {
                key.trim_start_matches("r#").to_owned()
            },
            text,
        )
    });
    (documentation(&item.attrs), keys.collect())
}

/// What a section is about that says so below.
fn of_section(key: &str) -> &'static str {
    match key {
        "call" => "a section: what is called, below by protocol",
        "load" => "a section: how the load arrives",
        "tls" => "a section: how the link is secured",
        "watch" => "a section: the server to watch",
        _ => "a section, see below",
    }
}

fn is_serde(attribute: &Attribute, word: &str) -> bool {
    attribute.path().is_ident("serde")
        && matches!(&attribute.meta, Meta::List(list) if list.tokens.to_string().contains(word))
}

/// The lines of a `///` comment as one, with what would end a cell of a table escaped.
fn documentation(attributes: &[Attribute]) -> String {
    let lines = attributes
        .iter()
        .filter_map(|attribute| match &attribute.meta {
            Meta::NameValue(pair) if pair.path.is_ident("doc") => match &pair.value {
                Expr::Lit(literal) => match &literal.lit {
                    Lit::Str(text) => Some(text.value().trim().to_owned()),
                    _ => None,
                },
                _ => None,
            },
            _ => None,
        });
    lines
        .collect::<Vec<_>>()
        .join(" ")
        .trim()
        .replace('|', "\\|")
}

/// Commands that put load, and those that read and serve what it leaves.
const COMMANDS: [&str; 25] = [
    "run",
    "find",
    "ladder",
    "sweep",
    "grpc",
    "http",
    "llm",
    "ws",
    "bolt",
    "fetch",
    "hold",
    "plugin",
    "session",
    "report",
    "compare",
    "view",
    "import",
    "merge",
    "watch",
    "check",
    "certs",
    "payload",
    "slurm",
    "kubernetes",
    "completions",
];

#[test]
fn every_flag_is_listed() {
    let place = Place::new();
    let mut page = "# Flags\n\nEvery flag, by command: what `plimsoll COMMAND --help` prints. This page is made from it. \
        The variable `PLIMSOLL_` with the flag's name in capitals and `_` for `-` stands for a flag \
        ([environment variables](environment.md)); it is left out here. `plimsoll serve`, `relay` and `stack` have \
        commands of their own: `plimsoll serve NAME --help`.\n"
        .to_owned();
    for command in COMMANDS {
        let help = place.expect(0, &[command, "--help"]);
        let _ = write!(
            page,
            "\n## {command}\n\n```text\n{}\n```\n",
            without_variables(&help)
        );
    }
    assert_data_eq!(page, file!["../../../docs/flags.md"].raw());
}

/// The help from its usage on, without the lines on variables, and without what all commands have in common.
fn without_variables(help: &str) -> String {
    let from = help.find("Usage: ").unwrap_or(0);
    let lines = help[from..].lines().filter(|line| {
        let line = line.trim();
        !(line.starts_with("[env: ") && line.ends_with(']'))
    });
    let mut text = String::new();
    let mut blank = false;
    for line in lines {
        // One blank line stands for several.
        if line.trim().is_empty() && std::mem::replace(&mut blank, true) {
            continue;
        }
        blank = line.trim().is_empty();
        text += line.trim_end();
        text.push('\n');
    }
    let end = text
        .find("\nMessages:")
        .or_else(|| text.find("\nVariables:"));
    text[..end.unwrap_or(text.len())].trim_end().to_owned()
}
