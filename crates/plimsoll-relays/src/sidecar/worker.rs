//! The event loop of one worker: accepts, reads, relays and writes, with a tick every 100 ms for
//! everything that has a deadline.
//!
//! Everything that one iteration of the loop produces for a connection is sent in one write at the end of the
//! iteration.

mod abuse;
mod balance;
mod call_log;
mod connection_table;
mod dispatch;
mod exchanges;
mod faults;
mod http2;
mod isolation;
mod multiplex;
mod peer_errors;
mod pipe;
mod resets;
mod routes;
mod sockets;
mod suspects;
mod upstream;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use plimsoll_engine::structures::slab::GenerationalSlab;
use plimsoll_engine::transport::poller::{Interest, PollEvents, Poller, Waker};
use plimsoll_engine::{Clock, defect, fault};
use plimsoll_model::Time;
use plimsoll_protocols::interface::relayed::{FrameInfo, RejectReason};
use plimsoll_serving::AcceptFailures;
use plimsoll_serving::proxy_header::{HEADER_TIMEOUT, ProxyHeaderError, ProxyHeaderReader};

use super::access_log::AccessLog;
use super::http2::Exchange;
use super::metrics::{Counters, SidecarMetrics};
use super::setup::WorkerSetup;
use super::transport::Transport;
use super::upstream_calls::UpstreamCalls;
use super::{SidecarError, add_to_counter};
use abuse::{AbuseLedger, ClientNetwork, Isolation};
use faults::DelayQueue;
use http2::Http2State;
use peer_errors::ConnectionPeer;
use routes::RouteState;

const TICK_INTERVAL: Duration = Duration::from_millis(100);
const CERTIFICATE_RELOAD_INTERVAL: Duration = Duration::from_secs(2);
/// How long TCP and TLS together may take, on either side.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// When the unsent bytes of a connection exceed this number, its sources are not read until the number falls below
/// [`LOW_WATER_BYTES`].
const HIGH_WATER_BYTES: usize = 1 << 20;
const LOW_WATER_BYTES: usize = 256 << 10;
const READ_BUFFER_BYTES: usize = 64 << 10;
/// Set in the tokens of listening sockets; the other bits are the route's index.
const LISTENER_TOKEN_BIT: u64 = 1 << 63;

/// The role of a connection.
enum RelayRole {
    /// A client's connection whose calls share upstream connections; `in_flight` of them wait for
    /// an answer.
    Down { in_flight: usize },
    /// A connection to an upstream, shared by calls.
    Up {
        /// The number of its frame layout.
        layout: usize,
        calls: UpstreamCalls,
        /// The heartbeat in flight: its id, and when it times out.
        pending_heartbeat: Option<(u64, Time)>,
        /// The client connection that sent the last one-way request, which gets no answer, and the time.
        last_oneway: Option<(u64, Time)>,
        /// The client address that the connection is reserved for, if any.
        owner: Option<ClientNetwork>,
    },
    /// HTTP/2, from a client or to an upstream.
    Http2(Box<Http2State>),
    /// One end of a connection relayed as bytes.
    Pipe { peer: u64 },
}

struct RelayConnection {
    transport: Transport,
    token: u64,
    route: usize,
    /// Index of the upstream; `None` for a client's connection.
    endpoint: Option<usize>,
    role: RelayRole,
    began: Time,
    last_active: Time,
    /// Present while the client's address is unknown, because a PROXY header that names it may still arrive.
    proxy_header: Option<Box<ProxyHeaderReader>>,
    /// The client's address, from the socket or a proxy. It is stored because a closed socket no longer has an address.
    client: Option<SocketAddr>,
    /// Bytes received from this connection and relayed; `bytes_sent`: bytes sent to it. Counted for pipes only.
    bytes_received: u64,
    bytes_sent: u64,
    is_connecting: bool,
    /// The upstream has accepted the connection, including TLS and HTTP/2.
    is_established: bool,
    /// Why the connection could not be established, if known.
    problem: Option<String>,
    /// The connection is closed because it is unused, which says nothing about its upstream.
    is_unneeded: bool,
    /// The first bytes were valid in the route's protocol.
    is_recognised: bool,
    /// The events registered with epoll.
    interest: Interest,
    /// The connection is not read for now, because its data cannot be passed on or answered.
    is_paused: bool,
    /// The connection is not read for now, because its next request waits for an upstream.
    is_held: bool,
    /// When the next request began to wait, or [`Time::NEVER`].
    held_since: Time,
    /// Upper bound of the unsent bytes that reply to the upstream's own messages (heartbeats, PING, SETTINGS).
    /// Unsent requests don't stop the upstream from being read, because it may read them only once its answers are
    /// read.
    reply_bytes: usize,
    /// Bytes still to be dropped of a frame that exceeds the limit.
    skip: usize,
    /// Bytes of a client's requests that are delayed by fault injection.
    delayed: usize,
    /// Whether a client's calls may share upstream connections with the calls of other clients.
    isolation: Isolation,
    /// The peer will send no more data.
    peer_ended: bool,
    /// The connection's sending direction is closed after the remaining output.
    ends_after_output: bool,
    end_sent: bool,
    is_dirty: bool,
}

