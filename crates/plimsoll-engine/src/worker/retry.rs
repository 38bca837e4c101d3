//! Retries of calls that the server did not process, and of calls that it refused for now. HTTP/2 reports the former
//! for each stream (RFC 9113 §8.7); in HTTP/1.1 it is assumed if an idle connection was closed while an idempotent
//! request was being sent (RFC 9110 §9.2.2). The latter wait as long as the server asks for.
//!
//! Invariant: a call that is waiting to be sent again remains in the table of calls in flight, with [`NO_CONNECTION`],
//! so that its deadline, the drain and the number of calls in flight include it.

use std::collections::VecDeque;

use plimsoll_model::{Count, Outcome, Time};

use super::Worker;
use super::call_table::NO_CONNECTION;
use super::connection::{ConnectionRole, PendingCall};
use crate::driver::{CallId, CompletedCall, Protocol, RefusedCall};
use crate::event_loop::due_calls::CallSource;
use crate::event_loop::timers::TimerQueue;
use crate::transport::network::Network;

/// A call that is waiting for a connection on which it can be sent again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PendingRetry {
    call: CallId,
    /// The slot whose connection carried the first attempt.
    slot: u32,
    /// The outcome of the first attempt, which counts if the call is not sent a second time.
    outcome: Outcome,
    /// Whether the server refused the call for now, so that its connection is as good as any other.
    was_refused: bool,
}

/// The calls that are waiting to be sent again.
pub(super) struct RetryQueue {
    /// Calls that can be sent as soon as a connection has capacity, oldest first.
    ready: VecDeque<PendingRetry>,
    /// Refused calls, with the times from which they can be sent again.
    delayed: TimerQueue<PendingRetry>,
}

impl RetryQueue {
    pub(super) fn new() -> RetryQueue {
        RetryQueue {
            ready: VecDeque::new(),
            delayed: TimerQueue::new(),
        }
    }

    #[inline]
    pub(super) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.next_time() == Time::NEVER
    }

    /// Returns the earliest time from which a refused call can be sent again; [`Time::NEVER`] if none is waiting.
    #[inline]
    pub(super) fn next_time(&self) -> Time {
        self.delayed.next_time()
    }

    /// Makes the refused calls ready that have waited long enough.
    #[inline]
    pub(super) fn release_due(&mut self, now: Time) {
        while let Some((_, retry)) = self.delayed.pop_due(now) {
            self.ready.push_back(retry);
        }
    }

    fn remove(&mut self, id: CallId) -> Option<PendingRetry> {
        match self.ready.iter().position(|retry| retry.call == id) {
            Some(place) => self.ready.remove(place),
            None => self.delayed.remove(|retry| retry.call == id),
        }
    }

    fn take_all(&mut self) -> Vec<PendingRetry> {
        let mut all = self.delayed.take_all();
        all.extend(self.ready.drain(..));
        all
    }
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
        self.client.retries.ready.push_back(PendingRetry {
            call: done.call,
            slot,
            outcome: done.outcome,
            was_refused: false,
        });
    }

    /// Schedules the retry of a call that the server refused for now, or records its failure: if it was sent too often,
    /// or if it could not be sent again before its deadline. Calls with a connection of their own are not retried. If
    /// the run was interrupted, a call that would have been sent again is cut off.
    #[cold]
    pub(super) fn on_refused_call(
        &mut self,
        refused: &RefusedCall,
        role: ConnectionRole,
        now: Time,
    ) {
        let done = &refused.done;
        let call = *self.client.calls.get(done.call);
        let retries = self.client.protocol.refusal_retries();
        let wait = retries.wait(refused, call.number, u32::from(call.refusals));
        let stall_timeout = self.share.load.stall_timeout;
        let wait = wait.filter(|wait| {
            let is_in_time = (now + *wait).since(call.arrival) < self.deadline_ns;
            is_in_time && stall_timeout.is_none_or(|timeout| *wait < timeout)
        });
        let (Some(wait), ConnectionRole::Slot(slot)) = (wait, role) else {
            return self.on_call_end(done, role, now);
        };
        if self.interrupted {
            let outcome = Outcome::Interrupted;
            return self.on_call_end(&CompletedCall { outcome, ..*done }, role, now);
        }
        if let Some(connection) = self.connections[call.connection as usize].as_mut() {
            connection.data.in_flight -= 1;
            connection.data.was_used = true;
            connection.data.last_end = now;
        }
        self.recorder
            .add_protocol_count(call.stage, Count::RefusalsRetried, 1);
        if call.refusals == 0 {
            self.recorder
                .add_protocol_count(call.stage, Count::CallsRefused, 1);
        }
        self.client.calls.mark_refused(done.call);
        let retry = PendingRetry {
            call: done.call,
            slot,
            outcome: done.outcome,
            was_refused: true,
        };
        self.client.retries.delayed.push(now + wait, retry);
    }

    /// Sends waiting retries as far as connections have capacity.
    #[cold]
    pub(super) fn start_retries(&mut self, now: Time) {
        let mut waiting = std::mem::take(&mut self.client.retries.ready);
        let mut is_full = false;
        waiting.retain(|retry| !self.try_retry(*retry, &mut is_full, now));
        // No call has become ready in the meantime: starting a call reports no events.
        self.client.retries.ready = waiting;
    }

    /// Starts a retry; returns `false` if it must wait for a connection. `is_full`: whether no connection has room, which
    /// is found out once for all calls that any connection may carry.
    fn try_retry(&mut self, retry: PendingRetry, is_full: &mut bool, now: Time) -> bool {
        let is_open_loop = !matches!(self.call_source, CallSource::Closed(_));
        if *is_full && retry.was_refused && is_open_loop {
            return false;
        }
        let slot = &self.client.slots[retry.slot as usize];
        let is_down = slot.connection.is_none() && slot.last_failure.is_some();
        // In a closed loop, the call belongs to a client of this slot, so no other slot's connection may carry it.
        let is_lost = is_down && !is_open_loop;
        if is_lost || self.client.slots_down == self.client.slots.len() {
            self.abandon_retry(retry, retry.outcome, now);
            return true;
        }
        let may_use_any = is_down || retry.was_refused && is_open_loop;
        let Some(index) = self.find_retry_connection(retry.slot, may_use_any) else {
            *is_full |= may_use_any;
            return false;
        };
        self.client.calls.assign_to_connection(retry.call, index);
        self.restart_call_on(index, retry.call, now);
        true
    }

    /// Returns a connection with capacity: the replacement of the connection that failed, since other old ones may be
    /// about to fail in the same way; while the slot is down, and for calls that were refused, any connection.
    fn find_retry_connection(&self, slot: u32, may_use_any: bool) -> Option<u32> {
        let has_room = |index: &u32| {
            let connection = self.connections[*index as usize].as_ref();
            connection.is_some_and(|connection| connection.capacity() > 0)
        };
        if may_use_any {
            return self.client.available.iter().copied().find(has_room);
        }
        let connection = self.client.slots[slot as usize].connection;
        connection.filter(has_room)
    }

    /// Fails a retry whose deadline passed while it was waiting.
    #[cold]
    pub(super) fn fail_expired_retry(&mut self, id: CallId, now: Time) {
        if let Some(retry) = self.client.retries.remove(id) {
            self.abandon_retry(retry, Outcome::DeadlineExceeded, now);
        }
    }

    /// Ends all waiting retries with `outcome` at the end of the run.
    pub(super) fn end_retries(&mut self, outcome: Outcome, now: Time) {
        for retry in self.client.retries.take_all() {
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
