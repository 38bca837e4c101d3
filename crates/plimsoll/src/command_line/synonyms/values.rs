//! Decides whether a Plimsoll flag can replace another tool's flag by the typed value, and fills the value into the
//! counterpart: a template of Plimsoll's flag, such as `--rate {N}/s`.

const TIME_UNITS: [&str; 7] = ["ns", "us", "µs", "ms", "s", "m", "h"];

/// Prefixes of media types.
const MEDIA_TYPES: [&str; 7] = [
    "application/",
    "audio/",
    "image/",
    "multipart/",
    "text/",
    "video/",
    "*/",
];

/// Names of output formats, which other tools accept where Plimsoll expects a folder.
const FORMAT_NAMES: [&str; 5] = ["json", "csv", "html", "text", "/dev/null"];

/// Returns the value of a flag in a command line: attached to the flag (`-n5`, `--n=5`), or in the next word.
pub(super) fn flag_value<'a>(flag: &str, words: &[&'a str]) -> Option<&'a str> {
    let at = words.iter().position(|word| word.starts_with(flag))?;
    let attached = words[at][flag.len()..].trim_start_matches('=');
    if !attached.is_empty() {
        return Some(attached);
    }
    let next = words.get(at + 1).copied();
    next.filter(|next| !next.starts_with('-') && !next.contains("://"))
}

/// Returns the placeholder of a counterpart, without its braces.
pub(super) fn placeholder(text: &str) -> Option<&str> {
    let (begin, end) = (text.find('{')?, text.find('}')?);
    text.get(begin + 1..end)
}

/// Returns whether a counterpart has an example value in place of a placeholder, such as `--warmup 5s`.
pub(super) fn has_example_value(ours: &str) -> bool {
    let is_switch = ours.split(' ').all(|word| word.starts_with('-'));
    placeholder(ours).is_none() && !is_switch
}

/// Returns whether a counterpart's value is a secret, which must not be shown in messages.
pub(super) fn has_secret_value(ours: &str) -> bool {
    placeholder(ours) == Some("USER:PASSWORD")
}

/// Returns whether a value has the form that the placeholder in a counterpart requires; true if there is no value.
pub(super) fn value_fits(ours: &str, value: Option<&str>) -> bool {
    let (Some(placeholder), Some(value)) = (placeholder(ours), value) else {
        return true;
    };
    let is_number = value.parse::<f64>().is_ok();
    match placeholder {
        // A rate may have a unit.
        "N" => is_number || value.contains('/') && value.starts_with(|c: char| c.is_ascii_digit()),
        "TIME" => is_number || is_time(value),
        "FILE" => !is_number && !is_time(value),
        "VERB" => value.bytes().all(|byte| byte.is_ascii_uppercase()),
        "METHOD" => value.contains(['/', '.']),
        "TYPE" => MEDIA_TYPES.iter().any(|begin| value.starts_with(begin)),
        "COOKIE" => value.contains('=') && !value.starts_with(['{', '[']),
        "USER:PASSWORD" => value.contains(':'),
        "DIR" => !FORMAT_NAMES.contains(&value),
        _ => true,
    }
}

/// Returns whether a text is a number with a unit of time, such as `5s`.
pub(crate) fn is_time(text: &str) -> bool {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    unit.len() < text.len() && TIME_UNITS.contains(&unit)
}

/// Replaces the placeholder in `text`, if there is one, by the value, quoted for a shell. Numbers without a unit get
/// the unit that the placeholder implies.
pub(super) fn fill_placeholder(text: &str, value: Option<&str>) -> String {
    let (Some(begin), Some(end)) = (text.find('{'), text.find('}')) else {
        return text.to_owned();
    };
    let placeholder = &text[begin + 1..end];
    let value = value.unwrap_or(placeholder);
    let is_number = value.parse::<f64>().is_ok();
    let rest = &text[end + 1..];
    let rest = if rest == "/s" && !is_number && value != placeholder {
        ""
    } else {
        rest
    };
    let unit = if placeholder == "TIME" && is_number {
        "s"
    } else {
        ""
    };
    let quoted = text[..begin].contains('\'');
    let value = if quoted {
        value.replace('\'', "'\\''")
    } else {
        shell_words::quote(value).into_owned()
    };
    format!("{}{value}{unit}{rest}", &text[..begin])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_decide_between_counterparts() {
        for (ours, fitting, other) in [
            ("--workers {N}", "2", "5s"),
            ("--rate {N}/s", "50/1s", "fast"),
            ("--deadline {TIME}", "5s", "body.json"),
            ("-d @{FILE}", "body.json", "4"),
            ("-X {VERB}", "POST", "a: b"),
            ("-m {METHOD}", "a.B/C", "POST"),
            ("-H 'accept: {TYPE}'", "application/json", "Mozilla/5.0"),
            ("-H 'cookie: {COOKIE}'", "a=b", "{\"a\": 1}"),
            ("--out {DIR}", "out", "json"),
            ("-u {USER:PASSWORD}", "a:b", "10"),
        ] {
            assert!(value_fits(ours, Some(fitting)), "{ours}: {fitting}");
            assert!(!value_fits(ours, Some(other)), "{ours}: {other}");
            assert!(value_fits(ours, None), "{ours}");
        }
    }
}
