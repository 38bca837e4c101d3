//! Parses env files as Docker Compose does: unquoted values may contain blanks, a comment needs a blank before it,
//! double-quoted values may contain escapes, and `$NAME` and `${NAME:-default}` are substituted.
//!
//! A malformed line affects only its own variable, which is dropped. Messages never quote values, which may be secrets.

use std::collections::BTreeMap;

/// The contents of an env file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DotenvContents {
    pub(crate) values: BTreeMap<String, String>,
    pub(crate) unreadable: Vec<UnreadableLine>,
}

/// A line that can't be parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnreadableLine {
    /// The line's number, counted from 1.
    pub(crate) line: usize,
    /// The variable that the line would set; `None` if the name can't be parsed.
    pub(crate) name: Option<String>,
    pub(crate) problem: &'static str,
}

/// Why a line can't be parsed.
type LineProblem = &'static str;

const NO_NAME: LineProblem = "expected NAME=value: a name has letters, digits, `_`, `.` and `-`";
const UNCLOSED_QUOTE: LineProblem = "a quote is not closed";
const TEXT_AFTER_QUOTE: LineProblem =
    "something follows the closing quote: a comment begins with a blank and #";
const INVALID_BRACES: LineProblem =
    "${ is not closed, or holds no name: write ${NAME} or ${NAME:-default}, and $$ for a $";
const NOT_SET: LineProblem = "it requires a variable that is not set (${NAME:?…})";

/// Maximum nesting of defaults within defaults, as in `${A:-${B:-c}}`.
const MAX_NESTED_DEFAULTS: u32 = 16;
/// Maximum length of a value after substitution, bytes.
const MAX_VALUE_BYTES: usize = 1 << 20;
/// Maximum total length of a file's values, bytes.
const MAX_TOTAL_BYTES: usize = 4 << 20;
const TOO_LONG: LineProblem =
    "too long: the limits are 1 MiB a value, 4 MiB for all, and a few levels of nested defaults";

/// Parses a file's text. `process` looks up variables of the process's environment; in `$NAME` these take precedence
/// over variables of the file.
pub(crate) fn read(text: &str, process: impl Fn(&str) -> Option<String>) -> DotenvContents {
    let mut variables = DotenvContents::default();
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut rest = text;
    let mut held = 0;
    while !rest.is_empty() {
        let start = text.len() - rest.len();
        let (line, after) = split_line(rest);
        let statement = line.trim();
        if statement.is_empty() || statement.starts_with('#') {
            rest = after;
            continue;
        }
        let mut name = None;
        let read = parse_assignment(line, rest, &mut name).and_then(|found| {
            let Some((value, after)) = found else {
                // A name without a value refers to the variable of the process's environment, so it sets nothing here.
                return Ok((None, after));
            };
            let known = |name: &str| process(name).or_else(|| variables.values.get(name).cloned());
            let value = value.resolve(&known)?;
            held += value.len();
            if held > MAX_TOTAL_BYTES {
                return Err(TOO_LONG);
            }
            Ok((Some(value), after))
        });
        match (read, name) {
            (Ok((Some(value), after)), Some(name)) => {
                variables.values.insert(name, value);
                rest = after;
            }
            (Ok((_, after)), _) => rest = after,
            (Err(problem), name) => {
                // Also drop the value that an earlier line gave this variable: the user meant to replace it.
                name.iter()
                    .for_each(|name| drop(variables.values.remove(name)));
                let line = 1 + text[..start].matches('\n').count();
                variables.unreadable.push(UnreadableLine {
                    line,
                    name,
                    problem,
                });
                rest = after;
            }
        }
    }
    variables
}

fn split_line(text: &str) -> (&str, &str) {
    text.split_once('\n').unwrap_or((text, ""))
}

