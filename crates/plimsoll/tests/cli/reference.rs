//! The pages that list every plan key and every flag are generated from their definitions:
//! `SNAPSHOTS=overwrite cargo test -p plimsoll --test cli reference` writes them.

use crate::support;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use plimsoll_model::spec::{read, sections};
use snapbox::{assert_data_eq, file};
use support::Place;
use syn::{Attribute, Expr, Item, Lit, LitStr, Meta};

/// The sections of a plan: heading, defining file, structure.
const SECTIONS: [(&str, &str, &str); 30] = [
    ("", "plimsoll-model/src/spec.rs", "Spec"),
    ("tls", "plimsoll-model/src/spec/tls.rs", "TlsSpec"),
    ("rows", "plimsoll-model/src/spec.rs", "RowsSpec"),
    ("load", "plimsoll-model/src/spec.rs", "LoadSpec"),
    ("load.rate", "plimsoll-model/src/spec.rs", "RampSpec"),
    (
        "load.arrivals",
        "plimsoll-model/src/spec/spacing.rs",
        "ArrivalsTable",
    ),
    ("[load.steps]", "plimsoll-model/src/spec.rs", "StepSpec"),
    (
        "[steps]",
        "plimsoll-protocols/src/journey/step_spec.rs",
        "StepControlSpec",
    ),
    (
        "steps.take.NAME",
        "plimsoll-protocols/src/journey/step_spec.rs",
        "TakeTable",
    ),
    (
        "steps.loop",
        "plimsoll-protocols/src/journey/step_spec.rs",
        "LoopTable",
    ),
    (
        "call.grpc",
        "plimsoll-protocols/src/grpc/section.rs",
        "GrpcSpec",
    ),
    (
        "call.grpc.message_binary",
        "plimsoll-protocols/src/grpc/binary.rs",
        "BinaryTable",
    ),
    (
        "call.grpc.metadata.NAME",
        "plimsoll-model/src/spec/field_value.rs",
        "MetadataSource",
    ),
    (
        "call.http",
        "plimsoll-protocols/src/http/section.rs",
        "HttpSpec",
    ),
    (
        "[call.http.form]",
        "plimsoll-protocols/src/http/section.rs",
        "FormPartSpec",
    ),
    (
        "call.http.websocket",
        "plimsoll-protocols/src/http/section.rs",
        "WebSocketSpec",
    ),
    (
        "[call.http.websocket.script]",
        "plimsoll-protocols/src/http/section.rs",
        "FrameSpec",
    ),
    (
        "call.http.conversation",
        "plimsoll-protocols/src/http/section.rs",
        "ConversationSpec",
    ),
    (
        "call.http.goodput",
        "plimsoll-model/src/spec/goodput.rs",
        "GoodputSpec",
    ),
    (
        "call.session",
        "plimsoll-protocols/src/session/section.rs",
        "SessionSection",
    ),
    (
        "call.session.goodput",
        "plimsoll-model/src/spec/goodput.rs",
        "GoodputSpec",
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
    ("watch", "plimsoll-model/src/spec/watch.rs", "WatchSpec"),
    ("find", "plimsoll-model/src/spec/find.rs", "FindSpec"),
    ("ladder", "plimsoll-model/src/spec/ladder.rs", "LadderSpec"),
    (
        "[ladder.rungs]",
        "plimsoll-model/src/spec/ladder.rs",
        "RungTable",
    ),
    (
        "lanes.NAME",
        "plimsoll-model/src/spec/lane_table.rs",
        "LaneTable",
    ),
];

/// The keys of steps over WebSocket, which stand in the table of the step: heading, defining file, structure.
const SOCKET_STEPS: [(&str, &str, &str); 3] = [
    (
        "`[[steps]]` over WebSocket",
        "plimsoll-protocols/src/http/socket_steps/section.rs",
        "SocketStepSpec",
    ),
    (
        "`[steps.until]`, `[steps.error]`, `[steps.expect]` over WebSocket",
        "plimsoll-protocols/src/http/socket_steps/section.rs",
        "MessagePartSpec",
    ),
    (
        "`[steps.protobuf]` over WebSocket",
        "plimsoll-protocols/src/journey/message_types.rs",
        "MessageTypeSpec",
    ),
];

/// Appends the keys of a structure to the page.
fn add_keys(page: &mut String, heading: &str, file: &str, structure: &str) {
    let (about, keys) = documented_struct(file, structure);
    let _ = write!(
        page,
        "\n## {heading}\n\n{about}\n\n| key | means |\n|---|---|\n"
    );
    assert!(!about.is_empty() && !keys.is_empty(), "{structure}");
    for (key, text) in keys {
        assert!(!text.is_empty(), "{structure}.{key}");
        let _ = writeln!(page, "| `{key}` | {text} |");
    }
}

#[test]
fn every_plan_key_is_listed() {
    let mut page = "# Plan keys\n\nEvery key of a plan, by section. This page is made from the definitions that read plans. \
        Times, rates and sizes have units (`\"5ms\"`, `\"1000/s\"`, `\"4MiB\"`). `plimsoll run PLAN --dry-run` prints a plan \
        with every default filled in.\n"
        .to_owned();
    for (section, file, structure) in SECTIONS {
        let heading = match section {
            "" => "At the top".to_owned(),
            section => format!("`[{section}]`"),
        };
        add_keys(&mut page, &heading, file, structure);
        if section == "steps.take.NAME" {
            for (heading, file, structure) in SOCKET_STEPS {
                add_keys(&mut page, heading, file, structure);
            }
        }
    }
    assert_data_eq!(page, file!["../../../../docs/plan-keys.md"].raw());
}

/// Asserts that page and parser have the same keys in the same sections.
#[test]
fn parser_accepts_exactly_listed_keys() {
    plimsoll_protocols::registry::register_protocols();
    for (protocol, _) in sections() {
        let is_listed =
            |(name, ..): &(&str, &str, &str)| name.strip_prefix("call.") == Some(protocol);
        assert!(
            SECTIONS.iter().any(is_listed),
            "[call.{protocol}]: list it in SECTIONS"
        );
    }
    let of_steps = known("steps").expect("a list");
    let (_, file, structure) = SOCKET_STEPS[0];
    for (key, _) in documented_struct(file, structure).1 {
        assert!(of_steps.contains(&key), "{key}");
    }
    for (section, file, structure) in SECTIONS {
        let (_, keys) = documented_struct(file, structure);
        let listed: Vec<&str> = keys.iter().map(|(key, _)| key.as_str()).collect();
        let path = section.trim_matches(['[', ']']);
        match known(path) {
            // A step has the keys of its protocol's section as well.
            Some(known) if path == "steps" => assert_eq!(listed, known[..listed.len()]),
            Some(known) => assert_eq!(listed, known, "[{section}]"),
            // Other keys are axes, whose values are lists of anything.
            None => {
                assert!(path.starts_with("ladder"), "{path}");
                assert_eq!(listed.last(), Some(&FLATTENED_KEYS));
                let heading = section.replace(path, &format!("[{path}]"));
                let parses = |key: &str| read(&format!("{heading}\n{key} = [[[]]]")).is_ok();
                assert!(parses("an_axis"));
                let axes = listed.iter().filter(|key| parses(key));
                assert_eq!(axes.collect::<Vec<_>>(), [&FLATTENED_KEYS; 0]);
            }
        }
        // The sections of a lane are those of the plan.
        for key in listed.into_iter().filter(|_| path != "lanes.NAME") {
            let within = [path, key].join(".").trim_start_matches('.').to_owned();
            let within = [
                "call.http.steps",
                "call.grpc.steps",
                "call.bolt.steps",
                "call.plugin.steps",
                "lanes.NAME.steps",
            ]
            .iter()
            .fold(within, |within, steps| within.replace(steps, "steps"));
            for table in [within.clone(), format!("{within}.NAME")] {
                let has_section = SECTIONS.iter().any(|(name, ..)| {
                    let rest = name.trim_matches(['[', ']']).strip_prefix(&table);
                    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
                });
                let is_value = known(&table).is_none_or(|keys| keys == FIELD_VALUE);
                assert!(has_section || is_value, "no section [{table}]");
            }
        }
    }
}

/// Placeholder for the keys of a flattened map.
const FLATTENED_KEYS: &str = "…";

/// The keys of a header field or metadata entry; the section of gRPC's metadata shows them for all.
const FIELD_VALUE: [&str; 5] = ["env", "file", "basic", "command", "refresh"];

/// Returns the keys of a section as the parser lists them for an unknown key; `None` if it accepts
/// any.
fn known(path: &str) -> Option<Vec<String>> {
    let unknown = "nothing_like_it";
    let text = match path {
        "" => format!("{unknown} = 1"),
        path => format!("[{path}]\n{unknown} = 1"),
    };
    let problems = read(&text).err()?;
    let help = problems.iter().find_map(|problem| {
        let at_fault = problem.key.ends_with(unknown);
        problem.help.as_deref().filter(|_| at_fault)
    })?;
    let keys = help.strip_prefix("the keys here are ").expect("a list");
    Some(keys.split(", ").map(str::to_owned).collect())
}

/// Returns the documentation of a structure, and its keys with theirs.
fn documented_struct(file: &str, name: &str) -> (String, Vec<(String, String)>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
    let source = fs::read_to_string(&path).expect("a source file");
    let parsed = syn::parse_file(&source).expect("Rust");
    let found = parsed.items.into_iter().find_map(|item| match item {
        Item::Struct(item) if item.ident == name => Some(item),
        _ => None,
    });
    let item = found.unwrap_or_else(|| panic!("no {name} in {file}"));
    let keys = item.fields.iter().filter_map(|field| {
        let name = field.ident.as_ref().expect("a name").to_string();
        Some((key(&name, &field.attrs)?, documentation(&field.attrs)))
    });
    (documentation(&item.attrs), keys.collect())
}

/// Returns the key that serde reads into a field of this name; `None` if there is none.
fn key(name: &str, attributes: &[Attribute]) -> Option<String> {
    let mut key = Some(name.trim_start_matches("r#").to_owned());
    for attribute in attributes.iter().filter(|a| a.path().is_ident("serde")) {
        let read = attribute.parse_nested_meta(|meta| {
            let word = meta.path.require_ident()?.to_string();
            let value = match meta.value() {
                Ok(value) => value.parse::<LitStr>()?.value(),
                Err(_) => String::new(),
            };
            match word.as_str() {
                "skip" => key = None,
                "flatten" => key = Some(FLATTENED_KEYS.to_owned()),
                "rename" => key = Some(value),
                // An alias is a key's former name.
                "default" | "skip_serializing_if" | "alias" => {}
                other => return Err(meta.error(format!("`{other}` changes keys"))),
            }
            Ok(())
        });
        read.expect("attributes that this page follows");
    }
    key
}

/// Joins the lines of a `///` comment, and escapes what would end a table cell.
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
        .filter(|line| !line.is_empty())
        .collect::<Vec<_>>()
        .join(" ")
        .trim()
        .replace('|', "\\|")
}

