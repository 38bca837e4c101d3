//! Connections of an open loop that read the rest of an answer whose call is over, while other calls wait.
//!
//! What is left of a body usually comes at once. Where it does not, the wait is ours and no part of the next call: the
//! connection is set aside, reads on, and another takes its place.

use std::time::Duration;

use plimsoll_model::{Count, Time};

use super::Worker;
use super::connection::Role;
use crate::driver::{Driver, Protocol};
use crate::event_loop::Control;
use crate::event_loop::connection::State;
use crate::event_loop::issue::{Issue, Phase};
use crate::network::Network;

/// How long a call waits for a connection that reads a rest, before another is made: about what making one takes.
const MAX_REST_WAIT: Duration = Duration::from_millis(5);

impl<P: Protocol, N: Network> Worker<P, N> {
    /// A connection has begun to read a rest.
    #[cold]
    pub(super) fn rest_began(&mut self, index: u32, now: Time) {
        if !matches!(self.issue, Issue::Open(_)) {
            // Clients of a closed loop read it, too, and their next calls are not due.
            return;
        }
        while let Some((_, token)) = self.client.reading_rests.front()
            && self.live(*token).is_none()
        {
            self.client.reading_rests.pop_front();
        }
        let token = self.token_of(index);
        if let Some(connection) = self.connections[index as usize].as_mut() {
            connection.own.reads_rest = true;
            self.client.reading_rests.push_back((now, token));
        }
    }

    /// A connection has read a rest, and may carry the next call.
    #[cold]
    pub(super) fn rest_is_over(&mut self, index: u32) {
        let over = self.token_of(index);
        self.client
            .reading_rests
            .retain(|(_, token)| *token != over);
    }

    /// When a connection that reads a rest is to be set aside; [`Time::NEVER`]: no call waits that nothing else is
    /// being made for.
    #[inline]
    pub(super) fn next_set_aside(&self) -> Time {
        let Some((since, _)) = self.client.reading_rests.front() else {
            return Time::NEVER;
        };
        let coming = (self.to_connect.len() + self.connecting) as u64;
        if self.phase == Phase::Loading && self.issue.waiting() > coming {
            *since + MAX_REST_WAIT
        } else {
            Time::NEVER
        }
    }

    /// Sets aside as many connections as there are calls that wait.
    #[cold]
    pub(super) fn set_rests_aside(&mut self, control: &mut impl Control, now: Time) {
        while self.next_set_aside() <= now
            && let Some((_, token)) = self.client.reading_rests.pop_front()
        {
            let Some(index) = self.live(token) else {
                continue;
            };
            let Some(connection) = self.connections[index as usize].as_ref() else {
                continue;
            };
            let reads_rest = connection.own.driver.reads_rest();
            if let (Role::Lane(lane), State::Open, true) =
                (connection.own.role, connection.state, reads_rest)
            {
                self.recorder
                    .count(self.stage, Count::ConnectionsSetAside, 1);
                self.drain_lane(control, index, lane, now);
                // As many as the plan's connections read rests beside them, and not more.
                if self.live_connections() >= 2 * self.client.lanes.len() {
                    self.retire(index);
                }
            }
        }
    }
}
