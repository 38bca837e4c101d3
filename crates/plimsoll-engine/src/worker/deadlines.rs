//! Deadlines of calls in flight and of waiting calls, detection of a stalled target, and the end of the load.

use std::time::Duration;

use plimsoll_model::{Count, Outcome, Time};

use super::Worker;
use super::call_table::NO_CONNECTION;
use super::connection::ConnectionRole;
use crate::driver::{CallId, CompletedCall, Driver, Protocol};
use crate::event_loop::WorkerControl;
use crate::transport::network::Network;

impl<P: Protocol, N: Network> Worker<P, N> {
    /// Fails calls whose deadlines have passed while they were waiting to be sent: calls in the backlog, and calls of
    /// closed-loop clients.
    pub(super) fn expire_waiting_calls(&mut self, deadline: Duration, now: Time) {
        // After an interrupt, waiting calls are abandoned instead.
        if self.interrupted {
            return;
        }
        while let Some(backlog) = self.call_source.backlog() {
            let (head, due) = (backlog.head, backlog.oldest_due_time(self.start));
            if due + deadline > now {
                break;
            }
            if let Some(mut backlog) = self.call_source.take_backlog() {
                backlog.advance();
                self.call_source.restore_backlog(backlog);
            }
            self.record_expired_unsent_call(head.number, due, now, head.stage);
        }
        while let Some((_, slot)) = self.client.wait_deadlines.pop_due(now) {
            self.client.slots[slot as usize].has_wait_timer = false;
            self.expire_waiting_clients(slot, deadline, now);
        }
    }

    /// Closed loop: fails the calls of the slot's clients that have waited until their deadline.
    fn expire_waiting_clients(&mut self, slot: u32, deadline: Duration, now: Time) {
        while let Some(&since) = self.client.slots[slot as usize].waiting.front()
            && since + deadline <= now
            && let Some(number) = self.take_call()
        {
            let state = &mut self.client.slots[slot as usize];
            state.waiting.pop_front();
            state.idle -= 1;
            self.count_due_call(self.stage);
            self.record_expired_unsent_call(number, since, now, self.stage);
            self.release_client(ConnectionRole::Slot(slot), Outcome::DeadlineExceeded, now);
        }
        self.record_waiting_clients(slot, now);
    }

    fn record_expired_unsent_call(&mut self, number: u64, due: Time, now: Time, stage: u8) {
        self.recorder.stage_mut(stage).expired_unsent += 1;
        self.record_unsent_call(number, due, now, stage, Outcome::DeadlineExceeded);
    }

    /// Ends calls in flight whose deadlines were at or before `until`.
    #[inline]
    pub(super) fn expire_calls(
        &mut self,
        control: &mut impl WorkerControl,
        deadline: Duration,
        until: Time,
        now: Time,
    ) {
        while let Some((id, call)) = self.client.calls.oldest()
            && call.arrival + deadline <= until
        {
            self.on_deadline(control, id, now);
        }
    }

    /// Ends a call whose deadline has passed, and cancels it on the wire.
    pub(super) fn on_deadline(&mut self, control: &mut impl WorkerControl, id: CallId, now: Time) {
        let Some((_, call)) = self.client.calls.oldest() else {
            return;
        };
        let index = call.connection;
        if index == NO_CONNECTION {
            return self.fail_expired_retry(id, now);
        }
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        let exchanged = connection.data.driver.call_progress(id);
        self.recorder
            .count_messages_sent(call.stage, u64::from(exchanged.messages_sent));
        connection.data.driver.cancel(id, now, &mut connection.out);
        // If cancelling makes the driver close the connection, it was closed by us, so it must not count as unused.
        connection.data.was_used |= connection.data.driver.is_draining();
        let role = connection.data.role;
        self.flush_later(index);
        let done = CompletedCall {
            call: id,
            outcome: Outcome::DeadlineExceeded,
            first_byte: Time::NEVER,
            bytes_sent: exchanged.bytes_sent,
            bytes_received: exchanged.bytes_received,
        };
        self.on_call_end(&done, role, now);
        self.update_after_serving(control, index, now);
    }

    /// Returns the time at which both the oldest call and the whole worker will have waited for an answer for the
    /// plan's stall timeout.
    pub(super) fn stall_timeout_ends_at(&self) -> Time {
        match (self.share.load.stall_timeout, self.client.calls.oldest()) {
            (Some(timeout), Some((_, oldest))) => {
                oldest.arrival.max(self.client.last_answer) + timeout
            }
            _ => Time::NEVER,
        }
    }

    /// Fails the calls that have waited for the plan's stall timeout, as if it were their deadline, because the target
    /// has stopped answering.
    #[cold]
    pub(super) fn fail_stalled_calls(&mut self, control: &mut impl WorkerControl, now: Time) {
        let Some(timeout) = self.share.load.stall_timeout else {
            return;
        };
        while let Some((id, call)) = self.client.calls.oldest()
            && call.arrival + timeout <= now
        {
            self.on_deadline(control, id, now);
        }
    }

    /// Ends calls that never end on their own when the load has ended, at `end`, except for those whose deadlines were
    /// earlier.
    pub(super) fn end_open_ended_calls(
        &mut self,
        control: &mut impl WorkerControl,
        end: Time,
        now: Time,
    ) {
        if let Some(deadline) = self.share.load.deadline {
            self.expire_calls(control, deadline, Time(end.0.saturating_sub(1)), now);
        }
        for index in 0..self.connections.len() as u32 {
            let Some(connection) = self.connections[index as usize].as_mut() else {
                continue;
            };
            if connection.data.in_flight == 0 {
                continue;
            }
            let (driver, out) = (&mut connection.data.driver, &mut connection.out);
            driver.end_open_ended_calls(now, out, &mut self.client.events);
            let role = connection.data.role;
            self.process_events(role, now);
            self.update_after_serving(control, index, now);
        }
    }

    /// Records a stream that ended because the load ended. It is a success, even if its deadline has passed since then.
    #[cold]
    pub(super) fn on_call_ended_by_load_end(
        &mut self,
        done: &CompletedCall,
        role: ConnectionRole,
        now: Time,
    ) {
        let stage = self.client.calls.get(done.call).stage;
        self.recorder
            .add_protocol_count(stage, Count::StreamsEndedWithLoad, 1);
        self.end_call_with_deadline(done, role, now, u64::MAX);
    }
}
