//! The sidecar's TOML file.

mod checks;
mod tls;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use plimsoll_engine::Address;
use plimsoll_model::formats::units::{ByteSize, Period};
use plimsoll_protocols::interface::relayed::{CodecOptions, RelayProtocol, Watchdog};
use plimsoll_protocols::registry::{RELAYED_PROTOCOLS, RelayCodec};
use serde::Deserialize;
use serde::de::{self, Deserializer};

use super::SidecarError;
use super::upstream_names::Upstream;
pub(super) use tls::versions;
pub use tls::{TlsFiles, TlsVersionSpec, UpstreamTls};

const MAX_WORKERS: usize = 64;
/// Default of `max_frame`, in bytes.
const DEFAULT_MAX_FRAME_BYTES: u64 = 16 << 20;
const MAX_FRAME_LIMIT_BYTES: u64 = 1 << 30;
const MIN_LOOKUP_INTERVAL: Duration = Duration::from_millis(100);

/// The contents of the file; see docs/sidecar.md.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SidecarConfig {
    /// The loopback address for metrics and health checks. Default: none.
    pub admin: Option<SocketAddr>,
    /// Number of worker threads, each with its own connections. Default 1.
    pub workers: Option<usize>,
    /// How long calls in flight may take at shutdown. Default 10s.
    pub drain: Option<Period>,
    /// File for a JSON line per call; `-`: standard output. Default: none.
    pub access_log: Option<PathBuf>,
    /// How long a worker polls without sleeping after the last event: saves the cost of a wake-up,
    /// but needs a core. Default 0s.
    pub busy_poll: Option<Period>,
    /// Interval between lookups of upstream names. Default 30s.
    pub lookup: Option<Period>,
    /// The routes, at least one.
    #[serde(default)]
    pub route: Vec<RouteConfig>,
}

/// One route: where it listens, and its upstreams.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteConfig {
    /// The route's name in messages and metrics.
    pub name: String,
    /// The protocol, which decides how connections are relayed.
    #[serde(deserialize_with = "protocol")]
    pub protocol: &'static RelayProtocol<RelayCodec>,
    /// `IP:PORT`, or `unix:/PATH`.
    #[serde(deserialize_with = "listen")]
    pub listen: Address,
    /// The upstreams of the calls; an address that cannot be reached is skipped for a while.
    pub upstream: Vec<Upstream>,
    /// Addresses of proxies whose connections begin with a PROXY header. Default: none.
    pub proxy_protocol: Option<Vec<IpAddr>>,
    /// TLS towards clients.
    pub listen_tls: Option<TlsFiles>,
    /// TLS towards the upstream.
    pub upstream_tls: Option<UpstreamTls>,
    /// The shared object that implements the protocol, for `protocol = "plugin"`.
    #[serde(rename = "plugin")]
    pub file: Option<PathBuf>,
    /// How long one call into the plugin may take before the sidecar exits: such a call blocks all
    /// other connections of its worker and cannot be interrupted. Default 10s.
    pub codec_timeout: Option<Period>,
    /// Faults to inject. Default: none.
    pub fault: Option<FaultConfig>,
    /// Connections of a worker to each upstream; with Bolt, for each frame layout. Default 1.
    pub connections: Option<usize>,
    /// Largest frame; for Bolt, its content. A frame is buffered until it is complete. Default
    /// 16MiB, at most 1GiB.
    pub max_frame: Option<ByteSize>,
    /// Calls in flight on each connection. When all connections are full, a further call is
    /// answered as busy. Default 4096.
    pub max_in_flight: Option<usize>,
    /// gRPC: calls in flight on one client's connection, advertised in SETTINGS. Streams above it
    /// are refused, and more resets than that within a second end the connection. Default 1000.
    pub max_streams: Option<u32>,
    /// gRPC: how long a call may consist of header fields alone while no answer has begun. Default
    /// 30s.
    pub request_timeout: Option<Period>,
    /// Bolt, plugins: timeout of calls that don't specify one, default 60s. gRPC: timeout of all calls, default none.
    pub timeout: Option<Period>,
    /// Silence after which the upstream is probed. Default 15s.
    pub heartbeat: Option<Period>,
    /// Consecutive failed calls after which an upstream is ejected. Default 5.
    pub eject_after: Option<u32>,
    /// How long an upstream stays ejected. Default 10s.
    pub eject_for: Option<Period>,
}

/// Faults injected into calls; with TCP, into connections.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultConfig {
    /// Delay added before a call is sent to its upstream.
    pub delay: Option<Period>,
    /// Share of the calls that are delayed, from 0 to 1. Default 1 if there is a `delay`.
    pub delay_share: Option<f64>,
    /// Share of the calls that are not sent but answered as failed, from 0 to 1. Default 0.
    pub abort_share: Option<f64>,
}