/// The worker's connections by token.
type Connections = GenerationalSlab<Box<RelayConnection>>;

/// A frame on a connection that carries several calls.
#[derive(Clone, Copy)]
struct CallFrame<'a> {
    info: FrameInfo,
    bytes: &'a [u8],
}

/// How a request was handled.
enum RequestDisposition {
    /// The upstream will answer the request.
    AwaitsAnswer,
    /// The request is done: it was answered here, or needs no answer.
    Done,
    /// No upstream can accept the request now.
    Held,
}

/// The upstream connection for the next call, or why there is none.
enum UpstreamChoice {
    Upstream(u64),
    /// Connections are being opened, but none is ready.
    Connecting,
    /// Every connection has too much unsent data.
    Congested,
    /// The sidecar answers the call itself.
    Refused(RejectReason),
}

impl RelayConnection {
    /// Returns whether a client has sent everything and has all its answers.
    fn has_all_answers(&self) -> bool {
        let is_idle = matches!(self.role, RelayRole::Down { in_flight: 0 });
        self.peer_ended && !self.is_held && is_idle
    }

    /// Returns whether calls or unsent bytes are in flight.
    fn is_busy(&self) -> bool {
        let has_calls = match &self.role {
            RelayRole::Down { in_flight } => *in_flight > 0 || self.is_held,
            RelayRole::Up { .. } => false,
            RelayRole::Http2(http2) => http2.is_busy(),
            RelayRole::Pipe { .. } => true,
        };
        has_calls || self.transport.unsent_bytes() > 0
    }

    /// Returns the upstream to which this connection has just been established, if that was not recorded yet.
    fn newly_reached_upstream(&self) -> Option<usize> {
        if self.is_established || self.is_unready() {
            None
        } else {
            self.endpoint
        }
    }

    /// Sends as much as the socket accepts now.
    fn flush(&mut self) -> io::Result<()> {
        if let RelayRole::Http2(http2) = &mut self.role {
            http2.first_unsent = http2.session.http2.next_stream_id();
        }
        self.transport.flush()
    }

    /// Returns the client's address; `None` for a Unix socket.
    fn client_address(&self) -> Option<SocketAddr> {
        self.client
            .or_else(|| self.transport.socket.peer_addr().ok())
    }

    /// Drops up to `there` bytes of the frame that is being skipped; returns how many.
    fn skip_bytes(&mut self, there: usize) -> usize {
        let skipped = self.skip.min(there);
        self.skip -= skipped;
        skipped
    }

    /// Returns whether the PROXY header is still to come.
    fn awaits_proxy_header(&self) -> bool {
        self.proxy_header
            .as_ref()
            .is_some_and(|o| o.requires_header())
    }

    /// Returns whether the connection cannot carry a call yet.
    fn is_unready(&self) -> bool {
        let ungreeted = matches!(&self.role, RelayRole::Http2(http2) if http2.awaits_settings());
        self.is_connecting
            || self.awaits_proxy_header()
            || self.transport.is_handshaking()
            || ungreeted
    }
}

/// State shared by all workers.
#[derive(Clone)]
pub(super) struct WorkerContext {
    pub(super) metrics: Arc<SidecarMetrics>,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) clock: Clock,
}

