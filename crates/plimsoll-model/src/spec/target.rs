//! Target URLs, whose scheme determines the protocol and whether TLS is used.

use super::protocol::{self, UrlSchemes};
use crate::plan::{Target, UnixSocket};

impl UrlSchemes {
    /// Returns whether `scheme` is the one with TLS; `None`: it is neither of these schemes.
    fn uses_tls(&self, scheme: &str) -> Option<bool> {
        let is_it = |name: &str| scheme.eq_ignore_ascii_case(name);
        let secured = self.secured.is_some_and(is_it) || self.aliases.is_some_and(|a| is_it(a.1));
        let plain = is_it(self.plain) || self.aliases.is_some_and(|a| is_it(a.0));
        (secured || plain).then_some(secured)
    }

    /// Returns whether `scheme` is an alias of one of these schemes.
    fn is_alias(&self, scheme: &str) -> bool {
        let is_it = |name: &str| scheme.eq_ignore_ascii_case(name);
        (self.aliases).is_some_and(|(plain, secured)| is_it(plain) || is_it(secured))
    }

    /// Returns the scheme for plaintext or for TLS.
    pub(super) fn scheme(&self, secured: bool) -> &'static str {
        let over_tls = self.secured.filter(|_| secured);
        over_tls.unwrap_or(self.plain)
    }
}

impl Target {
    /// Formats the target for `:authority` (RFC 9113 §8.3.1) and `Host` (RFC 9112 §3.2).
    pub fn authority(&self) -> String {
        let name = self.host_without_zone();
        match (&self.socket, name.contains(':')) {
            (Some(_), _) => name.to_owned(),
            (None, true) => format!("[{name}]:{}", self.port),
            (None, false) => format!("{name}:{}", self.port),
        }
    }

    /// Returns the host without its IPv6 zone, which is valid only on this machine (RFC 6874 §4).
    pub fn host_without_zone(&self) -> &str {
        self.host.split('%').next().unwrap_or(&self.host)
    }
}

fn all_schemes() -> impl Iterator<Item = &'static UrlSchemes> {
    protocol::all().map(|protocol| protocol.schemes)
}

/// Returns the schemes of all protocols, without duplicates.
fn distinct_schemes() -> impl Iterator<Item = &'static UrlSchemes> {
    all_schemes().filter(|schemes| {
        let first = all_schemes().find(|other| other.plain == schemes.plain);
        first.is_some_and(|first| first.section == schemes.section)
    })
}

/// Returns the schemes of targets over TLS.
pub(super) fn secured_schemes() -> impl Iterator<Item = &'static str> {
    distinct_schemes().filter_map(|schemes| schemes.secured)
}

/// Returns `grpc://HOST:PORT, or grpcs://HOST:PORT for TLS`, and so on for each protocol.
pub(super) fn target_syntax_help() -> String {
    let mut all = distinct_schemes();
    let mut text = all.next().map_or_else(String::new, |first| {
        let secured = first.secured.unwrap_or(first.plain);
        format!(
            "{}://HOST:PORT, or {secured}://HOST:PORT for TLS",
            first.plain
        )
    });
    for UrlSchemes {
        plain,
        secured,
        purpose,
        with_path,
        ..
    } in all
    {
        let path = if *with_path { "HOST:PORT/PATH" } else { "" };
        text += &match secured {
            Some(secured) => format!("; {plain}:// or {secured}://{path} {purpose}"),
            None => format!("; {plain}://{path} {purpose}"),
        };
    }
    text
}

fn find_schemes(scheme: &str) -> Option<(&'static UrlSchemes, bool)> {
    all_schemes().find_map(|schemes| Some((schemes, schemes.uses_tls(scheme)?)))
}

/// Returns the scheme that differs from a misspelt one in one letter.
fn find_similar_scheme(typed: &str) -> Option<&'static str> {
    let mut all = distinct_schemes().flat_map(|s| std::iter::once(s.plain).chain(s.secured));
    all.find(|ours| {
        let pairs = ours.bytes().zip(typed.bytes());
        typed.len() > 3 && ours.len() == typed.len() && pairs.filter(|(a, b)| a != b).count() == 1
    })
}

/// The two schemes of Unix domain sockets.
const UNIX_SCHEMES: [&str; 2] = ["unix", "unix-abstract"];

