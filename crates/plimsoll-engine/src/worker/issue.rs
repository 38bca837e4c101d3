//! Which calls start, and when: the open loop follows the schedule, the closed loop its
//! clients.
//!
//! An arrival is noticed when the loop first sees that it is due; the time from due to
//! noticed is the generator's own lateness (pacing). It starts when a connection has
//! capacity; the time from due to started is the lag. The two differ when calls have to
//! wait for a connection, which is not the generator's fault.
//!
//! A deadline counts from when the call was due. One that passes while the call waits for a
//! connection or a stream fails it, and it is not sent; one that passed before the call was
//! noticed is the generator's, and the call is given up.

use std::cmp::Reverse;
use std::time::Duration;

use plimsoll_model::plan::{Arrivals as ArrivalsPlan, Reuse};
use plimsoll_model::schedule::{Arrival, Arrivals};
use plimsoll_model::{ConnectPhases, Count, Outcome, Sample, Time};

use super::calls::Call;
use super::connection::{Attempt, Early, Loss, Role};
use super::control::{Control, StopLevel};
use super::{GRACE, Phase, Worker};
use crate::driver::{CallId, Done, Driver, Protocol};
use crate::fault;
use crate::network::{Network, Token};

/// A closed-loop client whose connection failed pauses this long at least, so that a
/// dead target is not met with a busy loop.
const FAILURE_PAUSE: Duration = Duration::from_millis(10);

/// What a call has waited below this is no matter for its deadline. Nanoseconds.
const WAITED_NS: u64 = 1_000_000;

/// Arrivals that were due when no connection had capacity, in order. The schedule itself
/// is the queue: only its position is kept, however long the backlog grows.
#[derive(Clone, Debug)]
pub(super) struct Backlog {
    head: Arrival,
    second: Option<Arrival>,
    rest: Arrivals,
    length: u64,
}

impl Backlog {
    pub(super) fn len(&self) -> u64 {
        self.length
    }

    /// When the first of them was due, in a load that began at `start`.
    pub(super) fn due(&self, start: Time) -> Time {
        start.plus_nanos(self.head.at)
    }

    fn advance(&mut self) {
        self.length -= 1;
        if self.length > 0
            && let Some(next) = self.second.take().or_else(|| self.rest.next())
        {
            self.head = next;
        }
    }
}

impl<P: Protocol, N: Network> Worker<P, N> {
    pub(super) fn begin_issue(&mut self) {
        match self.share.load.arrivals {
            ArrivalsPlan::Open(_) => {
                let mut arrivals = self.share.schedule.share(self.share.index, self.share.of);
                self.next = arrivals.next();
                self.arrivals = Some(arrivals);
                let length = self.share.schedule.end();
                self.schedule_end = self.start.plus_nanos(length.unwrap_or(0));
                self.ticks_end = length.map_or(Time::NEVER, |_| self.schedule_end);
            }
            ArrivalsPlan::Closed { .. } => self.enter_stage(self.start),
        }
    }

    pub(super) fn is_closed_loop(&self) -> bool {
        self.arrivals.is_none()
    }

    /// Closed loop: which stage it is, and when that changes.
    fn enter_stage(&mut self, now: Time) {
        let ns = now.since(self.start);
        match self.share.schedule.stage_at(ns) {
            Some(stage) => {
                self.stage = stage;
                let bounds = self.share.schedule.stage_bounds();
                self.stage_end = bounds[stage as usize]
                    .end
                    .map_or(Time::NEVER, |end| self.start.plus_nanos(end));
            }
            None => {
                self.stage_end = Time::NEVER;
                self.stop_issuing(now);
            }
        }
    }

    /// Start what is due.
    #[inline]
    pub(super) fn issue_due(&mut self, now: Time) {
        if self.phase == Phase::Connecting || now < self.start {
            return;
        }
        if self.is_closed_loop() {
            self.issue_closed(now);
        } else {
            self.issue_open(now);
        }
    }

