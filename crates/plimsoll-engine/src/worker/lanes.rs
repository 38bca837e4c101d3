//! Lanes: the plan's connections, whichever connection serves each.
//!
//! That one can be lost or drained and is then replaced, with growing pauses while the target refuses, or
//! takes connections and ends them before they have carried a call.

use std::time::Duration;

use plimsoll_model::{Outcome, Time};

use super::Worker;
use super::connection::Role;
use crate::driver::{Driver, Protocol};
use crate::event_loop::connection::State;
use crate::event_loop::{Control, Established};
use crate::loss::Loss;
use crate::network::Network;

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What a connection was that is gone.
pub(super) struct Gone {
    /// It was of use.
    pub(super) served: bool,
    /// It had no call in flight, so no client has noticed.
    pub(super) idle: bool,
}

impl<P: Protocol, N: Network> Worker<P, N> {
    /// How long a connection that has come up may live, where the plan says so. The first ones of the
    /// lanes end one after another, over the time of one life, so that their successors do, too.
    pub(super) fn begin_life(&mut self, index: u32, lane: u32) {
        let load = &self.share.load;
        let (lifetime, calls) = (load.connection_lifetime, load.calls_per_connection);
        if lifetime.is_none() && calls.is_none() {
            return;
        }
        let part = if self.client.lanes[lane as usize].settled {
            1.0
        } else {
            f64::from(lane + 1) / self.client.lanes.len() as f64
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
            self.client.driver_timers.push(connection.own.until, token);
        }
    }

    /// The lane's connection takes no more calls: it finishes its own and another takes over.
    pub(super) fn drain_lane(
        &mut self,
        control: &mut impl Control,
        index: u32,
        lane: u32,
        now: Time,
    ) {
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
        let idle = true;
        self.replace(lane, Gone { served, idle }, &Loss::went_away(), now);
    }

    /// Whether a lane's connection that is about to end was of use: it carried a call, or
    /// lasted. One that carried none is counted.
    pub(super) fn has_served(&mut self, index: u32, now: Time) -> bool {
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return true;
        };
        // Those that are to rest are of use while they are there.
        let is_to_carry = matches!(connection.own.role, Role::Lane(_)) && !self.client.rests;
        let carried = std::mem::replace(&mut connection.own.has_carried, true);
        let lasted = connection.age(now) >= LONGEST_PAUSE;
        // A server may close connections that are idle, and of these the last used one goes first.
        let was_idle = lasted && connection.own.driver.is_exclusive();
        if is_to_carry && !carried && !was_idle {
            self.recorder.stage(self.stage).connections_unused += 1;
        }
        carried || lasted
    }

    /// A lane's connection that was up is gone: another follows, at once where this one was of use.
    pub(super) fn replace(&mut self, lane: u32, gone: Gone, loss: &Loss, now: Time) {
        let entry = &mut self.client.lanes[lane as usize];
        if gone.served {
            entry.failures = 0;
        }
        if gone.served || entry.failures == 0 {
            entry.failures += u32::from(!gone.served);
            self.to_connect.push_back(lane);
            return self.top_up(lane, now);
        }
        self.pause(lane, loss.outcome, now);
        if gone.idle {
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
            .push(now + pause.mul_f64(spread), lane);
    }

    /// A lane's connection did not come up.
    pub(super) fn lane_failed(&mut self, lane: u32, loss: &Loss, now: Time) {
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
        self.recorder
            .stage(self.stage)
            .connect_failures
            .add(loss.outcome, 1);
        self.fail_idle_clients(lane, loss.outcome, now);
    }
}
