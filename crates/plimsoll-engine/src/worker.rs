//! Drivers as clients of an event loop: connections of which each carries many calls.
//!
//! [`issue`] starts calls on connections that have room, [`connection`] and [`lifecycle`] serve
//! connections, [`lanes`] replaces them.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use plimsoll_model::plan::Reuse;
use plimsoll_model::schedule::Arrival;
use plimsoll_model::template::TraceIds;
use plimsoll_model::{Outcome, Time};

use crate::driver::{Driver, Event, Protocol};
use crate::event_loop::EventLoop;
use crate::event_loop::client::{Client, Grant, Steps};
use crate::event_loop::connection::State;
use crate::event_loop::issue::{Issue, Phase};
use crate::event_loop::timers::Timers;
use crate::heap;
use crate::loss::Loss;
use crate::network::{Lookup, Network, Ready, Resolved, Token};
use crate::prefetch::prefetch;
use crate::resources::TurnMeter;
use crate::tls::TlsClient;

mod calls;
mod connection;
mod deadlines;
mod events;
mod issue;
mod lanes;
mod lifecycle;
mod limit;
mod rests;
mod retry;
mod tokens;

pub use crate::addresses::classify_connect;
pub use crate::event_loop::{Control, Established, INTERVAL_NS, Share, StopLevel, WorkerInterval};
use calls::Calls;
use connection::{Attempt, Driven, Reading, Role, Until};
use limit::ReachedLimit;
use retry::Retry;
pub(crate) use tokens::Answer;
use tokens::Tokens;

/// The event loop of calls that know nothing of each other.
pub type Worker<P, N> = EventLoop<Drivers<P>, N>;

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

/// What an event loop of drivers keeps.
pub struct Drivers<P: Protocol> {
    protocol: Arc<P>,
    tls: Option<TlsClient>,
    /// The plan resumes sessions, and this worker has had no connection yet.
    ticketless: bool,
    /// [`Protocol::rests`].
    rests: bool,

    lanes: Vec<Lane>,
    lanes_down: usize,
    /// Connections with capacity, in turn.
    open: VecDeque<u32>,
    dirty: Vec<u32>,
    /// Open loop: connections that read the rest of an answer whose call is over, and since when, in order.
    reading_rests: VecDeque<(Time, Token)>,

    calls: Calls,
    tokens: Tokens,
    events: Vec<Event>,
    spare_outboxes: Vec<Vec<u8>>,
    /// Calls that the server did not take, in order.
    retries: VecDeque<Retry>,

    /// Calls that have a connection of their own, by its number.
    attempts: Vec<Attempt>,
    /// How many of them there are now.
    attempting: usize,
    /// The plan's limit of calls in flight.
    limit: Option<ReachedLimit>,
    /// Calls that wait for a connection of their own: when their deadlines pass.
    attempt_deadlines: VecDeque<(Time, Token)>,
    /// When the last answer came.
    last_answer: Time,
    /// When at the earliest the answers reached this host that are being looked at.
    arrived: Time,
    /// Closed loop: when the deadline passes of a lane's client that has waited longest.
    waits: Timers<u32>,
    reconnects: Timers<u32>,
    /// Closed loop: when the clients of lanes have thought.
    thinking: Timers<u32>,
    driver_timers: Timers<Token>,
    /// Connections that wait for a mark, and when to look at them.
    marks: VecDeque<(Time, Token)>,

    established: Established,
}

impl<P: Protocol, N: Network> Worker<P, N> {
    /// One with the connections and calls of `share`. It connects in [`Worker::establish`].
    pub fn new(share: Share, network: N, protocol: Arc<P>, tls: Option<TlsClient>) -> Self {
        let lanes = match share.load.reuse {
            Reuse::Always => share.connections,
            Reuse::Never => 0,
        };
        let drivers = Drivers {
            rests: protocol.rests(),
            tokens: Tokens::new(protocol.goodput()),
            protocol,
            ticketless: tls.as_ref().is_some_and(TlsClient::resumes),
            tls,
            lanes: vec![Lane::default(); lanes as usize],
            lanes_down: 0,
            open: VecDeque::with_capacity(lanes as usize),
            dirty: Vec::new(),
            reading_rests: VecDeque::new(),
            calls: Calls::new(),
            events: Vec::new(),
            spare_outboxes: Vec::new(),
            retries: VecDeque::new(),
            attempts: Vec::new(),
            attempting: 0,
            limit: ReachedLimit::of(&share),
            attempt_deadlines: VecDeque::new(),
            last_answer: Time::ZERO,
            arrived: Time::ZERO,
            waits: Timers::new(),
            reconnects: Timers::new(),
            thinking: Timers::new(),
            driver_timers: Timers::new(),
            marks: VecDeque::new(),
            established: Established::default(),
        };
        let (clients, buffer) = (share.clients, share.load.read_buffer);
        let mut worker = EventLoop::of(drivers, share, network, 1, buffer);
        worker.connections.reserve_exact(lanes as usize);
        worker.to_connect = (0..lanes).collect();
        if let Issue::Closed(closed) = &mut worker.issue {
            closed.begin = true;
            if lanes == 0 {
                closed.idle = clients;
            } else {
                for client in 0..clients {
                    worker.client.lanes[(client % lanes) as usize].idle += 1;
                }
            }
        }
        worker
    }

