//! The life cycle of a driver's connection: establishing, serving, flushing, and closing or losing it. The event loop
//! calls this through [`LoopHandler`].
//!
//! This file is long because all ways in which a connection can end share the code that ends its calls.

use std::time::Duration;

use plimsoll_model::{Outcome, Time};
use rustls::ProtocolVersion;

use super::Worker;
use super::call_table::InFlightCall;
use super::connection::{ConnectionRole, DriverState, PendingCall, ReadProgress, ReadUntil};
use super::slots::LostConnection;
use crate::driver::{Driver, Protocol};
use crate::event_loop::WorkerControl;
use crate::event_loop::client::LoopHandler;
use crate::event_loop::connection::ConnectionState;
use crate::tls::NegotiatedParameters;
use crate::transport::connection_loss::ConnectionLoss;
use crate::transport::network::{LookupScope, Network, SocketReady, SocketToken};

/// Interval of the check for bytes below a socket's low-water mark (`SO_RCVLOWAT`), which the poller does not report.
/// They are read after one to two intervals (10 to 20 ms). A bulk transfer reaches the mark about a hundred times per
/// interval, so the check costs it nothing.
const LOW_WATER_CHECK_INTERVAL: Duration = Duration::from_millis(10);
const MAX_SPARE_OUTBOXES: usize = 64;
/// Capacity in bytes above which an outbox is large; at most [`MAX_LARGE_SPARE_OUTBOXES`] spare ones of this kind are
/// kept.
const LARGE_OUTBOX_BYTES: usize = 256 << 10;
const MAX_LARGE_SPARE_OUTBOXES: usize = 4;

impl<P: Protocol, N: Network> Worker<P, N> {
    /// Starts a connection for one call. Immediate failures are handled in the same iteration.
    pub(super) fn connect_for_call(&mut self, attempt: PendingCall) {
        self.client.single_calls += 1;
        let now = attempt.begun;
        let index = self.add_driver_connection(ConnectionRole::SingleCall, now);
        let attempts = &mut self.client.pending_calls;
        attempts.resize(attempts.len().max(index as usize + 1), attempt);
        attempts[index as usize] = attempt;
        if let Some(deadline) = self.share.load.deadline {
            let (token, deadline) = (self.socket_token(index), attempt.arrival + deadline);
            let queue = &mut self.client.attempt_deadlines;
            // The queue is sorted by deadline. Only the deadline of a retry can be earlier than others in the queue.
            let place = if attempt.is_retry {
                queue.partition_point(|(other, _)| *other <= deadline)
            } else {
                queue.len()
            };
            queue.insert(place, (deadline, token));
        }
        // The name is resolved for each of these connections, since that is part of a new client's cost.
        self.network
            .resolve(0, self.socket_token(index), LookupScope::Own);
    }

    pub(super) fn add_driver_connection(&mut self, role: ConnectionRole, now: Time) -> u32 {
        let driver = self.client.protocol.new_driver();
        let index = self.add_connection(DriverState::new(role, driver), 0, now);
        if self.share.trace
            && let Some(connection) = self.connections[index as usize].as_mut()
            && let Some(tracer) = self.client.protocol.new_tracer()
        {
            connection.start_tracing(tracer);
        }
        index
    }

    /// Serves a connection whose socket is ready.
    #[inline]
    pub(super) fn serve_connection(
        &mut self,
        control: &mut impl WorkerControl,
        index: u32,
        ready: SocketReady,
    ) {
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        if ready.readable || ready.hangup {
            // Received data may cause replies (to PING, or WINDOW_UPDATE) and new calls.
            connection.borrow_outbox(&mut self.client.spare_outboxes);
            let mut reading = self
                .client
                .borrow_read_context(&mut self.buffer, ReadUntil::for_event(ready));
            let (received, now) = connection.receive(&mut self.network, &mut reading);
            self.handle_read_result(control, index, received, now);
        } else {
            let now = self.network.now();
            self.update_after_serving(control, index, now);
        }
    }

    fn handle_read_result(
        &mut self,
        control: &mut impl WorkerControl,
        index: u32,
        received: Result<ReadProgress, ConnectionLoss>,
        now: Time,
    ) {
        let Some(connection) = self.connections[index as usize].as_ref() else {
            return;
        };
        let role = connection.data.role;
        let read_at = self.answer_time(now);
        self.process_events(role, read_at);
        match received {
            Ok(ReadProgress::Drained) => {
                self.schedule_low_water_check(index, now);
                self.update_after_serving(control, index, now);
            }
            Ok(ReadProgress::More) => {
                self.unfinished.push(self.socket_token(index));
                self.update_after_serving(control, index, now);
            }
            Err(loss) => self.on_disconnect(control, index, &loss, now),
        }
    }

