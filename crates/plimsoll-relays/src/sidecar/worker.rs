//! One worker's loop: accepts, reads, passes on, writes; a tick every tenth of a second
//! for everything that has a time.
//!
//! What one turn brings for a connection leaves in one write at the turn's end.

mod balance;
mod http2;
mod lines;
mod multiplex;
mod pipe;
mod sockets;
mod table;
mod troubles;
mod upstream;

use std::collections::VecDeque;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use plimsoll_engine::{Address, Clock, defect, fault};
use plimsoll_model::Time;
use plimsoll_protocols::serving::unix::{self, SocketFile};

use super::access_log::AccessLog;
use super::calls::Calls;
use super::codec::Codec;
use super::config::{Config, Route};
use super::http2::Exchanges;
use super::link::Link;
use super::metrics::{Counters, Metrics, Statuses};
use super::names::Upstreams;
use super::poll::{Events, Poll, Waker};
use super::tls::Identity;
use super::{SidecarError, count};
use crate::metrics::Latencies;
use http2::Http2;
use troubles::Troubles;
use upstream::Endpoint;

const TICK: Duration = Duration::from_millis(100);
const RELOAD_EVERY: Duration = Duration::from_secs(2);
/// For TCP and TLS together, either side.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Unsent bytes for a connection beyond which its sources are not read, and below which
/// they are read again.
const HIGH_WATER: usize = 1 << 20;
const LOW_WATER: usize = 256 << 10;
const READ_AT_ONCE: usize = 64 << 10;
/// Tokens of listening sockets; the rest is the route's place.
const LISTENER: u64 = 1 << 63;

/// What a connection is for.
enum Role {
    /// From a client, with calls that are told apart; how many of its calls wait for an answer.
    Down { in_flight: usize },
    /// To an upstream, with calls that are told apart.
    Up {
        lane: usize,
        endpoint: usize,
        calls: Calls,
        /// The heartbeat on its way: its id, and when its answer is missed.
        beat: Option<(u64, Time)>,
    },
    /// HTTP/2, from a client or to an upstream.
    Http2(Box<Http2>),
    /// One end of a pipe; `endpoint` is given at the end that goes upstream.
    Pipe { peer: u64, endpoint: Option<usize> },
}

struct Connection {
    link: Link,
    token: u64,
    route: usize,
    role: Role,
    began: Time,
    last_active: Time,
    /// Bytes that a pipe brought from here, and to here.
    came: u64,
    went: u64,
    connecting: bool,
    /// Its upstream has taken it, TLS and HTTP/2 included.
    proven: bool,
    /// Why there is none, where that is known.
    problem: Option<String>,
    /// What it began with is of the route's protocol.
    recognised: bool,
    /// What epoll was asked for.
    reads: bool,
    writes: bool,
    /// Not read for the time being: what it brings can't be sent on, or answered.
    paused: bool,
    /// Nor is this one: its next request waits until an upstream can take it.
    held: bool,
    /// Since when, or [`Time::NEVER`].
    held_since: Time,
    /// To an upstream: of the unsent bytes, at most so many answer what it sent itself
    /// (heartbeats, PING, SETTINGS). Requests don't keep it from being read: it may not read
    /// them before its answers have gone.
    owed: usize,
    /// The other side has sent all it will.
    ended: bool,
    /// To be told the end once all is sent.
    finishing: bool,
    finished: bool,
    dirty: bool,
}

impl Role {
    /// To an upstream, with calls that are told apart.
    fn up(lane: usize, endpoint: usize) -> Role {
        Role::Up {
            lane,
            endpoint,
            calls: Calls::default(),
            beat: None,
        }
    }
}

impl Connection {
    /// The upstream that it goes to, by its place.
    fn endpoint(&self) -> Option<usize> {
        match &self.role {
            Role::Up { endpoint, .. } => Some(*endpoint),
            Role::Http2(http2) => http2.endpoint(),
            Role::Pipe { endpoint, .. } => *endpoint,
            Role::Down { .. } => None,
        }
    }

    /// A client has sent all that it will, and has the answers to it.
    fn is_answered(&self) -> bool {
        let is_idle = matches!(self.role, Role::Down { in_flight: 0 });
        self.ended && !self.held && is_idle
    }

    /// The upstream that it has just reached.
    fn proves(&self) -> Option<usize> {
        match self.proven || self.is_new() {
            true => None,
            false => self.endpoint(),
        }
    }

    /// It can't carry a call yet.
    fn is_new(&self) -> bool {
        let untold = matches!(&self.role, Role::Http2(http2) if http2.is_ungreeted());
        self.connecting || self.link.is_handshaking() || untold
    }
}

/// What workers have in common.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) counters: Arc<Vec<(String, Counters)>>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) access_log: Option<AccessLog>,
    pub(super) clock: Clock,
}

