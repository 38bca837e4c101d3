//! What a line of an access log says.

use std::net::{IpAddr, SocketAddr};

use super::stamps::{Stamp, clf, date};

/// A line that has been read: its time and the values of its columns, or the reason why it can't be read.
pub(super) type Row = Result<(Stamp, Vec<String>), &'static str>;

/// The columns of access logs.
pub(super) const COLUMNS: [&str; 8] = [
    "client", "time", "method", "path", "host", "status", "referer", "agent",
];

/// The method and the target of `GET /path HTTP/1.1`.
pub(super) fn request_line(text: &str) -> Option<(&str, &str)> {
    let mut words = text.split(' ');
    let (method, target) = (words.next()?, words.next()?);
    let is_method = !method.is_empty() && method.bytes().all(|b| b.is_ascii_uppercase());
    let is_target = target.starts_with('/') || target.contains("://") || target == "*";
    (is_method && is_target).then_some((method, target))
}

pub(super) const UNSENDABLE_PATH: &str = "its path can't be sent as it is";

/// It can be a request's path (RFC 9112, 3.2.1).
pub(super) fn is_path(text: &str) -> bool {
    text.starts_with('/')
        && text
            .bytes()
            .all(|b| (0x21..=0x7e).contains(&b) && b != b'#')
}

/// The host of a URL, empty where there is none, and its path and query.
pub(super) fn origin(target: &str) -> (&str, &str) {
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

/// A line of an access log: a time in brackets, or an RFC 3339 time as one of the first words, and a request line in
/// quotes. So write nginx, Apache, HAProxy and Envoy, and AWS's load balancers.
pub(super) fn access(line: &str) -> Row {
    const NO_TIME: &str = "it has no time";
    let mut bracketed = line
        .match_indices('[')
        .filter_map(|(at, _)| line[at + 1..].split(']').next());
    let time =
        bracketed.find_map(|text| clf(text).or_else(|| date(text)).map(|stamp| (stamp, text)));
    let words = || line.split(' ').take(3).chain(creation_time(line));
    let found = || {
        words()
            .filter_map(|word| date(word).map(|stamp| (stamp, word)))
            .last()
    };
    let (stamp, time) = time.or_else(found).ok_or(NO_TIME)?;
    let (before, request, behind) = quoted(line)
        .find(|(_, text, _)| request_line(text).is_some())
        .ok_or("it has no request line in quotes")?;
    let (method, target) = request_line(request).unwrap_or_default();
    let (host, path) = origin(target);
    if !is_path(path) {
        return Err(UNSENDABLE_PATH);
    }
    let mut after = quoted(behind).map(|(_, text, _)| text);
    // Load balancers and proxies have the status before the request.
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
    let client = client_in(before).unwrap_or_default();
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

/// The client's address, or its name where a log of nginx or Apache has one, of what stands before a request.
fn client_in(before: &str) -> Option<&str> {
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

/// When an AWS load balancer received the request: behind the ARN of the certificate, the 22nd field. The first time of
/// a line is when it was answered.
fn creation_time(line: &str) -> Option<&str> {
    let (_, behind) = line.split_once("\"Root=")?;
    let mut times = behind
        .split(' ')
        .filter(|word| word.len() > 20 && word.ends_with('Z'));
    times.next()
}

/// The quoted texts of a line, each with what stands before and behind it.
fn quoted(line: &str) -> impl Iterator<Item = (&str, &str, &str)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at + line[at..].find('"')? + 1;
        let mut end = start;
        loop {
            end += line[end..].find('"')?;
            // Apache escapes a quote.
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
