//! Connections: made, served, lost and replaced.
//!
//! A lane is one of the plan's connections; whichever connection serves it can be lost
//! or drained and is then replaced, with growing pauses while the target refuses, or takes
//! connections and ends them before they have carried a call.

use std::cmp::Reverse;
use std::io;
use std::time::Duration;

use plimsoll_model::measure::Count;
use plimsoll_model::{Outcome, Time};

use super::connection::{Attempt, Connection, Loss, Received, Role, State};
use super::control::Control;
use super::{Established, Phase, Worker};
use crate::driver::{Driver, Protocol};
use crate::network::{Found, Lookup, Network, Ready, Token};
use crate::racing::{Ground, Raced, Races};
use crate::tls::Agreement;

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Bytes that don't reach a socket's mark are looked at after once to twice as long. A bulk
/// transfer reaches it a hundred times in that, so that looking costs it nothing.
const MARK_TIME: Duration = Duration::from_millis(10);
const MAX_SPARE_OUTBOXES: usize = 64;
/// Outboxes that have grown beyond this are kept as long as there are few. Bytes.
const LARGE_OUTBOX: usize = 256 << 10;
const FEW_SPARE_OUTBOXES: usize = 4;

fn token(index: u32, generation: u32) -> Token {
    Token(u64::from(generation) << 32 | u64::from(index))
}

impl<P: Protocol, N: Network> Worker<P, N> {
    /// The live connection that a token names; `None` when it is gone.
    #[inline]
    pub(super) fn live(&self, token: Token) -> Option<u32> {
        let (index, generation) = (token.0 as u32, (token.0 >> 32) as u32);
        match self.connections.get(index as usize) {
            Some(Some(connection)) if connection.generation == generation => Some(index),
            _ => None,
        }
    }

    /// Give lanes that want one a connection, at the plan's pace.
    pub(super) fn begin_connections(&mut self, control: &mut impl Control, now: Time) {
        while self.connecting < self.share.most_connecting() && now >= self.next_connect {
            let Some(lane) = self.to_connect.pop_front() else {
                return;
            };
            if self.phase == Phase::Draining {
                continue;
            }
            if let Some(rate) = self.share.load.connect_rate {
                let gap = (1e9 * f64::from(self.share.of) / rate) as u64;
                self.next_connect = self.next_connect.max(now).plus_nanos(gap);
            }
            self.begin_connection(control, Role::Lane(lane), now);
        }
    }

    /// A connection for one call. Failures at once are handled in the same turn.
    pub(super) fn begin_attempt(&mut self, attempt: Attempt) {
        self.attempts += 1;
        let now = attempt.begun;
        let index = self.new_connection(Role::Attempt(attempt), now);
        if let Some(deadline) = self.share.load.deadline {
            let token = self.token_of(index);
            self.attempt_deadlines
                .push_back((attempt.arrival + deadline, token));
        }
        // The host is looked up for every attempt: that is part of what a new client pays.
        self.network.resolve(0, self.token_of(index), Lookup::Own);
    }

    fn begin_connection(&mut self, control: &mut impl Control, role: Role, now: Time) {
        let index = self.new_connection(role, now);
        if self.addresses.are_known(now) {
            self.connect(control, index, now);
        } else {
            self.network
                .resolve(0, self.token_of(index), Lookup::Shared);
        }
    }

    fn new_connection(&mut self, role: Role, now: Time) -> u32 {
        let generation = self.next_generation;
        self.next_generation = self.next_generation.wrapping_add(1) & 0x7fff_ffff;
        let tracer = if self.share.trace {
            self.protocol.tracer()
        } else {
            None
        };
        let connection = Connection::new(generation, role, self.protocol.driver(), tracer, now);
        let index = match self.free.pop() {
            Some(index) => {
                self.connections[index as usize] = Some(connection);
                index
            }
            None => {
                self.connections.push(Some(connection));
                (self.connections.len() - 1) as u32
            }
        };
        self.connecting += 1;
        let deadline = now + self.share.load.connect_timeout;
        self.connect_deadlines
            .push_back((deadline, token(index, generation)));
        index
    }

