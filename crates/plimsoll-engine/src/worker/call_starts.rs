//! Decides where calls start: on a connection with capacity, or on a new connection for a single call.
//!
//! A deadline counts from when the call was due. If it passes while the call is waiting for a connection or a stream,
//! the call fails without being sent. If it had already passed when the call was noticed, the generator caused the
//! delay and the call is counted as not started.

use std::time::Duration;

use plimsoll_model::plan::{ArrivalModel as ArrivalsPlan, ConnectionReuse};
use plimsoll_model::records::recorder::RequestContext;
use plimsoll_model::schedule::Arrival;
use plimsoll_model::{CallSample, ConnectPhases, Count, Outcome, Time};

use super::Worker;
use super::call_table::{InFlightCall, NO_CONNECTION};
use super::connection::{ConnectionRole, PendingCall};
use crate::driver::{CallId, CompletedCall, Driver, Protocol};
use crate::event_loop::WorkerControl;
use crate::event_loop::client::LoopHandler;
use crate::event_loop::connection::EarlyDataState;
use crate::event_loop::due_calls::{CallSource, LoadPhase};
use crate::fault;
use crate::transport::connection_loss::ConnectionLoss;
use crate::transport::network::{Network, SocketToken};

/// Minimum pause of a closed-loop client whose connection failed, so that an unreachable target does not cause a busy
/// loop.
const FAILURE_PAUSE: Duration = Duration::from_millis(10);

/// Number of connections up to which all of them fit into the processor's cache, so that prefetching gains nothing.
const MAX_CONNECTIONS_IN_CPU_CACHE: usize = 256;

/// Minimum wait that reduces the timeout that is sent with a call.
pub(crate) const MIN_TIMEOUT_REDUCTION: Duration = Duration::from_nanos(MIN_TIMEOUT_REDUCTION_NS);
/// [`MIN_TIMEOUT_REDUCTION`] in nanoseconds.
const MIN_TIMEOUT_REDUCTION_NS: u64 = 1_000_000;

impl<P: Protocol, N: Network> Worker<P, N> {
    /// Queues a call that cannot be sent yet.
    #[cold]
    pub(super) fn enqueue_call(&mut self, arrival: Arrival, late_ns: u64) {
        match self.open_connections {
            _ if self.is_at_limit() => {
                self.recorder
                    .add_protocol_count(arrival.stage, Count::LimitWaits, 1)
            }
            0 => self.recorder.stage_mut(arrival.stage).waited_for_connection += 1,
            _ => self.recorder.stage_mut(arrival.stage).waited_for_stream += 1,
        }
        if let CallSource::Open(open) = &mut self.call_source {
            open.enqueue(arrival, late_ns);
        }
    }

    /// Closed loop: records since when the slot's idle clients have been waiting for capacity. While the connection is
    /// reading the remainder of an answer, its clients count as reading, so their next calls are not due.
    #[cold]
    pub(super) fn record_waiting_clients(&mut self, slot: u32, now: Time) {
        if self.phase != LoadPhase::Loading || !self.call_source.may_start_calls() {
            return;
        }
        let connection = self.client.slots[slot as usize].connection;
        let connection = connection.and_then(|index| self.connections[index as usize].as_ref());
        if connection.is_some_and(|connection| connection.data.driver.is_reading_answer_remainder())
        {
            return;
        }
        let state = &mut self.client.slots[slot as usize];
        state.waiting.resize(state.idle as usize, now);
        if let (Some(deadline), Some(&since), false) = (
            self.share.load.deadline,
            state.waiting.front(),
            state.has_wait_timer,
        ) {
            state.has_wait_timer = true;
            self.client.wait_deadlines.push(since + deadline, slot);
        }
    }

    pub(super) fn drain_backlog(&mut self, now: Time) {
        let Some(mut backlog) = self.call_source.take_backlog() else {
            return;
        };
        while !backlog.is_empty() && self.try_start(backlog.head, now, backlog.late_ns()) {
            backlog.advance();
        }
        self.call_source.restore_backlog(backlog);
    }

