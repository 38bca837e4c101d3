//! Records the messages of a user's current call.

use plimsoll_model::{Recorder, Time};

use super::CurrentCall;

impl CurrentCall {
    /// Records a message that arrived at `at`. If that was before the call was sent, the message counts as received
    /// right then.
    pub(super) fn record_message(&mut self, at: Time, stage: u8, recorder: &mut Recorder) {
        match std::mem::replace(&mut self.last_message, at) {
            Time::NEVER => recorder.record_first_message(stage, at.since(self.sent)),
            before => recorder.record_message_gap(stage, at.since(before)),
        }
    }
}
