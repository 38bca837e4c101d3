//! The worker: one event loop on one core, sharing nothing.
//!
//! It waits until an arrival is due or a socket is ready, stamps, starts calls, moves
//! bytes, and records. [`issue`] decides which calls start (open or closed loop);
//! [`lifecycle`] makes, serves and replaces connections. The order of a turn: wait,
//! sockets, timers, arrivals, writes.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use plimsoll_model::plan::{Arrivals as ArrivalsPlan, Load, Reuse, Shard};
use plimsoll_model::record::Interval;
use plimsoll_model::recorder::Recorder;
use plimsoll_model::run::NegotiatedTls;
use plimsoll_model::schedule::{Arrival, Arrivals, Schedule};
use plimsoll_model::{Outcome, Time};

use crate::addresses::Addresses;
use crate::driver::{Event, Protocol};
use crate::heap;
use crate::network::{Network, Ready, Token, Wake};
use crate::pauses::{LOOK_NS, Pauses};
use crate::racing::Races;
use crate::resources::TurnMeter;
use crate::tls::{Tally, TlsClient};

mod calls;
mod connection;
mod control;
mod established;
mod events;
mod intervals;
mod issue;
mod lifecycle;
mod tokens;

use calls::Calls;
use connection::Connection;
pub(crate) use connection::MAX_OWED;
pub(crate) use connection::SocketWriter;
pub use connection::classify_connect;
pub use control::{Control, StopLevel, WorkerInterval};
pub use established::Established;
pub use intervals::INTERVAL_NS;
pub(crate) use intervals::Intervals;
use issue::Backlog;
pub(crate) use tokens::Answer;
use tokens::Tokens;

/// Connections that may be coming up at once, over all workers of a run: fewer than any
/// listen backlog holds, since a dropped SYN costs a second.
const MAX_CONNECTING: usize = 256;

/// So many of them are a worker's own at least.
const FEWEST_CONNECTING: usize = 8;

/// After an interrupt, how long calls in flight may take.
const GRACE: Duration = Duration::from_secs(2);

/// One worker's part of a run.
#[derive(Clone, Debug)]
pub struct Share {
    /// This worker's place among all workers of all shards.
    pub index: u32,
    pub of: u32,
    /// Connections to keep.
    pub connections: u32,
    /// Closed loop: clients of this worker.
    pub clients: u32,
    /// Closed loop: calls of this worker that are not warm-up.
    pub calls: Option<u64>,
    pub load: Arc<Load>,
    pub schedule: Schedule,
    pub keep_requests: bool,
    pub trace: bool,
}

impl Share {
    /// What is `place`'s of a load.
    pub fn at(place: Shard, load: Arc<Load>, seed: u64) -> Share {
        Share {
            index: place.index,
            of: place.of,
            connections: place.part(u64::from(load.connections)) as u32,
            clients: place.part(load.arrivals.clients().map_or(0, u64::from)) as u32,
            calls: load.calls.map(|calls| place.part(calls)),
            schedule: Schedule::new(&load, seed),
            load,
            keep_requests: false,
            trace: false,
        }
    }

    /// Connections of this worker that may be coming up at once.
    pub(crate) fn most_connecting(&self) -> usize {
        (MAX_CONNECTING / self.of.max(1) as usize).max(FEWEST_CONNECTING)
    }
}

/// One of the plan's connections, whichever connection serves it at the moment.
#[derive(Clone, Debug, Default)]
struct Lane {
    connection: Option<u32>,
    /// Closed loop: clients that are to start a call here.
    idle: u32,
    /// Since when those of them wait for whom the connection had no room.
    waiting: VecDeque<Time>,
    /// It stands in the worker's heap of waits.
    watched: bool,
    failures: u32,
    /// The last attempt failed, and the next has not succeeded yet.
    down: Option<Outcome>,
    settled: bool,
}

/// One event loop. See the module's text.
pub struct Worker<P: Protocol, N: Network> {
    network: N,
    protocol: Arc<P>,
    tls: Option<TlsClient>,
    /// The plan resumes sessions, and this worker has had no connection yet.
    ticketless: bool,
    /// [`Protocol::rests`].
    rests: bool,
    share: Share,
    addresses: Addresses,
    races: Races<N::Socket>,

