//! Where a Redis server is: `redis://[user:password@]host:port[/database]`.

use std::fmt;
use std::str::FromStr;

/// The parts of a `redis://` URL. Shows itself without the password.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisAddress {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    pub(super) database: u32,
}

impl fmt::Display for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Debug for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisAddress({self})")
    }
}

impl FromStr for RedisAddress {
    type Err = String;

    /// The error does not repeat the URL, which may hold a password.
    fn from_str(url: &str) -> Result<RedisAddress, String> {
        let rest = url
            .strip_prefix("redis://")
            .ok_or("no scheme: write redis://HOST:PORT")?;
        let (address, database) = match rest.split_once('/') {
            None | Some((_, "")) => (rest.trim_end_matches('/'), 0),
            Some((address, number)) => (
                address,
                number
                    .parse()
                    .map_err(|_| format!("`{number}` is not a database number"))?,
            ),
        };
        let (credentials, address) = match address.rsplit_once('@') {
            None => (None, address),
            Some((credentials, address)) => (Some(credentials), address),
        };
        let (user, password) = match credentials.map(|c| c.split_once(':').unwrap_or(("", c))) {
            None => (None, None),
            Some(("", password)) => (None, Some(password.to_owned())),
            Some((user, password)) => (Some(user.to_owned()), Some(password.to_owned())),
        };
        let (host, port) = address.rsplit_once(':').unwrap_or((address, "6379"));
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err("no host: write redis://HOST:PORT".to_owned());
        }
        let port = port
            .parse()
            .ok()
            .filter(|port| *port != 0)
            .ok_or_else(|| format!("`{port}` is not a port: use 1 to 65535"))?;
        Ok(RedisAddress {
            host: host.to_owned(),
            port,
            user,
            password,
            database,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_split_and_passwords_not_shown() {
        let full: RedisAddress = "redis://me:se@cret@[::1]:6380/2".parse().unwrap();
        assert_eq!(full.user.as_deref(), Some("me"));
        assert_eq!(full.password.as_deref(), Some("se@cret"));
        assert_eq!(
            (full.host.as_str(), full.port, full.database),
            ("::1", 6380, 2)
        );
        assert_eq!(
            format!("{full} {full:?}"),
            "[::1]:6380 RedisAddress([::1]:6380)"
        );
        let short: RedisAddress = "redis://localhost".parse().unwrap();
        assert_eq!((short.port, short.password), (6379, None));
        for (url, needle) in [
            ("localhost:1", "no scheme"),
            ("redis://", "no host"),
            ("redis://a:0", "`0` is not a port"),
            ("redis://a:1/x", "`x` is not a database"),
        ] {
            let error = url.parse::<RedisAddress>().unwrap_err();
            assert!(error.contains(needle), "{url}: {error}");
        }
    }
}
