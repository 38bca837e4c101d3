//! Proxies that a ladder can put between the load and a server: how each is found and configured, and which protocols
//! it supports. A proxy is defined by a file in `crates/plimsoll/proxies` that [`SHIPPED_DEFINITIONS`] lists, or by a
//! file in the user's folder; code does not refer to specific proxies by name.
//!
//! All proxies are configured alike: the same number of workers, persistent upstream connections, no buffering, and
//! limits higher than any load needs. [`process`] starts and stops them.

mod definition;
pub(crate) mod process;
mod template;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use plimsoll_model::spec::{ProxiedCalls, register_proxies};

pub(crate) use definition::{Proxy, ProxyVersion};

use crate::failure::Failure;
use template::TemplateContext;

/// The definitions that come with Plimsoll, by name, in the order in which messages list them.
const SHIPPED_DEFINITIONS: [(&str, &str); 9] = [
    ("haproxy", include_str!("../proxies/haproxy.toml")),
    ("nginx", include_str!("../proxies/nginx.toml")),
    ("envoy", include_str!("../proxies/envoy.toml")),
    ("caddy", include_str!("../proxies/caddy.toml")),
    ("apache2", include_str!("../proxies/apache2.toml")),
    ("h2o", include_str!("../proxies/h2o.toml")),
    ("sidecar", include_str!("../proxies/sidecar.toml")),
    ("envoy-tunnel", include_str!("../proxies/envoy-tunnel.toml")),
    ("litellm", include_str!("../proxies/litellm.toml")),
];

/// The proxies that ladders can use.
#[derive(Clone, Debug)]
pub(crate) struct ProxyCatalog(Vec<Arc<Proxy>>);

/// A proxy installed on this machine.
#[derive(Clone, Debug)]
pub(crate) struct InstalledProxy {
    pub(crate) proxy: Arc<Proxy>,
    /// Path of the executable.
    pub(crate) program: PathBuf,
    pub(crate) version: ProxyVersion,
}

/// The route of calls through one proxy.
#[derive(Clone, Debug)]
pub(crate) struct ProxyRoute {
    pub(crate) calls: ProxiedCalls,
    /// The address that the load or the previous proxy connects to.
    pub(crate) listen: SocketAddr,
    /// The address of the next proxy or of the server.
    pub(crate) upstream: SocketAddr,
    /// TLS of connections from the load or the previous proxy; `None` for plaintext.
    pub(crate) listen_tls: Option<ListenTls>,
    /// TLS of connections to the next proxy or the server; `None` for plaintext.
    pub(crate) upstream_tls: Option<UpstreamTls>,
    /// Number of worker threads or processes.
    pub(crate) workers: u32,
    pub(crate) neighbours: SameNeighbours,
    /// Absolute path of the folder for the proxy's files.
    pub(crate) dir: PathBuf,
}

/// The numbers of proxies of the same definition that stand directly before and after a proxy in a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SameNeighbours {
    pub(crate) before: usize,
    pub(crate) after: usize,
}

/// Paths of a certificate and its private key.
#[derive(Clone, Debug)]
pub(crate) struct IdentityFiles {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
    /// Path of a file with certificate and key.
    pub(crate) both: PathBuf,
}

/// TLS settings for connections from the load or from the previous proxy.
#[derive(Clone, Debug)]
pub(crate) struct ListenTls {
    pub(crate) identity: IdentityFiles,
    /// CA of client certificates; `None` if clients need no certificate.
    pub(crate) client_ca: Option<PathBuf>,
}

/// TLS settings for connections to the next proxy or to the server.
#[derive(Clone, Debug)]
pub(crate) struct UpstreamTls {
    /// CA of server certificates; `None` disables verification.
    pub(crate) ca: Option<PathBuf>,
    /// Client certificate to present to the server; `None` for none.
    pub(crate) identity: Option<IdentityFiles>,
    /// Expected name in the server's certificate.
    pub(crate) server_name: String,
}

