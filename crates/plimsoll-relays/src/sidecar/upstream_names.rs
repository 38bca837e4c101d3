//! Resolves the names of upstreams periodically, on a separate thread, because a lookup can take
//! seconds and addresses change.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use plimsoll_engine::transport::address::{LocalResourceError, look_up};
use plimsoll_engine::{Address, defect};
use plimsoll_model::plan::UnixSocket;
use serde::Deserialize;

use super::{SidecarError, add_to_counter, start_thread};
use crate::metrics::Counter;

/// How often the thread checks whether it must end.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(200);

/// An upstream as configured: an address or a name, with a port.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Upstream {
    /// `IP:PORT`.
    Address(SocketAddr),
    /// `HOST:PORT`, resolved periodically.
    Name {
        /// A DNS name, or another name that the system resolves.
        host: String,
        /// The port, which is not 0.
        port: u16,
    },
    /// `unix:/PATH`, or `unix:@NAME`.
    Socket(UnixSocket),
}

impl TryFrom<String> for Upstream {
    type Error = String;

    fn try_from(text: String) -> Result<Upstream, String> {
        text.parse()
    }
}

impl FromStr for Upstream {
    type Err = String;

    fn from_str(text: &str) -> Result<Upstream, String> {
        if let Some(socket) = UnixSocket::parse(text) {
            let socket = socket.map(Upstream::Socket);
            return socket.map_err(|problem| format!("upstream {problem}"));
        }
        if let Ok(address) = text.parse() {
            return Ok(Upstream::Address(address));
        }
        let wrong = |problem: &str| {
            Err(format!(
                "upstream `{text}`: {problem}: write HOST:PORT, such as \"127.0.0.1:12200\" or \
                 \"orders.internal:12200\""
            ))
        };
        let Some((host, port)) = text.rsplit_once(':') else {
            return wrong("the port is missing");
        };
        let Ok(port) = port.parse() else {
            return wrong("the port is not a number from 1 to 65535");
        };
        let is_name_byte = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
        if host.is_empty() || host.len() > 253 || !host.bytes().all(is_name_byte) || port == 0 {
            return wrong("neither an address nor a name, with a port");
        }
        Ok(Upstream::Name {
            host: host.to_owned(),
            port,
        })
    }
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Upstream::Address(address) => address.fmt(f),
            Upstream::Name { host, port } => write!(f, "{host}:{port}"),
            Upstream::Socket(socket) => socket.fmt(f),
        }
    }
}

impl Upstream {
    pub(super) fn is_unix_socket(&self) -> bool {
        matches!(self, Upstream::Socket(_))
    }

    /// Returns whether all connections to this upstream reach the listener at `address`.
    pub(super) fn reaches_listener(&self, address: &Address) -> bool {
        let to = |ip: IpAddr, port: u16| {
            let Address::Tcp(listens) = address else {
                return false;
            };
            let here = listens.ip() == ip || (listens.ip().is_unspecified() && ip.is_loopback());
            port != 0 && listens.port() == port && here
        };
        match self {
            Upstream::Address(at) => to(at.ip(), at.port()),
            Upstream::Name { host, port } => {
                host.eq_ignore_ascii_case("localhost") && to(Ipv4Addr::LOCALHOST.into(), *port)
            }
            Upstream::Socket(socket) => *address == Address::Unix(socket.clone()),
        }
    }

    /// Returns the host for which the upstream's certificate must be valid.
    pub(super) fn certificate_host(&self) -> String {
        match self {
            Upstream::Address(address) => address.ip().to_string(),
            Upstream::Name { host, .. } => host.clone(),
            Upstream::Socket(_) => "localhost".to_owned(),
        }
    }
}

/// One address of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ResolvedUpstream {
    pub(super) host: Arc<str>,
    pub(super) address: Address,
}

/// The lookup results of one upstream.
#[derive(Clone, Debug, Default)]
struct LookupState {
    addresses: Vec<Address>,
    /// The local resource that was exhausted at the last lookup, if any.
    exhausted_resource: Option<LocalResourceError>,
}