    /// Counts the calls that are still in the backlog at the end of the run.
    pub(super) fn abandon_backlog(&mut self, now: Time) {
        let Some(mut backlog) = self.call_source.take_backlog() else {
            return;
        };
        // After an interrupt, no waiting call is started, so calls stopped waiting at the interrupt.
        let given_up = if self.interrupted {
            now.min(self.stopped_at)
        } else {
            now
        };
        while !backlog.is_empty() {
            let due = backlog.oldest_due_time(self.start);
            self.recorder
                .record_cut_off_call(backlog.head.stage, given_up.since(due));
            backlog.advance();
        }
    }

    /// Starts a call on the next connection with capacity; returns `false` if the call must wait. `late_ns` is an upper
    /// bound of the generator's own delay.
    #[inline]
    pub(super) fn try_start(&mut self, arrival: Arrival, now: Time, late_ns: u64) -> bool {
        if self.is_at_limit() {
            return false;
        }
        let due = self.start.plus_nanos(arrival.at);
        if self.share.load.reuse == ConnectionReuse::Never {
            self.connect_for_call(PendingCall {
                number: arrival.number,
                arrival: due,
                begun: now,
                stage: arrival.stage,
                is_retry: false,
            });
            return true;
        }
        while let Some(index) = self.client.available.pop_front() {
            let Some(connection) = self.connections[index as usize].as_mut() else {
                continue;
            };
            let capacity = connection.capacity();
            if capacity > 1 {
                self.client.available.push_back(index);
            } else {
                connection.data.is_queued = false;
            }
            if capacity > 0 {
                if self.connections.len() > MAX_CONNECTIONS_IN_CPU_CACHE
                    && let Some(next) = self.client.available.front()
                {
                    self.prefetch_connection(*next);
                }
                let call = InFlightCall::new(arrival.number, due, now, index, arrival.stage);
                self.start_call(index, call.with_generator_delay_ns(late_ns));
                return true;
            }
        }
        // Every connection is down, so the call fails now, as it would for a real client.
        if self.client.slots_down == self.client.slots.len()
            && let Some(outcome) = self.client.slots.first().and_then(|slot| slot.last_failure)
        {
            self.record_unsent_call(arrival.number, due, now, arrival.stage, outcome);
            return true;
        }
        false
    }

    /// Passes a call to a connection's driver.
    #[inline]
    pub(super) fn start_call(&mut self, index: u32, call: InFlightCall) {
        let (number, due, now) = (call.number, call.arrival, call.sent);
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        let id = self.client.calls.insert(call);
        connection.borrow_outbox(&mut self.client.spare_outboxes);
        let (driver, out) = (&mut connection.data.driver, &mut connection.out);
        if now.since(due) > MIN_TIMEOUT_REDUCTION_NS {
            driver.start_delayed(id, number, now.duration_since(due), now, out);
        } else {
            driver.start(id, number, now, out);
        }
        connection.data.in_flight += 1;
        connection.data.calls_left -= 1;
        if !connection.data.is_dirty {
            connection.data.is_dirty = true;
            self.client.dirty.push(index);
        }
    }

    /// Passes a call that is already in the table to a connection's driver again.
    pub(super) fn restart_call_on(&mut self, index: u32, id: CallId, now: Time) {
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        let call = self.client.calls.get(id);
        let waited = now.duration_since(call.arrival);
        connection.borrow_outbox(&mut self.client.spare_outboxes);
        let (driver, out) = (&mut connection.data.driver, &mut connection.out);
        driver.start_delayed(id, call.number, waited, now, out);
        connection.data.in_flight += 1;
        connection.data.calls_left -= 1;
        self.flush_later(index);
    }

    /// Closed loop with persistent connections: starts calls for the slot's idle clients.
    #[inline]
    pub(super) fn start_idle_clients(&mut self, slot: u32, now: Time) {
        if self.phase != LoadPhase::Loading || now < self.start {
            return;
        }
        while self.client.slots[slot as usize].idle > 0 {
            let connection = self.client.slots[slot as usize].connection;
            let room = connection.filter(|index| {
                self.connections[*index as usize]
                    .as_ref()
                    .is_some_and(|c| c.capacity() > 0)
            });
            let Some(index) = room else {
                return self.record_waiting_clients(slot, now);
            };
            let Some(number) = self.take_call() else {
                return;
            };
            let state = &mut self.client.slots[slot as usize];
            state.idle -= 1;
            let due = state.waiting.pop_front().unwrap_or(now);
            self.count_due_call(self.stage);
            self.start_call(
                index,
                InFlightCall::new(number, due, now, index, self.stage),
            );
        }
    }