/// A value as written in the file.
enum RawValue<'a> {
    Plain(&'a str),
    /// The text within double quotes, before unescaping.
    Double(&'a str),
    /// The text within single quotes, taken literally.
    Literal(&'a str),
}

/// Returns the value of an assignment and the text after it; `None` for a name without a value. `rest` is the unread
/// text, which starts with `line`. `name` is set once it has been parsed, even if an error follows.
fn parse_assignment<'a>(
    line: &'a str,
    rest: &'a str,
    name: &mut Option<String>,
) -> Result<Option<(RawValue<'a>, &'a str)>, LineProblem> {
    let statement = line.trim_start();
    let exported = statement
        .strip_prefix("export")
        .filter(|s| s.starts_with([' ', '\t']));
    let statement = exported.unwrap_or(statement).trim_start();
    let (key, value) = match statement.find(['=', ':']) {
        Some(at) => (&statement[..at], Some(&statement[at + 1..])),
        None => (statement, None),
    };
    let key = key.trim_end();
    let is_part = |c: char| c.is_alphanumeric() || "_.-[]".contains(c);
    if key.is_empty() || !key.chars().all(is_part) {
        return Err(NO_NAME);
    }
    *name = Some(key.to_owned());
    let Some(value) = value else {
        return Ok(None);
    };
    let value = value.trim_start();
    // Quoted values may span several lines.
    let quoted = &rest[line.len() - value.len()..];
    match value.chars().next() {
        Some(quote @ ('"' | '\'')) => {
            let content = &quoted[1..];
            let end = find_closing_quote(content, quote).ok_or(UNCLOSED_QUOTE)?;
            let (tail, after) = split_line(&content[end + 1..]);
            if !tail.trim().is_empty() && !tail.trim_start().starts_with('#') {
                return Err(TEXT_AFTER_QUOTE);
            }
            let content = &content[..end];
            let raw = match quote {
                '"' => RawValue::Double(content),
                _ => RawValue::Literal(content),
            };
            Ok(Some((raw, after)))
        }
        Some('#') => Ok(Some((RawValue::Plain(""), split_line(rest).1))),
        _ => {
            let comment = value.find(" #").or_else(|| value.find("\t#"));
            let value = &value[..comment.unwrap_or(value.len())];
            Ok(Some((
                RawValue::Plain(value.trim_end()),
                split_line(rest).1,
            )))
        }
    }
}

/// Returns the position of the closing quote. `content` starts after the opening quote.
fn find_closing_quote(content: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    for (at, c) in content.char_indices() {
        if c == quote && !escaped {
            return Some(at);
        }
        escaped = c == '\\' && !escaped;
    }
    None
}

impl RawValue<'_> {
    fn resolve(&self, known: &dyn Fn(&str) -> Option<String>) -> Result<String, LineProblem> {
        match self {
            RawValue::Plain(text) => substitute_variables(text, known, 0),
            RawValue::Double(text) => substitute_variables(&unescape(text), known, 0),
            RawValue::Literal(text) => Ok(text.replace("\\'", "'")),
        }
    }
}

/// Replaces the escapes in double-quoted text. `\$` becomes `$$`, which variable substitution turns into `$`.
fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('t') => out.push('\t'),
            Some('$') => out.push_str("$$"),
            Some(c @ ('"' | '\\')) => out.push(c),
            Some(other) => out.extend(['\\', other]),
            None => out.push('\\'),
        }
    }
    out
}

/// Substitutes variables in `text`; unset variables are replaced by nothing.
fn substitute_variables(
    text: &str,
    known: &dyn Fn(&str) -> Option<String>,
    depth: u32,
) -> Result<String, LineProblem> {
    if depth > MAX_NESTED_DEFAULTS {
        return Err(TOO_LONG);
    }
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some(inner) = rest.strip_prefix('{') {
            let end = find_closing_brace(inner).ok_or(INVALID_BRACES)?;
            out.push_str(&expand_braces(&inner[..end], known, depth)?);
            rest = &inner[end + 1..];
        } else {
            let name = name_length(rest);
            match name {
                // Keep a `$` that is not followed by a name.
                0 => out.push('$'),
                name => out.push_str(&known(&rest[..name]).unwrap_or_default()),
            }
            rest = &rest[name..];
        }
        if out.len() > MAX_VALUE_BYTES {
            return Err(TOO_LONG);
        }
    }
    out.push_str(rest);
    Ok(out)
}

fn name_length(text: &str) -> usize {
    let is_part = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_';
    match text.bytes().next() {
        Some(first) if first.is_ascii_digit() => 0,
        _ => text.bytes().take_while(|b| is_part(b)).count(),
    }
}

/// Returns the position of the closing brace. `text` starts after the opening brace.
fn find_closing_brace(text: &str) -> Option<usize> {
    let mut open = 1;
    for (at, c) in text.char_indices() {
        open += match c {
            '{' => 1,
            '}' => -1,
            _ => 0,
        };
        if open == 0 {
            return Some(at);
        }
    }
    None
}

