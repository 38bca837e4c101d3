//! A proxy between the load and its target, resolved.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// A proxy that carries connections to their target, of which it sees nothing but bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    pub kind: ProxyKind,
    pub host: String,
    pub port: u16,
    pub credentials: Option<Credentials>,
}

/// How it is asked to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyKind {
    /// CONNECT (RFC 9110 §9.3.6).
    Connect,
    /// RFC 1928.
    Socks5,
}

/// Who asks. Secret: never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub user: String,
    pub password: String,
}

impl Credentials {
    /// As `Proxy-Authorization` has it (RFC 7617 §2).
    pub fn basic(&self) -> String {
        let both = format!("{}:{}", self.user, self.password);
        format!("Basic {}", STANDARD.encode(both))
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials")
    }
}