impl FaultConfig {
    /// Returns the first key whose value is out of range, and the correction.
    fn find_invalid_key(&self) -> Option<(&'static str, &'static str)> {
        let is_share = |share: Option<f64>| share.is_none_or(|share| (0.0..=1.0).contains(&share));
        let range = "out of range: a share is from 0 to 1, such as 0.01 for one call in a hundred";
        if !is_share(self.delay_share) {
            return Some(("fault.delay_share", range));
        }
        if !is_share(self.abort_share) {
            return Some(("fault.abort_share", range));
        }
        if self.delay_share.is_some() && self.delay.is_none() {
            return Some((
                "fault.delay",
                "missing: delay_share needs a time, such as \"50ms\"",
            ));
        }
        if self.delay.is_none() && self.abort_share.is_none() {
            return Some(("fault", "empty: give delay, abort_share or both"));
        }
        None
    }
}

fn listen<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Address, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(de::Error::custom)
}

fn protocol<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<&'static RelayProtocol<RelayCodec>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let known = RELAYED_PROTOCOLS
        .iter()
        .find(|protocol| protocol.name == text);
    known.ok_or_else(|| {
        let names = RELAYED_PROTOCOLS.each_ref().map(|protocol| protocol.name);
        let names = names.join("`, `");
        de::Error::custom(format!(
            "unknown variant `{text}`, expected one of `{names}`"
        ))
    })
}

/// Defines a getter for each key that is a time, with its default in seconds.
macro_rules! times {
    ($($key:ident = $seconds:literal,)*) => {
        $(pub(super) fn $key(&self) -> Duration {
            self.$key.map_or(Duration::from_secs($seconds), |given| given.0)
        })*
    };
}

impl SidecarConfig {
    times! { busy_poll = 0, drain = 10, lookup = 30, }

    /// Parses the text of a file.
    ///
    /// # Errors
    /// Returns an error with line and column for the first mistake.
    pub fn parse(text: &str) -> Result<SidecarConfig, SidecarError> {
        let mistake =
            |e: toml::de::Error| SidecarError::new("sidecar file", e.to_string().trim_end());
        let config: SidecarConfig = toml::from_str(text).map_err(mistake)?;
        config.check()?;
        Ok(config)
    }

    /// Returns whether any route uses TLS on either side.
    pub fn uses_tls(&self) -> bool {
        let mut routes = self.route.iter();
        routes.any(|route| route.listen_tls.is_some() || route.upstream_tls.is_some())
    }

    /// Returns the names of the routes that inject faults.
    pub fn faulty_routes(&self) -> impl Iterator<Item = &str> {
        let faulty = self.route.iter().filter(|route| route.fault.is_some());
        faulty.map(|route| &*route.name)
    }

    /// Returns the names of the routes that do not verify their upstreams' certificates.
    pub fn insecure_routes(&self) -> impl Iterator<Item = &str> {
        let insecure = |route: &&RouteConfig| {
            let tls = route.upstream_tls.as_ref();
            tls.is_some_and(|tls| tls.insecure == Some(true))
        };
        self.route.iter().filter(insecure).map(|route| &*route.name)
    }

    pub(super) fn workers(&self) -> usize {
        self.workers.unwrap_or(1)
    }

    /// Returns what already listens on the route's address: an earlier route, or the admin page.
    fn find_listen_conflict(&self, route: usize) -> Option<String> {
        let address = &self.route[route].listen;
        let mut before = self.route[..route].iter();
        let other = before.find(|other| listen_addresses_overlap(&other.listen, address));
        let is_admin = self
            .admin
            .is_some_and(|admin| listen_addresses_overlap(&admin.into(), address));
        match (other, is_admin) {
            (Some(other), _) => Some(format!("route {}", other.name)),
            (None, true) => Some("admin".to_owned()),
            (None, false) => None,
        }
    }

    /// Finds a chain of routes that leads from this one back to itself, as a list of names.
    fn find_route_loop(&self, from: usize) -> Option<String> {
        let mut ways = vec![vec![from]];
        let mut seen = vec![false; self.route.len()];
        while let Some(way) = ways.pop() {
            let last = &self.route[*way.last()?];
            for (next, route) in self.route.iter().enumerate() {
                if !last
                    .upstream
                    .iter()
                    .any(|to| to.reaches_listener(&route.listen))
                {
                    continue;
                }
                if next == from {
                    let names = way.iter().chain([&from]);
                    let names: Vec<&str> = names.map(|n| &*self.route[*n].name).collect();
                    return Some(names.join(" → "));
                }
                if !std::mem::replace(&mut seen[next], true) {
                    ways.push([&way[..], &[next]].concat());
                }
            }
        }
        None
    }

