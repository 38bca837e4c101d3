//! Socket events: accepts connections, reads and dispatches bytes, and writes.

use std::io;

use plimsoll_engine::tls::certificate_expiry;
use plimsoll_engine::transport::poller::{Interest, SocketReady, SocketToken};
use plimsoll_model::Time;
use plimsoll_protocols::interface::relayed::RelayMode;
use plimsoll_serving::proxy_header::{ProxyHeaderError, ProxyHeaderReader};
use plimsoll_serving::unix;
use plimsoll_wire::http2::EitherRole;

use super::super::add_to_counter;
use super::super::transport::{ReadResult, Transport, tls_error};
use super::http2::Http2State;
use super::peer_errors::{ConnectionPeer, PeerError};
use super::{LISTENER_TOKEN_BIT, LOW_WATER_BYTES, RelayConnection, RelayRole, Worker};

const MAX_ACCEPTS_PER_EVENT: usize = 64;

impl Worker {
    pub(super) fn dispatch_event(&mut self, event: SocketReady, now: Time) {
        let SocketToken(token) = event.token;
        if token & LISTENER_TOKEN_BIT != 0 {
            self.accept((token & !LISTENER_TOKEN_BIT) as usize, now);
            return;
        }
        self.with_checked_out_connection(token, now, |worker, connection| {
            worker.handle_connection_event(connection, event, now)
        });
    }

    /// Calls `serve` on a connection that is out of the table meanwhile, so that `serve` can use other connections.
    /// Closes the connection if `serve` returns `false`.
    pub(super) fn with_checked_out_connection(
        &mut self,
        token: u64,
        now: Time,
        serve: impl FnOnce(&mut Worker, &mut RelayConnection) -> bool,
    ) {
        let Some(mut connection) = self.connections.check_out(token) else {
            return;
        };
        if serve(self, &mut connection) {
            let is_http2 = matches!(connection.role, RelayRole::Http2(_));
            self.connections.put_back(token, connection);
            self.mark_dirty(token);
            if is_http2 {
                self.handle_frames(token, now);
            }
        } else {
            self.connections.release(token);
            self.on_closed(*connection, now);
        }
    }

    /// Handles an event of a connection; returns `false` if it must be closed.
    fn handle_connection_event(
        &mut self,
        connection: &mut RelayConnection,
        event: SocketReady,
        now: Time,
    ) -> bool {
        if connection.is_connecting && event.writable {
            match connection.transport.socket.take_error() {
                Ok(None) => {
                    connection.is_connecting = false;
                }
                Ok(Some(e)) | Err(e) => {
                    connection.problem = Some(e.to_string());
                    return false;
                }
            }
        }
        if !event.readable || connection.is_connecting {
            return true;
        }
        if connection.proxy_header.is_some() {
            return self.read_proxy_header(connection, now);
        }
        if connection.peer_ended {
            // Nothing is read any more, so the event is a failure or the end of both directions.
            let fails = matches!(connection.role, RelayRole::Down { .. });
            return !fails && !connection.end_sent && connection.transport.flush().is_ok();
        }
        if connection.is_paused || connection.is_held {
            // Reading was not registered, so the event is a failure. A pipe stays open, because it may still hold
            // bytes.
            let is_asked = matches!(connection.interest, Interest::State { reads: true, .. });
            return is_asked || !matches!(connection.role, RelayRole::Down { .. });
        }
        if matches!(connection.role, RelayRole::Down { .. })
            && !self.routes[connection.route].waiting_clients.is_empty()
            && !connection.isolation.is_active(now)
        {
            // Other clients already wait, so nothing is read: in the socket, the bytes need no memory of this process.
            self.queue_request(connection, now);
            return true;
        }
        let got = match connection.transport.read(&mut self.buffer) {
            Ok(got) => got,
            Err(e) => {
                self.on_read_failure(connection, &e, now);
                // Sends the TLS alert with the reason, if there is one.
                let _ = connection.flush();
                return false;
            }
        };
        connection.last_active = now;
        let codec = self.routes[connection.route].setup.codec.clone();
        match (&connection.role, codec) {
            (RelayRole::Down { .. }, Some(codec)) => {
                let fine = self.relay_frames(connection, &codec, now);
                // Earlier requests are still answered.
                connection.peer_ended = got == ReadResult::End;
                fine
            }
            (RelayRole::Up { .. }, Some(codec)) => {
                self.relay_frames(connection, &codec, now) && got != ReadResult::End
            }
            (RelayRole::Http2(_), _) => {
                connection.peer_ended = got == ReadResult::End;
                true
            }
            _ => self.relay_bytes(connection, got),
        }
    }

