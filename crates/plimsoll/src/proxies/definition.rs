//! The definition of a proxy, as read from its file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use plimsoll_model::spec::WireFormat;
use regex::Regex;
use serde::{Deserialize, Deserializer, de};

use super::{InstalledProxy, template};
use crate::failure::Failure;

/// A type of proxy. `config`, `refuses`, `arguments` and the values of `environment` are templates.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Proxy {
    /// The name that plans use in `via`, which is the name of the definition's file.
    #[serde(skip)]
    pub(crate) name: String,
    /// The definition's file, for messages.
    #[serde(skip)]
    pub(crate) source: String,
    /// The display name.
    pub(crate) title: String,
    /// A sentence that says how to install the proxy.
    pub(crate) install: String,
    /// Supported protocols; [`WireFormat::Bytes`] stands for any protocol over TCP.
    #[serde(deserialize_with = "deserialize_wire_formats")]
    carries: Vec<WireFormat>,
    /// Protocols that the proxy converts to another protocol, such as HTTP/2 to HTTP/1.1.
    #[serde(default, deserialize_with = "deserialize_conversions")]
    forwards: BTreeMap<WireFormat, WireFormat>,
    /// How the proxy's treatment of traffic differs from the other proxies; empty if it does not.
    #[serde(default)]
    pub(crate) remark: String,
    /// Names of the executable; the first that is found is used. If empty, Plimsoll itself is the proxy.
    #[serde(default)]
    programs: Vec<String>,
    /// The query for the program's version.
    version: VersionQuery,
    /// The query for the program's TLS library; `None` if the program does not print it.
    tls: Option<VersionQuery>,
    /// Arguments that run the program in the foreground with its configuration.
    pub(super) arguments: Vec<String>,
    /// Environment variables, in addition to those of Plimsoll's process. An empty value removes a variable.
    #[serde(default)]
    pub(super) environment: BTreeMap<String, String>,
    /// Whether certificate and key must be in one file.
    #[serde(default)]
    pub(crate) joined_keys: bool,
    /// Why this installation can't serve a route although the proxy in general can; renders to an empty text if it can.
    #[serde(default)]
    pub(super) refuses: String,
    /// Name of the configuration file.
    pub(super) config_file: String,
    /// The text of the configuration file.
    pub(super) config: String,
}

/// A command that prints a version, and a pattern that finds the version in the output.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct VersionQuery {
    arguments: Vec<String>,
    /// Environment variables, in addition to those of Plimsoll's process.
    #[serde(default)]
    environment: BTreeMap<String, String>,
    /// A regular expression whose first group matches the version.
    #[serde(deserialize_with = "pattern")]
    pattern: Regex,
    /// Text to put before the version.
    #[serde(default)]
    prefix: String,
}

/// The version that a program prints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProxyVersion {
    /// Version number.
    pub(crate) number: String,
    /// TLS library; `None` if the program does not print it.
    pub(crate) tls: Option<String>,
    /// The full output of the first query, which may list build options.
    pub(crate) printed: String,
}

fn wire_format<E: de::Error>(name: &str) -> Result<WireFormat, E> {
    let found = WireFormat::ALL.into_iter().find(|wire| wire.name() == name);
    found.ok_or_else(|| {
        let known = WireFormat::ALL.map(WireFormat::name).join(", ");
        E::custom(format_args!("`{name}` is not a protocol: use {known}"))
    })
}

fn deserialize_wire_formats<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<WireFormat>, D::Error> {
    let names = Vec::<String>::deserialize(deserializer)?;
    names.iter().map(|name| wire_format(name)).collect()
}

fn deserialize_conversions<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<WireFormat, WireFormat>, D::Error> {
    let names = BTreeMap::<String, String>::deserialize(deserializer)?;
    let pairs = names.iter();
    pairs
        .map(|(from, to)| Ok((wire_format(from)?, wire_format(to)?)))
        .collect()
}

fn pattern<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Regex, D::Error> {
    let regex = Regex::new(&String::deserialize(deserializer)?).map_err(de::Error::custom)?;
    match regex.captures_len() {
        1 => Err(de::Error::custom(
            "the pattern has no group: put what is looked for in parentheses",
        )),
        _ => Ok(regex),
    }
}

