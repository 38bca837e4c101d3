//! Retries of calls that the server did not process. HTTP/2 reports this for each stream (RFC 9113 §8.7); in HTTP/1.1
//! it is assumed if an idle connection was closed while an idempotent request was being sent (RFC 9110 §9.2.2).
//!
//! Invariant: a call that is waiting to be sent again remains in the table of calls in flight, with [`NO_CONNECTION`],
//! so that its deadline, the drain and the number of calls in flight include it.

use plimsoll_model::{Count, Outcome, Time};

use super::Worker;
use super::call_table::NO_CONNECTION;
use super::connection::{ConnectionRole, PendingCall};
use crate::driver::{CallId, CompletedCall, Protocol};
use crate::event_loop::due_calls::CallSource;
use crate::transport::network::Network;

/// A call that is waiting for a connection on which it can be sent again.
#[derive(Clone, Copy)]
pub(super) struct PendingRetry {
    call: CallId,
    /// The slot whose connection carried the first attempt.
    slot: u32,
    /// The outcome of the first attempt, which counts if the call is not sent a second time.
    outcome: Outcome,
}

impl<P: Protocol, N: Network> Worker<P, N> {
    /// Schedules the retry of a call that the server did not process, or records its failure.
    #[cold]
    pub(super) fn on_unprocessed_call(
        &mut self,
        done: &CompletedCall,
        role: ConnectionRole,
        now: Time,
    ) {
        let call = *self.client.calls.get(done.call);
        let overdue = now.since(call.arrival) >= self.deadline_ns;
        let attempts = &self.client.pending_calls;
        let is_retry = match role {
            ConnectionRole::Slot(_) => call.retried,
            ConnectionRole::SingleCall => attempts[call.connection as usize].is_retry,
        };
        if !self.share.load.retry || is_retry || overdue || self.interrupted {
            return self.on_call_end(done, role, now);
        }
        if let Some(connection) = self.connections[call.connection as usize].as_mut() {
            connection.data.in_flight -= 1;
        }
        self.recorder
            .add_protocol_count(call.stage, Count::CallsRetried, 1);
        let ConnectionRole::Slot(slot) = role else {
            // The retry gets a new, separate connection.
            self.client.calls.remove(done.call);
            self.client.single_calls -= 1;
            return self.connect_for_call(PendingCall {
                number: call.number,
                arrival: call.arrival,
                begun: now,
                stage: call.stage,
                is_retry: true,
            });
        };
        self.client.calls.mark_for_retry(done.call);
        self.client.retries.push_back(PendingRetry {
            call: done.call,
            slot,
            outcome: done.outcome,
        });
    }

    /// Sends waiting retries as far as connections have capacity.
    #[cold]
    pub(super) fn start_retries(&mut self, now: Time) {
        let mut waiting = std::mem::take(&mut self.client.retries);
        waiting.retain(|retry| !self.try_retry(*retry, now));
        // No retry was added in the meantime, because calls that fail again are not sent a third time.
        self.client.retries = waiting;
    }

    /// Starts a retry; returns `false` if it must wait for a connection.
    fn try_retry(&mut self, retry: PendingRetry, now: Time) -> bool {
        let slot = &self.client.slots[retry.slot as usize];
        let is_down = slot.connection.is_none() && slot.last_failure.is_some();
        // In a closed loop, the call belongs to a client of this slot, so no other slot's connection may carry it.
        let is_lost = is_down && matches!(self.call_source, CallSource::Closed(_));
        if is_lost || self.client.slots_down == self.client.slots.len() {
            self.abandon_retry(retry, retry.outcome, now);
            return true;
        }
        let Some(index) = self.find_retry_connection(retry.slot, is_down) else {
            return false;
        };
        self.client.calls.assign_to_connection(retry.call, index);
        self.restart_call_on(index, retry.call, now);
        true
    }

    /// Returns a connection with capacity: the replacement of the connection that failed, since other old ones may be
    /// about to fail in the same way; while the slot is down, any connection.
    fn find_retry_connection(&self, slot: u32, is_down: bool) -> Option<u32> {
        let has_room = |index: &u32| {
            let connection = self.connections[*index as usize].as_ref();
            connection.is_some_and(|connection| connection.capacity() > 0)
        };
        if is_down {
            return self.client.available.iter().copied().find(has_room);
        }
        let connection = self.client.slots[slot as usize].connection;
        connection.filter(has_room)
    }

    /// Fails a retry whose deadline passed while it was waiting.
    #[cold]
    pub(super) fn fail_expired_retry(&mut self, id: CallId, now: Time) {
        let retries = &mut self.client.retries;
        let place = retries.iter().position(|retry| retry.call == id);
        if let Some(retry) = place.and_then(|place| retries.remove(place)) {
            self.abandon_retry(retry, Outcome::DeadlineExceeded, now);
        }
    }

    /// Ends all waiting retries with `outcome` at the end of the run.
    pub(super) fn end_retries(&mut self, outcome: Outcome, now: Time) {
        for retry in std::mem::take(&mut self.client.retries) {
            self.abandon_retry(retry, outcome, now);
        }
    }

    fn abandon_retry(&mut self, retry: PendingRetry, outcome: Outcome, now: Time) {
        let done = CompletedCall {
            call: retry.call,
            outcome,
            first_byte: Time::NEVER,
            bytes_sent: 0,
            bytes_received: 0,
        };
        debug_assert_eq!(self.client.calls.get(retry.call).connection, NO_CONNECTION);
        self.on_call_end(&done, ConnectionRole::Slot(retry.slot), now);
    }
}