    fn token_of(&self, index: u32) -> Token {
        let generation = self.connections[index as usize]
            .as_ref()
            .map_or(u32::MAX, |c| c.generation);
        token(index, generation)
    }

    /// Connects to the addresses that have been looked up.
    pub(super) fn take_addresses(&mut self, control: &mut impl Control) {
        while let Some((token, resolved)) = self.network.resolved() {
            self.resolved(control, token, resolved);
        }
    }

    fn resolved(&mut self, control: &mut impl Control, token: Token, resolved: io::Result<Found>) {
        let Some(index) = self.live(token) else {
            return;
        };
        let now = self.network.now();
        let until = now + self.share.load.resolve_interval;
        let is_own = self.connections[index as usize]
            .as_ref()
            .is_some_and(|c| matches!(c.role, Role::Attempt(_)));
        match resolved {
            Ok(found) => self.addresses.learn(&found, until, &mut self.recorder),
            // What was right half a minute ago most likely is (RFC 8767), but for a client
            // that has just been started.
            Err(e) if self.addresses.are_there() && !is_own => {
                tracing::warn!("host name not resolved, its old addresses are used: {e}");
                self.addresses.keep(until);
            }
            Err(e) => {
                let loss = Loss {
                    outcome: Outcome::ResolveFailed,
                    detail: format!("host name not resolved: {e}"),
                };
                return self.lost(control, index, &loss, now);
            }
        }
        self.connect(control, index, now);
    }

    /// Connects to the name's address, or begins a race to several.
    fn connect(&mut self, control: &mut impl Control, index: u32, now: Time) {
        let token = self.token_of(index);
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        connection.resolved(now);
        let Some(place) = self.addresses.only() else {
            let (index, of) = (u64::from(self.share.index), u64::from(self.share.of));
            // Numbered over all workers and processes.
            let number = match connection.role {
                Role::Lane(lane) => u64::from(lane) * of + index,
                Role::Attempt(attempt) => attempt.number,
            };
            let route = self.addresses.route(number, now);
            let (mut ground, races) = self.racing(now);
            let raced = races.begin(token, route, &mut ground);
            return self.raced(control, raced, now);
        };
        connection.place = place;
        match self.addresses.connect(place, token, &mut self.network) {
            Ok(socket) => connection.socket = Some(socket),
            Err(e) => {
                let loss = self.connect_loss(place, &e);
                self.lost(control, index, &loss, now);
            }
        }
    }

    /// What a race needs, and the races.
    fn racing(&mut self, now: Time) -> (Ground<'_, N>, &mut Races<N::Socket>) {
        let ground = Ground {
            network: &mut self.network,
            addresses: &mut self.addresses,
            recorder: &mut self.recorder,
            stage: self.stage,
            now,
        };
        (ground, &mut self.races)
    }

    /// Begins the attempts whose time has come.
    pub(super) fn race_on(&mut self, control: &mut impl Control, now: Time) {
        while self.races.due(now).is_some() {
            let (mut ground, races) = self.racing(now);
            let raced = races.expire(&mut ground);
            self.raced(control, raced, now);
        }
    }

    fn raced(&mut self, control: &mut impl Control, raced: Raced<N::Socket>, now: Time) {
        match raced {
            Raced::Running => {}
            Raced::Won {
                connection: token,
                socket,
                place,
            } => {
                let index = self.live(token);
                match index.and_then(|index| self.connections[index as usize].as_mut()) {
                    Some(connection) => {
                        connection.socket = Some(socket);
                        connection.place = place;
                    }
                    None => return self.network.close(socket),
                }
                if let Some(index) = index {
                    self.transport_is_up(control, index, now);
                }
            }
            Raced::Lost {
                connection: token,
                place,
                error,
            } => {
                if let Some(index) = self.live(token) {
                    let loss = self.connect_loss(place, &error);
                    self.lost(control, index, &loss, now);
                }
            }
        }
    }

