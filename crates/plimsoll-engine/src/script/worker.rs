//! The worker that runs scripts: one event loop on one core, sharing nothing.
//!
//! The order of a turn is that of [`crate::worker`]: wait, sockets, timers, arrivals.
//! [`users`] decides which scripts begin, [`links`] moves their bytes.
//! Invariant: every call a script reported as due is recorded once, for a script that is
//! over at the end of the run has to end its call.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use plimsoll_model::plan::Arrivals as ArrivalsPlan;
use plimsoll_model::record::Interval;
use plimsoll_model::run::NegotiatedTls;
use plimsoll_model::schedule::{Arrival, Arrivals};
use plimsoll_model::{Outcome, Recorder, Time};

use super::{Action, LINKS, Link, Script, Scripts, Turn};
use crate::addresses::Addresses;
use crate::fault;
use crate::network::{Network, Ready, Token, Wake};
use crate::pauses::{LOOK_NS, Pauses};
use crate::racing::Races;
use crate::tls::{Tally, TlsClient};
use crate::worker::{Control, Intervals, Share, StopLevel, WorkerInterval};

mod connection;
mod links;
mod users;

use connection::Connection;

/// Bytes that a worker reads at a time. Small, since a peer may fill it with the smallest messages there
/// are: thousands of them, which all others wait for.
const READ_BUFFER: usize = 16 << 10;

struct Slot<C, S> {
    generation: u32,
    /// Of the script, over all workers and processes.
    number: u64,
    script: C,
    connections: [Connection<S>; LINKS],
    timer: Time,
    stage: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Loading,
    Draining,
    Ended,
}