    fn issue_open(&mut self, now: Time) {
        self.start_backlog(now);
        let leaving = self.last_tick(now);
        while let Some(arrival) = self.next {
            let due = self.start.plus_nanos(arrival.at);
            if due > leaving || self.phase != Phase::Loading {
                break;
            }
            self.stage = arrival.stage;
            if let Some(meter) = &self.turn_meter
                && let Some(turn) = meter.began(arrival.number)
            {
                self.recorder.turn_began(turn);
            }
            self.due(arrival.stage);
            self.recorder.pacing(arrival.stage, now.since(due));
            self.next = self.arrivals.as_mut().and_then(Iterator::next);
            if now.since(due) >= self.deadline_ns {
                self.recorder.not_started(arrival.stage, 1);
                continue;
            }
            if self.backlog.is_some() || !self.try_start(arrival, now) {
                self.wait(arrival);
            }
        }
    }

    /// What was due by then leaves at `now`: where calls leave together, the last tick that has passed.
    fn last_tick(&self, now: Time) -> Time {
        match self.tick_ns {
            0 => now,
            // The last calls wait for no tick that would come after the load's end.
            _ if now >= self.ticks_end => now,
            tick => Time(now.0 - now.since(self.start) % tick),
        }
    }

    /// When the call that is due at `at`, from the load's start, leaves.
    pub(super) fn leaves_at(&self, at: u64) -> Time {
        let due = self.start.plus_nanos(at);
        match self.tick_ns {
            0 => due,
            tick => self
                .start
                .plus_nanos(at.div_ceil(tick).saturating_mul(tick))
                .min(self.ticks_end.max(due)),
        }
    }

    /// The call cannot be sent yet.
    #[cold]
    fn wait(&mut self, arrival: Arrival) {
        match self.open_connections {
            0 => self.recorder.waited_for_connection(arrival.stage),
            _ => self.recorder.waited_for_stream(arrival.stage),
        }
        match &mut self.backlog {
            Some(backlog) => backlog.length += 1,
            None => {
                self.backlog = self.arrivals.clone().map(|rest| Backlog {
                    head: arrival,
                    second: self.next,
                    rest,
                    length: 1,
                });
            }
        }
    }

    /// Deadlines of calls that wait for a stream, or for a connection that others share: these
    /// calls have failed, and are not sent.
    pub(super) fn expire_waiting(&mut self, deadline: Duration, now: Time) {
        // Once the run is being ended, what waits is given up.
        if self.interrupted {
            return;
        }
        while let Some(backlog) = self.backlog.as_mut() {
            let due = backlog.due(self.start);
            if due + deadline > now {
                break;
            }
            let head = backlog.head;
            backlog.advance();
            if backlog.length == 0 {
                self.backlog = None;
            }
            self.expired_unsent(head.number, due, now, head.stage);
        }
        while let Some(Reverse((when, lane))) = self.waits.peek().copied() {
            if when > now {
                break;
            }
            self.waits.pop();
            self.lanes[lane as usize].watched = false;
            self.expire_clients(lane, deadline, now);
        }
    }

    /// Closed loop: the lane's clients whose calls have waited until their deadline.
    fn expire_clients(&mut self, lane: u32, deadline: Duration, now: Time) {
        while let Some(&since) = self.lanes[lane as usize].waiting.front()
            && since + deadline <= now
            && self.take_call()
        {
            let state = &mut self.lanes[lane as usize];
            state.waiting.pop_front();
            state.idle -= 1;
            let number = self.next_number();
            self.due(self.stage);
            self.expired_unsent(number, since, now, self.stage);
            self.client_free(Role::Lane(lane), true, now);
        }
        self.note_waiting(lane, now);
    }

    fn expired_unsent(&mut self, number: u64, due: Time, now: Time, stage: u8) {
        self.recorder.expired_unsent(stage);
        self.record_unsent(number, due, now, stage, Outcome::DeadlineExceeded);
    }

