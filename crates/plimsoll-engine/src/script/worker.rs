//! The worker that runs scripts: one event loop on one core, sharing nothing.
//!
//! The order of a turn is that of [`crate::worker`]: wait, sockets, timers, arrivals.
//! Invariant: every call a script said was due is recorded once, for a script that is
//! over at the end of the run is told to end its call.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use plimsoll_model::plan::Arrivals as ArrivalsPlan;
use plimsoll_model::record::Interval;
use plimsoll_model::schedule::{Arrival, Arrivals};
use plimsoll_model::{Outcome, Recorder, Time};

use super::{Action, LINKS, Link, Origin, Script, Scripts, Turn};
use crate::network::{Network, Ready, Token, Wake};
use crate::worker::{Control, INTERVAL_NS, Share, StopLevel, WorkerInterval, classify_connect};

const READ_BUFFER: usize = 128 * 1024;
const MOST_READS: usize = 4;
/// After an interrupt, how long calls in flight may take.
const GRACE: Duration = Duration::from_secs(2);
/// A user whose script failed pauses this long at least.
const FAILURE_PAUSE: Duration = Duration::from_millis(100);

struct Connection<S> {
    socket: Option<S>,
    up: bool,
    began: Time,
    generation: u8,
    /// What the socket did not take.
    out: Vec<u8>,
}

impl<S> Default for Connection<S> {
    fn default() -> Connection<S> {
        Connection {
            socket: None,
            up: false,
            began: Time::ZERO,
            generation: 0,
            out: Vec::new(),
        }
    }
}

