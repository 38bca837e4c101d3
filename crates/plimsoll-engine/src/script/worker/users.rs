//! Who is there: arrivals and clients become scripts, until the load is over.

use std::cmp::Reverse;
use std::time::Duration;

use plimsoll_model::Time;
use plimsoll_model::plan::Arrivals as ArrivalsPlan;

use super::{Happened, Phase, ScriptWorker, Slot};
use crate::network::Network;
use crate::script::{Origin, Scripts};
use crate::worker::{Control, StopLevel};

/// After an interrupt, how long calls in flight may take.
const GRACE: Duration = Duration::from_secs(2);
/// A user whose script failed pauses this long at least.
const FAILURE_PAUSE: Duration = Duration::from_millis(100);

impl<C: Scripts, N: Network> ScriptWorker<C, N> {
    /// Begins the scripts that are due.
    pub(super) fn issue(&mut self, control: &mut impl Control, now: Time) {
        if self.phase != Phase::Loading || now < self.start {
            return;
        }
        if self.arrivals.is_some() {
            while let Some(arrival) = self.next {
                let due = self.start.plus_nanos(arrival.at);
                if due > now {
                    break;
                }
                self.stage = arrival.stage;
                self.recorder.pacing(arrival.stage, now.since(due));
                self.next = self.arrivals.as_mut().and_then(Iterator::next);
                // Its calls' deadline passed before anybody came to begin it.
                let late = now.duration_since(due);
                if self.share.load.deadline.is_some_and(|d| late >= d) {
                    let calls = u64::from(self.scripts.calls());
                    self.recorder.due(arrival.stage, calls);
                    self.recorder.not_started(arrival.stage, calls);
                    continue;
                }
                let origin = Origin {
                    number: arrival.number,
                    late_ns: now.since(due),
                };
                self.begin(control, origin, now);
            }
            return;
        }
        if now >= self.stage_end {
            self.enter_stage(now);
        }
        while self
            .pausing
            .peek()
            .is_some_and(|Reverse(when)| *when <= now)
        {
            self.pausing.pop();
            self.idle += 1;
        }
        // A failure at once gives the user back, with a pause: those idle now are all.
        for _ in 0..self.idle {
            match &mut self.scripts_left {
                Some(0) => break,
                Some(left) => *left -= 1,
                None => {}
            }
            self.idle -= 1;
            let number = self.begun * u64::from(self.share.of) + u64::from(self.share.index);
            self.begun += 1;
            self.begin(control, Origin { number, late_ns: 0 }, now);
        }
    }

    fn begin(&mut self, control: &mut impl Control, origin: Origin, now: Time) {
        let generation = self.next_generation;
        self.next_generation = self.next_generation.wrapping_add(1) & 0x007f_ffff;
        let slot = Slot {
            generation,
            number: origin.number,
            script: self.scripts.script(origin),
            connections: Default::default(),
            timer: Time::NEVER,
            stage: self.stage,
        };
        let index = match self.free.pop() {
            Some(index) => {
                self.slots[index as usize] = Some(slot);
                index
            }
            None => {
                self.slots.push(Some(slot));
                (self.slots.len() - 1) as u32
            }
        };
        self.happen(control, index, Happened::Begin, now);
    }

    /// A user's script is over: the next one follows, after a pause.
    pub(super) fn user_free(&mut self, ok: bool, now: Time) {
        let ArrivalsPlan::Closed { think, .. } = self.share.load.arrivals else {
            return;
        };
        let pause = if ok { think } else { think.max(FAILURE_PAUSE) };
        if pause.is_zero() {
            self.idle += 1;
        } else {
            self.pausing.push(Reverse(now + pause));
        }
    }

    /// Closed loop: which stage it is, and when that changes.
    pub(super) fn enter_stage(&mut self, now: Time) {
        match self.share.schedule.stage_at(now.since(self.start)) {
            Some(stage) => {
                self.stage = stage;
                let bounds = self.share.schedule.stage_bounds();
                self.stage_end = bounds[stage as usize]
                    .end
                    .map_or(Time::NEVER, |end| self.start.plus_nanos(end));
            }
            None => {
                self.stage_end = Time::NEVER;
                self.stop_issuing(now);
            }
        }
    }

    fn stop_issuing(&mut self, now: Time) {
        if self.phase == Phase::Loading {
            self.phase = Phase::Draining;
            self.stopped_at = now;
        }
    }

    pub(super) fn progress(&mut self, control: &mut impl Control, now: Time) {
        let level = control.stop_level();
        self.interrupted = level != StopLevel::Run;
        let running = self.slots.len() - self.free.len();
        if self.phase == Phase::Loading {
            let exhausted = match self.arrivals {
                Some(_) => self.next.is_none() && now >= self.schedule_end,
                None => self.scripts_left == Some(0),
            };
            if exhausted || self.interrupted {
                self.stop_issuing(now);
            }
        }
        if self.phase == Phase::Draining {
            // Scripts end by themselves: each query has its deadline. Without one, the
            // drain time is the bound.
            let repeats = self.arrivals.is_none() && self.share.calls.is_none();
            let bounded = repeats || self.share.load.deadline.is_none();
            let drained = bounded && now >= self.stopped_at + self.share.load.drain;
            let grace_over = self.interrupted && now >= self.stopped_at + GRACE;
            if running == 0 || drained || grace_over || level == StopLevel::Now {
                self.phase = Phase::Ended;
            }
        }
    }
}
