//! Retries of a user's call: one that the server did not process, or that it refused for now.

use plimsoll_model::metrics::measure::Count;
use plimsoll_model::{Outcome, Time};

use super::{CurrentCall, User};
use crate::driver::{CompletedCall, RefusedCall};
use crate::script::ScriptContext;
use crate::script::scenario::Scenario;
use crate::worker::ResponseTokens;

impl CurrentCall {
    /// Returns whether a waiting call may be sent: the server has not refused it, or it has waited long enough.
    pub(super) fn may_be_sent(&self, now: Time) -> bool {
        self.resend_at == Time::NEVER || self.resend_at <= now
    }

    /// Returns whether the call would be sent if it had a connection.
    pub(super) fn is_waiting_for_connection(&self) -> bool {
        self.is_waiting && self.resend_at == Time::NEVER
    }

    /// Returns the time of the call's next timer.
    pub(super) fn next_time(&self) -> Time {
        self.deadline.min(self.resend_at)
    }

    /// Resets the call so that it is sent again.
    fn restart(&mut self) {
        (self.is_waiting, self.is_retry) = (true, true);
        (self.answer, self.last_message) = (ResponseTokens::EMPTY, Time::NEVER);
    }
}

impl<C: Scenario> User<C> {
    /// Schedules the retry of a call that the server did not process, over the same connection or its replacement.
    #[cold]
    pub(super) fn on_unprocessed_call(
        &mut self,
        done: &CompletedCall,
        now: Time,
        context: &mut ScriptContext<'_>,
    ) {
        let may_retry = self.shared.retries_unprocessed
            && self.shared.scenario.replaces_lost_connections()
            && !context.is_interrupted();
        let again = (self.call.as_mut())
            .filter(|call| may_retry && !call.was_unprocessed && now < call.deadline);
        let Some(call) = again else {
            return self.on_call_end(done, now, context);
        };
        call.restart();
        call.was_unprocessed = true;
        context.add_to_count(Count::CallsRetried, 1);
    }

    /// Schedules the retry of a call that the server refused for now, or records its failure: if it was sent too often,
    /// or if it could not be sent again before its deadline. If the run was interrupted, a call that would have been
    /// sent again is cut off.
    #[cold]
    pub(super) fn on_refused_call(
        &mut self,
        refused: &RefusedCall,
        now: Time,
        context: &mut ScriptContext<'_>,
    ) {
        let (retries, number) = (self.shared.refusal_retries, self.call_number());
        let again = self.call.as_mut().and_then(|call| {
            let wait = retries.wait(refused, number, call.refusals)?;
            (now + wait < call.deadline).then_some((call, wait))
        });
        let Some((call, wait)) = again else {
            return self.on_call_end(&refused.done, now, context);
        };
        if context.is_interrupted() {
            let outcome = Outcome::Interrupted;
            let done = CompletedCall {
                outcome,
                ..refused.done
            };
            return self.on_call_end(&done, now, context);
        }
        call.restart();
        call.refusals += 1;
        call.resend_at = now + wait;
        let is_first = call.refusals == 1;
        context.add_to_count(Count::RefusalsRetried, 1);
        if is_first {
            context.add_to_count(Count::CallsRefused, 1);
        }
    }
}
