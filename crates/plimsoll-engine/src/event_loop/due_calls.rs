//! Decides which calls are due: an open loop follows the schedule, a closed loop its clients.
//!
//! An arrival is noticed when the loop first sees that it is due; the time until then is the generator's own delay
//! ("pacing"). The call starts when a connection has capacity; the time until then is the send delay ("lag"). The two
//! differ if calls wait for a connection, which is not the generator's fault.

mod backlog;

use std::time::Duration;

use plimsoll_model::Time;
use plimsoll_model::plan::ArrivalModel as ArrivalsPlan;
use plimsoll_model::schedule::{Arrival, ArrivalIter};

pub(crate) use self::backlog::Backlog;
use super::EventLoop;
use super::batches::ClosedLoopBatches;
use super::client::{LoopClient, LoopHandler};
use super::tick_sleep::TickSleep;
use super::timers::TimerQueue;
use super::worker_control::{StopUrgency, WorkerControl};
use super::worker_share::WorkerShare;
use crate::host::resources::BatchMeter;
use crate::transport::network::Network;

/// Maximum time that calls in flight may continue after an interrupt.
const INTERRUPT_GRACE: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LoadPhase {
    /// Connections are being established; there is no load yet.
    Connecting,
    Loading,
    /// No call is started any more; the loop waits for those in flight.
    Draining,
    Ended,
}

/// The source of calls: the schedule (open loop) or clients (closed loop).
#[expect(clippy::large_enum_variant, reason = "there is one a worker")]
pub(crate) enum CallSource {
    Open(OpenLoop),
    Closed(ClosedLoop),
}

/// The open loop: arrivals follow the schedule.
pub(crate) struct OpenLoop {
    arrivals: ArrivalIter,
    /// The next arrival; `None` before the load, and after its last arrival.
    next: Option<Arrival>,
    /// Calls that were due and could not start yet.
    backlog: Option<Backlog>,
    /// End of the schedule: the run lasts until then, although the last arrival is earlier.
    end: Time,
    /// Interval in nanoseconds at whose multiples due calls are released together; if it is 0, each call is released
    /// when it is due.
    tick_ns: u64,
    /// The time from which calls are released without waiting for a tick.
    ticks_end: Time,
    /// With ticks and the kernel's receive times: sleeps from tick to tick. `None` if answers are read on arrival.
    pub(super) tick_sleep: Option<TickSleep>,
    /// The CPU meter, if several loads alternate in batches and CPU time is measured for each batch.
    pub(crate) batch_meter: Option<BatchMeter>,
}

/// The closed loop: each client starts its next call when the previous one has ended.
pub(crate) struct ClosedLoop {
    calls_left: Option<u64>,
    calls_issued: u64,
    /// Clients without a persistent connection that are ready to start a call.
    pub(crate) ready_clients: u32,
    /// Clients that pause between two calls, with the time at which each becomes ready.
    pausing: TimerQueue<()>,
    stage_end: Time,
    /// Whether clients with persistent connections must start, at the beginning of the load or of a batch.
    pub(crate) starts_persistent: bool,
    /// Whether another load's batch is running, so that no call may start.
    is_paused: bool,
    pub(crate) batches: Option<Box<ClosedLoopBatches>>,
}

impl CallSource {
    pub(crate) fn from_share(share: &WorkerShare) -> CallSource {
        match share.load.arrivals {
            ArrivalsPlan::Open(_) => CallSource::Open(OpenLoop {
                arrivals: share.schedule.share(share.index, share.of),
                next: None,
                backlog: None,
                end: Time(0),
                tick_ns: (Time::ZERO + share.load.tick).0,
                ticks_end: Time::NEVER,
                tick_sleep: (!share.load.tick.is_zero()).then(TickSleep::default),
                batch_meter: None,
            }),
            ArrivalsPlan::Closed { .. } => CallSource::Closed(ClosedLoop {
                calls_left: share.calls,
                calls_issued: 0,
                ready_clients: 0,
                pausing: TimerQueue::new(),
                stage_end: Time::NEVER,
                starts_persistent: false,
                is_paused: share.load.batches.is_some(),
                batches: ClosedLoopBatches::from_share(share),
            }),
        }
    }

    /// Returns whether an arrival is due in a load that began at `start`.
    #[inline]
    pub(crate) fn is_due(&self, start: Time, now: Time) -> bool {
        match self {
            CallSource::Open(open) => open.next.is_some_and(|next| start.0 + next.at <= now.0),
            CallSource::Closed(_) => false,
        }
    }

