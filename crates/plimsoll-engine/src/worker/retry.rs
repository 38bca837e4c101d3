//! Calls that the server did not take, which are sent once more: HTTP/2 says so for each (RFC 9113, 8.7), and HTTP/1.1
//! where an idle connection was closed as an idempotent request left (RFC 9110, 9.2.2).
//!
//! Invariant: a call that waits to be sent again stays in the table of calls in flight, with [`NO_CONNECTION`], so that
//! its deadline, the drain and the counts of calls in flight hold for it as for any other.

use plimsoll_model::{Count, Outcome, Time};

use super::Worker;
use super::calls::NO_CONNECTION;
use super::connection::{Attempt, Role};
use crate::driver::{CallId, Done, Protocol};
use crate::event_loop::issue::Issue;
use crate::network::Network;

/// A call that waits for a connection to be sent on again.
#[derive(Clone, Copy)]
pub(super) struct Retry {
    call: CallId,
    /// The lane whose connection carried it first.
    lane: u32,
    /// The failure of the first time, which counts if there is no second one.
    outcome: Outcome,
}

impl<P: Protocol, N: Network> Worker<P, N> {
    /// A call has ended without the server having acted on it.
    #[cold]
    pub(super) fn not_taken(&mut self, done: &Done, role: Role, now: Time) {
        let call = *self.client.calls.get(done.call);
        let overdue = now.since(call.arrival) >= self.deadline_ns;
        let attempts = &self.client.attempts;
        let is_retry = match role {
            Role::Lane(_) => call.retried,
            Role::Attempt => attempts[call.connection as usize].is_retry,
        };
        if !self.share.load.retry || is_retry || overdue || self.interrupted {
            return self.call_ended(done, role, now);
        }
        if let Some(connection) = self.connections[call.connection as usize].as_mut() {
            connection.own.in_flight -= 1;
        }
        self.recorder.count(call.stage, Count::CallsRetried, 1);
        let Role::Lane(lane) = role else {
            // A connection of its own again.
            self.client.calls.remove(done.call);
            self.client.attempting -= 1;
            return self.begin_attempt(Attempt {
                number: call.number,
                arrival: call.arrival,
                begun: now,
                stage: call.stage,
                is_retry: true,
            });
        };
        self.client.calls.put_aside(done.call);
        self.client.retries.push_back(Retry {
            call: done.call,
            lane,
            outcome: done.outcome,
        });
    }

    /// Sends what waits to be sent again, as far as there is room.
    #[cold]
    pub(super) fn start_retries(&mut self, now: Time) {
        let mut waiting = std::mem::take(&mut self.client.retries);
        waiting.retain(|retry| !self.start_again(*retry, now));
        // Calls that failed meanwhile are not sent a third time: nothing is behind these.
        self.client.retries = waiting;
    }

    /// `false`: the call has to wait.
    fn start_again(&mut self, retry: Retry, now: Time) -> bool {
        let lane = &self.client.lanes[retry.lane as usize];
        let is_down = lane.connection.is_none() && lane.down.is_some();
        // Of a closed loop the lane's client waits for the call, so that no other lane carries it.
        let is_lost = is_down && matches!(self.issue, Issue::Closed(_));
        if is_lost || self.client.lanes_down == self.client.lanes.len() {
            self.give_retry_up(retry, retry.outcome, now);
            return true;
        }
        let Some(index) = self.connection_for(retry.lane, is_down) else {
            return false;
        };
        self.client.calls.assign(retry.call, index);
        self.begin_on(index, retry.call, now);
        true
    }

    /// A connection with room: the successor of the one that did not carry the call, since others may be about to end
    /// as that one did; any other where it does not come up.
    fn connection_for(&self, lane: u32, is_down: bool) -> Option<u32> {
        let has_room = |index: &u32| {
            let connection = self.connections[*index as usize].as_ref();
            connection.is_some_and(|connection| connection.capacity() > 0)
        };
        if is_down {
            return self.client.open.iter().copied().find(has_room);
        }
        let connection = self.client.lanes[lane as usize].connection;
        connection.filter(has_room)
    }

    /// The deadline of a call has passed while it waited.
    #[cold]
    pub(super) fn retry_expired(&mut self, id: CallId, now: Time) {
        let retries = &mut self.client.retries;
        let place = retries.iter().position(|retry| retry.call == id);
        if let Some(retry) = place.and_then(|place| retries.remove(place)) {
            self.give_retry_up(retry, Outcome::DeadlineExceeded, now);
        }
    }

    /// The run is over: what still waits ends with `outcome`.
    pub(super) fn end_retries(&mut self, outcome: Outcome, now: Time) {
        for retry in std::mem::take(&mut self.client.retries) {
            self.give_retry_up(retry, outcome, now);
        }
    }

    fn give_retry_up(&mut self, retry: Retry, outcome: Outcome, now: Time) {
        let done = Done {
            call: retry.call,
            outcome,
            first_byte: Time::NEVER,
            bytes_sent: 0,
            bytes_received: 0,
        };
        debug_assert_eq!(self.client.calls.get(retry.call).connection, NO_CONNECTION);
        self.call_ended(&done, Role::Lane(retry.lane), now);
    }
}
