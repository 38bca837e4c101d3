//! The cookies of one user, stored as a browser does (RFC 6265): by name and path, until they expire. Each jar belongs
//! to one target, so domains are not compared.

use std::borrow::Cow;

use cookie::{Cookie, Expiration};

/// Whether a connection uses TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionSecurity {
    /// Plaintext.
    Plain,
    /// TLS.
    Tls,
}

/// The maximum number of cookies of a user; further cookies are ignored, as browsers do.
const MAX_COOKIES: usize = 50;

/// The cookies of one user.
#[derive(Debug, Default)]
pub struct CookieJar(Vec<StoredCookie>);

#[derive(Debug)]
struct StoredCookie {
    name: Box<str>,
    value: Box<str>,
    path: Box<str>,
    is_secure: bool,
}

impl CookieJar {
    /// Stores the cookie of a `Set-Cookie` field, or removes it if the field says that it has expired. `request_path`:
    /// the path of the request, without query. Fields that can't be parsed are ignored.
    pub(crate) fn set(&mut self, field: &[u8], request_path: &str, unix_s: i64) {
        let Ok(text) = std::str::from_utf8(field) else {
            return;
        };
        let Ok(cookie) = Cookie::parse(text) else {
            return;
        };
        let path = match cookie.path() {
            Some(path) if path.starts_with('/') => Cow::Borrowed(path),
            _ => default_path(request_path),
        };
        self.0
            .retain(|stored| (&*stored.name, &*stored.path) != (cookie.name(), &*path));
        let has_expired = match (cookie.max_age(), cookie.expires()) {
            (Some(age), _) => !age.is_positive(),
            (None, Some(Expiration::DateTime(at))) => at.unix_timestamp() <= unix_s,
            (None, _) => false,
        };
        if !has_expired && self.0.len() < MAX_COOKIES {
            self.0.push(StoredCookie {
                name: cookie.name().into(),
                value: cookie.value().into(),
                path: path.into(),
                is_secure: cookie.secure() == Some(true),
            });
        }
    }

    /// Returns the value of a request's `Cookie` field, or an empty string if no cookie matches. Cookies with longer
    /// paths come first (RFC 6265, 5.4).
    pub(crate) fn cookie_header(&self, request_path: &str, security: ConnectionSecurity) -> String {
        let mut matching: Vec<&StoredCookie> = (self.0.iter())
            .filter(|cookie| path_matches(request_path, &cookie.path))
            .filter(|cookie| security == ConnectionSecurity::Tls || !cookie.is_secure)
            .collect();
        matching.sort_by_key(|cookie| std::cmp::Reverse(cookie.path.len()));
        let mut field = String::new();
        for cookie in matching {
            if !field.is_empty() {
                field.push_str("; ");
            }
            field.push_str(&cookie.name);
            field.push('=');
            field.push_str(&cookie.value);
        }
        field
    }

    /// Returns the value of the cookie of this name that was set last.
    pub(crate) fn cookie_value(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().rev().find(|cookie| *cookie.name == *name);
        found.map(|cookie| &*cookie.value)
    }
}

/// Returns the path of a cookie that has no `Path` attribute: the path of the request up to its last slash (RFC 6265,
/// 5.1.4).
fn default_path(request_path: &str) -> Cow<'_, str> {
    match request_path.rfind('/') {
        None | Some(0) => Cow::Borrowed("/"),
        Some(end) => Cow::Borrowed(&request_path[..end]),
    }
}

/// Returns whether a cookie with the path `cookie_path` is sent with a request for `request_path` (RFC 6265, 5.1.4).
fn path_matches(request_path: &str, cookie_path: &str) -> bool {
    let rest = request_path.strip_prefix(cookie_path);
    rest.is_some_and(|rest| rest.is_empty() || cookie_path.ends_with('/') || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_follow_path_security_and_expiry() {
        let mut jar = CookieJar::default();
        jar.set(b"sid=1; Path=/; HttpOnly", "/api/login", 100);
        jar.set(b"csrf=\"x y\"", "/api/login", 100);
        jar.set(b"tls=2; Secure; Path=/", "/", 100);
        jar.set(b"gone=3; Max-Age=0", "/", 100);
        jar.set(b"old=4; Expires=Thu, 01 Jan 1970 00:00:05 GMT", "/", 100);
        jar.set(b"no cookie", "/", 100);
        assert_eq!(
            jar.cookie_header("/api/items", ConnectionSecurity::Plain),
            "csrf=\"x y\"; sid=1"
        );
        assert_eq!(
            jar.cookie_header("/apis", ConnectionSecurity::Plain),
            "sid=1"
        );
        assert_eq!(
            jar.cookie_header("/", ConnectionSecurity::Tls),
            "sid=1; tls=2"
        );
        jar.set(b"sid=9; Path=/", "/", 100);
        assert_eq!(jar.cookie_value("sid"), Some("9"));
        jar.set(b"sid=; Max-Age=-1; Path=/", "/", 100);
        assert_eq!(jar.cookie_header("/", ConnectionSecurity::Plain), "");
        assert_eq!(jar.cookie_value("sid"), None);
    }

    #[test]
    fn number_of_cookies_is_bounded() {
        let mut jar = CookieJar::default();
        for n in 0..1_000 {
            jar.set(format!("c{n}=1").as_bytes(), "/", 0);
        }
        assert_eq!(jar.0.len(), MAX_COOKIES);
    }
}
