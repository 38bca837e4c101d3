//! Translates flags of other tools that set addresses: files of URLs, Unix sockets, and connections to other hosts.

use std::path::Path;

use plimsoll_model::formats::input;

use crate::interface::foreign::command_lines::LineBuilder;

const SEVERAL_SERVERS_HINT: &str =
    "its URLs are those of several servers, or not plain URLs: each server is a lane of a plan";

/// Takes the target from a file with one URL per line. Several URLs of one server become the rows of calls.
///
/// # Errors
/// Returns an error if the file can't be read, or contains no URL.
pub(super) fn take_target_from_file(line: &mut LineBuilder, file: &str) -> Result<(), String> {
    let text = input::file_to_string(Path::new(file));
    let text = text.map_err(|e| format!("can't read the URLs of {file}: {e}"))?;
    let lines = text.lines().map(str::trim);
    let urls: Vec<&str> = lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect();
    take_target_from_urls(line, file, &urls)
}

/// Takes the target from the URLs of `file`, each of which may follow the word `GET`.
fn take_target_from_urls(line: &mut LineBuilder, file: &str, urls: &[&str]) -> Result<(), String> {
    let bare = |text: &str| text.strip_prefix("GET ").unwrap_or(text).trim().to_owned();
    let urls: Vec<String> = urls.iter().map(|url| bare(url)).collect();
    let Some(first) = urls.first() else {
        return Err(format!("{file} has no URL"));
    };
    let origin = parse_origin(first);
    let is_plain = |url: &String| origin.is_some() && parse_origin(url) == origin;
    let is_one = urls.iter().all(|url| url == first);
    if is_one || !urls.iter().all(is_plain) {
        line.target = first.split_whitespace().next().map(str::to_owned);
        if !is_one {
            line.add_unsupported(file, SEVERAL_SERVERS_HINT);
        }
        return Ok(());
    }
    line.target = origin.map(|origin| format!("{origin}/{{{{row.relative}}}}"));
    line.add("--rows", file);
    Ok(())
}

/// Returns the scheme and authority of a URL; `None` if the text is not a URL alone.
fn parse_origin(url: &str) -> Option<&str> {
    let begin = url.find("://")? + "://".len();
    let end = url[begin..].find('/').map_or(url.len(), |at| begin + at);
    (!url.contains(' ') && end > begin).then(|| &url[..end])
}

/// Replaces the target's host and port by the Unix socket in the tool's flag `name`.
pub(super) fn override_with_unix_socket(line: &mut LineBuilder, name: &str) {
    let Some(socket) = line.value(name).map(str::to_owned) else {
        return;
    };
    if let Some(url) = &line.target {
        let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
        let path = rest.find('/').map_or("/", |at| &rest[at..]);
        line.target = Some(format!("{scheme}+unix:{socket}:{path}"));
    }
}

/// Replaces the target's host and port as the tool's flag `name` says, such as curl's `--connect-to
/// HOST1:PORT1:HOST2:PORT2`. The `Host` field and the name in the certificate remain those of the URL.
pub(super) fn override_addresses(line: &mut LineBuilder, name: &str) {
    for value in line.values(name) {
        let parts: Vec<&str> = value.split(':').collect();
        let (from, to) = match parts[..] {
            [from_host, from_port, to_host, to_port] => {
                (Some((from_host, from_port)), (to_host, to_port))
            }
            // This form, of h2load and vegeta, redirects all connections.
            [to_host, to_port] => (None, (to_host, to_port)),
            _ => {
                line.add_unsupported(
                    format!("--{name} {value}"),
                    "it is HOST:PORT, or HOST1:PORT1:HOST2:PORT2 without brackets",
                );
                continue;
            }
        };
        override_address(line, from, to);
    }
}

/// Replaces the target's host and port by `to` if they equal `from`; an empty host or port in `from` matches any.
fn override_address(line: &mut LineBuilder, from: Option<(&str, &str)>, to: (&str, &str)) {
    let Some(url) = line.target.clone() else {
        return;
    };
    let Some((scheme, rest)) = url.split_once("://") else {
        return;
    };
    let path = rest.find('/').map_or("", |at| &rest[at..]);
    let authority = &rest[..rest.len() - path.len()];
    let default_port = if scheme == "https" { "443" } else { "80" };
    let (host, port) = authority
        .split_once(':')
        .unwrap_or((authority, default_port));
    let matches = |wanted: &str, given: &str| wanted.is_empty() || wanted == given;
    if from.is_some_and(|(from_host, from_port)| {
        !matches(from_host, host) || !matches(from_port, port)
    }) {
        return;
    }
    let or_own = |text: &str, own: &str| if text.is_empty() { own } else { text }.to_owned();
    let (to_host, to_port) = (or_own(to.0, host), or_own(to.1, port));
    line.target = Some(format!("{scheme}://{to_host}:{to_port}{path}"));
    let is_host = |word: &String| word.to_ascii_lowercase().starts_with("host:");
    if !line
        .our_flags
        .iter()
        .any(|word| word == "--host" || is_host(word))
    {
        line.add("--host", authority);
    }
    if scheme == "https" {
        line.add("--server-name", host);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(url: &str, from: Option<(&str, &str)>, to: (&str, &str)) -> (String, String) {
        let mut line = LineBuilder::default();
        line.target = Some(url.to_owned());
        override_address(&mut line, from, to);
        (line.target.unwrap_or_default(), line.our_flags.join(" "))
    }

    #[test]
    fn connections_move_where_the_url_matches() {
        for (from, to, url, flags) in [
            (
                Some(("a.test", "443")),
                ("b", "8443"),
                "https://b:8443/x",
                "--host a.test --server-name a.test",
            ),
            (
                Some(("", "")),
                ("b", ""),
                "https://b:443/x",
                "--host a.test --server-name a.test",
            ),
            (
                None,
                ("b", "1"),
                "https://b:1/x",
                "--host a.test --server-name a.test",
            ),
            (Some(("c.test", "")), ("b", "1"), "https://a.test/x", ""),
        ] {
            let found = moved("https://a.test/x", from, to);
            assert_eq!(found, (url.to_owned(), flags.to_owned()), "{from:?}");
        }
        let found = moved("http://a:8080", None, ("b", "1"));
        assert_eq!(found, ("http://b:1".to_owned(), "--host a:8080".to_owned()));
    }

    #[test]
    fn urls_of_one_server_are_rows() {
        let taken = |urls: &[&str]| {
            let mut line = LineBuilder::default();
            take_target_from_urls(&mut line, "f", urls).map(|()| {
                let target = line.target.clone().unwrap_or_default();
                (target, line.our_flags.join(" "))
            })
        };
        let pair = |a: &str, b: &str| Ok((a.to_owned(), b.to_owned()));
        let rows = pair("http://a/{{row.relative}}", "--rows f");
        assert_eq!(taken(&["http://a/b", "GET http://a/c"]), rows);
        assert_eq!(taken(&["http://a/b"]), pair("http://a/b", ""));
        assert_eq!(taken(&["http://a/b", "http://c/b"]), pair("http://a/b", ""));
        assert_eq!(
            taken(&["http://a/b POST x", "http://a/c"]),
            pair("http://a/b", "")
        );
        assert_eq!(taken(&[]), Err("f has no URL".to_owned()));
    }
}
