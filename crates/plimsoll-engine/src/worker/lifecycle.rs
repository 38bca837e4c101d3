//! Connections: made, served, lost and replaced.
//!
//! A lane is one of the plan's connections; whichever connection serves it can be lost
//! or drained and is then replaced, with growing pauses while the target refuses, or takes
//! connections and ends them before they have carried a call.

use std::cmp::Reverse;
use std::time::Duration;

use plimsoll_model::{Outcome, Time};

use super::Worker;
use super::connection::{Attempt, Driven, Reading, Received, Role, Until};
use crate::driver::{Driver, Protocol};
use crate::event_loop::client::Steps;
use crate::event_loop::connection::{Loss, State};
use crate::event_loop::{Control, Established};
use crate::network::{Lookup, Network, Ready, Token};
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

impl<P: Protocol, N: Network> Worker<P, N> {
    /// A connection for one call. Failures at once are handled in the same turn.
    pub(super) fn begin_attempt(&mut self, attempt: Attempt) {
        self.client.attempts += 1;
        let now = attempt.begun;
        let index = self.new_driver(Role::Attempt(attempt), now);
        if let Some(deadline) = self.share.load.deadline {
            let token = self.token_of(index);
            self.client
                .attempt_deadlines
                .push_back((attempt.arrival + deadline, token));
        }
        // The host is looked up for every attempt: that is part of what a new client pays.
        self.network.resolve(0, self.token_of(index), Lookup::Own);
    }

    pub(super) fn new_driver(&mut self, role: Role, now: Time) -> u32 {
        let driver = self.client.protocol.driver();
        let index = self.new_connection(Driven::new(role, driver), 0, now);
        if self.share.trace
            && let Some(connection) = self.connections[index as usize].as_mut()
        {
            connection.tracer = self.client.protocol.tracer();
        }
        index
    }

