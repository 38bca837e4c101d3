//! Third-party proxies that a ladder can put between the load and a server: how each is found and configured, and
//! what it can carry. A proxy is a file here and a line of [`PROXIES`]; no other code knows it by name.
//!
//! All proxies are configured in the same way: one worker, persistent upstream connections, no buffering, limits above
//! any load. [`process`] starts and stops them.

mod apache;
mod caddy;
mod envoy;
mod haproxy;
mod nginx;
pub(crate) mod process;
mod sidecar;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use plimsoll_model::spec::{WireFormat, register_proxies};

/// All proxies, in the order in which messages list them.
pub(crate) static PROXIES: [&Proxy; 6] = [
    &haproxy::PROXY,
    &nginx::PROXY,
    &envoy::PROXY,
    &caddy::PROXY,
    &apache::PROXY,
    &sidecar::PROXY,
];

/// Idle upstream connections that a proxy keeps, so that a load never waits for new ones.
const MAX_IDLE_CONNECTIONS: u32 = 1024;
/// Maximum number of concurrent HTTP/2 streams of a connection.
const MAX_STREAMS: u32 = 1024;
/// Calls after which a proxy may close a connection: more than any load makes.
const MAX_CALLS_PER_CONNECTION: u32 = 1_000_000_000;

/// A type of proxy.
#[derive(Debug)]
pub(crate) struct Proxy {
    /// Its name in `via`, also the name of its program.
    pub(crate) name: &'static str,
    /// Its display name.
    pub(crate) title: &'static str,
    /// How to install it.
    pub(crate) install: &'static str,
    /// Protocols it can carry; [`WireFormat::Bytes`] means any TCP.
    pub(crate) carries: &'static [WireFormat],
    /// How it treats traffic differently from the other proxies; empty if it does not.
    pub(crate) remark: &'static str,
    /// Finds the program; `None` if it is not installed.
    find: fn() -> Option<PathBuf>,
    /// Runs the program to get its version.
    version: fn(&Path) -> Option<ProxyVersion>,
    /// Returns why this installation can't serve a route that the proxy supports in general.
    limitation: fn(&InstalledProxy, &ProxyRoute) -> Option<String>,
    /// Name of its configuration file.
    config_file: &'static str,
    /// Returns the configuration.
    configure: fn(&InstalledProxy, &ProxyRoute) -> String,
    /// Adds the arguments that run the program in the foreground with that file.
    arguments: fn(&mut Command, &Path),
    /// Whether certificate and key have to be in one file.
    joins_keys: bool,
}

/// The version that a program prints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProxyVersion {
    /// Version number.
    pub(crate) number: String,
    /// TLS library; `None` if the program does not print it.
    pub(crate) tls: Option<String>,
    /// The full output, which may list build options.
    pub(crate) printed: String,
}

/// A proxy installed on this machine.
#[derive(Clone, Debug)]
pub(crate) struct InstalledProxy {
    pub(crate) proxy: &'static Proxy,
    /// The program.
    pub(crate) program: PathBuf,
    pub(crate) version: ProxyVersion,
}

/// The route of a rung's calls through a proxy.
#[derive(Clone, Debug)]
pub(crate) struct ProxyRoute {
    pub(crate) wire: WireFormat,
    /// The address that the load connects to.
    pub(crate) listen: SocketAddr,
    /// The server's address.
    pub(crate) upstream: SocketAddr,
    /// `None` for plaintext from the load.
    pub(crate) listen_tls: Option<ListenTls>,
    /// `None` for plaintext to the server.
    pub(crate) upstream_tls: Option<UpstreamTls>,
    /// Absolute path of the folder for its files.
    pub(crate) dir: PathBuf,
}

/// A certificate and its key, as files.
#[derive(Clone, Debug)]
pub(crate) struct IdentityFiles {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
    /// Path of a file with both.
    pub(crate) both: PathBuf,
}

/// TLS towards the load.
#[derive(Clone, Debug)]
pub(crate) struct ListenTls {
    pub(crate) identity: IdentityFiles,
    /// CA of client certificates, which are then required.
    pub(crate) client_ca: Option<PathBuf>,
}