    /// Closed loop: the lane's connection has no room for its idle clients.
    #[cold]
    pub(super) fn note_waiting(&mut self, lane: u32, now: Time) {
        if self.phase != Phase::Loading || !self.is_closed_loop() || self.calls_left == Some(0) {
            return;
        }
        let state = &mut self.lanes[lane as usize];
        state.waiting.resize(state.idle as usize, now);
        if let (Some(deadline), Some(&since), false) = (
            self.share.load.deadline,
            state.waiting.front(),
            state.watched,
        ) {
            state.watched = true;
            self.waits.push(Reverse((since + deadline, lane)));
        }
    }

    fn start_backlog(&mut self, now: Time) {
        if self.interrupted {
            return;
        }
        let Some(mut backlog) = self.backlog.take() else {
            return;
        };
        while backlog.length > 0 && self.try_start(backlog.head, now) {
            backlog.advance();
        }
        if backlog.length > 0 {
            self.backlog = Some(backlog);
        }
    }

    /// Start a call on the next connection that has room; `false` when it has to wait.
    #[inline]
    fn try_start(&mut self, arrival: Arrival, now: Time) -> bool {
        let due = self.start.plus_nanos(arrival.at);
        if self.share.load.reuse == Reuse::Never {
            self.begin_attempt(Attempt {
                number: arrival.number,
                arrival: due,
                begun: now,
                stage: arrival.stage,
            });
            return true;
        }
        while let Some(index) = self.open.pop_front() {
            let Some(connection) = self.connections[index as usize].as_mut() else {
                continue;
            };
            let capacity = connection.capacity();
            if capacity > 1 {
                self.open.push_back(index);
            } else {
                connection.queued = false;
            }
            if capacity > 0 {
                self.start_call(index, arrival.number, due, now, arrival.stage);
                return true;
            }
        }
        // Every connection is down: a real client's call would fail now, so this one does.
        if self.lanes_down == self.lanes.len()
            && let Some(outcome) = self.lanes.first().and_then(|lane| lane.down)
        {
            self.record_unsent(arrival.number, due, now, arrival.stage, outcome);
            return true;
        }
        false
    }

    /// Hand a call to a connection's driver.
    #[inline]
    pub(super) fn start_call(&mut self, index: u32, number: u64, due: Time, now: Time, stage: u8) {
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        let id = self.calls.insert(Call::new(number, due, now, index, stage));
        connection.borrow_outbox(&mut self.spare_outboxes);
        let (driver, out) = (&mut connection.driver, &mut connection.out);
        if now.since(due) > WAITED_NS {
            driver.start_waited(id, number, now.duration_since(due), now, out);
        } else {
            driver.start(id, number, now, out);
        }
        connection.in_flight += 1;
        connection.calls_left -= 1;
        if !connection.dirty {
            connection.dirty = true;
            self.dirty.push(index);
        }
    }

    fn issue_closed(&mut self, now: Time) {
        if now >= self.stage_end {
            self.enter_stage(now);
        }
        if !self.closed_began {
            self.closed_began = true;
            self.top_up_all(now);
        }
        while let Some(Reverse((when, lane))) = self.thinking.peek().copied() {
            if when > now {
                break;
            }
            self.thinking.pop();
            match self.lanes.get_mut(lane as usize) {
                Some(idle) => {
                    idle.idle += 1;
                    self.top_up(lane, now);
                }
                None => self.idle_clients += 1,
            }
        }
        if self.share.load.reuse == Reuse::Never {
            // A failure at once gives the client back: only those idle now start in this turn.
            for _ in 0..self.idle_clients {
                if !self.take_call() {
                    break;
                }
                self.idle_clients -= 1;
                let number = self.next_number();
                self.due(self.stage);
                self.begin_attempt(Attempt {
                    number,
                    arrival: now,
                    begun: now,
                    stage: self.stage,
                });
            }
        }
    }