    /// Schedules a low-water check for a connection that has a mark.
    #[inline]
    fn schedule_low_water_check(&mut self, index: u32, now: Time) {
        if let Some(connection) = self.connections[index as usize].as_mut()
            && connection.needs_low_water_check()
            && !connection.data.is_watched
        {
            connection.data.is_watched = true;
            let token = connection.token(index);
            self.client
                .low_water_checks
                .push_back((now + LOW_WATER_CHECK_INTERVAL, token));
        }
    }

    /// Checks a connection that may not have reached its low-water mark: a shorter record may have arrived, such as an
    /// alert, a closing message or a corrupted record.
    pub(super) fn check_low_water(
        &mut self,
        control: &mut impl WorkerControl,
        token: SocketToken,
        now: Time,
    ) {
        let Some(index) = self.find_connection(token) else {
            return;
        };
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        connection.data.is_watched = false;
        if !connection.has_missed_low_water(now) {
            self.schedule_low_water_check(index, now);
            return;
        }
        let ready = SocketReady {
            token,
            readable: true,
            writable: false,
            hangup: false,
        };
        self.serve_connection(control, index, ready);
    }

    /// Sends the greeting over an established TCP connection, or early data during the TLS handshake.
    pub(super) fn send_greeting(
        &mut self,
        control: &mut impl WorkerControl,
        index: u32,
        now: Time,
    ) {
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        if connection.state != ConnectionState::Handshaking {
            connection.send_greeting(now);
        }
        if let (ConnectionRole::SingleCall, ConnectionState::Handshaking) =
            (connection.data.role, connection.state)
            && connection.try_early_data(now)
        {
            self.start_single_call(index, now);
        }
        self.update_after_serving(control, index, now);
    }

    /// Updates a connection that was served: marks it as open, starts calls, schedules a flush, closes or drains it.
    #[inline]
    pub(super) fn update_after_serving(
        &mut self,
        control: &mut impl WorkerControl,
        index: u32,
        now: Time,
    ) {
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        if connection.state == ConnectionState::Greeting && connection.mark_open_if_ready(now) {
            self.on_open(control, index);
        }
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        match connection.data.role {
            ConnectionRole::Slot(slot) if connection.state == ConnectionState::Open => {
                let spent = connection.is_used_up(now);
                if spent || connection.data.driver.is_draining() {
                    // The connection is closed because its lifetime has ended, so it must not be reported as unused.
                    connection.data.was_used |= spent;
                    self.drain_slot(control, index, slot, now);
                } else {
                    let wants_queue = !connection.data.is_queued && connection.capacity() > 0;
                    let had_rest =
                        wants_queue && std::mem::take(&mut connection.data.reads_remainder);
                    let has_rest = connection.data.driver.is_reading_answer_remainder()
                        && !connection.data.reads_remainder;
                    if wants_queue {
                        connection.data.is_queued = true;
                        // Exclusive connections are reused last in, first out: a server that closes idle connections
                        // then closes unneeded ones, not one to which a request is being sent.
                        if connection.data.driver.carries_one_call_at_a_time() {
                            self.client.available.push_front(index);
                        } else {
                            self.client.available.push_back(index);
                        }
                    }
                    if had_rest {
                        self.on_remainder_read(index);
                    } else if has_rest {
                        self.on_remainder_begun(index, now);
                    }
                    self.start_idle_clients(slot, now);
                }
            }
            ConnectionRole::SingleCall if connection.state == ConnectionState::Open => {
                if connection.data.attempt_started {
                    if connection.data.in_flight == 0 {
                        self.close_finished_connection(index);
                        return;
                    }
                } else if connection.data.driver.is_draining() {
                    let driver = &connection.data.driver;
                    let loss = ConnectionLoss::drained_before_first_call(driver);
                    return self.on_disconnect(control, index, &loss, now);
                } else if connection.capacity() > 0 {
                    self.start_single_call(index, now);
                }
            }
            // Clients whose calls end on this connection continue on its replacement.
            ConnectionRole::Slot(slot) if connection.state == ConnectionState::Draining => {
                self.start_idle_clients(slot, now)
            }
            _ => {}
        }
        self.flush_later(index);
    }

    /// Starts the call for which the connection was established.
    fn start_single_call(&mut self, index: u32, now: Time) {
        if let Some(connection) = self.connections[index as usize].as_mut() {
            connection.data.attempt_started = true;
        }
        let attempt = self.client.pending_calls[index as usize];
        let (number, due, stage) = (attempt.number, attempt.arrival, attempt.stage);
        self.start_call(index, InFlightCall::new(number, due, now, index, stage));
    }