impl ProxyCatalog {
    /// Returns the proxies that come with Plimsoll, and the proxies defined in `folder`, which replace those of the
    /// same name.
    ///
    /// # Errors
    /// Returns an error if the folder or one of its files can't be read, or a file is not a definition; the error names
    /// the file.
    pub(crate) fn load(folder: Option<&Path>) -> Result<ProxyCatalog, Failure> {
        let shipped = SHIPPED_DEFINITIONS
            .map(|(name, text)| Proxy::parse(name, text, &format!("{name}.toml")));
        let mut proxies = shipped.into_iter().collect::<Result<Vec<_>, _>>()?;
        for file in folder.map_or_else(|| Ok(Vec::new()), definition_files)? {
            let text = fs::read_to_string(&file).map_err(|e| read_error(&file, &e))?;
            let name = file.file_stem().unwrap_or_default().to_string_lossy();
            let proxy = Proxy::parse(&name, &text, &file.display().to_string())?;
            match proxies.iter_mut().find(|other| other.name == proxy.name) {
                Some(replaced) => *replaced = proxy,
                None => proxies.push(proxy),
            }
        }
        Ok(ProxyCatalog(proxies.into_iter().map(Arc::new).collect()))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Proxy>> {
        self.0.iter()
    }

    /// Returns the proxy with this name.
    pub(crate) fn find_proxy(&self, name: &str) -> Option<&Arc<Proxy>> {
        self.iter().find(|proxy| proxy.name == name)
    }
}

/// Returns the definition files in a folder, sorted by name.
fn definition_files(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = fs::read_dir(folder).map_err(|e| read_error(folder, &e))?;
    let mut files = Vec::new();
    for entry in entries {
        let file = entry.map_err(|e| read_error(folder, &e))?.path();
        if file
            .extension()
            .is_some_and(|extension| extension == "toml")
        {
            files.push(file);
        }
    }
    files.sort();
    if files.is_empty() {
        return Err(Failure::error_with_help(
            format_args!("ladder.proxies: {} defines no proxy", folder.display()),
            "a proxy is a file NAME.toml; `plimsoll proxies --definition haproxy` prints one to begin with",
        ));
    }
    Ok(files)
}

fn read_error(path: &Path, e: &std::io::Error) -> Failure {
    Failure::error_with_help(
        format_args!("ladder.proxies: can't read {}: {e}", path.display()),
        "give a folder with a file NAME.toml for each proxy",
    )
}

/// Returns the text of a definition that comes with Plimsoll.
pub(crate) fn shipped_definition(name: &str) -> Option<&'static str> {
    let (_, text) = SHIPPED_DEFINITIONS
        .iter()
        .find(|(known, _)| *known == name)?;
    Some(text)
}

/// Returns the names of the proxies that come with Plimsoll.
pub(crate) fn shipped_names() -> impl Iterator<Item = &'static str> {
    SHIPPED_DEFINITIONS.into_iter().map(|(name, _)| name)
}

/// Registers the names of the proxies that come with Plimsoll, so that plans can use them.
pub(crate) fn register_shipped_names() {
    register_proxies(shipped_names());
}

impl InstalledProxy {
    /// Returns why the proxy can't serve a route; `None` if it can.
    ///
    /// # Errors
    /// Returns an error if the template that gives the reason is invalid; the error names its line.
    pub(crate) fn route_obstacle(&self, route: &ProxyRoute) -> Result<Option<String>, String> {
        let proxy = &self.proxy;
        if !proxy.supports(route.calls.wire) {
            return Ok(Some(format!(
                "{} does not carry {}, but {}",
                proxy.title,
                route.calls.wire.name(),
                proxy.supported_protocols_text()
            )));
        }
        let said = self.render("refuses", &proxy.refuses, route)?;
        let said = said.trim();
        Ok((!said.is_empty()).then(|| said.to_owned()))
    }

    /// Returns the text of the proxy's configuration file.
    ///
    /// # Errors
    /// Returns an error if the template is invalid; the error names its line.
    pub(crate) fn configuration(&self, route: &ProxyRoute) -> Result<String, String> {
        self.render("config", &self.proxy.config, route)
    }

    /// Returns the path of the configuration file in the route's folder.
    pub(crate) fn configuration_file(&self, route: &ProxyRoute) -> PathBuf {
        route.dir.join(&self.proxy.config_file)
    }

    /// Returns the command that runs the proxy in the foreground.
    ///
    /// # Errors
    /// Returns an error if the template of an argument is invalid; the error names the argument.
    pub(crate) fn command(&self, route: &ProxyRoute) -> Result<Command, String> {
        let mut command = Command::new(&self.program);
        for argument in &self.proxy.arguments {
            command.arg(self.render("arguments", argument, route)?);
        }
        for (name, value) in &self.proxy.environment {
            match self.render("environment", value, route)?.as_str() {
                "" => command.env_remove(name),
                value => command.env(name, value),
            };
        }
        Ok(command)
    }

    fn render(&self, key: &str, text: &str, route: &ProxyRoute) -> Result<String, String> {
        let context = TemplateContext::new(self, route);
        template::render(text, &context).map_err(|e| format!("{}: {key}: {e}", self.proxy.source))
    }

    /// Returns name and versions, such as `NGINX 1.22.1 (OpenSSL 3.0.22)`.
    pub(crate) fn describe(&self) -> String {
        let (title, number) = (&self.proxy.title, &self.version.number);
        match &self.version.tls {
            Some(tls) => format!("{title} {number} ({tls})"),
            None => format!("{title} {number}"),
        }
    }
}

#[cfg(test)]
mod tests;
