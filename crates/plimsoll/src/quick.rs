//! What the quick forms of a plan have in common: one call, with the load that it is put
//! under, typed as flags.

use std::collections::BTreeMap;
use std::path::PathBuf;

use plimsoll_model::input;
use plimsoll_model::spec::{self, BinarySource, CallSpec, MetadataSpec, Section, Spec};

use crate::arguments::Origins;
use crate::environment::Environment;
use crate::execution::{self, OutputFlags, Process};
use crate::failure::{Exit, Failure};
use crate::load_flags::LoadFlags;
use crate::planning;
use crate::problems::{self, Source};

/// The plan that was typed.
///
/// # Errors
/// Where flags of the load contradict each other.
pub(crate) fn spec(
    target: Option<&str>,
    call: CallSpec,
    load: &LoadFlags,
    origins: &Origins,
) -> Result<Spec, Failure> {
    let mut spec = Spec {
        target: target.map(str::to_owned),
        call,
        ..Spec::default()
    };
    load.apply(&mut spec, origins)?;
    Ok(spec)
}

/// The call that was typed.
///
/// # Errors
/// Where a plan can't hold it, as a path that is not UTF-8.
pub(crate) fn call<S: Section>(section: &S) -> Result<CallSpec, Failure> {
    CallSpec::of(section).map_err(|problem| problems::failure(vec![problem], &Source::Flags))
}

/// Runs the plan that was typed.
///
/// # Errors
/// Where it can't be run as it is, or its run can't be kept.
pub(crate) fn run(
    spec: &Spec,
    output: &OutputFlags,
    environment: &Environment,
    process: &Process,
) -> Result<Exit, Failure> {
    let plan = planning::plan(spec, environment, &Source::Flags)?;
    execution::execute(spec, &plan, output, process)
}

/// What was typed, or the file that `@FILE` names; `@-` or `-`: what stdin holds.
///
/// # Errors
/// When stdin can't be read, or is no text.
pub(crate) fn text_or_file(
    typed: Option<&str>,
) -> Result<(Option<String>, Option<PathBuf>), Failure> {
    input::text_or_file(typed).map_err(|e| {
        Failure::usage(
            format_args!("@-: can't read stdin: {e}"),
            "pipe the text into this command, or name a file: @FILE",
        )
    })
}

/// What `--data-binary` and `--data-delimited` were given: files, or what stdin holds.
///
/// # Errors
/// Where one is not `@FILE`; when stdin can't be read, or holds no such messages.
pub(crate) fn binary(
    messages: &[String],
    delimited: &[String],
) -> Result<Vec<BinarySource>, Failure> {
    let mut sources = Vec::new();
    let messages = messages.iter().map(|typed| ("--data-binary", typed));
    let delimited = delimited.iter().map(|typed| ("--data-delimited", typed));
    for (flag, typed) in messages.chain(delimited) {
        let is_one = flag == "--data-binary";
        match typed.strip_prefix('@') {
            Some("-") => {
                let bytes = input::stdin().map_err(|e| {
                    Failure::usage(
                        format_args!("{flag} @-: can't read stdin: {e}"),
                        &format!(
                            "pipe the messages into this command, or name a file: {flag} @FILE"
                        ),
                    )
                })?;
                match is_one {
                    true => sources.push(BinarySource::of(&bytes)),
                    false => {
                        let found = spec::delimited("stdin", &bytes);
                        let found = found.map_err(|problem| {
                            Failure::usage(
                                format_args!("{flag}: {problem}"),
                                "--data-binary @- takes stdin as one message",
                            )
                        })?;
                        sources.extend(found.iter().map(|m| BinarySource::of(&m.bytes)));
                    }
                }
            }
            Some(path) if !path.is_empty() => sources.push(match is_one {
                true => BinarySource::File(path.into()),
                false => BinarySource::Delimited(path.into()),
            }),
            _ => {
                return Err(Failure::usage(
                    format_args!("{flag}: `{typed}` names no file"),
                    &format!("write {flag} @FILE, or {flag} @- for stdin"),
                ));
            }
        }
    }
    Ok(sources)
}

/// What `flag`, `--metadata` or `--header`, was given.
///
/// # Errors
/// As [`named`].
pub(crate) fn fields(
    flag: &str,
    typed: &[String],
) -> Result<BTreeMap<String, MetadataSpec>, Failure> {
    let entry = |typed: &String| {
        let (name, value) = named(flag, typed, "x-tenant: 7")?;
        let value = match value.strip_prefix('$') {
            Some(variable) => MetadataSpec::Env(variable.into()),
            None => MetadataSpec::Text(value.into()),
        };
        Ok((name.to_owned(), value))
    };
    typed.iter().map(entry).collect()
}

/// The name and the value of `NAME: VALUE`.
///
/// # Errors
/// Where there is no colon. What was typed may be a secret: it is not repeated.
pub(crate) fn named<'a>(
    flag: &str,
    typed: &'a str,
    example: &str,
) -> Result<(&'a str, &'a str), Failure> {
    let (name, value) = typed.split_once(':').ok_or_else(|| {
        Failure::usage(
            format_args!("{flag}: no colon in the value"),
            &format!("write, for example, {flag} '{example}'"),
        )
    })?;
    Ok((name.trim(), value.trim()))
}