    /// A socket is ready.
    #[inline]
    pub(super) fn serve(&mut self, control: &mut impl Control, ready: Ready) {
        let Some(index) = self.live(ready.token) else {
            return self.serve_attempt(control, ready);
        };
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        if connection.state == State::Connecting {
            if !ready.writable {
                return;
            }
            self.tcp_is_up(control, index);
            // A server that speaks first may have done so already, and sockets report
            // it once.
            let spoke = ready.readable || ready.hangup;
            if !spoke || self.live(ready.token).is_none() {
                return;
            }
        }
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        if ready.readable || ready.hangup {
            // What comes may be answered (a PING, a window), and calls follow it.
            connection.borrow_outbox(&mut self.spare_outboxes);
            let (received, now) = connection.receive(
                &mut self.network,
                &mut self.buffer,
                self.protocol.alpn(),
                ready.hangup,
                &mut self.events,
            );
            self.received(control, index, received, now);
        } else {
            let now = self.network.now();
            self.after_service(control, index, now);
        }
    }

    /// A socket that is no connection's: an attempt's of a race, or of one that is gone.
    #[cold]
    fn serve_attempt(&mut self, control: &mut impl Control, ready: Ready) {
        if !ready.writable {
            return;
        }
        let now = self.network.now();
        let (mut ground, races) = self.racing(now);
        let raced = races.ready(ready.token, &mut ground);
        self.raced(control, raced, now);
    }

    fn received(
        &mut self,
        control: &mut impl Control,
        index: u32,
        received: Result<Received, Loss>,
        now: Time,
    ) {
        let Some(connection) = self.connections[index as usize].as_ref() else {
            return;
        };
        let (role, phases) = (connection.role, connection.phases);
        self.take_events(role, phases, now);
        match received {
            Ok(Received::Drained) => {
                self.watch(index, now);
                self.after_service(control, index, now);
            }
            Ok(Received::More) => {
                self.unfinished.push(self.token_of(index));
                self.after_service(control, index, now);
            }
            Err(loss) => self.lost(control, index, &loss, now),
        }
    }

    /// Look after a connection that waits for much to come.
    #[inline]
    fn watch(&mut self, index: u32, now: Time) {
        if let Some(connection) = self.connections[index as usize].as_mut()
            && connection.needs_watch()
            && !connection.watched
        {
            connection.watched = true;
            let token = token(index, connection.generation);
            self.marks.push_back((now + MARK_TIME, token));
        }
    }

    /// A connection may have had too little time to reach its mark, or something else came: an
    /// alert, a goodbye, a record that was changed.
    pub(super) fn mark_due(&mut self, control: &mut impl Control, token: Token, now: Time) {
        let Some(index) = self.live(token) else {
            return;
        };
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        connection.watched = false;
        if !connection.mark_missed(now) {
            self.watch(index, now);
            return;
        }
        let ready = Ready {
            token,
            readable: true,
            writable: false,
            hangup: false,
        };
        self.serve(control, ready);
    }

    fn tcp_is_up(&mut self, control: &mut impl Control, index: u32) {
        let now = self.network.now();
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        let Some(socket) = connection.socket.as_mut() else {
            return;
        };
        if let Err(e) = self.network.connected(socket) {
            let place = connection.place;
            let loss = self.connect_loss(place, &e);
            return self.lost(control, index, &loss, now);
        }
        self.transport_is_up(control, index, now);
    }