    pub(super) fn check(&self) -> Result<(), SidecarError> {
        let mistake = |(key, problem): (String, String)| SidecarError::new(key, problem);
        self.check_global_keys().map_err(mistake)?;
        for (i, route) in self.route.iter().enumerate() {
            let checked = self
                .check_against_other_routes(i)
                .and_then(|()| route.check());
            let of_route = |(key, problem)| (format!("route {}: {key}", route.name), problem);
            checked.map_err(of_route).map_err(mistake)?;
        }
        Ok(())
    }
}

/// Returns whether a socket listening on `other` would receive connections to `one`. Port 0 never
/// conflicts, because the system picks a free port.
fn listen_addresses_overlap(one: &Address, other: &Address) -> bool {
    match (one, other) {
        (Address::Tcp(one), Address::Tcp(other)) => {
            let same = one.ip() == other.ip()
                || (one.ip().is_unspecified() || other.ip().is_unspecified());
            one.port() != 0 && one.port() == other.port() && same
        }
        _ => one == other,
    }
}

impl RouteConfig {
    times! { timeout = 60, request_timeout = 30, heartbeat = 15, eject_for = 10, codec_timeout = 10, }

    pub(super) fn codec_options<'a>(&'a self, watchdog: &'a Watchdog) -> CodecOptions<'a> {
        CodecOptions {
            route: &self.name,
            file: self.file.as_deref(),
            max_frame: self.max_frame(),
            timeout: self.codec_timeout(),
            watchdog,
        }
    }

    pub(super) fn connections(&self) -> usize {
        self.connections.unwrap_or(1)
    }

    pub(super) fn max_in_flight(&self) -> usize {
        self.max_in_flight.unwrap_or(4096)
    }

    pub(super) fn max_streams(&self) -> u32 {
        self.max_streams.unwrap_or(1000)
    }

    /// Returns the configured timeout; gRPC streams have none by default.
    pub(super) fn call_timeout(&self) -> Option<Duration> {
        self.timeout.map(|p| p.0)
    }

    /// Returns the largest frame in bytes.
    fn max_frame(&self) -> usize {
        let given = self
            .max_frame
            .map_or(DEFAULT_MAX_FRAME_BYTES, |size| size.0);
        usize::try_from(given).unwrap_or(usize::MAX)
    }