pub(super) struct Worker {
    poller: Poller,
    shared: WorkerContext,
    /// New setups from another thread, which wakes the worker.
    mailbox: (Sender<WorkerSetup>, Receiver<WorkerSetup>),
    routes: Vec<RouteState>,
    access_log: Option<AccessLog>,
    connections: Connections,
    /// Calls over HTTP/2.
    exchanges: GenerationalSlab<Box<Exchange>>,
    dirty: Vec<u64>,
    /// Connections whose client has just become known.
    identified: Vec<u64>,
    /// Whether listeners are watched; `false` for the rest of a tick in which one has failed.
    watches_listeners: bool,
    accept_failures: AcceptFailures,
    buffer: Vec<u8>,
    drain: Duration,
    busy_poll: Duration,
    random: fastrand::Rng,
    /// Calls over HTTP/2 whose header fields have just arrived.
    new_calls: Vec<u64>,
    /// Items delayed by fault injection.
    delayed: DelayQueue,
    abuse: AbuseLedger,
}

impl Worker {
    pub(super) fn new(setup: WorkerSetup, shared: WorkerContext) -> Result<Worker, SidecarError> {
        let failed = |e| SidecarError::new("making an epoll instance", e);
        let mut worker = Worker {
            poller: Poller::new().map_err(failed)?,
            shared,
            mailbox: channel(),
            routes: Vec::new(),
            access_log: None,
            connections: Connections::default(),
            exchanges: GenerationalSlab::default(),
            dirty: Vec::new(),
            identified: Vec::new(),
            watches_listeners: true,
            accept_failures: AcceptFailures::default(),
            buffer: vec![0; READ_BUFFER_BYTES],
            drain: Duration::ZERO,
            busy_poll: Duration::ZERO,
            random: fastrand::Rng::new(),
            new_calls: Vec::new(),
            delayed: DelayQueue::default(),
            abuse: AbuseLedger::default(),
        };
        worker.apply_setup(setup, Time::ZERO).map_err(failed)?;
        Ok(worker)
    }

    /// Returns the sender of setups for the running worker.
    pub(super) fn mailbox(&self) -> Sender<WorkerSetup> {
        self.mailbox.0.clone()
    }

    pub(super) fn waker(&self) -> Waker {
        self.poller.waker()
    }

    fn counters(&self, route: usize) -> &Counters {
        &self.routes[route].setup.counters
    }

    /// Relays until the stop flag is set and nothing is in flight.
    ///
    /// # Errors
    /// When the system fails to wait for sockets.
    pub(super) fn run(mut self) -> Result<(), SidecarError> {
        defect::restart_on_panic(&mut self, Worker::run_loop, Worker::restart_after_panic)
            .map_err(|e| SidecarError::new("waiting for sockets", e))
    }

    /// Restarts after a panic: drops all connections and calls, whose state cannot be trusted.
    fn restart_after_panic(&mut self) {
        for connection in std::mem::take(&mut self.connections).into_values() {
            let state = &self.routes[connection.route];
            let counters = self.counters(connection.route);
            match connection.endpoint {
                Some(endpoint) => {
                    add_to_counter(&counters.upstream_lost, 1);
                    if connection.is_established {
                        state.endpoints[endpoint].counters.open.dec();
                    }
                }
                None => {
                    counters.open.dec();
                }
            }
            if let RelayRole::Up { calls, .. } = &connection.role {
                counters.in_flight.dec_by(calls.len() as i64);
            }
        }
        for state in &mut self.routes {
            for endpoint in &mut state.endpoints {
                endpoint.slots.fill(None);
            }
            state.waiting_clients.clear();
            state.waiting_isolated.clear();
            state.reserved.clear();
        }
        for exchange in std::mem::take(&mut self.exchanges).into_values() {
            self.counters(exchange.route).in_flight.dec();
        }
        self.new_calls.clear();
        self.delayed = DelayQueue::default();
        self.dirty.clear();
        self.identified.clear();
        self.buffer = vec![0; READ_BUFFER_BYTES];
    }