/// Splits `unix:PATH` and `grpcs+unix:PATH`, and similar URLs, into the scheme before the `+`, if any, and the name of
/// the socket; `None`: the URL does not name a Unix socket.
fn split_unix_url(url: &str) -> Option<(Option<&str>, &str)> {
    let (scheme, _) = url.split_once(':')?;
    let (before, kind) = match scheme.split_once('+') {
        Some((before, kind)) => (Some(before), kind),
        None => (None, scheme),
    };
    let at = before.map_or(0, |before| before.len() + 1);
    UNIX_SCHEMES.contains(&kind).then(|| (before, &url[at..]))
}

/// Returns whether a URL names a Unix domain socket.
pub fn is_unix_socket(url: &str) -> bool {
    split_unix_url(url).is_some()
}

/// Returns whether a URL names a Unix domain socket without a protocol.
pub fn is_bare_unix_socket(url: &str) -> bool {
    split_unix_url(url).is_some_and(|(scheme, _)| scheme.is_none())
}

/// Splits a URL into its scheme and the rest: `://…`, or `+unix:…`.
pub fn split_scheme(url: &str) -> Option<(&str, &str)> {
    match split_unix_url(url) {
        Some((scheme, _)) => url.split_at_checked(scheme?.len()),
        None => url.split_at_checked(url.find("://")?),
    }
}

/// Returns whether a URL's scheme uses TLS.
pub(super) fn has_tls_scheme(url: &str) -> bool {
    let schemes = split_scheme(url).and_then(|(scheme, _)| find_schemes(scheme));
    schemes.is_some_and(|(_, secured)| secured)
}

/// Returns the section of `call` that belongs to a URL's scheme.
pub fn section_for_url(url: &str) -> Option<&'static str> {
    Some(find_schemes(split_scheme(url)?.0)?.0.section)
}

/// Returns whether `section` of `call` belongs to a URL's scheme. Every section matches a URL without a known scheme.
pub(super) fn section_matches_url(section: &str, url: &str) -> bool {
    let Some((scheme, _)) = split_scheme(url) else {
        return true;
    };
    let mut known = all_schemes().filter(|schemes| schemes.uses_tls(scheme).is_some());
    find_schemes(scheme).is_none() || known.any(|schemes| schemes.section == section)
}

/// Returns whether a URL for `section` may have a path.
pub(super) fn allows_path(section: &str) -> bool {
    all_schemes().any(|schemes| schemes.section == section && schemes.with_path)
}

/// Returns the schemes of the protocol of `url`, plaintext and over TLS; those of the default protocol if the URL has
/// no known scheme.
pub fn schemes_for_url(url: &str) -> (&'static str, &'static str) {
    let scheme = split_scheme(url).map_or("", |(scheme, _)| scheme);
    let schemes =
        find_schemes(scheme).map_or(protocol::default_url_schemes(), |(schemes, _)| schemes);
    match schemes.aliases.filter(|_| schemes.is_alias(scheme)) {
        Some(aliases) => aliases,
        None => (schemes.plain, schemes.secured.unwrap_or(schemes.plain)),
    }
}

/// Returns the scheme of a URL if it is an alias, such as `ws`.
pub fn scheme_alias(url: &str) -> Option<&str> {
    let (scheme, _) = split_scheme(url)?;
    let (schemes, _) = find_schemes(scheme)?;
    schemes.is_alias(scheme).then_some(scheme)
}

/// Returns the schemes for `section`.
pub(super) fn schemes_for_section(section: &str) -> &'static UrlSchemes {
    let known = all_schemes().find(|schemes| schemes.section == section);
    known.unwrap_or(protocol::default_url_schemes())
}

/// Returns the path and query of a URL, if they are part of the call.
pub fn call_path(url: &str) -> Option<&str> {
    if let Some((_, socket)) = split_unix_url(url) {
        // The syntax is nginx's: unix:/PATH/TO/SOCKET:/PATH/TO/FETCH.
        let (_, rest) = socket.split_once(':')?;
        return rest.find(":/").map(|at| &rest[at + 1..]);
    }
    let (scheme, rest) = url.split_once("://")?;
    let at = rest.find(['/', '?', '#'])?;
    find_schemes(scheme)?.0.with_path.then_some(&rest[at..])
}

