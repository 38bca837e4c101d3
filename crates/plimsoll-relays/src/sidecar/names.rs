//! Upstreams that are named: looked up by a thread of its own, again and again, since a
//! lookup can take seconds and addresses change.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use plimsoll_engine::{Address, defect};
use plimsoll_model::plan::UnixSocket;
use serde::Deserialize;

use super::count;
use super::metrics::Counters;

/// How often the thread looks whether it is to end.
const NAP: Duration = Duration::from_millis(200);

/// An upstream as it is written: an address with a port, or a name with one.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Upstream {
    Address(SocketAddr),
    Name { host: String, port: u16 },
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
    pub(super) fn is_socket(&self) -> bool {
        matches!(self, Upstream::Socket(_))
    }

    /// Whether what is sent there surely comes to who listens at `address`.
    pub(super) fn reaches(&self, address: &Address) -> bool {
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

    /// What the upstream's certificate must be for.
    pub(super) fn host(&self) -> String {
        match self {
            Upstream::Address(address) => address.ip().to_string(),
            Upstream::Name { host, .. } => host.clone(),
            Upstream::Socket(_) => "localhost".to_owned(),
        }
    }
}

/// An upstream, and one of its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) host: Arc<str>,
    pub(super) address: Address,
}

/// What is known of every route's upstreams, for all workers.
#[derive(Debug)]
pub(super) struct Names {
    routes: Vec<Vec<Upstream>>,
    places: Mutex<Vec<Vec<Vec<Address>>>>,
    /// Moves with every change.
    version: AtomicU64,
}

impl Names {
    /// Looks every name up once, which may take a while. One that has no address is told
    /// as a warning, and looked up again later.
    pub(super) fn new<'a>(routes: impl Iterator<Item = &'a [Upstream]>) -> Names {
        let routes: Vec<Vec<Upstream>> = routes.map(<[Upstream]>::to_vec).collect();
        let places = routes.iter().map(|r| vec![Vec::new(); r.len()]).collect();
        Names {
            routes,
            places: Mutex::new(places),
            version: AtomicU64::new(1),
        }
    }

    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Where the connections of a route may go.
    pub(super) fn places(&self, route: usize) -> Vec<Place> {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let upstreams = self.routes[route].iter().zip(&places[route]);
        upstreams
            .flat_map(|(upstream, addresses)| {
                let host: Arc<str> = upstream.host().into();
                addresses.iter().map(move |address| Place {
                    host: Arc::clone(&host),
                    address: address.clone(),
                })
            })
            .collect()
    }

    /// Looks up everything; names that can't be keep the addresses that they had.
    pub(super) fn look_up(&self, counters: &[(String, Counters)]) {
        for (route, upstreams) in self.routes.iter().enumerate() {
            for (place, upstream) in upstreams.iter().enumerate() {
                let found = match upstream {
                    Upstream::Address(address) => vec![Address::Tcp(*address)],
                    Upstream::Socket(socket) => vec![Address::Unix(socket.clone())],
                    Upstream::Name { host, port } => match addresses(host, *port) {
                        Ok(found) => found.into_iter().map(Address::Tcp).collect(),
                        Err(problem) => {
                            let (name, counters) = &counters[route];
                            count(&counters.lookup_failures, 1);
                            tracing::warn!("route {name}: upstream {upstream}: {problem}");
                            continue;
                        }
                    },
                };
                let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
                let known = &mut places[route][place];
                if *known != found {
                    *known = found;
                    self.version.fetch_add(1, Ordering::Release);
                }
            }
        }
    }

    /// Looks up again every so often, in a thread of its own, where there is a name.
    pub(super) fn keep_looking(
        self: Arc<Names>,
        every: Duration,
        counters: Arc<Vec<(String, Counters)>>,
        stop: Arc<AtomicBool>,
    ) {
        let is_name = |upstream: &Upstream| matches!(upstream, Upstream::Name { .. });
        if !self.routes.iter().flatten().any(is_name) {
            return;
        }
        thread::spawn(move || {
            let mut slept = Duration::ZERO;
            while !stop.load(Ordering::Relaxed) {
                thread::sleep(NAP.min(every));
                slept += NAP.min(every);
                if slept >= every {
                    slept = Duration::ZERO;
                    // The next one may go well.
                    let _ = defect::caught(|| self.look_up(&counters));
                }
            }
        });
    }
}

/// In an order of their own, so that the same addresses in another order are no change.
fn addresses(host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    let found = (host, port).to_socket_addrs().map_err(|e| e.to_string())?;
    let mut found: Vec<SocketAddr> = found.collect();
    // IPv4 first: where a name has both, the service listens there more often.
    found.sort_by_key(|address| match address.ip() {
        IpAddr::V4(ip) => (0, u128::from(u32::from(ip))),
        IpAddr::V6(ip) => (1, u128::from(ip)),
    });
    found.dedup();
    if found.is_empty() {
        return Err("the name has no address".to_owned());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::super::metrics::Metrics;
    use super::*;

    #[test]
    fn addresses_and_names_are_told_apart() {
        let address = "127.0.0.1:1".parse().unwrap();
        assert_eq!("127.0.0.1:1".parse(), Ok(Upstream::Address(address)));
        assert!(matches!("[::1]:2".parse(), Ok(Upstream::Address(_))));
        let named: Upstream = "orders.internal:12200".parse().unwrap();
        assert_eq!(named.host(), "orders.internal");
        for (wrong, needle) in [
            ("localhost", "the port is missing"),
            ("localhost:x", "not a number"),
            ("localhost:70000", "not a number"),
            ("local host:1", "neither an address nor a name"),
            ("unix:", "names no socket"),
            (":1", "neither"),
            ("a:0", "neither"),
            ("http://a:1", "neither"),
        ] {
            let error = wrong.parse::<Upstream>().unwrap_err();
            assert!(error.contains(needle), "{wrong}: {error}");
        }
    }

    #[test]
    fn names_are_looked_up_and_failures_keep_what_was_known() {
        let upstreams = [
            "localhost:7".parse().unwrap(),
            "127.0.0.1:8".parse().unwrap(),
            "no..name:9".parse().unwrap(),
        ];
        let counters = [("r".to_owned(), Metrics::new().route("r"))];
        let names = Names::new([&upstreams[..]].into_iter());
        let before = names.version();
        names.look_up(&counters);
        assert!(names.version() > before);
        let places = names.places(0);
        let named = |host: &str| places.iter().filter(|p| &*p.host == host).count();
        assert!(named("localhost") >= 1 && named("127.0.0.1") == 1);
        assert_eq!(named("no..name"), 0);
        let after = names.version();
        names.look_up(&counters);
        assert_eq!((names.version(), names.places(0)), (after, places));
        assert_eq!(counters[0].1.lookup_failures.get(), 2);
    }
}
