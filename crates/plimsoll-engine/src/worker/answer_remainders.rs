//! Open loop: connections that are still reading the remainder of an answer whose call has ended, while other
//! calls wait.
//!
//! The remainder of a body usually arrives at once. If it does not, the next call would have to wait until this
//! generator has read it, and a wait that the generator causes must not count towards the call. So the connection is
//! set aside to finish reading, and another replaces it.

use std::time::Duration;

use plimsoll_model::{Count, Time};

use super::Worker;
use super::connection::ConnectionRole;
use crate::driver::{Driver, Protocol};
use crate::event_loop::WorkerControl;
use crate::event_loop::connection::ConnectionState;
use crate::event_loop::due_calls::{CallSource, LoadPhase};
use crate::transport::network::Network;

/// Maximum time that a call waits for a connection that is reading a remainder before a new connection is established:
/// about the time that establishing one takes.
const MAX_REMAINDER_WAIT: Duration = Duration::from_millis(5);

impl<P: Protocol, N: Network> Worker<P, N> {
    /// Records that a connection has begun to read a remainder.
    #[cold]
    pub(super) fn on_remainder_begun(&mut self, index: u32, now: Time) {
        if !matches!(self.call_source, CallSource::Open(_)) {
            // In a closed loop, the client itself reads the remainder, so its next call is not due yet.
            return;
        }
        while let Some((_, token)) = self.client.reading_remainders.front()
            && self.find_connection(*token).is_none()
        {
            self.client.reading_remainders.pop_front();
        }
        let token = self.socket_token(index);
        if let Some(connection) = self.connections[index as usize].as_mut() {
            connection.data.reads_remainder = true;
            self.client.reading_remainders.push_back((now, token));
        }
    }

    /// Records that a connection has read the remainder and has capacity again.
    #[cold]
    pub(super) fn on_remainder_read(&mut self, index: u32) {
        let over = self.socket_token(index);
        self.client
            .reading_remainders
            .retain(|(_, token)| *token != over);
    }

    /// Returns when the next connection must be set aside; [`Time::NEVER`] if enough connections for all waiting calls
    /// are already being established.
    #[inline]
    pub(super) fn next_set_aside_time(&self) -> Time {
        let Some((since, _)) = self.client.reading_remainders.front() else {
            return Time::NEVER;
        };
        let coming = (self.to_connect.len() + self.connecting) as u64;
        if self.phase == LoadPhase::Loading && self.call_source.backlog_length() > coming {
            *since + MAX_REMAINDER_WAIT
        } else {
            Time::NEVER
        }
    }

    /// Sets aside connections that are still reading an answer's remainder, as many as there are waiting calls.
    #[cold]
    pub(super) fn set_aside_connections(&mut self, control: &mut impl WorkerControl, now: Time) {
        while self.next_set_aside_time() <= now
            && let Some((_, token)) = self.client.reading_remainders.pop_front()
        {
            let Some(index) = self.find_connection(token) else {
                continue;
            };
            let Some(connection) = self.connections[index as usize].as_ref() else {
                continue;
            };
            let reads_rest = connection.data.driver.is_reading_answer_remainder();
            if let (ConnectionRole::Slot(slot), ConnectionState::Open, true) =
                (connection.data.role, connection.state, reads_rest)
            {
                self.recorder
                    .add_protocol_count(self.stage, Count::ConnectionsSetAside, 1);
                self.drain_slot(control, index, slot, now);
                // The number of connections set aside is limited to the plan's number of connections.
                if self.connection_count() >= 2 * self.client.slots.len() {
                    self.close_finished_connection(index);
                }
            }
        }
    }
}