    /// Reads CPU clocks with `meter` when a turn of the load begins.
    pub fn measure_turns(&mut self, meter: Option<TurnMeter>) {
        match &mut self.issue {
            Issue::Open(open) => open.turn_meter = meter,
            Issue::Closed(closed) => {
                if let Some((turns, meter)) = closed.turns.as_mut().zip(meter) {
                    turns.measure(meter);
                }
            }
        }
    }

    /// Bring the plan's connections up. Returns when each has come up or failed once;
    /// those that failed are tried again during the load.
    ///
    /// # Errors
    /// As [`EventLoop::await_start`].
    pub fn establish(&mut self, control: &mut impl Control) -> io::Result<Established> {
        let mut ready = Vec::new();
        let alone = self.share.of == 1;
        let before = alone.then(heap::allocated).flatten();
        while self.client.lanes.iter().any(|lane| !lane.settled)
            && control.stop_level() == StopLevel::Run
        {
            self.turn(control, None, &mut ready)?;
        }
        let grown = |before| Some(heap::allocated()?.saturating_sub(before));
        self.client.established.heap_bytes = before.and_then(grown);
        Ok(self.client.established.clone())
    }
}

impl<P: Protocol> Drivers<P> {
    /// What receiving needs.
    #[inline]
    fn reading<'a>(&'a mut self, buffer: &'a mut [u8], until: Until) -> Reading<'a> {
        Reading {
            buffer,
            alpn: self.protocol.alpn(),
            tls: self.tls.as_ref(),
            until,
            events: &mut self.events,
        }
    }
}

impl<P: Protocol> Client for Drivers<P> {
    type Own = Driven<P::Driver>;
    /// A lane.
    type Wish = u32;
    const WARMUP_COUNTS: bool = false;
    const AWAITS_LATE_ANSWERS: bool = true;

    fn tls(&self, _target: usize) -> Option<&TlsClient> {
        self.tls.as_ref()
    }

    fn trace_ids(&self) -> Option<TraceIds> {
        self.protocol.trace_ids()
    }

    fn in_flight(&self) -> u64 {
        self.calls.len() as u64
    }

    fn connecting(&self) -> u64 {
        self.attempting as u64
    }

    fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    fn is_given_up(&self, _share: &Share) -> bool {
        true
    }
}

impl<P: Protocol, N: Network> Steps<u32> for Worker<P, N> {
    #[inline]
    fn prefetch(&self, index: u32) {
        if let Some(connection) = &self.connections[index as usize] {
            connection.own.driver.prefetch();
            if let Role::Lane(lane) = connection.own.role {
                prefetch(&self.client.lanes[lane as usize]);
            }
        }
    }

    #[inline]
    fn serve(&mut self, control: &mut impl Control, index: u32, ready: Ready) {
        self.serve_connection(control, index, ready);
    }

    fn transport_is_up(&mut self, control: &mut impl Control, index: u32, now: Time) {
        self.greet(control, index, now);
    }

    fn lost(&mut self, control: &mut impl Control, index: u32, loss: &Loss, now: Time) {
        self.lose(control, index, loss, now);
    }

