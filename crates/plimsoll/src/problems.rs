//! A spec's problems, shown to a person: in the plan's text, or by flag.

use miette::{Diagnostic, LabeledSpan, NamedSource, Report, SourceCode};
use plimsoll_model::spec::Problem;

use crate::failure::{Exit, Failure};
use crate::load_flags::FLAGS;

/// One problem, in miette's terms.
#[derive(Debug)]
struct Shown {
    message: String,
    help: Option<String>,
    span: Option<std::ops::Range<usize>>,
    source: Option<NamedSource<String>>,
}

impl std::fmt::Display for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Shown {}

impl Diagnostic for Shown {
    fn help<'a>(&'a self) -> Option<Box<dyn std::fmt::Display + 'a>> {
        self.help.as_ref().map(|help| Box::new(help) as Box<_>)
    }
    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.source.as_ref().map(|source| source as _)
    }
    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let span = self.span.clone()?;
        Some(Box::new(std::iter::once(LabeledSpan::new_with_span(
            Some("here".into()),
            span,
        ))))
    }
}

/// Several problems: the first one's words are the error's, the others follow.
#[derive(Debug)]
struct All {
    title: String,
    problems: Vec<Shown>,
}

impl std::fmt::Display for All {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.title)
    }
}

impl std::error::Error for All {}

impl Diagnostic for All {
    fn related<'a>(&'a self) -> Option<Box<dyn Iterator<Item = &'a dyn Diagnostic> + 'a>> {
        Some(Box::new(self.problems.iter().map(|p| p as &dyn Diagnostic)))
    }
}

/// What the problems were found in.
pub(crate) enum Source<'a> {
    /// A plan file: its name and its text.
    File {
        name: String,
        text: &'a str,
    },
    Flags,
}

/// The failure that shows `problems`.
pub(crate) fn failure(problems: Vec<Problem>, source: &Source<'_>) -> Failure {
    let mut shown: Vec<Shown> = problems.into_iter().map(|p| show(p, source)).collect();
    let report = match (shown.len(), source) {
        (1, _) => Report::new(shown.remove(0)),
        (n, Source::File { name, .. }) => Report::new(All {
            title: format!("{name} can't be run: {n} problems"),
            problems: shown,
        }),
        (n, Source::Flags) => Report::new(All {
            title: format!("{n} problems with what was asked"),
            problems: shown,
        }),
    };
    Failure::new(Exit::Usage, report)
}

fn show(problem: Problem, source: &Source<'_>) -> Shown {
    match source {
        Source::File { name, text } => {
            // A place shows file, line and column; without one the file must be named.
            let message = match problem.span {
                Some(_) => problem.to_string(),
                None => format!("{name}: {problem}"),
            };
            Shown {
                message,
                help: problem.help,
                span: problem.span,
                source: Some(NamedSource::new(name, (*text).to_owned()).with_language("TOML")),
            }
        }
        Source::Flags => Shown {
            message: as_flags(&problem.to_string()),
            help: problem.help.as_deref().map(as_flags),
            span: None,
            source: None,
        },
    }
}

/// The keys of a text as flags.
fn as_flags(text: &str) -> String {
    let mut text = text.to_owned();
    for (key, flag) in FLAGS {
        // Quoted keys may go on (`tls.groups.0`); in running text only dotted keys are certain.
        while let Some(at) = text.find(&format!("`{key}.")).filter(|_| key.contains('.')) {
            let end = text[at + 1..].find('`').map_or(text.len(), |e| at + 1 + e);
            text.replace_range(at + 1..end, flag);
        }
        text = text.replace(&format!("`{key}`"), &format!("`{flag}`"));
        if key.contains('.') {
            text = text.replace(key, flag);
        }
    }
    typed_assignments(text)
}

/// `rate = "1000/s"`, as a plan says it, is `--rate 1000/s` where it is typed.
fn typed_assignments(mut text: String) -> String {
    for (key, flag) in FLAGS {
        let name = key.rsplit('.').next().unwrap_or(key);
        let assignment = format!(" {name} = ");
        while let Some(at) = text.find(&assignment) {
            let value = &text[at + assignment.len()..];
            let (word, length) = match value.strip_prefix('"').and_then(|v| v.split_once('"')) {
                Some((quoted, _)) => (quoted, quoted.len() + 2),
                None => {
                    let end = value.find([' ', ',', ';', ')']).unwrap_or(value.len());
                    (&value[..end], end)
                }
            };
            let typed = format!(" `{flag} {word}`");
            text.replace_range(at..at + assignment.len() + length, &typed);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_become_flags() {
        assert_eq!(
            as_flags("`load.clients`: given beside load.rate: use one of the two"),
            "`--clients`: given beside --rate: use one of the two"
        );
        assert_eq!(
            as_flags("`tls.groups.0`: `X` is not a group"),
            "`--group`: `X` is not a group"
        );
        assert_eq!(
            as_flags("`call.grpc.metadata.a b`: wrong"),
            "`--metadata`: wrong"
        );
        assert_eq!(
            as_flags("`load`: neither"),
            "`--rate or --clients`: neither"
        );
        assert_eq!(
            as_flags("`load.duration`: missing: write duration = \"30s\", or calls = 100000"),
            "`--duration`: missing: write `--duration 30s`, or `--calls 100000`"
        );
    }
}
