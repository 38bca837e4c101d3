//! Problems of a spec, by key.

use std::fmt;
use std::ops::Range;

use crate::rows::template;

/// A problem of a spec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The key, with dots: `load.rate`. Empty: the file as a whole.
    pub key: String,
    /// The problem and how to solve it, as a fragment that begins with a lower-case letter.
    pub message: String,
    /// Advice, where there is any.
    pub help: Option<String>,
    /// The byte range in the plan file.
    pub span: Option<Range<usize>>,
}

impl Problem {
    /// Creates a problem without advice or span.
    pub fn new(key: impl Into<String>, message: impl Into<String>) -> Problem {
        Problem {
            key: key.into(),
            message: message.into(),
            help: None,
            span: None,
        }
    }

    /// Adds advice.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Problem {
        self.help = Some(help.into());
        self
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.key.is_empty() {
            write!(f, "`{}`: ", self.key)?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for Problem {}

/// Returns the value among `all` whose name is `typed`.
///
/// # Errors
/// When none of `all` has this name.
pub(super) fn find_by_name<T: Copy>(
    typed: &str,
    all: &[T],
    name: fn(T) -> &'static str,
) -> Result<T, String> {
    let found = all.iter().find(|value| name(**value) == typed);
    found.copied().ok_or_else(|| {
        let names: Vec<String> = all.iter().map(|v| format!("\"{}\"", name(*v))).collect();
        let names = names.join(", ");
        let (others, last) = names.rsplit_once(", ").unwrap_or(("", &names));
        format!("`{typed}` is unknown: use {others} or {last}")
    })
}

/// The problems found so far.
#[derive(Debug, Default)]
pub struct Problems(pub Vec<Problem>);

impl Problems {
    /// Adds a problem without advice.
    pub fn add(&mut self, key: impl Into<String>, message: impl Into<String>) {
        self.0.push(Problem::new(key, message));
    }

    /// Reports template fields in a text that is not a template, because the server would receive the characters
    /// `{{seq}}`.
    pub fn reject_template_fields(&mut self, key: impl Into<String>, text: Option<&str>) {
        if let Some(field) = text.and_then(template::first_field) {
            let problem = "fields are not supported here, where every call has the same text";
            self.add(key, format!("`{field}`: {problem}"));
        }
    }

    /// Returns the value in `all` whose name the user gave. Without a name, or if it is invalid (which is reported),
    /// returns the first of `all`.
    pub(super) fn resolve_choice<T: Copy>(
        &mut self,
        key: &str,
        typed: Option<&str>,
        all: &[T],
        name: fn(T) -> &'static str,
    ) -> T {
        let found = typed.and_then(|typed| self.ok_or_report(key, find_by_name(typed, all, name)));
        found.unwrap_or(all[0])
    }

    /// Adds a problem for each of `checks` whose flag is set. A check consists of the flag, a key, and a message.
    pub(super) fn report_failed_checks<'a>(
        &mut self,
        checks: impl IntoIterator<Item = (bool, &'a str, &'a str)>,
    ) {
        let wrong = checks.into_iter().filter(|(is_wrong, ..)| *is_wrong);
        self.0
            .extend(wrong.map(|(_, key, message)| Problem::new(key, message)));
    }

    /// Returns the value of `result`, or reports its error as a problem of `key`.
    pub fn ok_or_report<T>(&mut self, key: &str, result: Result<T, String>) -> Option<T> {
        result.map_err(|message| self.add(key, message)).ok()
    }
}

/// Replaces the parser's message about a string that should be a list.
pub(super) fn reword_list_error(message: &str) -> String {
    let text = message
        .strip_prefix("invalid type: string ")
        .and_then(|rest| rest.strip_suffix(", expected a sequence"));
    text.map_or_else(
        || message.to_owned(),
        |text| format!("write a list: [{text}]"),
    )
}
