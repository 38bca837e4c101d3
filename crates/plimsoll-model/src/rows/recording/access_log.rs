//! Parses lines of access logs.

use std::net::{IpAddr, SocketAddr};

use super::timestamps::{LineTimestamp, parse_common_log_time, parse_rfc3339};

/// The result of parsing a line: its time and the values of its columns, or why it is invalid.
pub(super) type RowResult = Result<(LineTimestamp, Vec<String>), &'static str>;

/// The columns of access logs.
pub(super) const ACCESS_LOG_COLUMNS: [&str; 8] = [
    "client", "time", "method", "path", "host", "status", "referer", "agent",
];

/// Splits `GET /path HTTP/1.1` into method and target.
pub(super) fn split_request_line(text: &str) -> Option<(&str, &str)> {
    let mut words = text.split(' ');
    let (method, target) = (words.next()?, words.next()?);
    let is_method = !method.is_empty() && method.bytes().all(|b| b.is_ascii_uppercase());
    let is_target = target.starts_with('/') || target.contains("://") || target == "*";
    (is_method && is_target).then_some((method, target))
}

pub(super) const UNSENDABLE_PATH_ERROR: &str = "its path can't be sent as it is";

/// Returns whether the text is valid as a request's path (RFC 9112 §3.2.1).
pub(super) fn is_valid_path(text: &str) -> bool {
    text.starts_with('/')
        && text
            .bytes()
            .all(|b| (0x21..=0x7e).contains(&b) && b != b'#')
}

/// Splits a URL into its host, empty if there is none, and path with query.
pub(super) fn split_url(target: &str) -> (&str, &str) {
    let Some((_, rest)) = target
        .split_once("://")
        .filter(|_| !target.starts_with('/'))
    else {
        return ("", target);
    };
    match rest.find('/') {
        Some(at) => (&rest[..at], &rest[at..]),
        None => (rest, "/"),
    }
}

/// Parses a line of an access log: a time in brackets, or an RFC 3339 time among the first words, and a request line in
/// quotes. This covers the formats of nginx, Apache, HAProxy, Envoy and AWS load balancers.
pub(super) fn parse_line(line: &str) -> RowResult {
    const MISSING_TIME_ERROR: &str = "it has no time";
    let mut bracketed = line
        .match_indices('[')
        .filter_map(|(at, _)| line[at + 1..].split(']').next());
    let time = bracketed.find_map(|text| {
        parse_common_log_time(text)
            .or_else(|| parse_rfc3339(text))
            .map(|stamp| (stamp, text))
    });
    let words = || line.split(' ').take(3).chain(request_creation_time(line));
    let found = || {
        words()
            .filter_map(|word| parse_rfc3339(word).map(|stamp| (stamp, word)))
            .last()
    };
    let (stamp, time) = time.or_else(found).ok_or(MISSING_TIME_ERROR)?;
    let (before, request, behind) = find_quoted_texts(line)
        .find(|(_, text, _)| split_request_line(text).is_some())
        .ok_or("it has no request line in quotes")?;
    let (method, target) = split_request_line(request).unwrap_or_default();
    let (host, path) = split_url(target);
    if !is_valid_path(path) {
        return Err(UNSENDABLE_PATH_ERROR);
    }
    let mut after = find_quoted_texts(behind).map(|(_, text, _)| text);
    // Load balancers and proxies write the status before the request.
    let is_status = |word: &&str| word.len() == 3 && word.bytes().all(|b| b.is_ascii_digit());
    let status = behind
        .split(' ')
        .find(|word| !word.is_empty())
        .filter(is_status);
    let status = status.or_else(|| before.split(' ').find(is_status));
    let (first, second) = (after.next(), after.next());
    let (referer, agent) = match (first, second) {
        (Some(referer), Some(agent)) => (referer, agent),
        (Some(agent), None) => ("", agent),
        _ => ("", ""),
    };
    let client = find_client(before).unwrap_or_default();
    let values = [
        client,
        time,
        method,
        path,
        host,
        status.unwrap_or(""),
        referer,
        agent,
    ];
    let given = |value: &str| {
        value
            .strip_prefix('-')
            .filter(|rest| rest.is_empty())
            .unwrap_or(value)
            .to_owned()
    };
    Ok((stamp, values.map(given).to_vec()))
}

/// Returns the client's address or host name from the text before the request.
fn find_client(before: &str) -> Option<&str> {
    let address = |word: &str| {
        let port = word
            .rfind(':')
            .filter(|_| word.parse::<SocketAddr>().is_ok());
        port.or_else(|| word.parse::<IpAddr>().ok().map(|_| word.len()))
    };
    let mut words = before.split(' ');
    let found = words.clone().find_map(|word| Some(&word[..address(word)?]));
    let is_common = || {
        words
            .clone()
            .nth(3)
            .is_some_and(|word| word.starts_with('['))
    };
    match found {
        None if is_common() => words.next(),
        found => found,
    }
}

/// Returns when an AWS load balancer received the request: the 22nd field, after the ARN of the certificate. The first
/// time in the line can't be used, because it is the time of the answer.
fn request_creation_time(line: &str) -> Option<&str> {
    let (_, behind) = line.split_once("\"Root=")?;
    let mut times = behind
        .split(' ')
        .filter(|word| word.len() > 20 && word.ends_with('Z'));
    times.next()
}

/// Returns the quoted texts of a line, each with the text before and after it.
fn find_quoted_texts(line: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at + line[at..].find('"')? + 1;
        let mut end = start;
        loop {
            end += line[end..].find('"')?;
            // Skip quotes that Apache has escaped.
            if line[..end].ends_with('\\') && !line[..end].ends_with("\\\\") {
                end += 1;
                continue;
            }
            break;
        }
        at = end + 1;
        Some((&line[..start - 1], &line[start..end], &line[at..]))
    })
}