    connections: Vec<Option<Connection<P::Driver, N::Socket>>>,
    free: Vec<u32>,
    next_generation: u32,
    lanes: Vec<Lane>,
    lanes_down: usize,
    /// Lanes that want a connection.
    to_connect: VecDeque<u32>,
    connecting: usize,
    next_connect: Time,
    /// Connections with capacity, in turn.
    open: VecDeque<u32>,
    dirty: Vec<u32>,
    /// Connections that had more to read than one turn gives.
    unfinished: Vec<Token>,

    calls: Calls,
    tokens: Tokens,
    recorder: Recorder,
    /// An emptied interval, for its memory.
    spare: Option<Interval>,
    events: Vec<Event>,
    /// Shared by all connections.
    buffer: Vec<u8>,
    spare_outboxes: Vec<Vec<u8>>,

    start: Time,
    /// Open loop: what is still to come, and what was due and could not start.
    arrivals: Option<Arrivals>,
    next: Option<Arrival>,
    backlog: Option<Backlog>,
    /// Closed loop.
    calls_left: Option<u64>,
    issued: u64,
    idle_clients: u32,
    closed_began: bool,
    stage: u8,
    stage_end: Time,
    /// Open loop: the last arrival stands for the time up to here, so the run lasts as long.
    schedule_end: Time,
    /// Calls leave together at multiples of this; 0: each when it is due. Nanoseconds.
    tick_ns: u64,
    /// Where the load takes turns and CPU is read for them.
    turn_meter: Option<TurnMeter>,
    /// A call's deadline, from when it was due; where there is none, more than any time. Nanoseconds.
    deadline_ns: u64,
    /// From then on nothing waits for a tick.
    ticks_end: Time,

    phase: Phase,
    stopped_at: Time,
    /// Stopped before its time: what waits is not started any more.
    interrupted: bool,
    /// Connections made for one call, and not ended.
    attempts: usize,
    connect_deadlines: VecDeque<(Time, Token)>,
    /// Calls that wait for a connection of their own: when their deadlines pass.
    attempt_deadlines: VecDeque<(Time, Token)>,
    /// Closed loop: when the deadline passes of a lane's client that has waited longest.
    waits: BinaryHeap<Reverse<(Time, u32)>>,
    reconnects: BinaryHeap<Reverse<(Time, u32)>>,
    thinking: BinaryHeap<Reverse<(Time, u32)>>,
    driver_timers: BinaryHeap<Reverse<(Time, Token)>>,
    /// Connections that wait for a mark, and when to look at them.
    marks: VecDeque<(Time, Token)>,

    intervals: Intervals,
    pauses: Pauses,
    /// Calls that have been due so far.
    due: u64,
    open_connections: u32,
    established: Established,
    handshakes: Tally,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No load yet: connections come up.
    Connecting,
    Loading,
    /// No more arrivals; calls in flight end.
    Draining,
    Ended,
}

