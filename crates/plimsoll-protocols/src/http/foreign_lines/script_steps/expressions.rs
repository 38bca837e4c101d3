//! Reads expressions of scripts: URLs, pauses, and the arguments of calls.

use std::collections::BTreeMap;
use std::time::Duration;

use regex::Regex;

use crate::journey::PauseSpec;

/// The longest pause that is read. Scripts make sums of them, which must not overflow.
const MAX_PAUSE: Duration = Duration::from_secs(365 * 24 * 3600);

/// Texts that a script gives names to.
pub(super) type Constants = BTreeMap<String, String>;

/// Removes lines that are comments.
pub(super) fn remove_comments(script: &str, begin: &str) -> String {
    let is_code = |line: &&str| !line.trim_start().starts_with(begin);
    script
        .lines()
        .filter(is_code)
        .collect::<Vec<_>>()
        .join("\n")
}

/// Removes the comments of several lines, `/* … */`, that begin a line. Elsewhere, `/*` may belong to a text.
pub(super) fn remove_comment_blocks(script: &str) -> String {
    let pattern = Regex::new(r"(?ms)^[ \t]*/\*.*?\*/");
    pattern.map_or_else(
        |_| script.to_owned(),
        |pattern| pattern.replace_all(script, "").into_owned(),
    )
}

/// Returns the constants that `pattern` finds; its groups are a name and a text.
pub(super) fn find_constants(script: &str, pattern: &str) -> Constants {
    let Ok(pattern) = Regex::new(pattern) else {
        return Constants::new();
    };
    let found = pattern.captures_iter(script);
    found
        .map(|found| (found[1].to_owned(), found[2].to_owned()))
        .collect()
}

/// Returns the method and the URL of a request; `None` if the script computes one of them.
pub(super) fn read_request(
    method: &str,
    arguments: &[&str],
    constants: &Constants,
) -> Option<(String, String)> {
    let texts = arguments
        .iter()
        .map(|text| read_text(text.trim_start_matches("url="), constants));
    let mut texts = texts.take(2);
    let method = match method {
        "request" | "asyncRequest" => texts.next()??.to_uppercase(),
        "del" => "DELETE".to_owned(),
        "batch" => return None,
        method => method.to_uppercase(),
    };
    Some((method, texts.next()??))
}

/// Splits the arguments of a call at the commas between them. `text` begins behind the call's opening parenthesis.
pub(super) fn split_arguments(text: &str) -> Vec<&str> {
    let mut arguments = Vec::new();
    let (mut depth, mut begin) = (0_u32, 0);
    let mut quote = None;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'' | '`') => quote = Some(c),
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']' | '}') if depth > 0 => depth -= 1,
            (None, ',' | ')') if depth == 0 => {
                arguments.push(text[begin..at].trim());
                begin = at + 1;
                if c == ')' {
                    return arguments;
                }
            }
            (None, _) => {}
        }
    }
    Vec::new()
}

/// Returns a text of the script: a literal, a constant, or several of them; `None` if the script computes it.
fn read_text(text: &str, constants: &Constants) -> Option<String> {
    let text = text.trim();
    let template = text
        .strip_prefix('f')
        .filter(|rest| rest.starts_with(['"', '\'']));
    let quoted = template.unwrap_or(text);
    let quote = quoted.chars().next()?;
    let inner = quoted
        .strip_prefix(['"', '\'', '`'])
        .and_then(|rest| rest.strip_suffix(quote));
    if let Some(inner) = inner.filter(|inner| !inner.contains(quote)) {
        return if quote == '`' || template.is_some() {
            fill_template(inner, constants)
        } else {
            Some(inner.to_owned())
        };
    }
    if let Some((left, right)) = text.split_once(" + ") {
        return Some(read_text(left, constants)? + &read_text(right, constants)?);
    }
    constants.get(text).cloned()
}

/// Replaces `${NAME}` and `{NAME}` by constants, and literals in such braces by their text.
fn fill_template(template: &str, constants: &Constants) -> Option<String> {
    let mut filled = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        let (name, after) = after.split_once('}')?;
        filled.push_str(before.strip_suffix('$').unwrap_or(before));
        filled.push_str(&read_text(name, constants)?);
        rest = after;
    }
    filled.push_str(rest);
    Some(filled)
}

