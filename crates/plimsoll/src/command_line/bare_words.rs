//! Translates lines whose first word is no command of Plimsoll although the rest says what is meant: an address without
//! a scheme, a verb such as `bench` with a URL, and a URL where a plan is expected.

use std::ffi::OsString;

use plimsoll_protocols::registry::{self, COMMAND_ENTRIES, CommandEntry};

use crate::command_line::possible_translations::find_plimsoll_flag;
use crate::command_line::synonyms::command_for_address;
use crate::commands;
use crate::failure::Failure;

/// Verbs with which other tools, or wrappers of them, begin a load.
const LOAD_VERBS: [&str; 12] = [
    "bench",
    "benchmark",
    "test",
    "load",
    "stress",
    "attack",
    "hit",
    "perf",
    "measure",
    "loadtest",
    "load-test",
    "blast",
];

/// Commands with which other tools begin a project.
const PROJECT_VERBS: [&str; 3] = ["init", "new", "scaffold"];

/// Subcommands of other tools that were typed without the tool's name, with a flag that only this tool has.
const NAMELESS_SUBCOMMANDS: [(&str, &[&str], &str); 2] = [
    ("profile", &["-m", "--model"], "aiperf"),
    ("load", &["-qps", "-ping", "-content-type"], "fortio"),
];

/// Flags that only a connection over TLS has.
const TLS_FLAGS: [&str; 5] = ["--ca", "--cert", "--key", "--server-name", "--insecure"];

/// Translates a line; `None` if it begins with a command of Plimsoll, or with an unknown word. `words` does not include
/// the program's name.
///
/// # Errors
/// When the line would begin a project: a plan is written by a load.
pub(crate) fn translate(words: &[OsString]) -> Result<Option<Vec<OsString>>, Failure> {
    let texts = words
        .iter()
        .map(|word| word.to_str())
        .collect::<Option<Vec<&str>>>();
    let Some((first, rest)) = texts.as_deref().and_then(<[&str]>::split_first) else {
        return Ok(None);
    };
    let line = |command: &str, rest: &[&str]| {
        let command = std::iter::once(command);
        Some(
            command
                .chain(rest.iter().copied())
                .map(OsString::from)
                .collect(),
        )
    };
    if let Some(entry) = find_entry(first) {
        if let Some(ours) = move_method_out(entry, rest) {
            let ours: Vec<&str> = ours.iter().map(String::as_str).collect();
            return Ok(line(first, &ours));
        }
        return Ok(move_query_forward(entry, rest).map(|rest| {
            let rest = rest.into_iter().map(OsString::from);
            std::iter::once(OsString::from(first)).chain(rest).collect()
        }));
    }
    let nameless = NAMELESS_SUBCOMMANDS.iter().find(|(subcommand, flags, _)| {
        first == subcommand && rest.iter().any(|word| flags.contains(word))
    });
    if let Some((_, _, tool)) = nameless {
        return Ok(line(tool, texts.as_deref().unwrap_or_default()));
    }
    if !first.contains("://")
        && let Some(command) = command_for_address(first)
    {
        return Ok(line(command, texts.as_deref().unwrap_or_default()));
    }
    let is_verb = LOAD_VERBS.contains(first);
    if is_verb && rest.first().is_some_and(|word| find_entry(word).is_some()) {
        return Ok(line(rest[0], &rest[1..]));
    }
    let is_run = *first == "run" && names_no_plan(words, rest);
    if is_verb || is_run {
        let command = rest.iter().find_map(|word| command_for_address(word));
        return Ok(command.and_then(|command| line(command, rest)));
    }
    if PROJECT_VERBS.contains(first) {
        let command = registry::command_for_bare_address();
        return Err(Failure::usage(
            format_args!("there is no command `{first}`: any load writes its plan"),
            &format!("for example: plimsoll {command} URL --rate 100/s --save-plan plan.toml"),
        ));
    }
    Ok(None)
}

/// Returns whether the words after `run` have a URL as a target, and no plan. `words` includes `run`.
fn names_no_plan(words: &[OsString], rest: &[&str]) -> bool {
    let root = commands::command_for_words(&words[..1]);
    let Some(run) = root.find_subcommand("run") else {
        return false;
    };
    let takes_value = |flag: &str| {
        let own = find_plimsoll_flag(run, flag).or_else(|| find_plimsoll_flag(&root, flag));
        own.is_some_and(|own| own.takes_value)
    };
    let mut has_url = false;
    for (at, word) in rest.iter().enumerate() {
        let is_value = at > 0 && rest[at - 1].starts_with('-') && takes_value(rest[at - 1]);
        if is_value || word.starts_with('-') {
            continue;
        }
        if word.ends_with(".toml") {
            return false;
        }
        has_url |= word.contains("://");
    }
    has_url
}

