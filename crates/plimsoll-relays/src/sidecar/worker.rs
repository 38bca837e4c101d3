//! One worker's loop: accepts, reads, passes on, writes; a tick every tenth of a second
//! for everything that has a time.
//!
//! What one turn brings for a connection leaves in one write at the turn's end.

mod multiplex;
mod pipe;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use plimsoll_engine::Clock;
use plimsoll_model::Time;
use rustix::io::Errno;
use socket2::{Domain, Socket, Type};

use super::calls::Calls;
use super::codec::Codec;
use super::config::{Config, Protocol, Route};
use super::link::{Got, Link};
use super::poll::{Events, Poll, Ready, Waker};
use super::tls::Identity;
use super::{Counters, SidecarError, count};

const TICK: Duration = Duration::from_millis(100);
const RELOAD_EVERY: Duration = Duration::from_secs(2);
/// For TCP and TLS together, either side.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Unsent bytes for a connection beyond which its sources are not read, and below which
/// they are read again.
const HIGH_WATER: usize = 1 << 20;
const LOW_WATER: usize = 256 << 10;
const READ_AT_ONCE: usize = 64 << 10;
const MOST_ACCEPTED: usize = 64;
const BACKLOG: i32 = 4096;
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
    connecting: bool,
    /// What epoll was asked for.
    reads: bool,
    writes: bool,
    /// Not read for the time being: what it brings can't be sent on.
    paused: bool,
    /// The other side has sent all it will.
    ended: bool,
    /// To be told the end once all is sent.
    finishing: bool,
    finished: bool,
    dirty: bool,
}

/// An upstream's address, and when it may be tried again.
struct Endpoint {
    address: SocketAddr,
    failures: u32,
    retry_at: Time,
}

struct RouteState {
    route: Route,
    /// `None`: a stream of bytes.
    codec: Option<Codec>,
    address: SocketAddr,
    listener: Option<TcpListener>,
    listen_tls: Option<Identity>,
    upstream_tls: Option<Identity>,
    endpoints: Vec<Endpoint>,
    next_endpoint: usize,
    /// The connections that take new calls, for each layout of frames in turn.
    lanes: Vec<Option<u64>>,
    next_lane: usize,
}

pub(super) struct Worker {
    poll: Poll,
    clock: Clock,
    stop: Arc<AtomicBool>,
    counters: Arc<Vec<(String, Counters)>>,
    routes: Vec<RouteState>,
    connections: Vec<Option<Box<Connection>>>,
    free: Vec<u32>,
    next_generation: u32,
    dirty: Vec<u64>,
    buffer: Vec<u8>,
    drain: Duration,
}

impl Worker {
    /// `taken`: the addresses of the first worker, whose ports the others share.
    pub(super) fn new(
        config: &Config,
        taken: &[(String, SocketAddr)],
        counters: Arc<Vec<(String, Counters)>>,
        stop: Arc<AtomicBool>,
        clock: Clock,
    ) -> Result<Worker, SidecarError> {
        let failed = |source| SidecarError::Io {
            doing: "making an epoll instance",
            source,
        };
        let poll = Poll::new().map_err(failed)?;
        let mut routes = Vec::new();
        for (place, route) in config.route.iter().enumerate() {
            let wanted = taken
                .get(place)
                .map_or(route.listen, |(_, address)| *address);
            let listen = |wanted| -> io::Result<(TcpListener, SocketAddr)> {
                let listener = listen(wanted)?;
                poll.add(&listener, LISTENER | place as u64, true, false)?;
                let address = listener.local_addr()?;
                Ok((listener, address))
            };
            let (listener, address) = listen(wanted).map_err(|source| SidecarError::Listen {
                route: route.name.clone(),
                address: wanted,
                source,
            })?;
            let codec = match route.protocol {
                Protocol::Bolt => Some(Codec::Bolt),
                Protocol::Tcp => None,
            };
            let layouts = codec.as_ref().map_or(0, Codec::layouts);
            let name = &route.name;
            let identity = |files: &_, make: fn(&str, &_) -> _| make(name, files);
            routes.push(RouteState {
                address,
                listener: Some(listener),
                listen_tls: route
                    .listen_tls
                    .as_ref()
                    .map(|f| identity(f, Identity::server))
                    .transpose()?,
                upstream_tls: route
                    .upstream_tls
                    .as_ref()
                    .map(|f| identity(f, Identity::client))
                    .transpose()?,
                endpoints: route
                    .upstream
                    .iter()
                    .map(|address| Endpoint {
                        address: *address,
                        failures: 0,
                        retry_at: Time::ZERO,
                    })
                    .collect(),
                next_endpoint: 0,
                lanes: vec![None; route.connections() * layouts],
                next_lane: 0,
                codec,
                route: route.clone(),
            });
        }
        Ok(Worker {
            poll,
            clock,
            stop,
            counters,
            routes,
            connections: Vec::new(),
            free: Vec::new(),
            next_generation: 1,
            dirty: Vec::new(),
            buffer: vec![0; READ_AT_ONCE],
            drain: config.drain(),
        })
    }

