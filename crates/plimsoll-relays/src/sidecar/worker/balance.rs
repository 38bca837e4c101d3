//! Chooses the upstream connection for a call: the one with fewer calls in flight of two that are picked at random
//! (Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", 2001).
//!
//! Each upstream has a slot for every connection that it may have. While calls arrive, the slots of all reachable
//! upstreams are kept connected, so that a call waits for a new connection only if no other can carry it.

use plimsoll_model::Time;
use plimsoll_protocols::interface::relayed::RejectReason;
use plimsoll_wire::http2::EitherRole;

use super::super::upstream_calls::UpstreamCalls;
use super::abuse::ClientNetwork;
use super::http2::Http2State;
use super::{HIGH_WATER_BYTES, RelayConnection, RelayRole, RouteState, UpstreamChoice, Worker};

/// Whether a connection slot can take the next call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    /// The slot's connection is ready and carries this many calls.
    Ready(usize),
    /// The connection is being opened, and this many calls wait for it.
    Connecting(usize),
    /// Too many bytes wait for the socket.
    Congested,
    /// The connection has reached `max_in_flight`.
    Full,
    Missing,
}

impl RelayConnection {
    /// Returns the number of calls in flight on a connection to an upstream.
    pub(super) fn call_count(&self) -> usize {
        match &self.role {
            RelayRole::Up { calls, .. } => calls.len(),
            RelayRole::Http2(http2) => http2.call_count(),
            RelayRole::Down { .. } | RelayRole::Pipe { .. } => 0,
        }
    }
}

impl RouteState {
    /// Returns the role of a connection to an upstream. `owner` is the client address that it is
    /// reserved for, if any.
    pub(super) fn upstream_role(&self, layout: usize, owner: Option<ClientNetwork>) -> RelayRole {
        if self.setup.codec.is_none() {
            let mut http2 = Http2State::new(EitherRole::Client);
            http2.owner = owner;
            return RelayRole::Http2(Box::new(http2));
        }
        RelayRole::Up {
            layout,
            calls: UpstreamCalls::default(),
            pending_heartbeat: None,
            last_oneway: None,
            owner,
        }
    }
}

impl RouteState {
    /// Returns the number of connection slots for one frame layout, over all upstreams. Each layout has its own
    /// connections.
    fn slot_count(&self) -> usize {
        self.endpoints.len() * self.setup.route.connections()
    }

    /// Returns the upstream of a slot, and the slot's index there.
    fn slot_position(&self, layout: usize, lane: usize) -> (usize, usize) {
        let each = self.setup.route.connections();
        (lane / each, layout * each + lane % each)
    }
}

impl Worker {
    /// Finds the upstream connection for the route's next call in this frame layout.
    pub(super) fn find_upstream(
        &mut self,
        route: usize,
        layout: usize,
        now: Time,
    ) -> UpstreamChoice {
        self.routes[route].called_layouts |= 1 << layout;
        if let Some(token) = self.pick_less_loaded_slot(route, layout) {
            return UpstreamChoice::Upstream(token);
        }
        self.connect_empty_slots(route, layout, now);
        let (mut best, mut new, mut choked, mut full) = (None, None, false, false);
        let least = |best: Option<(usize, u64)>, found| Some(best.map_or(found, |b| b.min(found)));
        for lane in 0..self.routes[route].slot_count() {
            match self.slot_state(route, layout, lane) {
                (SlotState::Ready(calls), token) => best = least(best, (calls, token)),
                (SlotState::Connecting(calls), token) => new = least(new, (calls, token)),
                (SlotState::Congested, _) => choked = true,
                (SlotState::Full, _) => full = true,
                (SlotState::Missing, _) => {}
            }
        }
        // Over HTTP/2 a call may wait for a new connection, and is moved if that connection fails.
        let is_http2 = self.routes[route].setup.codec.is_none();
        match (best, new) {
            (Some((_, token)), _) => UpstreamChoice::Upstream(token),
            (None, Some((_, token))) if is_http2 => UpstreamChoice::Upstream(token),
            (None, Some(_)) => UpstreamChoice::Connecting,
            (None, None) if choked => UpstreamChoice::Congested,
            (None, None) if full => UpstreamChoice::Refused(RejectReason::Busy),
            (None, None) => UpstreamChoice::Refused(self.no_connection_reason(route, now)),
        }
    }

    /// Picks two slots and returns the ready one with fewer calls; `None` if neither is ready.
    fn pick_less_loaded_slot(&mut self, route: usize, layout: usize) -> Option<u64> {
        let slots = self.routes[route].slot_count();
        let (first, second) = match slots {
            0 => return None,
            1 => (0, 0),
            _ => {
                let first = self.random.usize(..slots);
                let second = self.random.usize(..slots - 1);
                (first, second + usize::from(second >= first))
            }
        };
        let one = self.slot_state(route, layout, first);
        let other = if second == first {
            one
        } else {
            self.slot_state(route, layout, second)
        };
        match (one, other) {
            ((SlotState::Ready(a), token), (SlotState::Ready(b), _)) if a <= b => Some(token),
            (_, (SlotState::Ready(_), token)) | ((SlotState::Ready(_), token), _) => Some(token),
            _ => None,
        }
    }

