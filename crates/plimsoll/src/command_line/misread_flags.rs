//! Rejects command lines of other tools that clap would accept, but with another meaning.
//!
//! For example, `-d 10s` sets the duration in wrk, but the request's body in Plimsoll; `-k` keeps connections open in
//! ab, but disables certificate checks in Plimsoll. [`crate::command_line::arguments`] calls this module before it
//! parses a line.

use std::ffi::OsString;

use clap::Command;
use plimsoll_protocols::registry;

use crate::command_line::possible_translations::{find_plimsoll_flag, foreign_line_tip};
use crate::command_line::synonyms::{is_time, search_tip, whole_line_tip};
use crate::failure::Failure;

/// Returns the error about a line with a flag that has another meaning in Plimsoll; `None` if it has no such flag.
pub(crate) fn misread_flag_failure(root: &Command, typed: &[OsString]) -> Option<Failure> {
    let words: Vec<&str> = typed.iter().filter_map(|word| word.to_str()).collect();
    let command = root.find_subcommand(words.get(1)?)?;
    if let Some(reason) = registry::other_protocol_reason(words[1], &words[2..]) {
        return Some(Failure::usage(
            format_args!("plimsoll {}: {reason}", words[1]),
            "`plimsoll --help` lists the protocols that are spoken",
        ));
    }
    if let Some(tip) = search_tip(root, &words) {
        return Some(Failure::usage(
            format_args!("plimsoll {} takes a plan, and this is an address", words[1]),
            &tip,
        ));
    }
    let is_load = |flag: &str, long: &str| {
        find_plimsoll_flag(command, flag).is_some_and(|own| own.long == long)
    };
    let own = words.split(|word| *word == "--").next().unwrap_or_default();
    if is_load("-d", "--data") && is_load("-X", "--method") {
        let has_method = own
            .iter()
            .any(|word| word.starts_with("-X") || word.starts_with("--method"));
        let time = short_flag_value(own, "-d").filter(|value| !has_method && is_time(value));
        if let Some(time) = time {
            let tip = foreign_line_tip(root, &words[1..])
                .or_else(|| length_line_tip(root, command, &words));
            let tip = tip.unwrap_or_else(|| {
                format!(
                    "for a load of this length write --duration {time} (-z {time}); \
                     for a request with this body write its method, too: -X POST -d {time}"
                )
            });
            return Some(Failure::usage(
                format_args!("-d {time}: a time, but -d is the body of the request here"),
                &tip,
            ));
        }
    }
    let is_plain = |word: &&str| {
        let scheme = word.split_once("://").map(|(scheme, _)| scheme);
        scheme.is_some_and(|scheme| !scheme.ends_with('s'))
    };
    if is_load("-k", "--insecure") && own.contains(&"-k") && own.iter().any(is_plain) {
        return Some(Failure::usage(
            format_args!("-k: no certificate is checked over plaintext"),
            &foreign_line_tip(root, &words[1..])?,
        ));
    }
    let users = short_flag_value(own, "-u").filter(|value| value.parse::<u64>().is_ok())?;
    Some(Failure::usage(
        format_args!("-u {users}: a number, but -u is USER:PASSWORD here"),
        &foreign_line_tip(root, &words[1..])?,
    ))
}

/// Returns the tip for a line whose `-d` is a length, and which has short flags of other tools, too.
fn length_line_tip(root: &Command, command: &Command, words: &[&str]) -> Option<String> {
    let is_foreign = |word: &&str| {
        let is_short = word.len() == 2 && word.starts_with('-') && *word != "--";
        is_short && find_plimsoll_flag(command, word).is_none()
    };
    if !words.contains(&"-d") || !words.iter().any(is_foreign) {
        return None;
    }
    let line = words.iter().map(|word| match *word {
        "-d" => "--duration",
        word => word,
    });
    let line = whole_line_tip(root, &line.collect::<Vec<&str>>())?;
    Some(format!("for a load of this length: {line}"))
}

/// Returns the value of a short flag, which is attached to the flag or is the next word.
fn short_flag_value<'a>(words: &[&'a str], flag: &str) -> Option<&'a str> {
    let at = words.iter().position(|word| {
        word.strip_prefix(flag)
            .is_some_and(|rest| rest.is_empty() || is_time(rest))
    })?;
    match &words[at][flag.len()..] {
        "" => words.get(at + 1).copied(),
        attached => Some(attached),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands;

    #[test]
    fn flags_with_other_meanings_are_asked_about() {
        plimsoll_protocols::registry::register_protocols();
        let refused = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let failure = misread_flag_failure(&commands::command(), &words)?;
            let said = format!("{failure:?}").replace('│', " ");
            Some(said.split_whitespace().collect::<Vec<_>>().join(" "))
        };
        for (line, said) in [
            ("plimsoll http -d1s http://a.test/", "--duration 1s"),
            ("plimsoll http -d 10s http://a.test/", "-X POST -d 10s"),
            (
                "plimsoll http http://a.test/ -r 100 -d 2s",
                "for a load of this length: plimsoll http http://a.test/ --rate 100/s --duration 2s",
            ),
            (
                "plimsoll http -c 20 -d 1s http://a.test/",
                "as a line of wrk it is: plimsoll http http://a.test/ --clients 20 --duration 1s",
            ),
            (
                "plimsoll http -n 100 -c 10 -k http://a.test/",
                "as a line of ab it is: plimsoll http http://a.test/ --clients 10 --calls 100",
            ),
            (
                "plimsoll http -u 10 -i 20 http://a.test/",
                "a number, but -u",
            ),
        ] {
            let text = refused(line).expect(line);
            assert!(text.contains(said), "{line}: {text}");
        }
        for line in [
            "plimsoll http -X POST -d 1s http://a.test/",
            "plimsoll http -d text http://a.test/",
            "plimsoll http -k https://a.test/ -n 5 -c 1",
            "plimsoll http -u me:1 http://a.test/",
            "plimsoll grpc -d 1s grpc://a.test:1",
            "plimsoll run plan.toml",
        ] {
            assert_eq!(refused(line), None, "{line}");
        }
    }
}
