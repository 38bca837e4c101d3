//! Decides when to send a heartbeat on a silent connection, and when to give the connection up: after three consecutive
//! heartbeats were not answered within a second each, as in SOFABolt.

use plimsoll_model::Time;

/// How long the response to a heartbeat may take, in nanoseconds.
const ANSWER_TIMEOUT_NS: u64 = 1_000_000_000;

/// Number of consecutive unanswered heartbeats after which the connection is given up.
pub(crate) const MAX_MISSED_HEARTBEATS: u8 = 3;

/// The heartbeats of one connection.
#[derive(Debug)]
pub(crate) struct Heartbeats {
    /// Silence after which a heartbeat is due, in nanoseconds; 0 means never.
    interval_ns: u64,
    /// When bytes were last sent or received.
    last_active: Time,
    /// The heartbeat in flight: its id, and the deadline of its response.
    in_flight: Option<(u32, Time)>,
    missed_in_a_row: u8,
}

/// The action that the connection must take now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeartbeatAction {
    Nothing,
    /// Send a heartbeat.
    SendHeartbeat,
    /// Give up: [`MAX_MISSED_HEARTBEATS`] heartbeats were not answered.
    GiveUp,
}

impl Heartbeats {
    /// Makes the heartbeats of a connection. `every` is the silence after which a heartbeat is due, in nanoseconds; 0
    /// means never.
    pub(crate) fn new(every: u64) -> Heartbeats {
        Heartbeats {
            interval_ns: every,
            last_active: Time::ZERO,
            in_flight: None,
            missed_in_a_row: 0,
        }
    }

    /// Records that bytes were sent or received.
    #[inline]
    pub(crate) fn on_activity(&mut self, now: Time) {
        self.last_active = now;
    }

    #[inline]
    pub(crate) fn last_active(&self) -> Time {
        self.last_active
    }

    /// Records that the heartbeat with this id was sent.
    pub(crate) fn on_sent(&mut self, id: u32, now: Time) {
        self.last_active = now;
        self.in_flight = Some((id, now.plus_nanos(ANSWER_TIMEOUT_NS)));
    }

    /// Records the response to the heartbeat with this id.
    pub(crate) fn on_answered(&mut self, id: u32) {
        if self.in_flight.is_some_and(|(sent, _)| sent == id) {
            self.in_flight = None;
            self.missed_in_a_row = 0;
        }
    }

    /// Returns when [`Heartbeats::on_deadline`] has to be called; `is_open` says whether new heartbeats may be sent.
    #[inline]
    pub(crate) fn deadline(&self, is_open: bool) -> Option<Time> {
        match self.in_flight {
            Some((_, due)) => Some(due),
            None if self.interval_ns > 0 && is_open => {
                Some(self.last_active.plus_nanos(self.interval_ns))
            }
            None => None,
        }
    }

    pub(crate) fn on_deadline(&mut self, now: Time) -> HeartbeatAction {
        match self.in_flight {
            Some((_, due)) if now < due => HeartbeatAction::Nothing,
            Some(_) => {
                self.in_flight = None;
                self.missed_in_a_row += 1;
                if self.missed_in_a_row >= MAX_MISSED_HEARTBEATS {
                    HeartbeatAction::GiveUp
                } else {
                    HeartbeatAction::SendHeartbeat
                }
            }
            None if self.interval_ns == 0
                || now < self.last_active.plus_nanos(self.interval_ns) =>
            {
                HeartbeatAction::Nothing
            }
            None => HeartbeatAction::SendHeartbeat,
        }
    }
}