struct RouteState {
    route: Route,
    /// `None`: HTTP/2, or a stream of bytes.
    codec: Option<Codec>,
    address: Address,
    /// Of the first worker's Unix socket, which the others share; before the socket itself, so
    /// that it is removed first.
    file: Option<SocketFile>,
    listener: Option<TcpListener>,
    listen_tls: Option<Identity>,
    upstream_tls: Option<Identity>,
    upstreams: Arc<Upstreams>,
    /// Of the upstreams, as this worker knows them.
    version: u64,
    endpoints: Vec<Endpoint>,
    /// Whose turn it is where connections are not shared.
    next_endpoint: usize,
    /// Layouts of frames that calls came in since the last tick, a bit each.
    called: u8,
    /// Clients whose next request waits until an upstream can take it.
    held: VecDeque<u64>,
    /// Handshakes that failed.
    failures: Troubles,
    /// Connections that carried what is not their protocol.
    garbage: Troubles,
    plugin_faults: Troubles,
    /// How long calls took.
    took: Latencies,
    /// How upstreams answered.
    statuses: Statuses,
}

pub(super) struct Worker {
    poll: Poll,
    shared: Shared,
    routes: Vec<RouteState>,
    connections: Vec<Option<Box<Connection>>>,
    /// Calls over HTTP/2.
    exchanges: Exchanges,
    free: Vec<u32>,
    next_generation: u32,
    dirty: Vec<u64>,
    buffer: Vec<u8>,
    drain: Duration,
    random: fastrand::Rng,
    /// Calls over HTTP/2 whose header fields have just come.
    fresh: Vec<u64>,
}

impl Worker {
    /// `codecs`, `upstreams`: one a route. `first`: the worker whose ports and sockets this one shares.
    pub(super) fn new(
        config: &Config,
        codecs: &[Option<Codec>],
        upstreams: &[Arc<Upstreams>],
        first: Option<&Worker>,
        shared: Shared,
    ) -> Result<Worker, SidecarError> {
        let failed = |source| SidecarError::Io {
            doing: "making an epoll instance",
            source,
        };
        let poll = Poll::new().map_err(failed)?;
        let mut routes = Vec::new();
        for (place, route) in config.route.iter().enumerate() {
            let first = first.map(|worker| &worker.routes[place]);
            let wanted = first.map_or(&route.listen, |first| &first.address);
            let listener = first.and_then(|first| first.listener.as_ref());
            let listen = || -> io::Result<(TcpListener, Address, Option<SocketFile>)> {
                let (listener, address, file) = match (wanted, listener) {
                    (Address::Unix(_), Some(first)) => (first.try_clone()?, wanted.clone(), None),
                    (Address::Unix(socket), None) => {
                        let (listener, file) = unix::listen(socket, sockets::BACKLOG)?;
                        (listener, wanted.clone(), file)
                    }
                    (Address::Tcp(address), _) => {
                        let listener = sockets::listen(*address)?;
                        let address = Address::Tcp(listener.local_addr()?);
                        (listener, address, None)
                    }
                };
                poll.add(&listener, LISTENER | place as u64, true, false)?;
                Ok((listener, address, file))
            };
            let (listener, address, file) = listen().map_err(|source| SidecarError::Listen {
                route: route.name.clone(),
                address: wanted.clone(),
                problem: match wanted {
                    Address::Tcp(_) => source.to_string(),
                    Address::Unix(socket) => unix::explain(socket, &source),
                },
                source,
            })?;
            let codec = codecs.get(place).cloned().flatten();
            let name = &route.name;
            let alpn = route.protocol.alpn();
            routes.push(RouteState {
                address,
                file,
                listener: Some(listener),
                listen_tls: route
                    .listen_tls
                    .as_ref()
                    .map(|files| Identity::server(name, files, alpn))
                    .transpose()?,
                upstream_tls: route
                    .upstream_tls
                    .as_ref()
                    .map(|files| Identity::client(name, files, alpn))
                    .transpose()?,
                upstreams: Arc::clone(&upstreams[place]),
                version: 0,
                endpoints: Vec::new(),
                next_endpoint: 0,
                called: 0,
                held: VecDeque::new(),
                failures: Troubles::default(),
                garbage: Troubles::default(),
                plugin_faults: Troubles::default(),
                took: shared.metrics.took(name),
                statuses: Statuses::default(),
                codec,
                route: route.clone(),
            });
        }
        Ok(Worker {
            poll,
            shared,
            routes,
            connections: Vec::new(),
            exchanges: Exchanges::default(),
            free: Vec::new(),
            next_generation: 1,
            dirty: Vec::new(),
            buffer: vec![0; READ_AT_ONCE],
            drain: config.drain(),
            random: fastrand::Rng::new(),
            fresh: Vec::new(),
        })
    }

    pub(super) fn listening(&self) -> Vec<(String, Address)> {
        self.routes
            .iter()
            .map(|state| (state.route.name.clone(), state.address.clone()))
            .collect()
    }

    pub(super) fn waker(&self) -> Waker {
        self.poll.waker()
    }

    fn counters(&self, route: usize) -> &Counters {
        &self.shared.counters[route].1
    }

