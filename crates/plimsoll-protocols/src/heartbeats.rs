//! When a connection that is silent is tried with a heartbeat, and when it is given up:
//! after three in a row without an answer within a second each, as SOFABolt has it.

use plimsoll_model::Time;

/// How long an answer may take. Nanoseconds.
const ANSWER_TIMEOUT_NS: u64 = 1_000_000_000;

/// Unanswered heartbeats after which the connection is given up.
pub(crate) const MAX_MISSED: u8 = 3;

/// One connection's heartbeats.
#[derive(Debug)]
pub(crate) struct Heartbeats {
    /// Silence after which one is due, in nanoseconds; 0: never.
    every: u64,
    /// When bytes last went either way.
    last_active: Time,
    /// The one on its way: its id, and when its answer is missed.
    beat: Option<(u32, Time)>,
    missed: u8,
}

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    Nothing,
    /// Send one.
    Beat,
    /// [`MAX_MISSED`] were not answered.
    GiveUp,
}

impl Heartbeats {
    /// `every`: nanoseconds of silence; 0: never.
    pub(crate) fn new(every: u64) -> Heartbeats {
        Heartbeats {
            every,
            last_active: Time::ZERO,
            beat: None,
            missed: 0,
        }
    }

    /// Bytes went either way.
    #[inline]
    pub(crate) fn active(&mut self, now: Time) {
        self.last_active = now;
    }

    #[inline]
    pub(crate) fn last_active(&self) -> Time {
        self.last_active
    }

    /// One with this id was sent.
    pub(crate) fn sent(&mut self, id: u32, now: Time) {
        self.last_active = now;
        self.beat = Some((id, now.plus_nanos(ANSWER_TIMEOUT_NS)));
    }

    /// The answer to the one with this id has come.
    pub(crate) fn answered(&mut self, id: u32) {
        if self.beat.is_some_and(|(sent, _)| sent == id) {
            self.beat = None;
            self.missed = 0;
        }
    }

    /// When [`Heartbeats::expire`] has something to do; `is_open`: new ones may be sent.
    #[inline]
    pub(crate) fn deadline(&self, is_open: bool) -> Option<Time> {
        match self.beat {
            Some((_, due)) => Some(due),
            None if self.every > 0 && is_open => Some(self.last_active.plus_nanos(self.every)),
            None => None,
        }
    }

    pub(crate) fn expire(&mut self, now: Time) -> Due {
        match self.beat {
            Some((_, due)) if now < due => Due::Nothing,
            Some(_) => {
                self.beat = None;
                self.missed += 1;
                if self.missed >= MAX_MISSED {
                    Due::GiveUp
                } else {
                    Due::Beat
                }
            }
            None if self.every == 0 || now < self.last_active.plus_nanos(self.every) => {
                Due::Nothing
            }
            None => Due::Beat,
        }
    }
}
