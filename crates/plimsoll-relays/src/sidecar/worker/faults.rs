//! Fault injection: delays or fails calls on purpose.
//!
//! Delayed items are ordered by time. A call over HTTP/2 is delayed before it has an upstream
//! stream, a frame by itself, and a pipe as a client that is not read.

use std::collections::BTreeMap;
use std::time::Duration;

use plimsoll_model::Time;
use plimsoll_protocols::relayed::Seen;

use super::troubles::Peer;
use super::{Connection, Frame, HIGH_WATER, Role, Taken, Worker};

/// Delay before a frame that no upstream could take is tried again.
const RETRY_DELAY: Duration = Duration::from_millis(5);

/// The fault injected into a call.
pub(super) enum Fate {
    Goes,
    Waits(Duration),
    Fails,
}

/// A delayed frame, call or client.
pub(super) enum Waiting {
    /// A frame of a client whose calls share upstream connections.
    Frame(Late),
    /// A call over HTTP/2, by key.
    Exchange(u64),
    /// A client whose bytes are relayed, and its route.
    Pipe(u64, usize),
}

pub(super) struct Late {
    from: u64,
    seen: Seen,
    bytes: Vec<u8>,
    /// When its delay ended.
    since: Time,
}

/// The delayed items, by time.
#[derive(Default)]
pub(super) struct Delayed {
    waiting: BTreeMap<(Time, u64), Waiting>,
    number: u64,
}

impl Delayed {
    pub(super) fn first(&self) -> Time {
        let first = self.waiting.first_key_value();
        first.map_or(Time::NEVER, |((time, _), _)| *time)
    }

    pub(super) fn push(&mut self, time: Time, waiting: Waiting) {
        self.number += 1;
        self.waiting.insert((time, self.number), waiting);
    }

    fn pop(&mut self, now: Time) -> Option<Waiting> {
        let first = self.waiting.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }
}

impl Worker {
    /// Draws the fault for the route's next call.
    pub(super) fn fate(&mut self, route: usize) -> Fate {
        let state = &self.routes[route];
        let Some(fault) = state.setup.route.fault else {
            return Fate::Goes;
        };
        if self.random.f64() < fault.abort_share.unwrap_or(0.0) {
            state.setup.counters.faults_aborted.inc();
            return Fate::Fails;
        }
        match fault.delay {
            Some(delay) if self.random.f64() < fault.delay_share.unwrap_or(1.0) => {
                state.setup.counters.faults_delayed.inc();
                Fate::Waits(delay.0)
            }
            _ => Fate::Goes,
        }
    }

    /// Delays a client's frame. A client with many delayed bytes is not read.
    pub(super) fn delay_frame(&mut self, from: &mut Connection, frame: Frame<'_>, until: Time) {
        from.delayed += frame.bytes.len();
        let late = Late {
            from: from.token,
            seen: frame.seen,
            bytes: frame.bytes.to_vec(),
            since: until,
        };
        self.delayed.push(until, Waiting::Frame(late));
    }

    /// Sends the items whose delay has ended.
    pub(super) fn release(&mut self, now: Time) {
        while let Some(waiting) = self.delayed.pop(now) {
            match waiting {
                Waiting::Frame(late) => self.release_frame(late, now),
                Waiting::Exchange(key) => {
                    if self.exchanges.get_mut(key).is_some() {
                        self.dispatch(key, now);
                    }
                }
                Waiting::Pipe(token, route) => self.release_pipe(token, route, now),
            }
        }
    }

    fn release_frame(&mut self, late: Late, now: Time) {
        self.serving(late.from, now, |worker, connection| {
            let Some(codec) = worker.routes[connection.route].setup.codec.clone() else {
                return true;
            };
            let frame = Frame {
                seen: late.seen,
                bytes: &late.bytes,
            };
            match worker.send_on(connection, &codec, frame, late.since, now) {
                Ok(Taken::Held) => worker.delayed.push(now + RETRY_DELAY, Waiting::Frame(late)),
                Ok(taken) => {
                    connection.delayed -= late.bytes.len();
                    // It was counted as waiting for an answer.
                    if let (Taken::Over, Role::Down { in_flight }) = (taken, &mut connection.role) {
                        *in_flight = in_flight.saturating_sub(1);
                    }
                }
                Err(broken) => {
                    worker.report_broken(connection.route, Peer::of(connection), &broken, now);
                    return false;
                }
            }
            true
        });
    }

    fn release_pipe(&mut self, token: u64, route: usize, now: Time) {
        self.join(token, route, now);
        if let Some(connection) = self.live(token) {
            connection.paused = false;
            self.watch(token);
        }
    }

    /// Joins a client of a byte stream to an upstream: at once, later, or never.
    pub(super) fn meet(&mut self, token: u64, route: usize, now: Time) {
        match self.fate(route) {
            Fate::Goes => self.join(token, route, now),
            Fate::Fails => self.close(token, now),
            Fate::Waits(time) => {
                self.delayed.push(now + time, Waiting::Pipe(token, route));
                if let Some(connection) = self.live(token) {
                    connection.paused = true;
                    self.watch(token);
                }
            }
        }
    }
}

impl Connection {
    /// Returns whether too much is queued for it, or delayed, to read more.
    pub(super) fn is_full(&self) -> bool {
        self.transport.unsent() > HIGH_WATER || self.delayed > HIGH_WATER
    }
}