    /// Until told to stop, and nothing is in flight any more.
    pub(super) fn run(mut self) {
        defect::persist(&mut self, Worker::relay, Worker::begin_anew);
    }

    /// After a panic: no connection, and no call, can be trusted. Those that come are carried
    /// as those before.
    fn begin_anew(&mut self) {
        for connection in std::mem::take(&mut self.connections).into_iter().flatten() {
            let state = &self.routes[connection.route];
            let counters = self.counters(connection.route);
            match connection.endpoint() {
                Some(endpoint) => {
                    count(&counters.upstream_lost, 1);
                    if connection.proven {
                        state.endpoints[endpoint].counters.open.dec();
                    }
                }
                None => {
                    counters.open.dec();
                }
            }
            if let Role::Up { calls, .. } = &connection.role {
                counters.in_flight.dec_by(calls.open() as i64);
            }
        }
        for state in &mut self.routes {
            for endpoint in &mut state.endpoints {
                endpoint.lanes.fill(None);
            }
            state.held.clear();
        }
        for exchange in std::mem::take(&mut self.exchanges).iter() {
            self.counters(exchange.route).in_flight.dec();
        }
        self.fresh.clear();
        self.free.clear();
        self.dirty.clear();
        self.buffer = vec![0; READ_AT_ONCE];
    }

    fn relay(&mut self) {
        let (mut events, mut ready) = (Events::new(), Vec::new());
        self.learn_names();
        let mut next_tick = self.shared.clock.now() + TICK;
        self.reload();
        let mut next_reload = self.shared.clock.now() + RELOAD_EVERY;
        let mut drain_until = None;
        loop {
            let now = self.shared.clock.now();
            if drain_until.is_none() && self.shared.stop.load(Ordering::Relaxed) {
                drain_until = Some(now + self.drain);
                for state in &mut self.routes {
                    state.file = None;
                    state.listener = None;
                }
                self.say_goodbyes();
                self.flush_dirty(now);
            }
            if let Some(until) = drain_until
                && (now >= until || !self.is_busy())
            {
                return;
            }
            if let Err(e) = self
                .poll
                .wait(next_tick.duration_since(now), &mut events, &mut ready)
            {
                tracing::error!("waiting for sockets: {e}");
                return;
            }
            let now = self.shared.clock.now();
            for event in ready.drain(..) {
                fault::point("sidecar");
                self.serve(event, now);
            }
            self.flush_dirty(now);
            self.resume_held(now);
            self.flush_dirty(now);
            if now >= next_tick {
                next_tick = now + TICK;
                if now >= next_reload {
                    next_reload = now + RELOAD_EVERY;
                    self.reload();
                }
                self.tick(now);
                if drain_until.is_some() {
                    self.say_goodbyes();
                }
                self.flush_dirty(now);
            }
        }
    }

    /// Whether a call or a byte is on its way.
    fn is_busy(&self) -> bool {
        self.connections.iter().flatten().any(|c| match &c.role {
            Role::Down { in_flight } => *in_flight > 0 || c.held || c.link.unsent() > 0,
            Role::Up { .. } => c.link.unsent() > 0,
            Role::Http2(http2) => http2.is_busy() || c.link.unsent() > 0,
            Role::Pipe { .. } => true,
        })
    }

    fn reload(&mut self) {
        for (place, state) in self.routes.iter_mut().enumerate() {
            let counters = &self.shared.counters[place].1;
            for identity in [&mut state.listen_tls, &mut state.upstream_tls] {
                let Some(identity) = identity else {
                    continue;
                };
                match identity.reload() {
                    Some(true) => count(&counters.reloads, 1),
                    Some(false) => count(&counters.reload_failures, 1),
                    None => {}
                }
                identity.tell_expiry();
            }
        }
    }

    fn tick(&mut self, now: Time) {
        self.learn_names();
        for place in 0..self.connections.len() {
            let Some(connection) = self.connections[place].as_deref() else {
                continue;
            };
            let token = connection.token;
            let is_new = connection.is_new();
            if is_new && now >= connection.began + CONNECT_LIMIT {
                let late = match (connection.connecting, connection.link.is_handshaking()) {
                    (true, _) => "no connection",
                    (false, true) => "no TLS",
                    (false, false) => "no HTTP/2",
                };
                if connection.link.is_handshaking() && !connection.connecting {
                    count(&self.counters(connection.route).handshakes_failed, 1);
                }
                if let Some(connection) = self.live(token) {
                    connection.problem = Some(format!("{late} within {CONNECT_LIMIT:?}"));
                }
                self.close(token, now);
                continue;
            }
            let keep = match connection.role {
                Role::Up { .. } => self.look_after(place, now),
                Role::Http2(_) => self.look_after_http2(place, now),
                Role::Down { .. } | Role::Pipe { .. } => true,
            };
            if !keep {
                self.close(token, now);
            }
        }
        self.end_due(now);
        self.keep_connected(now);
    }
}
