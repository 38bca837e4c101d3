//! The loss of a user's connections, and those that drivers ask for in their place.

use plimsoll_model::{Outcome, Time};

use super::{CurrentCall, User, UserLink};
use crate::driver::{AfterConnection, Driver, Protocol};
use crate::script::scenario::Scenario;
use crate::script::{LinkId, ScriptContext};

impl<C: Scenario> User<C> {
    /// Handles a lost connection after the driver has reported the outcome of its call.
    pub(super) fn on_connection_lost(
        &mut self,
        link: LinkId,
        outcome: Outcome,
        now: Time,
        context: &mut ScriptContext<'_>,
    ) {
        self.link_mut(link).forget_connection();
        if context.ended.is_some() {
            return;
        }
        // Calls now use another connection. The lost one is replaced when a call needs it.
        if link != self.link {
            return self.set_timer(context);
        }
        // No call was in flight on the lost connection: a waiting call had not been sent over it, or the user was
        // between two calls.
        if self.shared.scenario.replaces_lost_connections() {
            return self.send_or_connect(now, context);
        }
        if self.call.is_none() && self.calls_begun < self.shared.scenario.max_calls() {
            self.count_due_call(context);
            self.call = Some(CurrentCall::new_waiting(now));
        }
        self.fail_call(outcome, now, context);
        self.abort_remaining_calls(now, context);
    }

    /// Handles a connection that never became ready, which fails the call that needs it. The connection is not
    /// replaced, because a server that accepts connections without greeting would receive new ones endlessly.
    pub(super) fn on_connection_failed(
        &mut self,
        link: LinkId,
        outcome: Outcome,
        now: Time,
        context: &mut ScriptContext<'_>,
    ) {
        // The call may already have ended by its deadline, or may use another connection by now.
        let is_needed = link == self.link && self.call.as_ref().is_some_and(|call| call.is_waiting);
        if !is_needed {
            return self.on_connection_lost(link, outcome, now, context);
        }
        *self.link_mut(link) = UserLink::default();
        self.fail_call(outcome, now, context);
        self.apply_next_action(outcome, now, context);
        if context.ended.is_none() {
            self.set_timer(context);
        }
    }

    /// Requests a connection for a driver that needs another one.
    pub(super) fn reconnect_if_needed(&mut self, link: LinkId, context: &mut ScriptContext<'_>) {
        let connection = self.link_mut(link);
        if connection.needs_reconnection() && !connection.is_connecting {
            connection.is_connecting = true;
            context.connect(link);
        }
    }

    /// Returns the driver of a new connection: the one that has asked for it, or else a new one.
    pub(super) fn driver_for_connection(
        &mut self,
        link: LinkId,
    ) -> <C::Protocol as Protocol>::Driver {
        let connection = self.link_mut(link);
        let waiting = connection.needs_reconnection();
        match connection.driver.take().filter(|_| waiting) {
            Some(driver) => driver,
            None => self.shared.scenario.new_driver(link, &self.memory),
        }
    }
}

impl<D: Driver> UserLink<D> {
    /// Returns whether the driver waits for another connection.
    fn needs_reconnection(&self) -> bool {
        let driver = self.driver.as_ref();
        driver.is_some_and(|driver| driver.after_connection() == AfterConnection::Reconnect)
    }
}