/// Moves a method that is written as the path of a target, `URL/PACKAGE.SERVICE/METHOD`, to a flag; `None` if there is
/// none, or the line has a method. Only servers that can be asked for their methods are called by them.
fn move_method_out(entry: &CommandEntry, words: &[&str]) -> Option<Vec<String>> {
    const METHOD_FLAGS: [&str; 4] = ["m", "method", "call", "rpc"];
    let has_method = words.iter().any(|word| {
        let flag = word.split('=').next().unwrap_or(word);
        flag.starts_with('-') && METHOD_FLAGS.contains(&flag.trim_start_matches('-'))
    });
    if entry.server_queries.is_empty() || has_method {
        return None;
    }
    let target = *words.first()?;
    let authority_at = target.find("://")? + "://".len();
    let path_at = authority_at + target[authority_at..].find('/')?;
    let method = &target[path_at + 1..];
    let (service, name) = method.split_once('/')?;
    if !service.contains('.') || name.is_empty() || name.contains(['/', '?']) {
        return None;
    }
    let mut ours = vec![
        target[..path_at].to_owned(),
        "-m".to_owned(),
        method.to_owned(),
    ];
    ours.extend(words[1..].iter().map(|word| (*word).to_owned()));
    Some(ours)
}

fn find_entry(name: &str) -> Option<&'static CommandEntry> {
    COMMAND_ENTRIES.iter().find(|entry| entry.name == name)
}

/// Moves a query of a server, such as `list`, in front of the address, and adds a scheme to an address without one;
/// `None` if the words hold no query, or need no change.
fn move_query_forward(entry: &CommandEntry, words: &[&str]) -> Option<Vec<String>> {
    let is_query = |word: &&str| {
        // Other tools have a flag for it.
        let name = word.strip_prefix("--").unwrap_or(word);
        entry.server_queries.iter().any(|query| query.name == name)
    };
    let at = words.iter().position(is_query)?;
    let is_flag = words[at].starts_with('-');
    // Flags before the query may take it as their value.
    let is_value = at > 1 || words[..at].iter().any(|word| word.starts_with('-'));
    if is_value && !is_flag {
        return None;
    }
    let mut moved: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    let query = moved.remove(at);
    moved.insert(0, query.trim_start_matches('-').to_owned());
    let is_address = |word: &String| command_for_address(word).is_some();
    if is_flag && let Some(at) = moved.iter().skip(1).position(is_address) {
        let address = moved.remove(at + 1);
        moved.insert(1, address);
    }
    let is_secured = words.iter().any(|word| TLS_FLAGS.contains(word));
    let schemes = entry.schemes();
    if let Some(word) = moved.get_mut(1) {
        let port = word.rsplit_once(':').map(|(_, port)| port);
        let has_port = port.is_some_and(|port| port.parse::<u16>().is_ok());
        if has_port && !word.contains("://") && !word.starts_with('-') {
            let secured = schemes
                .secured
                .filter(|_| is_secured || word.ends_with(":443"));
            *word = format!("{}://{word}", secured.unwrap_or(schemes.plain));
        }
    }
    let is_changed = is_flag || moved.iter().zip(words).any(|(moved, typed)| moved != typed);
    is_changed.then_some(moved)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(line: &str) -> Option<String> {
        plimsoll_protocols::registry::register_protocols();
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let ours = translate(&words).unwrap_or_else(|failure| panic!("{line}: {failure}"))?;
        let ours = ours.iter().map(|word| word.to_string_lossy());
        Some(ours.collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn verbs_and_addresses_choose_their_command() {
        for (line, ours) in [
            ("a.test:81/b -n 5", Some("http a.test:81/b -n 5")),
            (
                "bench http://a.test/ -n 5",
                Some("http http://a.test/ -n 5"),
            ),
            (
                "attack -n 5 grpc://a.test:1",
                Some("grpc -n 5 grpc://a.test:1"),
            ),
            ("stress grpc a.test:1", Some("grpc a.test:1")),
            (
                "run http://a.test/ --rate 5/s",
                Some("http http://a.test/ --rate 5/s"),
            ),
            ("run plan.toml --target http://a.test/", None),
            (
                "profile -m llama --url a.test:1",
                Some("aiperf profile -m llama --url a.test:1"),
            ),
            (
                "load -qps 5 http://a.test/",
                Some("fortio load -qps 5 http://a.test/"),
            ),
            ("grpc a.test:1 list", Some("grpc list grpc://a.test:1")),
            (
                "grpc list a.test:1 --ca ca.crt",
                Some("grpc list grpcs://a.test:1 --ca ca.crt"),
            ),
            ("grpc a.test:1 --list", Some("grpc list grpc://a.test:1")),
            (
                "grpc --describe a.B a.test:1",
                Some("grpc describe grpc://a.test:1 a.B"),
            ),
            (
                "grpc grpc://a.test:1/a.B/C -d {} -n 5",
                Some("grpc grpc://a.test:1 -m a.B/C -d {} -n 5"),
            ),
            (
                "run --vus 5 http://a.test/",
                Some("http --vus 5 http://a.test/"),
            ),
            ("run --target http://a.test/ plan.toml", None),
            ("run plan.toml --target http://a.test/", None),
            ("grpc list grpc://a.test:1", None),
            ("grpc list grpc://a.test:1 --authority b.test:443", None),
            ("grpc a.test:1 -m list", None),
            ("check", None),
        ] {
            assert_eq!(translated(line).as_deref(), ours, "{line}");
        }
        let failure = translate(&["init".into()]).expect_err("no command");
        assert!(
            failure.to_string().contains("--save-plan plan.toml"),
            "{failure}"
        );
    }
}