/// The lookup results of a route's upstreams, shared by all workers.
#[derive(Debug)]
pub(super) struct RouteUpstreams {
    route: String,
    upstreams: Vec<Upstream>,
    failures: Counter,
    /// The results for each of `upstreams`, in the same order.
    lookups: Mutex<Vec<LookupState>>,
    /// Incremented whenever a result changes.
    revision: AtomicU64,
}

impl RouteUpstreams {
    /// Creates the upstreams of a route, without looking up their names yet. `failures` counts failed lookups.
    pub(super) fn new(route: &str, upstreams: &[Upstream], failures: Counter) -> RouteUpstreams {
        RouteUpstreams {
            route: route.to_owned(),
            upstreams: upstreams.to_vec(),
            failures,
            lookups: Mutex::new(vec![LookupState::default(); upstreams.len()]),
            revision: AtomicU64::new(1),
        }
    }

    pub(super) fn route(&self) -> &str {
        &self.route
    }

    pub(super) fn revision(&self) -> u64 {
        self.revision.load(Ordering::Acquire)
    }

    /// Returns the addresses that the route's connections may use.
    pub(super) fn addresses(&self) -> Vec<ResolvedUpstream> {
        let known = self.lock_lookups();
        let upstreams = self.upstreams.iter().zip(known.iter());
        upstreams
            .flat_map(|(upstream, known)| {
                let host: Arc<str> = upstream.certificate_host().into();
                known.addresses.iter().map(move |address| ResolvedUpstream {
                    host: Arc::clone(&host),
                    address: address.clone(),
                })
            })
            .collect()
    }

    /// Returns the local resource whose exhaustion prevented the lookup of an upstream without addresses.
    pub(super) fn exhausted_resource(&self) -> Option<LocalResourceError> {
        let known = self.lock_lookups();
        let mut unknown = known.iter().filter(|known| known.addresses.is_empty());
        unknown.find_map(|known| known.exhausted_resource)
    }

    fn lock_lookups(&self) -> MutexGuard<'_, Vec<LookupState>> {
        self.lookups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks up every name, which may take a while. If a name has no address, a warning is logged
    /// and the previous addresses are kept until the next lookup.
    pub(super) fn look_up_names(&self) {
        for (place, upstream) in self.upstreams.iter().enumerate() {
            let found = match upstream {
                Upstream::Address(address) => vec![Address::Tcp(*address)],
                Upstream::Socket(socket) => vec![Address::Unix(socket.clone())],
                Upstream::Name { host, port } => match resolve_sorted(host, *port) {
                    Ok(found) => found.into_iter().map(Address::Tcp).collect(),
                    Err(problem) => {
                        add_to_counter(&self.failures, 1);
                        let name = &self.route;
                        tracing::warn!("route {name}: upstream {upstream}: {problem}");
                        self.lock_lookups()[place].exhausted_resource =
                            LocalResourceError::from_io_error(&problem);
                        continue;
                    }
                },
            };
            let mut known = self.lock_lookups();
            let known = &mut known[place];
            known.exhausted_resource = None;
            if known.addresses != found {
                known.addresses = found;
                self.revision.fetch_add(1, Ordering::Release);
            }
        }
    }

    fn has_names(&self) -> bool {
        let mut upstreams = self.upstreams.iter();
        upstreams.any(|upstream| matches!(upstream, Upstream::Name { .. }))
    }
}

/// Resolves the names of all current routes' upstreams.
#[derive(Debug, Default)]
pub(super) struct NameResolver {
    routes: Mutex<Vec<Arc<RouteUpstreams>>>,
    /// Interval between lookups, in nanoseconds.
    interval_ns: AtomicU64,
    has_thread: AtomicBool,
}

impl NameResolver {
    pub(super) fn routes(&self) -> Vec<Arc<RouteUpstreams>> {
        let routes = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        routes.clone()
    }

