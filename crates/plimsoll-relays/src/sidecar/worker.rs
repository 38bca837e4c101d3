//! One worker's loop: accepts, reads, passes on, writes; a tick every tenth of a second
//! for everything that has a time.
//!
//! What one turn brings for a connection leaves in one write at the turn's end.

mod apart;
mod balance;
mod charges;
mod dispatch;
mod exchanges;
mod faults;
mod http2;
mod lines;
mod multiplex;
mod pipe;
mod resets;
mod routes;
mod sockets;
mod suspects;
mod table;
mod troubles;
mod upstream;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use plimsoll_engine::keyed::Keyed;
use plimsoll_engine::poller::{Events, Interest, Poller, Waker};
use plimsoll_engine::{Clock, defect, fault};
use plimsoll_model::Time;
use plimsoll_protocols::relayed::{Seen, Why};
use plimsoll_protocols::serving::NotAccepted;
use plimsoll_protocols::serving::proxied::{HEADER_LIMIT, Opening, OpeningError};

use super::access_log::AccessLog;
use super::calls::Calls;
use super::http2::Exchange;
use super::metrics::{Counters, Metrics};
use super::setup::Setup;
use super::transport::Transport;
use super::{SidecarError, count};
use charges::{Account, Charges, Isolation};
use faults::Delayed;
use http2::Http2;
use routes::RouteState;
use troubles::Peer;

const TICK_INTERVAL: Duration = Duration::from_millis(100);
const RELOAD_EVERY: Duration = Duration::from_secs(2);
/// Time that TCP and TLS may take together, on either side.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// Unsent bytes for a connection beyond which its sources are not read, and below which
/// they are read again.
const HIGH_WATER: usize = 1 << 20;
const LOW_WATER: usize = 256 << 10;
const READ_AT_ONCE: usize = 64 << 10;
/// Tokens of listening sockets; the rest is the route's place.
const LISTENER_BIT: u64 = 1 << 63;

/// What a connection is for.
enum Role {
    /// A client's, with calls that share it; `in_flight` of them wait for an answer.
    Down { in_flight: usize },
    /// An upstream's, with calls that share it.
    Up {
        /// The number of the layout that its frames have.
        layout: usize,
        calls: Calls,
        /// The heartbeat on its way: its id, and when its answer is missed.
        beat: Option<(u64, Time)>,
        /// The client's connection that sent the last request without an answer, and when.
        last_oneway: Option<(u64, Time)>,
        /// Whose calls it carries, where it carries no others.
        owner: Option<Account>,
    },
    /// HTTP/2, from a client or to an upstream.
    Http2(Box<Http2>),
    /// One end of a pipe.
    Pipe { peer: u64 },
}

struct Connection {
    transport: Transport,
    token: u64,
    route: usize,
    /// The upstream that it goes to, by its place; `None`: it comes from a client.
    endpoint: Option<usize>,
    role: Role,
    began: Time,
    last_active: Time,
    /// Its client may be another than the socket's: not known yet.
    opening: Option<Box<Opening>>,
    /// Who made it, by the socket or a proxy; a socket that is closed does not have it any more.
    client: Option<SocketAddr>,
    /// Bytes that a pipe brought from here, and to here.
    came: u64,
    went: u64,
    connecting: bool,
    /// Its upstream has taken it, TLS and HTTP/2 included.
    proven: bool,
    /// Why there is none, where that is known.
    problem: Option<String>,
    /// It ends because it carries nothing, which says nothing of its upstream.
    unneeded: bool,
    /// What it began with is of the route's protocol.
    recognised: bool,
    /// What epoll was asked for.
    interest: Interest,
    /// Not read for the time being: what it brings can't be sent on, or answered.
    paused: bool,
    /// Nor is this one: its next request waits until an upstream can take it.
    held: bool,
    /// Since when, or [`Time::NEVER`].
    held_since: Time,
    /// Unsent bytes to an upstream, at most, that answer what it sent itself
    /// (heartbeats, PING, SETTINGS). Requests don't keep it from being read: it may not read
    /// them before its answers have gone.
    owed: usize,
    /// Bytes still to come of a frame that is too long; they are dropped.
    skip: usize,
    /// Bytes of a client's requests that are delayed on purpose.
    delayed: usize,
    /// Whether a client's calls share connections upstream with those of others.
    isolation: Isolation,
    /// The other side has sent all it will.
    ended: bool,
    /// The end is to be sent once all else is.
    finishing: bool,
    finished: bool,
    dirty: bool,
}

/// The worker's connections by their tokens.
type Connections = Keyed<Box<Connection>>;

/// A frame whose connection is shared by calls.
#[derive(Clone, Copy)]
struct Frame<'a> {
    seen: Seen,
    bytes: &'a [u8],
}

/// What became of a request.
enum Taken {
    /// An answer will come.
    Waits,
    /// Nothing will come: it was answered here, or wants no answer.
    Over,
    /// No upstream can take it now.
    Held,
}

