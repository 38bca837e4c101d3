//! The end of a user: its connections are ended in order, such as a WebSocket with a Close frame.

use plimsoll_model::Time;

use super::User;
use crate::driver::Driver;
use crate::script::scenario::Scenario;
use crate::script::{LinkId, ScriptContext};

impl<C: Scenario> User<C> {
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
