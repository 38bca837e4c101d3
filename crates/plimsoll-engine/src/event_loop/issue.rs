//! What is due, and when: the open loop follows the schedule, the closed loop its clients.
//!
//! An arrival is noticed when the loop first sees that it is due; the time from due to
//! noticed is the generator's own lateness (pacing). It starts when a connection has
//! capacity; the time from due to started is the lag. The two differ when calls have to
//! wait for a connection, which is not the generator's fault.

use std::time::Duration;

use plimsoll_model::Time;
use plimsoll_model::plan::Arrivals as ArrivalsPlan;
use plimsoll_model::schedule::{Arrival, Arrivals};

use super::EventLoop;
use super::client::{Client, Steps};
use super::control::{Control, StopLevel};
use super::share::Share;
use super::timers::Timers;
use super::turns::ClosedTurns;
use crate::network::Network;
use crate::resources::TurnMeter;

/// After an interrupt, how long calls in flight may take.
const INTERRUPT_GRACE: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// No load yet: connections come up.
    Connecting,
    Loading,
    /// No more arrivals; calls in flight end.
    Draining,
    Ended,
}

/// The source of calls.
#[expect(clippy::large_enum_variant, reason = "there is one a worker")]
pub(crate) enum Issue {
    Open(Open),
    Closed(Closed),
}

/// The schedule's arrivals.
pub(crate) struct Open {
    arrivals: Arrivals,
    /// `None` before the load, and after its last arrival.
    next: Option<Arrival>,
    /// What was due and could not start.
    backlog: Option<Backlog>,
    /// The last arrival stands for the time up to here, so the run lasts as long.
    end: Time,
    /// Calls leave together at multiples of this; 0: each when it is due. Nanoseconds.
    tick_ns: u64,
    /// The time from which nothing waits for a tick.
    ticks_end: Time,
    /// The CPU meter, where the load takes turns and CPU is read for them.
    pub(crate) turn_meter: Option<TurnMeter>,
}

/// Clients, each with its next call once the last one is over.
pub(crate) struct Closed {
    left: Option<u64>,
    issued: u64,
    /// Clients that keep no connection and are to begin.
    pub(crate) idle: u32,
    /// When others of them are.
    pausing: Timers<()>,
    stage_end: Time,
    /// Clients of kept connections are to begin, in the load or in a turn.
    pub(crate) begin: bool,
    /// It is another load's turn.
    waits: bool,
    pub(crate) turns: Option<Box<ClosedTurns>>,
}

impl Issue {
    pub(crate) fn of(share: &Share) -> Issue {
        match share.load.arrivals {
            ArrivalsPlan::Open(_) => Issue::Open(Open {
                arrivals: share.schedule.share(share.index, share.of),
                next: None,
                backlog: None,
                end: Time(0),
                tick_ns: (Time::ZERO + share.load.tick).0,
                ticks_end: Time::NEVER,
                turn_meter: None,
            }),
            ArrivalsPlan::Closed { .. } => Issue::Closed(Closed {
                left: share.calls,
                issued: 0,
                idle: 0,
                pausing: Timers::new(),
                stage_end: Time::NEVER,
                begin: false,
                waits: share.load.turns.is_some(),
                turns: ClosedTurns::of(share),
            }),
        }
    }

    /// An arrival of a load that began at `start` is due.
    #[inline]
    pub(crate) fn is_due(&self, start: Time, now: Time) -> bool {
        match self {
            Issue::Open(open) => open.next.is_some_and(|next| start.0 + next.at <= now.0),
            Issue::Closed(_) => false,
        }
    }

    #[inline]
    pub(crate) fn backlog(&self) -> Option<&Backlog> {
        match self {
            Issue::Open(open) => open.backlog.as_ref(),
            Issue::Closed(_) => None,
        }
    }

    /// A connection was free again later by `ns` nanoseconds than the target had answered: what waits for it waited as
    /// long.
    #[inline]
    pub(crate) fn freed_late(&mut self, ns: u64) {
        if let Issue::Open(open) = self
            && let Some(backlog) = &mut open.backlog
        {
            backlog.late_ns = backlog.late_ns.saturating_add(ns);
        }
    }

