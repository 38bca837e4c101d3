//! The table of a worker's connections: adds, finds and closes them.

use std::io;

use plimsoll_engine::transport::poller::{Interest, SocketToken};
use plimsoll_model::Time;
use plimsoll_protocols::interface::relayed::RejectReason;
use plimsoll_wire::http2::MAX_STREAM_ID;

use super::super::access_log::AccessLogEntry;
use super::super::add_to_counter;
use super::super::transport::Transport;
use super::abuse::Isolation;
use super::{RelayConnection, RelayRole, Worker};

impl Worker {
    pub(super) fn connection_mut(&mut self, token: u64) -> Option<&mut RelayConnection> {
        self.connections.get_mut(token).map(|found| &mut **found)
    }

    pub(super) fn mark_dirty(&mut self, token: u64) {
        if let Some(connection) = self.connection_mut(token)
            && !connection.is_dirty
        {
            connection.is_dirty = true;
            self.dirty.push(token);
        }
    }

    /// Adds a socket; a socket to an upstream is not connected yet.
    pub(super) fn add_connection(
        &mut self,
        transport: Transport,
        route: usize,
        endpoint: Option<usize>,
        role: RelayRole,
        now: Time,
    ) -> io::Result<u64> {
        let connecting = endpoint.is_some();
        let interest = Interest::State {
            reads: true,
            writes: connecting,
        };
        let token = self.connections.reserve();
        if let Err(e) = self
            .poller
            .add(&transport.socket, SocketToken(token), interest)
        {
            self.connections.release(token);
            return Err(e);
        }
        let connection = RelayConnection {
            transport,
            token,
            route,
            endpoint,
            role,
            began: now,
            proxy_header: None,
            client: None,
            last_active: now,
            bytes_received: 0,
            bytes_sent: 0,
            is_connecting: connecting,
            is_established: false,
            problem: None,
            is_unneeded: false,
            is_recognised: false,
            interest,
            is_paused: false,
            is_held: false,
            held_since: Time::NEVER,
            reply_bytes: 0,
            skip: 0,
            delayed: 0,
            isolation: Isolation::default(),
            peer_ended: false,
            ends_after_output: false,
            end_sent: false,
            is_dirty: false,
        };
        self.connections.put_back(token, Box::new(connection));
        Ok(token)
    }

    /// Closes a connection; calls and pipes that depended on it fail.
    pub(super) fn close(&mut self, token: u64, now: Time) {
        if let Some(connection) = self.connections.remove(token) {
            self.on_closed(*connection, now);
        }
    }

    /// Describes that a peer closed a connection, without an error, before it could be used. A server that refuses the
    /// client's certificate may do so without an alert (RFC 8446 §4.4.2.4), as gRPC's C core does.
    fn describe_early_close(&self, connection: &RelayConnection) -> String {
        let closed = "it closed the connection before it could be used";
        let identity = &self.routes[connection.route].setup.upstream_tls;
        match identity.as_ref().filter(|_| connection.endpoint.is_some()) {
            None => closed.to_owned(),
            Some(identity) => match identity.certificate_path() {
                Some(file) => format!(
                    "{closed}, without an alert: perhaps it refuses the certificate {}",
                    file.display()
                ),
                None => format!(
                    "{closed}, without an alert: perhaps it demands a client certificate (upstream_tls.cert)"
                ),
            },
        }
    }

    pub(super) fn on_closed(&mut self, mut connection: RelayConnection, now: Time) {
        let (route, is_new) = (connection.route, connection.is_unready());
        let problem = connection.problem.take();
        let problem = problem.as_deref();
        let closed = self.describe_early_close(&connection);
        let problem = problem.unwrap_or(&closed);
        let endpoint = connection.endpoint;
        match endpoint {
            None => {
                self.counters(route).open.dec();
                self.count_abandoned_calls(&connection, now);
            }
            Some(endpoint) => {
                if connection.is_established {
                    self.routes[route].endpoints[endpoint].counters.open.dec();
                }
                self.free_slot(route, endpoint, connection.token);
                connection.end_reservation(&mut self.routes);
                let is_pipe = matches!(connection.role, RelayRole::Pipe { .. });
                if connection.is_unneeded {
                    // The sidecar closed the connection because it was unused.
                } else if is_new {
                    self.on_endpoint_failure(route, endpoint, problem, now);
                } else if !is_pipe {
                    add_to_counter(&self.counters(route).upstream_lost, 1);
                }
            }
        }
        match connection.role {
            RelayRole::Up {
                mut calls,
                last_oneway,
                ..
            } if let Some(endpoint) = endpoint => {
                let lost = calls.remove_if(|_| true);
                if !connection.is_unneeded {
                    self.blame_newest_clients(route, &lost, last_oneway, now);
                }
                let why = if connection.is_connecting {
                    RejectReason::NoUpstream
                } else {
                    RejectReason::UpstreamClosed
                };
                self.refuse_calls(route, endpoint, &lost, why);
                if !connection.is_connecting {
                    self.on_failed_calls(route, endpoint, lost.len(), now);
                }
            }
            RelayRole::Http2(http2) => {
                if !connection.is_unneeded && http2.would_end_without_goaway() {
                    self.blame_clients_around_stream(route, MAX_STREAM_ID, &http2, now);
                }
                self.on_http2_connection_lost(connection.token, route, endpoint, *http2, now);
                self.close_reserved_connections(connection.isolation.reserved, now);
            }
            RelayRole::Pipe { peer } => {
                if endpoint.is_none() && self.has_access_log() {
                    let line = AccessLogEntry {
                        client: connection.client_address(),
                        bytes_up: connection.bytes_received,
                        bytes_down: connection.bytes_sent,
                        ..AccessLogEntry::default()
                    };
                    let endpoint = self.connection_mut(peer).and_then(|other| other.endpoint);
                    self.write_access_log(route, endpoint, connection.began, line);
                }
                // If this end failed, the other must not wait for more data. If both ends had finished, the other one
                // is closed or about to be.
                if let Some(other) = self.connection_mut(peer) {
                    other.peer_ended = true;
                    other.ends_after_output = true;
                    self.mark_dirty(peer);
                }
            }
            RelayRole::Up { .. } | RelayRole::Down { .. } => {}
        }
    }
}