    /// Returns what decides whether the loop sleeps from tick to tick.
    #[inline]
    pub(crate) fn tick_sleep_mut(&mut self) -> Option<&mut TickSleep> {
        match self {
            CallSource::Open(open) => open.tick_sleep.as_mut(),
            CallSource::Closed(_) => None,
        }
    }

    #[inline]
    pub(crate) fn backlog(&self) -> Option<&Backlog> {
        match self {
            CallSource::Open(open) => open.backlog.as_ref(),
            CallSource::Closed(_) => None,
        }
    }

    /// Records that a connection became free `ns` nanoseconds after the target's answer arrived: the generator made
    /// queued calls wait that much longer.
    #[inline]
    pub(crate) fn add_lateness(&mut self, ns: u64) {
        if let CallSource::Open(open) = self
            && let Some(backlog) = &mut open.backlog
        {
            backlog.late_ns = backlog.late_ns.saturating_add(ns);
        }
    }

    /// Takes the backlog out for modification; [`CallSource::restore_backlog`] must follow.
    pub(crate) fn take_backlog(&mut self) -> Option<Backlog> {
        match self {
            CallSource::Open(open) => open.backlog.take(),
            CallSource::Closed(_) => None,
        }
    }

    pub(crate) fn restore_backlog(&mut self, backlog: Backlog) {
        if let CallSource::Open(open) = self
            && !backlog.is_empty()
        {
            open.backlog = Some(backlog);
        }
    }

    /// Returns the number of arrivals that are due and not started.
    pub(crate) fn backlog_length(&self) -> u64 {
        self.backlog().map_or(0, |backlog| backlog.length)
    }

    /// Closed loop: returns whether calls may be started now.
    pub(crate) fn may_start_calls(&self) -> bool {
        matches!(self, CallSource::Closed(closed) if closed.calls_left != Some(0) && !closed.is_paused)
    }

    /// Closed loop: returns true once per load, or per batch, when clients with persistent connections must start.
    pub(crate) fn take_persistent_start_flag(&mut self) -> bool {
        match self {
            CallSource::Closed(closed) => std::mem::take(&mut closed.starts_persistent),
            CallSource::Open(_) => false,
        }
    }

    /// Makes a client without a persistent connection ready again after `pause`.
    pub(crate) fn release_client(&mut self, pause: Duration, now: Time) {
        if let CallSource::Closed(closed) = self {
            if pause.is_zero() {
                closed.ready_clients += 1
            } else {
                closed.pausing.push(now + pause, ())
            }
        }
    }
}

impl OpenLoop {
    /// Returns the latest due time of the calls that are released at `now`: the last tick, if calls are released
    /// together.
    fn release_cutoff(&self, start: Time, now: Time) -> Time {
        match self.tick_ns {
            0 => now,
            // After the load's end, the last calls need not wait for a tick.
            _ if now >= self.ticks_end => now,
            tick => Time(now.0 - now.since(start) % tick),
        }
    }

    /// Returns when a call that is due `at` nanoseconds after the load's start is released.
    fn release_time(&self, start: Time, at: u64) -> Time {
        let due = start.plus_nanos(at);
        match self.tick_ns {
            0 => due,
            tick => start
                .plus_nanos(at.div_ceil(tick).saturating_mul(tick))
                .min(self.ticks_end.max(due)),
        }
    }

    /// Moves to the next arrival of a load that began at `start`. If the number of calls cuts the schedule short, the
    /// load ends when the first omitted call would have been due, however long the stage was planned.
    #[inline]
    fn advance(&mut self, start: Time) {
        self.next = self.arrivals.next();
        if self.next.is_none()
            && let Some(at) = self.arrivals.first_excess_time()
        {
            self.end = self.end.min(start.plus_nanos(at));
            self.ticks_end = self.ticks_end.min(self.end);
        }
    }

    /// Returns the end of the schedule.
    pub(crate) fn end(&self) -> Time {
        self.end
    }