    /// Marks a connection to be flushed after all ready connections have been served. Flushing them together wakes the
    /// server only once, and more of its answers arrive together.
    #[inline]
    pub(super) fn flush_later(&mut self, index: u32) {
        if let Some(connection) = self.connections[index as usize].as_mut()
            && !connection.data.is_dirty
        {
            connection.data.is_dirty = true;
            self.client.dirty.push(index);
        }
    }

    /// Writes pending bytes, returns the outbox to the spare ones, and updates the driver's timer.
    #[inline]
    fn flush_connection(&mut self, control: &mut impl WorkerControl, index: u32, now: Time) {
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        connection.flush(&mut self.network);
        connection.data.is_dirty = false;
        if connection.data.driver.has_held_back_messages() && connection.out.is_empty() {
            connection
                .data
                .driver
                .resume_sending(now, &mut connection.out);
            connection.flush(&mut self.network);
            if connection.data.driver.has_held_back_messages() && connection.out.is_empty() {
                // The other connections are served before more messages are sent.
                connection.data.is_dirty = true;
                self.client.dirty.push(index);
            }
        }
        if connection.take_resumed_flag() {
            self.unfinished.push(connection.token(index));
        }
        if !connection.out.is_empty()
            && let Some(sleep) = self.call_source.tick_sleep_mut()
        {
            sleep.postpone(now);
        }
        let most_spare = match connection.out.capacity() {
            0..=LARGE_OUTBOX_BYTES => MAX_SPARE_OUTBOXES,
            _ => MAX_LARGE_SPARE_OUTBOXES,
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
        if let Some(when) = connection.data.driver.next_timer()
            && when < connection.data.timer
        {
            connection.data.timer = when;
            let token = connection.token(index);
            self.client.driver_timers.push(when, token);
        }
        if connection.write_failed {
            // The peer has closed the connection. The bytes that it sent before may explain why, so they are read.
            let mut reading = self
                .client
                .borrow_read_context(&mut self.buffer, ReadUntil::End);
            let (mut received, mut now) = (Ok(ReadProgress::More), now);
            while let Ok(ReadProgress::More) = received {
                (received, now) = connection.receive(&mut self.network, &mut reading);
            }
            let loss = received
                .err()
                .unwrap_or_else(|| connection.loss_from_write_error());
            self.handle_read_result(control, index, Err(loss), now);
            return;
        }
        if self.client.is_mostly_idle {
            connection.release_idle_memory();
        }
        let finished =
            connection.state == ConnectionState::Draining && connection.data.in_flight == 0;
        if finished && !connection.data.driver.is_reading_answer_remainder() {
            self.close_finished_connection(index);
        }
    }

    pub(super) fn flush_dirty_connections(&mut self, control: &mut impl WorkerControl) {
        if self.client.dirty.is_empty() {
            return;
        }
        let now = self.network.now();
        let mut dirty = std::mem::take(&mut self.client.dirty);
        for index in dirty.drain(..) {
            let is_dirty = self.connections[index as usize]
                .as_ref()
                .is_some_and(|c| c.data.is_dirty);
            if is_dirty {
                self.flush_connection(control, index, now);
            }
        }
        // Flushing may have started calls on other connections, which are flushed in the next iteration.
        dirty.append(&mut self.client.dirty);
        self.client.dirty = dirty;
    }

    /// Records that a connection is open: the protocol's greeting has been answered and calls may start.
    fn on_open(&mut self, control: &mut impl WorkerControl, index: u32) {
        let Some(connection) = self.connections[index as usize].as_ref() else {
            return;
        };
        let agreement = connection.tls.as_ref().map(|session| NegotiatedParameters {
            chosen: self.client.protocol.alpn_label(session.alpn()),
            ..session.negotiated_parameters().unwrap_or_default()
        });
        let (phases, role) = (connection.phases, connection.data.role);
        // Over TLS 1.3, only what the server sends shows that it has accepted the client's certificate.
        let is_checked = agreement
            .as_ref()
            .is_some_and(|agreed| agreed.version == Some(ProtocolVersion::TLSv1_2));
        if let Some(tls) = self.client.tls.as_ref().filter(|_| is_checked) {
            tls.record_client_acceptance();
        }
        self.record_connect_success(index, agreement, self.connection_stage(index, role));
        let ConnectionRole::Slot(slot) = role else {
            return;
        };
        self.set_lifetime(index, slot);
        tracing::debug!(slot, ?phases, "connection up");
        self.recorder.record_connection(self.stage, &phases);
        self.open_connections += 1;
        control.add_connections(1);
        let state = &mut self.client.slots[slot as usize];
        state.connection = Some(index);
        if state.last_failure.take().is_some() {
            self.client.slots_down -= 1;
        }
        if !state.was_tried {
            state.was_tried = true;
            self.client.established.open += 1;
        }
    }

    /// Removes a connection from the queue of those with capacity.
    pub(super) fn remove_from_available_connections(&mut self, index: u32) {
        if let Some(connection) = self.connections[index as usize].as_mut()
            && std::mem::take(&mut connection.data.is_queued)
        {
            self.client.available.retain(|queued| *queued != index);
        }
    }

    /// Closes a finished connection in an orderly way: one that carried a single call, or one that was replaced.
    pub(super) fn close_finished_connection(&mut self, index: u32) {
        self.remove_from_available_connections(index);
        let Some(mut connection) = self.remove_connection(index) else {
            return;
        };
        if let (ConnectionRole::Slot(_), false) = (connection.data.role, connection.data.was_used) {
            self.recorder.stage_mut(self.stage).connections_unused += 1;
        }
        connection.finish_and_close(&mut self.network);
        self.close_socket(connection.socket);
    }

    /// Handles the loss of a connection, or the failure to establish it.
    pub(super) fn on_connection_lost(
        &mut self,
        control: &mut impl WorkerControl,
        index: u32,
        loss: &ConnectionLoss,
        now: Time,
    ) {
        let Some(connection) = self.connections[index as usize].as_ref() else {
            return;
        };
        let (role, state) = (connection.data.role, connection.state);
        tracing::debug!(
            connection = connection.generation,
            ?state,
            outcome = loss.outcome.code(),
            detail = loss.detail,
            "connection lost"
        );
        let was_up = matches!(state, ConnectionState::Open | ConnectionState::Draining);
        if !was_up {
            let stage = self.connection_stage(index, role);
            self.record_connect_failure(index, loss.outcome, stage, now);
            self.connecting -= 1;
        }
        let idle = self.end_calls(index, loss.outcome, now);
        self.recorder.add_failure_detail(loss.outcome, &loss.detail);
        let served = was_up && self.record_connection_use(index, now);
        self.remove_from_available_connections(index);
        if let Some(mut connection) = self.remove_connection(index) {
            // Sends the GOAWAY or TLS alert that tells the peer why we close.
            connection.flush(&mut self.network);
            self.close_socket(connection.socket);
        }
        let ConnectionRole::Slot(slot) = role else {
            return;
        };
        match state {
            // A draining connection has already been replaced.
            ConnectionState::Draining => {}
            ConnectionState::Open => {
                self.client.slots[slot as usize].connection = None;
                self.open_connections -= 1;
                control.add_connections(-1);
                self.recorder.stage_mut(self.stage).connections_lost += 1;
                self.replace_connection(
                    slot,
                    LostConnection {
                        was_useful: served,
                        was_idle: idle,
                    },
                    loss,
                    now,
                );
            }
            _ => self.on_slot_failed(slot, loss, state, now),
        }
    }

    /// Ends a connection's calls with `outcome`, including the call for which it was established. Returns `true` if
    /// none was in flight.
    fn end_calls(&mut self, index: u32, outcome: Outcome, now: Time) -> bool {
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return true;
        };
        let (role, phases) = (connection.data.role, connection.phases);
        if connection.data.in_flight > 0 {
            let driver = &mut connection.data.driver;
            driver.abort(outcome, now, &mut self.client.events);
            self.process_events(role, now);
            return false;
        }
        if let ConnectionRole::SingleCall = role
            && !connection.data.attempt_started
        {
            self.on_connect_attempt_failed(index, phases, outcome, now);
        }
        true
    }

    pub(super) fn on_driver_timer(
        &mut self,
        control: &mut impl WorkerControl,
        token: SocketToken,
        now: Time,
    ) {
        let Some(index) = self.find_connection(token) else {
            return;
        };
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        connection.data.timer = Time::NEVER;
        connection
            .data
            .driver
            .on_timer(now, &mut connection.out, &mut self.client.events);
        let role = connection.data.role;
        self.process_events(role, now);
        self.update_after_serving(control, index, now);
    }

    /// Counts a connection's unfinished calls at the end of the run and closes it in an orderly way.
    pub(super) fn close_connection_at_run_end(&mut self, index: u32, outcome: Outcome, now: Time) {
        self.end_calls(index, outcome, now);
        if let Some(mut connection) = self.remove_connection(index) {
            connection.finish_and_close(&mut self.network);
            self.close_socket(connection.socket);
        }
    }
}
