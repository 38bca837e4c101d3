//! Prepares the routes of the workers at start and at a reload: ports, certificates, codecs and
//! upstreams.
//!
//! Invariant: everything that can fail happens here, before any worker gets its new setup.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use plimsoll_engine::Address;
use plimsoll_protocols::interface::relayed::{RelayMode, Watchdog};
use plimsoll_protocols::registry::RelayCodec;
use plimsoll_serving::unix::{self, SocketFile};
use plimsoll_serving::{ListenOptions, TrustedProxies};

use super::SidecarError;
use super::access_log::AccessLog;
use super::config::{RouteConfig, SidecarConfig};
use super::metrics::{Counters, SidecarMetrics};
use super::tls::{TlsIdentity, TlsSide};
use super::upstream_names::RouteUpstreams;
use crate::metrics::LatencyHistogram;

const LISTEN_BACKLOG: u16 = 4096;

/// The socket on which one worker accepts a route's connections.
pub(super) struct WorkerListener {
    /// The file of the Unix socket, held by the first worker and shared by the others. The field is declared before the
    /// socket, so that the file is removed first.
    _file: Option<SocketFile>,
    pub(super) socket: TcpListener,
}

/// The setup of one route for one worker.
pub(super) struct RouteSetup {
    pub(super) route: RouteConfig,
    /// The worker already has this route, changed or not.
    pub(super) is_known: bool,
    /// `None` for HTTP/2 and for byte streams.
    pub(super) codec: Option<RelayCodec>,
    /// `None` if the worker keeps its current listener.
    pub(super) listener: Option<WorkerListener>,
    pub(super) proxies: TrustedProxies,
    pub(super) listen_tls: Option<TlsIdentity>,
    pub(super) upstream_tls: Option<TlsIdentity>,
    pub(super) upstreams: Arc<RouteUpstreams>,
    pub(super) counters: Counters,
    /// The histogram of call latencies.
    pub(super) latency: LatencyHistogram,
}

/// The setup of all routes for one worker.
pub(super) struct WorkerSetup {
    pub(super) routes: Vec<RouteSetup>,
    pub(super) access_log: Option<AccessLog>,
    pub(super) drain: std::time::Duration,
    pub(super) busy_poll: std::time::Duration,
}

/// A route that the workers serve.
#[derive(Clone)]
pub(super) struct ActiveRoute {
    pub(super) route: RouteConfig,
    /// The address on which the route listens, with the actual port.
    pub(super) address: Address,
    pub(super) upstreams: Arc<RouteUpstreams>,
    pub(super) counters: Counters,
    codec: Option<RelayCodec>,
}

impl ActiveRoute {
    /// Returns whether connections of this route can continue under the new config `route`.
    fn can_continue_under(&self, route: &RouteConfig) -> bool {
        let known = &self.route;
        let is_carried_so = known.protocol.name == route.protocol.name && known.file == route.file;
        known.name == route.name && is_carried_so
    }
}