impl<P: Protocol, N: Network> Worker<P, N> {
    pub fn new(share: Share, network: N, protocol: Arc<P>, tls: Option<TlsClient>) -> Self {
        let lanes = match share.load.reuse {
            Reuse::Always => share.connections,
            Reuse::Never => 0,
        };
        let (mut lane_list, mut idle_clients) = (vec![Lane::default(); lanes as usize], 0);
        if let ArrivalsPlan::Closed { .. } = share.load.arrivals {
            if lanes == 0 {
                idle_clients = share.clients;
            } else {
                for client in 0..share.clients {
                    lane_list[(client % lanes) as usize].idle += 1;
                }
            }
        }
        // Connections made before the load count where the totals are taken.
        let first_counted = share.load.stages.iter().position(|stage| !stage.warmup);
        let recorder = Recorder::new(share.load.stages.len()).keeping_requests(share.keep_requests);
        Worker {
            network,
            rests: protocol.rests(),
            tokens: Tokens::new(protocol.goodput()),
            protocol,
            ticketless: tls.as_ref().is_some_and(TlsClient::resumes),
            tls,
            addresses: Addresses::default(),
            races: Races::default(),
            connections: Vec::with_capacity(lanes as usize),
            free: Vec::new(),
            next_generation: 0,
            lanes: lane_list,
            lanes_down: 0,
            to_connect: (0..lanes).collect(),
            connecting: 0,
            next_connect: Time::ZERO,
            open: VecDeque::with_capacity(lanes as usize),
            dirty: Vec::new(),
            unfinished: Vec::new(),
            calls: Calls::new(),
            recorder,
            spare: None,
            events: Vec::new(),
            buffer: vec![0; share.load.read_buffer],
            spare_outboxes: Vec::new(),
            start: Time::NEVER,
            arrivals: None,
            next: None,
            backlog: None,
            calls_left: share.calls,
            issued: 0,
            idle_clients,
            closed_began: false,
            stage: first_counted.unwrap_or(0) as u8,
            stage_end: Time::NEVER,
            schedule_end: Time(0),
            tick_ns: (Time::ZERO + share.load.tick).0,
            turn_meter: None,
            deadline_ns: (share.load.deadline)
                .map_or(u64::MAX, |deadline| (Time::ZERO + deadline).0),
            ticks_end: Time::NEVER,
            phase: Phase::Connecting,
            stopped_at: Time::NEVER,
            interrupted: false,
            attempts: 0,
            connect_deadlines: VecDeque::new(),
            attempt_deadlines: VecDeque::new(),
            waits: BinaryHeap::new(),
            reconnects: BinaryHeap::new(),
            thinking: BinaryHeap::new(),
            driver_timers: BinaryHeap::new(),
            marks: VecDeque::new(),
            intervals: Intervals::none_yet(),
            pauses: Pauses::new(),
            due: 0,
            open_connections: 0,
            established: Established::default(),
            handshakes: Tally::default(),
            share,
        }
    }

    /// Reads CPU clocks with `meter` when a turn of the load begins.
    pub fn measure_turns(&mut self, meter: Option<TurnMeter>) {
        self.turn_meter = meter;
    }

    /// Bring the plan's connections up. Returns when each has come up or failed once;
    /// those that failed are tried again during the load.
    ///
    /// # Errors
    /// When the event loop itself fails, which no target can cause.
    pub fn establish(&mut self, control: &mut impl Control) -> io::Result<Established> {
        let mut ready = Vec::new();
        let alone = self.share.of == 1;
        let before = alone.then(heap::allocated).flatten();
        while self.lanes.iter().any(|lane| !lane.settled) && control.stop_level() == StopLevel::Run
        {
            self.turn(control, None, &mut ready)?;
        }
        let grown = |before| Some(heap::allocated()?.saturating_sub(before));
        self.established.heap_bytes = before.and_then(grown);
        Ok(self.established.clone())
    }

    /// Keep connections alive until the load begins; `false` when it never will.
    ///
    /// # Errors
    /// As [`Worker::establish`].
    pub fn await_start(&mut self, control: &mut impl Control) -> io::Result<bool> {
        let mut ready = Vec::new();
        while control.start().is_none() {
            if control.stop_level() != StopLevel::Run {
                return Ok(false);
            }
            let soon = self.network.now() + Duration::from_millis(50);
            self.turn(control, Some(soon), &mut ready)?;
        }
        Ok(true)
    }

    /// Carry the load, from `start` to the last call's end.
    ///
    /// # Errors
    /// As [`Worker::establish`]. What was recorded up to then has been handed over.
    ///
    /// # Panics
    /// Where a driver, or the loop itself, has a defect: not before what was recorded has
    /// been handed over.
    pub fn run(&mut self, start: Time, control: &mut impl Control) -> io::Result<()> {
        let carried = catch_unwind(AssertUnwindSafe(|| self.carry(start, control)));
        carried.unwrap_or_else(|panic| {
            self.abandon(control);
            resume_unwind(panic)
        })
    }

