//! A worker's routes, which are added, changed and removed while it runs.
//!
//! Connections and calls refer to their route by index, so the index of a removed route is not
//! reused until nothing refers to it.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use plimsoll_engine::transport::poller::{Interest, SocketToken};
use plimsoll_model::Time;

use super::super::metrics::StatusCounters;
use super::super::setup::{RouteSetup, WorkerSetup};
use super::peer_errors::PeerErrorLog;
use super::upstream::EndpointState;
use super::{LISTENER_TOKEN_BIT, RelayRole, Worker};

pub(super) struct RouteState {
    pub(super) setup: RouteSetup,
    /// The revision of the resolved upstream addresses that this worker has applied; 0 if none.
    pub(super) upstreams_revision: u64,
    pub(super) endpoints: Vec<EndpointState>,
    /// Index of the next endpoint in rotation, for connections that are not shared.
    pub(super) next_endpoint: usize,
    /// Bit set of the frame layouts in which calls arrived since the last tick.
    pub(super) called_layouts: u8,
    /// Upstream connections that are each reserved for one client.
    pub(super) reserved: Vec<u64>,
    /// Clients whose next request waits until an upstream can take it.
    pub(super) waiting_clients: VecDeque<u64>,
    /// Clients whose next request waits for a reserved connection, which delays no other client.
    pub(super) waiting_isolated: Vec<u64>,
    pub(super) peer_errors: PeerErrorLog,
    /// Counters of the upstreams' answers by status.
    pub(super) statuses: StatusCounters,
    lifecycle: RouteLifecycle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RouteLifecycle {
    Active,
    /// The config no longer has the route; calls in flight may continue until this time.
    Draining(Time),
    /// Nothing refers to the route any more: its index may be reused.
    Removed,
}

impl RouteState {
    fn new(setup: RouteSetup) -> RouteState {
        RouteState {
            setup,
            upstreams_revision: 0,
            endpoints: Vec::new(),
            next_endpoint: 0,
            called_layouts: 0,
            reserved: Vec::new(),
            waiting_clients: VecDeque::new(),
            waiting_isolated: Vec::new(),
            peer_errors: PeerErrorLog::default(),
            statuses: StatusCounters::default(),
            lifecycle: RouteLifecycle::Active,
        }
    }

    /// Applies a changed route. Connections stay open; those to upstreams with other settings get no new calls.
    fn apply_change(&mut self, mut setup: RouteSetup) {
        let (old, new) = (&self.setup.route, &setup.route);
        let is_otherwise =
            old.upstream_tls != new.upstream_tls || old.connections() != new.connections();
        if setup.listener.is_none() {
            setup.listener = self.setup.listener.take();
        }
        if !Arc::ptr_eq(&self.setup.upstreams, &setup.upstreams) {
            self.upstreams_revision = 0;
        }
        self.setup = setup;
        if is_otherwise {
            let slots = self.slots_per_upstream();
            for endpoint in &mut self.endpoints {
                endpoint.slots = vec![None; slots];
            }
        }
    }

    /// Returns the number of connection slots of one upstream.
    pub(super) fn slots_per_upstream(&self) -> usize {
        let codec = self.setup.codec.as_ref();
        self.setup.route.connections() * codec.map_or(1, |codec| codec.layout_count())
    }
}

impl Worker {
    pub(super) fn read_mailbox(&mut self, now: Time) {
        while let Ok(setup) = self.mailbox.1.try_recv() {
            if let Err(e) = self.apply_setup(setup, now) {
                tracing::error!("watching a listening socket: {e}; retrying");
                // The next tick watches all listeners again.
                self.watches_listeners = false;
            }
        }
        self.apply_lookups();
    }

    /// Replaces the routes with those of `setup`.
    ///
    /// # Errors
    /// Returns an error when a socket cannot be watched.
    pub(super) fn apply_setup(&mut self, setup: WorkerSetup, now: Time) -> io::Result<()> {
        (self.access_log, self.drain) = (setup.access_log, setup.drain);
        self.busy_poll = setup.busy_poll;
        let is_here = |state: &RouteState| state.lifecycle == RouteLifecycle::Active;
        let mut before: Vec<usize> = (0..self.routes.len())
            .filter(|place| is_here(&self.routes[*place]))
            .collect();
        let mut watched = Ok(());
        for route in setup.routes {
            let known = before.iter().position(|place| {
                route.is_known && self.routes[*place].setup.route.name == route.route.name
            });
            let is_new = route.listener.is_some();
            let place = match known.map(|at| before.swap_remove(at)) {
                Some(place) => {
                    self.routes[place].apply_change(route);
                    place
                }
                None => self.add_route(RouteState::new(route)),
            };
            if is_new && let Some(listener) = &self.routes[place].setup.listener {
                let interest = Interest::State {
                    reads: self.watches_listeners,
                    writes: false,
                };
                let token = SocketToken(LISTENER_TOKEN_BIT | place as u64);
                let added = self.poller.add(&listener.socket, token, interest);
                watched = watched.and(added);
            }
        }
        for place in before {
            let state = &mut self.routes[place];
            state.lifecycle = RouteLifecycle::Draining(now + self.drain);
            state.setup.listener = None;
        }
        watched
    }

    fn add_route(&mut self, state: RouteState) -> usize {
        let mut routes = self.routes.iter();
        match routes.position(|old| old.lifecycle == RouteLifecycle::Removed) {
            Some(place) => {
                self.routes[place] = state;
                place
            }
            None => {
                self.routes.push(state);
                self.routes.len() - 1
            }
        }
    }

    /// Closes the connections of draining routes as they become idle.
    pub(super) fn drain_removed_routes(&mut self, now: Time) {
        for route in 0..self.routes.len() {
            let RouteLifecycle::Draining(until) = self.routes[route].lifecycle else {
                continue;
            };
            self.send_goaways(|of| of == route);
            let mut left = 0;
            for token in self.connections.keys() {
                let Some(connection) = self.connections.get(token) else {
                    continue;
                };
                if connection.route != route {
                    continue;
                }
                // Calls are checked separately, because their client may have disconnected.
                let has_calls =
                    matches!(&connection.role, RelayRole::Up { calls, .. } if !calls.is_empty());
                if now < until && (has_calls || connection.is_busy()) {
                    left += 1;
                } else {
                    self.close(token, now);
                }
            }
            if left == 0 {
                let state = &mut self.routes[route];
                state.lifecycle = RouteLifecycle::Removed;
                state.endpoints.clear();
                state.waiting_clients.clear();
                state.waiting_isolated.clear();
            }
        }
    }
}