    /// Takes what waits out, to be changed; [`Issue::put_back`] follows.
    pub(crate) fn take_backlog(&mut self) -> Option<Backlog> {
        match self {
            Issue::Open(open) => open.backlog.take(),
            Issue::Closed(_) => None,
        }
    }

    pub(crate) fn put_back(&mut self, backlog: Backlog) {
        if let Issue::Open(open) = self
            && !backlog.is_empty()
        {
            open.backlog = Some(backlog);
        }
    }

    /// Arrivals that are due and not started.
    pub(crate) fn waiting(&self) -> u64 {
        self.backlog().map_or(0, |backlog| backlog.length)
    }

    /// Closed loop: there may be calls left to begin now.
    pub(crate) fn has_calls_left(&self) -> bool {
        matches!(self, Issue::Closed(closed) if closed.left != Some(0) && !closed.waits)
    }

    /// Closed loop: whether the clients of kept connections are to begin; once a load, or once a turn.
    pub(crate) fn clients_begin(&mut self) -> bool {
        match self {
            Issue::Closed(closed) => std::mem::take(&mut closed.begin),
            Issue::Open(_) => false,
        }
    }

    /// A client that keeps no connection begins again after `pause`.
    pub(crate) fn client_free(&mut self, pause: Duration, now: Time) {
        if let Issue::Closed(closed) = self {
            if pause.is_zero() {
                closed.idle += 1
            } else {
                closed.pausing.push(now + pause, ())
            }
        }
    }
}

impl Open {
    /// What was due by then leaves at `now`: where calls leave together, the last tick that has passed.
    fn last_tick(&self, start: Time, now: Time) -> Time {
        match self.tick_ns {
            0 => now,
            // The last calls wait for no tick that would come after the load's end.
            _ if now >= self.ticks_end => now,
            tick => Time(now.0 - now.since(start) % tick),
        }
    }

    /// When the call that is due at `at`, from the load's start, leaves.
    fn leaves_at(&self, start: Time, at: u64) -> Time {
        let due = start.plus_nanos(at);
        match self.tick_ns {
            0 => due,
            tick => start
                .plus_nanos(at.div_ceil(tick).saturating_mul(tick))
                .min(self.ticks_end.max(due)),
        }
    }

    /// The last arrival stands for the time up to here.
    pub(crate) fn end(&self) -> Time {
        self.end
    }

    /// The call, which was noticed late by `late_ns` nanoseconds, cannot be sent yet.
    pub(crate) fn wait(&mut self, arrival: Arrival, late_ns: u64) {
        match &mut self.backlog {
            Some(backlog) => {
                backlog.length += 1;
                backlog.late_ns = backlog.late_ns.max(late_ns);
            }
            None => {
                self.backlog = Some(Backlog {
                    head: arrival,
                    second: self.next,
                    rest: self.arrivals.clone(),
                    length: 1,
                    late_ns,
                });
            }
        }
    }
}

/// Arrivals that were due when no connection had capacity, in order. The schedule itself
/// is the queue: only its position is kept, however long the backlog grows.
#[derive(Clone, Debug)]
pub(crate) struct Backlog {
    pub(crate) head: Arrival,
    second: Option<Arrival>,
    rest: Arrivals,
    length: u64,
    /// By how much at most the generator itself has made a call of these wait. Nanoseconds.
    late_ns: u64,
}

impl Backlog {
    pub(crate) fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// When the first of them was due, in a load that began at `start`.
    pub(crate) fn due(&self, start: Time) -> Time {
        start.plus_nanos(self.head.at)
    }

    /// By how much at most the generator itself has made a call of these wait. Nanoseconds.
    pub(crate) fn late_ns(&self) -> u64 {
        self.late_ns
    }

    pub(crate) fn advance(&mut self) {
        self.length -= 1;
        if self.length > 0
            && let Some(next) = self.second.take().or_else(|| self.rest.next())
        {
            self.head = next;
        }
    }
}

