//! Reads files of curl command lines, as browsers export requests. Each line is translated like a typed command
//! ([`crate::http::foreign_lines`]).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::exchange::{
    PlusSign, RecordedExchange, RecordedPart, RequestBody, percent_decode, split_url,
};
use super::selection::{RecordedTraffic, RequestSelection, has_asset_path};
use super::shell_words::{CommandWords, split_commands};
use crate::http::foreign_lines::CURL_TOOL;

/// Returns whether a file begins with a curl command.
pub(super) fn is_curl(text: &str) -> bool {
    let is_comment = |line: &&str| !line.is_empty() && !line.starts_with('#');
    let first = text.lines().map(str::trim).find(is_comment);
    first.is_some_and(|line| line.split_whitespace().next() == Some("curl"))
}

/// Reads the commands of a file.
///
/// # Errors
/// Returns the number of the first line that can't be read, and the reason.
pub(super) fn read(text: &str, selection: RequestSelection<'_>) -> Result<RecordedTraffic, String> {
    if text.lines().any(|line| line.ends_with(" ^")) {
        return Err(
            "these lines are for cmd.exe: have the browser copy them as cURL (bash)".to_owned(),
        );
    }
    let mut recording = RecordedTraffic::default();
    let mut kept = Vec::new();
    for command in split_commands(text)? {
        recording.total += 1;
        let at = |problem: String| format!("line {}: {problem}", command.line);
        let exchange = recording.read_exchange(&command).map_err(at)?;
        let is_asset = exchange.method == "GET" && has_asset_path(&exchange.path);
        kept.push((is_asset, exchange));
    }
    recording.keep_selected(kept, selection)?;
    Ok(recording)
}

impl RecordedTraffic {
    /// Returns the request of a curl command.
    fn read_exchange(&mut self, command: &CommandWords) -> Result<RecordedExchange, String> {
        let (tool, words) = command.words.split_first().ok_or("no command")?;
        if tool != "curl" {
            return Err(format!("`{tool}` is not curl: each line is one of curl"));
        }
        let line = CURL_TOOL.translate("http", words, None).map_err(|wrong| {
            use crate::interface::foreign::command_lines::LineError::{InvalidValue, UnknownFlag};
            match wrong {
                UnknownFlag(flag) => format!("curl has no flag `{flag}`"),
                InvalidValue(flag) => format!("`{flag}` lacks its value, or has another form"),
            }
        })?;
        if let Some(reason) = line.reasons.first() {
            return Err(reason.clone());
        }
        let ours = line.words.get(1..).unwrap_or_default();
        let url = ours.first().map(String::as_str).unwrap_or_default();
        let (origin, path) = split_url(url)?;
        let mut exchange = RecordedExchange {
            origin,
            path,
            ..RecordedExchange::default()
        };
        if let Some(credentials) = user_information(url) {
            let value = format!("Basic {}", STANDARD.encode(credentials));
            exchange.headers.push(("authorization".to_owned(), value));
        }
        let mut method = None;
        let mut rest = ours.iter().skip(1);
        while let Some(flag) = rest.next() {
            match flag.as_str() {
                "-X" => method = rest.next().cloned(),
                "-H" => exchange
                    .headers
                    .extend(rest.next().and_then(|field| split_header(field))),
                "-d" => exchange.body = read_body(rest.next())?,
                "-F" => exchange.add_part(rest.next().map_or("", String::as_str)),
                "-u" => {
                    let pair = rest.next().map_or("", String::as_str);
                    let value = format!("Basic {}", STANDARD.encode(pair));
                    exchange.headers.push(("authorization".to_owned(), value));
                }
                "--http-version" => {
                    exchange.is_multiplexed = rest.next().is_some_and(|version| version == "2");
                }
                // Skips the flags that limit a translated command to one call, since a step makes one call anyway.
                "--clients" | "--calls" => drop(rest.next()),
                "--compressed" => {}
                "-L" => self.notes.push(format!(
                    "line {}: redirects are steps of their own, so -L is left out",
                    command.line
                )),
                // A value may be secret, so the message does not show it.
                other => {
                    let is_flag = other.starts_with('-');
                    if is_flag && !SWITCH_FLAGS.contains(&other) {
                        rest.next();
                    }
                    let shown = if is_flag { other } else { "VALUE" };
                    self.notes.push(format!(
                        "line {}: `{shown}` is left out: it belongs to the plan, not to a step",
                        command.line
                    ));
                }
            }
        }
        let has_body = !matches!(exchange.body, RequestBody::Empty);
        let usual = if has_body { "POST" } else { "GET" };
        exchange.method = method.unwrap_or_else(|| usual.to_owned());
        Ok(exchange)
    }
}

/// Plimsoll's flags without a value.
const SWITCH_FLAGS: [&str; 3] = ["-k", "--insecure", "--no-retry"];

/// Returns the decoded user and password of a URL.
fn user_information(url: &str) -> Option<String> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let (credentials, _) = authority.rsplit_once('@')?;
    percent_decode(credentials, PlusSign::Plus)
}

/// Splits the value of `--header` into name and value; `$$` at the beginning of the value becomes `$`.
fn split_header(field: &str) -> Option<(String, String)> {
    let (name, value) = field.split_once(':')?;
    let value = value.trim();
    let value = value
        .strip_prefix("$$")
        .map_or_else(|| value.to_owned(), |rest| format!("${rest}"));
    Some((name.trim().to_ascii_lowercase(), value))
}

fn read_body(text: Option<&String>) -> Result<RequestBody, String> {
    let text = text.cloned().unwrap_or_default();
    match text.strip_prefix('@') {
        Some(file) => Err(format!(
            "-d @{file}: put the text of the file into the line, or write body_file in the plan"
        )),
        None if text.is_empty() => Ok(RequestBody::Empty),
        None => Ok(RequestBody::Text(text)),
    }
}

impl RecordedExchange {
    /// Adds a form part written as NAME=VALUE or NAME=@FILE.
    fn add_part(&mut self, typed: &str) {
        let (name, value) = typed.split_once('=').unwrap_or((typed, ""));
        let file = value.strip_prefix('@');
        let part = RecordedPart {
            name: name.to_owned(),
            value: value.to_owned(),
            file: file.map(|file| file.split(';').next().unwrap_or_default().to_owned()),
        };
        match &mut self.body {
            RequestBody::Parts(parts) => parts.push(part),
            body => *body = RequestBody::Parts(vec![part]),
        }
    }
}