/// The upstream that the next call goes to, or why there is none.
enum Found {
    Upstream(u64),
    /// Connections are being made, and there is none yet.
    Connecting,
    /// Each connection has to send first what it was given.
    Choked,
    /// The call can go nowhere, and the sidecar answers it.
    Refused(Why),
}

impl Connection {
    /// A client has sent all that it will, and has the answers to it.
    fn is_answered(&self) -> bool {
        let is_idle = matches!(self.role, Role::Down { in_flight: 0 });
        self.ended && !self.held && is_idle
    }

    /// A client's call, or a byte, is on its way.
    fn is_busy(&self) -> bool {
        let has_calls = match &self.role {
            Role::Down { in_flight } => *in_flight > 0 || self.held,
            Role::Up { .. } => false,
            Role::Http2(http2) => http2.is_busy(),
            Role::Pipe { .. } => true,
        };
        has_calls || self.transport.unsent() > 0
    }

    /// The upstream that it has just reached.
    fn proves(&self) -> Option<usize> {
        if self.proven || self.is_new() {
            None
        } else {
            self.endpoint
        }
    }

    /// Sends what the socket takes now.
    fn flush(&mut self) -> io::Result<()> {
        if let Role::Http2(http2) = &mut self.role {
            http2.first_unsent = http2.session.http2.next_id();
        }
        self.transport.flush()
    }

    /// Who made it; `None`: it came by a socket of this machine.
    fn client(&self) -> Option<SocketAddr> {
        self.client
            .or_else(|| self.transport.socket.peer_addr().ok())
    }

    /// How many of `there` bytes are left out.
    fn skip(&mut self, there: usize) -> usize {
        let skipped = self.skip.min(there);
        self.skip -= skipped;
        skipped
    }

    /// Its PROXY header has not come.
    fn is_awaited(&self) -> bool {
        self.opening.as_ref().is_some_and(|o| o.is_awaited())
    }

    /// It can't carry a call yet.
    fn is_new(&self) -> bool {
        let ungreeted = matches!(&self.role, Role::Http2(http2) if http2.is_ungreeted());
        self.connecting || self.is_awaited() || self.transport.is_handshaking() || ungreeted
    }
}

/// What workers have in common.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) metrics: Arc<Metrics>,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) clock: Clock,
}

pub(super) struct Worker {
    poller: Poller,
    shared: Shared,
    /// What it is to take up, from another thread, which wakes it.
    mailbox: (Sender<Setup>, Receiver<Setup>),
    routes: Vec<RouteState>,
    access_log: Option<AccessLog>,
    connections: Connections,
    /// Calls over HTTP/2.
    exchanges: Keyed<Box<Exchange>>,
    dirty: Vec<u64>,
    /// Connections of which it has just become known who made them.
    opened: Vec<u64>,
    /// Listeners are watched; not so for the rest of a tick in which one has failed.
    accepts: bool,
    not_accepted: NotAccepted,
    buffer: Vec<u8>,
    drain: Duration,
    busy_poll: Duration,
    random: fastrand::Rng,
    /// Calls over HTTP/2 whose header fields have just come.
    fresh: Vec<u64>,
    /// What waits on purpose.
    delayed: Delayed,
    charges: Charges,
}

impl Worker {
    pub(super) fn new(setup: Setup, shared: Shared) -> Result<Worker, SidecarError> {
        let failed = |e| SidecarError::at("making an epoll instance", e);
        let mut worker = Worker {
            poller: Poller::new().map_err(failed)?,
            shared,
            mailbox: channel(),
            routes: Vec::new(),
            access_log: None,
            connections: Connections::default(),
            exchanges: Keyed::default(),
            dirty: Vec::new(),
            opened: Vec::new(),
            accepts: true,
            not_accepted: NotAccepted::default(),
            buffer: vec![0; READ_AT_ONCE],
            drain: Duration::ZERO,
            busy_poll: Duration::ZERO,
            random: fastrand::Rng::new(),
            fresh: Vec::new(),
            delayed: Delayed::default(),
            charges: Charges::default(),
        };
        worker.take_up(setup, Time::ZERO).map_err(failed)?;
        Ok(worker)
    }

    /// Returns the sender of changes for the running worker.
    pub(super) fn mailbox(&self) -> Sender<Setup> {
        self.mailbox.0.clone()
    }

    pub(super) fn waker(&self) -> Waker {
        self.poller.waker()
    }

    fn counters(&self, route: usize) -> &Counters {
        &self.routes[route].setup.counters
    }

    /// Relays until it has to stop, and nothing is in flight any more.
    ///
    /// # Errors
    /// When the system does not let it wait for its sockets.
    pub(super) fn run(mut self) -> Result<(), SidecarError> {
        defect::persist(&mut self, Worker::relay, Worker::begin_anew)
            .map_err(|e| SidecarError::at("waiting for sockets", e))
    }