    fn slot_state(&self, route: usize, layout: usize, lane: usize) -> (SlotState, u64) {
        let state = &self.routes[route];
        let (endpoint, place) = state.slot_position(layout, lane);
        let Some(token) = state.endpoints[endpoint].slots[place] else {
            return (SlotState::Missing, 0);
        };
        match self.connections.get(token) {
            Some(connection) => (self.connection_state(connection), token),
            None => (SlotState::Missing, 0),
        }
    }

    fn connection_state(&self, connection: &RelayConnection) -> SlotState {
        let calls = connection.call_count();
        if calls >= self.routes[connection.route].setup.route.max_in_flight() {
            SlotState::Full
        } else if connection.is_unready() {
            SlotState::Connecting(calls)
        } else if matches!(connection.role, RelayRole::Up { .. })
            && connection.transport.unsent_bytes() > HIGH_WATER_BYTES
        {
            SlotState::Congested
        } else {
            SlotState::Ready(calls)
        }
    }

    /// Returns a reserved upstream connection, or why it cannot carry the client's next call.
    pub(super) fn choose_reserved_connection(
        &self,
        connection: &RelayConnection,
    ) -> UpstreamChoice {
        match (self.connection_state(connection), &connection.role) {
            (SlotState::Full, _) => UpstreamChoice::Refused(RejectReason::Busy),
            (SlotState::Connecting(_), RelayRole::Up { .. }) => UpstreamChoice::Connecting,
            (SlotState::Congested, _) => UpstreamChoice::Congested,
            _ => UpstreamChoice::Upstream(connection.token),
        }
    }

    /// Opens connections for the empty slots of the route's upstreams.
    fn connect_empty_slots(&mut self, route: usize, layout: usize, now: Time) {
        for lane in 0..self.routes[route].slot_count() {
            let state = &self.routes[route];
            let (endpoint, place) = state.slot_position(layout, lane);
            let upstream = &state.endpoints[endpoint];
            if upstream.slots[place].is_some() || !upstream.is_usable(now) {
                continue;
            }
            let is_http2 = state.setup.codec.is_none();
            let role = state.upstream_role(layout, None);
            if let Some(token) = self.connect(route, endpoint, || role, now) {
                self.routes[route].endpoints[endpoint].slots[place] = Some(token);
                if is_http2 {
                    self.send_preface(token);
                }
            }
        }
    }

    /// Opens connections for empty slots of routes that had calls since the last tick.
    pub(super) fn refill_slots(&mut self, now: Time) {
        for route in 0..self.routes.len() {
            let called = std::mem::take(&mut self.routes[route].called_layouts);
            for layout in (0..u8::BITS as usize).filter(|layout| called & 1 << layout != 0) {
                self.connect_empty_slots(route, layout, now);
            }
        }
    }

    /// Frees the slot of a connection that takes no more calls or is closed, if it still has a slot.
    pub(super) fn free_slot(&mut self, route: usize, endpoint: usize, token: u64) {
        let mut lanes = self.routes[route].endpoints[endpoint].slots.iter_mut();
        if let Some(lane) = lanes.find(|lane| **lane == Some(token)) {
            *lane = None;
        }
    }

    /// Makes a client's next request wait for an upstream. Nothing is read from the client until then.
    pub(super) fn queue_request(&mut self, connection: &mut RelayConnection, now: Time) {
        if !connection.is_held {
            connection.is_held = true;
            connection.held_since = connection.held_since.min(now);
            let state = &mut self.routes[connection.route];
            if connection.isolation.is_active(now) {
                state.waiting_isolated.push(connection.token)
            } else {
                state.waiting_clients.push_back(connection.token)
            }
        }
    }

    /// Resumes clients whose requests waited, in order of arrival.
    pub(super) fn resume_held_clients(&mut self, now: Time) {
        for route in 0..self.routes.len() {
            for token in std::mem::take(&mut self.routes[route].waiting_isolated) {
                self.resume_client(route, token, now);
            }
            for _ in 0..self.routes[route].waiting_clients.len() {
                let Some(token) = self.routes[route].waiting_clients.pop_front() else {
                    break;
                };
                self.resume_client(route, token, now);
                let held = &mut self.routes[route].waiting_clients;
                if held.back() == Some(&token) {
                    // The client still waits, and keeps its place at the front.
                    held.rotate_right(1);
                    break;
                }
            }
        }
    }

    fn resume_client(&mut self, route: usize, token: u64, now: Time) {
        let Some(codec) = self.routes[route].setup.codec.clone() else {
            return;
        };
        self.with_checked_out_connection(token, now, |worker, connection| {
            connection.is_held = false;
            worker.relay_frames(connection, &codec, now)
        });
    }
}
