//! The turns of a closed loop: its clients call for a time, while the loads that it takes turns with are silent.

use std::time::Duration;

use plimsoll_model::Time;
use plimsoll_model::plan::begins;
use plimsoll_model::record::{Done, TurnBegan};
use plimsoll_model::schedule::{Arrival, Arrivals};

use super::EventLoop;
use super::client::{Client, Steps};
use super::issue::{Closed, Issue, Phase};
use super::share::Share;
use crate::network::Network;
use crate::resources::TurnMeter;

/// Outside of them no call begins.
pub(crate) struct ClosedTurns {
    beginnings: Arrivals,
    /// `None`: there is none any more.
    next: Option<Arrival>,
    slot: Duration,
    /// Calls begin until then.
    until: Time,
    /// When the calls of the last turn had ended; `None`: some may be in flight.
    ended: Option<Time>,
    /// Of the last turn.
    number: u64,
    meter: Option<TurnMeter>,
}

impl ClosedTurns {
    pub(super) fn of(share: &Share) -> Option<Box<ClosedTurns>> {
        let slot = share.load.turns?.slot?;
        // Workers take every turn together.
        let mut beginnings = share.schedule.share(0, 1);
        Some(Box::new(ClosedTurns {
            next: beginnings.next(),
            beginnings,
            slot,
            until: Time::ZERO,
            ended: Some(Time::ZERO),
            number: 0,
            meter: None,
        }))
    }

    /// Reads what the turns before came to, where that is asked for.
    fn read(&self, number: u64, now: Time, (ok, bytes_received): (u64, u64)) -> Option<TurnBegan> {
        let done = Done {
            ok,
            bytes_received,
            began_ns: now.0,
            ended_ns: self.ended.unwrap_or(now).0,
        };
        Some(self.meter.as_ref()?.read(number, Some(done)))
    }

    /// When the turn that is on ends, or the next one begins.
    pub(super) fn changes(&self, start: Time, waits: bool) -> Time {
        match waits {
            true => (self.next).map_or(Time::NEVER, |next| start.plus_nanos(next.at)),
            false => self.until,
        }
    }
}

impl Closed {
    pub(crate) fn measure_turns(&mut self, meter: Option<TurnMeter>) {
        if let Some(turns) = &mut self.turns {
            turns.meter = meter;
        }
    }
}

impl<C: Client, N: Network> EventLoop<C, N>
where
    Self: Steps<C::Wish>,
{
    /// Closed loop in turns: ends one, or begins the next.
    pub(super) fn take_turn(&mut self, now: Time) {
        let (is_idle, is_loading) = (self.is_idle(), self.phase == Phase::Loading);
        let Issue::Closed(closed) = &mut self.issue else {
            return;
        };
        let Some(turns) = &mut closed.turns else {
            return;
        };
        closed.waits |= now >= turns.until;
        if closed.waits && is_idle {
            turns.ended.get_or_insert(now);
        }
        while closed.waits
            && is_loading
            && let Some(next) = turns.next
            && let at = self.start.plus_nanos(next.at)
            && at <= now
        {
            turns.next = turns.beginnings.next();
            turns.until = at + begins(turns.slot);
            // One that was slept through is not taken.
            if now < turns.until {
                let began = turns.read(next.number, now, self.recorder.so_far());
                began
                    .into_iter()
                    .for_each(|turn| self.recorder.turn_began(turn));
                (turns.number, turns.ended) = (next.number, None);
                (closed.waits, closed.begin) = (false, true);
            }
        }
    }

    /// Closed loop in turns: what the last of them came to.
    pub(super) fn end_turns(&mut self, now: Time) {
        if let Issue::Closed(closed) = &self.issue
            && let Some(turns) = &closed.turns
            && let Some(end) = turns.read(turns.number + 1, now, self.recorder.so_far())
        {
            self.recorder.turn_began(end);
        }
    }
}
