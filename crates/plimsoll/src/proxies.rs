//! Proxies of others that a ladder puts between the load and a server: what each can carry, how it is configured and
//! how it is found. A proxy is a file here and a line of [`PROXIES`]; nothing else knows it by name.
//!
//! All are given the same task: one worker, connections to the server kept and reused, nothing buffered, limits that a
//! load does not reach. [`process`] starts and stops them, whichever it is.

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

use plimsoll_model::spec::{Wire, register_proxies};

/// All proxies, in the order in which messages list them.
pub(crate) static PROXIES: [&Proxy; 6] = [
    &haproxy::PROXY,
    &nginx::PROXY,
    &envoy::PROXY,
    &caddy::PROXY,
    &apache::PROXY,
    &sidecar::PROXY,
];

/// Idle connections to the server that a proxy keeps, so that a load never waits for new ones.
const MAX_IDLE_CONNECTIONS: u32 = 1024;
/// Streams of HTTP/2 that a connection of the load may have at once.
const MAX_STREAMS: u32 = 1024;
/// Calls after which a proxy may close a connection: more than a load makes.
const MAX_CALLS_PER_CONNECTION: u32 = 1_000_000_000;

/// A proxy, as ladders know it.
#[derive(Debug)]
pub(crate) struct Proxy {
    /// Its name in `via`, and the name of its program.
    pub(crate) name: &'static str,
    /// What people call it.
    pub(crate) title: &'static str,
    /// How to get it.
    pub(crate) install: &'static str,
    /// What it understands. [`Wire::Bytes`]: it passes on anything.
    pub(crate) carries: &'static [Wire],
    /// Where it differs from the others in what it does with the rungs that it carries; empty: nowhere.
    pub(crate) remark: &'static str,
    /// Finds the program; `None`: it is not on this machine.
    find: fn() -> Option<PathBuf>,
    /// Asks the program for its version.
    version: fn(&Path) -> Option<Version>,
    /// Returns why this installation can't carry what the proxy carries elsewhere.
    lacks: fn(&Installed, &Route) -> Option<String>,
    /// The name of the configuration's file.
    file: &'static str,
    /// Writes the configuration.
    configure: fn(&Installed, &Route) -> String,
    /// Adds the arguments with which the program runs in the foreground with that file.
    arguments: fn(&mut Command, &Path),
    /// The certificate and the key have to be in one file.
    joins_keys: bool,
}

/// What a program says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    /// Its number.
    pub(crate) number: String,
    /// The library whose TLS it speaks; `None`: it does not say.
    pub(crate) tls: Option<String>,
    /// All that it printed, in which some look for what they were built with.
    pub(crate) printed: String,
}

/// A proxy that is on this machine.
#[derive(Clone, Debug)]
pub(crate) struct Installed {
    pub(crate) proxy: &'static Proxy,
    /// The program.
    pub(crate) program: PathBuf,
    pub(crate) version: Version,
}

/// What a proxy has to do for a rung.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) wire: Wire,
    /// The address at which it takes the load's connections.
    pub(crate) listen: SocketAddr,
    /// The server's address.
    pub(crate) upstream: SocketAddr,
    /// `None`: the load comes in plaintext.
    pub(crate) listen_tls: Option<ListenTls>,
    /// `None`: the server takes plaintext.
    pub(crate) upstream_tls: Option<UpstreamTls>,
    /// The folder of its files, absolute.
    pub(crate) dir: PathBuf,
}

/// A certificate and its key, as files.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
    /// Both in one file.
    pub(crate) both: PathBuf,
}

/// The TLS that the load sees.
#[derive(Clone, Debug)]
pub(crate) struct ListenTls {
    pub(crate) identity: Identity,
    /// Who signs clients' certificates, which are then demanded.
    pub(crate) client_ca: Option<PathBuf>,
}

