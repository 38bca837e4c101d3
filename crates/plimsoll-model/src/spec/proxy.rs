//! Resolves `load.proxy`.

use super::{Problems, ResolveContext, Spec};
use crate::formats::redaction;
use crate::plan::{ForwardProxy, ProxyCredentials, ProxyKind, Target};

const PROXY_KEY: &str = "load.proxy";

impl Problems {
    /// Sets the proxy of those targets that are reached over TCP.
    pub(super) fn set_proxy(
        &mut self,
        spec: &Spec,
        targets: &mut [&mut Target],
        surroundings: &dyn ResolveContext,
    ) {
        let Some(typed) = &spec.load.proxy else {
            return;
        };
        let Some(proxy) = self.ok_or_report(PROXY_KEY, parse_proxy(typed, surroundings)) else {
            return;
        };
        if targets.first().is_some_and(|first| first.socket.is_some()) {
            self.add(
                PROXY_KEY,
                "a Unix socket is reached without a proxy: leave this out",
            );
        }
        for target in targets.iter_mut().filter(|t| t.socket.is_none()) {
            target.proxy = Some(proxy.clone());
        }
    }
}

/// Parses `http://HOST:PORT` and `socks5://HOST:PORT`, optionally with `$NAME@` before the host, where the environment
/// variable holds `USER:PASSWORD`.
///
/// # Errors
/// Returns what is wrong with the proxy, and what would be valid.
pub fn parse_proxy(typed: &str, surroundings: &dyn ResolveContext) -> Result<ForwardProxy, String> {
    let right = "write http://HOST:PORT or socks5://HOST:PORT";
    let (scheme, rest) = typed.split_once("://").unwrap_or(("", typed));
    let kind = match scheme {
        "http" => ProxyKind::Connect,
        // `socks5` and `socks5h` mean the same here, because the proxy always resolves the names.
        "socks5" | "socks5h" => ProxyKind::Socks5,
        "https" => {
            return Err(format!(
                "TLS to the proxy itself is not supported, since its time, CPU and bytes would be measured as the target's: {right} of a plaintext port of the proxy, or of a TLS tunnel to it on this machine (stunnel, socat)"
            ));
        }
        _ => {
            return Err(format!(
                "`{scheme}` is not a supported kind of proxy: {right}"
            ));
        }
    };
    let (credentials, address) = match rest.trim_end_matches('/').rsplit_once('@') {
        None => (None, rest.trim_end_matches('/')),
        // The user's text may be secret, so messages don't repeat it.
        Some((who, address)) => {
            let name = who.strip_prefix('$').ok_or(
                "a user and a password are secret: put USER:PASSWORD into a variable of the environment, and write $NAME@ before the host",
            )?;
            let text = surroundings
                .env_variable(name)
                .ok_or_else(|| format!("the environment variable {name} is not set"))?;
            let (user, password) = text
                .split_once(':')
                .filter(|(user, password)| user.len() < 256 && password.len() < 256)
                .ok_or_else(|| format!("{name} is not USER:PASSWORD, each of at most 255 bytes"))?;
            let credentials = ProxyCredentials {
                user: user.to_owned(),
                password: password.to_owned(),
            };
            redaction::remember_secret(password);
            redaction::remember_secret(&credentials.basic_auth_value());
            (Some(credentials), address)
        }
    };
    let split = address.rsplit_once(':');
    let split =
        split.and_then(|(host, port)| Some((host, port.parse::<u16>().ok().filter(|p| *p > 0)?)));
    let (host, port) = split.ok_or_else(|| format!("`{address}` is not HOST:PORT: {right}"))?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let is_name = |b: u8| b.is_ascii_graphic() && !b"/?#@".contains(&b);
    if host.is_empty() || !host.bytes().all(is_name) {
        return Err(format!("`{host}` is not a host: {right}"));
    }
    Ok(ForwardProxy {
        kind,
        host: host.to_owned(),
        port,
        credentials,
    })
}