    /// Counts a call as due.
    #[inline]
    pub(super) fn count_due_call(&mut self, stage: u8) {
        self.calls_due += 1;
        self.recorder.stage_mut(stage).due += 1;
    }

    /// Handles a client whose call has ended: makes it idle, or starts its think time.
    // Without forced inlining, the compiler does not inline this, since it has several callers; inlining saves 16
    // instructions per call.
    #[inline(always)]
    pub(super) fn release_client(&mut self, role: ConnectionRole, outcome: Outcome, now: Time) {
        let ArrivalsPlan::Closed { think, .. } = self.share.load.arrivals else {
            return;
        };
        match role {
            ConnectionRole::Slot(slot) if think.is_zero() => {
                self.client.slots[slot as usize].idle += 1
            }
            ConnectionRole::Slot(slot) => self.client.thinking.push(now + think, slot),
            ConnectionRole::SingleCall if outcome.is_ok() => {
                self.call_source.release_client(think, now)
            }
            ConnectionRole::SingleCall => self
                .call_source
                .release_client(think.max(FAILURE_PAUSE), now),
        }
    }

    #[inline]
    pub(super) fn on_call_end(&mut self, done: &CompletedCall, role: ConnectionRole, now: Time) {
        self.end_call_with_deadline(done, role, now, self.deadline_ns);
    }

