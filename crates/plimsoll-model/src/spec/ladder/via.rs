//! The proxies between the load and the server of a rung: the axes `via` and `upstream_tls`.

use std::net::SocketAddr;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::{RungSecurity, RungSpec};
use crate::named::named;
use crate::spec::problem::one_of;

/// The route of a rung's calls.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum RungRoute {
    /// Directly to the server.
    #[default]
    Direct,
    /// One sidecar on this machine, without encryption of its own.
    OneSidecar,
    /// Two sidecars, with mutual TLS between them.
    TwoSidecars,
    /// A proxy with a registered name ([`register_proxies`]).
    Proxy(&'static str),
    /// A proxy started by a command of the plan.
    Custom(CustomProxy),
}

/// A custom proxy: a command with a configuration that contains both addresses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CustomProxy {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The address at which it accepts the load's connections.
    pub listen: SocketAddr,
    /// The address at which it expects the server.
    pub upstream: SocketAddr,
}

named! {
    /// The security of a proxy's connections to the server.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum UpstreamTls by name {
        /// Plaintext: the proxy terminates the load's TLS.
        Off "off",
        /// The server has a certificate, which the proxy verifies.
        Server "server",
        /// The proxy has a certificate as well.
        Mutual "mutual",
        /// The load's TLS ends at the server: the proxy relays bytes.
        Passed "passed",
    }
}

static PROXY_NAMES: OnceLock<Vec<&'static str>> = OnceLock::new();

/// Registers the names of proxies; must be called before the first plan is read.
pub fn register_proxies(names: impl IntoIterator<Item = &'static str>) {
    PROXY_NAMES.get_or_init(|| names.into_iter().collect());
}

/// Parses a value of the axis `via`.
///
/// # Errors
/// Where the value is neither a known name nor a table of a command and two addresses.
pub(super) fn read(value: &Value, text: &str) -> Result<RungRoute, String> {
    if let Value::Table(table) = value {
        let own = CustomProxy::deserialize(table.clone()).map_err(|e| {
            format!(
                "{}: a proxy of your own is {{ command = [\"PROGRAM\", …], listen = \"ADDRESS:PORT\", upstream = \"ADDRESS:PORT\" }}",
                e.message()
            )
        })?;
        if own.command.is_empty() {
            return Err("command: an empty list starts nothing: name a program".to_owned());
        }
        if own.listen == own.upstream {
            return Err(format!(
                "listen and upstream are both {}: the proxy would call itself",
                own.listen
            ));
        }
        return Ok(RungRoute::Custom(own));
    }
    let mut known = vec!["direct", "one sidecar", "two sidecars"];
    known.extend(PROXY_NAMES.get().into_iter().flatten());
    Ok(match one_of(text, &known, |name| name)? {
        "direct" => RungRoute::Direct,
        "one sidecar" => RungRoute::OneSidecar,
        "two sidecars" => RungRoute::TwoSidecars,
        proxy => RungRoute::Proxy(proxy),
    })
}

/// Returns the name of a custom proxy: its program.
pub(super) fn command_name(own: &Table) -> String {
    let command = own.get("command").and_then(Value::as_array);
    let program = command.and_then(|words| words.first()?.as_str());
    program.map_or_else(|| Value::Table(own.clone()).to_string(), str::to_owned)
}

impl RungSpec {
    /// Returns whether there is a proxy with connections of its own to the server.
    pub fn has_proxy(&self) -> bool {
        matches!(self.route, RungRoute::Proxy(_) | RungRoute::Custom(_))
    }

    /// Returns whether the load's TLS ends at the server although there is a proxy.
    pub fn is_passed_through(&self) -> bool {
        self.has_proxy() && self.upstream_tls == Some(UpstreamTls::Passed)
    }

    /// Returns the security of connections to the server: the load's, unless the proxy's differs.
    pub fn server_security(&self) -> RungSecurity {
        match self.upstream_tls.filter(|_| self.has_proxy()) {
            None | Some(UpstreamTls::Passed) => self.security,
            Some(UpstreamTls::Off) => RungSecurity::Off,
            Some(UpstreamTls::Server) => RungSecurity::Server,
            Some(UpstreamTls::Mutual) => RungSecurity::Mutual,
        }
    }
}