    fn transport_is_up(&mut self, control: &mut impl Control, index: u32, now: Time) {
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        let session = match self.tls.as_ref().map(|tls| tls.session()) {
            None => None,
            Some(Ok(session)) => Some(session),
            Some(Err(e)) => {
                let loss = Loss {
                    outcome: Outcome::TlsFailed,
                    detail: format!("tls: {e}"),
                };
                return self.lost(control, index, &loss, now);
            }
        };
        connection.connected(session, now);
        if let (Role::Attempt(attempt), State::Handshaking) = (connection.role, connection.state)
            && connection.begin_early(now)
        {
            connection.attempt_started = true;
            self.start_call(index, attempt.number, attempt.arrival, now, attempt.stage);
        }
        self.after_service(control, index, now);
    }

    /// After a connection was served: note that it came up, start what can start on it,
    /// write, and see whether it has to go.
    #[inline]
    pub(super) fn after_service(&mut self, control: &mut impl Control, index: u32, now: Time) {
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        if connection.state == State::Greeting && connection.became_open(now) {
            self.came_up(control, index);
        }
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        match connection.role {
            Role::Lane(lane) if connection.state == State::Open => {
                let spent = connection.is_spent(now);
                if spent || connection.driver.is_draining() {
                    // Ours to end: whether it carried a call says nothing of the server.
                    connection.has_carried |= spent;
                    self.drain_lane(control, index, lane, now);
                } else {
                    let wants_queue = !connection.queued && connection.capacity() > 0;
                    if wants_queue {
                        connection.queued = true;
                        self.open.push_back(index);
                    }
                    self.top_up(lane, now);
                }
            }
            Role::Attempt(attempt) if connection.state == State::Open => {
                if connection.attempt_started {
                    if connection.in_flight == 0 {
                        self.retire(index);
                        return;
                    }
                } else if connection.driver.is_draining() {
                    let loss = Loss {
                        outcome: Outcome::Goaway,
                        detail: "the server went away before the connection's first call"
                            .to_owned(),
                    };
                    return self.lost(control, index, &loss, now);
                } else if connection.capacity() > 0 {
                    connection.attempt_started = true;
                    self.start_call(index, attempt.number, attempt.arrival, now, attempt.stage);
                }
            }
            // Clients whose calls end here go on with the connection that has taken over.
            Role::Lane(lane) if connection.state == State::Draining => self.top_up(lane, now),
            _ => {}
        }
        self.flush_later(index);
    }

    /// What is waiting is written when every ready connection has been served: a turn's
    /// writes together wake the server once, and its answers come in larger batches.
    #[inline]
    fn flush_later(&mut self, index: u32) {
        if let Some(connection) = self.connections[index as usize].as_mut()
            && !connection.dirty
        {
            connection.dirty = true;
            self.dirty.push(index);
        }
    }

    /// Write what is waiting, give the outbox back, keep the driver's timer.
    #[inline]
    fn flush(&mut self, control: &mut impl Control, index: u32, now: Time) {
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        connection.flush(&mut self.network);
        connection.dirty = false;
        if connection.driver.is_held_back() && connection.out.is_empty() {
            connection.driver.go_on(now, &mut connection.out);
            connection.flush(&mut self.network);
            if connection.driver.is_held_back() && connection.out.is_empty() {
                // The others first.
                connection.dirty = true;
                self.dirty.push(index);
            }
        }
        if connection.is_relieved() {
            self.unfinished.push(token(index, connection.generation));
        }
        let most_spare = match connection.out.capacity() {
            0..=LARGE_OUTBOX => MAX_SPARE_OUTBOXES,
            _ => FEW_SPARE_OUTBOXES,
        };
        if connection.out.is_empty()
            && connection.out.capacity() > 0
            && self.spare_outboxes.len() < most_spare
        {
            self.spare_outboxes
                .push(std::mem::take(&mut connection.out));
        } else if connection.out.is_empty() {
            connection.out = Vec::new();
        }
        if let Some(when) = connection.driver.deadline()
            && when < connection.timer
        {
            connection.timer = when;
            let token = token(index, connection.generation);
            self.driver_timers.push(Reverse((when, token)));
        }
        if connection.write_failed {
            // The peer has closed: what it sent before that says why.
            let (mut received, mut now) = (Ok(Received::More), now);
            while let Ok(Received::More) = received {
                (received, now) = connection.receive(
                    &mut self.network,
                    &mut self.buffer,
                    self.protocol.alpn(),
                    true,
                    &mut self.events,
                );
            }
            let loss = received.err().unwrap_or_else(|| Loss {
                outcome: Outcome::Reset,
                detail: "the connection was reset while writing".to_owned(),
            });
            self.received(control, index, Err(loss), now);
            return;
        }
        if self.rests {
            connection.rest();
        }
        let finished = connection.state == State::Draining && connection.in_flight == 0;
        if finished {
            self.retire(index);
        }
    }