    fn still_waits_for(&self, index: u32) -> Option<&'static str> {
        let connection = self.connections[index as usize].as_ref()?;
        let own = &connection.own;
        let waits = matches!(own.role, Role::Attempt) && !own.attempt_started;
        (waits && connection.state == State::Open).then(|| connection.state.waiting_for())
    }

    fn resolved(&mut self, control: &mut impl Control, token: Token, found: Resolved) {
        let Some(index) = self.live(token) else {
            return;
        };
        let Some(connection) = self.connections[index as usize].as_ref() else {
            return;
        };
        // Numbered over all workers and processes.
        let (number, lookup) = match connection.own.role {
            Role::Lane(lane) => (self.number_of(lane), Lookup::Shared),
            Role::Attempt => (self.client.attempts[index as usize].number, Lookup::Own),
        };
        let now = self.network.now();
        let until = now + self.share.load.resolve_interval;
        match self.addresses[0].take(found, lookup, until, &mut self.recorder) {
            Ok(()) => self.connect(control, index, number, now),
            Err(loss) => self.lost(control, index, &loss, now),
        }
    }

    fn grant(&mut self, _control: &mut impl Control, _lane: u32, _now: Time) -> Grant {
        match self.phase {
            Phase::Draining => Grant::Never,
            _ => Grant::Now,
        }
    }

    fn begin_connection(&mut self, control: &mut impl Control, lane: u32, now: Time) {
        let index = self.new_driver(Role::Lane(lane), now);
        if self.addresses[0].are_known(now) {
            self.connect(control, index, self.number_of(lane), now);
        } else {
            self.network
                .resolve(0, self.token_of(index), Lookup::Shared);
        }
    }

    fn next_timer(&self) -> Time {
        let client = &self.client;
        let first = |queue: &VecDeque<(Time, Token)>| queue.front().map_or(Time::NEVER, |q| q.0);
        let mut at = client.reconnects.next().min(client.thinking.next());
        at = at
            .min(client.driver_timers.next())
            .min(first(&client.marks))
            .min(self.next_set_aside());
        let Some(deadline) = self.share.load.deadline else {
            return at.min(self.stalled_at());
        };
        if let Some((_, oldest)) = client.calls.oldest() {
            at = at.min(oldest.arrival + deadline);
        }
        if !self.interrupted {
            let backlog = self.issue.backlog();
            at = backlog.map_or(at, |backlog| at.min(backlog.due(self.start) + deadline));
            at = at.min(client.waits.next());
        }
        at.min(first(&client.attempt_deadlines))
    }

    fn expire(&mut self, control: &mut impl Control, now: Time) {
        let is_due = |first: &mut (Time, Token)| first.0 <= now;
        if let Some(deadline) = self.share.load.deadline {
            self.expire_calls(control, deadline, now, now);
            self.expire_waiting(deadline, now);
        } else if self.stalled_at() <= now {
            self.fail_stalled(control, now);
        }
        if self.next_set_aside() <= now {
            self.set_rests_aside(control, now);
        }
        self.expire_connects(control, now);
        while let Some((_, token)) = self.client.attempt_deadlines.pop_front_if(is_due) {
            self.attempt_expired(control, token, now);
        }
        self.race_on(control, now);
        while let Some((_, lane)) = self.client.reconnects.due(now) {
            self.to_connect.push_back(lane);
        }
        while let Some((_, token)) = self.client.driver_timers.due(now) {
            self.driver_expired(control, token, now);
        }
        while let Some((_, token)) = self.client.marks.pop_front_if(is_due) {
            self.mark_due(control, token, now);
        }
    }

    fn load_ended(&mut self, control: &mut impl Control, end: Time, now: Time) {
        self.end_endless(control, end, now);
    }

    #[inline]
    fn arrived(&mut self, _control: &mut impl Control, arrival: Arrival, now: Time) {
        self.count_due(arrival.stage);
        let late_ns = now.since(self.start.plus_nanos(arrival.at));
        if self.client.limit.is_some() && self.is_shed(arrival, now) {
            return;
        }
        if self.issue.backlog().is_some() || !self.try_start(arrival, now, late_ns) {
            self.wait(arrival, late_ns);
        }
        self.look_at_limit(now);
    }

    fn came_too_late(&mut self, stage: u8) {
        self.count_due(stage);
        self.recorder.stage(stage).not_started += 1;
    }

    #[inline]
    fn start_backlog(&mut self, now: Time) {
        self.look_at_limit(now);
        if !self.client.retries.is_empty() {
            // They were due before all others.
            self.start_retries(now);
        }
        if self.issue.backlog().is_some() && !self.interrupted {
            self.work_backlog_off(now);
            self.look_at_limit(now);
        }
    }

    fn issue_on_lanes(&mut self, now: Time) {
        if self.issue.clients_begin() {
            for lane in 0..self.client.lanes.len() {
                if self.share.load.turns.is_some() {
                    // While it was another load's turn nobody waited.
                    self.client.lanes[lane].waiting.clear();
                }
                self.top_up(lane as u32, now);
            }
        }
        while let Some((_, lane)) = self.client.thinking.due(now) {
            self.client.lanes[lane as usize].idle += 1;
            self.top_up(lane, now);
        }
    }

    fn begin(&mut self, _control: &mut impl Control, number: u64, now: Time) {
        self.count_due(self.stage);
        self.begin_attempt(Attempt {
            number,
            arrival: now,
            begun: now,
            stage: self.stage,
            is_retry: false,
        });
    }

    #[inline]
    fn flush(&mut self, control: &mut impl Control) {
        if !self.client.retries.is_empty() {
            let now = self.network.now();
            self.start_retries(now);
        }
        self.flush_dirty(control);
    }

    fn is_idle(&self) -> bool {
        let waiting = self.issue.backlog().is_some() && !self.interrupted;
        self.client.calls.len() == 0 && self.client.attempting == 0 && !waiting
    }

    fn end_everything(&mut self, control: &mut impl Control, outcome: Outcome, now: Time) {
        // Reported before the first one is closed: an observer of what they hold must see all.
        control.connections(-i64::from(self.open_connections));
        self.give_backlog_up(now);
        self.races.close(&mut self.network);
        for index in 0..self.connections.len() as u32 {
            self.end_connection(index, outcome, now);
        }
        self.end_retries(outcome, now);
    }
}

impl<P: Protocol, N: Network> Worker<P, N> {
    /// The stage that what becomes of a connection is counted in: that of the call which it was made for, or this one.
    fn stage_of(&self, index: u32, role: Role) -> u8 {
        match role {
            Role::Lane(_) => self.stage,
            Role::Attempt => self.client.attempts[index as usize].stage,
        }
    }

    /// Returns a lane's number over all workers and processes.
    fn number_of(&self, lane: u32) -> u64 {
        u64::from(lane) * u64::from(self.share.of) + u64::from(self.share.index)
    }
}