/// Returns the pause of an expression: a number of seconds, or a function that draws one between two numbers.
pub(super) fn read_pause(text: &str, constants: &Constants) -> Option<PauseSpec> {
    let text = text.trim();
    if let Some(fixed) = read_seconds(text) {
        return Some(PauseSpec::Fixed(fixed));
    }
    if text.contains("Math.random()") {
        return read_random(text);
    }
    let Some((function, rest)) = text.split_once('(') else {
        return read_seconds(constants.get(text)?).map(PauseSpec::Fixed);
    };
    let name = function.rsplit('.').next().unwrap_or_default();
    match (name, &split_arguments(rest)[..]) {
        ("constant", [seconds]) => read_seconds(seconds).map(PauseSpec::Fixed),
        ("between" | "randomIntBetween" | "uniform" | "randint", [low, high]) => {
            let (low, high) = (read_seconds(low)?, read_seconds(high)?);
            (low <= high).then_some(PauseSpec::Uniform(low, high))
        }
        _ => None,
    }
}

fn read_seconds(text: &str) -> Option<Duration> {
    to_pause(text.trim().parse().ok()?)
}

fn to_pause(seconds: f64) -> Option<Duration> {
    let pause = Duration::try_from_secs_f64(seconds).ok();
    pause.filter(|pause| *pause <= MAX_PAUSE)
}

/// Reads a sum of a number and of `Math.random()` times a number.
fn read_random(text: &str) -> Option<PauseSpec> {
    const RANDOM: &str = "R";
    let text = text.replace("Math.random()", RANDOM).replace(' ', "");
    let (mut low, mut width) = (0.0, 0.0);
    for term in text.split('+') {
        let factor = match term.split_once('*') {
            Some((RANDOM, factor) | (factor, RANDOM)) => factor,
            None if term == RANDOM => "1",
            _ => {
                low += term.parse::<f64>().ok()?;
                continue;
            }
        };
        width += factor.parse::<f64>().ok()?;
    }
    let (low, high) = (to_pause(low)?, to_pause(low + width)?);
    (low <= high).then_some(PauseSpec::Uniform(low, high))
}

/// Returns the pause that lasts as long as two together; `None` if no pause of a plan does.
pub(super) fn add_pauses(first: Option<PauseSpec>, second: PauseSpec) -> Option<PauseSpec> {
    Some(match (first, second) {
        (None, only) => only,
        (Some(PauseSpec::Fixed(first)), PauseSpec::Fixed(second)) => {
            PauseSpec::Fixed(first + second)
        }
        (Some(PauseSpec::Fixed(more)), PauseSpec::Uniform(low, high))
        | (Some(PauseSpec::Uniform(low, high)), PauseSpec::Fixed(more)) => {
            PauseSpec::Uniform(low + more, high + more)
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pause(text: &str) -> Option<String> {
        read_pause(text, &Constants::new()).map(|pause| pause.to_string())
    }

    #[test]
    fn pauses_are_numbers_and_ranges_of_seconds() {
        for (text, expected) in [
            ("1", Some("1s")),
            ("0.25", Some("250ms")),
            ("randomIntBetween(1, 5)", Some("1s to 5s")),
            ("random.uniform(0.1, 0.3)", Some("100ms to 300ms")),
            ("between(1, 2.5)", Some("1s to 2500ms")),
            ("constant(2)", Some("2s")),
            ("Math.random()", Some("0s to 1s")),
            ("Math.random() * 3 + 1", Some("1s to 4s")),
            ("1 + 0.5 * Math.random()", Some("1s to 1500ms")),
            ("Math.floor(Math.random() * 3)", None),
            ("(1 + Math.random()) * 2", None),
            ("between(5, 1)", None),
            ("-1", None),
            ("1e19", None),
            ("between(1, 1e19)", None),
            ("1e19 * Math.random()", None),
            ("delay", None),
            ("", None),
        ] {
            assert_eq!(pause(text).as_deref(), expected, "{text}");
        }
    }
}
