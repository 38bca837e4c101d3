//! Decides whether a Plimsoll flag can replace another tool's flag by the typed value, and fills the value into the
//! counterpart: a template of Plimsoll's flag, such as `--rate {N}/s`.

use std::path::Path;

use plimsoll_protocols::interface::foreign::cipher_names::suite_from_openssl;

use super::limits::{self, is_time};

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

/// Members of a request's JSON body that other tools have flags for.
const BODY_MEMBERS: [&str; 4] = ["temperature", "top_p", "top_k", "frequency_penalty"];

/// Placeholders that are replaced by nothing: the value only decides whether the counterpart fits.
const CONDITIONS: [&str; 9] = [
    "json", "csv", "markdown", "0", "hist", "1.0", "1.1", "1.2", "1.3",
];

/// Returns whether a value meets the condition that a placeholder of [`CONDITIONS`] stands for.
fn meets_condition(condition: &str, value: &str) -> bool {
    match condition {
        "hist" => value.starts_with("hist"),
        version if version.starts_with("1.") => tls_version(value) == Some(version),
        text => value == text,
    }
}

/// Returns the version of TLS in a value such as `1.2`, `TLSv1.2`, `tls1_2` or `VersionTLS12`.
fn tls_version(value: &str) -> Option<&'static str> {
    let is_version = value.starts_with("1.") || value.to_ascii_lowercase().contains("tls");
    let digits: String = value.chars().filter(char::is_ascii_digit).collect();
    match digits.as_str() {
        _ if !is_version => None,
        "1" | "10" => Some("1.0"),
        "11" => Some("1.1"),
        "12" => Some("1.2"),
        "13" => Some("1.3"),
        _ => None,
    }
}

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

/// Returns whether a counterpart takes a secret from the environment in place of the typed value.
pub(super) fn replaces_secret(ours: &str) -> bool {
    ours.contains("-env ") || ours.contains(": $")
}

/// Splits a line from the redirection or the further command that follows its flags.
pub(super) fn split_tail(line: &str) -> (&str, &str) {
    let at = [" > ", " && "].iter().find_map(|tail| line.find(tail));
    line.split_at(at.unwrap_or(line.len()))
}

/// Returns whether a value has the form that the placeholder in a counterpart requires. Without a value, every
/// placeholder but a port's can be shown as it is.
pub(super) fn value_fits(ours: &str, value: Option<&str>) -> bool {
    let (Some(placeholder), Some(value)) = (placeholder(ours), value) else {
        return !ours.contains("{:PORT}");
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
        "DIR" => !FORMAT_NAMES.contains(&value) && !value.contains('.'),
        "HTML" => value.ends_with(".html"),
        "JSON" => value.ends_with(".json"),
        "CSV" => value.ends_with(".csv"),
        // A file that exists is read, and any other is to be written.
        "NEW CSV" => !Path::new(value).exists(),
        "SUITE" => !supported_suites(value).is_empty(),
        "ROWS" => [".csv", ".tsv", ".ndjson"]
            .iter()
            .any(|end| value.ends_with(end)),
        "NAME: VALUE" => value.contains(':'),
        ":PORT" => (value.strip_prefix(':')).is_some_and(|port| port.parse::<u16>().is_ok()),
        condition if CONDITIONS.contains(&condition) => meets_condition(condition, value),
        name if BODY_MEMBERS.contains(&name) => is_number,
        _ => objective(placeholder, value).is_none_or(|limit| limit.is_some()),
    }
}

/// Returns the standards' names of the suites in a list that may have OpenSSL's names, without those that are not
/// supported.
fn supported_suites(list: &str) -> Vec<&str> {
    let names = list.split([':', ',']);
    names
        .filter_map(|name| {
            suite_from_openssl(name).or(Some(name).filter(|name| name.starts_with("TLS")))
        })
        .collect()
}