struct Slot<C, S> {
    generation: u32,
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
    to_connect: VecDeque<(u32, u32, Link, SocketAddr)>,
    connecting: usize,
    next_connect: Time,
    connect_deadlines: VecDeque<(Time, Token)>,
    timers: BinaryHeap<Reverse<(Time, u32, u32)>>,
    unfinished: Vec<Token>,
    recorder: Recorder,
    spare: Option<Interval>,
    buffer: Vec<u8>,
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
    phase: Phase,
    stopped_at: Time,
    interrupted: bool,
    in_flight: u64,
    open_connections: u32,
    interval_index: u32,
    interval_end: Time,
    interval_began: Time,
    waited_ns: u64,
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
            connecting: 0,
            next_connect: Time::ZERO,
            connect_deadlines: VecDeque::new(),
            timers: BinaryHeap::new(),
            unfinished: Vec::new(),
            recorder: Recorder::new(share.load.stages.len(), share.keep_requests),
            spare: None,
            buffer: vec![0; READ_BUFFER],
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
            phase: Phase::Loading,
            stopped_at: Time::NEVER,
            interrupted: false,
            in_flight: 0,
            open_connections: 0,
            interval_index: 0,
            interval_end: Time::NEVER,
            interval_began: Time::ZERO,
            waited_ns: 0,
            share,
        }
    }

    /// Carry the load, from `start` to the last call's end.
    ///
    /// # Errors
    /// When the event loop itself fails, which no target can cause. What was recorded up
    /// to then has been handed over.
    pub fn run(&mut self, start: Time, control: &mut impl Control) -> io::Result<()> {
        self.start = start;
        self.interval_began = start;
        self.interval_end = start.plus_nanos(INTERVAL_NS);
        match self.share.load.arrivals {
            ArrivalsPlan::Open(_) => {
                let mut arrivals = self.share.schedule.share(self.share.index, self.share.of);
                self.next = arrivals.next();
                self.arrivals = Some(arrivals);
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
        let outcome = match control.stop_level() {
            StopLevel::Run => Outcome::NoAnswer,
            _ => Outcome::Interrupted,
        };
        for index in 0..self.slots.len() as u32 {
            self.happen(control, index, Happened::Abort(outcome), now);
            self.remove(control, index);
        }
        self.hand_over(control, now, true);
        result
    }

    fn turn(&mut self, control: &mut impl Control, ready: &mut Vec<Ready>) -> io::Result<()> {
        let before = self.network.now();
        let wake = self.next_wake(before);
        self.network.wait(Some(wake), ready)?;
        let mut now = self.network.now();
        self.waited_ns += now.since(before);
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
        self.expire(control, now);
        self.issue(control, now);
        self.begin_connections(control, now);
        self.progress(control, now);
        if now >= self.interval_end {
            self.hand_over(control, now, false);
        }
        Ok(())
    }

    fn next_wake(&self, now: Time) -> Wake {
        let mut at = now.plus_nanos(100_000_000).min(self.interval_end);
        if let Some(Reverse((when, ..))) = self.timers.peek() {
            at = at.min(*when);
        }
        if let Some(Reverse(when)) = self.pausing.peek() {
            at = at.min(*when);
        }
        if let Some((when, _)) = self.connect_deadlines.front() {
            at = at.min(*when);
        }
        if !self.to_connect.is_empty() && self.connecting < self.share.most_connecting() {
            at = at.min(self.next_connect);
        }
        if !self.unfinished.is_empty() {
            at = now;
        }
        if self.phase == Phase::Loading {
            at = at.min(self.stage_end);
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

    /// Begins the scripts that are due.
    fn issue(&mut self, control: &mut impl Control, now: Time) {
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
        self.next_generation = self.next_generation.wrapping_add(1) & 0x00ff_ffff;
        let slot = Slot {
            generation,
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

    fn token(&self, index: u32, link: Link) -> Token {
        let Some(slot) = &self.slots[index as usize] else {
            return Token(u64::MAX - 1);
        };
        let connection = &slot.connections[usize::from(link.0)];
        Token(
            u64::from(slot.generation) << 40
                | u64::from(connection.generation) << 32
                | u64::from(link.0) << 31
                | u64::from(index),
        )
    }

    /// The live connection that a token names.
    fn live(&self, token: Token) -> Option<(u32, Link)> {
        let (index, link) = (
            token.0 as u32 & 0x7fff_ffff,
            Link((token.0 >> 31) as u8 & 1),
        );
        self.slots.get(index as usize)?.as_ref()?;
        (self.token(index, link) == token).then_some((index, link))
    }

    fn connection(&mut self, index: u32, link: Link) -> Option<&mut Connection<N::Socket>> {
        let slot = self.slots[index as usize].as_mut()?;
        Some(&mut slot.connections[usize::from(link.0)])
    }

    fn serve(&mut self, control: &mut impl Control, ready: Ready) {
        let Some((index, link)) = self.live(ready.token) else {
            return;
        };
        let now = self.network.now();
        let Some(slot) = self.slots[index as usize].as_mut() else {
            return;
        };
        let connection = &mut slot.connections[usize::from(link.0)];
        let Some(socket) = connection.socket.as_mut() else {
            return;
        };
        if !connection.up {
            if !ready.writable {
                return;
            }
            if let Err(e) = self.network.connected(socket) {
                let (outcome, text) = (classify_connect(&e), e.to_string());
                return self.lose(control, index, link, outcome, &text, now);
            }
            connection.up = true;
            let took = now.since(connection.began);
            self.connecting -= 1;
            self.open_connections += 1;
            control.connections(1);
            self.happen(control, index, Happened::Connected(link, took), now);
            return;
        }
        if ready.writable && !connection.out.is_empty() {
            self.flush(index, link);
        }
        if ready.readable || ready.hangup {
            self.read(control, index, link, ready);
        }
    }

    fn read(&mut self, control: &mut impl Control, index: u32, link: Link, ready: Ready) {
        let mut buffer = std::mem::take(&mut self.buffer);
        for _ in 0..MOST_READS {
            // A script may close its connection, or end, with any bytes it is given.
            if self.live(ready.token).is_none() {
                break;
            }
            let Some(slot) = self.slots[index as usize].as_mut() else {
                break;
            };
            let Some(socket) = slot.connections[usize::from(link.0)].socket.as_mut() else {
                break;
            };
            let result = self.network.read(socket, &mut buffer);
            let now = self.network.now();
            match result {
                Ok(0) => {
                    let text = "the server closed the connection";
                    self.lose(control, index, link, Outcome::ConnectionClosed, text, now);
                }
                Ok(got) => {
                    let short = got < buffer.len() && !ready.hangup;
                    let bytes = &buffer[..got];
                    self.happen(control, index, Happened::Received(link, bytes), now);
                    // A short read has emptied the socket; the next bytes make a new event.
                    if short {
                        self.buffer = buffer;
                        return;
                    }
                    continue;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => {
                    let text = format!("the connection was lost: {e}");
                    self.lose(control, index, link, Outcome::Reset, &text, now);
                }
            }
            self.buffer = buffer;
            return;
        }
        self.buffer = buffer;
        if self.live(ready.token).is_some() {
            self.unfinished.push(ready.token);
        }
    }

    /// A connection is gone, or never came up.
    fn lose(
        &mut self,
        control: &mut impl Control,
        index: u32,
        link: Link,
        outcome: Outcome,
        detail: &str,
        now: Time,
    ) {
        self.close(control, index, link);
        self.happen(control, index, Happened::Lost(link, outcome, detail), now);
    }

    fn close(&mut self, control: &mut impl Control, index: u32, link: Link) {
        let Some(connection) = self.connection(index, link) else {
            return;
        };
        let (socket, up) = (connection.socket.take(), connection.up);
        connection.up = false;
        connection.out = Vec::new();
        connection.generation = connection.generation.wrapping_add(1);
        if let Some(socket) = socket {
            self.network.close(socket);
            if up {
                self.open_connections -= 1;
                control.connections(-1);
            } else {
                self.connecting -= 1;
            }
        }
    }

    fn begin_connections(&mut self, control: &mut impl Control, now: Time) {
        while self.connecting < self.share.most_connecting() && now >= self.next_connect {
            let Some((index, generation, link, to)) = self.to_connect.pop_front() else {
                return;
            };
            let alive = self.slots[index as usize]
                .as_ref()
                .is_some_and(|slot| slot.generation == generation);
            if !alive {
                continue;
            }
            if let Some(rate) = self.share.load.connect_rate {
                let gap = (1e9 * f64::from(self.share.of) / rate) as u64;
                self.next_connect = self.next_connect.max(now).plus_nanos(gap);
            }
            self.close(control, index, link);
            let token = self.token(index, link);
            match self.network.connect(to, token) {
                Ok(socket) => {
                    self.connecting += 1;
                    let deadline = now + self.share.load.connect_timeout;
                    self.connect_deadlines.push_back((deadline, token));
                    if let Some(connection) = self.connection(index, link) {
                        connection.socket = Some(socket);
                        connection.began = now;
                    }
                }
                Err(e) => {
                    let (outcome, text) = (classify_connect(&e), format!("connect to {to}: {e}"));
                    self.lose(control, index, link, outcome, &text, now);
                }
            }
        }
    }

    fn expire(&mut self, control: &mut impl Control, now: Time) {
        while let Some((deadline, token)) = self.connect_deadlines.front().copied() {
            if deadline > now {
                break;
            }
            self.connect_deadlines.pop_front();
            if let Some((index, link)) = self.live(token)
                && self.connection(index, link).is_some_and(|c| !c.up)
            {
                let text = format!(
                    "waited {:?} (load.connect_timeout) for the TCP connection",
                    self.share.load.connect_timeout
                );
                self.lose(control, index, link, Outcome::ConnectTimeout, &text, now);
            }
        }
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

    /// Tells a script what happened, and does what it asks for.
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
        let mut turn = Turn {
            recorder: &mut self.recorder,
            stage: slot.stage,
            // Sessions that arrived are carried out whole; clients that repeat them stop.
            stopping: self.interrupted
                || self.phase != Phase::Loading
                    && self.arrivals.is_none()
                    && self.share.calls.is_none(),
            in_flight: &mut self.in_flight,
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
                Action::Connect(link, to) => {
                    self.to_connect.push_back((index, generation, link, to));
                }
                Action::Close(link) => self.close(control, index, link),
            }
        }
        if let Some(ok) = ended {
            self.remove(control, index);
            self.user_free(ok, now);
        }
    }

    /// Sends what a script has put out on a link, and keeps what the socket does not take.
    fn send(&mut self, index: u32, link: Link) {
        let at = usize::from(link.0);
        let Some(slot) = self.slots[index as usize].as_mut() else {
            return self.outs[at].clear();
        };
        let connection = &mut slot.connections[at];
        let out = &mut self.outs[at];
        let Some(socket) = connection.socket.as_mut().filter(|_| connection.up) else {
            return out.clear();
        };
        let mut written = 0;
        if connection.out.is_empty() {
            while written < out.len() {
                match self.network.write(socket, &[IoSlice::new(&out[written..])]) {
                    Ok(n) => written += n,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    // A connection that fails shows when it is read.
                    Err(_) => break,
                }
            }
        }
        connection.out.extend_from_slice(&out[written..]);
        out.clear();
    }

    fn flush(&mut self, index: u32, link: Link) {
        let Some(slot) = self.slots[index as usize].as_mut() else {
            return;
        };
        let connection = &mut slot.connections[usize::from(link.0)];
        let Some(socket) = connection.socket.as_mut() else {
            return;
        };
        while !connection.out.is_empty() {
            match self.network.write(socket, &[IoSlice::new(&connection.out)]) {
                Ok(n) => drop(connection.out.drain(..n)),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
        connection.out = Vec::new();
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

    /// A user's script is over: the next one follows, after a pause.
    fn user_free(&mut self, ok: bool, now: Time) {
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
    fn enter_stage(&mut self, now: Time) {
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

    fn progress(&mut self, control: &mut impl Control, now: Time) {
        let level = control.stop_level();
        self.interrupted = level != StopLevel::Run;
        let running = self.slots.len() - self.free.len();
        if self.phase == Phase::Loading {
            let exhausted = match self.arrivals {
                Some(_) => self.next.is_none(),
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

    /// Hand the interval that has ended to the conductor, and begin the next.
    fn hand_over(&mut self, control: &mut impl Control, now: Time, last: bool) {
        let recorded = self.recorder.take(self.spare.take());
        let length = now.since(self.interval_began);
        self.spare = control.interval(WorkerInterval {
            worker: self.share.index,
            index: self.interval_index,
            last,
            end_ns: now.since(self.start),
            recorded,
            in_flight: self.in_flight,
            backlog: 0,
            connections: self.open_connections,
            negotiated: None,
            busy_ns: length.saturating_sub(self.waited_ns),
        });
        self.waited_ns = 0;
        self.interval_began = now;
        let index = now.since(self.start) / INTERVAL_NS;
        self.interval_index = u32::try_from(index)
            .unwrap_or(u32::MAX)
            .max(self.interval_index + 1);
        self.interval_end = self
            .start
            .plus_nanos((u64::from(self.interval_index) + 1) * INTERVAL_NS);
    }
}