    fn run_loop(&mut self) -> io::Result<()> {
        let mut events = PollEvents::default();
        self.read_mailbox(self.shared.clock.now());
        let mut next_tick = self.shared.clock.now() + TICK_INTERVAL;
        self.reload_certificates();
        let mut next_reload = self.shared.clock.now() + CERTIFICATE_RELOAD_INTERVAL;
        let (mut drain_until, mut awake_until) = (None, Time::ZERO);
        loop {
            let now = self.shared.clock.now();
            if drain_until.is_none() && self.shared.stop.load(Ordering::Relaxed) {
                drain_until = Some(now + self.drain);
                for state in &mut self.routes {
                    state.setup.listener = None;
                }
                self.send_goaways(|_| true);
                self.flush_dirty_connections(now);
            }
            if let Some(until) = drain_until
                && (now >= until || !self.connections.values().any(|c| c.is_busy()))
            {
                return Ok(());
            }
            // While busy-polling, the wait returns immediately.
            let until = if now < awake_until {
                now
            } else {
                next_tick.min(self.delayed.next_due())
            };
            let longest = Some(until.duration_since(now));
            self.poller.wait(longest, &mut events)?;
            let now = self.shared.clock.now();
            if events.sockets().next().is_some() {
                awake_until = now + self.busy_poll;
            }
            if events.was_woken() && drain_until.is_none() {
                self.read_mailbox(now);
            }
            for event in events.sockets() {
                fault::point("sidecar");
                self.dispatch_event(event, now);
            }
            self.begin_identified_connections(now);
            self.release_due_items(now);
            self.flush_dirty_connections(now);
            self.resume_held_clients(now);
            self.flush_dirty_connections(now);
            if now >= next_tick {
                next_tick = now + TICK_INTERVAL;
                if now >= next_reload {
                    next_reload = now + CERTIFICATE_RELOAD_INTERVAL;
                    self.reload_certificates();
                }
                self.tick(now);
                if drain_until.is_some() {
                    self.send_goaways(|_| true);
                }
                self.flush_dirty_connections(now);
            }
        }
    }

    fn reload_certificates(&mut self) {
        for state in &mut self.routes {
            let counters = &state.setup.counters;
            for identity in [&mut state.setup.listen_tls, &mut state.setup.upstream_tls] {
                let Some(identity) = identity else {
                    continue;
                };
                match identity.reload() {
                    Some(true) => add_to_counter(&counters.reloads, 1),
                    Some(false) => add_to_counter(&counters.reload_failures, 1),
                    None => {}
                }
                identity.report_expiry();
            }
        }
    }

    fn tick(&mut self, now: Time) {
        self.apply_lookups();
        self.watch_listeners(true);
        for token in self.connections.keys() {
            let Some(connection) = self.connections.get(token) else {
                continue;
            };
            if connection.awaits_proxy_header() && now >= connection.began + HEADER_TIMEOUT {
                self.reject_connection(
                    connection.route,
                    ConnectionPeer::from_connection(connection),
                    &ProxyHeaderError::Late,
                    now,
                );
                self.close(token, now);
                continue;
            }
            let is_new = connection.is_unready();
            if is_new && now >= connection.began + CONNECT_TIMEOUT {
                let late = match (
                    connection.is_connecting,
                    connection.transport.is_handshaking(),
                ) {
                    (true, _) => "no connection",
                    (false, true) => "no TLS",
                    (false, false) => "no HTTP/2",
                };
                if connection.transport.is_handshaking() && !connection.is_connecting {
                    add_to_counter(&self.counters(connection.route).handshakes_failed, 1);
                }
                if let Some(connection) = self.connection_mut(token) {
                    connection.problem = Some(format!("{late} within {CONNECT_TIMEOUT:?}"));
                }
                self.close(token, now);
                continue;
            }
            let keep = match connection.role {
                RelayRole::Up { .. } => self.check_connection(token, now),
                RelayRole::Http2(_) => self.check_http2_connection(token, now),
                RelayRole::Down { .. } | RelayRole::Pipe { .. } => true,
            };
            if !keep {
                self.close(token, now);
            }
        }
        self.end_timed_out_calls(now);
        self.refill_slots(now);
        self.drain_removed_routes(now);
    }
}

#[cfg(test)]
mod tests;