#[test]
fn every_flag_is_listed() {
    let place = Place::new();
    let mut page = "# Flags\n\nEvery flag, by command: what `plimsoll COMMAND --help` prints. This page is made from it. \
        The variable `PLIMSOLL_` with the flag's name in capitals and `_` for `-` stands for a flag \
        ([environment variables](environment.md)); it is left out here. The flags that all commands have in common are \
        [at the end](#in-every-command).\n"
        .to_owned();
    let mut commands = subcommands(&place.expect(0, &["--help"]));
    commands.reverse();
    while let Some(command) = commands.pop() {
        let words = command.split(' ').chain(["--help"]);
        let help = place.expect(0, &words.collect::<Vec<_>>());
        for within in subcommands(&help).iter().rev() {
            commands.push(format!("{command} {within}"));
        }
        let text = without_variables(&help[help.find("Usage: ").expect("its usage")..]);
        let (text, _) = text.split_once("\nMessages:").expect("common flags");
        let _ = write!(
            page,
            "\n## {command}\n\n```text\n{}\n```\n",
            text.trim_end()
        );
    }
    let help = without_variables(&place.expect(0, &["man", "--help"]));
    let common = help.split_once("\nMessages:\n").expect("common flags").1;
    let _ = write!(
        page,
        "\n## In every command\n\n```text\n{}\n```\n",
        common.trim_end()
    );
    assert_data_eq!(page, file!["../../../../docs/flags.md"].raw());
}

/// Returns the commands that a help text lists.
fn subcommands(help: &str) -> Vec<String> {
    let listed = help
        .split_once("\nCommands:\n")
        .map_or("", |(_, rest)| rest);
    let lines = listed.lines().take_while(|line| !line.is_empty());
    // The continuation lines of a description are indented further.
    let names = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let names = names.filter(|name| !name.is_empty() && *name != "help");
    names.map(str::to_owned).collect()
}

/// Returns the help without mentions of variables and without trailing spaces.
fn without_variables(help: &str) -> String {
    let mut help = help.to_owned();
    while let Some(start) = help.find("[env:") {
        let end = help[start..].find(']').expect("a bracket") + start + 1;
        let before = help[..start].trim_end_matches([' ', '\n']).len();
        help.replace_range(before..end, "");
    }
    let mut text = String::new();
    let mut blank = false;
    for line in help.lines() {
        // Several blank lines are merged into one.
        if line.trim().is_empty() && std::mem::replace(&mut blank, true) {
            continue;
        }
        blank = line.trim().is_empty();
        text += line.trim_end();
        text.push('\n');
    }
    text
}