    /// Reads the PROXY header; returns `false` if the connection must be closed.
    fn read_proxy_header(&mut self, connection: &mut RelayConnection, now: Time) -> bool {
        let Some(opening) = &mut connection.proxy_header else {
            return true;
        };
        match opening.read(&connection.transport.socket) {
            Ok(client) => {
                if opening.requires_header() {
                    connection.client = client.0;
                    self.identified.push(connection.token);
                }
                connection.proxy_header = None;
                true
            }
            Err(ProxyHeaderError::Socket(e)) if e.kind() == io::ErrorKind::WouldBlock => true,
            Err(why) => {
                self.reject_connection(
                    connection.route,
                    ConnectionPeer::from_connection(connection),
                    &why,
                    now,
                );
                false
            }
        }
    }

    /// Begins to relay connections whose client has just become known.
    pub(super) fn begin_identified_connections(&mut self, now: Time) {
        for token in std::mem::take(&mut self.identified) {
            if let Some(connection) = self.connection_mut(token) {
                let route = connection.route;
                self.start_relaying(token, route, now);
            }
        }
    }

    fn start_relaying(&mut self, token: u64, route: usize, now: Time) {
        match self.routes[route].setup.route.protocol.mode {
            RelayMode::Frames { .. } => self.apply_abuse_record(token, now),
            RelayMode::Streams { .. } => {
                self.apply_abuse_record(token, now);
                self.send_preface(token);
            }
            RelayMode::Bytes => self.connect_pipe_with_fault(token, route, now),
        }
    }

    /// Counts and logs a failed handshake. The alert of a peer that rejects our certificate may
    /// arrive after our side of the handshake is complete (RFC 8446 §4.4.2).
    fn on_read_failure(&mut self, connection: &mut RelayConnection, error: &io::Error, now: Time) {
        connection.problem = Some(error.to_string());
        let state = &mut self.routes[connection.route];
        let name = &state.setup.route.name;
        let tls = tls_error(error);
        let is_refused = matches!(
            tls,
            Some(rustls::Error::InvalidCertificate(_) | rustls::Error::AlertReceived(_))
        );
        if !is_refused && !connection.transport.is_handshaking() {
            tracing::debug!("a connection of route {name}: {error}");
            return;
        }
        add_to_counter(&state.setup.counters.handshakes_failed, 1);
        let Some(more) = state.peer_errors.count_error(PeerError::Handshake, now) else {
            return;
        };
        let identity = match connection.endpoint {
            Some(_) => &state.setup.upstream_tls,
            None => &state.setup.listen_tls,
        };
        let why = match (tls, identity) {
            (Some(rustls::Error::AlertReceived(alert)), Some(identity)) => {
                match identity.certificate_path() {
                    Some(file) => {
                        format!(
                            "it sent the alert {alert:?} (our certificate: {})",
                            file.display()
                        )
                    }
                    None => format!("it sent the alert {alert:?} (our certificate: none)"),
                }
            }
            (Some(tls), Some(identity)) => identity.describe_error(tls),
            (Some(tls), None) => certificate_expiry::describe_tls_error(tls),
            (None, _) => error.to_string(),
        };
        // A socket that was reset has no peer's address any more.
        let peer = match connection.endpoint {
            Some(endpoint) => format!("upstream {}", state.endpoints[endpoint].address()),
            None => ConnectionPeer::from_connection(connection).to_string(),
        };
        tracing::warn!("route {name}: TLS handshake with the {peer} failed: {why}{more}");
    }