    pub(super) fn listening(&self) -> Vec<(String, SocketAddr)> {
        self.routes
            .iter()
            .map(|state| (state.route.name.clone(), state.address))
            .collect()
    }

    pub(super) fn waker(&self) -> Waker {
        self.poll.waker()
    }

    fn counters(&self, route: usize) -> &Counters {
        &self.counters[route].1
    }

    /// Until told to stop, and nothing is in flight any more.
    pub(super) fn run(mut self) {
        let (mut events, mut ready) = (Events::new(), Vec::new());
        let mut next_tick = self.clock.now() + TICK;
        let mut next_reload = self.clock.now() + RELOAD_EVERY;
        let mut drain_until = None;
        loop {
            let now = self.clock.now();
            if drain_until.is_none() && self.stop.load(Ordering::Relaxed) {
                drain_until = Some(now + self.drain);
                for state in &mut self.routes {
                    state.listener = None;
                }
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
            let now = self.clock.now();
            for event in ready.drain(..) {
                self.serve(event, now);
            }
            self.flush_dirty(now);
            if now >= next_tick {
                next_tick = now + TICK;
                if now >= next_reload {
                    next_reload = now + RELOAD_EVERY;
                    self.reload();
                }
                self.tick(now);
                self.flush_dirty(now);
            }
        }
    }

    /// Whether a call or a byte is on its way.
    fn is_busy(&self) -> bool {
        self.connections.iter().flatten().any(|c| match &c.role {
            Role::Down { in_flight } => *in_flight > 0 || c.link.unsent() > 0,
            Role::Up { .. } => c.link.unsent() > 0,
            Role::Pipe { .. } => true,
        })
    }

    fn reload(&mut self) {
        for (place, state) in self.routes.iter_mut().enumerate() {
            let counters = &self.counters[place].1;
            for identity in [&mut state.listen_tls, &mut state.upstream_tls] {
                match identity.as_mut().and_then(Identity::reload) {
                    Some(true) => count(&counters.reloads, 1),
                    Some(false) => count(&counters.reload_failures, 1),
                    None => {}
                }
            }
        }
    }

    // ---- connections by their tokens ----

    fn place(&self, token: u64) -> Option<usize> {
        let place = token as u32 as usize;
        match self.connections.get(place) {
            Some(Some(connection)) if connection.token == token => Some(place),
            _ => None,
        }
    }

    fn live(&mut self, token: u64) -> Option<&mut Connection> {
        let place = self.place(token)?;
        self.connections[place].as_deref_mut()
    }

    fn mark(&mut self, token: u64) {
        if let Some(connection) = self.live(token)
            && !connection.dirty
        {
            connection.dirty = true;
            self.dirty.push(token);
        }
    }

    /// Takes a socket in.
    fn adopt(
        &mut self,
        socket: TcpStream,
        tls: Option<rustls::Connection>,
        route: usize,
        role: Role,
        connecting: bool,
        now: Time,
    ) -> io::Result<u64> {
        let place = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            (self.connections.len() - 1) as u32
        });
        let generation = self.next_generation;
        self.next_generation = (self.next_generation + 1) & 0x7fff_ffff;
        let token = u64::from(generation) << 32 | u64::from(place);
        if let Err(e) = self.poll.add(&socket, token, true, connecting) {
            self.free.push(place);
            return Err(e);
        }
        self.connections[place as usize] = Some(Box::new(Connection {
            link: Link::new(socket, tls),
            token,
            route,
            role,
            began: now,
            last_active: now,
            connecting,
            reads: true,
            writes: connecting,
            paused: false,
            ended: false,
            finishing: false,
            finished: false,
            dirty: false,
        }));
        Ok(token)
    }

    /// The connection is gone; what depended on it is told.
    fn close(&mut self, token: u64, now: Time) {
        let Some(place) = self.place(token) else {
            return;
        };
        if let Some(connection) = self.connections[place].take() {
            self.free.push(place as u32);
            self.closed(*connection, now);
        }
    }

    fn closed(&mut self, connection: Connection, now: Time) {
        let route = connection.route;
        match connection.role {
            Role::Down { .. } => {
                self.counters(route).open.fetch_sub(1, Ordering::Relaxed);
            }
            Role::Up {
                lane,
                endpoint,
                mut calls,
                ..
            } => {
                let lane = &mut self.routes[route].lanes[lane];
                if *lane == Some(connection.token) {
                    *lane = None;
                }
                if connection.connecting || connection.link.is_handshaking() {
                    self.endpoint_failed(route, endpoint, now);
                } else {
                    count(&self.counters(route).upstream_lost, 1);
                }
                self.answer_lost(route, &mut calls, connection.connecting);
            }
            Role::Pipe { peer, endpoint } => {
                match endpoint {
                    Some(endpoint) if connection.connecting => {
                        self.endpoint_failed(route, endpoint, now);
                    }
                    Some(_) => {}
                    None => {
                        self.counters(route).open.fetch_sub(1, Ordering::Relaxed);
                    }
                }
                // Where this end broke, the other one must not wait for more; where both
                // had finished, the other is gone already or about to be.
                if let Some(other) = self.live(peer) {
                    other.ended = true;
                    other.finishing = true;
                    self.mark(peer);
                }
            }
        }
    }

    fn endpoint_failed(&mut self, route: usize, endpoint: usize, now: Time) {
        count(&self.counters(route).upstream_failures, 1);
        let endpoint = &mut self.routes[route].endpoints[endpoint];
        let pause = FIRST_PAUSE * (1 << endpoint.failures.min(6));
        endpoint.failures += 1;
        endpoint.retry_at = now + pause.min(LONGEST_PAUSE);
    }

    /// Begins a connection to one of the route's upstreams, in turn, leaving those out
    /// that failed a moment ago.
    fn connect(
        &mut self,
        route: usize,
        role: impl FnOnce(usize) -> Role,
        now: Time,
    ) -> Option<u64> {
        let state = &mut self.routes[route];
        let n = state.endpoints.len();
        let endpoint = (0..n)
            .map(|i| (state.next_endpoint + i) % n)
            .find(|i| state.endpoints[*i].retry_at <= now)?;
        state.next_endpoint = (endpoint + 1) % n;
        let address = state.endpoints[endpoint].address;
        let begun = (|| -> io::Result<(TcpStream, Option<rustls::Connection>)> {
            let tls = match &state.upstream_tls {
                Some(identity) => Some(
                    identity
                        .connection(&address.ip().to_string())
                        .map_err(io::Error::other)?,
                ),
                None => None,
            };
            Ok((begin(address)?, tls))
        })();
        count(&self.counters(route).upstream_connects, 1);
        let adopted = begun
            .and_then(|(socket, tls)| self.adopt(socket, tls, route, role(endpoint), true, now));
        match adopted {
            Ok(token) => Some(token),
            Err(e) => {
                tracing::warn!("connecting to {address}: {e}");
                self.endpoint_failed(route, endpoint, now);
                None
            }
        }
    }

    // ---- what sockets say ----

    fn serve(&mut self, event: Ready, now: Time) {
        if event.token & LISTENER != 0 {
            self.accept((event.token & !LISTENER) as usize, now);
            return;
        }
        let Some(place) = self.place(event.token) else {
            return;
        };
        let Some(mut connection) = self.connections[place].take() else {
            return;
        };
        // Out of the table while it is served, so that others can be reached.
        let kept = self.serve_one(&mut connection, event, now);
        let token = connection.token;
        if kept {
            self.connections[place] = Some(connection);
            self.mark(token);
        } else {
            self.free.push(place as u32);
            self.closed(*connection, now);
        }
    }

    /// `false`: the connection is to be closed.
    fn serve_one(&mut self, connection: &mut Connection, event: Ready, now: Time) -> bool {
        if connection.connecting && event.writable {
            match connection.link.socket.take_error() {
                Ok(None) => {
                    connection.connecting = false;
                    if let Role::Up { endpoint, .. }
                    | Role::Pipe {
                        endpoint: Some(endpoint),
                        ..
                    } = &connection.role
                    {
                        self.routes[connection.route].endpoints[*endpoint].failures = 0;
                    }
                }
                Ok(Some(_)) | Err(_) => return false,
            }
        }
        if !event.readable || connection.connecting {
            return true;
        }
        if connection.ended {
            // Nothing is to be read: what is told is a failure, or the end of both ways.
            return !connection.finished && connection.link.flush().is_ok();
        }
        if connection.paused {
            return true;
        }
        let got = match connection.link.read(&mut self.buffer) {
            Ok(got) => got,
            Err(e) => {
                if connection.link.is_handshaking() {
                    count(&self.counters(connection.route).handshakes_failed, 1);
                }
                tracing::debug!(
                    "a connection of route {}: {e}",
                    self.routes[connection.route].route.name
                );
                // The alert that says why, where TLS made one.
                let _ = connection.link.flush();
                return false;
            }
        };
        connection.last_active = now;
        let codec = self.routes[connection.route].codec.clone();
        match (&connection.role, codec) {
            (Role::Down { .. }, Some(codec)) => {
                self.take_requests(connection, &codec, now) && got != Got::End
            }
            (Role::Up { .. }, Some(codec)) => {
                self.take_answers(connection, &codec) && got != Got::End
            }
            _ => self.through(connection, got),
        }
    }

    fn accept(&mut self, route: usize, now: Time) {
        for _ in 0..MOST_ACCEPTED {
            let state = &self.routes[route];
            let Some(listener) = &state.listener else {
                return;
            };
            let socket = match listener.accept() {
                Ok((socket, _)) => socket,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) => {
                    tracing::warn!("accepting a connection: {e}");
                    return;
                }
            };
            let taken = socket
                .set_nonblocking(true)
                .and_then(|()| socket.set_nodelay(true));
            let tls = state
                .listen_tls
                .as_ref()
                .map(|identity| identity.connection(""))
                .transpose();
            let (Ok(()), Ok(tls)) = (taken, tls) else {
                continue;
            };
            let is_piped = state.codec.is_none();
            let role = if is_piped {
                Role::Pipe {
                    peer: u64::MAX,
                    endpoint: None,
                }
            } else {
                Role::Down { in_flight: 0 }
            };
            let Ok(token) = self.adopt(socket, tls, route, role, false, now) else {
                continue;
            };
            count(&self.counters(route).accepted, 1);
            count(&self.counters(route).open, 1);
            if is_piped {
                self.join(token, route, now);
            }
        }
    }

    // ---- writing ----

    fn flush_dirty(&mut self, now: Time) {
        // Closing one may mark others.
        while !self.dirty.is_empty() {
            for token in std::mem::take(&mut self.dirty) {
                self.flush(token, now);
            }
        }
    }

    fn flush(&mut self, token: u64, now: Time) {
        let Some(connection) = self.live(token) else {
            return;
        };
        connection.dirty = false;
        if connection.connecting {
            return;
        }
        if connection.link.flush().is_err() {
            self.close(token, now);
            return;
        }
        let is_sent = !connection.link.wants_write() && connection.link.unsent() == 0;
        if connection.finishing && !connection.finished && is_sent {
            connection.link.finish();
            connection.finished = true;
        }
        if connection.finished && connection.ended {
            self.close(token, now);
            return;
        }
        let below = connection.link.unsent() < LOW_WATER;
        let peer = match connection.role {
            Role::Pipe { peer, .. } if below => Some(peer),
            Role::Down { .. } if below => Some(token),
            _ => None,
        };
        if let Some(source) = peer.and_then(|peer| self.live(peer))
            && source.paused
        {
            source.paused = false;
            let source = source.token;
            self.watch(source);
        }
        self.watch(token);
    }

    /// Asks epoll for what matters now.
    fn watch(&mut self, token: u64) {
        let Some(place) = self.place(token) else {
            return;
        };
        let Some(connection) = self.connections[place].as_deref_mut() else {
            return;
        };
        let reads = !connection.paused && !connection.ended;
        let writes = connection.connecting || connection.link.wants_write();
        if (reads, writes) != (connection.reads, connection.writes) {
            (connection.reads, connection.writes) = (reads, writes);
            if let Err(e) = self
                .poll
                .change(&connection.link.socket, token, reads, writes)
            {
                tracing::error!("watching a socket: {e}");
            }
        }
    }

    // ---- time ----

    fn tick(&mut self, now: Time) {
        for place in 0..self.connections.len() {
            let Some(connection) = self.connections[place].as_deref() else {
                continue;
            };
            let token = connection.token;
            let is_new = connection.connecting || connection.link.is_handshaking();
            if is_new && now >= connection.began + CONNECT_LIMIT {
                if !connection.connecting {
                    count(&self.counters(connection.route).handshakes_failed, 1);
                }
                self.close(token, now);
                continue;
            }
            if matches!(connection.role, Role::Up { .. }) && !self.look_after(place, now) {
                self.close(token, now);
            }
        }
    }
}

/// A listening socket whose port other workers' sockets share.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM.nonblocking().cloexec(),
        None,
    )?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// A connection that is being made.
fn begin(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM.nonblocking().cloexec(),
        None,
    )?;
    socket.set_tcp_nodelay(true)?;
    match socket.connect(&address.into()) {
        Ok(()) => {}
        Err(e) if e.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => {}
        Err(e) => return Err(e),
    }
    Ok(socket.into())
}