/// Returns the objective that a value means if the placeholder stands for one; the inner `None` means that the value
/// can't be read.
fn objective(placeholder: &str, value: &str) -> Option<Option<String>> {
    Some(match placeholder {
        "LIMIT" => limits::objective_from_limit(value),
        "FAILURE" => limits::objective_from_failure(value),
        "ERRORS" => limits::error_objective(value),
        statistic if statistic.starts_with('p') && statistic[1..].parse::<f64>().is_ok() => {
            limits::time_objective(statistic, value)
        }
        _ => return None,
    })
}

/// Returns what stands in an example if no value was typed.
fn example(placeholder: &str) -> &str {
    match placeholder {
        "LIMIT" | "FAILURE" => "p99 < 10ms",
        "ERRORS" => "errors < 0.1%",
        condition if CONDITIONS.contains(&condition) => "",
        "JSON" => "results.json",
        "HTML" => "report.html",
        "CSV" | "NEW CSV" => "results",
        other => other,
    }
}

/// Replaces the placeholder in `text`, if there is one, by the value, quoted for a shell. Numbers without a unit get
/// the unit that the placeholder implies.
pub(super) fn fill_placeholder(text: &str, value: Option<&str>) -> String {
    let (Some(begin), Some(end)) = (text.find('{'), text.find('}')) else {
        return text.to_owned();
    };
    let placeholder = &text[begin + 1..end];
    let limit = value.and_then(|value| objective(placeholder, value).flatten());
    let member = value.filter(|_| BODY_MEMBERS.contains(&placeholder));
    let member = member.map(|value| format!("{{\"{placeholder}\": {value}}}"));
    let value = limit.as_deref().or(member.as_deref()).or(value);
    let value = match (placeholder, value) {
        (condition, _) if CONDITIONS.contains(&condition) => return text[..begin].to_owned(),
        ("CSV" | "NEW CSV", Some(file)) => file.trim_end_matches(".csv"),
        ("SUITE", Some(list)) => {
            return format!(
                "{}{}",
                &text[..begin],
                supported_suites(list).join(" --suite ")
            );
        }
        (_, value) => value.unwrap_or(example(placeholder)),
    };
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
    // A file may have been typed with the sign already.
    let value = if text[..begin].ends_with('@') {
        value.trim_start_matches('@')
    } else {
        value
    };
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
    fn ports_alone_are_of_this_machine() {
        let ours = "--telemetry 127.0.0.1{:PORT}";
        assert!(value_fits(ours, Some(":9464")));
        for other in [None, Some("http://a.test:9091"), Some("9464")] {
            assert!(!value_fits(ours, other), "{other:?}");
        }
        let filled = fill_placeholder(ours, Some(":9464"));
        assert_eq!(filled, "--telemetry 127.0.0.1:9464");
    }

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
            ("-H '{NAME: VALUE}'", "a: b", "hello"),
            ("--objective {LIMIT}", "p(95)<80", "p95"),
            ("--html {HTML}", "page.html", "csv"),
            ("--json{json}", "json", "csv"),
            ("--histogram{hist}", "hist[0,1ms]", "text"),
            ("--markdown -{markdown}", "markdown", "csv"),
            ("--tls-version 1.2{1.2}", "1.2", "1.3"),
            ("--tls-version 1.2{1.2}", "TLSv1.2", "12"),
            ("--tls-version 1.3{1.3}", "VersionTLS13", "TLS12"),
            ("--tls-version 1.3{1.0}", "TLSv1", "1.1"),
            ("--requests{NEW CSV}", "no-such-file.csv", "Cargo.toml"),
            (
                "--suite {SUITE}",
                "ECDHE-RSA-AES128-GCM-SHA256",
                "AES128-SHA",
            ),
        ] {
            assert!(value_fits(ours, Some(fitting)), "{ours}: {fitting}");
            assert!(!value_fits(ours, Some(other)), "{ours}: {other}");
            assert!(value_fits(ours, None), "{ours}");
        }
    }
}