/// Returns the setup for each worker, and the routes after the change.
///
/// # Errors
/// When the sidecar cannot listen on an address, or a certificate or plugin is unusable.
pub(super) fn prepare(
    config: &SidecarConfig,
    running: &[ActiveRoute],
    metrics: &SidecarMetrics,
    watchdog: &Watchdog,
    access_log: Option<&AccessLog>,
) -> Result<(Vec<WorkerSetup>, Vec<ActiveRoute>), SidecarError> {
    let mut setups: Vec<WorkerSetup> = (0..config.workers())
        .map(|_| WorkerSetup {
            routes: Vec::new(),
            access_log: access_log.cloned(),
            drain: config.drain(),
            busy_poll: config.busy_poll(),
        })
        .collect();
    let mut routes = Vec::new();
    for route in &config.route {
        let known = running.iter().find(|known| known.can_continue_under(route));
        let codec = match known {
            Some(known) => known.codec.clone(),
            None => open_codec(route, watchdog)?,
        };
        let name = &route.name;
        let alpn: Option<&[u8]> = match route.protocol.mode {
            RelayMode::Streams { .. } => Some(b"h2"),
            _ => None,
        };
        let counters = metrics.route_counters(name);
        let upstreams = match known {
            Some(known) if known.route.upstream == route.upstream => Arc::clone(&known.upstreams),
            _ => {
                let failures = counters.lookup_failures.clone();
                let upstreams = RouteUpstreams::new(name, &route.upstream, failures);
                upstreams.look_up_names();
                Arc::new(upstreams)
            }
        };
        for setup in &mut setups {
            let listen_tls = route.listen_tls.as_ref();
            let upstream_tls = route.upstream_tls.as_ref();
            setup.routes.push(RouteSetup {
                route: route.clone(),
                is_known: known.is_some(),
                codec: codec
                    .as_ref()
                    .map(|codec| codec.for_worker(&route.codec_options(watchdog))),
                listener: None,
                proxies: TrustedProxies::new(route.proxy_protocol.as_deref().unwrap_or_default()),
                listen_tls: listen_tls
                    .map(|files| TlsIdentity::new(name, TlsSide::Listen(files.clone()), alpn))
                    .transpose()?,
                upstream_tls: upstream_tls
                    .map(|files| TlsIdentity::new(name, TlsSide::Upstream(files.clone()), alpn))
                    .transpose()?,
                upstreams: Arc::clone(&upstreams),
                counters: counters.clone(),
                latency: metrics.latency_histogram(name),
            });
        }
        routes.push(ActiveRoute {
            route: route.clone(),
            address: known.map_or(&route.listen, |known| &known.address).clone(),
            codec,
            upstreams,
            counters,
        });
    }
    // Listening comes last, because connections are accepted from here on.
    for (place, route) in routes.iter_mut().enumerate() {
        let known = running
            .iter()
            .find(|known| known.can_continue_under(&route.route));
        if known.is_some_and(|known| known.route.listen == route.route.listen) {
            continue;
        }
        route.address = route.route.listen.clone();
        let mut first: Option<TcpListener> = None;
        for setup in &mut setups {
            let opened = open_listener(&route.address, first.as_ref());
            let (listener, address) = opened.map_err(|e| listen_error(route, &e))?;
            route.address = address;
            if first.is_none() {
                first = listener.socket.try_clone().ok();
            }
            setup.routes[place].listener = Some(listener);
        }
    }
    for route in &routes {
        let tls = route.route.upstream_tls.as_ref();
        let is_insecure = tls.is_some_and(|tls| tls.insecure == Some(true));
        route.counters.insecure.set(i64::from(is_insecure));
    }
    Ok((setups, routes))
}

fn listen_error(route: &ActiveRoute, e: &io::Error) -> SidecarError {
    let (name, address) = (&route.route.name, &route.address);
    let problem = match address {
        Address::Tcp(_) => e.to_string(),
        Address::Unix(socket) => unix::explain_listen_error(socket, e),
    };
    SidecarError::new(format!("route {name}: listening on {address}"), problem)
}

/// Opens the route's codec; returns `None` if the protocol has no frames.
fn open_codec(
    route: &RouteConfig,
    watchdog: &Watchdog,
) -> Result<Option<RelayCodec>, SidecarError> {
    let RelayMode::Frames { open, .. } = route.protocol.mode else {
        return Ok(None);
    };
    let opened = open(&route.codec_options(watchdog)).map(Some);
    opened.map_err(|e| SidecarError::new(format!("route {}", route.name), e))
}

/// Opens a listening socket and returns its address; `first` is the first worker's socket, if this is not the first
/// worker.
fn open_listener(
    wanted: &Address,
    first: Option<&TcpListener>,
) -> io::Result<(WorkerListener, Address)> {
    let (socket, address, file) = match (wanted, first) {
        (Address::Unix(_), Some(first)) => (first.try_clone()?, wanted.clone(), None),
        _ => {
            let listen = ListenOptions {
                address: wanted.clone(),
                reuse_port: true,
                backlog: LISTEN_BACKLOG,
                ..ListenOptions::default()
            };
            listen.open_socket()?
        }
    };
    let listener = WorkerListener {
        _file: file,
        socket,
    };
    Ok((listener, address))
}
