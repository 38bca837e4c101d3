//! Slots for the plan's persistent connections; each slot has a current connection.
//!
//! A lost or drained connection is replaced. Pauses between attempts grow while the target refuses connections, or
//! accepts them and closes them before they have carried a call.

use std::time::Duration;

use plimsoll_model::{Outcome, Time};

use super::Worker;
use super::connection::ConnectionRole;
use crate::driver::{Driver, Protocol};
use crate::error::ConnectFailure;
use crate::event_loop::connection::ConnectionState;
use crate::event_loop::{ConnectSummary, WorkerControl};
use crate::transport::connection_loss::ConnectionLoss;
use crate::transport::network::Network;

const MIN_RECONNECT_DELAY: Duration = Duration::from_millis(10);
/// Minimum time without a call after which a connection that the server closes counts as closed while idle.
const MIN_IDLE_TIME: Duration = Duration::from_millis(500);
const MAX_RECONNECT_DELAY: Duration = Duration::from_secs(1);

/// Properties of a connection that was lost.
pub(super) struct LostConnection {
    /// Whether the connection carried a call, or existed long enough.
    pub(super) was_useful: bool,
    /// Whether the connection had no call in flight, so that no client has seen a failure.
    pub(super) was_idle: bool,
}

impl<P: Protocol, N: Network> Worker<P, N> {
    /// Sets the lifetime of an established connection if the plan limits it. The lifetimes of the slots' first
    /// connections are spread over one lifetime, so that their replacements do not end at the same time.
    pub(super) fn set_lifetime(&mut self, index: u32, slot: u32) {
        let load = &self.share.load;
        let (lifetime, calls) = (load.connection_lifetime, load.calls_per_connection);
        if lifetime.is_none() && calls.is_none() {
            return;
        }
        let part = if self.client.slots[slot as usize].was_tried {
            1.0
        } else {
            f64::from(slot + 1) / self.client.slots.len() as f64
        };
        let now = self.network.now();
        let token = self.socket_token(index);
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return;
        };
        if let Some(calls) = calls {
            connection.data.calls_left = ((f64::from(calls) * part) as u64).max(1);
        }
        if let Some(lifetime) = lifetime {
            connection.data.expires_at = now + lifetime.mul_f64(part);
            // An idle connection has no event at the end of its lifetime, so a timer is needed.
            self.client
                .driver_timers
                .push(connection.data.expires_at, token);
        }
    }

    /// Drains the slot's connection, which finishes its calls while another replaces it.
    pub(super) fn drain_slot(
        &mut self,
        control: &mut impl WorkerControl,
        index: u32,
        slot: u32,
        now: Time,
    ) {
        let mut served = true;
        let mut drained = None;
        if let Some(connection) = self.connections[index as usize].as_mut() {
            let driver = &connection.data.driver;
            drained = Some(ConnectionLoss::drained_before_first_call(driver));
            connection.state = ConnectionState::Draining;
            tracing::debug!(connection = connection.generation, "connection draining");
            // Calls in flight may still succeed, so they count as carried.
            served = connection.data.in_flight > 0 || self.record_connection_use(index, now);
        }
        self.remove_from_available_connections(index);
        self.client.slots[slot as usize].connection = None;
        self.open_connections -= 1;
        control.add_connections(-1);
        let idle = true;
        self.replace_connection(
            slot,
            LostConnection {
                was_useful: served,
                was_idle: idle,
            },
            &drained.unwrap_or_else(ConnectionLoss::closed_by_peer),
            now,
        );
    }

    /// Returns whether a slot's connection that is about to end was useful: it carried a call, or existed for a while.
    /// Counts a connection that carried no call as unused, and one that had no recent call as closed while idle.
    pub(super) fn record_connection_use(&mut self, index: u32, now: Time) -> bool {
        let Some(connection) = self.connections[index as usize].as_mut() else {
            return true;
        };
        // Connections of mostly idle protocols count as used as long as they exist.
        let is_to_carry =
            matches!(connection.data.role, ConnectionRole::Slot(_)) && !self.client.is_mostly_idle;
        let carried = std::mem::replace(&mut connection.data.was_used, true);
        let lasted = connection.age(now) >= MAX_RECONNECT_DELAY;
        // A server may close idle connections, which were not needed recently anyway.
        let was_idle = lasted && connection.data.driver.carries_one_call_at_a_time();
        // If a call was in flight, it has just ended, so the time since then is 0.
        let since_call = now.since(connection.data.last_end);
        let rested = Duration::from_nanos(since_call).min(connection.age(now));
        let has_rested =
            rested >= MIN_IDLE_TIME && connection.data.driver.carries_one_call_at_a_time();
        let record = self.recorder.stage_mut(self.stage);
        record.connections_idle_closed += u64::from(is_to_carry && has_rested);
        if is_to_carry && !carried && !was_idle {
            record.connections_unused += 1;
        }
        carried || lasted
    }

    /// Replaces a slot's lost connection: at once if the connection was useful, otherwise after a pause.
    pub(super) fn replace_connection(
        &mut self,
        slot: u32,
        gone: LostConnection,
        loss: &ConnectionLoss,
        now: Time,
    ) {
        let entry = &mut self.client.slots[slot as usize];
        if gone.was_useful {
            entry.failures = 0;
        }
        if gone.was_useful || entry.failures == 0 {
            entry.failures += u32::from(!gone.was_useful);
            self.to_connect.push_back(slot);
            return self.start_idle_clients(slot, now);
        }
        self.schedule_reconnect(slot, loss.outcome, now);
        if gone.was_idle {
            self.fail_idle_clients(slot, loss.outcome, now);
        } else {
            self.start_idle_clients(slot, now);
        }
    }

    /// Marks the slot as down and schedules a reconnect with exponential backoff and jitter, so that slots do not
    /// reconnect simultaneously.
    fn schedule_reconnect(&mut self, slot: u32, outcome: Outcome, now: Time) {
        let entry = &mut self.client.slots[slot as usize];
        if entry.last_failure.replace(outcome).is_none() {
            self.client.slots_down += 1;
        }
        let doublings = entry.failures.min(7);
        entry.failures += 1;
        let pause = (MIN_RECONNECT_DELAY * 2u32.pow(doublings)).min(MAX_RECONNECT_DELAY);
        let mixed = (slot ^ entry.failures << 20).wrapping_mul(0x9e37_79b9);
        let spread = 0.75 + f64::from(mixed >> 16) / 131_072.0;
        self.client
            .reconnects
            .push(now + pause.mul_f64(spread), slot);
    }

    /// Records that a slot's connection could not be established; `state` is how far it came.
    pub(super) fn on_slot_failed(
        &mut self,
        slot: u32,
        loss: &ConnectionLoss,
        state: ConnectionState,
        now: Time,
    ) {
        let is_after_tls = state == ConnectionState::Greeting && self.client.tls.is_some();
        let entry = &mut self.client.slots[slot as usize];
        if !entry.was_tried {
            entry.was_tried = true;
            let ConnectSummary {
                failed, failure, ..
            } = &mut self.client.established;
            *failed += 1;
            failure.get_or_insert_with(|| ConnectFailure {
                is_after_tls,
                is_at_proxy: loss.is_at_proxy,
                ..ConnectFailure::new(loss.outcome, &*loss.detail)
            });
        }
        self.schedule_reconnect(slot, loss.outcome, now);
        self.recorder
            .stage_mut(self.stage)
            .connect_failures
            .add(loss.outcome, 1);
        self.fail_idle_clients(slot, loss.outcome, now);
    }
}