/// The TLS that the server sees.
#[derive(Clone, Debug)]
pub(crate) struct UpstreamTls {
    /// Who signs servers' certificates; `None`: they are not checked.
    pub(crate) ca: Option<PathBuf>,
    /// What is shown to the server.
    pub(crate) identity: Option<Identity>,
    /// The name in the server's certificate.
    pub(crate) server_name: String,
}

impl Proxy {
    /// Looks for it on this machine.
    ///
    /// # Errors
    /// Where it is not there, or does not say its version; a sentence that says how to get it.
    pub(crate) fn installed(&'static self) -> Result<Installed, String> {
        let Proxy { title, install, .. } = self;
        let program = (self.find)()
            .ok_or_else(|| format!("{title} is not on PATH nor in /usr/sbin: {install}"))?;
        let version = (self.version)(&program).ok_or_else(|| {
            format!(
                "{} does not print a version as {title} does: {install}",
                program.display()
            )
        })?;
        Ok(Installed {
            proxy: self,
            program,
            version,
        })
    }

    /// The protocols that it carries, in words.
    pub(crate) fn carries_in_words(&self) -> String {
        let names: Vec<&str> = self.carries.iter().map(|wire| wire.name()).collect();
        names.join(", ")
    }
}

impl Installed {
    /// Returns why it can't carry a rung; `None`: it can.
    pub(crate) fn obstacle(&self, route: &Route) -> Option<String> {
        let proxy = self.proxy;
        if !proxy.carries.contains(&route.wire) {
            return Some(format!(
                "{} does not carry {}, but {}",
                proxy.title,
                route.wire.name(),
                proxy.carries_in_words()
            ));
        }
        (proxy.lacks)(self, route)
    }

    pub(crate) fn configuration(&self, route: &Route) -> String {
        (self.proxy.configure)(self, route)
    }

    /// Returns the path of its configuration in the route's folder.
    pub(crate) fn configuration_file(&self, route: &Route) -> PathBuf {
        route.dir.join(self.proxy.file)
    }

    pub(crate) fn joins_keys(&self) -> bool {
        self.proxy.joins_keys
    }

    /// The command that runs it in the foreground.
    pub(crate) fn command(&self, route: &Route) -> Command {
        let mut command = Command::new(&self.program);
        (self.proxy.arguments)(&mut command, &self.configuration_file(route));
        command
    }

    /// `NGINX 1.22.1 (OpenSSL 3.0.22)`.
    pub(crate) fn describe(&self) -> String {
        let (title, number) = (self.proxy.title, &self.version.number);
        match &self.version.tls {
            Some(tls) => format!("{title} {number} ({tls})"),
            None => format!("{title} {number}"),
        }
    }
}

/// The proxy of a name.
pub(crate) fn named(name: &str) -> Option<&'static Proxy> {
    PROXIES.iter().copied().find(|proxy| proxy.name == name)
}

/// Makes plans know the names of all proxies.
pub(crate) fn register() {
    register_proxies(PROXIES.iter().map(|proxy| proxy.name));
}

/// The program of a name on PATH, or where Debian has those of system administrators.
fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).map(Some);
    let more = ["/usr/sbin", "/usr/local/sbin"].map(|folder| Some(PathBuf::from(folder)));
    let mut all = folders.chain(more).flatten();
    all.find_map(|folder| {
        let file = folder.join(name);
        file.is_file().then_some(file)
    })
}

/// What a program prints on both streams when it is asked for its version.
fn printed(program: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let both = [output.stdout, output.stderr].concat();
    Some(String::from_utf8_lossy(&both).into_owned())
}

/// The words after `before` on the line that has it, up to `words` of them.
fn words_after(text: &str, before: &str, words: usize) -> Option<String> {
    let rest = text
        .lines()
        .find_map(|line| Some(line.split_once(before)?.1))?;
    let found: Vec<&str> = rest.split_whitespace().take(words).collect();
    (!found.is_empty()).then(|| found.join(" "))
}

/// A path as a word in double quotes.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}