/// Evaluates `NAME`, `NAME:-default`, `NAME:+other` or `NAME:?problem`; without the colon, an empty value counts as
/// set.
fn expand_braces(
    text: &str,
    known: &dyn Fn(&str) -> Option<String>,
    depth: u32,
) -> Result<String, LineProblem> {
    let (name, rest) = text.split_at(name_length(text));
    if name.is_empty() {
        return Err(INVALID_BRACES);
    }
    let value = known(name);
    let (value, operator) = match rest.strip_prefix(':') {
        Some(operator) => (value.filter(|value| !value.is_empty()), operator),
        None => (value, rest),
    };
    let mut chars = operator.chars();
    let kind = chars.next();
    let other = chars.as_str();
    match (kind, value) {
        (None, value) if rest.is_empty() => Ok(value.unwrap_or_default()),
        (Some('-' | '?'), Some(value)) => Ok(value),
        (Some('-'), None) | (Some('+'), Some(_)) => substitute_variables(other, known, depth + 1),
        (Some('+'), None) => Ok(String::new()),
        (Some('?'), None) => Err(NOT_SET),
        _ => Err(INVALID_BRACES),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_process(name: &str) -> Option<String> {
        (name == "HOME").then(|| "/users/a".to_owned())
    }

    #[test]
    fn values_match_docker_compose() {
        for (line, value) in [
            ("A=plain words, no quotes", "plain words, no quotes"),
            ("A = b ", "b"),
            ("export A=b", "b"),
            ("A: b", "b"),
            ("A=", ""),
            ("A=b # a comment", "b"),
            ("A=b#no comment", "b#no comment"),
            ("A=# a comment", ""),
            ("A=\"b # c\" # a comment", "b # c"),
            ("A='b $HOME \\n'", "b $HOME \\n"),
            ("A='it\\'s'", "it's"),
            ("A=\"b\\tc\\\"d\\\\e\\$HOME\"", "b\tc\"d\\e$HOME"),
            ("A=\"one\ntwo\"", "one\ntwo"),
            ("A=it's", "it's"),
            ("A=$HOME/x", "/users/a/x"),
            ("A=${HOME}x", "/users/ax"),
            ("A=$$HOME $ 5$", "$HOME $ 5$"),
            ("A=$NONE.", "."),
            ("A=${NONE:-d ${NONE-e}}", "d e"),
            ("A=${HOME:+set}${NONE:+set}", "set"),
            ("A=${EMPTY-d}${EMPTY:-e}", "e"),
            ("A=a=b:c", "a=b:c"),
            ("A=b\r", "b"),
        ] {
            let text = format!("# first\nEMPTY=\n\n{line}\nLAST=1");
            let read = read(&text, of_process);
            assert_eq!(read.unreadable, [], "{line}");
            assert_eq!(read.values["A"], value, "{line}");
            assert_eq!(read.values["LAST"], "1", "{line}");
        }
        assert_eq!(read("\u{feff}A=1", of_process).values["A"], "1");
        // A bare name refers to the process's variable, and a later line wins.
        let again = read("HOME\nA=1\nB=$A\nA=2", of_process);
        assert_eq!(again.values.len(), 2);
        assert_eq!((&*again.values["A"], &*again.values["B"]), ("2", "1"));
    }

    #[test]
    fn malformed_line_drops_only_its_variable() {
        for (line, name, problem) in [
            ("A=\"secret", Some("A"), UNCLOSED_QUOTE),
            ("A='secret' secret", Some("A"), TEXT_AFTER_QUOTE),
            ("A=${secret", Some("A"), INVALID_BRACES),
            ("A=${}", Some("A"), INVALID_BRACES),
            ("A=${B*}", Some("A"), INVALID_BRACES),
            ("A=${NONE:?secret}", Some("A"), NOT_SET),
            ("secret words", None, NO_NAME),
            ("=secret", None, NO_NAME),
            ("a b=secret", None, NO_NAME),
        ] {
            let text = format!("BEFORE=1\nA=old\n{line}\nAFTER=2\n");
            let read = read(&text, of_process);
            let unreadable = UnreadableLine {
                line: 3,
                name: name.map(str::to_owned),
                problem,
            };
            assert_eq!(read.unreadable, [unreadable], "{line}");
            assert_eq!(read.values["BEFORE"], "1");
            assert_eq!(read.values["AFTER"], "2", "{line}");
            assert_eq!(read.values.contains_key("A"), name.is_none(), "{line}");
        }
    }

    #[test]
    fn adversarial_input_neither_panics_nor_expands() {
        let deep = format!("A={}{}", "${B:-".repeat(40), "}".repeat(40));
        assert_eq!(read(&deep, of_process).unreadable[0].problem, TOO_LONG);
        let doubling: String = (0..40)
            .map(|n| format!("A{}=$A{n}$A{n}\n", n + 1))
            .collect();
        let read = self::read(&format!("A0=x\n{doubling}"), of_process);
        assert_eq!(read.unreadable[0].problem, TOO_LONG);
        let longest = read.values.values().map(String::len).max();
        assert!(longest <= Some(MAX_VALUE_BYTES), "{longest:?}");
        for text in [
            "", "\n", "=", "A", "A=\"", "A='", "A=$", "A=${", "\u{feff}", "é=ü", "export",
            "export ",
        ] {
            let _ = self::read(text, of_process);
        }
    }
}