    /// Replaces the routes whose upstreams are looked up, and starts the lookup thread if a name needs it.
    ///
    /// # Errors
    /// When the system cannot start another thread.
    pub(super) fn set_routes(
        self: &Arc<NameResolver>,
        routes: Vec<Arc<RouteUpstreams>>,
        every: Duration,
        stop: &Arc<AtomicBool>,
    ) -> Result<(), SidecarError> {
        let has_names = routes.iter().any(|route| route.has_names());
        let every = u64::try_from(every.as_nanos()).unwrap_or(u64::MAX);
        self.interval_ns.store(every, Ordering::Relaxed);
        if has_names && !self.has_thread.swap(true, Ordering::Relaxed) {
            let (names, stop) = (Arc::clone(self), Arc::clone(stop));
            start_thread("names", move || names.run_lookups(&stop))
                .inspect_err(|_| self.has_thread.store(false, Ordering::Relaxed))?;
        }
        *self.routes.lock().unwrap_or_else(PoisonError::into_inner) = routes;
        Ok(())
    }

    fn run_lookups(&self, stop: &AtomicBool) {
        let mut slept = Duration::ZERO;
        while !stop.load(Ordering::Relaxed) {
            let every = Duration::from_nanos(self.interval_ns.load(Ordering::Relaxed));
            thread::sleep(STOP_POLL_INTERVAL.min(every));
            slept += STOP_POLL_INTERVAL.min(every);
            if slept >= every {
                slept = Duration::ZERO;
                for route in self.routes() {
                    // A panic is caught, because the next lookup may succeed.
                    let _ = defect::catch_panic(|| route.look_up_names());
                }
            }
        }
    }
}

/// Resolves a name. The addresses are sorted, so that a different order of the same addresses does not count as a
/// change.
fn resolve_sorted(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let mut found = look_up((host, port))?;
    // IPv4 addresses come first: if a name has both kinds, its service more often listens on IPv4.
    found.sort_by_key(|address| match address.ip() {
        IpAddr::V4(ip) => (0, u128::from(u32::from(ip))),
        IpAddr::V6(ip) => (1, u128::from(ip)),
    });
    found.dedup();
    if found.is_empty() {
        return Err(io::Error::other("the name has no address"));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_names_are_distinguished() {
        let address = "127.0.0.1:1".parse().unwrap();
        assert_eq!("127.0.0.1:1".parse(), Ok(Upstream::Address(address)));
        assert!(matches!("[::1]:2".parse(), Ok(Upstream::Address(_))));
        let named: Upstream = "orders.internal:12200".parse().unwrap();
        assert_eq!(named.certificate_host(), "orders.internal");
        for (wrong, needle) in [
            ("localhost", "the port is missing"),
            ("localhost:x", "not a number"),
            ("localhost:70000", "not a number"),
            ("local host:1", "neither an address nor a name"),
            ("unix:", "has no socket path"),
            (":1", "neither"),
            ("a:0", "neither"),
            ("http://a:1", "neither"),
        ] {
            let error = wrong.parse::<Upstream>().unwrap_err();
            assert!(error.contains(needle), "{wrong}: {error}");
        }
    }

    #[test]
    fn failed_lookups_keep_known_addresses() {
        let upstreams = [
            "localhost:7".parse().unwrap(),
            "127.0.0.1:8".parse().unwrap(),
            "no..name:9".parse().unwrap(),
        ];
        let failures = Counter::default();
        let names = RouteUpstreams::new("r", &upstreams, failures.clone());
        let before = names.revision();
        names.look_up_names();
        assert!(names.revision() > before);
        let places = names.addresses();
        let named = |host: &str| places.iter().filter(|p| &*p.host == host).count();
        assert!(named("localhost") >= 1 && named("127.0.0.1") == 1);
        assert_eq!(named("no..name"), 0);
        let after = names.revision();
        names.look_up_names();
        assert_eq!((names.revision(), names.addresses()), (after, places));
        assert_eq!(failures.get(), 2);
    }
}