    /// A connection's socket is ready.
    #[inline]
    pub(super) fn serve_connection(
        &mut self,
        control: &mut impl Control,
        index: u32,
        ready: Ready,
    ) {
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        if ready.readable || ready.hangup {
            // What comes may be answered (a PING, a window), and calls follow it.
            connection.borrow_outbox(&mut self.client.spare_outboxes);
            let mut reading = Reading {
                buffer: &mut self.buffer,
                alpn: self.client.protocol.alpn(),
                until: Until::of(ready),
                events: &mut self.client.events,
            };
            let (received, now) = connection.receive(&mut self.network, &mut reading);
            self.received(control, index, received, now);
        } else {
            let now = self.network.now();
            self.after_service(control, index, now);
        }
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
        let (role, phases) = (connection.own.role, connection.phases);
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
            && !connection.own.watched
        {
            connection.own.watched = true;
            let token = connection.token(index);
            self.client.marks.push_back((now + MARK_TIME, token));
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
        connection.own.watched = false;
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
        self.serve_connection(control, index, ready);
    }

    /// A connection's TCP is up.
    pub(super) fn greet(&mut self, control: &mut impl Control, index: u32, now: Time) {
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        if connection.state != State::Handshaking {
            connection.greet(now);
        }
        if let (Role::Attempt(attempt), State::Handshaking) =
            (connection.own.role, connection.state)
            && connection.begin_early(now)
        {
            connection.own.attempt_started = true;
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
            self.is_open(control, index);
        }
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        match connection.own.role {
            Role::Lane(lane) if connection.state == State::Open => {
                let spent = connection.is_spent(now);
                if spent || connection.own.driver.is_draining() {
                    // Ours to end: whether it carried a call says nothing of the server.
                    connection.own.has_carried |= spent;
                    self.drain_lane(control, index, lane, now);
                } else {
                    let wants_queue = !connection.own.queued && connection.capacity() > 0;
                    if wants_queue {
                        connection.own.queued = true;
                        self.client.open.push_back(index);
                    }
                    self.top_up(lane, now);
                }
            }
            Role::Attempt(attempt) if connection.state == State::Open => {
                if connection.own.attempt_started {
                    if connection.own.in_flight == 0 {
                        self.retire(index);
                        return;
                    }
                } else if connection.own.driver.is_draining() {
                    let loss = Loss {
                        outcome: Outcome::Goaway,
                        detail: "the server went away before the connection's first call"
                            .to_owned(),
                    };
                    return self.lost(control, index, &loss, now);
                } else if connection.capacity() > 0 {
                    connection.own.attempt_started = true;
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
            && !connection.own.dirty
        {
            connection.own.dirty = true;
            self.client.dirty.push(index);
        }
    }

    /// Write what is waiting, give the outbox back, keep the driver's timer.
    #[inline]
    fn flush_connection(&mut self, control: &mut impl Control, index: u32, now: Time) {
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        connection.flush(&mut self.network);
        connection.own.dirty = false;
        if connection.own.driver.is_held_back() && connection.out.is_empty() {
            connection.own.driver.go_on(now, &mut connection.out);
            connection.flush(&mut self.network);
            if connection.own.driver.is_held_back() && connection.out.is_empty() {
                // The others first.
                connection.own.dirty = true;
                self.client.dirty.push(index);
            }
        }
        if connection.is_relieved() {
            self.unfinished.push(connection.token(index));
        }
        let most_spare = match connection.out.capacity() {
            0..=LARGE_OUTBOX => MAX_SPARE_OUTBOXES,
            _ => FEW_SPARE_OUTBOXES,
        };
        if connection.out.is_empty()
            && connection.out.capacity() > 0
            && self.client.spare_outboxes.len() < most_spare
        {
            self.client
                .spare_outboxes
                .push(std::mem::take(&mut connection.out));
        } else if connection.out.is_empty() {
            connection.out = Vec::new();
        }
        if let Some(when) = connection.own.driver.deadline()
            && when < connection.own.timer
        {
            connection.own.timer = when;
            let token = connection.token(index);
            self.client.driver_timers.push(Reverse((when, token)));
        }
        if connection.write_failed {
            // The peer has closed: what it sent before that says why.
            let mut reading = Reading {
                buffer: &mut self.buffer,
                alpn: self.client.protocol.alpn(),
                until: Until::End,
                events: &mut self.client.events,
            };
            let (mut received, mut now) = (Ok(Received::More), now);
            while let Ok(Received::More) = received {
                (received, now) = connection.receive(&mut self.network, &mut reading);
            }
            let loss = received.err().unwrap_or_else(|| Loss {
                outcome: Outcome::Reset,
                detail: "the connection was reset while writing".to_owned(),
            });
            self.received(control, index, Err(loss), now);
            return;
        }
        if self.client.rests {
            connection.rest();
        }
        let finished = connection.state == State::Draining && connection.own.in_flight == 0;
        if finished {
            self.retire(index);
        }
    }

    pub(super) fn flush_dirty(&mut self, control: &mut impl Control) {
        if self.client.dirty.is_empty() {
            return;
        }
        let now = self.network.now();
        let mut dirty = std::mem::take(&mut self.client.dirty);
        for index in dirty.drain(..) {
            let is_dirty = self.connections[index as usize]
                .as_ref()
                .is_some_and(|c| c.own.dirty);
            if is_dirty {
                self.flush_connection(control, index, now);
            }
        }
        // Flushing may have started calls elsewhere; those stay for the next turn.
        dirty.append(&mut self.client.dirty);
        self.client.dirty = dirty;
    }

    /// The protocol's greeting was answered: calls may start.
    fn is_open(&mut self, control: &mut impl Control, index: u32) {
        let Some(connection) = self.connections[index as usize].as_ref() else {
            return;
        };
        let agreement = connection.tls.as_ref().map(|session| Agreement {
            chosen: self.client.protocol.chosen(session.alpn()),
            ..session.agreement()
        });
        let (phases, role) = (connection.phases, connection.own.role);
        self.came_up(index, agreement, role.stage().unwrap_or(self.stage));
        let Role::Lane(lane) = role else {
            return;
        };
        self.begin_life(index, lane);
        tracing::debug!(lane, ?phases, "connection up");
        self.recorder.connection(self.stage, &phases);
        self.open_connections += 1;
        control.connections(1);
        let state = &mut self.client.lanes[lane as usize];
        state.connection = Some(index);
        if state.down.take().is_some() {
            self.client.lanes_down -= 1;
        }
        if !state.settled {
            state.settled = true;
            self.client.established.open += 1;
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
        let part = match self.client.lanes[lane as usize].settled {
            true => 1.0,
            false => f64::from(lane + 1) / self.client.lanes.len() as f64,
        };
        let now = self.network.now();
        let token = self.token_of(index);
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        if let Some(calls) = calls {
            connection.own.calls_left = ((f64::from(calls) * part) as u64).max(1);
        }
        if let Some(lifetime) = lifetime {
            connection.own.until = now + lifetime.mul_f64(part);
            // At rest nothing else would look at it then.
            self.client
                .driver_timers
                .push(Reverse((connection.own.until, token)));
        }
    }

    /// The lane's connection takes no more calls: it finishes its own and another takes over.
    fn drain_lane(&mut self, control: &mut impl Control, index: u32, lane: u32, now: Time) {
        let mut served = true;
        if let Some(connection) = self.connections[index as usize].as_mut() {
            connection.state = State::Draining;
            tracing::debug!(connection = connection.generation, "connection draining");
            // One with calls in flight may still carry them.
            served = connection.own.in_flight > 0 || self.has_served(index, now);
        }
        self.unqueue(index);
        self.client.lanes[lane as usize].connection = None;
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
        let is_to_carry = matches!(connection.own.role, Role::Lane(_)) && !self.client.rests;
        let carried = std::mem::replace(&mut connection.own.has_carried, true);
        let lasted = connection.age(now) >= LONGEST_PAUSE;
        if is_to_carry && !carried {
            self.recorder.connection_unused(self.stage);
        }
        carried || lasted
    }

    /// A lane's connection that was up is gone: another follows, at once where this one was
    /// of use (`served`). `idle`: it had no call in flight, so no client has noticed.
    fn replace(&mut self, lane: u32, served: bool, idle: bool, loss: &Loss, now: Time) {
        let entry = &mut self.client.lanes[lane as usize];
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
        let entry = &mut self.client.lanes[lane as usize];
        if entry.down.replace(outcome).is_none() {
            self.client.lanes_down += 1;
        }
        let doublings = entry.failures.min(7);
        entry.failures += 1;
        let pause = (FIRST_PAUSE * 2u32.pow(doublings)).min(LONGEST_PAUSE);
        let mixed = (lane ^ entry.failures << 20).wrapping_mul(0x9e37_79b9);
        let spread = 0.75 + f64::from(mixed >> 16) / 131_072.0;
        self.client
            .reconnects
            .push(Reverse((now + pause.mul_f64(spread), lane)));
    }

    /// Take a connection out of the queue of those with capacity.
    fn unqueue(&mut self, index: u32) {
        if let Some(connection) = self.connections[index as usize].as_mut()
            && std::mem::take(&mut connection.own.queued)
        {
            self.client.open.retain(|queued| *queued != index);
        }
    }

    /// A connection that has done its work is closed in good order: one call's own, or one that
    /// another has replaced.
    fn retire(&mut self, index: u32) {
        self.unqueue(index);
        let Some(mut connection) = self.remove(index) else {
            return;
        };
        if let (Role::Lane(_), false) = (connection.own.role, connection.own.has_carried) {
            self.recorder.connection_unused(self.stage);
        }
        connection.say_goodbye(&mut self.network);
        self.part_with(connection.socket);
    }

    /// A connection is gone, or never came up.
    pub(super) fn lose(&mut self, control: &mut impl Control, index: u32, loss: &Loss, now: Time) {
        let Some(connection) = self.connections[index as usize].as_ref() else {
            return;
        };
        let (role, phases, state) = (connection.own.role, connection.phases, connection.state);
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
            self.never_came_up(index, loss.outcome, stage, now);
            self.connecting -= 1;
        }
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        let attempt_started = connection.own.attempt_started;
        let idle = connection.own.in_flight == 0;
        if connection.own.in_flight > 0 {
            connection
                .own
                .driver
                .abort(loss.outcome, now, &mut self.client.events);
            self.take_events(role, phases, now);
        } else if !attempt_started && let Role::Attempt(attempt) = role {
            self.attempt_failed(attempt, phases, loss, now);
        }
        self.recorder.detail(loss.outcome, &loss.detail);
        let served = was_up && self.has_served(index, now);
        self.unqueue(index);
        if let Some(mut connection) = self.remove(index) {
            // A GOAWAY or a TLS alert that explains why we leave.
            connection.flush(&mut self.network);
            self.part_with(connection.socket);
        }
        let Role::Lane(lane) = role else {
            return;
        };
        match state {
            // Its place has been taken already.
            State::Draining => {}
            State::Open => {
                self.client.lanes[lane as usize].connection = None;
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
        let entry = &mut self.client.lanes[lane as usize];
        if !entry.settled {
            entry.settled = true;
            let Established {
                failed, failure, ..
            } = &mut self.client.established;
            *failed += 1;
            failure.get_or_insert_with(|| (loss.outcome, loss.detail.clone()));
        }
        self.pause(lane, loss.outcome, now);
        self.recorder.connect_failure(self.stage, loss.outcome);
        self.fail_idle_clients(lane, loss.outcome, now);
    }

    pub(super) fn driver_expired(&mut self, control: &mut impl Control, token: Token, now: Time) {
        let Some(index) = self.live(token) else {
            return;
        };
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        connection.own.timer = Time::NEVER;
        connection
            .own
            .driver
            .expire(now, &mut connection.out, &mut self.client.events);
        let (role, phases) = (connection.own.role, connection.phases);
        self.take_events(role, phases, now);
        self.after_service(control, index, now);
    }

    /// The run is over: what has not ended on a connection is counted, and it is closed in good order.
    pub(super) fn end_connection(&mut self, index: u32, outcome: Outcome, now: Time) {
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        let (role, phases) = (connection.own.role, connection.phases);
        if connection.own.in_flight > 0 {
            let driver = &mut connection.own.driver;
            driver.abort(outcome, now, &mut self.client.events);
            self.take_events(role, phases, now);
        } else if let Role::Attempt(attempt) = role
            && !connection.own.attempt_started
        {
            let loss = Loss {
                outcome,
                detail: String::new(),
            };
            self.attempt_failed(attempt, phases, &loss, now);
        }
        if let Some(mut connection) = self.remove(index) {
            connection.say_goodbye(&mut self.network);
            self.part_with(connection.socket);
        }
    }
}
