//! A worker's connections by their tokens: taken in, found, closed.

use std::io;

use plimsoll_engine::poller::{Interest, Token};
use plimsoll_model::Time;
use plimsoll_protocols::relayed::Why;

use super::super::access_log::Line;
use super::super::count;
use super::super::transport::Transport;
use super::{Connection, Role, Worker};

impl Worker {
    pub(super) fn live(&mut self, token: u64) -> Option<&mut Connection> {
        self.connections.get_mut(token).map(|found| &mut **found)
    }

    pub(super) fn mark(&mut self, token: u64) {
        if let Some(connection) = self.live(token)
            && !connection.dirty
        {
            connection.dirty = true;
            self.dirty.push(token);
        }
    }

    /// Takes a socket in; that to an upstream is not connected yet.
    pub(super) fn adopt(
        &mut self,
        transport: Transport,
        route: usize,
        role: Role,
        now: Time,
    ) -> io::Result<u64> {
        let connecting = role.endpoint().is_some();
        let interest = Interest::State {
            reads: true,
            writes: connecting,
        };
        self.connections.insert_made(|token| {
            self.poller.add(&transport.socket, Token(token), interest)?;
            Ok(Box::new(Connection {
                transport,
                token,
                route,
                role,
                began: now,
                opening: None,
                client: None,
                last_active: now,
                came: 0,
                went: 0,
                connecting,
                proven: false,
                problem: None,
                recognised: false,
                interest,
                paused: false,
                held: false,
                held_since: Time::NEVER,
                owed: 0,
                skip: 0,
                delayed: 0,
                ended: false,
                finishing: false,
                finished: false,
                dirty: false,
            }))
        })
    }

    /// The connection is gone; what depended on it fails.
    pub(super) fn close(&mut self, token: u64, now: Time) {
        if let Some(connection) = self.connections.remove(token) {
            self.closed(*connection, now);
        }
    }

    pub(super) fn closed(&mut self, connection: Connection, now: Time) {
        let (route, is_new) = (connection.route, connection.is_new());
        let problem = connection.problem.as_deref();
        let problem = problem.unwrap_or("it closed the connection before it could be used");
        if let Some(endpoint) = connection.endpoint()
            && connection.proven
        {
            self.routes[route].endpoints[endpoint].counters.open.dec();
        }
        match connection.role {
            Role::Down { .. } => {
                self.counters(route).open.dec();
            }
            Role::Up {
                lane,
                endpoint,
                mut calls,
                ..
            } => {
                self.free_lane(route, endpoint, lane, connection.token);
                if is_new {
                    self.endpoint_failed(route, endpoint, problem, now);
                } else {
                    count(&self.counters(route).upstream_lost, 1);
                }
                let lost = calls.take_due(Time::NEVER);
                let why = match connection.connecting {
                    true => Why::NoUpstream,
                    false => Why::Cut,
                };
                self.refuse_all(route, endpoint, &lost, why);
                if !connection.connecting {
                    self.calls_failed(route, endpoint, lost.len(), now);
                }
            }
            Role::Http2(http2) => {
                match http2.endpoint() {
                    None => {
                        self.counters(route).open.dec();
                    }
                    Some(endpoint) if is_new => self.endpoint_failed(route, endpoint, problem, now),
                    Some(_) => count(&self.counters(route).upstream_lost, 1),
                }
                self.http2_lost(connection.token, route, *http2, now);
            }
            Role::Pipe { peer, endpoint } => {
                match endpoint {
                    Some(endpoint) if is_new => {
                        self.endpoint_failed(route, endpoint, problem, now);
                    }
                    Some(_) => {}
                    None => {
                        self.counters(route).open.dec();
                        if self.logs() {
                            let line = Line {
                                client: connection.client(),
                                bytes_up: connection.came,
                                bytes_down: connection.went,
                                ..Line::default()
                            };
                            let endpoint = self.live(peer).and_then(|other| other.endpoint());
                            self.log(route, endpoint, connection.began, line);
                        }
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
}
