//! The event loop of a worker: one on one core, sharing nothing.
//!
//! It waits until an arrival is due or a socket is ready, stamps, has its client begin what is due
//! and serve what is ready, and records. [`issue`] says what is due (open or closed loop),
//! [`connecting`] makes connections; what these are for is the client's ([`client`]). The order of
//! a turn: wait, sockets, timers, connections, arrivals, writes.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use plimsoll_model::record::Interval;
use plimsoll_model::recorder::Recorder;
use plimsoll_model::run::NegotiatedTls;
use plimsoll_model::{Outcome, Time};

use crate::addresses::Addresses;
use crate::network::{Network, Ready, Token, Wake};
use crate::pauses::{LOOK_NS, Pauses};
use crate::poller::MAX_EVENTS;
use crate::tls::{Tally, TlsClient};

pub(crate) mod client;
pub(crate) mod connecting;
pub(crate) mod connection;
mod control;
mod established;
mod intervals;
pub(crate) mod issue;
mod racing;
mod share;
pub(crate) mod timers;
mod turns;

use client::{Client, Steps};
use connection::Connection;
pub use control::{Control, StopLevel, WorkerInterval};
pub use established::Established;
pub use intervals::INTERVAL_NS;
use intervals::Intervals;
use issue::{Issue, Phase};
use racing::Races;
pub use share::Share;

/// One event loop. See the module's text.
pub struct EventLoop<C: Client, N: Network> {
    pub(crate) client: C,
    pub(crate) network: N,
    pub(crate) share: Share,
    /// The addresses of each target, by its number.
    pub(crate) addresses: Vec<Addresses>,
    pub(crate) races: Races<N::Socket>,

    pub(crate) connections: Vec<Option<Connection<C::Own, N::Socket>>>,
    free: Vec<u32>,
    next_generation: u32,
    /// What connections are wanted for, in turn.
    pub(crate) to_connect: VecDeque<C::Wish>,
    /// Connections that are coming up.
    pub(crate) connecting: usize,
    next_connect: Time,
    connect_deadlines: VecDeque<(Time, Token)>,
    /// Connections that had more to read than one turn gives.
    pub(crate) unfinished: Vec<Token>,
    pub(crate) open_connections: u32,
    pub(crate) handshakes: Tally,
    /// Shared by all connections.
    pub(crate) buffer: Vec<u8>,

    pub(crate) recorder: Recorder,
    /// An emptied interval, for its memory.
    spare: Option<Interval>,
    intervals: Intervals,
    pub(crate) pauses: Pauses,
    /// What each call took at least is recorded, too.
    pub(crate) stamps: bool,
    /// When the sockets were looked at last before the present turn: what it finds came after that.
    pub(crate) looked: Time,
    /// The end of the present turn's wait.
    awoke: Time,

    pub(crate) start: Time,
    /// When the load's time is up; [`Time::NEVER`]: it has been, or a number of calls ends the load.
    load_end: Time,
    pub(crate) issue: Issue,
    pub(crate) stage: u8,
    pub(crate) phase: Phase,
    pub(crate) stopped_at: Time,
    /// Stopped before its time: what waits is not started any more.
    pub(crate) interrupted: bool,
    /// A call's deadline, from when it was due; where there is none, more than any time. Nanoseconds.
    pub(crate) deadline_ns: u64,
    /// Calls that have been due so far.
    pub(crate) due: u64,
}

