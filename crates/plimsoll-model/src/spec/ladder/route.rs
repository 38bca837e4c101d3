//! The proxies between the load and the server of a rung (one variant in a ladder): the axes `via`, `upstream_tls`,
//! `between_tls` and `proxy_workers`.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::{RungSecurity, RungSpec};
use crate::formats::named_enum::named;
use crate::spec::problem::find_by_name;

/// The route of a rung's calls.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum RungRoute {
    /// Directly to the server.
    #[default]
    Direct,
    /// One sidecar on this machine, which adds no encryption.
    OneSidecar,
    /// Two sidecars, with mutual TLS between them.
    TwoSidecars,
    /// Proxies by their names, the one next to the load first.
    Proxies(Vec<String>),
    /// A proxy started by a command of the plan.
    Custom(CustomProxy),
}

/// A custom proxy: a command with a configuration that contains both addresses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CustomProxy {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The address at which it listens for the load's connections.
    pub listen: SocketAddr,
    /// The address at which it expects the server to listen.
    pub upstream: SocketAddr,
}

named! {
    /// The security of a proxy's connections to the server.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum UpstreamTls by name {
        /// Plaintext: the proxy terminates the load's TLS.
        Off "off",
        /// TLS with a server certificate, which the proxy verifies.
        Server "server",
        /// Mutual TLS, in which the proxy has a certificate as well.
        Mutual "mutual",
        /// The load's TLS ends at the server, and the proxy relays the encrypted bytes.
        Passed "passed",
    }
}

static PROXY_NAMES: OnceLock<Vec<&'static str>> = OnceLock::new();

/// Registers the names of proxies; must be called before the first plan is read.
pub fn register_proxies(names: impl IntoIterator<Item = &'static str>) {
    PROXY_NAMES.get_or_init(|| names.into_iter().collect());
}

/// Maximum number of proxies of a chain.
const MAX_CHAIN_LENGTH: usize = 8;
/// Maximum number of workers of a proxy.
pub(super) const MAX_PROXY_WORKERS: u32 = 64;

/// Parses a value of the axis `via`. Names of proxies are checked by [`check_proxy_names`].
///
/// # Errors
/// When a table does not contain a command and two addresses, or a chain is too long.
pub(super) fn parse_route(value: &Value, text: &str) -> Result<RungRoute, String> {
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
    Ok(match text {
        "direct" => RungRoute::Direct,
        "one sidecar" => RungRoute::OneSidecar,
        "two sidecars" => RungRoute::TwoSidecars,
        chain => {
            let names: Vec<String> = chain
                .split('+')
                .map(|name| name.trim().to_owned())
                .collect();
            if names.len() > MAX_CHAIN_LENGTH {
                return Err(format!(
                    "`{chain}` has {} proxies: a chain has {MAX_CHAIN_LENGTH} at most",
                    names.len()
                ));
            }
            RungRoute::Proxies(names)
        }
    })
}

/// Checks that the proxies of all rungs are registered or defined by a file in `folder`.
///
/// # Errors
/// Returns the first unknown name, and lists the known names.
pub(super) fn check_proxy_names<'a>(
    rungs: impl Iterator<Item = &'a RungSpec>,
    folder: Option<&Path>,
) -> Result<(), String> {
    let registered = PROXY_NAMES.get().into_iter().flatten().copied();
    let known: Vec<&str> = ["direct", "one sidecar", "two sidecars"]
        .into_iter()
        .chain(registered)
        .collect();
    for rung in rungs {
        let RungRoute::Proxies(names) = &rung.route else {
            continue;
        };
        for name in names {
            let file = folder.map(|folder| folder.join(format!("{name}.toml")));
            if file.as_ref().is_some_and(|file| file.is_file())
                || known[3..].contains(&name.as_str())
            {
                continue;
            }
            find_by_name(name, &known, |name| name).map_err(|message| match file {
                Some(file) => format!("{message}, or write {}", file.display()),
                None => message,
            })?;
            return Err(format!(
                "`{name}` is not a proxy, and chains consist of proxies: nginx+envoy"
            ));
        }
    }
    Ok(())
}

/// Returns the name of a custom proxy: the name of its program.
pub(super) fn custom_proxy_name(own: &Table) -> String {
    let command = own.get("command").and_then(Value::as_array);
    let program = command.and_then(|words| words.first()?.as_str());
    program.map_or_else(|| Value::Table(own.clone()).to_string(), str::to_owned)
}

impl RungSpec {
    /// Returns whether there is a proxy, which makes the connections to the server.
    pub fn has_proxy(&self) -> bool {
        matches!(self.route, RungRoute::Proxies(_) | RungRoute::Custom(_))
    }

    /// Returns whether the load's TLS ends at the server although there is a proxy.
    pub fn passes_tls_through(&self) -> bool {
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