impl Proxy {
    /// Parses the text of a definition. `source` is its file, for messages.
    ///
    /// # Errors
    /// Returns an error if a key is missing, unknown or of the wrong type, or a template can't be parsed; the error
    /// names file, key and line.
    pub(super) fn parse(name: &str, text: &str, source: &str) -> Result<Proxy, Failure> {
        let wrong = |what: String| {
            Failure::error_with_help(
                format_args!("{source}: {}", what.trim_end()),
                "`plimsoll proxies --definition haproxy` prints a definition that works",
            )
        };
        let mut proxy: Proxy = toml::from_str(text).map_err(|e| wrong(e.to_string()))?;
        (proxy.name, proxy.source) = (name.to_owned(), source.to_owned());
        if Path::new(&proxy.config_file).components().count() != 1 {
            return Err(wrong(format!(
                "config_file: `{}` is not the name of a file",
                proxy.config_file
            )));
        }
        let templates = [("config", &proxy.config), ("refuses", &proxy.refuses)];
        let arguments = proxy.arguments.iter().map(|text| ("arguments", text));
        let environment = proxy.environment.values().map(|text| ("environment", text));
        for (key, text) in templates.into_iter().chain(arguments).chain(environment) {
            template::check(text).map_err(|e| wrong(format!("{key}: {e}")))?;
        }
        Ok(proxy)
    }

    /// Finds the proxy's executable and queries its version.
    ///
    /// # Errors
    /// Returns an error if the proxy is not installed, or does not print its version; the error says how to install it.
    pub(crate) fn find_installed(self: &Arc<Self>) -> Result<InstalledProxy, String> {
        let Proxy { title, install, .. } = self.as_ref();
        let program = self
            .find_executable()
            .ok_or_else(|| format!("{title} is not on PATH or in /usr/sbin: {install}"))?;
        let version = self.query_version(&program).ok_or_else(|| {
            format!(
                "{} does not print a version as {title} does: {install}",
                program.display()
            )
        })?;
        Ok(InstalledProxy {
            proxy: Arc::clone(self),
            program,
            version,
        })
    }

    fn find_executable(&self) -> Option<PathBuf> {
        if self.programs.is_empty() {
            return std::env::current_exe().ok();
        }
        self.programs.iter().find_map(|name| find_program(name))
    }

    fn query_version(&self, program: &Path) -> Option<ProxyVersion> {
        let (number, printed) = self.version.run_query(program)?;
        let tls = self.tls.as_ref().and_then(|query| query.run_query(program));
        Some(ProxyVersion {
            number,
            tls: tls.map(|(library, _)| library),
            printed,
        })
    }

    pub(super) fn supports(&self, wire: WireFormat) -> bool {
        self.carries.contains(&wire)
    }

    /// Returns the protocol that the proxy converts `wire` to; `wire` itself if it does not convert.
    pub(crate) fn converted_protocol(&self, wire: WireFormat) -> WireFormat {
        self.forwards.get(&wire).copied().unwrap_or(wire)
    }

    /// Returns the names of the supported protocols.
    pub(crate) fn supported_protocols(&self) -> Vec<&'static str> {
        self.carries.iter().map(|wire| wire.name()).collect()
    }

    /// Returns the names of the supported protocols, separated by commas.
    pub(crate) fn supported_protocols_text(&self) -> String {
        self.supported_protocols().join(", ")
    }
}

impl VersionQuery {
    /// Runs `program`; returns the version with its prefix, and the whole output (stdout and stderr). `None` if the
    /// program can't be run, or the pattern does not match.
    fn run_query(&self, program: &Path) -> Option<(String, String)> {
        let mut command = Command::new(program);
        let command = command.args(&self.arguments).envs(&self.environment);
        let output = command.output().ok()?;
        let both = [output.stdout, output.stderr].concat();
        let printed = String::from_utf8_lossy(&both).into_owned();
        let found = self.pattern.captures(&printed)?.get(1)?.as_str();
        Some((format!("{}{found}", self.prefix), printed))
    }
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