/// TLS towards the server.
#[derive(Clone, Debug)]
pub(crate) struct UpstreamTls {
    /// CA of server certificates; `None` disables verification.
    pub(crate) ca: Option<PathBuf>,
    /// Client certificate for the server.
    pub(crate) identity: Option<IdentityFiles>,
    /// Expected name in the server's certificate.
    pub(crate) server_name: String,
}

impl Proxy {
    /// Finds the proxy on this machine.
    ///
    /// # Errors
    /// When it is not installed or does not print its version; a sentence that says how to install it.
    pub(crate) fn installed(&'static self) -> Result<InstalledProxy, String> {
        let Proxy { title, install, .. } = self;
        let program = (self.find)()
            .ok_or_else(|| format!("{title} is not on PATH or in /usr/sbin: {install}"))?;
        let version = (self.version)(&program).ok_or_else(|| {
            format!(
                "{} does not print a version as {title} does: {install}",
                program.display()
            )
        })?;
        Ok(InstalledProxy {
            proxy: self,
            program,
            version,
        })
    }

    /// Returns the protocols it can carry, in words.
    pub(crate) fn carries_in_words(&self) -> String {
        let names: Vec<&str> = self.carries.iter().map(|wire| wire.name()).collect();
        names.join(", ")
    }
}

impl InstalledProxy {
    /// Returns why it can't serve a route; `None` if it can.
    pub(crate) fn obstacle(&self, route: &ProxyRoute) -> Option<String> {
        let proxy = self.proxy;
        if !proxy.carries.contains(&route.wire) {
            return Some(format!(
                "{} does not carry {}, but {}",
                proxy.title,
                route.wire.name(),
                proxy.carries_in_words()
            ));
        }
        (proxy.limitation)(self, route)
    }

    pub(crate) fn configuration(&self, route: &ProxyRoute) -> String {
        (self.proxy.configure)(self, route)
    }

    /// Returns the path of its configuration in the route's folder.
    pub(crate) fn configuration_file(&self, route: &ProxyRoute) -> PathBuf {
        route.dir.join(self.proxy.config_file)
    }

    pub(crate) fn joins_keys(&self) -> bool {
        self.proxy.joins_keys
    }

    /// Returns the command that runs it in the foreground.
    pub(crate) fn command(&self, route: &ProxyRoute) -> Command {
        let mut command = Command::new(&self.program);
        (self.proxy.arguments)(&mut command, &self.configuration_file(route));
        command
    }

    /// Returns name and versions, such as `NGINX 1.22.1 (OpenSSL 3.0.22)`.
    pub(crate) fn describe(&self) -> String {
        let (title, number) = (self.proxy.title, &self.version.number);
        match &self.version.tls {
            Some(tls) => format!("{title} {number} ({tls})"),
            None => format!("{title} {number}"),
        }
    }
}

/// Returns the proxy with this name.
pub(crate) fn named(name: &str) -> Option<&'static Proxy> {
    PROXIES.iter().copied().find(|proxy| proxy.name == name)
}

/// Registers the names of all proxies for plans.
pub(crate) fn register() {
    register_proxies(PROXIES.iter().map(|proxy| proxy.name));
}

/// Finds a program on PATH or in the sbin folders, where Debian installs daemons.
fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).map(Some);
    let more = ["/usr/sbin", "/usr/local/sbin"].map(|folder| Some(PathBuf::from(folder)));
    let mut all = folders.chain(more).flatten();
    all.find_map(|folder| {
        let file = folder.join(name);
        file.is_file().then_some(file)
    })
}

/// Runs a program with arguments and returns its output of both streams.
fn printed(program: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let both = [output.stdout, output.stderr].concat();
    Some(String::from_utf8_lossy(&both).into_owned())
}

/// Returns up to `words` words after `before` on the first line with it.
fn words_after(text: &str, before: &str, words: usize) -> Option<String> {
    let rest = text
        .lines()
        .find_map(|line| Some(line.split_once(before)?.1))?;
    let found: Vec<&str> = rest.split_whitespace().take(words).collect();
    (!found.is_empty()).then(|| found.join(" "))
}

/// Quotes a path with double quotes.
fn quote(path: &Path) -> String {
    let text = path.display().to_string();
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}