    pub(super) fn eject_after(&self) -> u32 {
        self.eject_after.unwrap_or(5)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn config_errors_suggest_fix() {
        let route = "[[route]]\nname = \"a\"\nprotocol = \"bolt\"\nlisten = \"127.0.0.1:0\"\nupstream = [\"127.0.0.1:1\"]\n";
        assert!(SidecarConfig::parse(route).is_ok());
        let two = |a: &str, to: &str, b: &str, on: &str| {
            let one = |name: &str, listen: &str, upstream: &str| {
                format!(
                    "[[route]]\nname = \"{name}\"\nprotocol = \"tcp\"\nlisten = \"{listen}\"\nupstream = [\"{upstream}\"]\n"
                )
            };
            one("a", a, to) + &one("b", b, on)
        };
        // A free port, another address or another port does not conflict.
        for fine in [
            two("127.0.0.1:0", "127.0.0.1:1", "127.0.0.1:0", "127.0.0.1:1"),
            two("127.0.0.1:7", "127.0.0.1:8", "127.0.0.2:7", "127.0.0.1:8"),
            two("127.0.0.1:7", "127.0.0.1:8", "127.0.0.1:8", "10.0.0.2:7"),
        ] {
            assert!(SidecarConfig::parse(&fine).is_ok(), "{fine}");
        }
        for (text, needle) in [
            (String::new(), "at least one [[route]]"),
            (
                format!("admin = \"0.0.0.0:1\"\n{route}"),
                "not a loopback address",
            ),
            (format!("workers = 0\n{route}"), "1 to 64"),
            (format!("{route}{route}"), "used twice"),
            (route.replace("\"127.0.0.1:1\"", ""), "at least one address"),
            (
                format!("{route}conections = 2\n"),
                "unknown field `conections`",
            ),
            (format!("{route}connections = 0\n"), "1 to 1024"),
            (
                format!("{}timeout = \"1s\"\n", route.replace("bolt", "tcp")),
                "tcp has no calls",
            ),
            (format!("{route}heartbeat = \"0s\"\n"), "not a valid time"),
            (format!("{route}eject_after = 0\n"), "use 1 or more"),
            (format!("{route}max_streams = 9\n"), "only for \"grpc\""),
            (
                format!("{route}fault = {{ delay_share = 0.5 }}\n"),
                "route a: fault.delay: missing",
            ),
            (
                format!("{route}fault = {{ abort_share = 5 }}\n"),
                "route a: fault.abort_share: out of range",
            ),
            (format!("{route}fault = {{}}\n"), "route a: fault: empty"),
            (format!("{route}max_frame = \"2GiB\"\n"), "1KiB to 1GiB"),
            (
                format!("{}max_frame = \"2MiB\"\n", route.replace("bolt", "grpc")),
                "of any length",
            ),
            (
                format!("{route}codec_timeout = \"1s\"\n"),
                "only for \"plugin\"",
            ),
            (
                format!("{}max_streams = 0\n", route.replace("bolt", "grpc")),
                "use 1 or more",
            ),
            (format!("lookup = \"1ms\"\n{route}"), "too often"),
            (route.replace(":1\"", "\""), "the port is missing"),
            (
                route.replace("127.0.0.1:0", "nowhere"),
                "`nowhere` is not an address: write IP:PORT, or unix:/PATH",
            ),
            (
                format!(
                    "{}upstream_tls = {{ ca = \"a\", cert = \"b\", key = \"c\" }}\n",
                    route.replace("127.0.0.1:1", "unix:/a")
                ),
                "route a: upstream_tls.server_name: missing: a Unix socket has no name",
            ),
            (
                format!("{route}upstream_tls = {{ pin = [\"sha1:00\"] }}\n"),
                "route a: upstream_tls.pin: ",
            ),
            (
                format!("{route}upstream_tls = {{ ca = \"a\", insecure = true }}\n"),
                "route a: upstream_tls.insecure: it disables all certificate checks",
            ),
            (
                format!("{route}upstream_tls = {{ cert = \"a\" }}\n"),
                "route a: upstream_tls.key: missing",
            ),
            (
                format!(
                    "{route}listen_tls = {{ ca = \"a\", cert = \"b\", key = \"c\", insecure = true }}\n"
                ),
                "unknown field `insecure`",
            ),
            (
                format!("{route}upstream_tls = {{ ca = \"a\", versions = [] }}\n"),
                "route a: upstream_tls.versions: empty",
            ),
            (
                format!(
                    "{route}listen_tls = {{ ca = \"a\", cert = \"b\", key = \"c\", versions = [] }}\n"
                ),
                "route a: listen_tls.versions: empty",
            ),
            (
                format!("{route}upstream_tls = {{ ca = \"a\", versions = [\"1.1\"] }}\n"),
                "`1.1` is not a supported TLS version: use \"1.3\" or \"1.2\"",
            ),
            (route.replace("bolt", "http3"), "unknown variant `http3`"),
            (
                format!(
                    "{route}listen_tls = {{ ca = \"a\", cert = \"b\", key = \"c\", server_name = \"d\" }}\n"
                ),
                "route a: listen_tls.server_name: not used here",
            ),
            (
                two("127.0.0.1:7", "127.0.0.1:1", "127.0.0.1:7", "127.0.0.1:1"),
                "route b: listen: 127.0.0.1:7 is already used by route a",
            ),
            (
                two("0.0.0.0:7", "127.0.0.1:1", "127.0.0.1:7", "127.0.0.1:1"),
                "route b: listen: 127.0.0.1:7 is already used by route a",
            ),
            (
                two("unix:/s", "127.0.0.1:1", "unix:/s", "127.0.0.1:1"),
                "route b: listen: unix:/s is already used by route a",
            ),
            (
                format!("admin = \"127.0.0.1:7\"\n{}", route.replace(":0", ":7")),
                "route a: listen: 127.0.0.1:7 is already used by admin",
            ),
            (
                route.replace(":0", ":1"),
                "route a: upstream: leads back into the route itself (a → a)",
            ),
            (
                route
                    .replace("127.0.0.1:0", "0.0.0.0:1")
                    .replace("127.0.0.1:1", "localhost:1"),
                "leads back into the route itself (a → a)",
            ),
            (
                route
                    .replace("127.0.0.1:0", "unix:/s")
                    .replace("127.0.0.1:1", "unix:/s"),
                "leads back into the route itself (a → a)",
            ),
            (
                two("127.0.0.1:7", "127.0.0.1:8", "127.0.0.1:8", "127.0.0.1:7"),
                "route a: upstream: leads back into the route itself (a → b → a)",
            ),
            (route.replace("bolt", "plugin"), "needs the shared object"),
            (
                format!("{route}plugin = \"x.so\"\n"),
                "only for protocol = \"plugin\"",
            ),
        ] {
            let error = SidecarConfig::parse(&text).unwrap_err().to_string();
            assert!(error.contains(needle), "{text}: {error}");
        }
    }
}