/// Parses `grpc://host:port`, `grpcs://host:port`, or the URL of another protocol. Returns the target, and whether it
/// uses TLS.
///
/// # Errors
/// Returns what is wrong with the URL, and what would be valid.
pub fn parse_target(url: &str) -> Result<(Target, bool), String> {
    parse_target_for(None, url)
}

/// Like [`parse_target`], for a plan whose call is of `section`, if known.
///
/// # Errors
/// Returns what is wrong with the URL, and what would be valid.
pub(super) fn parse_target_for(section: Option<&str>, url: &str) -> Result<(Target, bool), String> {
    if let Some((scheme, name)) = split_unix_url(url) {
        return parse_unix_target(url, scheme, name);
    }
    let (scheme, rest) = url
        .split_once("://")
        .ok_or_else(|| missing_scheme_message(section, url))?;
    let Some((schemes, secured)) = find_schemes(scheme) else {
        let elsewhere = all_schemes().flat_map(|schemes| schemes.foreign_schemes);
        if let Some((_, ours)) = elsewhere
            .into_iter()
            .find(|(name, _)| scheme.eq_ignore_ascii_case(name))
        {
            return Err(format!(
                "scheme `{scheme}` is not one of a target: write {ours}://{}",
                strip_userinfo(rest)
            ));
        }
        if let Some(near) = find_similar_scheme(scheme) {
            let rest = strip_userinfo(rest);
            return Err(format!("unknown scheme `{scheme}`: write {near}://{rest}"));
        }
        let known: Vec<String> = distinct_schemes()
            .map(|s| match s.secured {
                Some(secured) => format!("{}:// (over TLS {secured}://)", s.plain),
                None => format!("{}://", s.plain),
            })
            .collect();
        return Err(format!(
            "unknown scheme `{scheme}`: use {}",
            known.join(", ")
        ));
    };
    let rest = match call_path(url) {
        Some(path) => &rest[..rest.len() - path.len()],
        None => rest,
    };
    let address = rest.strip_suffix('/').unwrap_or(rest);
    if address.contains('@') {
        return Err(userinfo_message(schemes));
    }
    if let Some(at) = address.find(['/', '?', '#']) {
        return Err(format!(
            "`{}` after the port is not part of a target: the plan's call section says what to call",
            &address[at..]
        ));
    }
    let (host, port) = if let Some(bracketed) = address.strip_prefix('[') {
        let (host, after) = bracketed
            .split_once(']')
            .ok_or_else(|| format!("`{address}` lacks the closing bracket of an IPv6 address"))?;
        (parse_zoned_address(host)?, after.strip_prefix(':'))
    } else {
        match address.rsplit_once(':') {
            Some((host, _)) if host.contains(':') => {
                return Err(format!(
                    "an IPv6 address needs brackets: {scheme}://[{address}]:PORT"
                ));
            }
            Some((host, port)) => (host.to_owned(), Some(port)),
            None => (address.to_owned(), None),
        }
    };
    if host.is_empty() {
        return Err(format!("`{url}` has no host: write {scheme}://HOST:PORT"));
    }
    if host.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(format!("`{host}` is not a host name"));
    }
    let port = match (port, schemes.ports) {
        (Some(port), _) => port
            .parse()
            .ok()
            .filter(|&p| p != 0)
            .ok_or_else(|| format!("`{port}` is not a port: use 1 to 65535"))?,
        (None, Some((plain, over_tls))) => {
            if secured {
                over_tls
            } else {
                plain
            }
        }
        (None, None) => {
            return Err(format!(
                "`{url}` has no port: write {scheme}://{address}:PORT"
            ));
        }
    };
    Ok((Target::new_tcp(url, host, port), secured))
}

/// Returns the message for a URL without a scheme.
fn missing_scheme_message(section: Option<&str>, url: &str) -> String {
    let url = strip_userinfo(url);
    let schemes = section.map_or(protocol::default_url_schemes(), schemes_for_section);
    let secured = schemes.secured.unwrap_or(schemes.plain);
    let plain = schemes.plain;
    let mut message = format!(
        "`{url}` has no scheme: write {plain}://{url} (plaintext) or {secured}://{url} (TLS)"
    );
    let fetched = all_schemes().find(|schemes| schemes.with_path);
    if let Some(fetched) = fetched.filter(|_| section.is_none()) {
        let secured = fetched.secured.unwrap_or(fetched.plain);
        message += &format!(", {}:// or {secured}:// for HTTP", fetched.plain);
    }
    message
}

