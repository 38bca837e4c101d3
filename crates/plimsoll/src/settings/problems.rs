//! Shows problems of a plan to the user: at their place in the plan's text, or with the names of flags.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::path::Path;
use std::sync::LazyLock;

use miette::{Diagnostic, NamedSource, Report, SourceSpan};
use plimsoll_model::formats::redaction;
use plimsoll_model::spec::Problem;

use crate::failure::{Exit, Failure};
use crate::settings::flag_names;

/// One problem as a miette diagnostic.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[error("{message}")]
struct ProblemReport {
    message: String,
    #[help]
    help: Option<String>,
    #[label("here")]
    span: Option<SourceSpan>,
    #[source_code]
    text: Option<NamedSource<String>>,
}

/// Several problems under one title.
#[derive(Debug, thiserror::Error, Diagnostic)]
#[error("{title}")]
struct ProblemList {
    title: String,
    #[related]
    problems: Vec<ProblemReport>,
}

/// The origin of a plan, shown in errors.
pub(crate) enum PlanSource<'a> {
    /// A plan file: its name and its text.
    File {
        name: String,
        text: &'a str,
    },
    Flags,
}

impl<'a> PlanSource<'a> {
    /// Returns the plan file at `path` as a source.
    pub(crate) fn from_file(path: &Path, text: &'a str) -> PlanSource<'a> {
        let name = path.display().to_string();
        PlanSource::File { name, text }
    }
}

/// Returns the error for a problem of a single flag.
pub(crate) fn flag_failure(problem: Problem) -> Failure {
    failure(vec![problem], &PlanSource::Flags)
}

/// Returns an error that shows all `problems`.
pub(crate) fn failure(problems: Vec<Problem>, source: &PlanSource<'_>) -> Failure {
    let n = problems.len();
    let kinds = group_by_kind(problems);
    let left_out = kinds.len().saturating_sub(MAX_SHOWN);
    let mut shown: Vec<ProblemReport> = kinds
        .into_iter()
        .take(MAX_SHOWN)
        .map(|(problem, alike)| show(problem, alike, source))
        .collect();
    let more = match left_out {
        0 => String::new(),
        n => format!("; the first {MAX_SHOWN} kinds are shown, {n} more are not"),
    };
    if shown.len() == 1 {
        return Failure::new(Exit::Usage, Report::new(shown.remove(0)));
    }
    let title = match source {
        PlanSource::File { name, .. } => format!("{name} can't be run: {n} problems{more}"),
        PlanSource::Flags => format!("the command line has {n} problems{more}"),
    };
    let problems = shown;
    Failure::new(Exit::Usage, Report::new(ProblemList { title, problems }))
}

/// Maximum number of kinds of problems to show. A plan with more problems was probably generated, and one fix applies
/// to many of them.
const MAX_SHOWN: usize = 20;

/// Maximum number of lines of the plan to quote for one problem.
const MAX_QUOTED_LINES: usize = 8;

/// Groups problems whose texts differ only in digits; returns the first problem of each group and the number of others.
fn group_by_kind(problems: Vec<Problem>) -> Vec<(Problem, usize)> {
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut kinds: Vec<(Problem, usize)> = Vec::new();
    for problem in problems {
        let text = problem.to_string();
        let kind: String = text.chars().filter(|c| !c.is_ascii_digit()).collect();
        match places.entry(kind) {
            Entry::Occupied(place) => kinds[*place.get()].1 += 1,
            Entry::Vacant(place) => {
                place.insert(kinds.len());
                kinds.push((problem, 0));
            }
        }
    }
    kinds
}

/// Converts a problem for display; `alike` is the number of other problems in its group.
fn show(problem: Problem, alike: usize, source: &PlanSource<'_>) -> ProblemReport {
    let mut shown = show_one(problem, source);
    if alike > 0 {
        shown.message += &format!(" (and {alike} more like it)");
    }
    shown
}

fn show_one(problem: Problem, source: &PlanSource<'_>) -> ProblemReport {
    match source {
        PlanSource::File { name, text } => {
            // Masking does not change lengths, so spans remain valid.
            let text = redaction::mask_plan(text);
            // A span shows file, line and column; without one, name the file.
            let message = match problem.span {
                Some(_) => problem.to_string(),
                None => format!("{name}: {problem}"),
            };
            ProblemReport {
                message: redaction::mask_urls(&message).into_owned(),
                help: problem
                    .help
                    .map(|help| redaction::mask_urls(&help).into_owned()),
                span: problem.span.map(|span| shorten_span(span, &text).into()),
                text: Some(NamedSource::new(name, text.into_owned()).with_language("TOML")),
            }
        }
        PlanSource::Flags => ProblemReport {
            message: replace_keys(&redaction::mask_urls(&problem.to_string())),
            help: (problem.help.as_deref()).map(|help| replace_keys(&redaction::mask_urls(help))),
            span: None,
            text: None,
        },
    }
}

/// Shortens a span of too many lines to its first line.
fn shorten_span(span: Range<usize>, text: &str) -> Range<usize> {
    let place = text.get(span.clone()).unwrap_or_default();
    match place.split_once('\n') {
        Some((line, _)) if place.lines().count() > MAX_QUOTED_LINES => {
            span.start..span.start + line.len().max(1)
        }
        _ => span,
    }
}

/// Returns plan keys with the current command's flags for them, in the order in which they must be replaced.
fn flags() -> &'static [(String, String)] {
    static ALL: LazyLock<Vec<(String, String)>> = LazyLock::new(|| {
        let all = flag_names::flags_by_plan_key().iter();
        all.filter(|(_, flags)| flag_names::command_has_all(flags))
            .cloned()
            .collect()
    });
    &ALL
}

