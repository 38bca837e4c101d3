//! Rejects long flags that were typed with a single dash, as in Go programs.
//!
//! clap would parse such a word as a one-letter flag with an attached value: `-rate=50` as `-r` with the value
//! `ate=50`, and `-disable-keepalive` as `-d` with a body. [`crate::command_line::arguments`] calls this module before
//! it parses a line.

use std::ffi::OsString;

use clap::Command;
use plimsoll_protocols::interface::foreign::command_lines::FlagStyle;
use plimsoll_protocols::registry;

use crate::command_line::possible_translations;
use crate::command_line::synonyms::{
    find_counterpart, innermost_command, is_known, whole_line_tip,
};
use crate::failure::Failure;

/// Returns the error for the first long flag that was typed with a single dash; `None` if there is none.
pub(crate) fn failure(command: &Command, typed: &[OsString]) -> Option<Failure> {
    let words: Vec<&str> = typed.iter().filter_map(|word| word.to_str()).collect();
    let root = command;
    let command = innermost_command(root, &words);
    let load_command = words.get(1).copied().unwrap_or_default();
    let is_flag = |name: &str| {
        name.len() > 2
            && (is_known(name)
                || command
                    .get_arguments()
                    .any(|arg| arg.get_long() == Some(name))
                || registry::is_foreign_flag(load_command, name))
    };
    let own = words.iter().take_while(|word| **word != "--");
    let mistyped = own.copied().find(|word| {
        let name = word.strip_prefix('-').filter(|name| !name.starts_with('-'));
        name.is_some_and(|name| is_flag(name.split('=').next().unwrap_or(name)))
    })?;
    let flag = mistyped.split('=').next().unwrap_or(mistyped);
    let mut readings =
        possible_translations::find_translations(root, words.get(1..).unwrap_or_default());
    readings.retain(|reading| reading.tool.style == FlagStyle::Go);
    let translated = possible_translations::translations_tip(&readings);
    let help = translated
        .or_else(|| whole_line_tip(root, &words))
        .unwrap_or_else(|| {
            // Leave out the value that was typed for the flag, because it may be a secret.
            let ours = find_counterpart(command, flag, &[]);
            format!("write {}", ours.unwrap_or_else(|| format!("-{flag}")))
        });
    Some(Failure::usage(
        format_args!("{flag}: a flag of several letters has two dashes here"),
        &help,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands;

    #[test]
    fn long_flags_with_one_dash_are_refused() {
        plimsoll_protocols::registry::register_protocols();
        let refused = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let failure = failure(&commands::command(), &words)?;
            Some(failure.to_string())
        };
        for line in [
            "plimsoll http -n 100 -c 10 -disable-keepalive http://a.test/",
            "plimsoll http http://a.test/ -rate=50 -duration=1s",
            "plimsoll grpc grpc://a.test:1 -insecure",
            "plimsoll http http://a.test/ -qps 50",
        ] {
            let said = refused(line).expect(line);
            assert!(said.contains("has two dashes here"), "{line}: {said}");
        }
        for line in [
            "plimsoll http http://a.test/ -n100 -c10 -XPOST -dtext",
            "plimsoll http http://a.test/ -q -d -",
            "plimsoll http http://a.test/ --rate 50/s",
            "plimsoll http http://a.test/ -- -rate",
        ] {
            assert_eq!(refused(line), None, "{line}");
        }
        assert!(
            !refused("plimsoll http http://a -userpass=me:hush")
                .unwrap()
                .contains("hush")
        );
    }
}
