//! Provides the connection that a user's call needs: any, a new one, or the one that an earlier call has opened.

use plimsoll_model::{Outcome, Time};

use super::{User, UserLink};
use crate::driver::{AfterConnection, Driver};
use crate::script::ScriptContext;
use crate::script::scenario::{ConnectionNeed, Scenario};

impl<D> Default for UserLink<D> {
    fn default() -> UserLink<D> {
        UserLink {
            driver: None,
            is_connecting: false,
        }
    }
}

impl<D: Driver> UserLink<D> {
    /// Forgets the lost connection. Also drops its driver, unless the driver can still answer calls.
    pub(super) fn forget_connection(&mut self) {
        let driver = self.driver.take();
        self.driver = driver.filter(|driver| driver.after_connection() != AfterConnection::Drop);
        self.is_connecting = false;
    }
}

impl<C: Scenario> User<C> {
    /// Closes the connection of the current call if the call needs a new one.
    pub(super) fn replace_connection_if_needed(&mut self, context: &mut ScriptContext<'_>) {
        let need = self.shared.scenario.connection_need(&self.memory);
        if need != ConnectionNeed::New {
            return;
        }
        let link = self.link;
        if let Some(mut driver) = self.link_mut(link).driver.take() {
            driver.finish(context.out_buffer(link));
            context.close(link);
            self.link_mut(link).is_connecting = false;
        }
    }

    /// Returns the outcome and the error message of the current call if it needs a connection that no earlier call has
    /// opened.
    pub(super) fn missing_connection_failure(&self) -> Option<(Outcome, String)> {
        let scenario = &self.shared.scenario;
        let needs_open = scenario.connection_need(&self.memory) == ConnectionNeed::Open;
        (needs_open && self.driver().is_none())
            .then(|| scenario.missing_connection_failure(&self.memory))
    }

    /// Fails the current call, which can't be sent.
    #[cold]
    pub(super) fn fail_unsent_call(
        &mut self,
        outcome: Outcome,
        text: &str,
        now: Time,
        context: &mut ScriptContext<'_>,
    ) {
        context.record_failure_message(outcome, text);
        self.fail_call(outcome, now, context);
        self.apply_next_action(outcome, now, context);
        if context.ended.is_none() {
            self.set_timer(context);
        }
    }
}
