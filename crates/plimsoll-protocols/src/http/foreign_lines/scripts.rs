//! Finds literal values in scripts of other tools: URLs, numbers of users, durations, and the settings of a request.
//!
//! Scripts are not run. The values complete the translated line that is shown to the user. A script of wrk that only
//! sets the request is translated completely.

use std::path::Path;

use plimsoll_model::formats::input;
use regex::Regex;

/// Returns the text of a script; `None` if the file does not exist or is not text.
pub(super) fn read_script(path: &str) -> Option<String> {
    input::file_to_string(Path::new(path)).ok()
}

/// Returns the first capture group of the first match.
pub(super) fn find_first(text: &str, pattern: &str) -> Option<String> {
    find_all(text, pattern).into_iter().next()
}

/// Returns the first capture group of every match.
pub(super) fn find_all(text: &str, pattern: &str) -> Vec<String> {
    let Ok(pattern) = Regex::new(pattern) else {
        return Vec::new();
    };
    let groups = pattern
        .captures_iter(text)
        .filter_map(|found| Some(found.get(1)?.as_str().to_owned()));
    groups.collect()
}

/// The parts of a request that a script of wrk sets.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct RequestSettings {
    pub method: Option<String>,
    pub path: Option<String>,
    pub body: Option<String>,
    pub fields: Vec<(String, String)>,
}

/// Returns the settings in a script of wrk; `None` if the script does more than assign strings to `wrk.method`,
/// `wrk.path`, `wrk.body` and `wrk.headers`.
pub(super) fn parse_wrk_script(script: &str) -> Option<RequestSettings> {
    let setting = Regex::new(
        r#"^wrk\.(method|path|body|headers\[\s*["']([^"']+)["']\s*\])\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)')\s*;?\s*(?:--.*)?$"#,
    )
    .ok()?;
    let mut settings = RequestSettings::default();
    for line in script.lines().map(str::trim) {
        if line.is_empty() || line.starts_with("--") && !line.starts_with("--[") {
            continue;
        }
        let found = setting.captures(line)?;
        let value = found.get(3).or(found.get(4))?.as_str();
        let value = unescape(value)?;
        match (&found[1], found.get(2)) {
            ("method", _) => settings.method = Some(value),
            ("path", _) => settings.path = Some(value),
            ("body", _) => settings.body = Some(value),
            (_, Some(name)) => settings.fields.push((name.as_str().to_owned(), value)),
            (_, None) => return None,
        }
    }
    Some(settings)
}

/// Decodes the escapes of a Lua string; `None` if it contains any but `\n`, `\r`, `\t`, `\\` and escaped quotes.
fn unescape(text: &str) -> Option<String> {
    let mut out = String::new();
    let mut left = text.chars();
    while let Some(letter) = left.next() {
        out.push(match letter {
            '\\' => match left.next()? {
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                same @ ('\\' | '"' | '\'') => same,
                _ => return None,
            },
            letter => letter,
        });
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_wrk_scripts_are_settings() {
        let script = "-- a request\nwrk.method = \"POST\"\nwrk.body   = '{\"a\": 1}'\n\
            wrk.headers[\"Content-Type\"] = \"application/json\" -- its type\nwrk.path = \"/a\\\\b\";\n";
        let settings = parse_wrk_script(script).expect("settings");
        assert_eq!(settings.method.as_deref(), Some("POST"));
        assert_eq!(settings.body.as_deref(), Some("{\"a\": 1}"));
        assert_eq!(settings.path.as_deref(), Some("/a\\b"));
        let field = ("Content-Type".to_owned(), "application/json".to_owned());
        assert_eq!(settings.fields, [field]);
        for program in [
            "wrk.method = \"POST\"\nrequest = function() return wrk.format() end",
            "wrk.body = \"a\" .. b",
            "wrk.body = [[a]]",
            "wrk.thread = \"a\"",
            "wrk.body = \"\\x41\"",
            "--[[ a\n]]",
        ] {
            assert_eq!(parse_wrk_script(program), None, "{program}");
        }
    }

    #[test]
    fn texts_of_scripts_are_found() {
        let script = "vus: 5, duration: '1s'\nhttp.get('http://a/b');";
        assert_eq!(find_first(script, r"\bvus:\s*(\d+)").as_deref(), Some("5"));
        assert_eq!(find_first(script, r"\brate:\s*(\d+)"), None);
        assert_eq!(read_script("no/such/file"), None);
    }
}
