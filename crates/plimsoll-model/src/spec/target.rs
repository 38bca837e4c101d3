//! Target URLs: whose scheme says the protocol and whether the link is secured.

use crate::plan::Target;

/// The nearest of `known` to what was typed, where one is near enough to be meant.
pub fn suggest<'a>(typed: &str, known: &[&'a str]) -> Option<&'a str> {
    known
        .iter()
        .map(|k| {
            (
                strsim::damerau_levenshtein(&typed.to_lowercase(), &k.to_lowercase()),
                *k,
            )
        })
        .min()
        .filter(|(distance, nearest)| *distance <= 1.max(nearest.len().min(typed.len()) / 3))
        .filter(|(distance, nearest)| *distance < nearest.len())
        .map(|(_, nearest)| nearest)
}

/// A protocol's schemes.
struct Schemes {
    /// The section of a plan that says what to call: `call.SECTION`.
    section: &'static str,
    plain: &'static str,
    /// `None`: there is none over TLS.
    secured: Option<&'static str>,
    /// Schemes that mean the same elsewhere, and what to write here.
    elsewhere: &'static [(&'static str, &'static str)],
    /// The ports that may be left out.
    ports: Option<(u16, u16)>,
    /// The URL may go on with a path, which says what to call.
    with_path: bool,
}

const SCHEMES: &[Schemes] = &[
    Schemes {
        section: "grpc",
        plain: "grpc",
        secured: Some("grpcs"),
        elsewhere: &[],
        ports: None,
        with_path: false,
    },
    Schemes {
        section: "bolt",
        plain: "sofa",
        secured: Some("sofas"),
        elsewhere: &[("sofarpc", "sofa"), ("bolt", "sofa")],
        ports: None,
        with_path: false,
    },
    Schemes {
        section: "fetch",
        plain: "http",
        secured: Some("https"),
        elsewhere: &[],
        ports: Some((80, 443)),
        with_path: true,
    },
    Schemes {
        section: "session",
        plain: "session",
        secured: Some("sessions"),
        elsewhere: &[],
        ports: None,
        with_path: false,
    },
    Schemes {
        section: "plugin",
        plain: "plugin",
        secured: Some("plugins"),
        elsewhere: &[],
        ports: None,
        with_path: false,
    },
    Schemes {
        section: "hold",
        plain: "tcp",
        secured: Some("tls"),
        elsewhere: &[("mtls", "tls")],
        ports: None,
        with_path: false,
    },
];

fn schemes_of(scheme: &str) -> Option<(&'static Schemes, bool)> {
    SCHEMES.iter().find_map(|schemes| {
        let secured = schemes
            .secured
            .is_some_and(|secured| scheme.eq_ignore_ascii_case(secured));
        (secured || scheme.eq_ignore_ascii_case(schemes.plain)).then_some((schemes, secured))
    })
}

/// The section of `call` that goes with a target of this URL's scheme.
pub fn section_of(url: &str) -> Option<&'static str> {
    let (scheme, _) = url.split_once("://")?;
    Some(schemes_of(scheme)?.0.section)
}

/// The scheme to write for `section`, plaintext or secured.
pub(super) fn scheme_for(section: &str, secured: bool) -> &'static str {
    SCHEMES
        .iter()
        .find(|schemes| schemes.section == section)
        .map_or("grpc", |s| s.secured.filter(|_| secured).unwrap_or(s.plain))
}

/// Path and query of a URL that says what to fetch, where it has one.
pub(super) fn path_of(url: &str) -> Option<&str> {
    let (scheme, rest) = url.split_once("://")?;
    let at = rest.find(['/', '?', '#'])?;
    schemes_of(scheme)?.0.with_path.then_some(&rest[at..])
}

/// Splits `grpc://host:port` or `grpcs://host:port`, and the like of other protocols;
/// true: over TLS.
///
/// # Errors
/// What is wrong with the URL and what would be right.
pub fn parse_target(url: &str) -> Result<(Target, bool), String> {
    let (scheme, rest) = url.split_once("://").ok_or_else(|| {
        format!("`{url}` has no scheme: write grpc://{url} (plaintext) or grpcs://{url} (TLS), http:// or https:// to fetch files")
    })?;
    let Some((schemes, secured)) = schemes_of(scheme) else {
        let elsewhere = SCHEMES.iter().flat_map(|schemes| schemes.elsewhere);
        if let Some((_, ours)) = elsewhere
            .into_iter()
            .find(|(name, _)| scheme.eq_ignore_ascii_case(name))
        {
            return Err(format!(
                "scheme `{scheme}` is not one of a target: write {ours}://{rest}"
            ));
        }
        let known: Vec<String> = SCHEMES
            .iter()
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
    let rest = match path_of(url) {
        Some(path) => &rest[..rest.len() - path.len()],
        None => rest,
    };
    let address = rest.strip_suffix('/').unwrap_or(rest);
    if address.contains('@') {
        return Err("user names and passwords don't belong in a target: use metadata".into());
    }
    if let Some(at) = address.find(['/', '?', '#']) {
        return Err(format!(
            "`{}` after the port is not part of a target: what to call is said in the plan's call section",
            &address[at..]
        ));
    }
    let (host, port) = if let Some(bracketed) = address.strip_prefix('[') {
        let (host, after) = bracketed
            .split_once(']')
            .ok_or_else(|| format!("`{address}` lacks the closing bracket of an IPv6 address"))?;
        (host, after.strip_prefix(':'))
    } else {
        match address.rsplit_once(':') {
            Some((host, _)) if host.contains(':') => {
                return Err(format!(
                    "an IPv6 address needs brackets: {scheme}://[{address}]:PORT"
                ));
            }
            Some((host, port)) => (host, Some(port)),
            None => (address, None),
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
    Ok((
        Target {
            url: url.into(),
            host: host.into(),
            port,
            addresses: Vec::new(),
        },
        secured,
    ))
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
        assert_eq!(path_of("https://a:1/b?c"), Some("/b?c"));
        assert_eq!(path_of("https://a:1"), None);
        assert_eq!(path_of("grpc://a:1/"), None);
        assert_eq!(
            split("sofas://localhost:12200"),
            Ok(("localhost".into(), 12200, true))
        );
        assert_eq!(split("tls://a:1"), Ok(("a".into(), 1, true)));
        assert_eq!(split("tcp://a:1"), Ok(("a".into(), 1, false)));
        assert_eq!(
            split("GRPCS://10.0.0.1:1"),
            Ok(("10.0.0.1".into(), 1, true))
        );
    }

    #[test]
    fn wrong_urls_say_what_is_right() {
        for (url, needle) in [
            ("localhost:50051", "write grpc://localhost:50051"),
            ("sofarpc://a:1", "write sofa://a:1"),
            ("bolt://a:1", "write sofa://a:1"),
            ("mtls://a:1", "write tls://a:1"),
            ("http://a:0/x", "`0` is not a port"),
            ("https://me@a:1/x", "don't belong"),
            ("ftp://a:1", "unknown scheme `ftp`"),
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
        ] {
            let error = parse_target(url).expect_err(url);
            assert!(error.contains(needle), "{url}: {error}");
        }
    }

    #[test]
    fn only_near_names_are_suggested() {
        assert_eq!(suggest("raet", &["rate", "calls"]), Some("rate"));
        assert_eq!(suggest("Rate", &["rate", "calls"]), Some("rate"));
        assert_eq!(suggest("zzzzzz", &["rate", "calls"]), None);
        assert_eq!(suggest("x", &["a"]), None);
    }
}