    pub(super) fn flush_dirty(&mut self, control: &mut impl Control) {
        if self.dirty.is_empty() {
            return;
        }
        let now = self.network.now();
        let mut dirty = std::mem::take(&mut self.dirty);
        for index in dirty.drain(..) {
            let is_dirty = self.connections[index as usize]
                .as_ref()
                .is_some_and(|c| c.dirty);
            if is_dirty {
                self.flush(control, index, now);
            }
        }
        // Flushing may have started calls elsewhere; those stay for the next turn.
        dirty.append(&mut self.dirty);
        self.dirty = dirty;
    }

    /// The protocol's greeting was answered: calls may start.
    fn came_up(&mut self, control: &mut impl Control, index: u32) {
        self.connecting -= 1;
        let Some(connection) = self.connections[index as usize].as_ref() else {
            return;
        };
        if let Some(session) = &connection.tls {
            let agreement = Agreement {
                chosen: self.protocol.chosen(session.alpn()),
                ..session.agreement()
            };
            if self.handshakes.add(agreement) {
                tracing::debug!(?agreement, "tls handshake");
            }
        }
        let (phases, place, role) = (connection.phases, connection.place, connection.role);
        if let Role::Lane(lane) = role {
            self.begin_life(index, lane);
        }
        let stage = role.stage().unwrap_or(self.stage);
        self.addresses.came_up(place, stage, &mut self.recorder);
        match role {
            Role::Lane(lane) => {
                tracing::debug!(lane, ?phases, "connection up");
                self.recorder.connection(self.stage, &phases);
                self.open_connections += 1;
                control.connections(1);
                let state = &mut self.lanes[lane as usize];
                state.connection = Some(index);
                if state.down.take().is_some() {
                    self.lanes_down -= 1;
                }
                if !state.settled {
                    state.settled = true;
                    self.established.open += 1;
                }
            }
            Role::Attempt(_) => {}
        }
    }

    /// How long a connection that has come up may live, where the plan says so. The first ones of the
    /// lanes end one after another, over the time of one life, so that their successors do, too.
    fn begin_life(&mut self, index: u32, lane: u32) {
        let load = &self.share.load;
        let (lifetime, calls) = (load.connection_lifetime, load.calls_per_connection);
        if lifetime.is_none() && calls.is_none() {
            return;
        }
        let part = match self.lanes[lane as usize].settled {
            true => 1.0,
            false => f64::from(lane + 1) / self.lanes.len() as f64,
        };
        let now = self.network.now();
        let token = self.token_of(index);
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        if let Some(calls) = calls {
            connection.calls_left = ((f64::from(calls) * part) as u64).max(1);
        }
        if let Some(lifetime) = lifetime {
            connection.until = now + lifetime.mul_f64(part);
            // At rest nothing else would look at it then.
            self.driver_timers.push(Reverse((connection.until, token)));
        }
    }

    /// The lane's connection takes no more calls: it finishes its own and another takes over.
    fn drain_lane(&mut self, control: &mut impl Control, index: u32, lane: u32, now: Time) {
        let mut served = true;
        if let Some(connection) = self.connections[index as usize].as_mut() {
            connection.state = State::Draining;
            tracing::debug!(connection = connection.generation, "connection draining");
            // One with calls in flight may still carry them.
            served = connection.in_flight > 0 || self.has_served(index, now);
        }
        self.unqueue(index);
        self.lanes[lane as usize].connection = None;
        self.open_connections -= 1;
        control.connections(-1);
        let loss = Loss {
            outcome: Outcome::Goaway,
            detail: "the server went away before the connection's first call".to_owned(),
        };
        self.replace(lane, served, true, &loss, now);
    }