    fn carry(&mut self, start: Time, control: &mut impl Control) -> io::Result<()> {
        self.start = start;
        self.intervals = Intervals::beginning(start);
        self.begin_issue();
        self.phase = Phase::Loading;
        let mut ready = Vec::new();
        let mut result = Ok(());
        while self.phase != Phase::Ended {
            if let Err(e) = self.turn(control, None, &mut ready) {
                result = Err(e);
                break;
            }
        }
        let now = self.network.now();
        let calls = self.calls_by_now();
        self.pauses.look(now, calls, true, &mut self.recorder);
        self.end_everything(control, now);
        self.hand_over(control, now, true);
        result
    }

    /// One turn of the loop.
    fn turn(
        &mut self,
        control: &mut impl Control,
        at_latest: Option<Time>,
        ready: &mut Vec<Ready>,
    ) -> io::Result<()> {
        let before = self.network.now();
        let wake = self.next_wake(at_latest, before);
        self.network.wait(Some(wake), ready)?;
        let mut now = self.network.now();
        self.intervals.waited(now.since(before), !ready.is_empty());
        if let Some(length) = self.pauses.waited(before, wake.at, now) {
            self.stood_still(length, now);
        }

        for (i, event) in ready.iter().copied().enumerate() {
            self.serve(control, event);
            // Arrivals don't wait for the rest of a large batch of answers.
            if self
                .next
                .is_some_and(|next| self.start.0 + next.at <= now.0)
                || i % 64 == 63
            {
                now = self.network.now();
                self.issue_due(now);
                self.flush_dirty(control);
            }
        }
        self.take_addresses(control);
        for token in std::mem::take(&mut self.unfinished) {
            self.serve(
                control,
                Ready {
                    token,
                    readable: true,
                    writable: false,
                    hangup: true,
                },
            );
        }
        now = self.network.now();
        self.expire(control, now);
        self.begin_connections(control, now);
        self.issue_due(now);
        // Connections that were begun now, to an address that needs no looking up.
        self.take_addresses(control);
        self.flush_dirty(control);
        self.progress_phase(control, now);
        if self.pauses.are_felt() {
            let calls = self.calls_by_now();
            self.pauses.look(now, calls, false, &mut self.recorder);
        }
        if now >= self.intervals.end() {
            self.hand_over(control, now, false);
        }
        Ok(())
    }

    #[cold]
    fn stood_still(&mut self, length_ns: u64, now: Time) {
        // What lies before the load is nobody's.
        if self.phase == Phase::Connecting || now < self.start {
            return;
        }
        let calls = self.calls_by_now();
        let length_ns = length_ns.min(now.since(self.start));
        self.pauses.begin(length_ns, now, calls, &mut self.recorder);
    }

    /// The stage, the calls in flight or waiting, and how many have been due.
    fn calls_by_now(&self) -> (u8, u64, u64) {
        let waiting = self.backlog.as_ref().map_or(0, Backlog::len);
        let under_way = self.calls.len() as u64 + self.attempts as u64 + waiting;
        (self.stage, under_way, self.due)
    }