    /// Closed loop with kept connections: start the lane's idle clients' calls.
    #[inline]
    pub(super) fn top_up(&mut self, lane: u32, now: Time) {
        if self.phase != Phase::Loading || now < self.start || !self.is_closed_loop() {
            return;
        }
        while self.lanes[lane as usize].idle > 0 {
            let connection = self.lanes[lane as usize].connection;
            let room = connection.filter(|index| {
                self.connections[*index as usize]
                    .as_ref()
                    .is_some_and(|c| c.capacity() > 0)
            });
            let Some(index) = room else {
                return self.note_waiting(lane, now);
            };
            if !self.take_call() {
                return;
            }
            let state = &mut self.lanes[lane as usize];
            state.idle -= 1;
            let due = state.waiting.pop_front().unwrap_or(now);
            let number = self.next_number();
            self.due(self.stage);
            self.start_call(index, number, due, now, self.stage);
        }
    }

    fn top_up_all(&mut self, now: Time) {
        for lane in 0..self.lanes.len() {
            self.top_up(lane as u32, now);
        }
    }

    /// Take one from the calls that are left, where their number is limited.
    #[inline]
    fn take_call(&mut self) -> bool {
        if self.phase != Phase::Loading {
            return false;
        }
        let warmup = self.share.load.stages[self.stage as usize].warmup;
        match &mut self.calls_left {
            Some(0) if !warmup => false,
            Some(left) if !warmup => {
                *left -= 1;
                true
            }
            _ => true,
        }
    }

    /// A call's time has come.
    #[inline]
    fn due(&mut self, stage: u8) {
        self.due += 1;
        self.recorder.due(stage, 1);
    }

    #[inline]
    fn next_number(&mut self) -> u64 {
        let number = self.issued * u64::from(self.share.of) + u64::from(self.share.index);
        self.issued += 1;
        number
    }

    /// Closed loop: when idle clients can start calls without anything else happening.
    pub(super) fn clients_wake(&self) -> Time {
        if self.phase != Phase::Loading || !self.is_closed_loop() {
            Time::NEVER
        } else if !self.closed_began {
            self.start
        } else if self.idle_clients > 0 && self.calls_left != Some(0) {
            Time::ZERO
        } else {
            Time::NEVER
        }
    }

    /// A client's call has ended: it thinks, or starts the next.
    fn client_free(&mut self, role: Role, failed: bool, now: Time) {
        let ArrivalsPlan::Closed { think, .. } = self.share.load.arrivals else {
            return;
        };
        let pause = if failed {
            think.max(FAILURE_PAUSE)
        } else {
            think
        };
        match role {
            Role::Lane(lane) if think.is_zero() => self.lanes[lane as usize].idle += 1,
            Role::Lane(lane) => self.thinking.push(Reverse((now + think, lane))),
            Role::Attempt(_) if pause.is_zero() => self.idle_clients += 1,
            Role::Attempt(_) => self.thinking.push(Reverse((now + pause, u32::MAX))),
        }
    }

    #[inline]
    pub(super) fn call_ended(&mut self, done: &Done, role: Role, phases: ConnectPhases, now: Time) {
        let call = self.calls.remove(done.call);
        // Between two tables: the worst place there is.
        fault::point("call");
        // What comes before our own timer is looked at may still be late: an answer, or a
        // server's that counts the deadline too and cancels. The deadline was the cause.
        let overdue = matches!(done.outcome, Outcome::Ok | Outcome::Cancelled)
            && now.since(call.arrival) >= self.deadline_ns;
        let outcome = if overdue {
            if done.outcome.is_ok() {
                self.recorder.late(call.stage);
            }
            Outcome::DeadlineExceeded
        } else {
            done.outcome
        };
        if let Some(connection) = self.connections[call.connection as usize].as_mut() {
            connection.in_flight -= 1;
            connection.has_carried |= outcome.is_ok() | (done.first_byte != Time::NEVER);
            (self.recorder).call_at(connection.place, call.stage, outcome);
            match connection.early {
                Early::No | Early::Sent(_) => {}
                Early::Accepted => self.recorder.count(call.stage, Count::EarlyAccepted, 1),
                Early::Rejected => self.recorder.count(call.stage, Count::EarlyRejected, 1),
            }
        }
        let sample = Sample {
            number: call.number,
            arrival: call.arrival,
            sent: call.sent,
            first_byte: if done.first_byte == Time::NEVER {
                now
            } else {
                done.first_byte
            },
            done: now,
            stage: call.stage,
            outcome,
            bytes_sent: done.bytes_sent,
            bytes_received: done.bytes_received,
        };
        let measured = self.tokens.ended(done.call, &call, now);
        let measured = measured.filter(|_| outcome.is_ok());
        if let Some(measured) = &measured {
            measured.add_to(call.stage, &mut self.recorder);
        }
        match role {
            Role::Lane(_) => match measured {
                None => self.recorder.call(&sample),
                Some(measured) => {
                    let (counts, times) = (measured.counts(), measured.times());
                    self.recorder.measured_call(&sample, counts, times);
                }
            },
            Role::Attempt(_) => {
                self.attempts -= 1;
                self.recorder.cold_call(&sample, &phases);
                self.note_first(call.stage, phases);
            }
        }
        self.client_free(role, !outcome.is_ok(), now);
    }