/// Replaces plan keys in a message by flags.
fn replace_keys(text: &str) -> String {
    let mut text = text.to_owned();
    for (key, flag) in flags() {
        // Quoted keys may have a suffix (`tls.groups.0`); in running text only dotted keys are unambiguous.
        let goes_on = key.contains('.') || key == "objective";
        while let Some(at) = text.find(&format!("`{key}.")).filter(|_| goes_on) {
            let end = text[at + 1..].find('`').map_or(text.len(), |e| at + 1 + e);
            // Leave out list indexes, which mean nothing to users who typed flags, but keep names of fields.
            let name = &text[at + 1 + key.len() + 1..end];
            let shown = if name.starts_with(|c: char| c.is_ascii_digit()) {
                flag.clone()
            } else {
                format!("{flag} {name}")
            };
            text.replace_range(at + 1..end, &shown);
        }
        text = text.replace(&format!("`{key}`"), &format!("`{flag}`"));
        if key.contains('.') {
            text = text.replace(key, flag);
        }
    }
    replace_assignments(text)
}

/// Replaces assignments in plan syntax (`rate = "1000/s"`) by flags (`--rate 1000/s`).
fn replace_assignments(mut text: String) -> String {
    for (key, flag) in flags() {
        let name = key.rsplit('.').next().unwrap_or(key);
        let assignment = format!(" {name} = ");
        while let Some(at) = text.find(&assignment) {
            let value = &text[at + assignment.len()..];
            let (word, length) = match value.strip_prefix('"').and_then(|v| v.split_once('"')) {
                Some((quoted, _)) => (quoted, quoted.len() + 2),
                None => {
                    let end = value.find([' ', ',', ';', ':', ')']).unwrap_or(value.len());
                    (&value[..end], end)
                }
            };
            let typed = match word {
                "true" => format!(" `{flag}`"),
                word => format!(" `{flag} {word}`"),
            };
            text.replace_range(at..at + assignment.len() + length, &typed);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A generated plan repeats one mistake in every step.
    #[test]
    fn similar_problems_are_collapsed() {
        let step = |n: usize| Problem::new(format!("load.steps.{n}.rate"), "`-1/s` is negative");
        let failure = failure((0..20_000).map(step).collect(), &PlanSource::Flags);
        let said = failure.to_string();
        assert!(
            said.ends_with("`-1/s` is negative (and 19999 more like it)"),
            "{said}"
        );
        let other = |n: usize| Problem::new("name", "x".repeat(n + 1));
        let failure = super::failure((0..50).map(other).collect(), &PlanSource::Flags);
        assert_eq!(
            failure.to_string(),
            "the command line has 50 problems; the first 20 kinds are shown, 30 more are not"
        );
    }

    #[test]
    fn long_span_is_shortened_to_first_line() {
        let text = "a = [\n".to_owned() + &"1,\n".repeat(20) + "]";
        assert_eq!(shorten_span(4..text.len(), &text), 4..5);
        assert_eq!(shorten_span(4..9, &text), 4..9);
        assert_eq!(shorten_span(4..text.len() + 9, &text), 4..text.len() + 9);
    }

    #[test]
    fn plan_keys_are_replaced_by_flags() {
        assert_eq!(
            replace_keys("`load.clients`: can't be combined with load.rate: use one of the two"),
            "`--clients`: can't be combined with --rate: use one of the two"
        );
        assert_eq!(
            replace_keys("`tls.groups.0`: `X` is not a group"),
            "`--group`: `X` is not a group"
        );
        assert_eq!(
            replace_keys("`call.grpc.metadata.a b`: wrong"),
            "`--metadata a b`: wrong"
        );
        assert_eq!(
            replace_keys("`load`: neither"),
            "`--rate or --clients`: neither"
        );
        assert_eq!(
            replace_keys("`load.duration`: missing: write duration = \"30s\", or calls = 100000"),
            "`--duration`: missing: write `--duration 30s`, or `--calls 100000`"
        );
        assert_eq!(
            replace_keys("`span_sample`: needs traceparent = true: others have no spans"),
            "`--span-sample`: needs `--traceparent`: others have no spans"
        );
    }
}