/// Returns the rest of a URL without user name and password, which may be secret.
fn strip_userinfo(rest: &str) -> &str {
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    rest[..end].rfind('@').map_or(rest, |at| &rest[at + 1..])
}

/// Returns the message for a URL with a user name or password. The message does not repeat the URL.
fn userinfo_message(schemes: &UrlSchemes) -> String {
    let keys =
        protocol::find_by_section(schemes.section).map_or(&[][..], |protocol| (protocol.keys)());
    let fields = keys
        .iter()
        .find(|key| ["headers", "metadata"].contains(*key));
    let instead = match fields {
        None => "leave them out".to_owned(),
        Some(fields) => format!(
            "with AUTH=\"Basic $(printf %s USER:PASSWORD | base64)\" in the environment, write call.{}.{fields} \
             'authorization: $AUTH' (in a plan: authorization = {{ env = \"AUTH\" }})",
            schemes.section
        ),
    };
    format!(
        "user names and passwords don't belong in a target, where others can read them: {instead}"
    )
}

/// Parses an address in brackets. Its zone may be written `%25eth0` (RFC 6874) or, as people usually type it, `%eth0`.
fn parse_zoned_address(bracketed: &str) -> Result<String, String> {
    let Some((address, zone)) = bracketed.split_once('%') else {
        return Ok(bracketed.to_owned());
    };
    let zone = zone.strip_prefix("25").unwrap_or(zone);
    if zone.is_empty() || address.parse::<std::net::Ipv6Addr>().is_err() {
        return Err(format!(
            "`{bracketed}` is not an IPv6 address with a zone: write [fe80::1%25eth0]"
        ));
    }
    Ok(format!("{address}%{zone}"))
}