/// What happened to a script.
enum Happened<'a> {
    Begin,
    Connected(Link, u64),
    Received(Link, &'a [u8]),
    Lost(Link, Outcome, &'a str),
    Expired,
    Abort(Outcome),
}

/// One event loop. See the module's text.
pub struct ScriptWorker<C: Scripts, N: Network> {
    network: N,
    scripts: Arc<C>,
    share: Share,
    slots: Vec<Option<Slot<C::Script, N::Socket>>>,
    free: Vec<u32>,
    next_generation: u32,
    to_connect: VecDeque<(u32, u32, Link)>,
    /// By link.
    addresses: [Addresses; LINKS],
    /// The link's name is being looked up.
    resolving: [bool; LINKS],
    races: Races<N::Socket>,
    connecting: usize,
    next_connect: Time,
    connect_deadlines: VecDeque<(Time, Token)>,
    timers: BinaryHeap<Reverse<(Time, u32, u32)>>,
    unfinished: Vec<Token>,
    recorder: Recorder,
    spare: Option<Interval>,
    buffer: Vec<u8>,
    /// What was sealed in the buffer, over TLS.
    plain: Vec<u8>,
    actions: Vec<Action>,
    outs: [Vec<u8>; LINKS],

    start: Time,
    arrivals: Option<Arrivals>,
    next: Option<Arrival>,
    /// Closed loop: users without a script, and when those that pause come back.
    idle: u32,
    pausing: BinaryHeap<Reverse<Time>>,
    scripts_left: Option<u64>,
    begun: u64,
    stage: u8,
    stage_end: Time,
    /// Open loop: the last arrival stands for the time up to here, so the run lasts as long.
    schedule_end: Time,
    phase: Phase,
    stopped_at: Time,
    interrupted: bool,
    in_flight: u64,
    /// Calls that have been due so far.
    calls_begun: u64,
    open_connections: u32,
    intervals: Intervals,
    pauses: Pauses,
    handshakes: Tally,
}

impl<C: Scripts, N: Network> ScriptWorker<C, N> {
    pub fn new(share: Share, network: N, scripts: Arc<C>) -> Self {
        let calls = u64::from(scripts.calls().max(1));
        let open_loop = matches!(share.load.arrivals, ArrivalsPlan::Open(_));
        ScriptWorker {
            network,
            scripts,
            slots: Vec::new(),
            free: Vec::new(),
            next_generation: 0,
            to_connect: VecDeque::new(),
            addresses: std::array::from_fn(Addresses::of),
            resolving: [false; LINKS],
            races: Races::default(),
            connecting: 0,
            next_connect: Time::ZERO,
            connect_deadlines: VecDeque::new(),
            timers: BinaryHeap::new(),
            unfinished: Vec::new(),
            recorder: Recorder::new(share.load.stages.len()).keeping_requests(share.keep_requests),
            spare: None,
            buffer: vec![0; READ_BUFFER],
            plain: Vec::new(),
            actions: Vec::new(),
            outs: Default::default(),
            start: Time::NEVER,
            arrivals: None,
            next: None,
            idle: if open_loop { 0 } else { share.clients },
            pausing: BinaryHeap::new(),
            scripts_left: share.calls.map(|n| n.div_ceil(calls)),
            begun: 0,
            stage: 0,
            stage_end: Time::NEVER,
            schedule_end: Time(0),
            phase: Phase::Loading,
            stopped_at: Time::NEVER,
            interrupted: false,
            in_flight: 0,
            calls_begun: 0,
            open_connections: 0,
            intervals: Intervals::none_yet(),
            pauses: Pauses::new(),
            handshakes: Tally::default(),
            share,
        }
    }

    /// Carry the load, from `start` to the last call's end.
    ///
    /// # Errors
    /// When the event loop itself fails, which no target can cause. What was recorded up
    /// to then has been handed over.
    ///
    /// # Panics
    /// Where a script, or the loop itself, has a defect: not before what was recorded has
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
        match self.share.load.arrivals {
            ArrivalsPlan::Open(_) => {
                let mut arrivals = self.share.schedule.share(self.share.index, self.share.of);
                self.next = arrivals.next();
                self.arrivals = Some(arrivals);
                let length = self.share.schedule.end().unwrap_or(0);
                self.schedule_end = start.plus_nanos(length);
            }
            ArrivalsPlan::Closed { .. } => self.enter_stage(start),
        }
        let mut ready = Vec::new();
        let mut result = Ok(());
        while self.phase != Phase::Ended {
            if let Err(e) = self.turn(control, &mut ready) {
                result = Err(e);
                break;
            }
        }
        let now = self.network.now();
        let calls = self.calls_by_now();
        self.pauses.look(now, calls, true, &mut self.recorder);
        let outcome = match control.stop_level() {
            StopLevel::Run => Outcome::CutOff,
            _ => Outcome::Interrupted,
        };
        for index in 0..self.slots.len() as u32 {
            self.happen(control, index, Happened::Abort(outcome), now);
            self.remove(control, index);
        }
        self.races.close(&mut self.network);
        self.hand_over(control, now, true);
        result
    }

    fn turn(&mut self, control: &mut impl Control, ready: &mut Vec<Ready>) -> io::Result<()> {
        let before = self.network.now();
        let wake = self.next_wake(before);
        self.network.wait(Some(wake), ready)?;
        let mut now = self.network.now();
        self.intervals.waited(now.since(before), !ready.is_empty());
        if let Some(length) = self.pauses.waited(before, wake.at, now)
            && now >= self.start
        {
            let calls = self.calls_by_now();
            let length = length.min(now.since(self.start));
            self.pauses.begin(length, now, calls, &mut self.recorder);
        }
        for event in ready.drain(..) {
            self.serve(control, event);
        }
        for token in std::mem::take(&mut self.unfinished) {
            let event = Ready {
                token,
                readable: true,
                writable: false,
                hangup: true,
            };
            self.serve(control, event);
        }
        now = self.network.now();
        self.take_addresses(control, now);
        self.expire(control, now);
        self.issue(control, now);
        self.begin_connections(control, now);
        self.progress(control, now);
        if self.pauses.are_felt() {
            let calls = self.calls_by_now();
            self.pauses.look(now, calls, false, &mut self.recorder);
        }
        if now >= self.intervals.end() {
            self.hand_over(control, now, false);
        }
        Ok(())
    }

    /// The stage, the calls in flight, and how many have been due.
    fn calls_by_now(&self) -> (u8, u64, u64) {
        (self.stage, self.in_flight, self.calls_begun)
    }

    fn next_wake(&self, now: Time) -> Wake {
        let look = if self.in_flight > 0 {
            LOOK_NS
        } else {
            100_000_000
        };
        let mut at = now.plus_nanos(look).min(self.intervals.end());
        if let Some(Reverse((when, ..))) = self.timers.peek() {
            at = at.min(*when);
        }
        if let Some((when, _)) = self.connect_deadlines.front() {
            at = at.min(*when);
        }
        let is_resolving = self.resolving.contains(&true);
        if !self.to_connect.is_empty()
            && self.connecting < self.share.most_connecting()
            && !is_resolving
        {
            at = at.min(self.next_connect);
        }
        at = at.min(self.races.next_timer());
        if !self.unfinished.is_empty() {
            at = now;
        }
        if self.phase == Phase::Loading {
            at = at.min(self.stage_end);
            // Once no more scripts begin, nothing takes users out of their pauses.
            if let Some(Reverse(when)) = self.pausing.peek() {
                at = at.min(*when);
            }
            if self.arrivals.is_some() && self.next.is_none() {
                at = at.min(self.schedule_end);
            }
            if self.arrivals.is_none() && self.idle > 0 && self.scripts_left != Some(0) {
                at = at.min(self.start);
            }
        }
        match self.next {
            Some(next) if self.phase == Phase::Loading && self.start.0 + next.at <= at.0 => Wake {
                at: self.start.plus_nanos(next.at),
                precise: true,
            },
            _ => Wake { at, precise: false },
        }
    }

    fn expire(&mut self, control: &mut impl Control, now: Time) {
        while let Some((deadline, token)) = self.connect_deadlines.front().copied() {
            if deadline > now {
                break;
            }
            self.connect_deadlines.pop_front();
            self.connect_timed_out(control, token, now);
        }
        self.race_on(control, now);
        while let Some(Reverse((when, index, generation))) = self.timers.peek().copied() {
            if when > now {
                break;
            }
            self.timers.pop();
            let is_due = self.slots[index as usize]
                .as_mut()
                .filter(|slot| slot.generation == generation && slot.timer == when)
                .map(|slot| slot.timer = Time::NEVER)
                .is_some();
            if is_due {
                self.happen(control, index, Happened::Expired, now);
            }
        }
    }

    /// Passes an event to a script, and does what it asks for.
    fn happen(
        &mut self,
        control: &mut impl Control,
        index: u32,
        happened: Happened<'_>,
        now: Time,
    ) {
        let Some(slot) = self.slots[index as usize].as_mut() else {
            return;
        };
        fault::point("script");
        let number = |link: usize| self.addresses[link].number(slot.connections[link].place);
        let addresses = std::array::from_fn(number);
        let mut turn = Turn {
            recorder: &mut self.recorder,
            stage: slot.stage,
            // Sessions that arrived are carried out whole; clients that repeat them stop.
            stopping: self.interrupted
                || self.phase != Phase::Loading
                    && self.arrivals.is_none()
                    && self.share.calls.is_none(),
            in_flight: &mut self.in_flight,
            calls_begun: &mut self.calls_begun,
            addresses,
            actions: &mut self.actions,
            outs: &mut self.outs,
            wake: None,
            ended: None,
        };
        match happened {
            Happened::Begin => slot.script.begin(now, &mut turn),
            Happened::Connected(link, took) => slot.script.connected(link, took, now, &mut turn),
            Happened::Received(link, bytes) => slot.script.receive(link, bytes, now, &mut turn),
            Happened::Lost(link, outcome, detail) => {
                slot.script.lost(link, outcome, detail, now, &mut turn);
            }
            Happened::Expired => slot.script.expire(now, &mut turn),
            Happened::Abort(outcome) => slot.script.abort(outcome, now, &mut turn),
        }
        let (wake, ended) = (turn.wake, turn.ended);
        if let Some(at) = wake
            && at != slot.timer
        {
            slot.timer = at;
            if at != Time::NEVER {
                self.timers.push(Reverse((at, index, slot.generation)));
            }
        }
        let generation = slot.generation;
        for link in 0..LINKS as u8 {
            if !self.outs[usize::from(link)].is_empty() {
                self.send(index, Link(link));
            }
        }
        for action in std::mem::take(&mut self.actions) {
            match action {
                Action::Connect(link) => self.to_connect.push_back((index, generation, link)),
                Action::Close(link) => self.close(control, index, link),
            }
        }
        if let Some(ok) = ended {
            self.remove(control, index);
            self.user_free(ok, now);
        }
    }

    fn remove(&mut self, control: &mut impl Control, index: u32) {
        if self.slots[index as usize].is_none() {
            return;
        }
        for link in 0..LINKS as u8 {
            self.close(control, index, Link(link));
        }
        self.slots[index as usize] = None;
        self.free.push(index);
    }

    /// What the TLS handshakes agreed on.
    fn negotiated(&mut self) -> Option<NegotiatedTls> {
        let clients = (0..LINKS).filter_map(|link| self.scripts.tls(Link(link as u8)));
        let renewed = clients.clone().map(TlsClient::renewed).max();
        let mut taken: Vec<_> = clients.flat_map(TlsClient::certificates_taken).collect();
        taken.dedup();
        let mut negotiated = self.handshakes.take(taken)?;
        negotiated.renewed = renewed.unwrap_or(0);
        Some(negotiated)
    }

    /// After a panic: hands over what was recorded, as [`crate::worker::Worker`] does.
    fn abandon(&mut self, control: &mut impl Control) {
        let now = self.network.now();
        let recorded = self.recorder.take(None);
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
            in_flight: self.in_flight,
            connections: self.open_connections,
            ..self.intervals.next(self.share.index, recorded, now)
        });
    }
}