impl<C: Client, N: Network> EventLoop<C, N>
where
    Self: Steps<C::Wish>,
{
    pub(super) fn begin_issue(&mut self) {
        match &mut self.issue {
            Issue::Open(open) => {
                open.next = open.arrivals.next();
                let length = self.share.schedule.end();
                open.end = self.start.plus_nanos(length.unwrap_or(0));
                open.ticks_end = length.map_or(Time::NEVER, |_| open.end);
            }
            Issue::Closed(_) => self.enter_stage(self.start),
        }
        self.phase = Phase::Loading;
        let length = self.share.schedule.end();
        let lasts = length.filter(|_| self.share.load.calls.is_none());
        self.load_end = lasts.map_or(Time::NEVER, |length| self.start.plus_nanos(length));
    }

    /// Closed loop: which stage it is, and when that changes.
    fn enter_stage(&mut self, now: Time) {
        let stage = self.share.schedule.stage_at(now.since(self.start));
        let bounds = self.share.schedule.stage_bounds();
        if let Issue::Closed(closed) = &mut self.issue {
            let end = stage.and_then(|stage| bounds[stage as usize].end);
            closed.stage_end = end.map_or(Time::NEVER, |end| self.start.plus_nanos(end));
        }
        match stage {
            Some(stage) => self.stage = stage,
            None => self.stop_issuing(now),
        }
    }

    /// Start what is due.
    #[inline]
    pub(super) fn issue_due(&mut self, control: &mut impl Control, now: Time) {
        if self.phase == Phase::Connecting || now < self.start {
            return;
        }
        match &self.issue {
            Issue::Open(_) => self.issue_open(control, now),
            Issue::Closed(closed) => {
                let takes_turns = closed.turns.is_some();
                if now >= closed.stage_end {
                    self.enter_stage(now);
                }
                if takes_turns {
                    self.take_turn(now);
                }
                self.issue_closed(control, now);
            }
        }
    }

    fn issue_open(&mut self, control: &mut impl Control, now: Time) {
        self.start_backlog(now);
        let leaving = match &self.issue {
            Issue::Open(open) => open.last_tick(self.start, now),
            Issue::Closed(_) => return,
        };
        while let Issue::Open(open) = &mut self.issue
            && let Some(arrival) = open.next
        {
            let due = self.start.plus_nanos(arrival.at);
            if due > leaving || self.phase != Phase::Loading {
                break;
            }
            self.stage = arrival.stage;
            if let Some(meter) = &open.turn_meter
                && let Some(turn) = meter.began(arrival.number)
            {
                self.recorder.turn_began(turn);
            }
            self.recorder
                .stage(arrival.stage)
                .pacing
                .record(now.since(due));
            open.next = open.arrivals.next();
            if now.since(due) >= self.deadline_ns {
                self.came_too_late(arrival.stage)
            } else {
                self.arrived(control, arrival, now)
            }
        }
    }

    /// Closed loop in turns: ends one, or begins the next.
    fn take_turn(&mut self, now: Time) {
        let (is_idle, is_loading) = (self.is_idle(), self.phase == Phase::Loading);
        let Issue::Closed(closed) = &mut self.issue else {
            return;
        };
        let Some(turns) = &mut closed.turns else {
            return;
        };
        closed.waits |= now >= turns.until;
        if closed.waits && is_idle {
            turns.has_ended(now);
        }
        if closed.waits && is_loading && turns.begin_next(self.start, now, &mut self.recorder) {
            (closed.waits, closed.begin) = (false, true);
        }
    }

    fn issue_closed(&mut self, control: &mut impl Control, now: Time) {
        self.issue_on_lanes(now);
        let Issue::Closed(closed) = &mut self.issue else {
            return;
        };
        while closed.pausing.due(now).is_some() {
            closed.idle += 1;
        }
        // A failure at once gives the client back: only those idle now start in this turn.
        for _ in 0..closed.idle {
            let Some(number) = self.take_call() else {
                break;
            };
            if let Issue::Closed(closed) = &mut self.issue {
                closed.idle -= 1;
            }
            self.begin(control, number, now);
        }
    }

    /// Closed loop: takes one from the calls that are left, where their number is limited. Returns its
    /// number in the run.
    #[inline]
    pub(crate) fn take_call(&mut self) -> Option<u64> {
        if self.phase != Phase::Loading {
            return None;
        }
        let Issue::Closed(closed) = &mut self.issue else {
            return None;
        };
        if closed.waits {
            return None;
        }
        let counts = C::WARMUP_COUNTS || !self.share.load.stages[self.stage as usize].warmup;
        match &mut closed.left {
            Some(0) if counts => return None,
            Some(left) if counts => *left -= 1,
            _ => {}
        }
        let number = closed.issued * u64::from(self.share.of) + u64::from(self.share.index);
        closed.issued += 1;
        Some(number)
    }

    /// When the next arrival's call leaves.
    pub(super) fn next_arrival(&self) -> Time {
        match &self.issue {
            Issue::Open(open) if self.phase == Phase::Loading => {
                (open.next).map_or(Time::NEVER, |next| open.leaves_at(self.start, next.at))
            }
            _ => Time::NEVER,
        }
    }

    /// When something is to be issued without anything else happening, but for arrivals.
    pub(super) fn next_issue(&self) -> Time {
        let is_loading = self.phase == Phase::Loading;
        match &self.issue {
            Issue::Open(open) if is_loading && open.next.is_none() => open.end,
            Issue::Open(_) => Time::NEVER,
            Issue::Closed(closed) => {
                let begins = closed.begin || closed.idle > 0 && self.issue.has_calls_left();
                let begin = if is_loading && begins {
                    self.start
                } else {
                    Time::NEVER
                };
                let back = closed.pausing.next();
                let turn = match &closed.turns {
                    Some(turns) if is_loading && closed.waits => turns.next_begins(self.start),
                    Some(turns) if is_loading => turns.until,
                    _ => Time::NEVER,
                };
                closed.stage_end.min(back).min(begin).min(turn)
            }
        }
    }

    pub(super) fn stop_issuing(&mut self, now: Time) {
        if self.phase == Phase::Loading {
            self.phase = Phase::Draining;
            self.stopped_at = now;
        }
    }

    /// Nothing more will be issued.
    pub(super) fn is_exhausted(&self, now: Time) -> bool {
        match &self.issue {
            Issue::Open(open) => open.next.is_none() && now >= open.end,
            Issue::Closed(closed) => {
                let stages = &self.share.load.stages;
                let is_counted = !stages[self.stage as usize].warmup
                    && stages.last().is_some_and(|last| !last.warmup);
                closed.left == Some(0) && (C::WARMUP_COUNTS || is_counted)
            }
        }
    }

    /// When to give up on what is in flight.
    pub(super) fn drain_end(&self) -> Time {
        match self.phase {
            Phase::Draining if self.client.is_given_up(&self.share) => {
                let drain = self.share.load.drain;
                drain.map_or(Time::NEVER, |drain| self.stopped_at + drain)
            }
            _ => Time::NEVER,
        }
    }

    /// Is it over?
    pub(super) fn progress(&mut self, control: &mut impl Control, now: Time) {
        let level = control.stop_level();
        self.interrupted = level != StopLevel::Run;
        let was_draining = self.phase == Phase::Draining;
        if self.phase == Phase::Loading && (self.interrupted || self.is_exhausted(now)) {
            self.stop_issuing(now);
        }
        if self.phase == Phase::Draining {
            let grace_over = self.interrupted && now >= self.stopped_at + INTERRUPT_GRACE;
            let is_over = self.is_idle() || now >= self.drain_end() || grace_over;
            if level == StopLevel::Now || is_over && (was_draining || !C::AWAITS_LATE_ANSWERS) {
                if let Issue::Closed(closed) = &self.issue
                    && let Some(turns) = &closed.turns
                {
                    turns.end(now, &mut self.recorder);
                }
                self.phase = Phase::Ended;
            }
        }
    }
}