    pub(super) fn accept(&mut self, route: usize, now: Time) {
        for _ in 0..MAX_ACCEPTS_PER_EVENT {
            let state = &self.routes[route];
            let Some(listener) = &state.setup.listener else {
                return;
            };
            let (socket, peer) = match unix::accept(&listener.socket) {
                Ok(accepted) => accepted,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) => {
                    self.accept_failures.report(&e, now);
                    self.watch_listeners(false);
                    return;
                }
            };
            // Unix sockets have no such option and need none.
            let _ = socket.set_nodelay(true);
            let tls = state
                .setup
                .listen_tls
                .as_ref()
                .map(|identity| identity.new_connection(""))
                .transpose();
            let Ok(tls) = tls else {
                continue;
            };
            let opening = state.setup.proxies.header_reader(peer).map(Box::new);
            let role = match state.setup.route.protocol.mode {
                RelayMode::Frames { .. } => RelayRole::Down { in_flight: 0 },
                RelayMode::Streams { .. } => {
                    RelayRole::Http2(Box::new(Http2State::new(EitherRole::Server)))
                }
                RelayMode::Bytes => RelayRole::Pipe { peer: u64::MAX },
            };
            let transport = Transport::new(socket, tls);
            let Ok(token) = self.add_connection(transport, route, None, role, now) else {
                continue;
            };
            add_to_counter(&self.counters(route).accepted, 1);
            self.counters(route).open.inc();
            let is_awaited = opening
                .as_deref()
                .is_some_and(ProxyHeaderReader::requires_header);
            if let Some(connection) = self.connection_mut(token) {
                (connection.proxy_header, connection.client) = (opening, peer.0);
            }
            if !is_awaited {
                self.start_relaying(token, route, now);
            }
        }
    }

    /// Starts or stops accepting. A listener that cannot accept because file descriptors have run out stays readable,
    /// so watching it would wake the worker continuously.
    pub(super) fn watch_listeners(&mut self, reads: bool) {
        if self.watches_listeners == reads {
            return;
        }
        self.watches_listeners = reads;
        for (place, state) in self.routes.iter().enumerate() {
            let Some(listener) = &state.setup.listener else {
                continue;
            };
            let (token, writes) = (SocketToken(LISTENER_TOKEN_BIT | place as u64), false);
            let interest = Interest::State { reads, writes };
            let watched = match self.poller.change(&listener.socket, token, interest) {
                // The system refused to watch the listener when its route was added.
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    self.poller.add(&listener.socket, token, interest)
                }
                changed => changed,
            };
            if let Err(e) = watched {
                tracing::error!("watching a listening socket: {e}; retrying");
                self.watches_listeners = false;
            }
        }
    }

    pub(super) fn flush_dirty_connections(&mut self, now: Time) {
        // Closing a connection may mark other connections.
        while !self.dirty.is_empty() {
            for token in std::mem::take(&mut self.dirty) {
                self.flush(token, now);
            }
        }
    }

    pub(super) fn flush(&mut self, token: u64, now: Time) {
        let Some(connection) = self.connection_mut(token) else {
            return;
        };
        connection.is_dirty = false;
        if connection.is_connecting {
            return;
        }
        if let Some(endpoint) = connection.newly_reached_upstream() {
            connection.is_established = true;
            let route = connection.route;
            self.on_connected(route, endpoint);
        }
        let Some(connection) = self.connection_mut(token) else {
            return;
        };
        if connection.flush().is_err() {
            self.close(token, now);
            return;
        }
        connection.ends_after_output |= connection.has_all_answers();
        let is_sent =
            !connection.transport.wants_write() && connection.transport.unsent_bytes() == 0;
        if connection.ends_after_output && !connection.end_sent && is_sent {
            connection.transport.finish_sending();
            connection.end_sent = true;
        }
        if connection.end_sent && connection.peer_ended {
            self.close(token, now);
            return;
        }
        let unsent = connection.transport.unsent_bytes();
        connection.reply_bytes = connection.reply_bytes.min(unsent);
        let below = unsent < LOW_WATER_BYTES;
        let owes_little = match connection.endpoint {
            Some(_) => connection.reply_bytes < LOW_WATER_BYTES,
            None => below && connection.delayed < LOW_WATER_BYTES,
        };
        let peer = match connection.role {
            RelayRole::Pipe { peer } if below => Some(peer),
            RelayRole::Down { .. } | RelayRole::Up { .. } | RelayRole::Http2(_) if owes_little => {
                Some(token)
            }
            _ => None,
        };
        let choked = matches!(&connection.role, RelayRole::Http2(http2) if http2.is_congested());
        if let Some(source) = peer.and_then(|peer| self.connection_mut(peer))
            && source.is_paused
        {
            source.is_paused = false;
            let source = source.token;
            self.update_interest(source);
        }
        if choked && below {
            self.send_blocked_data(token, now);
        }
        self.update_interest(token);
    }

    /// Registers the events of a connection that matter now with epoll.
    pub(super) fn update_interest(&mut self, token: u64) {
        let Some(connection) = self.connections.get_mut(token) else {
            return;
        };
        let interest = Interest::State {
            reads: !connection.is_paused && !connection.is_held && !connection.peer_ended,
            writes: connection.is_connecting || connection.transport.wants_write(),
        };
        if interest != connection.interest {
            connection.interest = interest;
            let socket = &connection.transport.socket;
            if let Err(e) = self.poller.change(socket, SocketToken(token), interest) {
                tracing::error!("watching a socket: {e}; its connection is closed");
                // The system would report no more events of the connection.
                self.close(token, self.shared.clock.now());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::OwnedFd;
    use std::sync::Arc;
    use std::time::Duration;

    use plimsoll_engine::Clock;
    use plimsoll_engine::transport::poller::PollEvents;
    use plimsoll_protocols::interface::relayed::Watchdog;

    use super::super::super::config::SidecarConfig;
    use super::super::super::metrics::SidecarMetrics;
    use super::super::super::setup::prepare;
    use super::super::WorkerContext;
    use super::*;

    /// Runs one iteration of the loop for sockets only; returns whether there was an event.
    fn run_iteration(worker: &mut Worker) -> bool {
        let mut events = PollEvents::default();
        let woken = (worker.poller).wait(Some(Duration::ZERO), &mut events);
        let now = worker.shared.clock.now();
        for event in events.sockets() {
            worker.dispatch_event(event, now);
        }
        woken.unwrap()
    }

    #[test]
    fn failing_listener_wakes_once_per_tick() {
        let route = "[[route]]\nname = \"r\"\nprotocol = \"tcp\"\nlisten = \"127.0.0.1:0\"\nupstream = [\"127.0.0.1:1\"]\n";
        let config = SidecarConfig::parse(route).unwrap();
        let metrics = Arc::new(SidecarMetrics::new());
        let watchdog = Watchdog::default();
        let (mut setups, routes) = prepare(&config, &[], &metrics, &watchdog, None).unwrap();
        let mut setup = setups.remove(0);
        let address = routes[0].address.tcp_address().unwrap();
        // Readable forever, but accepting fails, as in a process without free descriptors.
        let listener = setup.routes[0].listener.as_mut().unwrap();
        let client = TcpStream::connect(address).unwrap();
        let (server, _) = loop {
            match listener.socket.accept() {
                Ok(accepted) => break accepted,
                Err(e) => assert_eq!(e.kind(), io::ErrorKind::WouldBlock),
            }
        };
        io::Write::write_all(&mut &client, b"x").unwrap();
        server.set_nonblocking(true).unwrap();
        let failing = TcpListener::from(OwnedFd::from(server));
        let working = std::mem::replace(&mut listener.socket, failing);
        let shared = WorkerContext {
            metrics,
            stop: Arc::default(),
            clock: Clock::new(),
        };
        let mut worker = Worker::new(setup, shared).unwrap();
        while !run_iteration(&mut worker) {}
        for _ in 0..3 {
            assert!(!run_iteration(&mut worker), "it sleeps until the tick");
            worker.tick(worker.shared.clock.now());
            assert!(run_iteration(&mut worker), "it has tried again");
        }
        // Descriptors are available again.
        let token = SocketToken(LISTENER_TOKEN_BIT);
        let interest = Interest::State {
            reads: false,
            writes: false,
        };
        worker.poller.add(&working, token, interest).unwrap();
        worker.routes[0].setup.listener.as_mut().unwrap().socket = working;
        let _second = TcpStream::connect(address).unwrap();
        assert!(!run_iteration(&mut worker));
        worker.tick(worker.shared.clock.now());
        while worker.counters(0).accepted.get() == 0 {
            run_iteration(&mut worker);
        }
        let _third = TcpStream::connect(address).unwrap();
        while worker.counters(0).accepted.get() == 1 {
            run_iteration(&mut worker);
        }
    }
}
