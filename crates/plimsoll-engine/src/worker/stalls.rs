//! A target that has stopped to answer, where calls have no deadline.

use plimsoll_model::Time;

use super::Worker;
use crate::driver::Protocol;
use crate::event_loop::Control;
use crate::network::Network;

impl<P: Protocol, N: Network> Worker<P, N> {
    /// When the oldest call has waited for its answer, and the worker for any, for the plan's stall timeout.
    pub(super) fn stalled_at(&self) -> Time {
        match (self.share.load.stall_timeout, self.client.calls.oldest()) {
            (Some(timeout), Some((_, oldest))) => {
                oldest.arrival.max(self.client.last_answer) + timeout
            }
            _ => Time::NEVER,
        }
    }

    /// The target has stopped to answer: calls that have waited for the plan's stall timeout fail as if it were their
    /// deadline.
    #[cold]
    pub(super) fn fail_stalled(&mut self, control: &mut impl Control, now: Time) {
        let Some(timeout) = self.share.load.stall_timeout else {
            return;
        };
        while let Some((id, call)) = self.client.calls.oldest()
            && call.arrival + timeout <= now
        {
            self.deadline_passed(control, id, now);
        }
    }
}