    /// A worker has no ticket before its first connection.
    fn note_first(&mut self, stage: u8, phases: ConnectPhases) {
        if self.ticketless && phases.ready_ns > 0 {
            self.ticketless = false;
            if !phases.resumed {
                self.recorder.first_connection(stage);
            }
        }
    }

    /// The call's deadline has passed: it ends here, and is cancelled on the wire.
    pub(super) fn deadline_passed(&mut self, control: &mut impl Control, id: CallId, now: Time) {
        let Some((_, call)) = self.calls.oldest() else {
            return;
        };
        let index = call.connection;
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        let exchanged = connection.driver.exchanged(id);
        self.recorder
            .messages_sent(call.stage, u64::from(exchanged.messages_sent));
        connection.driver.cancel(id, now, &mut connection.out);
        if !connection.dirty {
            connection.dirty = true;
            self.dirty.push(index);
        }
        let (role, phases) = (connection.role, connection.phases);
        let done = Done {
            call: id,
            outcome: Outcome::DeadlineExceeded,
            first_byte: Time::NEVER,
            bytes_sent: exchanged.bytes_sent,
            bytes_received: exchanged.bytes_received,
        };
        self.call_ended(&done, role, phases, now);
        self.after_service(control, index, now);
    }

    /// A call that failed before it could be sent.
    pub(super) fn record_unsent(
        &mut self,
        number: u64,
        due: Time,
        now: Time,
        stage: u8,
        outcome: Outcome,
    ) {
        self.recorder.call(&Sample {
            number,
            arrival: due,
            sent: now,
            first_byte: now,
            done: now,
            stage,
            outcome,
            bytes_sent: 0,
            bytes_received: 0,
        });
    }

    /// Closed loop: the lane's connection could not be made, so its idle clients' calls fail.
    pub(super) fn fail_idle_clients(&mut self, lane: u32, outcome: Outcome, now: Time) {
        if self.phase != Phase::Loading || now < self.start || !self.is_closed_loop() {
            return;
        }
        for _ in 0..self.lanes[lane as usize].idle {
            if !self.take_call() {
                break;
            }
            let waiting = &mut self.lanes[lane as usize].waiting;
            let due = waiting.pop_front().unwrap_or(now);
            let number = self.next_number();
            self.due(self.stage);
            self.record_unsent(number, due, now, self.stage, outcome);
        }
        self.note_waiting(lane, now);
    }

    /// The deadline has passed of a call that waits for a connection of its own.
    pub(super) fn attempt_expired(&mut self, control: &mut impl Control, token: Token, now: Time) {
        let Some(index) = self.live(token) else {
            return;
        };
        let waits = self.connections[index as usize].as_ref().and_then(|c| {
            let Role::Attempt(attempt) = c.role else {
                return None;
            };
            (!c.attempt_started).then_some((attempt.stage, c.state))
        });
        let Some((stage, state)) = waits else {
            return;
        };
        self.recorder.expired_unsent(stage);
        let loss = Loss {
            outcome: Outcome::DeadlineExceeded,
            detail: format!(
                "the call's deadline passed while it waited for {}",
                state.waiting_for()
            ),
        };
        self.lost(control, index, &loss, now);
    }

