use std::ffi::OsString;

use clap::error::ErrorKind;

use clap::Command;

use super::lookup::has_all_flags;
use super::*;
use crate::commands;

/// Returns the commands that put load on a target.
fn load_commands() -> Vec<Command> {
    let puts_load = |command: &Command| {
        let mut longs = command.get_arguments().filter_map(clap::Arg::get_long);
        longs.any(|long| long == "connections")
    };
    let all = commands::command();
    all.get_subcommands()
        .filter(|command| puts_load(command))
        .cloned()
        .collect()
}

#[test]
fn every_synonym_names_flags_of_a_load_command() {
    let commands = load_commands();
    assert!(
        commands.len() > 8 && SYNONYMS.len() >= 80,
        "{}",
        SYNONYMS.len()
    );
    for (theirs, ours) in SYNONYMS {
        for ours in *ours {
            let has = commands.iter().any(|command| has_all_flags(command, ours));
            assert!(has, "{theirs:?}: no command has {ours}");
        }
    }
}

/// Every suggestion for every command must be accepted by that command.
#[test]
fn suggestions_are_read_by_the_command() {
    let mut suggested = 0;
    for command in load_commands() {
        for name in SYNONYMS.iter().flat_map(|(theirs, _)| theirs.iter()) {
            let unknown = if name.len() == 1 {
                format!("-{name}")
            } else {
                format!("--{name}")
            };
            let Some(ours) = find_counterpart(&command, &unknown, &[&unknown]) else {
                continue;
            };
            let flags = values::split_tail(&ours).0;
            let words = shell_words::split(flags).expect("words of a shell");
            let begin = ["plimsoll".to_owned(), command.get_name().to_owned()];
            let line: Vec<OsString> = begin.into_iter().chain(words).map(OsString::from).collect();
            let program = commands::command_for_words(&line).ignore_errors(false);
            let read = program.try_get_matches_from(line);
            let kind = read.err().map(|error| error.kind());
            assert_ne!(
                kind,
                Some(ErrorKind::UnknownArgument),
                "{}: {ours}",
                command.get_name()
            );
            suggested += 1;
        }
    }
    assert!(suggested > 1000, "{suggested}");
}

fn said(line: &str) -> String {
    let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
    let command = commands::command();
    let error = command
        .clone()
        .try_get_matches_from(&words)
        .expect_err(line);
    add_tip(error, &command, &words).render().to_string()
}

#[test]
fn unknown_flags_are_explained_by_meaning() {
    for (line, ours) in [
        (
            "plimsoll http http://x --vus 5",
            "`--vus` of other tools is `--clients 5` here",
        ),
        (
            "plimsoll http http://x --cacert ca.pem",
            "is `--ca ca.pem` here",
        ),
        (
            "plimsoll http http://x --timeout 3s",
            "is `--deadline 3s` here",
        ),
        (
            "plimsoll http http://x --timeout=3",
            "is `--deadline 3s` here",
        ),
        (
            "plimsoll http http://x --threshold p(95)<200",
            "is `--objective 'p95 < 200ms'` here",
        ),
        (
            "plimsoll http http://x --requests 200",
            "`--requests 200` of other tools is `--calls 200` here",
        ),
        (
            "plimsoll http -q 100 http://x",
            "`-q 100` of other tools is `--rate 100/s` here",
        ),
        ("plimsoll grpc grpc://x:1 -t2", "is `--workers 2` here"),
        (
            "plimsoll http http://x -T text/plain",
            "is `-H 'content-type: text/plain'` here",
        ),
        (
            "plimsoll grpc grpc://x:1 -H a:b",
            "is `--metadata a:b` here",
        ),
        (
            "plimsoll http http://x --disable-keepalive",
            "is `--cold` here",
        ),
        (
            "plimsoll run x.toml --stages 3",
            "`--stages` of other tools is, for example, `--step 10s:100/s",
        ),
        (
            "plimsoll grpc grpc://x:1 --servername a",
            "is `--server-name a` here",
        ),
    ] {
        let text = said(line);
        assert!(text.contains(ours), "{line}: {text}");
        assert!(!text.contains("similar"), "{line}: {text}");
    }
    let text = said("plimsoll http http://x --durration 3s");
    assert!(
        text.contains("plimsoll http http://x --duration 3s"),
        "{text}"
    );
    assert!(!said("plimsoll http http://x --userpass me:hush").contains("hush"));
    let text = said("plimsoll http http://x --retry 3");
    assert!(text.contains("a call that fails is counted"), "{text}");
    assert!(!text.contains("--no-retry"), "{text}");
}

#[test]
fn tool_flags_are_answered_by_whole_lines() {
    plimsoll_protocols::registry::register_protocols();
    let text = said("plimsoll http -t2 -c20 -d1s http://a.test/");
    let text: Vec<&str> = text.split_whitespace().collect();
    let ours = "as a line of wrk it is: plimsoll http http://a.test/ --clients 20 --duration 1s";
    assert!(text.join(" ").contains(ours), "{text:?}");
}

/// Returns what is printed for a line that ends with a usage error, without line breaks.
fn answer(line: &str) -> String {
    let words = shell_words::split(&format!("plimsoll {line}")).expect("words of a shell");
    let words: Vec<OsString> = words.into_iter().map(OsString::from).collect();
    let words =
        crate::command_line::foreign_words::translate(words).unwrap_or_else(|_| panic!("{line}"));
    let command = commands::command();
    let failure = crate::command_line::single_dash::failure(&command, &words)
        .or_else(|| crate::command_line::misread_flags::misread_flag_failure(&command, &words));
    let said = match failure {
        Some(failure) => format!("{failure:?}").replace('│', " "),
        None => {
            let error = command.clone().try_get_matches_from(&words);
            let error = add_tip(error.expect_err(line), &command, &words);
            error.render().to_string()
        }
    };
    said.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Lines behind a command of ours, from `tests/foreign_answers.txt`: each has a part of its answer below, after `>`.
#[test]
fn typed_lines_are_answered_with_whole_lines() {
    plimsoll_protocols::registry::register_protocols();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/foreign_answers.txt");
    let text = std::fs::read_to_string(file).expect(file);
    let mut lines = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let (mut count, mut wrong) = (0, Vec::new());
    while let Some(typed) = lines.next() {
        let expected = lines.next().and_then(|line| line.strip_prefix("> "));
        let expected = expected.expect(typed);
        let said = answer(typed);
        // Long words are hyphenated at the width of the terminal.
        let plain = |text: &str| text.replace(' ', "");
        count += 1;
        if !plain(&said).contains(&plain(expected)) {
            wrong.push(format!("{typed}\n{expected}\n{said}"));
            continue;
        }
        let Some((_, ours)) = expected.split_once(": plimsoll ") else {
            continue;
        };
        let ours = [" && ", " > "]
            .iter()
            .fold(ours, |line, tail| line.split(tail).next().unwrap_or(line));
        let words = shell_words::split(&format!("plimsoll {ours}")).expect("words of a shell");
        let words: Vec<OsString> = words.into_iter().map(OsString::from).collect();
        let read = commands::command_for_words(&words).try_get_matches_from(&words);
        assert!(read.is_ok(), "{typed}: {ours}: {:?}", read.err());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    assert!(count >= 55, "{count}");
}