impl<C: Client, N: Network> EventLoop<C, N>
where
    Self: Steps<C::Wish>,
{
    /// One whose connections go to so many `targets`, and which reads so many bytes at a time.
    pub(crate) fn of(client: C, share: Share, network: N, targets: usize, buffer: usize) -> Self {
        // Connections made before the load count where the totals are taken.
        let first_counted = share.load.stages.iter().position(|stage| !stage.warmup);
        let stamps = share.measures_lateness() && network.stamps();
        EventLoop {
            client,
            network,
            addresses: (0..targets).map(Addresses::of).collect(),
            races: Races::default(),
            connections: Vec::new(),
            free: Vec::new(),
            next_generation: 0,
            to_connect: VecDeque::new(),
            connecting: 0,
            next_connect: Time::ZERO,
            connect_deadlines: VecDeque::new(),
            unfinished: Vec::new(),
            open_connections: 0,
            handshakes: Tally::default(),
            buffer: vec![0; buffer],
            recorder: Recorder::new(share.load.stages.len()).keeping_requests(share.keep_requests),
            spare: None,
            intervals: Intervals::beginning(Time::NEVER),
            pauses: Pauses::new(),
            stamps,
            looked: Time::ZERO,
            awoke: Time::ZERO,
            start: Time::NEVER,
            load_end: Time::NEVER,
            issue: Issue::of(&share),
            stage: first_counted.unwrap_or(0) as u8,
            phase: Phase::Connecting,
            stopped_at: Time::NEVER,
            interrupted: false,
            deadline_ns: (share.load.deadline)
                .map_or(u64::MAX, |deadline| (Time::ZERO + deadline).0),
            due: 0,
            share,
        }
    }

    /// Keep connections alive until the load begins; `false` when it never will.
    ///
    /// # Errors
    /// When the event loop itself fails, which no target can cause.
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
    /// As [`EventLoop::await_start`]. What was recorded up to then has been handed over.
    ///
    /// # Panics
    /// Where a driver, a script or the loop itself has a defect: not before what was recorded has
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
        if let Some(ids) = self.client.trace_ids() {
            self.recorder.keep_slowest(ids, self.share.index, start);
        }
        self.intervals = Intervals::beginning(start);
        self.begin_issue();
        // A pause that began before the load, while nobody looked for one, and lasted into it.
        let now = self.network.now();
        if let Some(length) = self.pauses.begun_late(start, now) {
            self.stood_still(length, now);
        }
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
        self.pauses.end(calls, &mut self.recorder);
        let outcome = match control.stop_level() {
            StopLevel::Run => Outcome::CutOff,
            _ => Outcome::Interrupted,
        };
        self.end_everything(control, outcome, now);
        self.hand_over(control, now, true);
        result
    }

    /// One turn of the loop.
    pub(crate) fn turn(
        &mut self,
        control: &mut impl Control,
        at_latest: Option<Time>,
        ready: &mut Vec<Ready>,
    ) -> io::Result<()> {
        let before = self.network.now();
        let wake = self.next_wake(at_latest, before);
        self.network.wait(Some(wake), ready)?;
        let mut now = self.network.now();
        let found = ready.len();
        // What did not fit into one look was there already.
        self.looked = if found < MAX_EVENTS {
            self.awoke
        } else {
            Time::ZERO
        };
        self.awoke = now;
        self.intervals.waited(now.since(before), found);
        if let Some(length) = self.pauses.waited(before, wake.at, now) {
            self.stood_still(length, now);
        }

        for (i, event) in ready.iter().copied().enumerate() {
            self.prefetch_ready(&ready[i..]);
            self.serve_socket(control, event);
            // Arrivals don't wait for the rest of a large batch of answers.
            if self.issue.is_due(self.start, now) || i % 64 == 63 {
                now = self.network.now();
                self.issue_due(control, now);
                self.flush(control);
            }
        }
        self.take_addresses(control);
        // Nobody knows how long the rest has been there.
        self.looked = Time::ZERO;
        for token in std::mem::take(&mut self.unfinished) {
            self.serve_socket(control, Ready::to_be_read(token));
        }
        now = self.network.now();
        if now >= self.load_end {
            self.end_load(control, now);
        }
        self.expire(control, now);
        self.begin_connections(control, now);
        self.issue_due(control, now);
        // Connections that were begun now, to an address that needs no looking up.
        self.take_addresses(control);
        self.flush(control);
        self.progress(control, now);
        if self.pauses.are_felt() {
            let calls = self.calls_by_now();
            self.pauses.look(now, calls, &mut self.recorder);
        }
        if now >= self.intervals.end() {
            self.hand_over(control, now, false);
        }
        Ok(())
    }

    /// The load's time is up: what was due has been issued, and the client is told before deadlines are judged.
    #[cold]
    fn end_load(&mut self, control: &mut impl Control, now: Time) {
        let end = std::mem::replace(&mut self.load_end, Time::NEVER);
        self.issue_due(control, now);
        if self.is_exhausted(now) {
            self.stop_issuing(now);
        }
        if !self.interrupted {
            self.load_ended(control, end, now);
        }
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
        let under_way = self.client.in_flight() + self.client.connecting() + self.issue.waiting();
        (self.stage, under_way, self.due)
    }

    /// The next moment at which something has to be done.
    fn next_wake(&self, at_latest: Option<Time>, now: Time) -> Wake {
        // Control is looked at this often even if nothing happens.
        let look = if self.client.in_flight() > 0 {
            LOOK_NS
        } else {
            100_000_000
        };
        let mut at = now.plus_nanos(look).min(self.intervals.end());
        at = at.min(at_latest.unwrap_or(Time::NEVER));
        if let Some((deadline, _)) = self.connect_deadlines.front() {
            at = at.min(*deadline);
        }
        at = at.min(self.races.next_timer());
        // What waits for the addresses of a name waits for nothing else.
        let can_connect = self.connecting < self.share.most_connecting()
            && !self.addresses.iter().any(Addresses::are_asked_for);
        if !self.to_connect.is_empty() && can_connect {
            at = at.min(self.next_connect);
        }
        at = at.min(self.next_timer());
        if !self.unfinished.is_empty() || self.client.is_dirty() {
            at = now;
        }
        at = at.min(self.next_issue()).min(self.drain_end());
        let leaves = self.next_arrival();
        if leaves <= at {
            Wake {
                at: leaves,
                precise: true,
            }
        } else {
            Wake { at, precise: false }
        }
    }

    /// What the TLS handshakes agreed on.
    fn negotiated(&mut self) -> Option<NegotiatedTls> {
        let clients = (0..self.addresses.len()).filter_map(|target| self.client.tls(target));
        let renewed = clients.clone().map(TlsClient::renewed).max();
        let mut taken: Vec<_> = clients.flat_map(TlsClient::certificates_taken).collect();
        taken.dedup();
        let mut negotiated = self.handshakes.take(taken)?;
        negotiated.renewed = renewed.unwrap_or(0);
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
            in_flight: self.client.in_flight(),
            backlog: self.issue.waiting(),
            connections: self.open_connections,
            ..self.intervals.next(self.share.index, recorded, now)
        });
    }
}