    /// A connection made for one call was lost before the call could start.
    pub(super) fn attempt_failed(
        &mut self,
        attempt: Attempt,
        phases: ConnectPhases,
        loss: &Loss,
        now: Time,
    ) {
        self.attempts -= 1;
        let sample = Sample {
            number: attempt.number,
            arrival: attempt.arrival,
            // It was never sent; what its connection took is in the phases and no lag.
            sent: attempt.begun.plus_nanos(phases.total_ns()),
            first_byte: now,
            done: now,
            stage: attempt.stage,
            outcome: loss.outcome,
            bytes_sent: 0,
            bytes_received: 0,
        };
        self.recorder.cold_call(&sample, &phases);
        self.client_free(Role::Attempt(attempt), true, now);
    }

    fn stop_issuing(&mut self, now: Time) {
        if self.phase == Phase::Loading {
            self.phase = Phase::Draining;
            self.stopped_at = now;
        }
    }

    /// When to give up on what is in flight.
    pub(super) fn drain_end(&self) -> Time {
        match self.phase {
            Phase::Draining => self.stopped_at + self.share.load.drain,
            _ => Time::NEVER,
        }
    }

    /// Is it over?
    pub(super) fn progress_phase(&mut self, control: &mut impl Control, now: Time) {
        let level = control.stop_level();
        self.interrupted = level != StopLevel::Run;
        match self.phase {
            Phase::Connecting | Phase::Ended => {}
            Phase::Loading => {
                let exhausted = if self.is_closed_loop() {
                    self.calls_left == Some(0)
                        && self
                            .share
                            .load
                            .stages
                            .last()
                            .is_some_and(|last| !last.warmup)
                        && !self.share.load.stages[self.stage as usize].warmup
                } else {
                    self.next.is_none() && now >= self.schedule_end
                };
                if exhausted || level != StopLevel::Run {
                    self.stop_issuing(now);
                }
            }
            Phase::Draining => {
                let waiting = self.backlog.is_some() && !self.interrupted;
                let idle = self.calls.len() == 0 && self.attempts == 0 && !waiting;
                let grace_over = self.interrupted && now >= self.stopped_at + GRACE;
                if idle || now >= self.drain_end() || grace_over || level == StopLevel::Now {
                    self.phase = Phase::Ended;
                }
            }
        }
        if self.phase == Phase::Draining && level == StopLevel::Now {
            self.phase = Phase::Ended;
        }
    }

    /// The run is over: everything that has not ended is counted, and connections are closed in good order.
    pub(super) fn end_everything(&mut self, control: &mut impl Control, now: Time) {
        let outcome = match control.stop_level() {
            StopLevel::Run => Outcome::CutOff,
            _ => Outcome::Interrupted,
        };
        // Reported before the first one is closed: an observer of what they hold must see all.
        control.connections(-i64::from(self.open_connections));
        if let Some(mut backlog) = self.backlog.take() {
            // Since an interrupt nothing that waits is started.
            let given_up = match self.interrupted {
                true => now.min(self.stopped_at),
                false => now,
            };
            while backlog.length > 0 {
                let due = backlog.due(self.start);
                self.recorder
                    .cut_off(backlog.head.stage, given_up.since(due));
                backlog.advance();
            }
        }
        self.races.close(&mut self.network);
        for index in 0..self.connections.len() {
            let Some(connection) = self.connections[index].as_mut() else {
                continue;
            };
            let (role, phases) = (connection.role, connection.phases);
            if connection.in_flight > 0 {
                connection.driver.abort(outcome, now, &mut self.events);
                self.take_events(role, phases, now);
            } else if let Role::Attempt(attempt) = role
                && !connection.attempt_started
            {
                let loss = Loss {
                    outcome,
                    detail: String::new(),
                };
                self.attempt_failed(attempt, phases, &loss, now);
            }
            if let Some(mut connection) = self.connections[index].take() {
                connection.farewell(&mut self.network);
                if let Some(socket) = connection.socket.take() {
                    self.part_with(socket);
                }
            }
        }
    }
}
