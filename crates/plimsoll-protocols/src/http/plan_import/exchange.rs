//! Requests and responses from other tools' files, in the form that all plan sources have in common.

use jiff::Timestamp;

/// A request, and its response if it is known.
#[derive(Clone, Debug, Default)]
pub(super) struct RecordedExchange {
    /// The method, in capitals.
    pub(super) method: String,
    /// Scheme, host and non-default port: `https://shop.example`.
    pub(super) origin: String,
    /// Path and query as sent.
    pub(super) path: String,
    /// Header fields in order, names in lower case.
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: RequestBody,
    pub(super) answer: Option<RecordedAnswer>,
    /// The time when the request was sent, and the time when its response ended.
    pub(super) times: Option<(Timestamp, Timestamp)>,
    /// Whether the exchange used HTTP/2 or HTTP/3.
    pub(super) is_multiplexed: bool,
}

/// The body of a request.
#[derive(Clone, Debug, Default)]
pub(super) enum RequestBody {
    #[default]
    Empty,
    Text(String),
    /// The parts of a form (`multipart/form-data`) whose encoded text is unknown.
    Parts(Vec<RecordedPart>),
}

/// A part of a multipart form.
#[derive(Clone, Debug, Default)]
pub(super) struct RecordedPart {
    pub(super) name: String,
    pub(super) value: String,
    /// The name of the file whose content was sent.
    pub(super) file: Option<String>,
}

/// The response to a request.
#[derive(Clone, Debug, Default)]
pub(super) struct RecordedAnswer {
    pub(super) status: u16,
    /// Header fields in order, names in lower case.
    pub(super) headers: Vec<(String, String)>,
    /// The decoded body; `None` if it is not text, or was not recorded.
    pub(super) body: Option<String>,
}

/// Returns the first value of a header field.
pub(super) fn find_header<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    let found = headers.iter().find(|(known, _)| known == name);
    found.map(|(_, value)| value.as_str())
}

/// Splits an HTTP URL into the origin, and path and query, in which characters that a request line can't contain are
/// percent-encoded. User information and fragment are dropped.
///
/// # Errors
/// Returns a message if the URL is invalid.
pub(super) fn split_url(url: &str) -> Result<(String, String), String> {
    let shown: String = url.chars().take(80).collect();
    let wrong = || format!("`{shown}` is not a URL such as http://shop.example/items");
    let (scheme, rest) = url.split_once("://").ok_or_else(wrong)?;
    let scheme = scheme.to_ascii_lowercase();
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let host = authority.rsplit('@').next().unwrap_or_default();
    let host = host.to_ascii_lowercase();
    let own_port = if scheme == "https" { ":443" } else { ":80" };
    let host = host.strip_suffix(own_port).unwrap_or(&host);
    let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:[]".contains(&byte);
    if !matches!(&*scheme, "http" | "https") || host.is_empty() || !host.bytes().all(is_host) {
        return Err(wrong());
    }
    let path = path.split('#').next().unwrap_or_default();
    let mut sent = if path.starts_with('/') {
        String::new()
    } else {
        "/".to_owned()
    };
    for byte in path.bytes() {
        match byte {
            b'!'..=b'~' => sent.push(char::from(byte)),
            byte => sent.push_str(&format!("%{byte:02X}")),
        }
    }
    Ok((format!("{scheme}://{host}"), sent))
}

/// Returns the host of an origin such as `https://shop.example:8443`.
pub(super) fn origin_host(origin: &str) -> &str {
    let host = origin.split_once("://").map_or(origin, |(_, host)| host);
    match host.rsplit_once(':') {
        // The colons of an IPv6 address are not before a port.
        Some((name, port)) if !port.ends_with(']') => name,
        _ => host,
    }
}

/// Returns the site of an origin: the domain that all its hosts have in common, such as `shop.example` of
/// `https://api.shop.example:8443`. Without a list of the domains below which anybody can register, the usual ones below
/// countries are known, such as `co.uk`.
pub(super) fn origin_site(origin: &str) -> &str {
    const SHARED_LABELS: [&str; 14] = [
        "ac", "co", "com", "edu", "gob", "gov", "go", "mil", "ne", "net", "nom", "or", "org", "sch",
    ];
    let host = origin_host(origin);
    if host.starts_with('[') || host.parse::<std::net::Ipv4Addr>().is_ok() {
        return host;
    }
    let mut labels = host.rsplit('.');
    let is_shared = match (labels.next(), labels.next()) {
        (Some(country), Some(label)) => country.len() == 2 && SHARED_LABELS.contains(&label),
        _ => return host,
    };
    let dot = host.rmatch_indices('.').nth(if is_shared { 2 } else { 1 });
    dot.map_or(host, |(at, _)| &host[at + 1..])
}

/// Decodes percent-encoding. `plus`: the meaning of `+`. Returns `None` if the result is not UTF-8.
pub(super) fn percent_decode(text: &str, plus: PlusSign) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        let decoded = digits.filter(|two| two.bytes().all(|b| b.is_ascii_hexdigit()));
        let decoded = decoded.and_then(|two| u8::from_str_radix(two, 16).ok());
        rest = after;
        match (byte, decoded) {
            (b'%', Some(decoded)) => {
                bytes.push(decoded);
                rest = &after[2..];
            }
            (b'+', _) if plus == PlusSign::Space => bytes.push(b' '),
            (byte, _) => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).ok()
}

/// The meaning of `+` in percent-encoded text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlusSign {
    Plus,
    Space,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_of_one_domain_are_one_site() {
        for (origin, site) in [
            ("https://shop.example", "shop.example"),
            ("https://api.v2.shop.example:8443", "shop.example"),
            ("https://www.shop.co.uk", "shop.co.uk"),
            ("https://shop.co.uk", "shop.co.uk"),
            ("https://www.bbc.uk", "bbc.uk"),
            ("http://localhost:8080", "localhost"),
            ("http://10.0.0.1:80", "10.0.0.1"),
            ("http://[::1]:80", "[::1]"),
        ] {
            assert_eq!(origin_site(origin), site);
        }
    }

    #[test]
    fn urls_are_split_into_origin_and_path() {
        for (url, origin, path) in [
            ("http://a/b?c=d#e", "http://a", "/b?c=d"),
            (
                "HTTPS://me:pw@Shop.Example:443",
                "https://shop.example",
                "/",
            ),
            ("http://[::1]:8080?x", "http://[::1]:8080", "/?x"),
            ("http://a/ü b", "http://a", "/%C3%BC%20b"),
        ] {
            assert_eq!(split_url(url), Ok((origin.to_owned(), path.to_owned())));
        }
        for url in [
            "",
            "a",
            "http://",
            "ftp://a/",
            "http://a b/",
            "http:///x",
            "://x",
        ] {
            assert!(split_url(url).is_err(), "{url}");
        }
    }

    #[test]
    fn percent_encoding_is_decoded_leniently() {
        let plain = |text: &str| percent_decode(text, PlusSign::Plus);
        assert_eq!(plain("a%20b+%").as_deref(), Some("a b+%"));
        assert_eq!(plain("%+1%zz%4").as_deref(), Some("%+1%zz%4"));
        assert_eq!(plain("%ff"), None);
        assert_eq!(
            percent_decode("a+b", PlusSign::Space).as_deref(),
            Some("a b")
        );
    }
}