    /// After a panic: no connection, and no call, can be trusted. Those that come are carried
    /// as those before.
    fn begin_anew(&mut self) {
        for connection in std::mem::take(&mut self.connections).into_values() {
            let state = &self.routes[connection.route];
            let counters = self.counters(connection.route);
            match connection.endpoint {
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
                counters.in_flight.dec_by(calls.len() as i64);
            }
        }
        for state in &mut self.routes {
            for endpoint in &mut state.endpoints {
                endpoint.lanes.fill(None);
            }
            state.held.clear();
            state.held_apart.clear();
            state.apart.clear();
        }
        for exchange in std::mem::take(&mut self.exchanges).into_values() {
            self.counters(exchange.route).in_flight.dec();
        }
        self.fresh.clear();
        self.delayed = Delayed::default();
        self.dirty.clear();
        self.opened.clear();
        self.buffer = vec![0; READ_AT_ONCE];
    }

    fn relay(&mut self) -> io::Result<()> {
        let mut events = Events::default();
        self.read_mail(self.shared.clock.now());
        let mut next_tick = self.shared.clock.now() + TICK_INTERVAL;
        self.reload();
        let mut next_reload = self.shared.clock.now() + RELOAD_EVERY;
        let (mut drain_until, mut awake_until) = (None, Time::ZERO);
        loop {
            let now = self.shared.clock.now();
            if drain_until.is_none() && self.shared.stop.load(Ordering::Relaxed) {
                drain_until = Some(now + self.drain);
                for state in &mut self.routes {
                    state.setup.listener = None;
                }
                self.say_goodbyes(|_| true);
                self.flush_dirty(now);
            }
            if let Some(until) = drain_until
                && (now >= until || !self.connections.values().any(|c| c.is_busy()))
            {
                return Ok(());
            }
            // Who asks again at once needs not be woken.
            let until = if now < awake_until {
                now
            } else {
                next_tick.min(self.delayed.first())
            };
            let longest = Some(until.duration_since(now));
            self.poller.wait(longest, &mut events)?;
            let now = self.shared.clock.now();
            if events.sockets().next().is_some() {
                awake_until = now + self.busy_poll;
            }
            if events.are_of_waker() && drain_until.is_none() {
                self.read_mail(now);
            }
            for event in events.sockets() {
                fault::point("sidecar");
                self.serve(event, now);
            }
            self.begin_opened(now);
            self.release(now);
            self.flush_dirty(now);
            self.resume_held(now);
            self.flush_dirty(now);
            if now >= next_tick {
                next_tick = now + TICK_INTERVAL;
                if now >= next_reload {
                    next_reload = now + RELOAD_EVERY;
                    self.reload();
                }
                self.tick(now);
                if drain_until.is_some() {
                    self.say_goodbyes(|_| true);
                }
                self.flush_dirty(now);
            }
        }
    }

    fn reload(&mut self) {
        for state in &mut self.routes {
            let counters = &state.setup.counters;
            for identity in [&mut state.setup.listen_tls, &mut state.setup.upstream_tls] {
                let Some(identity) = identity else {
                    continue;
                };
                match identity.reload() {
                    Some(true) => count(&counters.reloads, 1),
                    Some(false) => count(&counters.reload_failures, 1),
                    None => {}
                }
                identity.report_expiry();
            }
        }
    }

    fn tick(&mut self, now: Time) {
        self.learn_names();
        self.watch_listeners(true);
        for token in self.connections.keys() {
            let Some(connection) = self.connections.get(token) else {
                continue;
            };
            if connection.is_awaited() && now >= connection.began + HEADER_LIMIT {
                self.turn_away(
                    connection.route,
                    Peer::of(connection),
                    &OpeningError::Late,
                    now,
                );
                self.close(token, now);
                continue;
            }
            let is_new = connection.is_new();
            if is_new && now >= connection.began + CONNECT_LIMIT {
                let late = match (connection.connecting, connection.transport.is_handshaking()) {
                    (true, _) => "no connection",
                    (false, true) => "no TLS",
                    (false, false) => "no HTTP/2",
                };
                if connection.transport.is_handshaking() && !connection.connecting {
                    count(&self.counters(connection.route).handshakes_failed, 1);
                }
                if let Some(connection) = self.live(token) {
                    connection.problem = Some(format!("{late} within {CONNECT_LIMIT:?}"));
                }
                self.close(token, now);
                continue;
            }
            let keep = match connection.role {
                Role::Up { .. } => self.look_after(token, now),
                Role::Http2(_) => self.look_after_http2(token, now),
                Role::Down { .. } | Role::Pipe { .. } => true,
            };
            if !keep {
                self.close(token, now);
            }
        }
        self.end_due(now);
        self.keep_connected(now);
        self.see_off(now);
    }
}

#[cfg(test)]
mod tests;