/// Returns the target for a Unix socket. The host in requests is `localhost`, but certificates are not checked against
/// this name.
fn parse_unix_target(
    url: &str,
    scheme: Option<&str>,
    name: &str,
) -> Result<(Target, bool), String> {
    let secured = match scheme.map(|scheme| (scheme, find_schemes(scheme))) {
        None => false,
        Some((_, Some((_, secured)))) => secured,
        Some((scheme, None)) => {
            let known: Vec<&str> = distinct_schemes().map(|s| s.plain).collect();
            return Err(format!(
                "unknown scheme `{scheme}` before `+unix`: use {}, or none",
                known.join(", ")
            ));
        }
    };
    let name = match call_path(url) {
        Some(path) => &name[..name.len() - path.len() - 1],
        None => name,
    };
    let socket =
        UnixSocket::parse(name).unwrap_or_else(|| Err(format!("`{url}` is not a socket")))?;
    let target = Target {
        socket: Some(socket),
        ..Target::new_tcp(url, "localhost", 0)
    };
    Ok((target, secured))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_split() {
        let split = |url: &str| parse_target(url).map(|(t, tls)| (t.host, t.port, tls));
        assert_eq!(
            split("grpc://localhost:50051"),
            Ok(("localhost".into(), 50051, false))
        );
        assert_eq!(split("grpcs://[::1]:443/"), Ok(("::1".into(), 443, true)));
        assert_eq!(split("https://a/b?c=1:2"), Ok(("a".into(), 443, true)));
        assert_eq!(split("http://[::1]/b"), Ok(("::1".into(), 80, false)));
        let zoned = Ok(("fe80::1%eth0".into(), 80, false));
        assert_eq!(split("http://[fe80::1%25eth0]/b"), zoned);
        assert_eq!(split("http://[fe80::1%eth0]/b"), zoned);
        let (target, _) = parse_target("http://[fe80::1%25eth0]:81/b").expect("a target");
        assert_eq!(target.authority(), "[fe80::1]:81");
        assert_eq!(call_path("https://a:1/b?c"), Some("/b?c"));
        assert_eq!(call_path("https://a:1"), None);
        assert_eq!(call_path("grpc://a:1/"), None);
        assert_eq!(
            split("GRPCS://10.0.0.1:1"),
            Ok(("10.0.0.1".into(), 1, true))
        );
    }

    #[test]
    fn unix_sockets_follow_grpc_naming() {
        let split = |url: &str| {
            parse_target(url).map(|(t, tls)| (t.socket.map(|s| s.to_string()), t.host, tls))
        };
        let socket = |name: &str, tls| Ok((Some(name.to_owned()), "localhost".to_owned(), tls));
        assert_eq!(split("unix:/run/a.sock"), socket("unix:/run/a.sock", false));
        assert_eq!(split("unix:///run/a"), socket("unix:/run/a", false));
        assert_eq!(split("unix:a/b"), socket("unix:a/b", false));
        assert_eq!(split("unix-abstract:x"), socket("unix-abstract:x", false));
        assert_eq!(split("grpcs+unix:/a"), socket("unix:/a", true));
        assert_eq!(split("http+unix:/a:/b?c"), socket("unix:/a", false));
        assert_eq!(call_path("unix:///a:/b?c"), Some("/b?c"));
        assert_eq!(call_path("unix:/a"), None);
        assert_eq!(section_for_url("unix:/a"), None);
        assert_eq!(section_for_url("grpcs+unix:/a"), Some("grpc"));
        assert_eq!(split_scheme("tls+unix:/a"), Some(("tls", "+unix:/a")));
        assert_eq!(
            (split_scheme("unix:///a"), split_scheme("a:1")),
            (None, None)
        );
        assert!(is_bare_unix_socket("unix:/a") && !is_bare_unix_socket("grpc+unix:/a"));
        let long = format!("unix:/{}", "x".repeat(107));
        for (url, needle) in [
            ("unix://host/a", "write unix:/PATH"),
            ("unix:", "has no socket path"),
            ("ftp+unix:/a", "unknown scheme `ftp` before `+unix`"),
            (&long, "can have 107 bytes at most, and this one has 108"),
        ] {
            let error = parse_target(url).expect_err(url);
            assert!(error.contains(needle), "{url}: {error}");
        }
    }

    #[test]
    fn malformed_url_errors_suggest_fix() {
        for (url, needle) in [
            ("localhost:50051", "write grpc://localhost:50051"),
            ("http://a:0/x", "`0` is not a port"),
            ("https://me@a:1/x", "don't belong"),
            ("ftp://a:1", "unknown scheme `ftp`"),
            ("htpp://a:1/x", "`htpp`: write http://a:1/x"),
            ("grpc://a", "has no port: write grpc://a:PORT"),
            ("grpc://a:0", "`0` is not a port"),
            ("grpc://a:70000", "`70000` is not a port"),
            ("grpc://:1", "has no host"),
            ("grpc://::1:5", "needs brackets"),
            ("grpc://[::1:5", "closing bracket"),
            ("grpc://[::1]", "has no port"),
            ("grpc://me:pw@a:1", "don't belong"),
            ("grpc://a:1/x.Y/Z", "`/x.Y/Z` after the port"),
            ("grpc://a b:1", "not a host name"),
            ("http://[fe80::1%25]:1", "write [fe80::1%25eth0]"),
            ("http://[host%25eth0]:1", "write [fe80::1%25eth0]"),
        ] {
            let error = parse_target(url).expect_err(url);
            assert!(error.contains(needle), "{url}: {error}");
        }
    }

    #[test]
    fn missing_scheme_error_suggests_call_protocol() {
        let of = |section| parse_target_for(section, "a:1/x").expect_err("no scheme");
        let http = of(Some("http"));
        assert!(
            http.ends_with("write http://a:1/x (plaintext) or https://a:1/x (TLS)"),
            "{http}"
        );
        let any = of(None);
        assert!(any.ends_with("http:// or https:// for HTTP"), "{any}");
    }

    #[test]
    fn userinfo_is_not_repeated() {
        for url in ["me:hush@a:1", "http://me:hush@a:1/x", "grpc://me:hush@a:1"] {
            let error = parse_target(url).expect_err(url);
            assert!(!error.contains("hush"), "{url}: {error}");
        }
        let error = parse_target("grpc://me:hush@a:1").expect_err("userinfo");
        let right = "call.grpc.metadata 'authorization: $AUTH'";
        assert!(error.contains(right), "{error}");
    }
}