    /// Whether a lane's connection that is about to end was of use: it carried a call, or
    /// lasted. One that carried none is counted.
    fn has_served(&mut self, index: u32, now: Time) -> bool {
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return true;
        };
        // Those that are to rest are of use while they are there.
        let is_to_carry = matches!(connection.role, Role::Lane(_)) && !self.rests;
        let carried = std::mem::replace(&mut connection.has_carried, true);
        let lasted = connection.age(now) >= LONGEST_PAUSE;
        if is_to_carry && !carried {
            self.recorder.connection_unused(self.stage);
        }
        carried || lasted
    }

    /// A lane's connection that was up is gone: another follows, at once where this one was
    /// of use (`served`). `idle`: it had no call in flight, so no client has noticed.
    fn replace(&mut self, lane: u32, served: bool, idle: bool, loss: &Loss, now: Time) {
        let entry = &mut self.lanes[lane as usize];
        if served {
            entry.failures = 0;
        }
        if served || entry.failures == 0 {
            entry.failures += u32::from(!served);
            self.to_connect.push_back(lane);
            return self.top_up(lane, now);
        }
        self.pause(lane, loss.outcome, now);
        if idle {
            self.fail_idle_clients(lane, loss.outcome, now);
        } else {
            self.top_up(lane, now);
        }
    }

    /// The lane is down, and tried again after a pause: doubling ones, so spread that lanes
    /// don't return in step.
    fn pause(&mut self, lane: u32, outcome: Outcome, now: Time) {
        let entry = &mut self.lanes[lane as usize];
        if entry.down.replace(outcome).is_none() {
            self.lanes_down += 1;
        }
        let doublings = entry.failures.min(7);
        entry.failures += 1;
        let pause = (FIRST_PAUSE * 2u32.pow(doublings)).min(LONGEST_PAUSE);
        let mixed = (lane ^ entry.failures << 20).wrapping_mul(0x9e37_79b9);
        let spread = 0.75 + f64::from(mixed >> 16) / 131_072.0;
        self.reconnects
            .push(Reverse((now + pause.mul_f64(spread), lane)));
    }

    /// Take a connection out of the queue of those with capacity.
    fn unqueue(&mut self, index: u32) {
        if let Some(connection) = self.connections[index as usize].as_mut()
            && std::mem::take(&mut connection.queued)
        {
            self.open.retain(|queued| *queued != index);
        }
    }

    /// A connection that has done its work is closed in good order: one call's own, or one that
    /// another has replaced.
    fn retire(&mut self, index: u32) {
        self.unqueue(index);
        let Some(mut connection) = self.connections[index as usize].take() else {
            return;
        };
        if let (Role::Lane(_), false) = (connection.role, connection.has_carried) {
            self.recorder.connection_unused(self.stage);
        }
        connection.farewell(&mut self.network);
        if let Some(socket) = connection.socket.take() {
            self.part_with(socket);
        }
        self.free.push(index);
    }

    /// Closes the socket of a connection; what it carried is counted where the load asks for that.
    pub(super) fn part_with(&mut self, socket: N::Socket) {
        if self.share.load.count_bytes
            && let Some(carried) = self.network.carried(&socket)
        {
            let mut count = |count, n| self.recorder.count(self.stage, count, n);
            count(Count::LinkConnections, 1);
            count(Count::LinkBytesSent, carried.sent);
            count(Count::LinkBytesReceived, carried.received);
        }
        self.network.close(socket);
    }

    /// A connection is gone, or never came up.
    pub(super) fn lost(&mut self, control: &mut impl Control, index: u32, loss: &Loss, now: Time) {
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        let (role, phases, state) = (connection.role, connection.phases, connection.state);
        let place = connection.place;
        tracing::debug!(
            connection = connection.generation,
            ?state,
            outcome = loss.outcome.code(),
            detail = loss.detail,
            "connection lost"
        );
        let was_up = matches!(state, State::Open | State::Draining);
        if !was_up {
            let stage = role.stage().unwrap_or(self.stage);
            self.addresses
                .failed(place, loss.outcome, stage, now, &mut self.recorder);
            // Where several addresses were still being tried none of them was quick enough.
            let token = self.token_of(index);
            let (mut ground, races) = self.racing(now);
            races.time_out(token, &mut ground);
        }
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        let attempt_started = connection.attempt_started;
        let idle = connection.in_flight == 0;
        if connection.in_flight > 0 {
            connection.driver.abort(loss.outcome, now, &mut self.events);
            self.take_events(role, phases, now);
        } else if !attempt_started && let Role::Attempt(attempt) = role {
            self.attempt_failed(attempt, phases, loss, now);
        }
        self.recorder.detail(loss.outcome, &loss.detail);
        let served = was_up && self.has_served(index, now);
        self.unqueue(index);
        if let Some(mut connection) = self.connections[index as usize].take() {
            // A GOAWAY or a TLS alert that explains why we leave.
            connection.flush(&mut self.network);
            if let Some(socket) = connection.socket.take() {
                self.part_with(socket);
            }
        }
        self.free.push(index);
        if !was_up {
            self.connecting -= 1;
        }
        let Role::Lane(lane) = role else {
            return;
        };
        match state {
            // Its place has been taken already.
            State::Draining => {}
            State::Open => {
                self.lanes[lane as usize].connection = None;
                self.open_connections -= 1;
                control.connections(-1);
                self.recorder.connection_lost(self.stage);
                self.replace(lane, served, idle, loss, now);
            }
            _ => self.lane_failed(lane, loss, now),
        }
    }

    /// A lane's connection did not come up.
    fn lane_failed(&mut self, lane: u32, loss: &Loss, now: Time) {
        let entry = &mut self.lanes[lane as usize];
        if !entry.settled {
            entry.settled = true;
            let Established {
                failed, failure, ..
            } = &mut self.established;
            *failed += 1;
            failure.get_or_insert_with(|| (loss.outcome, loss.detail.clone()));
        }
        self.pause(lane, loss.outcome, now);
        self.recorder.connect_failure(self.stage, loss.outcome);
        self.fail_idle_clients(lane, loss.outcome, now);
    }

    pub(super) fn connect_timed_out(
        &mut self,
        control: &mut impl Control,
        token: Token,
        now: Time,
    ) {
        let Some(index) = self.live(token) else {
            return;
        };
        let Some(connection) = self.connections[index as usize].as_ref() else {
            return;
        };
        let waits_for_call =
            matches!(connection.role, Role::Attempt(_)) && !connection.attempt_started;
        let waiting_for = match connection.state {
            State::Open if !waits_for_call => return,
            State::Draining => return,
            state => state.waiting_for(),
        };
        let loss = Loss {
            outcome: Outcome::ConnectTimeout,
            detail: format!(
                "waited {:?} (load.connect_timeout) for {waiting_for}",
                self.share.load.connect_timeout
            ),
        };
        self.lost(control, index, &loss, now);
    }

    pub(super) fn driver_expired(&mut self, control: &mut impl Control, token: Token, now: Time) {
        let Some(index) = self.live(token) else {
            return;
        };
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        connection.timer = Time::NEVER;
        connection
            .driver
            .expire(now, &mut connection.out, &mut self.events);
        let (role, phases) = (connection.role, connection.phases);
        self.take_events(role, phases, now);
        self.after_service(control, index, now);
    }

    fn connect_loss(&self, place: u32, e: &io::Error) -> Loss {
        self.addresses.loss(place, e).into()
    }
}
