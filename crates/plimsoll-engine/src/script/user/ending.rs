//! The ends of calls and users: a pausing user has no buffers, and the connections of a user that ends are ended in
//! order, such as a WebSocket with a Close frame.

use plimsoll_model::Time;

use super::User;
use crate::driver::{Driver, Event};
use crate::script::scenario::Scenario;
use crate::script::{LinkId, ScriptContext};

impl<C: Scenario> User<C> {
    /// Keeps the buffer of events for the next call, unless the user pauses until then.
    pub(super) fn keep_event_buffer(&mut self, events: Vec<Event>, now: Time) {
        let is_pausing = self.call.is_none() && self.next_at > now;
        if !is_pausing {
            self.events = events;
        }
    }

    pub(super) fn end_script(&mut self, context: &mut ScriptContext<'_>) {
        (self.next_at, self.waits_for_remainder) = (Time::NEVER, false);
        self.finish_connections(context);
        context.end_script(!self.has_failed);
    }

    /// Sends what ends the connections in order, such as the Close of a WebSocket.
    pub(super) fn finish_connections(&mut self, context: &mut ScriptContext<'_>) {
        for (link, connection) in (0..).map(LinkId).zip(&mut *self.links) {
            if let Some(driver) = &mut connection.driver {
                driver.finish(context.out_buffer(link));
            }
        }
    }
}