    /// The next moment at which something has to be done.
    fn next_wake(&self, at_latest: Option<Time>, now: Time) -> Wake {
        // Control is looked at this often even if nothing happens.
        let look = if self.calls.len() > 0 {
            LOOK_NS
        } else {
            100_000_000
        };
        let mut at = now.plus_nanos(look).min(self.intervals.end());
        at = at.min(at_latest.unwrap_or(Time::NEVER));
        if let Some(deadline) = self.share.load.deadline {
            if let Some((_, oldest)) = self.calls.oldest() {
                at = at.min(oldest.arrival + deadline);
            }
            if let Some(backlog) = self.backlog.as_ref().filter(|_| !self.interrupted) {
                at = at.min(backlog.due(self.start) + deadline);
            }
            if let Some((when, _)) = self.attempt_deadlines.front() {
                at = at.min(*when);
            }
            if let Some(Reverse((when, _))) = self.waits.peek().filter(|_| !self.interrupted) {
                at = at.min(*when);
            }
        }
        if let Some((deadline, _)) = self.connect_deadlines.front() {
            at = at.min(*deadline);
        }
        at = at.min(self.races.next_timer());
        for heap in [&self.reconnects, &self.thinking] {
            if let Some(Reverse((when, _))) = heap.peek() {
                at = at.min(*when);
            }
        }
        if let Some(Reverse((when, _))) = self.driver_timers.peek() {
            at = at.min(*when);
        }
        if let Some((when, _)) = self.marks.front() {
            at = at.min(*when);
        }
        if !self.to_connect.is_empty() && self.connecting < self.share.most_connecting() {
            at = at.min(self.next_connect);
        }
        if !self.unfinished.is_empty() || !self.dirty.is_empty() {
            at = now;
        }
        at = at
            .min(self.clients_wake())
            .min(self.stage_end)
            .min(self.drain_end());
        if self.phase == Phase::Loading && self.next.is_none() && !self.is_closed_loop() {
            at = at.min(self.schedule_end);
        }
        let leaves = match self.next {
            Some(next) if self.phase == Phase::Loading => self.leaves_at(next.at),
            _ => Time::NEVER,
        };
        match leaves <= at {
            true => Wake {
                at: leaves,
                precise: true,
            },
            false => Wake { at, precise: false },
        }
    }

    /// Timers that have run out.
    fn expire(&mut self, control: &mut impl Control, now: Time) {
        if let Some(deadline) = self.share.load.deadline {
            while let Some((id, call)) = self.calls.oldest() {
                if call.arrival + deadline > now {
                    break;
                }
                self.deadline_passed(control, id, now);
            }
            self.expire_waiting(deadline, now);
        }
        while let Some((deadline, token)) = self.connect_deadlines.front().copied() {
            if deadline > now {
                break;
            }
            self.connect_deadlines.pop_front();
            self.connect_timed_out(control, token, now);
        }
        while let Some((deadline, token)) = self.attempt_deadlines.front().copied() {
            if deadline > now {
                break;
            }
            self.attempt_deadlines.pop_front();
            self.attempt_expired(control, token, now);
        }
        self.race_on(control, now);
        while let Some(Reverse((when, lane))) = self.reconnects.peek().copied() {
            if when > now {
                break;
            }
            self.reconnects.pop();
            self.to_connect.push_back(lane);
        }
        while let Some(Reverse((when, token))) = self.driver_timers.peek().copied() {
            if when > now {
                break;
            }
            self.driver_timers.pop();
            self.driver_expired(control, token, now);
        }
        while let Some((when, token)) = self.marks.front().copied() {
            if when > now {
                break;
            }
            self.marks.pop_front();
            self.mark_due(control, token, now);
        }
    }

    /// What the TLS handshakes agreed on.
    fn negotiated(&mut self) -> Option<NegotiatedTls> {
        let taken = self.tls.as_ref().map(TlsClient::certificates_taken);
        let mut negotiated = self.handshakes.take(taken.unwrap_or_default())?;
        negotiated.renewed = self.tls.as_ref().map_or(0, TlsClient::renewed);
        Some(negotiated)
    }

    /// After a panic: hands over what was recorded. Tables may be half changed, so what is
    /// in flight is what was due and has no end in any record.
    fn abandon(&mut self, control: &mut impl Control) {
        let now = self.network.now();
        let recorded = self.recorder.take(None);
        control.connections(-i64::from(self.open_connections));
        control.interval(WorkerInterval {
            last: true,
            negotiated: self.negotiated(),
            connections: self.open_connections,
            ..self.intervals.next(self.share.index, recorded, now)
        });
    }

    /// Hand the interval that has ended to the conductor, and begin the next.
    fn hand_over(&mut self, control: &mut impl Control, now: Time, last: bool) {
        let recorded = self.recorder.take(self.spare.take());
        self.spare = control.interval(WorkerInterval {
            last,
            negotiated: if last { self.negotiated() } else { None },
            in_flight: self.calls.len() as u64,
            backlog: self.backlog.as_ref().map_or(0, Backlog::len),
            connections: self.open_connections,
            ..self.intervals.next(self.share.index, recorded, now)
        });
    }
}