    /// Queues a call that cannot be sent yet and that was noticed `late_ns` nanoseconds late.
    pub(crate) fn enqueue(&mut self, arrival: Arrival, late_ns: u64) {
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

impl<C: LoopClient, N: Network> EventLoop<C, N>
where
    Self: LoopHandler<C::ConnectRequest>,
{
    pub(super) fn start_issuing(&mut self) {
        match &mut self.call_source {
            CallSource::Open(open) => {
                let length = self.share.schedule.end();
                open.end = self.start.plus_nanos(length.unwrap_or(0));
                open.ticks_end = length.map_or(Time::NEVER, |_| open.end);
                open.advance(self.start);
            }
            CallSource::Closed(_) => self.enter_stage(self.start),
        }
        self.phase = LoadPhase::Loading;
        let length = self.share.schedule.end();
        let lasts = length.filter(|_| self.share.load.calls.is_none());
        self.load_end = lasts.map_or(Time::NEVER, |length| self.start.plus_nanos(length));
    }

    /// Closed loop: updates the current stage and when it ends.
    fn enter_stage(&mut self, now: Time) {
        let stage = self.share.schedule.stage_at(now.since(self.start));
        let bounds = self.share.schedule.stage_bounds();
        if let CallSource::Closed(closed) = &mut self.call_source {
            let end = stage.and_then(|stage| bounds[stage as usize].end);
            closed.stage_end = end.map_or(Time::NEVER, |end| self.start.plus_nanos(end));
        }
        match stage {
            Some(stage) => self.stage = stage,
            None => self.stop_issuing(now),
        }
    }

    /// Starts the calls that are due.
    #[inline]
    pub(super) fn issue_due_calls(&mut self, control: &mut impl WorkerControl, now: Time) {
        if self.phase == LoadPhase::Connecting || now < self.start {
            return;
        }
        match &self.call_source {
            CallSource::Open(_) => self.issue_open_loop(control, now),
            CallSource::Closed(closed) => {
                let takes_turns = closed.batches.is_some();
                if now >= closed.stage_end {
                    self.enter_stage(now);
                }
                if takes_turns {
                    self.switch_batch(now);
                }
                self.issue_closed_loop(control, now);
            }
        }
    }

    fn issue_open_loop(&mut self, control: &mut impl WorkerControl, now: Time) {
        self.pauses.slow_sends.begin(now);
        self.start_backlog(now);
        let leaving = match &self.call_source {
            CallSource::Open(open) => open.release_cutoff(self.start, now),
            CallSource::Closed(_) => return,
        };
        while let CallSource::Open(open) = &mut self.call_source
            && let Some(arrival) = open.next
        {
            let due = self.start.plus_nanos(arrival.at);
            if due > leaving || self.phase != LoadPhase::Loading {
                break;
            }
            self.stage = arrival.stage;
            if let Some(meter) = &open.batch_meter
                && let Some(turn) = meter.read_at_batch_start(arrival.number)
            {
                self.recorder.record_batch_start(turn);
            }
            self.recorder
                .stage_mut(arrival.stage)
                .pacing
                .record(now.since(due));
            open.advance(self.start);
            if now.since(due) >= self.deadline_ns {
                self.on_missed_deadline(arrival.stage)
            } else {
                self.on_arrival(control, arrival, now)
            }
        }
    }

    /// Closed loop with alternating batches: ends the current batch, or begins the next.
    fn switch_batch(&mut self, now: Time) {
        let (is_idle, is_loading) = (self.is_idle(), self.phase == LoadPhase::Loading);
        let CallSource::Closed(closed) = &mut self.call_source else {
            return;
        };
        let Some(turns) = &mut closed.batches else {
            return;
        };
        closed.is_paused |= now >= turns.batch_end;
        if closed.is_paused && is_idle {
            turns.record_calls_ended(now);
        }
        if closed.is_paused
            && is_loading
            && turns.begin_next_batch(self.start, now, &mut self.recorder)
        {
            (closed.is_paused, closed.starts_persistent) = (false, true);
        }
    }

    fn issue_closed_loop(&mut self, control: &mut impl WorkerControl, now: Time) {
        self.issue_on_persistent_connections(now);
        let CallSource::Closed(closed) = &mut self.call_source else {
            return;
        };
        while closed.pausing.pop_due(now).is_some() {
            closed.ready_clients += 1;
        }
        // A call that fails immediately makes its client ready again, so only the clients that are ready now are
        // started.
        for _ in 0..closed.ready_clients {
            let Some(number) = self.take_call() else {
                break;
            };
            if let CallSource::Closed(closed) = &mut self.call_source {
                closed.ready_clients -= 1;
            }
            self.start_client_call(control, number, now);
        }
    }

    /// Closed loop: takes one of the remaining calls, if their number is limited. Returns the call's number in the run,
    /// or `None` if no call may start now.
    #[inline]
    pub(crate) fn take_call(&mut self) -> Option<u64> {
        if self.phase != LoadPhase::Loading {
            return None;
        }
        let CallSource::Closed(closed) = &mut self.call_source else {
            return None;
        };
        if closed.is_paused {
            return None;
        }
        let counts = C::COUNTS_WARMUP || !self.share.load.stages[self.stage as usize].warmup;
        match &mut closed.calls_left {
            Some(0) if counts => return None,
            Some(left) if counts => *left -= 1,
            _ => {}
        }
        let number = closed.calls_issued * u64::from(self.share.of) + u64::from(self.share.index);
        closed.calls_issued += 1;
        Some(number)
    }

    /// Returns when the next arrival is released.
    pub(super) fn next_arrival(&self) -> Time {
        match &self.call_source {
            CallSource::Open(open) if self.phase == LoadPhase::Loading => {
                (open.next).map_or(Time::NEVER, |next| open.release_time(self.start, next.at))
            }
            _ => Time::NEVER,
        }
    }

    /// Returns when the loop must next act without an arrival or a socket event: when a stage or batch ends, or a
    /// client's pause is over.
    pub(super) fn next_issue_time(&self) -> Time {
        let is_loading = self.phase == LoadPhase::Loading;
        match &self.call_source {
            CallSource::Open(open) if is_loading && open.next.is_none() => open.end,
            CallSource::Open(_) => Time::NEVER,
            CallSource::Closed(closed) => {
                let begins = closed.starts_persistent
                    || closed.ready_clients > 0 && self.call_source.may_start_calls();
                let begin = if is_loading && begins {
                    self.start
                } else {
                    Time::NEVER
                };
                let back = closed.pausing.next_time();
                let turn = match &closed.batches {
                    Some(turns) if is_loading && closed.is_paused => {
                        turns.next_batch_start(self.start)
                    }
                    Some(turns) if is_loading => turns.batch_end,
                    _ => Time::NEVER,
                };
                closed.stage_end.min(back).min(begin).min(turn)
            }
        }
    }

    pub(super) fn stop_issuing(&mut self, now: Time) {
        if self.phase == LoadPhase::Loading {
            self.phase = LoadPhase::Draining;
            self.stopped_at = now;
        }
    }

    /// Returns whether no further call will be issued.
    pub(super) fn is_exhausted(&self, now: Time) -> bool {
        match &self.call_source {
            CallSource::Open(open) => open.next.is_none() && now >= open.end,
            CallSource::Closed(closed) => {
                let stages = &self.share.load.stages;
                let is_counted = !stages[self.stage as usize].warmup
                    && stages.last().is_some_and(|last| !last.warmup);
                closed.calls_left == Some(0) && (C::COUNTS_WARMUP || is_counted)
            }
        }
    }

    /// Returns when calls in flight are abandoned.
    pub(super) fn drain_end(&self) -> Time {
        match self.phase {
            LoadPhase::Draining if self.client.is_bounded_by_drain(&self.share) => {
                let drain = self.share.load.drain;
                drain.map_or(Time::NEVER, |drain| self.stopped_at + drain)
            }
            _ => Time::NEVER,
        }
    }

    /// Advances the load's phase: stops issuing, and ends the run once everything has drained.
    pub(super) fn advance_phase(&mut self, control: &mut impl WorkerControl, now: Time) {
        let level = control.stop_urgency();
        self.interrupted = level != StopUrgency::Run;
        let was_draining = self.phase == LoadPhase::Draining;
        if self.phase == LoadPhase::Loading && (self.interrupted || self.is_exhausted(now)) {
            self.stop_issuing(now);
        }
        if self.phase == LoadPhase::Draining {
            let grace_over = self.interrupted && now >= self.stopped_at + INTERRUPT_GRACE;
            let is_over = self.is_idle() || now >= self.drain_end() || grace_over;
            if level == StopUrgency::Now || is_over && (was_draining || !C::AWAITS_LATE_ANSWERS) {
                if let CallSource::Closed(closed) = &self.call_source
                    && let Some(turns) = &closed.batches
                {
                    turns.record_last_batch(now, &mut self.recorder);
                }
                self.phase = LoadPhase::Ended;
            }
        }
    }
}