    #[inline(always)]
    pub(super) fn end_call_with_deadline(
        &mut self,
        done: &CompletedCall,
        role: ConnectionRole,
        now: Time,
        deadline_ns: u64,
    ) {
        let call = self.client.calls.remove(done.call);
        // Fault point: the call has left `calls` but is not yet recorded, the worst moment to panic.
        fault::point("call");
        // An answer, or a cancellation by a server that enforces the deadline, may be processed before our own timer
        // although the deadline has passed. The deadline is then the cause.
        let overdue = matches!(done.outcome, Outcome::Ok | Outcome::Cancelled)
            && now.since(call.arrival) >= deadline_ns;
        let outcome = if overdue {
            if done.outcome.is_ok() {
                self.recorder.stage_mut(call.stage).late += 1;
            }
            Outcome::DeadlineExceeded
        } else {
            done.outcome
        };
        let mut carried = RequestContext {
            connection: Some(call.connection).filter(|index| *index != NO_CONNECTION),
            shared_trace_number: None,
            step: None,
        };
        let connection = self.connections.get_mut(call.connection as usize);
        if let Some(connection) = connection.and_then(Option::as_mut) {
            carried.shared_trace_number = connection.data.driver.shared_trace_number();
            connection.data.in_flight -= 1;
            connection.data.was_used |= outcome.is_ok() | (done.first_byte != Time::NEVER);
            connection.data.last_end = now;
            (self.recorder).count_call_at_address(connection.address_index, call.stage, outcome);
            match connection.early_data {
                EarlyDataState::Unused | EarlyDataState::Sent(_) => {}
                EarlyDataState::Accepted => {
                    self.recorder
                        .add_protocol_count(call.stage, Count::EarlyAccepted, 1)
                }
                EarlyDataState::Rejected => {
                    self.recorder
                        .add_protocol_count(call.stage, Count::EarlyRejected, 1)
                }
            }
        }
        let sample = CallSample {
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
        let (tokens, recorder) = (&mut self.client.tokens, &mut self.recorder);
        let measured = tokens.finish_call(done.call, outcome, (&call, now), recorder);
        let carried = Some(carried);
        if self.records_lower_bounds {
            self.record_response_lower_bound(&call, outcome, now);
        }
        match role {
            ConnectionRole::Slot(_) => match measured {
                None => self.recorder.record_sent_call(&sample, carried),
                Some(measured) => {
                    let (counts, times) = (&measured.counts, &measured.times);
                    (self.recorder).record_call_with_measures(&sample, counts, times, carried);
                }
            },
            ConnectionRole::SingleCall => {
                let connection = self.connections[call.connection as usize].as_ref();
                let phases = connection.map(|c| c.phases).unwrap_or_default();
                self.client.single_calls -= 1;
                self.recorder.record_cold_call(&sample, &phases, carried);
                self.count_first_connection(call.stage, phases);
            }
        }
        self.release_client(role, outcome, now);
    }

    /// Counts the worker's first connection, which cannot resume a session because there is no ticket yet.
    fn count_first_connection(&mut self, stage: u8, phases: ConnectPhases) {
        if self.client.ticketless && phases.ready_ns > 0 {
            self.client.ticketless = false;
            if !phases.resumed {
                self.recorder.stage_mut(stage).connections_first += 1;
            }
        }
    }

    /// Records a call that failed before it could be sent.
    pub(super) fn record_unsent_call(
        &mut self,
        number: u64,
        due: Time,
        now: Time,
        stage: u8,
        outcome: Outcome,
    ) {
        self.recorder
            .record_call(&unsent_call_sample(number, due, now, stage, outcome));
    }

    /// Closed loop: fails the calls of a slot's idle clients because its connection could not be established.
    pub(super) fn fail_idle_clients(&mut self, slot: u32, outcome: Outcome, now: Time) {
        if self.phase != LoadPhase::Loading || now < self.start {
            return;
        }
        for _ in 0..self.client.slots[slot as usize].idle {
            let Some(number) = self.take_call() else {
                break;
            };
            let waiting = &mut self.client.slots[slot as usize].waiting;
            let due = waiting.pop_front().unwrap_or(now);
            self.count_due_call(self.stage);
            self.record_unsent_call(number, due, now, self.stage, outcome);
        }
        self.record_waiting_clients(slot, now);
    }

    /// Fails a call whose deadline passed while it was waiting for a separate connection.
    pub(super) fn fail_expired_attempt(
        &mut self,
        control: &mut impl WorkerControl,
        token: SocketToken,
        now: Time,
    ) {
        let Some(index) = self.find_connection(token) else {
            return;
        };
        let waits = self.connections[index as usize].as_ref().and_then(|c| {
            let waits =
                matches!(c.data.role, ConnectionRole::SingleCall) && !c.data.attempt_started;
            waits.then_some(c.state)
        });
        let Some(state) = waits else {
            return;
        };
        self.recorder
            .stage_mut(self.client.pending_calls[index as usize].stage)
            .expired_unsent += 1;
        let what = state.wait_reason();
        let detail = format!("the call's deadline passed while it waited for {what}");
        let loss = ConnectionLoss::new(Outcome::DeadlineExceeded, detail);
        self.on_disconnect(control, index, &loss, now);
    }

    /// Records a call whose separate connection was lost before the call could start.
    pub(super) fn on_connect_attempt_failed(
        &mut self,
        index: u32,
        phases: ConnectPhases,
        outcome: Outcome,
        now: Time,
    ) {
        self.client.single_calls -= 1;
        let attempt = self.client.pending_calls[index as usize];
        let sample = CallSample {
            // The call was never sent. Connection time is in the phases and must not count as send delay.
            sent: attempt.begun.plus_nanos(phases.total_ns()),
            ..unsent_call_sample(attempt.number, attempt.arrival, now, attempt.stage, outcome)
        };
        self.recorder.record_cold_call(&sample, &phases, None);
        self.release_client(ConnectionRole::SingleCall, outcome, now);
    }
}

/// Returns the sample of a call that failed before it could be sent.
fn unsent_call_sample(
    number: u64,
    due: Time,
    now: Time,
    stage: u8,
    outcome: Outcome,
) -> CallSample {
    CallSample {
        number,
        arrival: due,
        sent: now,
        first_byte: now,
        done: now,
        stage,
        outcome,
        bytes_sent: 0,
        bytes_received: 0,
    }
}
