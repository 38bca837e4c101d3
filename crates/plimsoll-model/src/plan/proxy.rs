//! The proxy between the load and its target, resolved.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// A proxy that tunnels connections to the target and sees only bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForwardProxy {
    /// The protocol that the proxy speaks.
    pub kind: ProxyKind,
    /// The host name or the address, without brackets.
    pub host: String,
    /// The port; never 0.
    pub port: u16,
    /// The credentials; `None`: the proxy requires none.
    pub credentials: Option<ProxyCredentials>,
}

/// The protocol by which the proxy is asked to connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyKind {
    /// HTTP CONNECT (RFC 9110 §9.3.6).
    Connect,
    /// SOCKS5 (RFC 1928).
    Socks5,
}

/// User name and password of a proxy. Secret: never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct ProxyCredentials {
    /// The user's name, at most 255 bytes, without a colon.
    pub user: String,
    /// The password, at most 255 bytes.
    pub password: String,
}

impl ProxyCredentials {
    /// Returns the value of `Proxy-Authorization` (RFC 7617 §2).
    pub fn basic_auth_value(&self) -> String {
        let both = format!("{}:{}", self.user, self.password);
        format!("Basic {}", STANDARD.encode(both))
    }
}

impl fmt::Debug for ProxyCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials")
    }
}
